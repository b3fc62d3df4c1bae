"""`fs.read`, `fs.list`: the script's own folder and nothing outside, whatever lies in it and whatever moves."""

import errno
import os
import re
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
from engine_support import run, small_config
from host_call_support import Caller
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from engine.bridge import fs
from engine.bridge.fs import MAX_ENTRIES, MAX_GLOB_ALTERNATIVES, MAX_PATH_BYTES, parse_glob, parse_path
from engine.engine import open_engine
from engine.run import Authority
from engine.tenant import Tenant
from sandbox.wire.outcome import Outcome

OUTSIDE = b"outside: no script may read this"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A script's folder, next to things that are not in it."""
    folder = tmp_path / "scripts"
    (folder / "data" / "deep").mkdir(parents=True)
    (folder / "agent.lua").write_text("-- the script itself")
    (folder / "data" / "a.md").write_text("A")
    (folder / "data" / "b.txt").write_bytes(b"\x00\xff\xfe bytes")
    (folder / "data" / "empty").touch()
    (folder / "data" / "deep" / "c.md").write_text("C")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.md").write_bytes(OUTSIDE)
    (tmp_path / "secret").write_bytes(OUTSIDE)
    return folder


def reader(folder: Path | None, **how: Any) -> Caller:
    return Caller.of(fs.functions(), Authority(folder=None if folder is None else str(folder)), **how)


async def works(folder: Path) -> None:
    assert await reader(folder).value("fs.read", path="data/a.md") == b"A"


# ---- reading ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("agent.lua", b"-- the script itself"),
        ("data/a.md", b"A"),
        ("./data/./a.md", b"A"),
        (b"data/a.md", b"A"),
        ("data/b.txt", b"\x00\xff\xfe bytes"),
        ("data/empty", b""),
        ("data/deep/c.md", b"C"),
    ],
)
async def test_a_file_in_the_folder_is_read_byte_for_byte(folder: Path, path: str, content: bytes) -> None:
    assert await reader(folder).value("fs.read", path=path) == content


async def test_a_name_need_not_be_utf8_nor_polite(folder: Path) -> None:
    for name in (b"\xff\xfe", b"new\nline", "päß 🔑".encode(), b"..a", b"a..", b"...", b"~", b"$HOME", b"*", b" "):
        (folder / os.fsdecode(name)).write_bytes(name)
        assert await reader(folder).value("fs.read", path=name) == name
        listed = await reader(folder).value("fs.list")
        path = next(entry["path"] for entry in listed if entry["name"] in (name, name.decode(errors="replace")))
        assert await reader(folder).value("fs.read", path=path) == name


REFUSED_PATHS: dict[str | bytes, str] = {
    "/etc/passwd": "'/etc/passwd' is absolute; paths are relative to the script's own folder",
    "//etc/passwd": "'//etc/passwd' is absolute; paths are relative to the script's own folder",
    "/": "'/' is absolute; paths are relative to the script's own folder",
    "..": "'..' holds '..'; paths stay below the script's own folder",
    "../secret": "'../secret' holds '..'; paths stay below the script's own folder",
    "../../etc/passwd": "'../../etc/passwd' holds '..'; paths stay below the script's own folder",
    "data/../agent.lua": "'data/../agent.lua' holds '..'; paths stay below the script's own folder",
    "data/../../secret": "'data/../../secret' holds '..'; paths stay below the script's own folder",
    b"\xff/../secret": r"'\xff/../secret' holds '..'; paths stay below the script's own folder",
    "data//a.md": "'data//a.md' holds '//': a name is missing",
    "data\\a.md": r"'data\\a.md' holds a backslash; the separator is '/'",
    "..\\secret": r"'..\\secret' holds a backslash; the separator is '/'",
    "data/a.md\0.txt": r"'data/a.md\x00.txt' holds a zero byte",
    "\0": r"'\x00' holds a zero byte",
    "data/a.md/": "'data/a.md/' ends with '/', so it does not name a file",
    "x" * 256: f"'{'x' * 127}…' holds a name of more than 255 bytes",
    "é" * 128: f"'{'é' * 128}' holds a name of more than 255 bytes",
    "a/" * 600: "is 1200 bytes long; the limit is 1024",
}


def test_a_path_that_could_lead_elsewhere_is_no_path() -> None:
    for path, why in REFUSED_PATHS.items():
        with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
            parse_path(path)


async def test_a_path_that_is_no_string_is_refused(folder: Path) -> None:
    for path in [5, 1.5, True, None, ["data"], {"path": "data"}]:
        assert (await reader(folder).refusal("fs.read", path=path)).startswith("fs.read: path: expected string, got ")
    await works(folder)


async def test_every_refused_path_is_an_error_of_the_call(folder: Path) -> None:
    for path, why in REFUSED_PATHS.items():
        assert await reader(folder).refusal("fs.read", path=path) == f"fs.read: path: {why}"
    for path in ("", ".", "./."):
        told = await reader(folder).refusal("fs.read", path=path)
        assert told == "fs.read: path: '.' is the script's own folder, not a file in it"
    assert "path is nil: it is required" in await reader(folder).refusal("fs.read")
    await works(folder)


@given(st.one_of(st.binary(max_size=40), st.text(max_size=40), st.text(st.sampled_from("./\\\0a~"), max_size=12)))
def test_whatever_the_path_no_name_of_it_leads_upwards(path: str | bytes) -> None:
    try:
        names = parse_path(path)
    except ValueError:
        return
    assert all(name not in (b"", b".", b"..") and b"/" not in name and b"\0" not in name for name in names)
    assert sum(map(len, names)) <= MAX_PATH_BYTES


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("none", "'none': no such file or directory"),
        ("data/none.md", "'data/none.md': no such file or directory"),
        ("none/a.md", "'none': no such file or directory"),
        ("data", "'data': a directory, which fs.list lists"),
        ("agent.lua/a.md", "'agent.lua': not a directory"),
    ],
)
async def test_what_is_not_there_is_named_relative_to_the_folder(folder: Path, path: str, why: str) -> None:
    assert await reader(folder).refusal("fs.read", path=path) == f"fs.read: {why}"
    await works(folder)


async def test_no_error_names_a_place_of_the_host(folder: Path, tmp_path: Path) -> None:
    (folder / "out").symlink_to(tmp_path / "outside")
    for path in (*REFUSED_PATHS, "none", "data", "out", "out/a.md", "agent.lua/x"):
        for call in ("fs.read", "fs.list"):
            ok, told = await reader(folder).answer(call, path=path)
            assert ok or str(tmp_path) not in told


async def test_a_script_without_a_folder_reads_nothing() -> None:
    for call in ("fs.read", "fs.list"):
        told = await reader(None).refusal(call, path="x")
        assert told == f"{call}: 'test' has no folder of its own: it was not loaded from a file"


async def test_a_folder_that_is_gone_is_told_and_may_come_back(folder: Path, tmp_path: Path) -> None:
    os.rename(folder, tmp_path / "moved")
    told = await reader(folder).refusal("fs.read", path="data/a.md")
    assert told == "fs.read: the script's own folder cannot be opened (no such file or directory)"
    os.rename(tmp_path / "moved", folder)
    await works(folder)


async def test_the_folder_itself_may_be_reached_through_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    await works(tmp_path / "link")


# ---- links, and what is no file ---------------------------------------------------------------------------------

A_LINK = "a symbolic link, and links are not followed"


async def test_no_link_is_followed_wherever_it_leads(folder: Path, tmp_path: Path) -> None:
    links = {
        "absolute": tmp_path / "secret",
        "relative": Path("../secret"),
        "inside": Path("agent.lua"),
        "nowhere": Path("none"),
        "itself": Path("itself"),
        "passwd": Path("/etc/passwd"),
        "proc": Path("/proc/self/environ"),
    }
    for name, target in links.items():
        (folder / name).symlink_to(target)
        assert await reader(folder).refusal("fs.read", path=name) == f"fs.read: '{name}': {A_LINK}"
    await works(folder)


async def test_no_folder_is_entered_through_a_link(folder: Path, tmp_path: Path) -> None:
    links = {"out": tmp_path / "outside", "up": Path(".."), "in": Path("data"), "root": Path("/"), "self": Path(".")}
    for name, target in links.items():
        (folder / name).symlink_to(target)
        (folder / "data" / name).symlink_to(target)
        for path in (name, f"data/{name}"):
            assert await reader(folder).refusal("fs.read", path=f"{path}/a.md") == f"fs.read: '{path}': {A_LINK}"
            assert await reader(folder).refusal("fs.list", path=path) == f"fs.list: '{path}': {A_LINK}"
            assert await reader(folder).refusal("fs.list", path=f"{path}/") == f"fs.list: '{path}': {A_LINK}"
    await works(folder)


async def test_a_fifo_a_socket_and_a_device_are_refused_without_waiting(folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
    names = ["fifo", "socket"]
    try:
        os.mknod(folder / "device", stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero
        names.append("device")
    except PermissionError:
        pass  # only root makes devices
    with trio.fail_after(10):
        for name in names:
            assert await reader(folder).refusal("fs.read", path=name) == f"fs.read: '{name}': not a regular file"
        listed = {entry["name"]: entry["type"] for entry in await reader(folder).value("fs.list")}
    assert [listed[name] for name in names] == ["other"] * len(names)
    await works(folder)


async def test_what_is_no_file_is_not_even_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(folder / "fifo")
    opened = []
    with monkeypatch.context() as patched:
        real = os.open
        patched.setattr(os, "open", lambda path, *rest, **how: opened.append(path) or real(path, *rest, **how))
        assert await reader(folder).refusal("fs.read", path="fifo") == "fs.read: 'fifo': not a regular file"
    assert opened == [folder]


async def test_a_fifo_that_takes_a_files_place_is_not_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def swap() -> None:
        (folder / "data" / "a.md").unlink()
        os.mkfifo(folder / "data" / "a.md")

    with before_opening(monkeypatch, b"a.md", swap), trio.fail_after(10):
        told = await reader(folder).refusal("fs.read", path="data/a.md")
    assert told == "fs.read: 'data/a.md': not a regular file"
    (folder / "data" / "a.md").unlink()
    (folder / "data" / "a.md").write_text("A")
    await works(folder)


async def test_what_the_engine_may_not_read_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny() -> None:  # as the kernel does it for all but root
        raise PermissionError(errno.EACCES, "Permission denied", "/a/path/of/the/host")

    with before_opening(monkeypatch, b"a.md", deny):
        assert await reader(folder).refusal("fs.read", path="data/a.md") == "fs.read: 'data/a.md': permission denied"
    with before_opening(monkeypatch, b"data", deny):
        assert await reader(folder).refusal("fs.list", path="data") == "fs.list: 'data': permission denied"
    await works(folder)


# ---- things that move meanwhile ---------------------------------------------------------------------------------


@contextmanager
def before_opening(monkeypatch: pytest.MonkeyPatch, name: bytes, act: Callable[[], None]) -> Iterator[None]:
    """Do something at the worst moment: after everything was looked at, just before this name is opened. Once."""
    pending = [act]
    real = os.open

    def open_(path: Any, flags: int, *rest: Any, **how: Any) -> int:
        if path == name and pending:
            pending.pop()()
        return real(path, flags, *rest, **how)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", open_)
        yield
    assert not pending


async def test_a_file_replaced_by_a_link_at_the_last_moment_is_not_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swap() -> None:
        (folder / "data" / "a.md").unlink()
        (folder / "data" / "a.md").symlink_to(tmp_path / "secret")

    with before_opening(monkeypatch, b"a.md", swap):
        assert await reader(folder).refusal("fs.read", path="data/a.md") == f"fs.read: 'data/a.md': {A_LINK}"


async def test_a_folder_replaced_by_a_link_at_the_last_moment_is_not_entered(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swap() -> None:
        (folder / "data").rename(folder / "moved")
        (folder / "data").symlink_to(tmp_path / "outside")

    with before_opening(monkeypatch, b"data", swap):
        assert await reader(folder).refusal("fs.read", path="data/a.md") == f"fs.read: 'data': {A_LINK}"
    with before_opening(monkeypatch, b"moved", lambda: None):
        assert await reader(folder).value("fs.read", path="moved/a.md") == b"A"


async def test_a_folder_that_is_moved_after_it_was_entered_is_still_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swap() -> None:
        (folder / "data").rename(folder / "moved")
        (folder / "data").symlink_to(tmp_path / "outside")

    with before_opening(monkeypatch, b"a.md", swap):
        assert await reader(folder).value("fs.read", path="data/a.md") == b"A"


@contextmanager
def always_swapping(place: Path, other: Path) -> Iterator[None]:
    """Two entries change places all the time, each change atomic: a third name stands in for the exchange."""
    stop = threading.Event()
    third = place.with_name("third")

    def swap() -> None:
        while not stop.is_set():
            place.rename(third)
            other.rename(place)
            third.rename(other)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("swapped", ["data", "data/a.md"])
async def test_swapping_with_a_link_without_end_never_lets_anything_out(
    folder: Path, tmp_path: Path, swapped: str
) -> None:
    other = (folder / swapped).with_name("link")
    other.symlink_to(tmp_path / "outside" if swapped == "data" else tmp_path / "secret")
    seen = set()
    with always_swapping(folder / swapped, other):
        for _ in range(300):
            for path in ("data/a.md", "data/link", "link/a.md"):
                ok, answer = await reader(folder).answer("fs.read", path=path)
                assert not ok or answer == b"A"
                seen.add(ok)
            ok, answer = await reader(folder).answer("fs.list", path="data")
            assert not ok or {entry["name"] for entry in answer} <= {"a.md", "b.txt", "deep", "empty", "link", "third"}
    assert seen == {True, False}


# ---- sizes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "fits"), [(0, True), (999, True), (1000, True), (1001, False), (1 << 40, False)])
async def test_a_file_is_read_whole_or_not_at_all(folder: Path, size: int, fits: bool) -> None:
    with (folder / "big").open("wb") as file:
        file.truncate(size)  # sparse: nothing is on disk
    caller = reader(folder, limits={"fs_bytes": 1000})
    if fits:
        assert await caller.value("fs.read", path="big") == bytes(size)
    else:
        told = await caller.refusal("fs.read", path="big")
        assert told == f"fs.read: 'big' has {size} bytes; the limit is 1000 (fs_bytes, set by the script)"


async def test_the_error_says_whose_limit_it_is(folder: Path) -> None:
    (folder / "big").write_bytes(bytes((1 << 20) + 1))
    told = await reader(folder).refusal("fs.read", path="big")
    assert told == "fs.read: 'big' has 1048577 bytes; the limit is 1048576 (fs_bytes, set by the engine)"
    tenant = Tenant("small", ceilings={"fs_bytes": 10})
    told = await reader(folder, tenant=tenant).refusal("fs.read", path="agent.lua")
    assert told == "fs.read: 'agent.lua' has 20 bytes; the limit is 10 (fs_bytes, set by the tenant)"


async def test_a_file_that_grows_while_it_is_read_is_read_to_one_byte_beyond_the_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = []
    real = os.read

    def read(descriptor: int, size: int) -> bytes:
        with (folder / "data" / "a.md").open("ab") as file:
            file.write(bytes(700))
        got.append(real(descriptor, size))
        return got[-1]

    caller = reader(folder, limits={"fs_bytes": 1000})
    with monkeypatch.context() as patched:
        patched.setattr(os, "read", read)
        told = await caller.refusal("fs.read", path="data/a.md")
    assert told == "fs.read: 'data/a.md' has more than 1000 bytes; the limit is 1000 (fs_bytes, set by the script)"
    assert sum(map(len, got)) == 1001


async def test_a_file_that_does_not_tell_its_size_is_bounded_too(folder: Path) -> None:
    proc = Path("/proc/self")
    assert b"Name:" in await reader(proc).value("fs.read", path="status")
    caller = reader(proc, limits={"fs_bytes": 16})
    told = await caller.refusal("fs.read", path="status")
    assert told == "fs.read: 'status' has more than 16 bytes; the limit is 16 (fs_bytes, set by the script)"


async def test_a_large_file_arrives_in_order(folder: Path) -> None:
    content = b"".join(i.to_bytes(4, "big") for i in range(1 << 18))
    (folder / "big").write_bytes(content)
    assert await reader(folder).value("fs.read", path="big") == content


# ---- listing ----------------------------------------------------------------------------------------------------


async def test_a_folder_is_listed_by_name_one_level_deep(folder: Path, tmp_path: Path) -> None:
    (folder / "data" / "link").symlink_to(tmp_path / "secret")
    os.utime(folder / "data" / "a.md", (1_700_000_000, 1_700_000_000.9))
    os.utime(folder / "data" / "b.txt", (-5, -5))
    listed = await reader(folder).value("fs.list", path="data")
    assert [(entry["name"], entry["type"], entry["size"]) for entry in listed] == [
        ("a.md", "file", 1),
        ("b.txt", "file", 9),
        ("deep", "directory", 0),
        ("empty", "file", 0),
        ("link", "symlink", 0),
    ]
    assert listed[0] == {"name": "a.md", "path": "data/a.md", "type": "file", "size": 1, "modified": 1_700_000_000}
    assert listed[1]["modified"] == -5


@pytest.mark.parametrize("path", [None, "", ".", "./", b"."])
async def test_the_folder_itself_is_listed_without_a_path(folder: Path, path: object) -> None:
    arguments = {} if path is None else {"path": path}
    listed = await reader(folder).value("fs.list", **arguments)
    assert [entry["path"] for entry in listed] == ["agent.lua", "data"]


@pytest.mark.parametrize("path", ["data", "data/", "./data", "./data/.", b"data/"])
async def test_every_path_in_a_listing_can_be_read(folder: Path, path: str) -> None:
    caller = reader(folder)
    listed = await caller.value("fs.list", path=path)
    assert [entry["path"] for entry in listed] == ["data/a.md", "data/b.txt", "data/deep", "data/empty"]
    contents = [await caller.value("fs.read", path=entry["path"]) for entry in listed if entry["type"] == "file"]
    assert contents == [b"A", b"\x00\xff\xfe bytes", b""]


@pytest.mark.parametrize("path", ["..", "/", "//", "data//", "data/..", "none", "data/a.md", "data\\"])
async def test_what_cannot_be_listed_is_refused(folder: Path, path: str) -> None:
    assert (await reader(folder).refusal("fs.list", path=path)).startswith("fs.list: ")
    await works(folder)


async def test_entries_are_sorted_by_the_bytes_of_their_names(folder: Path) -> None:
    names = [b"Z", b"a", b"a.b", b"a0", "é".encode(), b"\xff"]
    (folder / "many").mkdir()
    for name in reversed(names):
        (folder / "many" / os.fsdecode(name)).touch()
    listed = await reader(folder).value("fs.list", path="many")
    assert [entry["name"] for entry in listed] == ["Z", "a", "a.b", "a0", "é", b"\xff"]


async def test_a_folder_with_too_many_entries_is_refused_whatever_the_glob(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_ENTRIES == 10_000
    monkeypatch.setattr(fs, "MAX_ENTRIES", 4)
    assert len(await reader(folder).value("fs.list", path="data")) == 4
    (folder / "data" / "one more").touch()
    for glob in (None, "a.md"):
        told = await reader(folder).refusal("fs.list", path="data", glob=glob)
        assert told == "fs.list: 'data' has more than 4 entries, too many to list"


async def test_an_entry_that_is_removed_meanwhile_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.scandir

    @contextmanager
    def scandir(descriptor: int) -> Iterator[Iterator[os.DirEntry[str]]]:
        with real(descriptor) as listing:
            entries = list(listing)
            (folder / "data" / "empty").unlink()
            yield iter(entries)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", scandir)
        listed = await reader(folder).value("fs.list", path="data")
    assert [entry["name"] for entry in listed] == ["a.md", "b.txt", "deep"]


NAMES = ["a.md", "b.txt", "c.MD", ".hidden.md", "a", "ab", "b", "[x]", "{x}", "a,b", "é.md", "new\nline.md"]
GLOBS = {
    "*": NAMES,
    "*.md": ["a.md", ".hidden.md", "é.md", "new\nline.md"],
    "**/*.md": ["a.md", ".hidden.md", "é.md", "new\nline.md"],
    "?": ["a", "b"],
    "?.md": ["a.md", "é.md"],
    "[ab]": ["a", "b"],
    "[!a]": ["b"],
    "[^a]": ["b"],
    "[a-b]*": ["a.md", "b.txt", "a", "ab", "b", "a,b"],
    "*.{md,txt}": ["a.md", "b.txt", ".hidden.md", "é.md", "new\nline.md"],
    "{a,b}{,b}": ["a", "ab", "b"],
    "{a{,b},c*}": ["a", "ab", "c.MD"],
    "a,b": ["a,b"],
    "a{,[,]b}": ["a", "a,b"],
    "[[]x]": ["[x]"],
    "[[]x[]]": ["[x]"],
    "[{]x[}]": ["{x}"],
    "": [],
    "none": [],
    "A.MD": [],
}


async def test_a_glob_picks_names(folder: Path) -> None:
    (folder / "names").mkdir()
    for name in NAMES:
        (folder / "names" / name).touch()
    for glob, names in GLOBS.items():
        listed = await reader(folder).value("fs.list", path="names", glob=glob)
        assert [entry["name"] for entry in listed] == sorted(names, key=str.encode), glob


REFUSED_GLOBS = {
    "data/*.md": "'data/*.md' holds '/'; it is matched against names, one level at a time",
    "../*": "'../*' holds '/'; it is matched against names, one level at a time",
    "\\*": r"'\\*' holds a backslash or a zero byte; a literal '*' is '[*]'",
    "a\0": r"'a\x00' holds a backslash or a zero byte; a literal '*' is '[*]'",
    "*.{md,txt": "'*.{md,txt' has a '{' without its counterpart; a literal one is '[{]'",
    "*.md}": "'*.md}' has a '}' without its counterpart; a literal one is '[}]'",
    "[a": "'[a' has a '[' without its counterpart; a literal one is '[[]'",
    "a[]": "'a[]' has a '[' without its counterpart; a literal one is '[[]'",
    "[!]": "'[!]' has a '[' without its counterpart; a literal one is '[[]'",
    "*" * 256: "is 256 characters long; the limit is 255",
    "{a,b}" * 5: f"'{'{a,b}' * 5}' stands for more than 16 patterns",
    "{" * 200: f"'{'{' * 200}' has a '{{' without its counterpart",
}


async def test_a_glob_that_means_nothing_is_refused(folder: Path) -> None:
    for glob, why in REFUSED_GLOBS.items():
        told = await reader(folder).refusal("fs.list", glob=glob)
        assert told.startswith(f"fs.list: glob: {why}"), glob
    assert (await reader(folder).refusal("fs.list", glob=5)).startswith("fs.list: glob: expected string or nil")
    await works(folder)


@given(st.one_of(st.text(max_size=60), st.text(st.sampled_from("{},[]!^*?a/\\"), max_size=40)))
def test_whatever_the_glob_it_stands_for_a_bounded_number_of_patterns(glob: str) -> None:
    try:
        patterns = parse_glob(glob)
    except ValueError:
        return
    assert 1 <= len(patterns) <= MAX_GLOB_ALTERNATIVES
    assert sum(map(len, patterns)) <= MAX_GLOB_ALTERNATIVES * len(glob)


async def test_a_glob_that_would_back_track_without_end_is_matched(folder: Path) -> None:
    (folder / ("a" * 255)).touch()
    with trio.fail_after(20):
        assert await reader(folder).value("fs.list", glob="*a" * 120 + "b") == []
        assert len(await reader(folder).value("fs.list", glob="*a" * 120)) == 1


# ---- threads and descriptors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["open", "read", "stat", "scandir"])
async def test_a_fault_of_the_host_is_logged_for_the_operator_and_hidden_from_clients(
    folder: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    def fail(*arguments: Any, **how: Any) -> None:
        raise OSError(errno.EIO, "Input/output error", "/a/path/of/the/host")

    call, path = ("fs.list", "data") if function == "scandir" else ("fs.read", "data/a.md")
    with monkeypatch.context() as patched, capture_logs() as logged:
        patched.setattr(os, function, fail)
        told = await reader(folder).refusal(call, path=path)
    assert told == f"{call}: internal error of the engine; see its log"
    assert [entry["call"] for entry in logged] == [call]
    await works(folder)


async def test_a_disk_that_fails_below_the_folder_is_the_hosts_fault_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error", "/a/path/of/the/host")

    for name in (b"data", b"a.md"):
        with before_opening(monkeypatch, name, fail), capture_logs() as logged:
            told = await reader(folder).refusal("fs.read", path="data/a.md")
        assert told == "fs.read: internal error of the engine; see its log"
        assert len(logged) == 1
    await works(folder)


async def test_no_descriptor_is_left_open_whatever_happens(folder: Path, tmp_path: Path) -> None:
    (folder / "link").symlink_to(tmp_path / "outside")
    os.mkfifo(folder / "fifo")
    caller = reader(folder, limits={"fs_bytes": 10})
    before = len(os.listdir("/proc/self/fd"))
    for path in ("data/a.md", "agent.lua", "data", "none", "none/x", "link", "link/a.md", "fifo", "data/deep/c.md"):
        await caller.answer("fs.read", path=path)
        await caller.answer("fs.list", path=path)
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_filesystem_that_hangs_holds_up_its_tenant_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release, real = threading.Event(), os.read
    hanging = threading.Semaphore(0)
    acquire = partial(hanging.acquire, timeout=20)

    def read(descriptor: int, size: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("a.md"):
            hanging.release()
            release.wait()
        return real(descriptor, size)

    functions = fs.functions()
    slow = Caller.of(functions, Authority(folder=str(folder)), tenant=Tenant("slow"))
    other = Caller.of(functions, Authority(folder=str(folder)), tenant=Tenant("other"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "read", read)
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(fs.AT_ONCE):
                    nursery.start_soon(lambda: slow.answer("fs.read", path="data/a.md"))
                for _ in range(fs.AT_ONCE):
                    assert await trio.to_thread.run_sync(acquire)
                nursery.cancel_scope.cancel()  # the runs meet their deadline; the threads hang on
            with trio.move_on_after(0.05) as scope:
                await slow.answer("fs.read", path="data/b.txt")
            assert scope.cancelled_caught
            with trio.fail_after(10):
                assert await other.value("fs.read", path="data/deep/c.md") == b"C"
        finally:
            release.set()
        with trio.fail_after(10):
            assert await slow.value("fs.read", path="data/a.md") == b"A"


# ---- from a script ----------------------------------------------------------------------------------------------


async def test_a_script_reads_and_lists_its_folder(folder: Path, tmp_path: Path) -> None:
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "big").write_bytes(bytes(2 << 20))
    script = """
        local read, why = {}, {}
        for _, entry in ipairs(fs.list('data')) do
            if entry.type == 'file' then read[entry.name] = #fs.read(entry.path) end
        end
        for _, path in ipairs({'../secret', 'link', 'big', '/etc/passwd'}) do
            local ok, message = pcall(function() return fs.read(path) .. '' end)
            why[#why + 1] = not ok and message
        end
        return {
            read = read, why = why, globbed = #fs.list('data', '*.md'), all = #fs.list('.'), also = #fs.list(),
            bytes = fs.read('data/b.txt') == '\\0\\xff\\xfe bytes', modified = math.type(fs.list('data')[1].modified),
        }
    """
    async with open_engine(small_config(), fs.functions()) as engine:
        result = await run(engine, script, grants=fs.GRANTS, authority=Authority(folder=str(folder)))
        assert result.outcome is Outcome.OK, result.failure
        why = result.value.pop("why")
        assert result.value == {
            "read": {"a.md": 1, "b.txt": 9, "empty": 0},
            "globbed": 1,
            "all": 4,
            "also": 4,
            "bytes": True,
            "modified": "integer",
        }
        for told, reason in zip(why, ("holds '..'", "a symbolic link", "fs_bytes", "is absolute"), strict=True):
            assert told.startswith("t.lua:7: fs.read: ")
            assert reason in told

        refused = await run(engine, "return fs.read('agent.lua')", grants=frozenset())
        assert refused.outcome is Outcome.SCRIPT_ERROR
        assert (await run(engine, "return 1")).value == 1


# ---- the engine's own files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["engine.toml", "another name.txt"])
async def test_a_file_of_the_engines_own_is_refused_under_whatever_name(folder: Path, name: str) -> None:
    (folder / "engine.toml").write_bytes(OUTSIDE)
    if name != "engine.toml":
        os.link(folder / "engine.toml", folder / name)
    private = (folder / "engine.toml", folder / "a store that is not there")
    caller = Caller.of(fs.functions(private), Authority(folder=str(folder)))
    ok, said = await caller.answer("fs.read", path=name)
    assert not ok
    assert "a file of the engine's own" in said
    assert await caller.value("fs.read", path="data/a.md") == b"A"


async def test_what_replaces_a_private_file_is_private_too(folder: Path) -> None:
    """Configurations are edited, and stores made anew: it is the path that the operator named, as it is now."""
    private = folder / "engine.toml"
    private.write_text("old")
    caller = Caller.of(fs.functions((private,)), Authority(folder=str(folder)))
    (folder / "new").write_bytes(OUTSIDE)
    os.replace(folder / "new", private)
    ok, _ = await caller.answer("fs.read", path="engine.toml")
    assert not ok


async def test_asking_for_a_database_of_the_engines_own_leaves_its_locks(folder: Path) -> None:
    # Closing any descriptor of a file ends all record locks that the process has on it (fcntl(2)): SQLite's, too.
    names = ("store.sqlite", "store.sqlite-wal", "store.sqlite-shm")
    private = tuple(folder / name for name in names)
    caller = Caller.of(fs.functions(private), Authority(folder=str(folder)))

    def locks() -> set[str]:
        inodes = {f":{path.stat().st_ino} " for path in private}
        held = Path("/proc/locks").read_text().splitlines()
        return {
            line.partition(": ")[2] for line in held if f" {os.getpid()} " in line and any(i in line for i in inodes)
        }

    database = apsw.Connection(str(private[0]))
    try:
        database.execute(
            "PRAGMA journal_mode = wal; CREATE TABLE t(a); BEGIN IMMEDIATE; INSERT INTO t VALUES (1)"
        ).fetchall()
        before = locks()
        assert before
        for name in names:
            ok, said = await caller.answer("fs.read", path=name)
            assert not ok
            assert "a file of the engine's own" in said
        assert locks() == before
        database.execute("COMMIT")
    finally:
        database.close()

"""`read_file` and `read_directory` of a document: real files and folders, and what is refused."""

import os
from pathlib import Path

import pytest
import trio

from agents.agent import Call
from agents.chatmd.program import Declared
from agents.toolbox import Offered
from agents.toolbox.files import LISTED, READ_BYTES, FileBounds, file_tools
from engine.errors import Code, Problem
from engine.tenant import DEFAULT_TENANT

CALL = Call(DEFAULT_TENANT)
READ, LIST = Declared("file", "get_contents", ""), Declared("file", "read_dir", "")


def tool(folder: Path, declared: Declared = READ, fs_bytes: int = 1_000_000) -> Offered:
    (found,) = file_tools(declared, FileBounds(fs_bytes, str(folder), private=(folder / "private.db",)))
    return found


async def refused(offered: Offered, **arguments: object) -> tuple[Code, str]:
    with pytest.raises(Problem) as caught:
        await offered.call(arguments, CALL)
    return caught.value.code, caught.value.message


async def test_a_file_is_read_as_text_under_the_name_that_the_model_knows(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a.md").write_text("héllo\n")
    read = tool(tmp_path)
    assert (read.name, read.read_only, read.destructive) == ("read_file", True, False)
    assert read.parameters["required"] == ["file"]
    assert await read.call({"file": "sub/a.md"}, CALL) == "héllo\n"
    assert await read.call({"path": "./sub/a.md"}, CALL) == "héllo\n"
    (tmp_path / "empty").touch()
    assert await read.call({"file": "empty"}, CALL) == ""


async def test_a_long_file_is_read_in_pieces_that_end_with_a_line(tmp_path: Path) -> None:
    line = "ü" * 99 + "\n"
    whole = line * (3 * READ_BYTES // len(line.encode()))
    (tmp_path / "long.txt").write_text(whole)
    read, found, offset = tool(tmp_path), "", 0
    for _ in range(4):
        text = await read.call({"file": "long.txt", "offset": offset}, CALL)
        piece, note, after = text.partition("\n\n[")
        assert len(piece.encode()) <= READ_BYTES
        found += piece + ("\n" if note and not piece.endswith("\n") else "")
        if not note:
            break
        offset = int(after.removesuffix("]").rpartition(" ")[2])
    assert found == whole


async def test_a_piece_of_a_long_line_and_an_offset_inside_of_a_character_give_whole_characters(
    tmp_path: Path,
) -> None:
    (tmp_path / "line").write_text("€" * READ_BYTES)
    read = tool(tmp_path)
    text = await read.call({"file": "line", "offset": 1}, CALL)
    assert set(text.partition("\n\n[")[0]) == {"€"}
    code, said = await refused(read, file="line", offset=3 * READ_BYTES + 1)
    assert (code, said) == (Code.BAD_REQUEST, f"offset: 'line' has only {3 * READ_BYTES:,} bytes")


async def test_other_documents_of_the_folder_and_their_keys_are_neither_read_nor_listed(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in (
        "mine.chatmd",
        "mine.toml",
        "part.chatmd",
        "theirs.chatmd",
        "theirs.toml",
        "plain.toml",
        "a.md",
        "upper.CHATMD",
        "upper.toml",
    ):
        (tmp_path / name).write_text(name)
    (tmp_path / "sub/theirs.chatmd").write_text("hidden")
    (tmp_path / "link.chatmd").symlink_to(tmp_path / "a.md")
    own = frozenset({tmp_path / "mine.chatmd", tmp_path / "part.chatmd"})
    bounds = FileBounds(1_000, str(tmp_path), own=own)
    (read,), (listed,) = file_tools(READ, bounds), file_tools(LIST, bounds)
    for name in ("mine.chatmd", "mine.toml", "part.chatmd", "plain.toml", "a.md"):
        assert await read.call({"file": name}, CALL) == name
    for name in ("theirs.chatmd", "theirs.toml", "./theirs.chatmd", "sub/theirs.chatmd", "gone.chatmd", "upper.toml"):
        code, said = await refused(read, file=name)
        assert (code, said) == (Code.BAD_REQUEST, f"'{name}' belongs to another document, which is not read")
    names = [line.split("  ")[0] for line in (await listed.call({}, CALL)).splitlines()]
    assert names == ["a.md", "mine.chatmd", "mine.toml", "part.chatmd", "plain.toml", "sub/"]
    assert await listed.call({"path": "sub"}, CALL) == "[no files]"
    assert await tool(tmp_path).call({"file": "theirs.chatmd"}, CALL) == "theirs.chatmd"  # of a folder of its own


async def test_what_is_no_readable_file_is_refused_without_a_path_of_the_host(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("hidden")
    (folder / "sub").mkdir()
    (folder / "out").symlink_to(tmp_path / "secret.txt")
    (folder / "folder-out").symlink_to(tmp_path)
    (folder / "latin").write_bytes(b"\xff")
    (folder / "large").write_bytes(b"x" * 101)
    (folder / "private.db").write_text("of the engine")
    os.mkfifo(folder / "fifo")
    read = tool(folder, fs_bytes=100)
    cases = {
        "none.txt": (Code.NOT_FOUND, "'none.txt': no such file or directory"),
        "../secret.txt": (Code.BAD_REQUEST, "'../secret.txt' holds '..'; paths stay below the folder"),
        "sub/../../secret.txt": (Code.BAD_REQUEST, "holds '..'"),
        str(tmp_path / "secret.txt"): (Code.BAD_REQUEST, "is absolute; paths are relative to the folder"),
        "out": (Code.BAD_REQUEST, "'out': a symbolic link, and links are not followed"),
        "folder-out/secret.txt": (Code.BAD_REQUEST, "'folder-out': a symbolic link, and links are not followed"),
        "fifo": (Code.BAD_REQUEST, "'fifo' is not a regular file"),
        "sub": (Code.BAD_REQUEST, "'sub' is not a regular file"),
        ".": (Code.BAD_REQUEST, "'.' is a folder; read_directory lists it"),
        "": (Code.BAD_REQUEST, "'' is a folder; read_directory lists it"),
        "latin": (Code.BAD_REQUEST, "'latin' is not a text: it is not UTF-8"),
        "large": (Code.TOO_LARGE, "'large' has 101 bytes; the limit is 100 (fs_bytes)"),
        "private.db": (Code.BAD_REQUEST, "'private.db' may not be read"),
        "a\0b": (Code.BAD_REQUEST, "holds a zero byte"),
        "a\udc80": (Code.BAD_REQUEST, "half of a surrogate pair is not text"),
        "x" * 2000: (Code.BAD_REQUEST, "is 2000 bytes long; the limit is 1024"),
    }
    for path, (code, said) in cases.items():
        found = await refused(read, file=path)
        assert found[0] == code, path
        assert said in found[1]
        if not path.startswith("/"):
            assert str(tmp_path) not in found[1]
    (folder / "good").write_text("good")
    assert await read.call({"file": "good"}, CALL) == "good"


async def test_arguments_that_do_not_fit_are_named(tmp_path: Path) -> None:
    read, listed = tool(tmp_path), tool(tmp_path, LIST)
    assert await refused(read) == (Code.BAD_REQUEST, "file: expected the path of a file, a text")
    assert await refused(read, file=5) == (Code.BAD_REQUEST, "file: expected the path of a file, a text")
    assert (await refused(read, file="a", offset=-1))[1] == "offset: expected a whole number, at least 0"
    assert (await refused(read, file="a", offset=True))[1] == "offset: expected a whole number, at least 0"
    assert (await refused(read, file="a", line=3))[1] == "unknown argument 'line'; there are file, path, offset"
    assert (await refused(listed, path=None))[1] == "path: expected the path of a folder, a text"


async def test_a_folder_is_listed_with_what_each_entry_is(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.md").write_text("four")
    (tmp_path / "two\nlines").touch()
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "queue")
    (tmp_path / os.fsdecode(b"\xff")).touch()
    listed = tool(tmp_path, LIST)
    assert listed.name == "read_directory"
    assert (await listed.call({}, CALL)).splitlines() == [
        "a.md  4 bytes",
        "link  (a symbolic link, which is not followed)",
        "queue  (not a regular file)",
        "sub/",
        "two\\nlines  0 bytes",
        "\\xff  0 bytes",
    ]
    assert await listed.call({"path": "sub/"}, CALL) == "[no files]"
    assert (await refused(listed, path="none"))[0] is Code.NOT_FOUND
    assert await refused(listed, path="a.md") == (Code.NOT_FOUND, "'a.md': not a directory")
    assert (await refused(listed, path="link"))[0] is Code.BAD_REQUEST


async def test_a_folder_of_many_entries_is_cut(tmp_path: Path) -> None:
    for number in range(LISTED + 7):
        (tmp_path / f"{number:05}").touch()
    lines = (await tool(tmp_path, LIST).call({}, CALL)).splitlines()
    assert (len(lines), lines[-1]) == (LISTED + 1, "[7 more]")


async def test_of_several_folders_the_model_says_which(tmp_path: Path) -> None:
    for name in ("docs", "code"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text(name)
    roots = (("docs", str(tmp_path / "docs"), "What users read"), ("code", str(tmp_path / "code"), ""))
    read = tool(tmp_path, Declared("file", "read_file", "Reads", roots=roots))
    assert read.description == "Reads\nFolders:\n- docs: What users read"
    assert read.parameters["properties"]["root"]["enum"] == ["docs", "code"]
    assert read.parameters["required"] == ["file", "root"]
    assert await read.call({"file": "a", "root": "code"}, CALL) == "code"
    assert await refused(read, file="a") == (Code.BAD_REQUEST, "root: expected one of docs, code")
    assert await refused(read, file="docs/a", root="elsewhere") == (
        Code.BAD_REQUEST,
        "root: expected one of docs, code",
    )
    (only,) = file_tools(Declared("file", "read_file", "Reads", roots=roots[:1]), FileBounds(100))
    assert "root" not in only.parameters["properties"]
    assert await only.call({"file": "a"}, CALL) == "docs"


async def test_a_folder_that_is_gone_and_one_of_the_host_that_fails_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = tool(tmp_path / "gone")
    assert await refused(read, file="a") == (
        Code.BAD_REQUEST, "the folder cannot be opened (no such file or directory)",
    )  # fmt: skip
    (tmp_path / "a").write_text("x")
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        found = await refused(tool(tmp_path), file="a")
    assert found == (Code.UNAVAILABLE, "'a' cannot be read now")
    assert await tool(tmp_path).call({"file": "a"}, CALL) == "x"


async def test_calls_of_one_tenant_read_side_by_side(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).write_text(str(number))
    read, found = tool(tmp_path), []

    async def one(number: int) -> None:
        found.append(await read.call({"file": str(number)}, CALL))

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(one, number)
    assert sorted(found, key=int) == [str(number) for number in range(20)]

"""`require` of configured and of published scripts: what it finds, what it refuses, what a change of a file does."""

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import trio
from agents_support import CALL, Project, agent, problem
from pages import quoted, section
from publish_support import PUBLISHER, package, tool
from test_reload import watching, write

from agents.code.files import read_script
from agents.service import Service
from control.versions.records import head_of
from engine.errors import Code, Problem
from engine.tenant import DEFAULT_TENANT

Open = Callable[..., AbstractAsyncContextManager[Service]]
PAGE = "docs/scripting/require.md"

SHARED = "return { says = function(what) return 'shared ' .. what end }"
USES = "local shared = require('./lib/shared')\n" + agent("return { system = shared.says('one') }")


def lay_out(folder: Path, **files: str | bytes) -> None:
    """Files by their names without `.lua`; `__` stands for a folder."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.lua"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


async def said(service: Service, name: str = "a") -> str:
    return (await service.resolve(name, {}, CALL)).prompt.system


# ---- configured -----------------------------------------------------------------------------------------------------


async def test_a_configured_script_requires_files_of_its_own_folder(project: Project, opened: Open) -> None:
    lay_out(project.folder, lib__shared=SHARED)
    project.configure(project.script("a", USES))
    async with opened() as service:
        assert service.failures == ()
        assert [await said(service) for _ in range(3)] == ["shared one"] * 3  # sent, then cached, then as bytecode


async def test_two_scripts_with_one_text_and_other_files_are_two_scripts(project: Project, opened: Open) -> None:
    for folder in ("one", "two"):
        lay_out(project.folder / folder, a=agent("return { system = require('./b') }"), b=f"return '{folder}'")
    entries = (f'[agents.script.{name}]\npath = "{name}/a.lua"\n' for name in ("one", "two"))
    project.configure("".join(entries))
    async with opened() as service:
        assert [await said(service, name) for name in ("one", "two", "one", "two")] == ["one", "two"] * 2


async def test_an_error_in_a_file_has_its_own_name_and_line_and_no_path_of_the_host(
    project: Project, opened: Open
) -> None:
    lay_out(project.folder, lib__broken="local t = {}\nfunction t.f() error('no luck') end\nreturn t")
    project.configure(project.script("a", agent("require('./lib/broken').f()")))
    async with opened() as service:
        with pytest.raises(Problem) as failed:
            await said(service)
    assert "lib/broken.lua:2: no luck" in failed.value.message
    assert "lib/broken.lua:2: in " in (failed.value.traceback or "")
    assert str(project.folder) not in f"{failed.value.message} {failed.value.traceback}"


async def test_a_file_that_is_no_lua_says_so_when_the_script_is_loaded_or_runs(project: Project, opened: Open) -> None:
    lay_out(project.folder, x="return return")
    top = project.script("top", "local x = require('./x')\n" + agent())
    project.configure(top + project.script("late", agent("require('./x') return {system = ''}")))
    async with opened() as service:
        ((name, message),) = [(failure.name, failure.message) for failure in service.failures]
        assert (name, message) == ("top", "x.lua:1: unexpected symbol near 'return'")
        async with problem(Code.AGENT_ERROR, "x.lua:1: unexpected symbol near 'return'"):
            await said(service, "late")


ROWS = [(quoted(row[0])[0], quoted(row[1])[0]) for row in section(PAGE, "When a script is loaded").rows()]


@pytest.mark.parametrize(("call", "message"), ROWS, ids=[call for call, _ in ROWS])
async def test_what_cannot_be_required_keeps_the_script_from_loading_and_says_what_the_page_says(
    project: Project, opened: Open, call: str, message: str
) -> None:
    lay_out(
        project.folder,
        one="return require('./two')",
        two="return require('./one')",
        bytecode=b"\x1bLuaT",
        other="return 1",
    )
    (project.folder / "link.lua").symlink_to("other.lua")
    project.configure(project.script("script", f"return {call.replace(chr(96), '')}"))
    async with opened() as service:
        (failure,) = service.failures
        assert failure.message == message
        assert failure.line == (1 if message.startswith("script.lua:1:") else None)
        async with problem(Code.NOT_FOUND, "failed to load"):
            await said(service, "script")


async def test_a_linked_folder_a_fifo_and_a_directory_are_no_files_of_a_package(
    project: Project, opened: Open, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    lay_out(outside, x="return 'secret'")
    (project.folder / "lib").symlink_to(outside)
    os.mkfifo(project.folder / "fifo.lua")
    (project.folder / "folder.lua").mkdir()
    calls = {"of_link": "./lib/x", "of_fifo": "./fifo", "of_folder": "./folder"}
    project.configure("".join(project.script(name, f"return require('{file}')") for name, file in calls.items()))
    with trio.fail_after(20):
        async with opened() as service:
            messages = {failure.name: failure.message.partition("): ")[2] for failure in service.failures}
    assert messages == {
        "of_link": "'lib': a symbolic link, and links are not followed",
        "of_fifo": "'fifo.lua': not a regular file",
        "of_folder": "'folder.lua': a directory, which fs.list lists",
    }


async def test_source_bytes_bounds_a_script_with_all_that_it_requires(project: Project, opened: Open) -> None:
    lay_out(project.folder, big="-" * 2 + "x" * 1000)
    source = "require('./big')\n" + agent()
    text = project.script("a", source, f"limits = {{ source_bytes = {len(source) + 1001} }}")
    text += project.script("b", source, f"limits = {{ source_bytes = {len(source) + 1002} }}")
    project.configure(text)
    async with opened() as service:
        (failure,) = service.failures
        assert failure.name == "a"
        assert f"'big.lua' has 1002 bytes; the limit is 1001 (limits.source_bytes, {len(source) + 1001} in all)" in (
            failure.message
        )


def test_the_files_of_a_script_are_those_beside_its_path_also_through_a_link(tmp_path: Path) -> None:
    lay_out(tmp_path / "real", a="return require('./b')", b="return 'real'")
    lay_out(tmp_path / "linked", b="return 'linked'")
    (tmp_path / "linked/a.lua").symlink_to(tmp_path / "real/a.lua")
    script = read_script(tmp_path / "linked/a.lua", 1 << 20).script
    assert script is not None
    assert script.modules == (("b.lua", b"return 'linked'"),)  # as fs.read has it


def test_the_digest_covers_the_names_and_texts_of_all_files(tmp_path: Path) -> None:
    def digest(**files: str) -> str:
        lay_out(tmp_path, a="local n = require('./b') or require('./c')", **files)
        script = read_script(tmp_path / "a.lua", 1 << 20).script
        assert script is not None
        return script.digest

    found = [digest(b="1", c="2"), digest(b="2", c="1"), digest(b="12", c=""), digest(b="1", c="2")]
    assert len(set(found)) == 3
    assert found[0] == found[3]


# ---- changes --------------------------------------------------------------------------------------------------------


async def test_a_change_of_a_required_file_is_taken_up(project: Project) -> None:
    lay_out(project.folder, lib__shared=SHARED)
    project.configure(project.script("a", USES))
    async with watching(project) as watched:
        assert await watched.answer() == "shared one"
        write(project.folder / "lib/shared.lua", SHARED.replace("shared", "changed"))
        await watched.until("changed one")


async def test_a_file_that_was_missing_is_taken_up_and_one_that_breaks_keeps_the_last_version(project: Project) -> None:
    project.configure(project.script("a", USES))
    async with watching(project) as watched:
        (failure,) = watched.service.failures
        assert "'lib': no such file or directory" in failure.message
        lay_out(project.folder, lib__shared=SHARED)
        await watched.failing(0)
        assert await watched.answer() == "shared one"
        write(project.folder / "lib/shared.lua", "return require('./nowhere')")
        await watched.failing(1)
        (failure,) = watched.service.failures
        assert (failure.kept, failure.message.startswith("lib/shared.lua:1: ")) == (True, True)
        assert await watched.answer() == "shared one"
        write(project.folder / "lib/shared.lua", SHARED.replace("shared", "mended"))
        await watched.until("mended one")


async def test_a_file_that_is_no_longer_required_is_no_longer_watched(project: Project) -> None:
    lay_out(project.folder, lib__shared=SHARED)
    project.configure(project.script("a", USES))
    async with watching(project) as watched:
        assert [path.name for path in watched.service.required] == ["shared.lua"]
        write(project.folder / "a.lua", agent("return { system = 'alone' }"))
        await watched.until("alone")
        assert watched.service.required == ()


# ---- published ------------------------------------------------------------------------------------------------------

FILES = {
    "main.lua": "local shared = require('./lib/shared')\n"
    + agent("return { system = shared.says(fs.read('data.md')) }"),
    "lib/shared.lua": SHARED,
    "data.md": "data",
}


async def publish(service: Service, body: dict[str, Any], name: str = "a") -> Any:
    return await service.publishing.publish(DEFAULT_TENANT, PUBLISHER, "agent", name, body)


async def test_a_published_script_requires_files_of_its_package_before_and_after_a_restart(
    project: Project, opened: Open
) -> None:
    project.configure()
    for _ in range(2):
        async with opened() as service:
            await publish(service, package(files=FILES))
            async with service.published(DEFAULT_TENANT):
                assert [await said(service) for _ in range(2)] == ["shared data"] * 2


async def test_a_script_in_a_folder_of_its_package_requires_files_by_names_from_the_top(
    project: Project, opened: Open
) -> None:
    project.configure()
    files = {
        "src/main.lua": agent("return { system = require('./src/b') .. require('./c') }"),
        "src/b.lua": "return 'b'",
    }
    async with opened() as service:
        await publish(service, package(main="src/main.lua", files={**files, "c.lua": "return 'c'"}))
        async with service.published(DEFAULT_TENANT):
            assert await said(service) == "bc"


async def test_what_is_kept_to_call_a_version_is_the_script_with_what_it_requires(
    project: Project, opened: Open
) -> None:
    project.configure()
    async with opened() as service:
        await publish(service, package(files={**FILES, "other.lua": "require('./nowhere')", "large.md": "x" * 100_000}))
        rows = await service.control._database.read(lambda db: list(db.execute("SELECT head FROM heads")))
        ((head,),) = rows
        assert b"shared" in head
        assert b"nowhere" not in head
        assert len(head) < 10_000
        assert head_of(head) is None


@pytest.mark.parametrize(
    ("files", "said_of_it"),
    [
        ({"main.lua": "\nrequire('./x')"}, 'main.lua:2: require("./x"): the package has no file x.lua'),
        ({"main.lua": "require '../x'"}, 'main.lua:1: require("../x"): leaves the package'),
        ({"main.lua": "require './a'", "a.lua": "require './main'"}, "a cycle: main.lua -> a.lua -> main.lua"),
        ({"main.lua": "require './a'", "a.lua": "\x1bLuaT"}, "only source is accepted"),
        ({"main.lua": "require './a'", "a.lua": "return return"}, "a.lua:1: unexpected symbol near 'return'"),
        ({"main.lua": "require './a'", "a.lua": "--" + "x" * (4 << 20)}, "larger than 4194304 bytes"),
    ],
)
async def test_an_upload_whose_files_cannot_be_required_is_refused(
    project: Project, opened: Open, files: dict[str, str], said_of_it: str
) -> None:
    project.configure()
    async with opened() as service, problem(Code.BAD_REQUEST, "the script does not load: ", said_of_it):
        await publish(service, package(files=files))


async def test_source_bytes_bounds_an_upload_with_what_it_requires(project: Project, opened: Open) -> None:
    project.configure()
    files = {"main.lua": "require './a'\n" + agent(), "a.lua": "--" + "x" * (1 << 20)}
    said_of_it = "main.lua with what it requires is larger than 1048576 bytes"
    async with opened() as service, problem(Code.TOO_LARGE, said_of_it):
        await publish(service, package(files=files))


async def test_a_tool_is_published_with_its_files_too(project: Project, opened: Open) -> None:
    project.configure()
    source = "local sum = require('./sum')\ntool = {} function tool.execute() return sum(1, 2) end"
    body = tool(files={"tool.lua": source, "sum.lua": "return function(a, b) return a + b end"})
    async with opened() as service:
        await service.publishing.publish(DEFAULT_TENANT, PUBLISHER, "tool", "t", body)
        async with service.published(DEFAULT_TENANT):
            assert (await service.call_tool("t", {}, CALL)).value == 3


def test_a_version_from_before_scripts_could_require_files_is_called_as_it_was() -> None:
    from agents.publishing.manifest import parse_package, restored

    made = parse_package("agent", "a", package(files={"main.lua": agent("return require('./x')"), "x.lua": "return 1"}))
    kept = made._content({"main.lua": made.files["main.lua"]})
    assert restored("a", "1", made.digest, kept, partial=True).modules == ()

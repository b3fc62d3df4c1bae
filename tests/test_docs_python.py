"""What docs/python.md says holds: its examples run, and its tables name what the code reads and offers."""

import inspect
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
import warm_start
from pages import ROOT, blocks, first_quoted, quoted, section

import engine
from agents.agent import AgentPrompt, Call
from agents.code import python
from agents.code.authoring import Context, Log
from agents.service import open_service
from agents.shapes.shape import AgentDeclaration, ToolAnnotations, ToolDeclaration
from cli.commands.sync import fill_if_empty
from engine.config import PYTHON_LIMITS, load_config
from engine.errors import Code, Problem
from engine.tenant import DEFAULT_TENANT

PAGE = "docs/python.md"
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")


def texts(info: str) -> list[str]:
    return [block.text for block in blocks(PAGE) if block.info == info]


@pytest.fixture
def imports() -> Iterator[None]:
    """Modules that a test's configuration names are gone after the test, and so is their folder."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in {"database_expert", "weekends"} - modules:
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("imports")
async def test_the_agent_and_the_tool_of_the_page_work_under_the_entries_that_stand_below_them(tmp_path: Path) -> None:
    (agent,), (tool,) = texts("python agent"), texts("python tool")
    (tmp_path / "database_expert.py").write_text(agent)
    (tmp_path / "weekends.py").write_text(tool)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/orders.md").write_text("# Orders\n\nThe schema of orders.\n")
    entries = [text for text in texts("toml") if "[agents.python." in text or "[tools.python." in text]
    assert len(entries) == 2
    own = '[connectors.filesystem.docs]\nroot = "docs"\n[sandbox]\nworkers = 1\nreserve = 0\n'
    (tmp_path / "engine.toml").write_text(own + "".join(entries))
    loaded = load_config(tmp_path / "engine.toml", environ={}, cwd=tmp_path)
    await fill_if_empty(loaded)
    async with open_service(loaded) as service:
        assert service.failures == ()
        assert service.warnings == ()
        resolved = await service.resolve("db-expert", {"database": "orders"}, Call(DEFAULT_TENANT))
        assert "- Orders (score: " in resolved.prompt.system
        assert service.list_agents(DEFAULT_TENANT)[0].description == (
            "Answers questions about database design and queries."
        )
        called = await service.call_tool("weekends", {"start": "2026-01-31"}, Call(DEFAULT_TENANT))
        assert called.value == {"count": 4}
        for wrong in ({"start": "2026-01-31", "days": 0}, {"start": "soon"}, {}):
            with pytest.raises(Problem) as raised:
                await service.call_tool("weekends", wrong, Call(DEFAULT_TENANT))
            assert raised.value.code is Code.BAD_REQUEST


def run(program: str, folder: Path) -> "Popen[str]":
    (folder / "program.py").write_text(program)
    (folder / "engine.toml").write_text('[server]\nbind = "127.0.0.1:0"\n[sandbox]\nworkers = 1\nreserve = 0\n')
    return warm_start.Popen(
        [sys.executable, "program.py"], cwd=folder, env={"PYTHONPATH": str(ROOT)}, stdout=PIPE, stderr=PIPE, text=True
    )


def test_the_program_of_the_page_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    (program,) = texts("python program")
    with run(program, tmp_path) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "MCP endpoint" in line:
                    process.terminate()
                    break
                assert "listening" in line or "greeter" in line or line.startswith(("Loaded", "Sandbox", "  "))
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, err


def test_the_program_with_a_loop_of_its_own_prints_what_its_tool_answered_and_has_the_log(tmp_path: Path) -> None:
    (program,) = texts("python async program")
    with run("import logging\nlogging.basicConfig(level=logging.DEBUG)\n" + program, tmp_path) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "3.5\n"), err
    assert re.search(r"^DEBUG:server\S*:event='request'", err, re.MULTILINE), err[-2000:]


def test_the_entry_points_of_the_page_are_in_the_groups_that_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    (package,) = texts("toml package")
    asked: list[str] = []
    monkeypatch.setattr(python, "_folders", lambda: "never seen before")
    monkeypatch.setattr(python, "entry_points", lambda group: asked.append(group) or ())
    assert [python.installed(root) for root in ("agent", "tool")] == [[], []]
    assert list(tomllib.loads(package)["project"]["entry-points"]) == asked


def names(title: str, table: int = 0) -> set[str]:
    return {name.partition("(")[0] for name in first_quoted(section(PAGE, title).rows(table))}


def test_every_attribute_that_is_read_is_in_its_table() -> None:
    of_agents = {*AgentDeclaration.model_fields, "resolve", "timeout"} - {"functions"}
    assert names("Attributes of an agent") == of_agents | {"complete"}
    of_tools = {*ToolDeclaration.model_fields, "execute", "timeout"} - {"functions"}
    assert {name for row in section(PAGE, "Attributes of a tool").rows() for name in quoted(row[0])} == {
        name if name != "execute" else "execute(params, context)" for name in of_tools
    }
    hints = {field.alias for field in ToolAnnotations.model_fields.values()}
    assert hints <= set(quoted(section(PAGE, "Attributes of a tool").text))
    assert names("Attributes of an agent", 1) == set(AgentPrompt.model_fields)


def test_everything_that_a_context_has_is_in_its_table() -> None:
    rows = section(PAGE, "The context").rows()
    shown = {cell for row in rows for cell in quoted(row[0])}
    documented = {cell.removeprefix("await ").removeprefix("context.").partition("(")[0] for cell in shown}
    levels = {name for name in vars(Log) if not name.startswith("_")}
    offered = {name for name in dir(Context) if not name.startswith("_")} - {"log"}
    assert documented == offered | levels - {"debug"} | {"log.debug"}
    calls = {cell.removeprefix("await context."): cell for cell in shown if cell.startswith("await ")}
    assert len(calls) == 4
    for cell in calls:
        name, _, arguments = cell.rstrip(")").partition("(")
        taken = [parameter for parameter in inspect.signature(getattr(Context, name)).parameters if parameter != "self"]
        given = [argument.strip() for argument in arguments.split(",") if argument.strip() not in ("", "*")]
        assert given == (taken if name != "get" else ["id", *taken[1:]]), name


def test_every_name_of_the_door_and_every_limit_is_on_the_page() -> None:
    assert {name for name in engine.__all__ if not re.search(rf"engine\.{name}\b", TEXT)} == set()
    assert {limit for limit in PYTHON_LIMITS if f"`{limit}`" not in TEXT} == {"timeout_s"}  # its key is `timeout`
    reserved = section(PAGE, "How code is found").text
    assert set(python._OURS) <= set(quoted(reserved))
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(python._OURS) == {name for name in packages["packages"] if (ROOT / name / "__init__.py").exists()}

"""What docs/testing.md shows is so: its files are written to a folder, and its commands run there."""

import re
import shlex
from pathlib import Path

import pytest
from cli_support import Engine, in_this_process
from pages import ROOT, Block, blocks, first_quoted, quoted, section
from test_docs import matches

from agents.code import calls, schema_call
from agents.registry import Registry
from agents.teams import family
from engine.bridge import Bridge
from engine.bridge.families import Host, open_families
from sandbox.wire.surface import HOST_CALLS

PAGE = "docs/testing.md"
CONFIG = """
[sandbox]
workers = 2
reserve = 0
[agents.script.greet]
path = "greet.lua"
"""


def test_every_command_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = in_this_process(tmp_path, monkeypatch, capsys)
    (tmp_path / "engine.toml").write_text(CONFIG)
    for block in blocks(PAGE):
        if found := re.fullmatch(r"(?:lua|toml) file (\S+)", block.info):
            (tmp_path / found[1]).write_text(block.text)
    commands = [block for block in blocks(PAGE) if block.info == "console testing"]
    assert len(commands) > 4
    wrong = [line for block in commands for line in differences(engine, block)]
    assert wrong == []


def differences(engine: Engine, block: Block) -> list[str]:
    wrong, code = [], 0
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        if command == "echo $?":
            printed = [str(code)]
        else:
            ended = engine(*shlex.split(command)[1:])
            code, printed = ended.code, (ended.err + ended.out).splitlines()
        if not matches([steady(line) for line in shown], [steady(line) for line in printed]):
            wrong.append(f"{block.where}: {command}\n" + "\n".join(printed))
    return wrong


def steady(line: str) -> str:
    return re.sub(r"[\d.]+ (ms|s)\b", r"TIME \1", line).rstrip()


async def test_the_arguments_of_every_host_call_are_in_the_table() -> None:
    rows = {name: set(quoted(row[1])) for row in section(PAGE, "Arguments").rows() for name in quoted(row[0])}
    assert set(rows) == set(HOST_CALLS)
    async with open_families(Host(lambda tenant: pytest.fail(tenant), 5, {})) as families:
        bridge = Bridge((*families, *calls.functions(Registry()), *schema_call.functions(), *family.functions()))
    without_body = {"http.get": {"body"}, "http.delete": {"body"}}
    for name in bridge.names:
        assert rows[name] == set(bridge.parameters(name)) - without_body.get(name, set()), name


def test_every_expectation_is_in_the_table() -> None:
    editor = (ROOT / "editor" / "lua" / "engine-test.lua").read_text(encoding="utf-8")
    shown = first_quoted(section(PAGE, "Expectations").rows())
    assert [name.partition("(")[0] for name in shown] == re.findall(r"^---@field (to_\w+) ", editor, re.MULTILINE)


def test_everything_that_tests_have_is_on_the_page() -> None:
    editor = (ROOT / "editor" / "lua" / "engine-test.lua").read_text(encoding="utf-8")
    names = set(re.findall(r"^(?:function )?(\w+)(?:\(.*\) end| = \{\})$", editor, re.MULTILINE))
    shown = first_quoted(section(PAGE, "Declaring tests").rows()) + first_quoted(section(PAGE, "Mocks").rows())
    assert {re.split(r"[.({]", name)[0] for name in shown} | {"expect"} == names

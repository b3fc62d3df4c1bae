"""The definitions for editors (`editor/lua/engine.lua`) name exactly what a script sees, field by field."""

import json
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Literal

import pytest
from lupa.lua54 import LuaError, LuaRuntime

from agents.agent import AgentArgument, AgentPrompt, PromptMessage
from agents.shapes.shape import AgentDeclaration, ToolAnnotations, ToolDeclaration
from engine.bridge.knowledge import Filters, SearchArguments
from engine.bridge.kv import DeleteArguments, ListArguments, SetArguments
from knowledge.store import MODES, Chunk, Document, Hit, SourceInfo
from sandbox import allowlist
from sandbox.wire.surface import granted

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "sandbox"))

from lua_support import value_of  # noqa: E402  (its folder is not on the path before)

FILE = ROOT / "editor" / "lua" / "engine.lua"
TEXT = FILE.read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "authoring.md").read_text(encoding="utf-8")
# The tables that scripts set themselves.
ROOTS = {"agent", "tool", "connector"}


def functions(text: str = TEXT) -> dict[str, list[str]]:
    """The functions by name, each with its parameters."""
    found = re.findall(r"^function ([\w.]+)\((.*?)\) end$", text, re.MULTILINE)
    return {name: [each for each in parameters.split(", ") if each] for name, parameters in found}


def tables(text: str = TEXT) -> set[str]:
    """What is assigned a table: libraries, and the values that are no functions."""
    return set(re.findall(r"^([\w.]+) = \{\}$", text, re.MULTILINE))


def classes(text: str = TEXT) -> dict[str, dict[str, str]]:
    """The classes by name without `engine.`: each field's type and text; an optional field's name ends in `?`."""
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in text.splitlines():
        if named := re.match(r"---@class engine\.(\w+)", line):
            current = found[named[1]] = {}
        elif field := re.match(r"---@field (\w+\??) (.+)$", line):
            current[field[1]] = field[2]
    return found


def names(of: str) -> set[str]:
    return {name.rstrip("?") for name in classes()[of]}


def added(text: str = TEXT) -> set[str]:
    """The globals: all functions but those of the context, the constants of libraries, and the table of secrets.

    Without `require`, which is Lua's own with another meaning.
    """
    constants = {name for name in tables(text) if "." in name or name == "secrets"}
    return {name for name in functions(text) if not name.startswith("context.")} - {"require"} | constants


def test_the_file_is_lua() -> None:
    lua = LuaRuntime()
    lua.compile(TEXT, name="engine.lua", mode="t")
    with pytest.raises(LuaError):
        lua.compile(TEXT + "\nfunction (", name="engine.lua", mode="t")
    assert TEXT.startswith("---@meta")


def test_it_names_exactly_the_globals_that_the_engine_adds() -> None:
    assert added() == set(allowlist.ADDED)
    libraries = {name.partition(".")[0] for name in allowlist.ADDED if "." in name}
    assert {name for name in tables() if "." not in name} == libraries | ROOTS | {"secrets"}


def test_it_names_exactly_what_a_running_scripts_context_offers() -> None:
    offered = value_of(
        "local names = {} for name, value in pairs(context) do names[name] = type(value) end return names -- caller"
    )
    here = granted("agent", frozenset(functions()))
    described = {name.removeprefix("context."): "function" for name in here if name.startswith("context.")}
    described = {name: kind for name, kind in described.items() if not name.startswith("team.")}
    assert described | dict.fromkeys(names("Context"), "table") == offered


SHAPES: list[tuple[str, set[str]]] = [
    ("Hit", {field.name for field in fields(Hit)}),
    ("Chunk", {field.name for field in fields(Chunk)}),
    ("Document", {field.name for field in fields(Document)}),
    ("Source", {field.name for field in fields(SourceInfo)}),
    ("Argument", set(AgentArgument.model_fields)),
    ("Message", set(PromptMessage.model_fields)),
    ("Prompt", set(AgentPrompt.model_fields)),
    ("Agent", set(AgentDeclaration.model_fields) - {"functions"} | {"resolve", "complete", "on_messages"}),
    ("TeamMessage", {"from", "text", "message_id", "kind", "reply_to"}),
    ("Tool", set(ToolDeclaration.model_fields) - {"functions"} | {"execute"}),
    ("ToolAnnotations", {str(field.alias) for field in ToolAnnotations.model_fields.values()}),
    ("KvSetOptions", set(SetArguments.__struct_fields__) - {"key", "value"}),
    ("KvDeleteOptions", set(DeleteArguments.__struct_fields__) - {"key"}),
    ("KvListOptions", set(ListArguments.__struct_fields__) - {"prefix"}),
    ("SearchOptions", set(SearchArguments.__struct_fields__) - {"query"}),
]


@pytest.mark.parametrize(("of", "expected"), SHAPES, ids=[name for name, _ in SHAPES])
def test_the_fields_of_a_class_are_those_of_the_shape_behind_it(of: str, expected: set[str]) -> None:
    assert names(of) == expected


def test_what_an_answer_may_lack_is_optional_and_nothing_else_is() -> None:
    for of, shape in (("Hit", Hit), ("Document", Document), ("Source", SourceInfo)):
        optional = {field.name for field in fields(shape) if "None" in str(field.type)}
        if of != "Source":  # there only if it is true
            optional.add("untrusted")
        assert {name.rstrip("?") for name in classes()[of] if name.endswith("?")} == optional


def test_the_filters_and_modes_of_a_search_are_those_of_the_call() -> None:
    options = classes()["SearchOptions"]
    assert set(re.findall(r"(\w+)\?:", options["filters?"])) == set(Filters.__struct_fields__)
    assert SearchArguments.__annotations__["mode"] == Literal[MODES] | None
    assert set(re.findall(r'"(\w+)"', options["mode?"].partition("  ")[0])) == set(MODES)


def test_every_function_has_a_text_and_types_its_parameters() -> None:
    blocks = re.findall(r"((?:^---.*\n)*)^function ([\w.]+)\((.*?)\) end$", TEXT, re.MULTILINE)
    assert len(blocks) == len(functions())
    for comment, name, _ in blocks:
        typed = re.findall(r"^---@param ([\w.]+)\??", comment, re.MULTILINE)
        assert typed == functions()[name], name
    silent = {name for comment, name, _ in blocks if not re.search(r"^---[^@]", comment, re.MULTILINE)}
    # Their library's text says it for all of them.
    assert {name.partition(".")[0] for name in silent} == {"log", "http"}


def test_every_class_that_is_spoken_of_is_there() -> None:
    spoken_of = set(re.findall(r"\bengine\.([A-Z]\w*)", TEXT))
    assert spoken_of == set(classes())
    listed = PAGE.partition("The types have names that begin with `engine.`:")[2]
    assert set(re.findall(r"`(\w+)`", listed)) == set(classes())


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("function fs.list(path, glob) end\n", ""),
        ("function fs.list(path, glob) end\n", "function fs.ls(path, glob) end\n"),
        ("json.null = {}\n", ""),
        ("function sleep(seconds) end\n", "function sleep(seconds) end\nfunction wait(seconds) end\n"),
    ],
)
def test_a_name_that_is_missing_or_too_much_is_noticed(line: str, instead: str) -> None:
    assert line in TEXT
    assert added(TEXT.replace(line, instead)) != set(allowlist.ADDED)


def test_the_settings_in_the_docs_name_the_folder_and_switch_off_whole_libraries_that_scripts_lack() -> None:
    (block,) = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    settings = json.loads(block)
    assert [Path(folder).parts[-2:] for folder in settings["workspace.library"]] == [FILE.parent.parts[-2:]]
    removed = {name.path for name in allowlist.NAMES if name.action == "remove"}
    off = {library for library, state in settings["runtime.builtin"].items() if state == "disable"}
    assert off == removed & {"io", "debug", "package"}
    assert settings["runtime.version"] == "Lua 5.4"


def test_the_definitions_are_shipped_with_the_program() -> None:
    from cli.scripts.scaffold import EDITOR

    assert EDITOR / "engine.lua" == FILE
    assert re.search(r'^packages = \[.*"editor".*\]$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)

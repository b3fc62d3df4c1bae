"""What declarations, answers and packages of strangers may cost: each list and text at its worst, in CPU time of the
thread that checks it. What is meant is milliseconds, so that the bounds here are wide."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from machine import loop_s
from pydantic import BaseModel

from agents.kinds.toml import inline_agent
from agents.package import Package
from agents.publishing.manifest import parse_package
from agents.shapes.shape import (
    MAX_COMPLETIONS,
    MAX_DECLARATION_BYTES,
    MAX_DESCRIPTION_BYTES,
    MAX_ITEMS,
    AgentDeclaration,
    ToolDeclaration,
    WrongShape,
    _Resolved,
    agent_declaration,
    agent_prompt,
    completions,
    declared_again,
    tool_declaration,
)
from engine.errors import Problem

MANY = 300_000
BOUND_S = 2.5 * loop_s()

CHECKS: list[tuple[type[BaseModel], dict[str, Any], Callable[[Any], Any]]] = [
    (AgentDeclaration, {"functions": ["resolve"]}, agent_declaration),
    (ToolDeclaration, {"functions": ["execute"]}, tool_declaration),
    (_Resolved, {"system": "S"}, lambda value: agent_prompt(value, ("search",))),
]


def _lists() -> Iterator[tuple[Callable[[Any], Any], dict[str, Any], str]]:
    """Every list that a model of strangers' data has."""
    for model, right, check in CHECKS:
        for name, field in model.model_fields.items():
            if "list" in str(field.annotation):
                yield check, right, name


WRONG: list[Any] = [{}, 5, None, "x" * 64, [], {"name": 1}, {"role": "user"}, {"name": "a", "enum": [1]}]


@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
@pytest.mark.parametrize("count", [60, 4_000, MANY])
def test_wrong_items_are_told_by_the_first_without_an_error_for_each(count: int) -> None:
    for check, right, name in _lists():
        for wrong in WRONG:
            value = {**right, name: [wrong] * count}
            began = time.thread_time()
            try:
                check(value)
            except WrongShape:
                pass
            else:  # a few names, or texts that say little
                assert count <= MAX_ITEMS[name]
            assert time.thread_time() - began < BOUND_S, (name, wrong, count)


def test_every_list_has_a_bound_that_its_error_names() -> None:
    seen = 0
    for check, right, name in _lists():
        with pytest.raises(WrongShape, match=f"{name} has {MAX_ITEMS[name] + 1} items; the most is {MAX_ITEMS[name]}"):
            check({**right, name: ["search"] * (MAX_ITEMS[name] + 1)})
        seen += 1
    assert seen >= 6


def test_an_argument_may_have_as_many_values_as_are_shown() -> None:
    options = ["x"] * (MAX_ITEMS["enum"] + 1)
    with pytest.raises(WrongShape, match=r"arguments\[1\]: enum has 257 items"):
        agent_declaration({"arguments": [{"name": "a", "enum": options}]})


@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
def test_lists_of_tools_are_compared_in_linear_time_and_hold_each_name_once() -> None:
    names = [f"t{i}" for i in range(MAX_ITEMS["tools"])]
    said = agent_declaration({"tools": [*names[:100], *names[:100]]})
    assert said.tools == names[:100]
    assert agent_prompt({"system": "", "tools": ["t5"] * 200}, tuple(names)).tools == ("t5",)
    declared = tuple(f"t{i}" for i in range(20_000))  # more than a declaration may have
    began = time.thread_time()
    for _ in range(20):
        agent_prompt({"system": "", "tools": list(declared[-200:])}, declared)
    assert time.thread_time() - began < 20 * BOUND_S


def test_texts_of_a_declaration_are_bounded_one_by_one_and_together() -> None:
    with pytest.raises(WrongShape, match=f"description is 16385 bytes long; the most is {MAX_DESCRIPTION_BYTES}"):
        agent_declaration({"description": "x" * (MAX_DESCRIPTION_BYTES + 1)})
    with pytest.raises(WrongShape, match="title is 2048 bytes long"):
        tool_declaration({"title": "\u00e9" * 1_024})
    every = [{"name": f"a{i}", "description": "x" * 1_200} for i in range(60)]
    with pytest.raises(WrongShape, match=f"the most for all but schemas is {MAX_DECLARATION_BYTES}"):
        agent_declaration({"arguments": every})
    agent_declaration({"description": "x" * MAX_DESCRIPTION_BYTES, "arguments": every[:30]})


def test_what_is_kept_of_a_declaration_is_what_was_declared_and_says_the_same_again() -> None:
    for check, said in (
        (agent_declaration, {"description": "d", "arguments": [{"name": "a", "enum": ["x"], "more": "y" * 9}],
                             "functions": ["resolve"], "own": "z" * 100_000}),
        (tool_declaration, {"parameters": {"type": "object"}, "returns": {"type": "string"}, "other": [1],
                            "annotations": {"readOnlyHint": True}, "functions": ["execute"]}),
    ):  # fmt: skip
        declared = check(said)
        again = declared_again(declared)
        assert check(again) == declared
        assert not {"own", "other"} & set(again)
        assert len(str(again)) < 1_000


def test_completions_are_bounded() -> None:
    assert completions(["x"] * MAX_COMPLETIONS) is not None
    with pytest.raises(WrongShape, match=f"the most is {MAX_COMPLETIONS}"):
        completions(["x"] * (MAX_COMPLETIONS + 1))
    with pytest.raises(WrongShape, match=r"\[1\] has 4097 characters"):
        completions(["x" * 4097])


# ---- packages -----------------------------------------------------------------------------------------------------

LUA = "agent = {} function agent.resolve() return { system = '' } end"
TOML: dict[str, str] = {
    "a text": 'description = "' + "x" * 4_000_000 + '"',
    "escapes": 'description = "' + "\\u0041" * 600_000 + '"',
    "a dotted name": ".".join(["a"] * 20_000) + " = 1",
    "a quoted dotted name": ".".join(['"a"'] * 20_000) + " = 1",
    "a dotted header": "[" + ".".join(["a"] * 100_000) + "]",
    "a dotted name behind quotes": 'description = ["""x"""", """y"""]\n' + ".".join(["a"] * 20_000) + ' = """z"""',
    "a dotted name behind a comment": "# don't\n" + ".".join(["a"] * 20_000) + " = 'x'",
    "headers": "\n".join(f"[a.b.c{i}]" for i in range(100_000)),
    "lists": "a = [" + "[]," * 400_000 + "]",
    "tables": "[[a]]\n" * 200_000,
    "depth": "a = " + "[" * 100_000,
    "inline tables": "a = {" + ",".join(f"k{i} = 1" for i in range(100_000)) + "}",
    "numbers": "a = [" + ",".join(["9" * 4_000] * 900) + "]",
    "dates": "a = [" + "1979-05-27T07:32:00Z," * 150_000 + "]",
    "comments": "#x\n" * 1_000_000,
}


def _toml(source: str) -> Package:
    return parse_package("agent", "a", {"version": "1", "kind": "toml", "main": "m", "files": {"m": source}})


@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
@pytest.mark.parametrize("what", TOML)
def test_no_text_of_a_toml_package_holds_its_parser_for_long(what: str) -> None:
    package = _toml(TOML[what])
    began = time.thread_time()
    with pytest.raises(Problem):
        inline_agent(package)
    assert time.thread_time() - began < BOUND_S


def test_honest_toml_passes_with_dots_quotes_and_hashes_in_its_texts() -> None:
    prompt = 'a.b.c # "quoted" ' * 5_000
    source = f"[agents.a]\ndescription = 'it''s'\nsystem_prompt = '''{prompt}'''\ntools = ['search']  # two\n"
    entry = inline_agent(_toml(source.replace("it''s", "its")))
    assert entry.system_prompt == prompt
    assert entry.tools == ("search",)


MANIFESTS: dict[str, dict[str, Any]] = {
    "a long unknown key": {"versio" * 600_000: 1},
    "many unknown keys": {f"k{i}": 1 for i in range(90_000)},
    "a long unknown grant": {"grants": {"limit" * 800_000: 1}},
    "many unknown limits": {"grants": {"limits": {f"l{i}": 1 for i in range(90_000)}}},
    "a large kind": {"kind": [{}] * 90_000},
    "a large name": {"name": [{}] * 90_000},
    "a large version": {"version": ["x"] * 90_000},
    "many keys of an argument": {"arguments": [{f"k{i}": 1 for i in range(90_000)}]},
    "many wrong values of an argument": {"arguments": [{"name": "a", "enum": [1] * 90_000}]},
    "long texts of arguments": {"arguments": [{"name": "a", "description": "x" * 1_000_000}]},
    "many tools": {"tools": ["x"] * 90_000},
    "a long path": {"files": {"m.lua": LUA, "x" * 4_000_000: ""}},
    "many files": {"files": {"m.lua": LUA, **{str(i): "" for i in range(90_000)}}},
}


@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
@pytest.mark.parametrize("what", MANIFESTS)
def test_no_wrong_manifest_takes_long_to_refuse(what: str) -> None:
    body = {"version": "1", "main": "m.lua", "files": {"m.lua": LUA}, **MANIFESTS[what]}
    began = time.thread_time()
    with pytest.raises(Problem) as refused:
        parse_package("agent", "a", body)
    assert time.thread_time() - began < BOUND_S
    assert len(refused.value.message) < 500

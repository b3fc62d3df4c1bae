"""What scripts say of themselves and return: accepted in every legal form, refused with the path and what was seen."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.agent import AgentArgument, PromptMessage
from agents.shapes.shape import WrongShape, agent_declaration, agent_prompt

SAID: dict[str, Any] = {"functions": ["resolve"]}


def test_a_declaration_is_read() -> None:
    said = agent_declaration(
        {
            "name": "a",
            "description": "d",
            "tools": ["search", "x"],
            "arguments": [{"name": "service", "description": "which", "required": True}, {"name": "severity"}],
            "functions": ["resolve"],
            "version": "1.2",
        }
    )
    assert (said.name, said.description, said.tools, said.functions) == ("a", "d", ["search", "x"], ["resolve"])
    assert said.arguments == [
        AgentArgument(name="service", description="which", required=True),
        AgentArgument(name="severity"),
    ]


def test_everything_in_a_declaration_has_a_default() -> None:
    said = agent_declaration({})
    assert (said.name, said.description, said.tools, said.arguments, said.functions) == (None, None, [], [], [])


@pytest.mark.parametrize("key", ["tools", "arguments"])
def test_an_empty_table_is_an_empty_list_where_a_list_is_declared(key: str) -> None:
    assert getattr(agent_declaration({key: {}}), key) == []


DECLARED_WRONG: dict[str, tuple[Any, str]] = {
    "a list": ([], "agent is a table, not a table with named fields"),
    "a text": ("x", "agent is a string, not a table with named fields"),
    "nothing": (None, "agent is nil, not a table with named fields"),
    "a number as name": ({"name": 5}, "agent: name must be a string, got a number"),
    "a table as description": ({"description": {"a": 1}}, "agent: description must be a string, got a table"),
    "a text as tools": ({"tools": "search"}, "agent: tools must be a list, got 'search'"),
    "an object as tools": ({"tools": {"a": 1}}, "agent: tools must be a list, got a table"),
    "a number among tools": ({"tools": ["a", 5]}, "agent: tools[2] must be a string, got a number"),
    "a hole among tools": ({"tools": ["a", None, "c"]}, "agent: tools[2] must be a string, got nil"),
    "a text as argument": ({"arguments": ["service"]}, "agent: arguments[1] must be a table, got 'service'"),
    "an argument without name": ({"arguments": [{"description": "x"}]}, "agent: arguments[1].name is missing"),
    "an argument with a number": ({"arguments": [{"name": 1}]}, "agent: arguments[1].name must be a string"),
}


@pytest.mark.parametrize("what", DECLARED_WRONG)
def test_a_wrong_declaration_is_named_by_its_path(what: str) -> None:
    value, text = DECLARED_WRONG[what]
    with pytest.raises(WrongShape) as wrong:
        agent_declaration(value)
    assert str(wrong.value).startswith(text) or text in str(wrong.value)


@pytest.mark.parametrize(("value", "seen"), [("yes", "'yes'"), (1, "a number"), ({}, "a table")])
def test_required_is_true_or_false_and_nothing_else(value: Any, seen: str) -> None:
    with pytest.raises(WrongShape) as wrong:
        agent_declaration({"arguments": [{"name": "a"}, {"name": "b", "required": value}]})
    assert str(wrong.value) == f"agent: arguments[2].required must be true or false, got {seen}"


def test_an_answer_is_read() -> None:
    prompt = agent_prompt(
        {"system": "S", "tools": ["get"], "messages": [{"role": "user", "content": "hi"}], "more": 1}, ("search", "get")
    )
    assert (prompt.system, prompt.tools) == ("S", ("get",))
    assert prompt.messages == (PromptMessage(role="user", content="hi"),)


def test_an_answer_without_tools_keeps_the_declared_list() -> None:
    assert agent_prompt({"system": ""}, ("search", "get")).tools == ("search", "get")
    assert agent_prompt({"system": "", "tools": None}, ("search",)).tools == ("search",)


def test_an_answer_may_narrow_the_list_even_to_nothing() -> None:
    assert agent_prompt({"system": "", "tools": []}, ("search",)).tools == ()
    assert agent_prompt({"system": "", "tools": {}}, ("search",)).tools == ()


def test_an_answer_keeps_its_own_order() -> None:
    assert agent_prompt({"system": "", "tools": ["c", "a"]}, ("a", "b", "c")).tools == ("c", "a")


def test_an_answer_may_not_widen_the_list() -> None:
    with pytest.raises(WrongShape, match=r"tools names 'sources', which agent\.tools does not declare"):
        agent_prompt({"system": "", "tools": ["search", "sources"]}, ("search",))


@given(st.lists(st.sampled_from("abcdef"), max_size=6), st.lists(st.sampled_from("abcdef"), max_size=6))
def test_whatever_an_answer_says_its_tools_are_among_the_declared(declared: list[str], said: list[str]) -> None:
    try:
        prompt = agent_prompt({"system": "", "tools": said}, tuple(declared))
    except WrongShape:
        assert not set(said) <= set(declared)
    else:
        assert set(prompt.tools) <= set(declared)


ANSWERED_WRONG: dict[str, tuple[Any, str]] = {
    "nothing": (None, "the answer of agent.resolve is nil, not a table with named fields"),
    "a text": ("S", "the answer of agent.resolve is a string, not a table with named fields"),
    "a list": (["S"], "the answer of agent.resolve is a table, not a table with named fields"),
    "a number": (5, "the answer of agent.resolve is a number"),
    "a boolean": (True, "the answer of agent.resolve is a boolean"),
    "no system": ({}, "the answer of agent.resolve: system is missing"),
    "a table as system": ({"system": {}}, "the answer of agent.resolve: system must be a string, got a table"),
    "an unknown role": (
        {"system": "", "messages": [{"role": "user", "content": ""}, {"role": "tool", "content": ""}]},
        "the answer of agent.resolve: messages[2].role must be 'user', 'assistant' or 'system', got 'tool'",
    ),
    "no role": ({"system": "", "messages": [{"content": "x"}]}, "messages[1].role is missing"),
    "no content": ({"system": "", "messages": [{"role": "user"}]}, "messages[1].content is missing"),
    "a number as content": (
        {"system": "", "messages": [{"role": "user", "content": 1}]},
        "messages[1].content must be a string, got a number",
    ),
    "a text as messages": ({"system": "", "messages": "hi"}, "messages must be a list, got 'hi'"),
    "a text as message": ({"system": "", "messages": ["hi"]}, "messages[1] must be a table, got 'hi'"),
    "a number among tools": ({"system": "", "tools": [1]}, "tools[1] must be a string, got a number"),
}


@pytest.mark.parametrize("what", ANSWERED_WRONG)
def test_a_wrong_answer_is_named_by_its_path(what: str) -> None:
    value, text = ANSWERED_WRONG[what]
    with pytest.raises(WrongShape) as wrong:
        agent_prompt(value, ("search",))
    assert text in str(wrong.value)


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from(["name", "description", "tools", "arguments", "functions", "system", "messages", "role"])


@given(json | st.dictionaries(KEYS, json))
def test_any_value_is_accepted_or_refused_in_words_without_python(value: Any) -> None:
    for check in (agent_declaration, lambda said: agent_prompt(said, ())):
        try:
            check(value)
        except WrongShape as wrong:
            text = str(wrong)
            assert "\n" not in text or "\n" in repr(value)
            assert not any(word in text for word in ("pydantic", "NoneType", "dict", "Input should"))


def test_a_long_wrong_text_is_shown_in_part() -> None:
    with pytest.raises(WrongShape) as wrong:
        agent_declaration({"tools": "x" * 1000})
    assert len(str(wrong.value)) < 100

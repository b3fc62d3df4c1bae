"""What a run begins with: the document's conversation as messages that servers of models take."""

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from agents.chatmd.history import NO_RESULT, given, history, nested_in
from agents.chatmd.program import (
    Doc,
    Item,
    Nested,
    Picture,
    Program,
    Said,
    StoredCall,
    StoredResult,
    Unavailable,
    Words,
)
from engine.models.shapes import Assistant, Image, System, Text, ToolCall, ToolResult, User


def program(*items: Item, unavailable: Sequence[Unavailable] = ()) -> Program:
    return Program(None, None, None, items, (), tuple(unavailable), {}, "", "", "", "", ())


def said(role: str, *parts: object) -> Said:
    words = tuple(Words(part) if isinstance(part, str) else part for part in parts)
    return Said(role, words)  # type: ignore[arg-type]


def test_messages_keep_their_order_and_files_stand_in_their_place() -> None:
    document = program(
        said("system", "Be brief. ", Doc("style.md", "No jokes.")),
        said("assistant", "Hello!"),
        said("user", "What is ", Picture("a.png", b"\x89PNG", "image/png"), "?"),
        said("system", "See ", Picture("b.png", None, url="https://example.com/b.png")),
    )
    assert history(document, (), (Words("Now?"),)) == [
        System("Be brief. No jokes."),
        Assistant("Hello!"),
        User((Text("What is "), Image(data="iVBORw==", media_type="image/png"), Text("?"))),
        System('See <img src="b.png"/>'),
        User((Text("Now?"),)),
    ]


def test_answers_of_documents_stand_where_they_are_named() -> None:
    document = program(said("user", "First: ", Nested("a", "a"), " then: ", Nested("b", "b", (Nested("c", "c"),))))
    assert [each.path for each in nested_in(document)] == ["a", "b"]
    texts = (Text("First: "), Text("one"), Text(" then: "), Text("two"))
    assert history(document, ["one", "two"]) == [User(texts)]


def test_stored_calls_are_one_answer_and_each_has_its_result_right_after_it() -> None:
    document = program(
        said("assistant", "I look."),
        StoredCall("1", "search", '{"query": "x"}'),
        StoredCall("2", "get", "no JSON"),
        StoredResult("2", "two"),
        said("user", "And?"),
        StoredResult("1", "one"),
        StoredCall("1", "search", "[]"),
    )
    assert history(document, ()) == [
        Assistant(
            "I look.",
            (ToolCall("1", "search", {"query": "x"}, '{"query": "x"}'), ToolCall("2", "get", None, "no JSON")),
        ),
        ToolResult("1", "one"),
        ToolResult("2", "two"),
        User((Text("And?"),)),
        Assistant("", (ToolCall("1_2", "search", None, "[]"),)),
        ToolResult("1_2", NO_RESULT),
    ]


@pytest.mark.parametrize("between", [(), (said("user", "Go on."),)])
def test_thousands_of_stored_calls_of_one_id_take_no_quadratic_time(between: Sequence[Said]) -> None:
    items = [item for _ in range(4000) for item in (StoredCall("c", "look", "{}"), *between)]
    began = time.process_time()
    messages = history(program(*items), ())
    assert time.process_time() - began < 0.5  # it took 8 and 13 s
    ids = [call.id for each in messages if isinstance(each, Assistant) for call in each.calls]
    assert len(set(ids)) == 4000


def test_tools_that_are_not_available_are_told_in_one_line_after_the_first_instructions() -> None:
    missing = (Unavailable("bash", "commands are never run"), Unavailable("old", "gone"))
    document = program(said("system", "Be brief."), said("user", "Go."), unavailable=missing)
    assert history(document, ())[1] == System("These tools are not available: bash, old.")


def test_without_parameters_the_input_is_the_last_message_and_placeholders_are_text() -> None:
    document = program(said("user", "{{input}}"))
    assert given(document, {"input": "x", "more": 1}, named=False) == (document, "x")


def test_with_parameters_values_stand_in_the_texts_once_and_the_rest_comes_last() -> None:
    document = program(said("user", "About {{topic}} in {{n}} words"))
    values = {"topic": "{{n}} <tool/> RAW|", "n": 3, "tone": "dry", "deep": {"a": [1]}}
    filled, last = given(document, values, named=True)
    assert filled == replace(document, items=(said("user", "About {{n}} <tool/> RAW| in 3 words"),))
    assert last == 'tone: dry\ndeep: {"a":[1]}'
    assert given(program(said("user", "x")), {"input": "hello"}, named=True)[1] == "hello"
    assert given(document, {"topic": "a", "n": 1}, named=True)[1] == ""

"""The loop of a document's run, without a model: for any script of answers it stays within its limits."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.chatmd.run import (
    ERROR_BYTES,
    RESULT_BYTES,
    Answered,
    AskModel,
    Budget,
    CallTools,
    CheckAnswer,
    Ended,
    Failed,
    Heard,
    Run,
    Step,
    Terms,
    Usable,
    Wait,
    cut,
    may_open,
)
from engine.errors import Code
from engine.models.reserving import MICRO, Price
from engine.models.shapes import (
    Assistant,
    Event,
    Request,
    Stopped,
    Text,
    TextDelta,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
    User,
)

LIMITS = {"model_turns": 20, "tool_calls": 50, "model_tokens": 200_000, "cost_usd": 1}
SEARCH = Usable(Tool("search", "Searches", {"type": "object"}))
ASKED = [User((Text("What is it?"),))]

Model = Callable[[Request], Sequence[Event]]


def size(request: Request) -> int:
    """The characters of a request, and 100 bytes around them."""
    return 100 + sum(len(str(message)) for message in request.messages)


def terms(**changes: Any) -> Terms:
    given: dict[str, Any] = {
        "model": "demo", "size": size, "max_output_tokens": 1000, "context_tokens": 100_000, "output_bytes": 10_000,
    }  # fmt: skip
    return Terms(**given | changes)


def said(text: str, *calls: ToolCall, usage: Usage | None = None, reason: str = "stop") -> list[Event]:
    texts: list[Event] = [TextDelta(text)] if text else []
    told: list[Event] = [] if usage is None else [usage]
    ended: Any = Stopped("tool_calls" if calls else reason)  # type: ignore[arg-type]
    return [*texts, *calls, *told, ended]


def call(name: str = "search", id: str = "c", **arguments: Any) -> ToolCall:
    return ToolCall(id, name, arguments)


class Played:
    """A run with a model: the requests that it got, and the calls that were made."""

    def __init__(
        self, model: Model, limits: dict[str, float] | None = None, tools: Sequence[Usable] = (SEARCH,), **changes: Any
    ) -> None:
        self.budget = Budget(LIMITS | (limits or {}))
        self.run = Run(ASKED, tools, terms(**changes), self.budget)
        self.model = model
        self.requests: list[Request] = []
        self.made: list[ToolCall] = []
        self.refused: list[str] = []
        self.steps = 0

    def end(self, results: Callable[[ToolCall], tuple[str, bool]] = lambda call: ("found", False)) -> Ended:
        while True:
            step = self.run.next()
            self.steps += 1
            assert self.steps < 1000
            if isinstance(step, Answered | Failed):
                self.run.close()
                return step
            self.carry_out(step, results)

    def carry_out(self, step: Step, results: Callable[[ToolCall], tuple[str, bool]]) -> None:
        match step:
            case AskModel():
                self.requests.append(step.request)
                heard = Heard(step.request_bytes)
                for event in self.model(step.request):
                    heard.hear(event)
                self.run.answered(step, heard)
            case CallTools():
                self.made += [each.call for each in step.calls if each.refused is None]
                self.refused += [each.refused for each in step.calls if each.refused is not None]
                self.run.results(
                    [results(each.call) if each.refused is None else (each.refused, True) for each in step.calls]
                )
            case CheckAnswer():
                self.run.checked(None if step.text == "42" else "it is not 42")


def in_turn(*answers: Sequence[Event]) -> Model:
    """A model with these answers, the last of which repeats."""
    left = list(answers)
    return lambda request: left.pop(0) if len(left) > 1 else left[0]


def test_the_answer_is_every_text_of_the_run_its_parts_with_spaces_and_its_messages_with_line_breaks() -> None:
    first = [TextDelta("Let me "), TextDelta("look."), call(), TextDelta("Soon."), Stopped("tool_calls")]
    played = Played(in_turn(first, said("It is 7.")))
    end = played.end()
    assert isinstance(end, Answered)
    assert (end.text, end.last, end.closed_by) == ("Let me look. Soon.\nIt is 7.", "It is 7.", None)
    assert played.requests[1].messages[1:] == (
        Assistant("Let me look. Soon.", (call(),)),
        ToolResult("c", "found"),
    )


def test_a_model_that_calls_tools_for_ever_is_asked_once_without_tools_and_then_the_run_ends() -> None:
    played = Played(lambda request: said("", call()), {"model_turns": 5})
    end = played.end()
    assert isinstance(end, Failed)
    assert (end.code, end.closed_by, end.bound, end.used) == (Code.MODEL_LIMIT, "model_turns", 5, 5)
    assert [request.tools_off for request in played.requests] == [False] * 4 + [True]
    assert len(played.made) == 4


def test_the_turn_without_tools_gives_an_answer_and_the_run_says_what_closed_it() -> None:
    played = Played(
        lambda request: said("done" if request.tools_off else "", *(() if request.tools_off else (call(),)))
    )
    end = played.end()
    assert end == Answered("done", "done", "model_turns")
    assert (played.budget.turns, played.budget.calls) == (20, 19)


def test_calls_beyond_the_limit_are_not_made_and_the_next_turn_is_the_last() -> None:
    played = Played(in_turn(said("", *(call(id=f"c{n}") for n in range(5))), said("done")), {"tool_calls": 3})
    assert played.end() == Answered("done", "done", "tool_calls")
    assert len(played.made) == 3
    assert played.refused == ["not called: no more than 3 tools may be called (limits.tool_calls)"] * 2
    assert [request.tools_off for request in played.requests] == [False, True]


def test_what_cannot_be_called_goes_back_to_the_model() -> None:
    wrong = said("", call("serch"), call("nothing-like-it"), ToolCall("c", "search", None, "{"), call())
    played = Played(in_turn(wrong, said("done")))
    assert isinstance(played.end(), Answered)
    assert played.refused == [
        "there is no tool 'serch'; did you mean 'search'?",
        "there is no tool 'nothing-like-it'; the tools are: search",
        "search: its arguments must be a JSON object of at most 128 levels and 10,000 values",
    ]
    answers = [each for each in played.requests[1].messages if isinstance(each, ToolResult)]
    assert [each.failed for each in answers] == [True, True, True, False]
    assert len({each.id for each in answers}) == 4  # the model gave one id to all


def test_thousands_of_calls_of_one_id_are_told_apart_at_once() -> None:
    wide = {"tool_calls": 5000, "model_tokens": 10_000_000}
    played = Played(in_turn(said("", *(call() for _ in range(5000))), said("done")), wide, context_tokens=10_000_000)
    began = time.process_time()
    played.end()
    assert time.process_time() - began < 1  # a search from 2 for each of them took 8 s
    answers = [each for each in played.requests[1].messages if isinstance(each, ToolResult)]
    assert len({each.id for each in answers}) == 5000


def test_ids_that_come_again_in_a_later_turn_are_made_unique() -> None:
    played = Played(in_turn(said("", call()), said("", call()), said("done")))
    played.end()
    ids = [each.id for message in played.run.messages if isinstance(message, Assistant) for each in message.calls]
    assert ids == ["c", "c_2"]


def test_results_and_errors_are_cut_where_a_model_could_not_read_them_whole() -> None:
    played = Played(in_turn(said("", call(id="a"), call(id="b")), said("done")), context_tokens=10**6)
    played.end(lambda each: ("é" * RESULT_BYTES, each.id == "b"))
    answers = [each.text for each in played.run.messages if isinstance(each, ToolResult)]
    assert answers[0].endswith(f"… ({RESULT_BYTES:,} more bytes are left out)")
    assert len(answers[1].encode()) < ERROR_BYTES + 100
    assert cut("short", 10) == "short"


def test_an_answer_that_does_not_fit_goes_back_twice_and_then_the_run_fails() -> None:
    played = Played(in_turn(said("41"), said("43"), said("44")), returns={"type": "integer"})
    end = played.end()
    assert isinstance(end, Failed)
    assert (end.code, len(played.requests)) == (Code.AGENT_ERROR, 3)
    assert "it is not 42" in end.message
    assert all(request.schema == {"type": "integer"} for request in played.requests)
    assert Played(in_turn(said("41"), said("42")), returns={}).end() == Answered("42", "42")


@pytest.mark.parametrize(
    ("answer", "code", "closed_by"),
    {
        "nothing at all": (said(""), Code.MODEL_ERROR, None),
        "a refusal": (said("I will not", reason="refused"), Code.MODEL_ERROR, None),
        "nothing before its bound": (said("", reason="length"), Code.MODEL_LIMIT, "max_output_tokens"),
        "more than the answer may have": (said("x" * 10_001), Code.OUTPUT_LIMIT, None),
    }.values(),
)
def test_what_is_no_answer_is_an_error(answer: list[Event], code: Code, closed_by: str | None) -> None:
    end = Played(lambda request: answer).end()
    assert isinstance(end, Failed)
    assert (end.code, end.closed_by) == (code, closed_by)


def test_an_answer_that_its_bound_cut_says_so() -> None:
    assert Played(in_turn(said("So far", reason="length"))).end() == Answered("So far", "So far", "max_output_tokens")


def test_the_bound_of_an_answer_is_lowered_to_what_is_left_and_then_no_call_is_made() -> None:
    used = Usage(400, 0, 100)
    played = Played(in_turn(said("", call(), usage=used)), {"model_tokens": 1500}, max_output_tokens=1000)
    end = played.end()
    assert isinstance(end, Failed)
    assert (end.code, end.closed_by, end.bound) == (Code.MODEL_LIMIT, "model_tokens", 1500)
    bounds = [request.max_output_tokens for request in played.requests]
    assert bounds[0] == 1000
    assert bounds[-1] is not None
    assert bounds[-1] < 1000


def test_an_input_beyond_what_the_model_reads_is_not_even_rendered() -> None:
    def never(request: Request) -> int:
        raise AssertionError("rendered")

    run = Run([User((Text("x" * 401),))], (), terms(context_tokens=100, size=never), Budget(LIMITS))
    end = run.next()
    assert isinstance(end, Failed)
    assert (end.code, end.closed_by) == (Code.MODEL_LIMIT, "context_tokens")


def test_a_conversation_waits_for_tokens_that_another_one_has_reserved() -> None:
    budget = Budget(LIMITS | {"model_tokens": 1000})
    first, second = (Run(ASKED, (), terms(), budget) for _ in range(2))
    step = first.next()
    assert isinstance(step, AskModel)
    assert step.share.input + step.share.output == 1000  # all that there is
    assert isinstance(second.next(), Wait)
    first.abandoned(step, Heard(step.request_bytes))
    assert isinstance(second.next(), AskModel)


def test_nested_documents_leave_the_outer_one_the_turn_in_which_it_answers() -> None:
    budget = Budget(LIMITS | {"model_turns": 3})
    outer = Run(ASKED, (SEARCH,), terms(), budget)
    inner = Run(ASKED, (SEARCH,), terms(), budget)
    assert may_open(budget)
    for _ in range(2):
        step = inner.next()
        assert isinstance(step, AskModel)
        heard = Heard(step.request_bytes)
        for event in said("", call()):
            heard.hear(event)
        inner.answered(step, heard)
        planned = inner.next()
        if isinstance(planned, CallTools):
            inner.results([("found", False)])
    assert isinstance(inner.next(), Failed)
    inner.close()
    assert not may_open(budget)
    last = outer.next()
    assert isinstance(last, AskModel)
    assert last.request.tools_off


# ---- any script of answers -----------------------------------------------------------------------------------------

CALLS = st.builds(
    ToolCall,
    st.sampled_from(["", "a", "b", "call_1"]),
    st.sampled_from(["search", "other", "x" * 200]),
    st.none() | st.just({}),
    st.text(max_size=20),
)
ANSWERS = st.builds(
    lambda texts, calls, usage, reason: [
        *(TextDelta(text) for text in texts), *calls, *([] if usage is None else [usage]), Stopped(reason)
    ],
    st.lists(st.text(max_size=200), max_size=3),
    st.lists(CALLS, max_size=6),
    st.none() | st.builds(Usage, st.integers(0, 40), st.integers(0, 60), st.integers(0, 20)),
    st.sampled_from(["stop", "length", "tool_calls", "refused"]),
)  # fmt: skip


@given(
    st.lists(ANSWERS, min_size=1, max_size=12),
    st.fixed_dictionaries(
        {
            "model_turns": st.integers(1, 8),
            "tool_calls": st.integers(1, 10),
            "model_tokens": st.integers(1, 4000),
            "cost_usd": st.integers(1, 5000).map(lambda micro: micro / MICRO),
        }
    ),
    st.booleans(),
    st.none() | st.builds(Price.of, st.integers(0, 5), st.none() | st.integers(0, 5), st.integers(0, 5)),
)
def test_no_script_of_answers_makes_more_turns_calls_tokens_or_money_than_the_limits(
    answers: list[list[Event]], limits: dict[str, float], returns: bool, price: Price | None
) -> None:
    played = Played(in_turn(*answers), limits, price=price, returns={} if returns else None, max_output_tokens=300)
    reserved: list[int] = []
    inner = played.model

    def honest(request: Request) -> Sequence[Event]:
        """The server keeps the bound of the request, and counts as we do or less."""
        assert request.max_output_tokens is not None
        assert request.max_output_tokens >= 1
        reserved.append(request.max_output_tokens)
        allowed = request.max_output_tokens
        return [
            Usage(min(each.input, size(request) // 4), each.cached, min(each.output, allowed))
            if isinstance(each, Usage)
            else each
            for each in inner(request)
            if not isinstance(each, TextDelta | ToolCall) or len(str(each)) // 4 <= allowed
        ]

    played.model = honest
    end = played.end()
    budget = played.budget
    assert budget.turns == len(played.requests) <= limits["model_turns"]
    assert (
        len(played.made) + len([each for each in played.refused if not each.startswith("not called")]) == budget.calls
    )
    assert budget.calls <= limits["tool_calls"]
    assert budget.pending == 0
    if not budget.used.estimated:
        assert budget.used.input + budget.used.output <= limits["model_tokens"]
        assert budget.cost <= limits["cost_usd"] * MICRO + 1e-6
    assert played.requests[-1].tools_off or budget.turns < limits["model_turns"] if played.requests else True
    if isinstance(end, Failed) and end.code is Code.MODEL_LIMIT:
        assert end.closed_by is not None
    # Each call has its result right after it, under an id of its own: servers refuse anything else.
    seen: set[str] = set()
    for at, message in enumerate(played.run.messages):
        if isinstance(message, Assistant) and message.calls:
            follow = played.run.messages[at + 1 : at + 1 + len(message.calls)]
            assert [each.id for each in message.calls] == [each.id for each in follow if isinstance(each, ToolResult)]
            assert not seen & {each.id for each in message.calls}
            seen |= {each.id for each in message.calls}

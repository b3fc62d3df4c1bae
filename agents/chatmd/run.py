"""The loop of a document's run: what comes next, from what came before. Pure.

A `Run` is one conversation. `Run.next` returns a step: ask the model, call tools, check the answer, wait, or the end.
The caller carries it out and hands the result in. All conversations of one call, those of nested documents included,
share a `Budget`: turns, tool calls, tokens and money.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from engine.errors import Code
from engine.models.reserving import (
    FREE,
    MICRO,
    NOTHING,
    Left,
    Price,
    Reserved,
    Short,
    added,
    estimated,
    reserve,
    settle,
    take,
)
from engine.models.shapes import (
    MAX_DEPTH,
    MAX_VALUES,
    Assistant,
    Event,
    Ids,
    Message,
    Metered,
    Reason,
    Request,
    Stopped,
    System,
    Text,
    TextDelta,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
    User,
)
from engine.names import nearest

# What closed a run, beside its model: a limit, or `max_output_tokens` of the model or the document.
Closing = Literal["model_turns", "tool_calls", "model_tokens", "cost_usd", "context_tokens", "max_output_tokens"]

# How often an answer that does not fit `returns` goes back to the model.
MISFITS = 2
# Bounds on the texts that go back to the model: a tool's answer, an error.
RESULT_BYTES = 256 * 1024
ERROR_BYTES = 4 * 1024
# Of a JSON body, at least so many bytes are one token (`reserving.BYTES_A_TOKEN`).
_BYTES_A_TOKEN = 4


# ---- what a run may use ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Budget:
    """What one call and its nested documents may still use, and have used. Money is in micro-dollars.

    Each open run owns one turn, its last: nested documents cannot use up the turn in which an outer one answers.
    """

    limits: Mapping[str, float]
    free_turns: int = field(init=False)
    left_calls: int = field(init=False)
    left: Left = field(init=False)
    turns: int = 0
    calls: int = 0
    used: Usage = NOTHING
    cost: int = 0
    # False once a model without a price answered: then nothing says what the run costs.
    priced: bool = True
    pending: int = 0

    def __post_init__(self) -> None:
        self.free_turns = int(self.limits["model_turns"])
        self.left_calls = int(self.limits["tool_calls"])
        self.left = Left(int(self.limits["model_tokens"]), int(self.limits["cost_usd"] * MICRO))

    def reserved(self, share: Reserved) -> None:
        """A call of a model begins."""
        self.left = take(self.left, share)
        self.turns += 1
        self.pending += 1

    def settled(self, share: Reserved, usage: Usage, price: Price | None) -> None:
        """It ended."""
        self.left = settle(self.left, share, usage, price or FREE)
        self.pending -= 1
        self.cost += (price or FREE).cost(usage)
        self.priced = self.priced and price is not None
        sums = self.used
        self.used = Usage(
            sums.input + usage.input, sums.cached + min(usage.cached, usage.input), sums.output + usage.output,
            sums.estimated or usage.estimated,
        )  # fmt: skip


# ---- steps -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AskModel:
    """Send this request, and hand in what was heard (`Run.answered`, or `Run.abandoned` without a whole answer)."""

    request: Request
    share: Reserved
    request_bytes: int


@dataclass(frozen=True, slots=True)
class Planned:
    """One call of a turn. With `refused` it is not made, and that text goes back; with `confirm` a person is asked."""

    call: ToolCall
    refused: str | None = None
    confirm: bool = False


@dataclass(frozen=True, slots=True)
class CallTools:
    """Make these calls side by side, and hand in their results in this order (`Run.results`)."""

    calls: tuple[Planned, ...]


@dataclass(frozen=True, slots=True)
class CheckAnswer:
    """See whether this text is JSON that fits `returns`, and hand in what is wrong (`Run.checked`)."""

    text: str


@dataclass(frozen=True, slots=True)
class Wait:
    """What is left is reserved by other conversations of the same call: go on once one of their turns has ended."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The end: all texts of the run, and the last one alone. `closed_by` is the limit that closed it, if one did."""

    text: str = field(repr=False)
    last: str = field(repr=False)
    closed_by: Closing | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The end without an answer. `used` and `bound` are of the limit `closed_by`."""

    code: Code
    message: str
    closed_by: Closing | None = None
    bound: float | None = None
    used: float | None = None


Ended = Answered | Failed
Step = AskModel | CallTools | CheckAnswer | Wait | Ended


# ---- answers -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Heard:
    """What was heard of one answer so far."""

    request_bytes: int
    calls: list[ToolCall] = field(default_factory=list)
    reported: Usage | None = None
    # What the server reported before the end of its answer, and of tries that gave nothing.
    metered: Usage | None = None
    lost: Usage = NOTHING
    reason: Reason | None = None
    _parts: list[list[str]] = field(default_factory=lambda: [[]])
    _bytes: int = 0

    def hear(self, event: Event) -> None:
        match event:
            case TextDelta():
                self._parts[-1].append(event.text)
                self._bytes += len(event.text.encode())
            case ToolCall():
                self.calls.append(event)
                self._bytes += len(event.raw.encode())
                if self._parts[-1]:  # what follows a call is another part
                    self._parts.append([])
            case Metered():
                self.metered = event.usage
            case Usage():
                self.reported = event
            case Stopped():
                self.reason = event.reason

    @property
    def text(self) -> str:
        """Its parts, joined by a space."""
        return " ".join("".join(pieces) for pieces in self._parts if pieces)

    @property
    def anything(self) -> bool:
        """Whether anything of an answer came."""
        return bool(self._bytes) or self.reported is not None or self.reason is not None or self.usage != NOTHING

    def lose(self, usage: Usage) -> None:
        """What a try used of which nothing was heard."""
        self.lost = added(self.lost, usage)

    @property
    def usage(self) -> Usage:
        """What it cost, its lost tries included: as the server reports it, else by the bytes that came."""
        return added(self.lost, self._used)

    @property
    def _used(self) -> Usage:
        if self.reported is not None:
            return self.reported
        if not self._bytes and self.reason is None:
            return self.metered or NOTHING
        by_bytes = estimated(self.request_bytes, self._bytes)
        if self.metered is None:
            return by_bytes
        return replace(self.metered, output=max(self.metered.output, by_bytes.output), estimated=True)


# ---- the run -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usable:
    """A tool as the loop sees it. `confirm`: a person is asked before each call."""

    tool: Tool
    confirm: bool = False


@dataclass(frozen=True, slots=True)
class Terms:
    """On which terms a run calls its model. `size` renders a request, and returns the size of its body."""

    model: str
    size: Callable[[Request], int]
    max_output_tokens: int
    context_tokens: int
    output_bytes: int
    price: Price | None = None
    temperature: float | None = None
    returns: Mapping[str, Any] | None = None


class Run:
    """One conversation. It is open until `close`."""

    def __init__(self, history: Sequence[Message], tools: Sequence[Usable], terms: Terms, budget: Budget) -> None:
        """Invariant of the caller: `may_open(budget)`."""
        self._messages = list(history)
        self._tools = {each.tool.name: each for each in tools}
        self._terms = terms
        self._budget = budget
        budget.free_turns -= 1
        self._owns_turn = True
        self._texts: list[str] = []
        self._room = terms.output_bytes
        self._planned: tuple[Planned, ...] = ()
        self._said = ""
        self._checking: str | None = None
        self._misfits = 0
        self._closing: Closing | None = None
        self._lowered: Closing | None = None
        self._ended: Ended | None = None
        self._ids = Ids(call.id for each in history if isinstance(each, Assistant) for call in each.calls)
        self._characters = sum(map(weight, history))

    def close(self) -> None:
        """Give back the turn that it owns."""
        if self._owns_turn:
            self._owns_turn = False
            self._budget.free_turns += 1

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far."""
        return tuple(self._messages)

    def next(self) -> Step:
        """What comes next. An AskModel has its reservation, and must be followed by `answered` or `abandoned`."""
        if self._ended is not None:
            return self._ended
        if self._planned:
            return CallTools(self._planned)
        if self._checking is not None:
            return CheckAnswer(self._checking)
        step = self._ask()
        if isinstance(step, Failed):
            self._ended = step
        return step

    def answered(self, step: AskModel, heard: Heard) -> None:
        """The model's whole answer."""
        self._budget.settled(step.share, heard.usage, self._terms.price)
        self._hear(heard)

    def abandoned(self, step: AskModel, heard: Heard) -> None:
        """The call of the model failed, or was cancelled."""
        self._budget.settled(step.share, heard.usage, self._terms.price)

    def results(self, texts: Sequence[tuple[str, bool]]) -> None:
        """The results of the planned calls, in their order: each a text, and whether it is an error."""
        self._add(Assistant(self._said, tuple(each.call for each in self._planned)))
        for planned, (text, failed) in zip(self._planned, texts, strict=True):
            self._add(ToolResult(planned.call.id, cut(text, ERROR_BYTES if failed else RESULT_BYTES), failed))
        self._planned = ()

    def checked(self, misfit: str | None) -> None:
        """What is wrong with the answer that was to be checked; None: it fits."""
        text, self._checking = self._checking or "", None
        if misfit is None:
            self._ended = self._answer(text)
            return
        self._misfits += 1
        if self._misfits > MISFITS or not self._turn_left:
            self._ended = Failed(Code.AGENT_ERROR, f"its answer does not fit `returns`: {cut(misfit, ERROR_BYTES)}")
            return
        self._texts.clear()  # the next answer stands in the place of this one
        self._add(Assistant(text))
        told = f"That answer cannot be used: {misfit}. Answer again, with nothing but JSON that fits the schema."
        self._add(User((Text(cut(told, ERROR_BYTES)),)))

    # ---- asking ------------------------------------------------------------------------------------------------

    @property
    def _turn_left(self) -> bool:
        return self._budget.free_turns > 0 or self._owns_turn

    def _ask(self) -> AskModel | Wait | Failed:
        terms, budget = self._terms, self._budget
        if not self._turn_left:
            bound = budget.limits["model_turns"]
            return _limited("model_turns", f"it may ask the model {bound:g} times", bound, budget.turns)
        closing: Closing | None = None
        if self._tools and (budget.free_turns <= 0 or budget.left_calls <= 0):
            closing = "model_turns" if budget.free_turns <= 0 else "tool_calls"
        if (failed := too_large(self._characters, terms.context_tokens, terms.model)) is not None:
            return failed  # before it is rendered
        request = Request(
            tuple(self._messages), tuple(each.tool for each in self._tools.values()), closing is not None,
            terms.returns, terms.max_output_tokens, terms.temperature, terms.output_bytes,
        )  # fmt: skip
        size = terms.size(request)
        share = reserve(budget.left, size, terms.max_output_tokens, terms.context_tokens, terms.price or FREE)
        if isinstance(share, Short):
            return Wait() if budget.pending and share.limit != "context_tokens" else self._short(share)
        if budget.free_turns > 0:
            budget.free_turns -= 1
        else:
            self._owns_turn = False
        self._closing = closing
        self._lowered = self._lowering(share)
        budget.reserved(share)
        return AskModel(replace(request, max_output_tokens=share.output), share, size)

    def _lowering(self, share: Reserved) -> Closing | None:
        """The limit that lowered the bound of an answer, if one did."""
        if share.output >= self._terms.max_output_tokens:
            return None
        return "model_tokens" if share.output == self._budget.left.tokens - share.input else "cost_usd"

    def _short(self, short: Short) -> Failed:
        budget = self._budget
        if short.limit == "context_tokens":
            said = f"the input has about {short.needed:,} tokens, more than the model {self._terms.model!r} reads"
            return _limited("context_tokens", said, short.bound, short.needed)
        bound = budget.limits[short.limit]
        if short.limit == "model_tokens":
            said = f"it may use {bound:,.0f} tokens; the next turn needs {short.needed:,} and {short.bound:,} are left"
            return _limited("model_tokens", said, bound, bound - short.bound)
        said = f"it may cost {bound:g} USD; the next turn may cost more than the {short.bound / MICRO:.6f} USD left"
        return _limited("cost_usd", said, bound, (bound * MICRO - short.bound) / MICRO)

    # ---- hearing -----------------------------------------------------------------------------------------------

    def _hear(self, heard: Heard) -> None:
        self._said = heard.text
        if self._said:
            self._texts.append(self._said)
            self._room -= len(self._said.encode()) + 1
        if self._room < -1:
            bound = self._terms.output_bytes
            self._ended = Failed(Code.OUTPUT_LIMIT, f"its answer is larger than {bound:,} bytes")
        elif heard.reason == "refused":
            self._ended = Failed(Code.MODEL_ERROR, f"the model {self._terms.model!r} refused to answer")
        elif heard.calls and self._closing is None:
            self._planned = tuple(self._plan(heard.calls))
        elif heard.calls and not self._said:
            self._ended = self._called_for_ever(self._closing)
        elif self._terms.returns is not None:
            self._checking = self._said
        else:
            self._ended = self._answer(self._said, heard.reason or "stop")

    def _answer(self, last: str, reason: Reason = "stop") -> Ended:
        closing = self._closing
        if reason == "length":
            closing = self._lowered or "max_output_tokens"
        if not self._texts:
            if reason == "length" and closing is not None:
                return _limited(closing, "it ended before the answer began", None, None)
            return Failed(Code.MODEL_ERROR, f"the model {self._terms.model!r} gave an empty answer")
        return Answered("\n".join(self._texts), last, closing)

    def _called_for_ever(self, closing: Closing | None) -> Failed:
        assert closing is not None
        bound = self._budget.limits[closing]
        used, what = self._budget.turns, "turns"
        if closing == "tool_calls":
            used, what = self._budget.calls, "calls of tools"
        message = f"its {bound:g} {what} are used up, and the model calls tools instead of answering"
        return _limited(closing, message, bound, used)

    def _plan(self, calls: Sequence[ToolCall]) -> Iterator[Planned]:
        for call in calls:
            call = self._with_own_id(call)
            if self._budget.left_calls <= 0:
                bound = self._budget.limits["tool_calls"]
                yield Planned(call, f"not called: no more than {bound:g} tools may be called (limits.tool_calls)")
                continue
            self._budget.left_calls -= 1
            self._budget.calls += 1
            usable = self._tools.get(call.name)
            if usable is None:
                yield Planned(call, self._unknown(call.name))
            elif call.arguments is None:
                said = f"its arguments must be a JSON object of at most {MAX_DEPTH} levels and {MAX_VALUES:,} values"
                yield Planned(call, f"{call.name}: {said}")
            else:
                yield Planned(call, None, usable.confirm)

    def _with_own_id(self, call: ToolCall) -> ToolCall:
        """The call under an id that no other call of the conversation has: servers refuse two of one id."""
        unique = self._ids.unique(call.id)
        return call if unique == call.id else replace(call, id=unique)

    def _unknown(self, name: str) -> str:
        near = nearest(name, list(self._tools))
        hint = f"did you mean {near!r}?" if near else f"the tools are: {', '.join(self._tools) or 'none'}"
        return f"there is no tool {name[:64]!r}; {cut(hint, 1024)}"

    def _add(self, message: Message) -> None:
        self._messages.append(message)
        self._characters += weight(message)


def may_open(budget: Budget) -> bool:
    """Whether another conversation could ask its model at all."""
    return budget.free_turns > 0


def _limited(name: Closing, said: str, bound: float | None, used: float | None) -> Failed:
    where = name if name in ("context_tokens", "max_output_tokens") else f"limits.{name}"
    return Failed(Code.MODEL_LIMIT, f"{said} ({where})", name, bound, used)


def weight(message: Message) -> int:
    """The characters of a message, of which a request with it has at least as many bytes."""
    match message:
        case System() | ToolResult():
            return len(message.text)
        case User():
            return sum(
                len(part.text) if isinstance(part, Text) else len(part.url or part.data) for part in message.parts
            )
    return len(message.text) + sum(len(call.raw) for call in message.calls)


def cut(text: str, bound: int) -> str:
    """At most so many bytes of a text; it says what is left out."""
    if len(text) <= bound // 4 or len(raw := text.encode(errors="replace")) <= bound:
        return text
    return f"{raw[:bound].decode(errors='ignore')}… ({len(raw) - bound:,} more bytes are left out)"


def too_large(characters: int, context_tokens: int, model: str) -> Failed | None:
    """The end of a run whose messages have so many characters, if that is more than the model reads."""
    tokens = -(-characters // _BYTES_A_TOKEN)
    if tokens <= context_tokens:
        return None
    said = f"the input has about {tokens:,} tokens, more than the model {model!r} reads"
    return _limited("context_tokens", said, context_tokens, tokens)


def without_fence(text: str) -> str:
    """The text in a fence of Markdown, where models like to put JSON."""
    text = text.strip()
    if not text.startswith("```") or not text.endswith("```") or "\n" not in text:
        return text
    return text.partition("\n")[2].removesuffix("```").strip()

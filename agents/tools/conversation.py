"""Carries out the run of a document: asks its model, makes its calls side by side, and runs the documents in it.

`agents.chatmd.run` decides each step. Nothing here holds a worker while a model thinks: the call of a script leases one
for as long as it runs. Cancelling a run cancels all of it, and drops the connection to the model.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import trio

from agents.agent import Call
from agents.asking import CannotAsk
from agents.chatmd.history import history, nested_in, size_of, size_of_all
from agents.chatmd.program import Declared, Nested, Part, Program, Unavailable, Words
from agents.chatmd.run import (
    RESULT_BYTES,
    Answered,
    AskModel,
    Budget,
    CallTools,
    CheckAnswer,
    Failed,
    Heard,
    Planned,
    Run,
    Step,
    Terms,
    Usable,
    Wait,
    may_open,
    too_large,
    without_fence,
)
from agents.code.calls import refusal
from agents.code.entries import Means
from agents.registry import OfferedTool, Registry
from agents.shapes.checked import CheckedSchema, TooMuchWork
from agents.tool import Called
from agents.toolbox import McpTools, Offered
from agents.toolbox.files import NAMES, FileBounds, file_tools
from agents.toolbox.servers import mcp_tools
from engine.config import ChatmdEntry
from engine.engine import Engine
from engine.errors import Code, LimitUse, Problem, limit_use, ungrouped
from engine.host.pieces import in_pieces
from engine.models.calling import CalledModel, LateAnswer, Models
from engine.models.reserving import FREE
from engine.models.shapes import MAX_VALUES, Answer, ModelFailed, Request, parsed
from engine.models.shapes import Tool as SentTool
from engine.spending.spending import RunSpending
from engine.tenant import BoundLimits
from sandbox.wire.limits import SPECS

# Calls of one turn that run at once; more wait.
SIDE_BY_SIDE = 64
# A script's answer with more bytes than this is not rendered for a model: four times what the model gets of it.
RENDERED_BYTES = 4 * RESULT_BYTES
# The highest rate measured with orjson 3.13, for nothing but quotes.
CPU_S_PER_BYTE = 3.6e-9

DOCUMENT_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


class DocumentFailed(Problem):
    """A run that ended without an answer. `closed_by` is the limit that closed it, if one did."""

    def __init__(self, failed: Failed, message: str, limit: LimitUse | None) -> None:
        super().__init__(failed.code, message, limit=limit)
        self.closed_by = failed.closed_by


@dataclass(slots=True)
class Shared:
    """What the conversations of one call share. `chain` are the tools in execution, this one included."""

    engine: Engine
    registry: Registry
    means: Means
    call: Call
    entry: ChatmdEntry
    chain: tuple[str, ...]
    bound: BoundLimits
    budget: Budget
    subject: str
    # Of documents and the files of keys beside them, those that its tools may read; None: all.
    own: frozenset[Path] | None = None
    spending: RunSpending | None = None
    _settled: trio.Event | None = None
    _reported: float = 0.0

    def report(self, message: str) -> None:
        """Progress on the caller's token: the part of the turns and calls that is used."""
        hear, budget = self.call.hearers.progress, self.budget
        if hear is None:
            return
        most = self.bound["model_turns"] + self.bound["tool_calls"] + 1
        # Calls of one turn are counted together, and begin one after the other.
        self._reported = max((budget.turns + budget.calls) / most, self._reported + (1 - self._reported) / 1000)
        hear(self._reported, message)

    def witness_refused(self, tool: str) -> None:
        """A row of the audit log: the model asked for a tool that it may not call. Its name alone, which it chose."""
        if (witness := self.engine.tool_witness) is not None:
            witness.refused(self.call.tenant, self.chain[-1], tool[:64])

    def witness_decision(self, tool: str, *, allowed: bool) -> None:
        """A row of the audit log: a person decided about a call."""
        if (witness := self.engine.tool_witness) is not None:
            witness.decided(self.call.tenant, self.chain[-1], tool[:64], allowed=allowed)

    def settle(self) -> None:
        """Wake the conversations that wait for tokens."""
        if self._settled is not None:
            self._settled.set()
            self._settled = None

    async def until_settled(self) -> None:
        """Wait for the end of a turn of another conversation."""
        self._settled = self._settled or trio.Event()
        await self._settled.wait()

    def problem(self, failed: Failed) -> "DocumentFailed":
        """The error for the caller."""
        limit: LimitUse | None = None
        if failed.closed_by in SPECS:
            limit = limit_use(self.bound, failed.closed_by, failed.used)
        elif failed.closed_by is not None and failed.bound is not None:
            limit = LimitUse(failed.closed_by, failed.bound, failed.used, "count", "engine")
        return DocumentFailed(failed, f"{self.subject}: {failed.message}", limit)


@dataclass(frozen=True, slots=True)
class _Open:
    """A conversation with the tools of its run, by name."""

    run: Run
    offered: Mapping[str, Offered]


@dataclass(frozen=True, slots=True)
class Conversation:
    """The conversation of one document with a model. `documents` are those that it may name.

    With `returns`, the last answer must be JSON that fits.
    """

    shared: Shared
    program: Program
    model: CalledModel
    documents: Mapping[str, Program]
    returns: Mapping[str, Any] | None = None
    checked: CheckedSchema | None = None

    async def answer(self, last: Sequence[Part]) -> Answered:
        """Run it to its end; `last` is the caller's message. Raises Problem."""
        async with self._opened(last) as opened:
            while not isinstance(step := self._step(opened.run), Answered):
                await self._carry_out(opened, step)
            return step

    async def first_step(self, last: Sequence[Part]) -> Step:
        """What the model would be asked first. Documents in messages are not run. Raises Problem."""
        async with self._opened(last, dry=True) as opened:
            step = self._step(opened.run)
            if isinstance(step, AskModel):
                opened.run.abandoned(step, Heard(0))
            return step

    @asynccontextmanager
    async def _opened(self, last: Sequence[Part], *, dry: bool = False) -> AsyncIterator[_Open]:
        shared, context = self.shared, self.model.entry.context_tokens
        if (failed := too_large(size_of_all(self.program) + size_of(last), context, self.model.name)) is not None:
            raise shared.problem(failed)
        answers = [await self._nested(each, dry) for each in nested_in(self.program)]
        last = [Words(await self._nested(each, dry)) if isinstance(each, Nested) else each for each in last]
        remote = [each for each in self.program.tools if each.kind == "mcp"]
        async with mcp_tools(remote, shared.means.servers, shared.call.tenant.id) as served:
            offered, missing = self._tools(served)
            if not may_open(shared.budget):
                raise Problem(Code.MODEL_LIMIT, "no turn of the model is left (limits.model_turns)")
            with shared.engine.work_for(shared.call.tenant):
                program = replace(self.program, unavailable=(*self.program.unavailable, *missing))
                messages = history(program, answers, last)
            usable = [
                Usable(SentTool(each.name, each.description, each.parameters), self._asks(each))
                for each in offered.values()
            ]
            run = Run(messages, usable, self._terms(), shared.budget)
            try:
                yield _Open(run, offered)
            finally:
                run.close()

    def _terms(self) -> Terms:
        entry, program = self.model.entry, self.program
        most = min(entry.max_output_tokens, program.max_output_tokens or entry.max_output_tokens)
        return Terms(
            self.model.name, self.model.request_bytes, most, entry.context_tokens,
            self.shared.bound.values.output_bytes, self.model.price, program.temperature, self.returns,
        )  # fmt: skip

    # ---- steps -------------------------------------------------------------------------------------------------

    def _step(self, run: Run) -> Step:
        """The next step. Rendering a request costs the tenant CPU time: here, and twice more while it is sent."""
        engine, tenant = self.shared.engine, self.shared.call.tenant
        with engine.work_for(tenant):
            step = run.next()
        if isinstance(step, AskModel):
            engine.charge(tenant, 2 * step.request_bytes * CPU_S_PER_BYTE)
        return step

    async def _carry_out(self, opened: _Open, step: Step) -> None:
        match step:
            case AskModel():
                await self._ask(opened.run, step)
            case CallTools():
                await self._call(opened, step)
            case CheckAnswer():
                opened.run.checked(await self._misfit(step.text))
            case Wait():
                await self.shared.until_settled()
            case Failed():
                raise self.shared.problem(step)

    async def _ask(self, run: Run, step: AskModel) -> None:
        """Send the request, and hear the answer. Whatever happens, its tokens are settled."""
        shared, model, share, heard = self.shared, self.model, step.share, Heard(step.request_bytes)
        assert shared.spending is not None  # a run is admitted before it asks
        shared.report(f"Turn {shared.budget.turns}")
        settle = run.abandoned
        try:
            with shared.spending.call(model.name, share.input, share.output, model.price) as spending:
                request = replace(step.request, max_output_tokens=min(share.output, spending.output))
                try:
                    async with self._asked(model).ask(request, heard.lose) as events:
                        async for event in events:
                            heard.hear(event)
                    settle = run.answered
                except LateAnswer:
                    spending.late = True
                    raise
                finally:
                    if heard.anything:
                        spending.used(heard.usage, (model.price or FREE).cost(heard.usage))
        finally:
            settle(step, heard)
            shared.settle()

    def _asked(self, model: CalledModel) -> CalledModel:
        """The model as it is asked: the caller's own by way of the call."""
        return model.answered_by(self._sampled) if model.entry.api == "client" else model

    async def _sampled(self, request: Request) -> Answer:
        """An answer of the caller's own model. Raises Problem `unavailable`, and ModelFailed."""
        ask = self.shared.call.ask
        try:
            if ask is None:
                raise CannotAsk("it has no way to be asked (sampling, over MCP of 2026-07-28)", missing="sampling")
            return await ask.sample(request)
        except CannotAsk as cannot:
            said = f"{self.shared.subject}: the model {self.model.name!r} is that of the caller: {cannot}"
            raise Problem(Code.UNAVAILABLE, said) from None

    async def _call(self, opened: _Open, step: CallTools) -> None:
        """Make the calls of a turn side by side. An error of one is its result."""
        results = [(planned.refused or "", True) for planned in step.calls]
        places = trio.CapacityLimiter(SIDE_BY_SIDE)

        async def one(at: int, planned: Planned) -> None:
            async with places:
                results[at] = await self._result(opened, planned)

        with ungrouped():
            async with trio.open_nursery() as nursery:
                for at, planned in enumerate(step.calls):
                    if planned.refused is None:
                        nursery.start_soon(one, at, planned)
                    elif planned.call.name not in opened.offered:
                        self.shared.witness_refused(planned.call.name)
        opened.run.results(results)

    async def _result(self, opened: _Open, planned: Planned) -> tuple[str, bool]:
        shared, called = self.shared, planned.call
        offered = opened.offered[called.name]
        around = shared.call
        inner = replace(around, hearers=around.hearers.of_nested(), callers=shared.chain)
        try:
            if planned.confirm:
                # As it will be called: the model's own text may say a key twice.
                await self._allowed(called.name, orjson.dumps(called.arguments).decode())
            shared.report(offered.name)
            return await offered.call(called.arguments or {}, inner), False
        except Problem as problem:
            return problem.message, True

    async def _allowed(self, name: str, arguments: str) -> None:
        """Raises Problem unless a person, who sees all of its arguments, allows the call."""
        ask = self.shared.call.ask
        try:
            if ask is None:
                raise CannotAsk("the caller has no way to be asked")
            allowed = await ask.confirm(name, arguments)
            self.shared.witness_decision(name, allowed=allowed)
            if allowed:
                return
            why = "a person refused this call"
        except CannotAsk as cannot:
            self.shared.witness_refused(name)
            why = f"a person must allow this call, and cannot be asked: {cannot}"
        raise Problem(Code.TOOL_NOT_ALLOWED, f"{name} was not called: {why}")

    async def _misfit(self, text: str) -> str | None:
        """What is wrong with an answer that must be JSON that fits `returns`."""
        assert self.checked is not None
        working = partial(self.shared.engine.work_for, self.shared.call.tenant)
        try:
            with working():
                value = parsed(without_fence(text))
            wrong = await in_pieces(self.checked.validating(value, working))
        except ModelFailed:
            return f"it is not JSON, or holds more than {MAX_VALUES:,} values"
        except TooMuchWork as much:
            return f"it is too large: {much}"
        if wrong is None:
            return None
        path = "".join(f".{part}" for part in wrong.path)[:200]
        return f"value{path} does not fit{f': {wrong.text}' if wrong.text else ''}"

    # ---- tools and documents -----------------------------------------------------------------------------------

    def _tools(self, served: McpTools) -> tuple[dict[str, Offered], list[Unavailable]]:
        """The tools of the run by name, the first of each name, and those that the document declares in vain."""
        found: dict[str, Offered] = {}
        missing: list[Unavailable] = []
        for declared in self.program.tools:
            for each in self._offered(declared):
                if isinstance(each, Unavailable):
                    missing.append(each)
                else:
                    found.setdefault(each.name, each)
        for each in served.offered:
            found.setdefault(each.name, each)
        return found, [*missing, *served.unavailable]

    def _offered(self, declared: Declared) -> Sequence[Offered | Unavailable]:
        """What a declaration gives, but for those of MCP servers."""
        shared, name = self.shared, declared.name
        match declared.kind:
            case "tenant":
                allowed, tenant = shared.entry.tools, shared.call.tenant
                if allowed is not None and name not in allowed:
                    return (Unavailable(name, "the configuration leaves it out (tools)"),)
                offered = shared.registry.tool(tenant.id, name, tenant.key)
                if offered is None:
                    return (Unavailable(name, "there is no such tool"),)
                return (_TenantTool(name, declared.description, offered),)
            case "document":
                return (_DocumentTool(name, declared.description, self, declared.path),)
            case "file":
                folder, bound = self.program.folder, shared.bound
                set_by = f"fs_bytes, set by the {bound.sources['fs_bytes']}"
                return file_tools(
                    declared, FileBounds(bound.values.fs_bytes, folder, set_by, shared.means.private, shared.own)
                )  # fmt: skip
        return ()

    def _asks(self, offered: Offered) -> bool:
        """Whether a person is asked before each call."""
        confirm = self.shared.entry.confirm
        if confirm == "destructive":
            return not offered.read_only and offered.destructive is not False
        return offered.name in {NAMES.get(name, name) for name in confirm}

    async def _nested(self, nested: Nested, dry: bool) -> str:
        """The answer of a document in a message. Raises Problem."""
        if dry:
            return f"(the answer of {nested.src})"
        return (await self.of(nested.path).answer(nested.parts)).text

    def of(self, path: str) -> "Conversation":
        """The conversation of another document, with its own model if it names one that the tenant has."""
        program = self.documents[path]
        tenant = self.shared.call.tenant.id
        name = chosen(self.shared.means.models, tenant, program.model)
        model = self.model if name is None else self.shared.means.models.model(name, tenant)
        return Conversation(self.shared, program, model, {**self.documents, **program.documents})


def chosen(models: Models, tenant: str, named: str | None) -> str | None:
    """The tenant's model that a document names: by its name here, else by its name at the server; None without one."""
    if named is None:
        return None
    mine = models.of(tenant)
    if named in mine:
        return named
    return next((name for name, entry in mine.items() if entry.model == named), None)


@dataclass(frozen=True, slots=True)
class _TenantTool:
    """A tool of the tenant, called by the same path as by every other caller, under its own grants."""

    name: str
    told: str
    offered: OfferedTool

    @property
    def description(self) -> str:
        return self.told or self.offered.tool.info.description

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"type": "object", **self.offered.tool.info.parameters}

    @property
    def read_only(self) -> bool:
        return self.offered.tool.info.read_only

    @property
    def destructive(self) -> bool | None:
        return self.offered.tool.info.destructive

    async def call(self, arguments: Mapping[str, Any], call: Call) -> str:
        refused = refusal(self.name, (self.name,), call.callers, len(call.callers), "agent")
        if refused is not None:
            raise Problem(Code.TOOL_NOT_ALLOWED, refused)
        return _text_of(await self.offered.call(arguments, call))


@dataclass(frozen=True, slots=True)
class _DocumentTool:
    """Another document, which begins afresh with each call. Its own tools say what they do."""

    name: str
    told: str
    around: Conversation
    path: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: DOCUMENT_PARAMETERS)
    read_only: bool = False
    destructive: bool | None = False

    @property
    def description(self) -> str:
        return self.told or self.around.documents[self.path].description

    async def call(self, arguments: Mapping[str, Any], call: Call) -> str:
        if unknown := next((key for key in arguments if key != "input"), None):
            raise Problem(Code.BAD_REQUEST, f"{self.name} has no parameter {unknown[:64]!r}")
        text = arguments.get("input")
        if not isinstance(text, str):
            raise Problem(Code.BAD_REQUEST, f"{self.name}: input must be a string")
        return (await self.around.of(self.path).answer((Words(text),))).text


def _text_of(called: Called) -> str:
    """A tool's answer for a model. Raises Problem for one that is too large to render."""
    if isinstance(called.value, str):
        return called.value
    if called.run is not None and (size := called.run.usage.bytes_out) > RENDERED_BYTES:
        raise Problem(Code.OUTPUT_LIMIT, f"its answer has {size:,} bytes; a model gets at most {RENDERED_BYTES:,}")
    try:
        return orjson.dumps(called.value).decode()
    except TypeError:  # an integer beyond 64 bits, of a tool in Python
        return json.dumps(called.value)

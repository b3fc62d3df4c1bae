"""Calls of tools that may outlive their request: those that ask their client, and those that become tasks.

A client of 2026-07-28 declares with each request what it can do. Where that is nothing of this, a call runs in the task
of its request (`server.mcp.handlers`). Otherwise it runs in the block of `Runs.opened`, and requests attach to it: the
call itself, then one for each round of questions. Without a request it waits for an answer, or it is a task, in both
cases for a bounded time. A client that leaves while its request is attached cancels the call.
"""

import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import Any, TypeVar

import mcp_types as t
import trio
from mcp.shared.exceptions import MCPError

from agents.agent import Call
from agents.asking import ROUNDS, CannotAsk
from agents.calls import Calls
from agents.tool import Called
from engine.errors import Code, Problem, leaf
from engine.host.memory import memory_for_process
from engine.models.shapes import Answer, Request
from engine.run import SILENT, CallRecord, Hearers, LogLine
from server.http.body_budget import Bodies
from server.http.large_values import Rendered, rendered
from server.logs import report
from server.mcp.asking import SHOWN, Able, Confirm, Form, Sample, cannot
from server.mcp.caller import Caller
from server.mcp.shapes import failure_of, meta_of
from server.mcp.task_states import EXTENSION, KEPT_S, LATE_S, Owner, Status, Table, Task
from server.problems import INVALID_PARAMS, internal, render_cpu_s, rpc_error

# A client has this long to answer; no run may take longer (the ceiling of `timeout_s`).
ANSWER_S = 300.0
# A tenant has at most this many calls that wait for an answer without being a task.
WAITING = 64
# Questions that a call asks side by side go to the client together, if they are asked within this time.
GATHER_S = 0.01
# What holds a task, besides its answer.
_RECORD_BYTES = 1024

Step = Callable[[Call], Awaitable[Called]]
Failed = Callable[[Exception], t.CallToolResult]
Show = Callable[[Rendered, Caller], t.CallToolResult]
Attach = AbstractAsyncContextManager[Call]
T = TypeVar("T")


class _Question:
    """One question under way."""

    def __init__(self, form: Form[Any]) -> None:
        self.form = form
        self.settled = trio.Event()
        self.response: t.InputResponse | None = None
        self.refusal: str | None = None

    def answer(self, response: t.InputResponse) -> None:
        self.response = response
        self.settled.set()

    def refuse(self, reason: str) -> None:
        self.refusal = self.refusal or reason
        self.settled.set()


class _Run:
    """One call. `error` is why it failed; `kept` is the answer of a task, `kept_meta` its `_meta`. It expires when no
    request is attached.
    """

    def __init__(self, caller: Caller, able: Able) -> None:
        self.owner = owner_of(caller)
        self.tenant = caller.tenant
        self.able = able
        # What its arguments take, which is counted once it is without a request: until then the guard counts them.
        self.body_bytes = 0 if caller.exchange is None else caller.exchange.body_bytes
        self.held_bytes = 0
        self.scope = trio.CancelScope()
        self.called: Called | None = None
        self.error: Exception | None = None
        self.finished = trio.Event()
        self.task: Task | None = None
        self.kept: Rendered | t.CallToolResult | MCPError | None = None
        self.kept_meta: dict[str, Any] | None = None
        self.kept_bytes = 0
        self.hearers = SILENT
        # Invariant: a request is attached, or `expires` is finite. `taken`: nothing will ask for it again.
        self.attached = True
        self.expires = math.inf
        self.taken = False
        # The pending questions in the order in which they were asked. A key is used once.
        self.questions: dict[str, _Question] = {}
        self.keys = count(1)
        self.rounds = 0
        self.state: str | None = None
        self._changed = trio.Event()

    def wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def changed(self) -> None:
        await self._changed.wait()

    def call(self, ask: "_Asker") -> Call:
        """The call as the tool gets it: its reports go to the attached request, if there is one."""
        return Call(self.tenant, Hearers(log=self._log, progress=self._progress, call=self._host_call), ask=ask)

    def _log(self, line: LogLine) -> None:
        if self.hearers.log is not None:
            self.hearers.log(line)

    def _progress(self, fraction: float, message: str | None) -> None:
        if self.hearers.progress is not None:
            self.hearers.progress(fraction, message)

    def _host_call(self, record: CallRecord) -> None:
        if self.hearers.call is not None:
            self.hearers.call(record)

    def requests(self) -> t.InputRequests:
        """The pending questions as they are sent."""
        return {key: each.form.request() for key, each in self.questions.items()}

    def asking_cpu_s(self) -> float:
        """About what it takes to send them."""
        return 2 * render_cpu_s(sum(each.form.size for each in self.questions.values()))

    def check(self, given: t.InputResponses) -> None:
        """Raises MCPError for an answer of another kind than its question. Answers to no question are ignored."""
        for key, response in given.items():
            question = self.questions.get(key)
            if question is not None and not question.form.fits(response):
                raise MCPError(INVALID_PARAMS, f"params.inputResponses.{key} does not answer what was asked")

    def answer(self, given: t.InputResponses) -> None:
        for key, response in given.items():
            if (question := self.questions.pop(key, None)) is not None:
                question.answer(response)

    def refuse(self, reason: str) -> None:
        """Refuse every pending question."""
        for question in self.questions.values():
            question.refuse(reason)
        self.questions.clear()

    def abandon(self) -> None:
        """End it: no client will ask for its answer."""
        self.taken = True
        self.scope.cancel()
        self.wake()


class _Asker:
    """`agents.asking.Ask` for one call."""

    def __init__(self, runs: "Runs", run: _Run) -> None:
        self._runs = runs
        self._run = run

    async def confirm(self, tool: str, arguments: str) -> bool:
        if not self._run.able.elicitation:
            raise cannot("elicitation")
        if len(arguments) > SHOWN:
            raise CannotAsk(f"the arguments have more than {SHOWN} characters, too many to show to a person")
        form = Confirm(tool, arguments)
        return form.read(await self._runs.ask(self._run, form))

    async def sample(self, request: Request) -> Answer:
        if not self._run.able.sampling:
            raise cannot("sampling")
        if request.tools and not self._run.able.sampling_tools:
            raise CannotAsk("the model of the client that called takes no tools (sampling.tools)", missing="sampling")
        form = Sample.of(request)
        return form.read(await self._runs.ask(self._run, form))


class Runs:
    """The calls that may outlive their requests. `opened` must be open while they are served."""

    def __init__(self, calls: Calls, show: Show, tell: Callable[[str], None]) -> None:
        """`show` makes the result of a kept answer; `tell` is called with the id of a task that has changed."""
        self._calls = calls
        self._show = show
        self._tell = tell
        self._runs: set[_Run] = set()
        self._parked: dict[str, _Run] = {}
        self._table = Table()
        self._of_task: dict[str, _Run] = {}
        # Bytes of the answers of tasks, and of questions. As for bodies: a sixteenth of the memory at most, half of it
        # for one tenant.
        self._room = Bodies(4 * 1024 * 1024, memory_for_process())
        self._draining = False
        self._nursery: trio.Nursery | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Inside the block, calls can be made; its end cancels them."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                yield
            finally:
                self._nursery = None
                nursery.cancel_scope.cancel()

    def __len__(self) -> int:
        return len(self._runs)

    def drain(self) -> None:
        """Ask no more questions, as no answer would be taken; end the calls that wait for one."""
        self._draining = True
        for run in list(self._runs):
            run.refuse("the server is shutting down")
            if run.task is None and not run.attached:
                run.abandon()

    async def settle(self, deadline: float) -> None:
        """Wait until the calls have ended, and end the rest at the deadline (trio's clock)."""
        with trio.move_on_at(deadline):
            for run in list(self._runs):
                await run.finished.wait()
        for run in list(self._runs):
            run.abandon()

    # ---- requests ------------------------------------------------------------------------------------------------

    async def start(self, caller: Caller, able: Able, step: Step, failed: Failed, attach: Attach) -> "_Outcome":
        """Make a call. `failed` makes the result of an error, and may raise MCPError; `attach` is the request's."""
        assert self._nursery is not None
        run = _Run(caller, able)
        self._runs.add(run)
        self._nursery.start_soon(self._serve, run, step, failed)
        return await self._attached(run, attach)

    async def resume(
        self, caller: Caller, able: Able, state: str, given: t.InputResponses, attach: Attach
    ) -> "_Outcome":
        """Go on with a call whose questions are answered. Raises MCPError for a state that was used, or is unknown."""
        run = self._parked.get(state)
        if run is None or run.owner != owner_of(caller):
            # As `RequestStateBoundary` says it of a forged one.
            raise MCPError(INVALID_PARAMS, "Invalid or expired requestState", {"reason": "invalid_request_state"})
        run.check(given)
        del self._parked[state]
        run.state, run.able = None, able
        run.answer(given)
        run.attached, run.expires = True, math.inf
        run.wake()
        return await self._attached(run, attach)

    async def _attached(self, run: _Run, attach: Attach) -> "_Outcome":
        """What the attached request is answered with. Raises what the call raised."""
        left = True
        try:
            async with attach as call:
                run.hearers = call.hearers
                try:
                    answer = await self._next(run)
                finally:
                    run.hearers = SILENT
            left = False
        finally:
            run.attached = False
            if left:
                run.abandon()
            run.wake()
        if answer is not None:
            return answer
        if run.error is not None:
            raise run.error
        if run.called is None:
            raise Problem(Code.UNAVAILABLE, "the server is shutting down")
        return run.called

    async def _next(self, run: _Run) -> "t.InputRequiredResult | dict[str, Any] | None":
        """Wait for the end of the call (None), for questions, or until the call is late and becomes a task."""
        late = trio.current_time() + LATE_S if run.able.tasks else math.inf
        while not run.finished.is_set():
            if run.questions:
                await trio.sleep(GATHER_S)
                if run.questions and (asked := self._asked(run)) is not None:
                    return asked
                continue
            if trio.current_time() >= late:
                if (created := self._created(run)) is not None:
                    return created
                late = math.inf
            with trio.move_on_at(late):
                await run.changed()
        run.taken = True
        return None

    def _asked(self, run: _Run) -> "t.InputRequiredResult | dict[str, Any] | None":
        """What brings the pending questions to the client; None if nothing does, and they are refused."""
        if run.rounds < ROUNDS and self._holds(run):
            run.rounds += 1
            run.state = secrets.token_hex(16)
            self._parked[run.state] = run
            run.expires = trio.current_time() + ANSWER_S
            return t.InputRequiredResult(input_requests=run.requests(), request_state=run.state)
        if run.able.tasks and (created := self._created(run)) is not None:
            return created
        if run.rounds >= ROUNDS:
            run.refuse(f"the call has asked its client {ROUNDS} times, and clients answer no more")
        run.refuse("too many calls wait for an answer")
        return None

    def _holds(self, run: _Run) -> bool:
        """Whether there is room for a call without a request; counts it."""
        if not run.held_bytes:
            size = _RECORD_BYTES + run.body_bytes
            if self._room.add_answer(run.owner.tenant, size) is not None:
                return False
            run.held_bytes = size
        return True

    def _release(self, run: _Run) -> None:
        self._room.remove(run.owner.tenant, run.held_bytes)
        run.held_bytes = 0

    def _created(self, run: _Run) -> dict[str, Any] | None:
        """The result that makes a task of a call; None if its tenant has as many as it may, or none would be kept."""
        if self._draining or not self._holds(run):
            return None
        task = self._table.add(secrets.token_hex(16), run.owner, time.time())
        if task is None:
            self._release(run)
            return None
        run.task, run.expires = task, trio.current_time() + KEPT_S
        self._of_task[task.id] = run
        if run.questions:
            task.move("input_required", time.time())
        return {"resultType": "task", **task.told()}

    # ---- the call ------------------------------------------------------------------------------------------------

    async def _serve(self, run: _Run, step: Step, failed: Failed) -> None:
        """One call, from its start until nothing will ask for its answer. Its arguments are freed when it has ended."""
        try:
            with run.scope:
                try:
                    async with self._calls.published(run.tenant):
                        run.called = await step(run.call(_Asker(self, run)))
                except Exception as error:
                    cause = leaf(error)
                    run.error = cause if isinstance(cause, Exception) else error
            del step
            self._release(run)
            run.refuse("the call has ended")
            if run.called is None and run.error is None:  # cancelled
                if run.task is None:
                    return
            elif run.task is not None:
                await self._keep(run, run.task, failed)
            del failed
            run.finished.set()
            run.wake()
            while not run.taken and trio.current_time() < run.expires:
                with trio.move_on_at(run.expires):
                    await run.changed()
        finally:
            run.finished.set()
            run.wake()
            self._forget(run)

    async def _keep(self, run: _Run, task: Task, failed: Failed) -> None:
        """Keep the answer of a task that has ended, if there is room."""
        status: Status = "completed"
        try:
            if run.error is not None:
                run.kept = failed(run.error)
            else:
                assert run.called is not None
                run.kept = (await rendered(run.called.value)).compact()
                run.kept_meta = meta_of(run.called)
        except Exception as error:
            cause = leaf(error)
            problem = cause if isinstance(cause, Problem) else internal(report(cause, "tools/call"))
            run.kept = cause if isinstance(cause, MCPError) else MCPError(*rpc_error(problem))
            status = "failed"
        size = _RECORD_BYTES + (run.kept.size if isinstance(run.kept, Rendered) else 0)
        if (refused := self._room.add_answer(run.owner.tenant, size)) is None:
            run.kept_bytes = size
        else:
            run.kept = failure_of(Problem(Code.UNAVAILABLE, f"the answer was not kept: {refused.message}"))
        run.called = run.error = None
        message = run.kept.error.message if isinstance(run.kept, MCPError) else None
        if task.move(status, time.time(), message):
            self._tell(task.id)

    def _forget(self, run: _Run) -> None:
        self._runs.discard(run)
        self._release(run)
        if run.state is not None:
            self._parked.pop(run.state, None)
        if run.task is not None:
            self._table.remove(run.task)
            self._of_task.pop(run.task.id, None)
        if run.kept_bytes:
            self._room.remove(run.owner.tenant, run.kept_bytes)

    # ---- questions -----------------------------------------------------------------------------------------------

    async def ask(self, run: _Run, form: Form[T]) -> t.InputResponse:
        """The client's answer. Raises CannotAsk."""
        self._admit(run)
        tenant, size = run.owner.tenant, _RECORD_BYTES + form.size
        if (refused := self._room.add_answer(tenant, size)) is not None:
            raise CannotAsk(f"too many questions wait for an answer: {refused.message}")
        key, question = f"q{next(run.keys)}", _Question(form)
        run.questions[key] = question
        try:
            self._moved(run)
            with trio.move_on_after(ANSWER_S):
                await question.settled.wait()
            if not question.settled.is_set():
                if run.task is None and not run.attached:  # its client does not come back
                    run.abandon()
                    await trio.lowlevel.checkpoint()
                raise CannotAsk(f"the client did not answer within {ANSWER_S:g} s")
        finally:
            run.questions.pop(key, None)
            self._room.remove(tenant, size)
            self._moved(run)
        if question.response is None:
            raise CannotAsk(question.refusal or "the client did not answer")
        return question.response

    def _admit(self, run: _Run) -> None:
        if self._draining:
            raise CannotAsk("the server is shutting down")
        if run.task is not None or run.questions:
            return
        tenant = run.owner.tenant
        waiting = sum(each.owner.tenant == tenant and each.task is None and bool(each.questions) for each in self._runs)
        if waiting >= WAITING:
            raise CannotAsk(f"{WAITING} calls of this tenant wait for an answer already")

    def _moved(self, run: _Run) -> None:
        """The questions of a call have changed."""
        task = run.task
        if task is not None and task.move("input_required" if run.questions else "working", time.time()):
            self._tell(task.id)
        run.wake()

    # ---- tasks ---------------------------------------------------------------------------------------------------

    def known(self, caller: Caller, ids: Iterable[str]) -> list[str]:
        """Those of these ids that are tasks of the caller."""
        owner = owner_of(caller)
        return [each for each in dict.fromkeys(ids) if self._table.find(each, owner) is not None]

    def detail(self, caller: Caller, id: str) -> dict[str, Any]:
        """What a task is doing, with its questions or its answer. Raises MCPError for an unknown id."""
        run, task = self._find(caller, id)
        told = task.told()
        if task.status == "input_required":
            caller.charge(run.asking_cpu_s())
            told["inputRequests"] = {key: _dumped(each) for key, each in run.requests().items()}
        elif task.status in ("completed", "failed"):
            match run.kept:
                case Rendered():
                    result = self._show(run.kept, caller)
                    result.meta = run.kept_meta
                    told["result"] = _dumped(result)
                case t.CallToolResult():
                    told["result"] = _dumped(run.kept)
                case MCPError():
                    told["error"] = run.kept.error.model_dump(mode="json", exclude_none=True)
        return told

    def update(self, caller: Caller, id: str, given: t.InputResponses) -> None:
        """Take answers to a task's questions. Raises MCPError."""
        run, _ = self._find(caller, id)
        run.check(given)
        run.answer(given)
        self._moved(run)

    def cancel(self, caller: Caller, id: str) -> None:
        """Cancel a task that has not ended. Raises MCPError for an unknown id."""
        run, task = self._find(caller, id)
        if task.move("cancelled", time.time()):
            self._tell(id)
            run.scope.cancel()

    def _find(self, caller: Caller, id: str) -> tuple[_Run, Task]:
        task = self._table.find(id, owner_of(caller))
        if task is None:
            raise MCPError(INVALID_PARAMS, "there is no such task, or it has expired")
        return self._of_task[id], task


_Outcome = Called | t.InputRequiredResult | dict[str, Any]


def owner_of(caller: Caller) -> Owner:
    """To whom a caller's calls belong."""
    return Owner(caller.tenant.id, caller.agent, caller.tenant.reader)


def lacking_tasks() -> MCPError:
    """The error for a request about tasks whose client has not declared that it knows them."""
    needs: Mapping[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
    text = f"the client must declare the extension {EXTENSION} with the request"
    return MCPError(t.MISSING_REQUIRED_CLIENT_CAPABILITY, text, dict(needs))


def _dumped(model: Any) -> dict[str, Any]:
    dumped: dict[str, Any] = model.model_dump(by_alias=True, mode="json", exclude_none=True)
    return dumped

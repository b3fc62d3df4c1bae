"""Host calls: what a script may request of the supervisor, each behind a grant. Nothing is granted by default.

A family is one file here: its calls, each with a schema that arguments must pass before a handler sees them, and
`FAMILY`, by which it is found (`families.py`). Each host call also has a row in `sandbox/wire/surface.py`, from which
the function that scripts call is made.
"""

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog
import trio

from engine.bridge.mocks import Mocks, reply_to
from engine.bridge.room import SMALL_BYTES, VALUE_BYTES, Hold, NoRoom, Room, Rooms
from engine.egress.secrets import NO_REFERENCES, References
from engine.names import nearest
from engine.packed import packed_values
from engine.run import SILENT, Hearers, RunRequest, Usage
from engine.scheduling.turns import Turn
from engine.values import drained, encode_value
from engine.work import WORK
from sandbox.wire.messages import HostReply

log = structlog.get_logger("engine.bridge")

# Arguments up to this size are decoded without counting: 64 calls of a run make at most 20 MiB of objects from them.
SMALL_ARGUMENTS = 4 * 1024
# Decoding so many takes up to 13 ms (lists nested in lists), counting 5 ms, writing as JSON 2 ms (measured).
MAX_VALUES = WORK["arguments"].max_values or 0
# Bound on an error that a script sees, in characters: texts of handlers and of the decoder may repeat its input.
MAX_ERROR = 2048
# CPU time for each byte of an answer beyond `SMALL_BYTES`: encoded as msgpack, put into a frame, sent (measured).
ANSWER_BYTE_S = 3e-9


class CallRefused(Exception):
    """The call cannot be answered; the text is raised in the script, where pcall can catch it. Safe to show."""


class CallDenied(CallRefused):
    """The call asks for something that the script was not granted: the audit log has a row for it."""


class HostContext(msgspec.Struct, frozen=True):
    """The run that a handler acts for: its request, its name in logs, and its log (`level`, `text`).

    `remaining` is what is left of `timeout_s`, `cpu_s` and `host_calls`; `charge` takes the cost of a nested run;
    `turn` is the turn that both share, `room` what the run's calls hold in memory: both None in tests of handlers.
    `secrets` are the run's placeholders, `hearers` its caller's.
    """

    request: RunRequest
    run_id: str
    log: Callable[[str, str], None]
    remaining: Callable[[], Mapping[str, float]]
    charge: Callable[[Usage], None]
    turn: Turn | None = None
    room: Room | None = None
    secrets: References = NO_REFERENCES
    hearers: Hearers = SILENT

    def hold(self) -> Hold:
        """One call's part of the run's room, empty at first. The caller must release it."""
        return Hold(self.room or Room(Rooms(), self.request.tenant.id, self.request.limits.values))

    def worked(self, cpu_s: float) -> None:
        """Charge the run for CPU time of the supervisor beyond the flat charge for each call."""
        self.charge(Usage(cpu_s=cpu_s))
        if self.turn is not None:
            self.turn.worked(cpu_s)


@dataclass(frozen=True, slots=True)
class HostFunction:
    """One host call: its name (also its grant), the msgspec Struct of its arguments, and its handler.

    The handler returns JSON data (bytes are allowed, too, and become a Lua string) or raises CallRefused.
    `at_once` bounds the calls of its family (the name before the dot) that one tenant may have under way; more wait.
    """

    name: str
    arguments: type[msgspec.Struct]
    handler: Callable[[HostContext, Any], Awaitable[Any]]
    at_once: int | None = None


@dataclass(slots=True)
class _Gate:
    """The semaphore of one tenant's calls of one family; `users` counts those under way or waiting."""

    semaphore: trio.Semaphore
    users: int = 0


class Bridge:
    """The table of host calls. `call` never raises because of a script: it answers with an error text."""

    def __init__(self, functions: Iterable[HostFunction]) -> None:
        self._functions = {function.name: function for function in functions}
        # Invariant: exactly the tenants and families with a call under way or waiting.
        self._gates: dict[tuple[str, str], _Gate] = {}
        self.names = frozenset(self._functions)
        # Called for every call that asks for more than was granted, with the call's name.
        self.on_denied: Callable[[RunRequest, str], None] | None = None
        # Answers calls in place of their handlers, for an author who tries a script; never set in a server.
        self.mocks: Mocks | None = None
        # Serializes the decoding of large arguments.
        self._large = trio.Lock()
        # Tried first: it fails for names that the call does not have, so that the warning costs valid calls nothing.
        self._exact = {name: msgspec.msgpack.Decoder(_exact(f.arguments)) for name, f in self._functions.items()}
        self._decoders = {name: msgspec.msgpack.Decoder(f.arguments) for name, f in self._functions.items()}
        self._rooms = Rooms()

    def room(self, request: RunRequest) -> Room:
        """The room for the host calls of a new run. The caller must close it when the run has ended."""
        return Room(self._rooms, request.tenant.id, request.limits.values)

    async def call(self, context: HostContext, name: str, arguments: bytes) -> HostReply:
        """Check the grant, then the arguments, then answer. While a call waits for its turn, its arguments are held.

        A reply of more than `SMALL_BYTES` counts against the run's room until `taken`.
        """
        request = context.request
        function = self._functions.get(name)
        if function is None:
            return _error(f"there is no host call {name[:64]!r}")
        if self.mocks is not None and request.method is not None:
            mocked = await self._mocked(self.mocks, context, name, arguments)
            if mocked is not None:
                return mocked
        if name not in request.grants:
            self._denied(request, name)
            if request.method is None:  # the script is being described, with nothing granted
                return _error(f"{name} cannot be called while a script is loaded, only inside its functions")
            return _error(f"{name} is not granted to {request.name!r}")
        hold = None
        try:
            if len(arguments) > SMALL_ARGUMENTS:
                hold = context.hold()
                hold.take(len(arguments))
            if function.at_once is None:
                return await self._answer(context, function, arguments, hold)
            async with self._turn(request.tenant.id, name.partition(".")[0], function.at_once):
                return await self._answer(context, function, arguments, hold)
        except CallRefused as refused:
            if isinstance(refused, CallDenied):
                self._denied(request, name)
            return _error(f"{name}: {refused}")
        except NoRoom as none:
            return _error(f"{name}: {none}")
        except Exception:
            log.exception("host call failed", call=name, tenant=request.tenant.id, script=request.name)
            return _error(f"{name}: internal error of the engine; see its log")
        finally:
            if hold is not None:
                hold.release()

    def parameters(self, name: str) -> tuple[str, ...]:
        """The names of a host call's arguments."""
        return self._functions[name].arguments.__struct_fields__

    async def _mocked(self, mocks: Mocks, context: HostContext, name: str, arguments: bytes) -> HostReply | None:
        """The answer of the row that matches; None if there is none, and the real call is made."""
        await trio.lowlevel.checkpoint()
        began_s = time.thread_time()
        try:
            if drained(packed_values(arguments, MAX_VALUES)) > MAX_VALUES:
                raise CallRefused(f"the arguments hold more than {MAX_VALUES} values")
            given = msgspec.msgpack.decode(arguments)
            row = mocks.answering(name, given)
            context.worked(time.thread_time() - began_s)
            if row is None and not mocks.only:
                return None
            if row is None or row.error is not None:
                raise CallRefused(mocks.refuse(name, given) if row is None else row.error)
            return self._reply(context, reply_to(row, given))
        except (CallRefused, NoRoom, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as refused:
            return _error(f"{name}: {refused}")

    def taken(self, context: HostContext, reply: HostReply) -> None:
        """The worker has this reply: stop counting it."""
        if context.room is not None and len(reply.value) > SMALL_BYTES:
            context.room.give(len(reply.value))

    async def _answer(
        self, context: HostContext, function: HostFunction, arguments: bytes, hold: Hold | None
    ) -> HostReply:
        if hold is not None:
            # One at a time, with a checkpoint: 64 calls of one run may come at once, and each may take 10 ms.
            async with self._large:
                await trio.lowlevel.checkpoint()
        # No local variable for the decoded arguments: a handler that waits can free them.
        found = await function.handler(
            context,
            self._decoded_small(context, function.name, arguments)
            if hold is None
            else await self._decoded_large(context, function.name, arguments, hold),
        )
        return self._reply(context, found)

    def _reply(self, context: HostContext, found: Any) -> HostReply:
        value = encode_value(found)
        if len(value) > SMALL_BYTES:
            context.worked(len(value) * ANSWER_BYTE_S)
            if context.room is not None:
                context.room.take(len(value))
        return HostReply(True, value)

    def _decoded_small(self, context: HostContext, name: str, arguments: bytes) -> Any:
        """As `_decoded`, with a warning for a name that the call does not have. Only small ones are decoded twice."""
        try:
            return self._exact[name].decode(arguments)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            decoded = self._decoded(name, arguments)
            if (unknown := _UNKNOWN.match(str(error))) is not None:
                known = list(self._functions[name].arguments.__struct_fields__)
                context.log("warn", f"{name}: {_misspelt(unknown[1], known)}")
            return decoded

    def _decoded(self, name: str, arguments: bytes) -> Any:
        try:
            return self._decoders[name].decode(arguments)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CallRefused(_readable(error)) from None

    async def _decoded_large(self, context: HostContext, name: str, arguments: bytes, hold: Hold) -> Any:
        """As `_decoded`, for large arguments: counts their values first, and charges the run for the time.

        There is a checkpoint after counting and after decoding, each of which takes up to 20 ms.
        """
        began_s = time.thread_time()
        values = drained(packed_values(arguments, MAX_VALUES))
        context.worked(time.thread_time() - began_s)
        if values > MAX_VALUES:
            raise CallRefused(
                f"the arguments hold more than {MAX_VALUES} values; send them as text (json.encode), or in parts"
            )
        hold.take(values * VALUE_BYTES)
        await trio.lowlevel.checkpoint()
        began_s = time.thread_time()
        try:
            decoded = self._decoded(name, arguments)
        finally:
            context.worked(time.thread_time() - began_s)
        await trio.lowlevel.checkpoint()
        return decoded

    def _denied(self, request: RunRequest, name: str) -> None:
        if self.on_denied is not None:
            self.on_denied(request, name)

    @asynccontextmanager
    async def _turn(self, tenant: str, family: str, at_once: int) -> AsyncIterator[None]:
        """Bound the tenant's calls of this family. Slow calls of one tenant never delay those of another."""
        gate = self._gates.get((tenant, family))
        if gate is None:
            gate = self._gates[tenant, family] = _Gate(trio.Semaphore(at_once))
        gate.users += 1
        try:
            try:
                gate.semaphore.acquire_nowait()
            except trio.WouldBlock:
                await gate.semaphore.acquire()
            try:
                yield
            finally:
                gate.semaphore.release()
        finally:
            gate.users -= 1
            if gate.users == 0:
                del self._gates[tenant, family]


# msgspec's error for the first name that a call does not have.
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


def _exact(arguments: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The same arguments, where an unknown name is an error."""
    return msgspec.defstruct(arguments.__name__, (), bases=(arguments,), forbid_unknown_fields=True)


def _misspelt(name: str, known: list[str]) -> str:
    near = nearest(name, known)
    hint = f"did you mean {near!r}?" if near else f"the options are {', '.join(known)}"
    return f"unknown option {name[:64]!r} is ignored; {hint}"


def _error(text: str) -> HostReply:
    return HostReply(False, _cut(text).encode("utf-8", "replace"))


def _cut(text: str) -> str:
    """The text, without its middle if it is too long."""
    return text if len(text) <= MAX_ERROR else f"{text[: MAX_ERROR // 2]}…{text[-MAX_ERROR // 4 :]}"


def _readable(error: Exception) -> str:
    """msgspec's text in Lua's terms: `limit: expected number or nil, got string`. It may quote the script's input."""
    text, _, path = _cut(str(error)).partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    if not path and (missing := _MISSING.fullmatch(text)) is not None:
        return f"{missing[1]} is nil: it is required"
    text = text.replace("Object missing", "table missing").replace("object missing", "table missing")
    text = re.sub(r"`([^`]*)`", lambda match: _in_lua(match[1]), text[:1].lower() + text[1:])
    return f"{path}: {text}" if path else text


_MISSING = re.compile(r"Object missing required field `(\w+)`")
_LUA_TYPES = {
    "int": "number",
    "float": "number",
    "str": "string",
    "bytes": "string that is not UTF-8",
    "null": "nil",
    "None": "nil",
    "bool": "boolean",
    "array": "list",
}


def _in_lua(types: str) -> str:
    names = [_LUA_TYPES.get(name, "table" if name == "object" else f"'{name}'") for name in types.split(" | ")]
    return " or ".join(dict.fromkeys(names))

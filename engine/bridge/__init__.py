"""Host calls: what a script may ask of the supervisor, each behind a grant. Granted to nobody by default.

A family is one file here: its calls, with the argument schema that is checked before a handler sees anything. Adding
a host call touches that file and a test.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog
import trio

from engine.protocol import encode_value
from engine.run import RunRequest, Usage
from engine.turns import Turn
from sandbox.messages import HostReply

log = structlog.get_logger("engine.bridge")


class CallRefused(Exception):
    """The call cannot be answered; the text is raised in the script, where pcall can catch it. Safe to show."""


class CallDenied(CallRefused):
    """The call asks for something that the script was not granted: the audit log has a row for it."""


class HostContext(msgspec.Struct, frozen=True):
    """On whose behalf a handler acts: the run, its name in logs, and its log (`level`, `text`).

    `left` is what the run has left of `timeout_s`, `cpu_s` and `host_calls`; `charge` takes what a run cost that was
    made on its behalf; `turn` is the turn at computing that both share, None in tests of handlers.
    """

    request: RunRequest
    run_id: str
    log: Callable[[str, str], None]
    left: Callable[[], Mapping[str, float]]
    charge: Callable[[Usage], None]
    turn: Turn | None = None


@dataclass(frozen=True, slots=True)
class HostFunction:
    """One host call: its name (also its grant), the msgspec Struct of its arguments, and who answers it.

    The handler returns JSON data (bytes are allowed too, and arrive as a Lua string) or raises CallRefused.
    `at_once` is how many calls of its family (the name before the dot) one tenant may have under way; others wait.
    """

    name: str
    arguments: type[msgspec.Struct]
    handler: Callable[[HostContext, Any], Awaitable[Any]]
    at_once: int | None = None


@dataclass(slots=True)
class _Gate:
    """How many calls of one family a tenant has under way or waiting, and the semaphore that they pass."""

    semaphore: trio.Semaphore
    users: int = 0


class Bridge:
    """The table of host calls. `call` never raises for what a script does: it answers with an error text."""

    def __init__(self, functions: Iterable[HostFunction]) -> None:
        self._functions = {function.name: function for function in functions}
        # Invariant: an entry for every tenant and family with a call under way or waiting, and no other.
        self._gates: dict[tuple[str, str], _Gate] = {}
        self.names = frozenset(self._functions)
        # Told of every call that asked for what was not granted, with its name.
        self.on_denied: Callable[[RunRequest, str], None] | None = None
        self._decoders = {name: msgspec.msgpack.Decoder(f.arguments) for name, f in self._functions.items()}

    async def call(self, context: HostContext, name: str, arguments: bytes) -> HostReply:
        """Check the grant, then the arguments, then answer."""
        request = context.request
        function = self._functions.get(name)
        if function is None:
            return _error(f"there is no host call {name[:64]!r}")
        if name not in request.grants:
            self._denied(request, name)
            return _error(f"{name} is not granted to {request.name!r}")
        try:
            decoded = self._decoders[name].decode(arguments)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return _error(f"{name}: {_readable(error)}")
        try:
            if function.at_once is None:
                return HostReply(True, encode_value(await function.handler(context, decoded)))
            async with self._turn(request.tenant.id, name.partition(".")[0], function.at_once):
                return HostReply(True, encode_value(await function.handler(context, decoded)))
        except CallRefused as refused:
            if isinstance(refused, CallDenied):
                self._denied(request, name)
            return _error(f"{name}: {refused}")
        except Exception:
            log.exception("host call failed", call=name, tenant=request.tenant.id, script=request.name)
            return _error(f"{name}: internal error of the engine; its log says more")

    def _denied(self, request: RunRequest, name: str) -> None:
        if self.on_denied is not None:
            self.on_denied(request, name)

    @asynccontextmanager
    async def _turn(self, tenant: str, family: str, at_once: int) -> AsyncIterator[None]:
        """A place among the tenant's calls of this family: one tenant's slow calls delay no other's."""
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


def _error(text: str) -> HostReply:
    return HostReply(False, text.encode("utf-8", "replace"))


def _readable(error: Exception) -> str:
    """msgspec's text in Lua's words: `limit: expected number or nil, got string`."""
    text, _, path = str(error).partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    text = text.replace("Object missing", "table missing").replace("object missing", "table missing")
    text = re.sub(r"`([^`]*)`", lambda match: _in_lua(match[1]), text[:1].lower() + text[1:])
    return f"{path}: {text}" if path else text


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

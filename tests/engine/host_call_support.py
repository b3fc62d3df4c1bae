"""One family of host calls on its own: the table, a run that calls, and what it is answered."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from engine.bridge import Bridge, HostContext, HostFunction
from engine.run import Authority, RunRequest, Script
from engine.tenant import DEFAULT_TENANT, Tenant, bind_limits


@dataclass
class Caller:
    """A run of `test` that is granted everything in the table; `lines` is what was logged on its behalf."""

    bridge: Bridge
    authority: Authority
    limits: Mapping[str, float] = field(default_factory=dict)
    tenant: Tenant = DEFAULT_TENANT
    lines: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def of(cls, functions: Iterable[HostFunction], authority: Authority, **how: Any) -> "Caller":
        return cls(Bridge(functions), authority, **how)

    async def answer(self, name: str, /, **arguments: Any) -> tuple[bool, Any]:
        """Whether the call was answered, and its value or the error text."""
        request = RunRequest(
            tenant=self.tenant,
            name="test",
            script=Script.from_source("t.lua", b""),
            root="agent",
            method="resolve",
            limits=bind_limits(self.limits, self.tenant, {}, {}),
            grants=self.bridge.names,
            authority=self.authority,
        )
        context = HostContext(
            request, "run-1", lambda level, text: self.lines.append((level, text)), dict, lambda usage: None
        )
        reply = await self.bridge.call(context, name, msgspec.msgpack.encode(arguments))
        return reply.ok, msgspec.msgpack.decode(reply.value) if reply.ok else reply.value.decode()

    async def value(self, name: str, /, **arguments: Any) -> Any:
        ok, value = await self.answer(name, **arguments)
        assert ok, value
        return value

    async def refusal(self, name: str, /, **arguments: Any) -> str:
        ok, text = await self.answer(name, **arguments)
        assert not ok, text
        assert isinstance(text, str)
        return text

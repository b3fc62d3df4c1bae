"""A loaded Lua script, agent, tool or connector: runs its functions for a caller."""

from dataclasses import dataclass
from typing import Any, Literal

from agents.agent import Call
from agents.code.failure import RunFailed
from engine.config import ScriptEntry
from engine.egress.redaction import Redactor
from engine.egress.secrets import MissingSecret
from engine.engine import Engine
from engine.errors import Code, Problem
from engine.run import Authority, RunRequest, RunResult, Script
from sandbox.wire.outcome import Outcome
from sandbox.wire.surface import granted

# The error codes for failures of the script itself.
_SCRIPT_ERROR = {"agent": Code.AGENT_ERROR, "tool": Code.TOOL_ERROR, "connector": Code.TOOL_ERROR}


@dataclass(frozen=True, slots=True)
class LuaScript:
    """A script under its configured name, with its limits and its own keys.

    `secrets` are the names of the tenant's secrets that it may use; None: all of them. `version` is that of a published
    one.
    """

    name: str
    root: Literal["agent", "tool", "connector"]
    script: Script
    entry: ScriptEntry
    engine: Engine
    redactor: Redactor
    secrets: frozenset[str] | None = frozenset()
    version: str = ""

    def same(self, other: "LuaScript") -> bool:
        """Whether the other is the same script with the same configuration and secrets."""
        return (self.script, self.entry, self.secrets) == (other.script, other.entry, other.secrets)

    def authority(self, tools: tuple[str, ...]) -> Authority:
        """What the configuration grants the script, and the tools that it may call."""
        return Authority(
            hosts=self.entry.allow_hosts,
            env=frozenset(self.entry.env),
            folder=str(self.entry.path.parent),
            tools=tools,
            secrets=self.secrets,
            kv=f"{self.root}:{self.name}" if self.entry.kv else None,
            sources=self.entry.sources,
            labels=frozenset(self.entry.labels),
        )

    async def run(
        self,
        method: str,
        args: tuple[Any, ...],
        call: Call,
        authority: Authority,
        limits: dict[str, float] | None = None,
        *,
        with_config: bool = False,
    ) -> RunResult:
        """Call a function of the script in a worker, under its own limits or `limits`. The result's outcome is ok.

        `with_config` passes its own keys after `args`. Raises Problem: `agent_error` or `tool_error` (also for a secret
        that its keys name and its tenant does not have), those of limits, and those of admission.
        """
        request = RunRequest(
            tenant=call.tenant,
            name=self.name,
            script=self.script,
            root=self.root,
            method=method,
            args=args,
            config=self.entry.extra,
            config_last=with_config,
            limits=self.engine.limits_for(self.entry.limits if limits is None else limits, call.tenant),
            grants=granted(self.root, self.engine.host_calls),
            authority=authority,
            masked=self.redactor.secrets,
            callers=self._callers(call),
            version=self.version,
        )
        try:
            result = await self.engine.execute(request, call.inside, call.hearers)
        except MissingSecret as missing:
            raise Problem(_SCRIPT_ERROR[self.root], self._missing(missing, call)) from None
        if result.outcome is not Outcome.OK:
            raise RunFailed(result, _SCRIPT_ERROR[self.root], self._subject)
        return result

    def wrong_shape(self, result: RunResult, what: str) -> Problem:
        """The error of a run that ended well with an answer of the wrong shape. `what` names the path in it."""
        return Problem(_SCRIPT_ERROR[self.root], f"{self._subject}: {what}", run_id=result.run_id)

    def _missing(self, missing: MissingSecret, call: Call) -> str:
        why = missing.trouble or f"tenant '{call.tenant.id}' has none of that name, or it is not granted to this script"
        return f"{self._subject}: its key {missing.key} names the secret '{missing.name}': {why}"

    def _callers(self, call: Call) -> tuple[str, ...]:
        around = call.callers or (() if call.inside is None else call.inside.request.callers)
        if around[-1:] == (self.name,):  # an agent as a tool has already added its own name
            return around
        return (*around, self.name) if around or call.inside is not None else ()

    @property
    def _subject(self) -> str:
        return f"{self.root} '{self.name}'"

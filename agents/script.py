"""A loaded Lua script, whatever it declares: how its functions are run on behalf of a caller."""

from dataclasses import dataclass
from typing import Any, Literal

from agents import calls
from agents.agent import Call
from agents.failure import RunFailed
from engine.bridge import env, fs, http, knowledge, sleep
from engine.config import ScriptEntry
from engine.egress import parse_rule
from engine.engine import Engine
from engine.errors import Code, Problem
from engine.redaction import Redactor
from engine.run import Authority, RunRequest, RunResult, Script
from engine.secrets import MissingSecret, References
from sandbox.outcome import Outcome

# What every script may ask for. What a call then reaches is up to the script's authority: nothing but the caller's own
# documents, where nothing was granted by name.
GRANTS = knowledge.GRANTS | http.GRANTS | env.GRANTS | fs.GRANTS | sleep.GRANTS | calls.GRANTS

# What a failure of the script itself is called.
_SCRIPT_ERROR = {"agent": Code.AGENT_ERROR, "tool": Code.TOOL_ERROR}


@dataclass(frozen=True, slots=True)
class LuaScript:
    """A script under the name that the configuration gives it, with its limits and its own keys.

    `secrets` are the names of those that it may use of whoever it runs for; None: all of them.
    """

    name: str
    root: Literal["agent", "tool"]
    script: Script
    entry: ScriptEntry
    engine: Engine
    redactor: Redactor
    secrets: frozenset[str] | None = frozenset()

    def same(self, other: "LuaScript") -> bool:
        """Whether the other is this very script, under the same configuration."""
        return (self.script, self.entry, self.secrets) == (other.script, other.entry, other.secrets)

    def authority(self, tools: tuple[str, ...]) -> Authority:
        """What the configuration grants the script, and the tools that it may call."""
        return Authority(
            hosts=tuple(parse_rule(text) for text in self.entry.allow_hosts),
            env=frozenset(self.entry.env),
            folder=self.entry.path.parent,
            tools=tools,
            secrets=self.secrets,
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
        """Call a function of the script in a worker, under its own limits or these. The result's outcome is ok.

        `with_config` gives it its own keys behind `args`. Raises Problem: `agent_error` or `tool_error` (also for a
        secret that its keys name and its tenant has not), those of limits, and what admission refuses.
        """
        vault = await self.engine.secrets.vault(call.tenant.id)
        secrets = References(vault, authority.secrets)
        try:
            config = secrets.placed(self.entry.extra)
        except MissingSecret as missing:
            raise Problem(_SCRIPT_ERROR[self.root], self._missing(missing, secrets, call)) from None
        result = await self.engine.execute(
            RunRequest(
                tenant=call.tenant,
                name=self.name,
                script=self.script,
                root=self.root,
                method=method,
                args=(*args, config) if with_config else args,
                config=config,
                limits=self.engine.limits_for(self.entry.limits if limits is None else limits, call.tenant),
                grants=GRANTS,
                authority=authority,
                redactor=vault.redactor(self.redactor),
                secrets=secrets,
                callers=self._callers(call),
                on_progress=call.on_progress,
                on_log=call.on_log,
                on_call=call.on_call,
            ),
            call.inside,
        )
        if result.outcome is not Outcome.OK:
            raise RunFailed(result, _SCRIPT_ERROR[self.root], self._subject)
        return result

    def wrong_shape(self, result: RunResult, what: str) -> Problem:
        """The run ended well, but its answer is not what this kind of script must return. `what` names the path."""
        return Problem(_SCRIPT_ERROR[self.root], f"{self._subject}: {what}", run_id=result.run_id)

    def _missing(self, missing: MissingSecret, secrets: References, call: Call) -> str:
        why = secrets.trouble or f"tenant '{call.tenant.id}' has none of that name, or it is not granted to this script"
        return f"{self._subject}: its key {missing.key} names the secret '{missing.name}': {why}"

    def _callers(self, call: Call) -> tuple[str, ...]:
        around = call.callers or (() if call.inside is None else call.inside.request.callers)
        if around[-1:] == (self.name,):  # an agent as a tool has named itself already
            return around
        return (*around, self.name) if around or call.inside is not None else ()

    @property
    def _subject(self) -> str:
        return f"{self.root} '{self.name}'"

"""A loaded Lua script, whatever it declares: how its functions are run on behalf of a caller."""

from dataclasses import dataclass
from typing import Any, Literal

from agents.agent import Call
from agents.failure import RunFailed
from engine.bridge import knowledge
from engine.config import ScriptEntry
from engine.engine import Engine
from engine.errors import Code, Problem
from engine.run import RunRequest, RunResult, Script
from sandbox.outcome import Outcome

# What every script may ask for: the caller's own documents. All else is granted by name.
GRANTS = knowledge.GRANTS

# What a failure of the script itself is called.
_SCRIPT_ERROR = {"agent": Code.AGENT_ERROR, "tool": Code.TOOL_ERROR}


@dataclass(frozen=True, slots=True)
class LuaScript:
    """A script under the name that the configuration gives it, with its limits and its own keys."""

    name: str
    root: Literal["agent", "tool"]
    script: Script
    entry: ScriptEntry
    engine: Engine

    async def run(self, method: str, args: tuple[Any, ...], call: Call) -> RunResult:
        """Call a function of the script in a worker. The result's outcome is ok.

        Raises Problem: `agent_error` or `tool_error`, those of limits, and what admission refuses.
        """
        result = await self.engine.execute(
            RunRequest(
                tenant=call.tenant,
                name=self.name,
                script=self.script,
                root=self.root,
                method=method,
                args=args,
                config=self.entry.extra,
                limits=self.engine.limits_for(self.entry.limits, call.tenant),
                grants=GRANTS,
                on_progress=call.on_progress,
                on_log=call.on_log,
            )
        )
        if result.outcome is not Outcome.OK:
            raise RunFailed(result, _SCRIPT_ERROR[self.root], self._subject)
        return result

    def wrong_shape(self, result: RunResult, what: str) -> Problem:
        """The run ended well, but its answer is not what this kind of script must return. `what` names the path."""
        return Problem(_SCRIPT_ERROR[self.root], f"{self._subject}: {what}", run_id=result.run_id)

    @property
    def _subject(self) -> str:
        return f"{self.root} '{self.name}'"

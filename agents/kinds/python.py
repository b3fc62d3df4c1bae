"""Python agents: an author's async `resolve(args, context)`, run in this process."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agents.agent import Agent, AgentInfo, Call, Resolved
from agents.code.authoring import Context
from agents.code.entries import Loading, Place
from agents.code.kind import Kind, declared_info
from agents.code.python import PythonCode
from agents.kinds.lua import COMPLETE_S
from agents.shapes.shape import JSON, WrongShape, agent_declaration, agent_prompt, completions
from engine.config import PythonEntry


@dataclass(frozen=True, slots=True)
class PythonAgent:
    """An agent that an author's object describes and resolves."""

    info: AgentInfo
    code: PythonCode

    @classmethod
    def from_code(cls, code: PythonCode) -> "PythonAgent":
        """The agent as its object declares it, narrowed by its configuration. Raises WrongShape and Unusable."""
        said = agent_declaration(code.declared("tools", "arguments"), JSON)
        return cls(declared_info(code.name, "python", said, code.entry), code)

    async def complete(self, argument: str, value: str, given: Mapping[str, str], call: Call) -> tuple[str, ...] | None:
        """Await the author's `complete`, if there is one. Raises Problem as `resolve` does."""
        if getattr(self.code.target, "complete", None) is None:
            return None

        async def step(context: Context) -> Any:
            return await self.code.target.complete(argument, value, dict(given), context)

        answer = await self.code.run(step, call, self.info.tools, method="complete", within_s=COMPLETE_S)
        try:
            return completions(answer.value, JSON)
        except WrongShape as wrong:
            raise self.code.wrong_shape(answer.run_id, str(wrong)) from None

    async def resolve(self, arguments: Mapping[str, Any], call: Call) -> Resolved:
        """Await the author's `resolve`. Raises Problem: agent_error, timeout, output_limit."""

        async def step(context: Context) -> Any:
            return await self.code.target.resolve(dict(arguments), context)

        answer = await self.code.run(step, call, self.info.tools)
        try:
            return Resolved(agent_prompt(answer.value, self.info.tools, JSON))
        except WrongShape as wrong:
            raise self.code.wrong_shape(answer.run_id, str(wrong)) from None


async def _load(place: Place, entry: PythonEntry, loading: Loading) -> Agent:
    return PythonAgent.from_code(await loading.code(place, entry))


KIND = Kind(table="python", load=_load)

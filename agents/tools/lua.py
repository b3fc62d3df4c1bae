"""Lua tools: `tool.execute(params, context)`, run in a worker for every call, under the tool's own grants."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from agents.agent import Call
from agents.checked import CheckedSchema
from agents.parameters import check_answer
from agents.schema import parameters_schema, returns_schema, with_defaults
from agents.script import LuaScript
from agents.shape import ToolAnnotations, ToolDeclaration, WrongShape, narrowed
from agents.tool import Called, ToolInfo
from engine.run import Authority


@dataclass(frozen=True, slots=True)
class LuaTool:
    """A tool that a script describes and executes."""

    info: ToolInfo
    script: LuaScript
    authority: Authority
    _answers: CheckedSchema | None

    @classmethod
    def of(cls, script: LuaScript, said: ToolDeclaration, *, compiles: bool = False) -> "LuaTool":
        """A tool as it described itself. Raises WrongShape without `execute`, or for schemas that are none.

        `compiles` says that its schemas were compiled before.
        """
        if "execute" not in said.functions:
            raise WrongShape("tool.execute is missing or not a function")
        returns = returns_schema(said.returns, compiles=compiles)
        authority = script.authority(narrowed(said.tools, script.entry.tools))
        hints = said.annotations or ToolAnnotations()
        # Whoever may neither reach a host nor call a tool can change nothing: the sandbox sees to that.
        harmless = not authority.hosts and not authority.tools
        info = ToolInfo(
            name=script.name,
            title=said.title,
            description=said.description if said.description is not None else f"Lua tool: {script.name}",
            builtin=False,
            parameters=parameters_schema(said.parameters, compiles=compiles),
            returns=returns,
            read_only=harmless and not hints.destructive if hints.read_only is None else hints.read_only,
            destructive=hints.destructive,
            idempotent=hints.idempotent,
            open_world=False if harmless and hints.open_world is None else hints.open_world,
        )
        return cls(info, script, authority, None if returns is None else CheckedSchema(returns))

    async def execute(self, params: Mapping[str, Any], call: Call) -> Called:
        """Run `tool.execute`. Raises Problem `tool_error` and those of limits, or what admission refuses."""
        given = with_defaults(self.info.parameters, params)
        result = await self.script.run("execute", (given,), call, self.authority)
        try:
            check_answer(self._answers, result.value, partial(self.script.engine.work_for, call.tenant))
        except WrongShape as wrong:
            raise self.script.wrong_shape(result, str(wrong)) from None
        return Called(result.value, result)

"""Lua tools: `tool.execute(params, context)`, run in a worker for every call, under the tool's own grants."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agents.agent import Call
from agents.code.entries import Loading, Place
from agents.code.kind import Kind, Packages
from agents.code.making import Made, Making
from agents.code.script import LuaScript
from agents.package import Package
from agents.shapes.checked import CheckedSchema
from agents.shapes.parameters import checking_answer
from agents.shapes.schema import parameters_schema, returns_schema, with_defaults
from agents.shapes.shape import ToolAnnotations, ToolDeclaration, WrongShape, missing, narrowed, tool_declaration
from agents.tool import Called, Tool, ToolInfo, envelope_warnings
from engine.config import ScriptEntry
from engine.host.pieces import in_pieces
from engine.run import Authority


@dataclass(frozen=True, slots=True)
class LuaTool:
    """A tool that a script describes and executes."""

    info: ToolInfo
    script: LuaScript
    authority: Authority
    _answers: CheckedSchema | None

    @classmethod
    def from_declaration(cls, script: LuaScript, said: ToolDeclaration, *, compiles: bool = False) -> "LuaTool":
        """The tool as its script declares it. Raises WrongShape without `execute`, or for invalid schemas.

        `compiles` is true if its schemas have been compiled before.
        """
        if "execute" not in said.functions:
            raise WrongShape(missing("tool", "execute", said.functions))
        returns = returns_schema(said.returns, compiles=compiles)
        authority = script.authority(narrowed(said.tools, script.entry.tools))
        hints = said.annotations or ToolAnnotations()
        # A script that may reach no host, call no tool and set no keys has no side effects: the sandbox ensures that.
        harmless = not authority.hosts and not authority.tools and authority.kv is None
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
        """Run `tool.execute`. Raises Problem: `tool_error`, those of limits, and those of admission."""
        given = with_defaults(self.info.parameters, params)
        result = await self.script.run("execute", (given,), call, self.authority)
        try:
            if self._answers is not None:
                working = partial(self.script.engine.work_for, call.tenant)
                await in_pieces(checking_answer(self._answers, result.value, working))
        except WrongShape as wrong:
            raise self.script.wrong_shape(result, str(wrong)) from None
        return Called(result.value, result)


async def _load(place: Place, entry: ScriptEntry, loading: Loading) -> Tool:
    script = await loading.script(place, entry)
    before = loading.tool_before(place, entry)
    if isinstance(before, LuaTool) and before.script.same(script):
        return before
    said = tool_declaration(await loading.described(script))
    tool = LuaTool.from_declaration(script, said)
    loading.note_name(place, said.name)
    loading.note_beyond(place, said.tools, entry.tools)
    return tool


def _make(package: Package, said: object, making: Making) -> Made[Tool]:
    declared = tool_declaration(said)
    allowed, warnings = making.allowed(package, declared.tools)
    tool = LuaTool.from_declaration(making.script(package, allowed), declared, compiles=making.compiles)
    warnings += envelope_warnings(tool.info)
    tool = replace(
        tool, authority=replace(tool.authority, folder=None if making.folder is None else str(making.folder))
    )
    return Made(tool, warnings, making.folder)


KIND = Kind(
    table="script",
    load=_load,
    watched=lambda entry: (entry.path,),
    packages=Packages("lua", tool_declaration, _make),
)

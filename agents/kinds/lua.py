"""Lua agents: `agent.resolve(args, config, context)`, run in a worker for every prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agents.agent import Agent, AgentInfo, Call, Resolved
from agents.code.entries import Loading, Place
from agents.code.kind import Kind, Packages, declared_info
from agents.code.making import Made, Making
from agents.code.script import LuaScript
from agents.package import Package
from agents.persona import Captured
from agents.shapes.shape import (
    AgentDeclaration,
    WrongShape,
    agent_declaration,
    agent_prompt,
    completions,
    missing,
    turn_answer,
)
from agents.tools.builtin import NAMES as BUILTIN_NAMES
from engine.config import ScriptEntry
from engine.errors import Code, Problem
from engine.run import Authority, Hearers, RunResult, Script

# The deadline of a completion: the user is typing, and a later answer is of no use.
COMPLETE_S = 3.0


@dataclass(frozen=True, slots=True)
class LuaAgent:
    """An agent that a script describes and resolves."""

    info: AgentInfo
    script: LuaScript
    authority: Authority
    completes: bool
    # Whether it gives prompts, and whether it may be a member of a team: at least one of them.
    resolves: bool = True
    takes_turns: bool = False

    @classmethod
    def from_declaration(cls, script: LuaScript, said: AgentDeclaration) -> "LuaAgent":
        """The agent as its script declares it, narrowed by its configuration. Raises WrongShape without `resolve` and
        `on_messages`.
        """
        resolves, takes_turns = "resolve" in said.functions, "on_messages" in said.functions
        if not resolves and not takes_turns:
            raise WrongShape(missing("agent", "resolve", said.functions))
        info = declared_info(script.name, "lua", said, script.entry)
        if not resolves:
            info = info.model_copy(update={"expose": ()})
        completes = "complete" in said.functions
        return cls(info, script, script.authority(info.tools), completes, resolves, takes_turns)

    async def complete(self, argument: str, value: str, given: Mapping[str, str], call: Call) -> tuple[str, ...] | None:
        """Run `agent.complete`, if there is one. Raises Problem as `resolve` does."""
        if not self.completes:
            return None
        own = self.script.entry.limits
        limits = {**own, "timeout_s": min(COMPLETE_S, own.get("timeout_s", COMPLETE_S))}
        result = await self.script.run("complete", (argument, value, dict(given)), call, self.authority, limits)
        try:
            return completions(result.value)
        except WrongShape as wrong:
            raise self.script.wrong_shape(result, str(wrong)) from None

    async def resolve(self, arguments: Mapping[str, Any], call: Call) -> Resolved:
        """Run `agent.resolve`. Raises Problem: `agent_error`, those of limits, and those of admission."""
        if not self.resolves:
            raise Problem(Code.BAD_REQUEST, f"agent '{self.info.name}' has no prompt: it is a member of teams")
        result = await self.script.run("resolve", (dict(arguments),), call, self.authority, with_config=True)
        try:
            return Resolved(agent_prompt(result.value, self.info.tools), result)
        except WrongShape as wrong:
            raise self.script.wrong_shape(result, str(wrong)) from None

    # ---- as a member of a team ---------------------------------------------------------------------------------

    def captured(self) -> Captured:
        """Its script. Raises Problem bad_request without `on_messages`."""
        if not self.takes_turns:
            raise Problem(
                Code.BAD_REQUEST,
                f"persona: the script of {self.info.name!r} has no agent.on_messages(messages, state, context)",
            )
        script = self.script.script
        return Captured("lua", "", self.info.tools, (script.source, script.modules))

    async def take_turn(
        self,
        text: Any,
        messages: Sequence[Any],
        state: Any,
        call: Call,
        hearers: Hearers,
        tools: Sequence[str] | None = None,
    ) -> tuple[Any, str | None, RunResult]:
        """Run `agent.on_messages` of a script as it was captured: the new state, the output, and the run.

        It may call its tools that are among `tools`, None: all. Raises Problem as `resolve` does.
        """
        source, modules = text
        script = replace(self.script, script=Script.from_source(self.script.script.name, source, modules))
        call = replace(call, hearers=hearers)
        authority = self.authority
        if tools is not None:
            authority = replace(authority, tools=tuple(name for name in authority.tools if name in tools))
        result = await script.run("on_messages", (list(messages), state), call, authority)
        try:
            state, output = turn_answer(result.value)
        except WrongShape as wrong:
            raise script.wrong_shape(result, str(wrong)) from None
        return state, output, result


async def _load(place: Place, entry: ScriptEntry, loading: Loading) -> Agent:
    script = await loading.script(place, entry)
    before = loading.agent_before(place, entry)
    if isinstance(before, LuaAgent) and before.script.same(script):
        return before
    said = agent_declaration(await loading.described(script))
    agent = LuaAgent.from_declaration(script, said)
    loading.note_name(place, said.name)
    loading.note_beyond(place, said.tools, entry.tools)
    return agent


def _harmless(entry: ScriptEntry, agent: Agent) -> bool:
    """Whether its script reaches no host, and no tool with side effects, and keeps nothing."""
    return not entry.allow_hosts and not entry.kv and BUILTIN_NAMES.issuperset(agent.info.tools)


def _make(package: Package, said: object, making: Making) -> Made[Agent]:
    declared = agent_declaration(said)
    allowed, warnings = making.allowed(package, declared.tools)
    agent = LuaAgent.from_declaration(making.script(package, allowed), declared)
    info = agent.info
    if package.arguments is not None:
        info = info.model_copy(update={"arguments": package.arguments})
    authority = replace(agent.authority, folder=None if making.folder is None else str(making.folder))
    return Made(replace(agent, info=info, authority=authority), warnings, making.folder)


KIND = Kind(
    table="script",
    load=_load,
    watched=lambda entry: (entry.path,),
    harmless=_harmless,
    packages=Packages("lua", agent_declaration, _make),
)

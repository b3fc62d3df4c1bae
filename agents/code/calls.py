"""`context.call_tool`: a script calls a tool of its own list, by the same path as every other caller."""

from dataclasses import replace
from typing import Any

import msgspec

from agents.agent import Call
from agents.registry import Registry
from engine.bridge import CallDenied, CallRefused, HostContext, HostFunction
from engine.engine import MAX_DEPTH
from engine.errors import Problem
from engine.run import RunRequest

CALL_TOOL = "context.call_tool"
GRANTS = frozenset({CALL_TOOL})


class CallToolArguments(msgspec.Struct):
    name: str
    params: dict[str, Any] = {}


def functions(registry: Registry) -> tuple[HostFunction, ...]:
    """The host functions of this family, bound to a registry, which may be filled later."""

    async def call_tool(context: HostContext, arguments: CallToolArguments) -> Any:
        request, name = context.request, arguments.name
        refused = refusal(name, request.authority.tools, chain_of(request), len(request.callers), request.root)
        if refused is not None:
            raise (CallRefused if name in request.authority.tools else CallDenied)(refused)
        offered = registry.tool(request.tenant.id, name, request.tenant.key)
        if offered is None:
            raise CallRefused(f"no tool registered with name: {name[:128]}")
        call = Call(replace(request.tenant, reader=request.reader), context.hearers.of_nested(), inside=context)
        try:
            return (await offered.call(arguments.params, call)).value
        except Problem as problem:
            raise CallRefused(problem.message) from None

    return (HostFunction(CALL_TOOL, CallToolArguments, call_tool),)


def chain_of(request: RunRequest) -> tuple[str, ...]:
    """The tools in execution around the calls of this run, itself included; outermost first."""
    return request.callers or ((request.name,) if request.root == "tool" else ())


def around(call: Call) -> tuple[str, ...]:
    """The tools in execution around a call from a script or from Python code; outermost first."""
    return call.callers or (() if call.inside is None else chain_of(call.inside.request))


def refusal(name: str, listed: tuple[str, ...], chain: tuple[str, ...], depth: int, root: str) -> str | None:
    """Why an agent or tool (`root`) with these tools may not call the tool `name` inside this chain, or None."""
    if name not in listed:
        return _not_listed(name, listed, root)
    if name in chain:
        return f"'{name}' calls itself: {' -> '.join((*chain, name))}"
    if depth >= MAX_DEPTH:
        return f"tools may call tools {MAX_DEPTH} deep: {' -> '.join((*chain, name))}"
    return None


def _not_listed(name: str, tools: tuple[str, ...], root: str) -> str:
    listed = f"its tools are {', '.join(tools)}" if tools else "it lists none"
    return f"'{name[:64]}' is not in {root}.tools, or its configuration leaves it out with tools = [...]; {listed}"

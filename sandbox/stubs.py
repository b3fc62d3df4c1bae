"""Lua source of the functions that make host calls, from the list in `sandbox/wire/surface.py`."""

from collections.abc import Iterable

from sandbox.wire.surface import HostCall

# Tables that `core.lua` makes with functions of its own, and those whose functions are made elsewhere.
_THERE = ("json",)
_ELSEWHERE = ("context", "context.team", "kv")


def module(calls: Iterable[HostCall]) -> str:
    """The prelude's module `host`. No function makes a tail call, so that a refusal names the script's line."""
    lines = ["local host_call = (...).host_call", "return {"]
    for call in calls:
        if call.stub == "made":
            arguments = ", ".join(f"{name} = {name}" for name in call.parameters)
            asked = f'host_call("{call.name}", {{ {arguments} }})'
            body = f"local answer = {asked} return answer" if call.answers else asked
            lines.append(f'["{call.name}"] = function({", ".join(call.parameters)}) {body} end,')
    return "\n".join([*lines, "}"])


def libraries(calls: Iterable[HostCall]) -> str:
    """Statements that put the functions into `env`; those of `context` are made for each run, those of `kv` when one is
    first read.
    """
    members: dict[str, list[str]] = {}
    beside: list[str] = []
    for call in calls:
        if call.library not in _ELSEWHERE:
            made = f'stub("host", "{call.name}")' if call.stub == "made" else f'stub("{call.stub}", "{call.member}")'
            if call.library in _THERE:
                beside.append(f"env.{call.name} = {made}")
            else:
                members.setdefault(call.library, []).append(f"{call.member} = {made}")
    alone = [f"env.{given}" for given in members.pop("", [])]
    tables = [f"env.{library} = {{ {', '.join(given)} }}" for library, given in members.items()]
    return "\n".join([*tables, *beside, *alone])

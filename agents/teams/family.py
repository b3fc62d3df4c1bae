"""`context.team`: the tools of a turn, for the script that runs it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from agents.shapes.parameters import Parameters
from agents.teams.catalog import IN_A_TURN, TeamTool
from engine.bridge import CallRefused, HostContext, HostFunction
from engine.errors import Problem
from engine.host.pieces import in_pieces

PREFIX = "context.team."
GRANTS = frozenset(PREFIX + tool.name for tool in IN_A_TURN)


class TeamArguments(msgspec.Struct):
    given: dict[str, Any] | list[Any] = {}


def functions() -> tuple[HostFunction, ...]:
    """The family. It acts for the turn that the run is, and for none in a run that is no turn."""
    return tuple(_function(tool) for tool in IN_A_TURN)


def _function(tool: TeamTool) -> HostFunction:
    parameters = Parameters(tool.own_parameters)

    async def call(context: HostContext, arguments: TeamArguments) -> Any:
        turn = context.hearers.team
        if turn is None:
            raise CallRefused("this run is no turn of a team: context.team is for agent.on_messages")
        given = arguments.given if isinstance(arguments.given, dict) else {}  # Lua has one empty table
        try:
            await in_pieces(parameters.checking(given, partial(_working, context)))
            return await turn.call(tool.name, given)
        except Problem as problem:
            raise CallRefused(problem.message) from None

    return HostFunction(PREFIX + tool.name, TeamArguments, call)


@contextmanager
def _working(context: HostContext) -> Iterator[None]:
    """A block whose CPU time is the run's."""
    began_s = time.thread_time()
    try:
        yield
    finally:
        context.worked(time.thread_time() - began_s)

"""Reading a script's declaration: in a worker, under normal limits and a short deadline, with nothing granted."""

import re
from typing import Literal

from engine.engine import Engine
from engine.errors import Problem
from engine.run import RunRequest, Script
from engine.tenant import Tenant
from sandbox.wire.outcome import Outcome

# The top level of a script is for declarations; one that takes longer computes (docs/scripting.md).
DESCRIBE_TIMEOUT_S = 2.0


# Outcomes that are not the author's fault: a worker was killed, by the kernel for memory or by an operator.
_LOST = frozenset({Outcome.WORKER_LOST, Outcome.CANCELLED})


class Undescribed(Exception):
    """A script whose declaration cannot be read. `line` is set if known; `refused` if the engine did not run it."""

    def __init__(self, message: str, outcome: Outcome, line: int | None = None, refused: Problem | None = None) -> None:
        super().__init__(message)
        self.message, self.outcome, self.line, self.refused = message, outcome, line, refused

    @property
    def lost(self) -> bool:
        """Whether the worker was lost, which says nothing about the script."""
        return self.outcome in _LOST


async def describe(
    name: str, script: Script, root: Literal["agent", "tool", "connector"], engine: Engine, tenant: Tenant
) -> object:
    """The plain fields of the table that the script declares; the tenant pays for the run. Raises Undescribed.

    If the worker is lost, the script is run once more in another one.
    """
    try:
        return await _ask(name, script, root, engine, tenant)
    except Undescribed as undescribed:
        if not undescribed.lost:
            raise
    return await _ask(name, script, root, engine, tenant)


async def _ask(
    name: str, script: Script, root: Literal["agent", "tool", "connector"], engine: Engine, tenant: Tenant
) -> object:
    asked = {"timeout_s": DESCRIBE_TIMEOUT_S}
    try:
        result = await engine.execute(
            RunRequest(
                tenant=tenant, name=name, script=script, root=root, method=None,
                limits=engine.limits_for(asked, tenant),
            )
        )  # fmt: skip
    except Problem as problem:  # admission refused: the engine is too small or too busy
        raise Undescribed(problem.message, Outcome.REJECTED, refused=problem) from None
    if result.outcome is Outcome.OK:
        return result.value
    assert result.failure is not None
    found = re.match(rf"{re.escape(script.name)}:(\d+):", result.failure.message)
    raise Undescribed(result.failure.message, result.outcome, int(found[1]) if found else None)

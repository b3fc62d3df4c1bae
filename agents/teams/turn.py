"""A turn that runs in this process: its seat, from the lease to the commit."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agents.persona import Captured
from agents.teams import effects, turn_tools, views
from agents.teams.personas import captured_of
from agents.teams.service import Teams, define
from agents.teams.steps import Spawn, Staged
from agents.teams.wording import Shown
from engine.errors import Code, Problem
from engine.tenant import Tenant
from storage.teams import rows as stored
from storage.teams.events import AgentCreated, TurnCommitted
from storage.teams.rows import Agent, Rows
from storage.teams.store import TeamFile

# Bound on what an agent keeps from turn to turn, as it stands in the file.
STATE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Taken:
    """A turn that was leased: all that its runner needs."""

    team: int
    team_name: str
    agent: Agent
    created: AgentCreated
    captured: Captured | None
    messages: tuple[Shown, ...]
    # What the agent kept from its last turn.
    state: Any
    tenant: Tenant
    lease: str
    # The bound on a message, and on the output.
    message_bytes: float


def taken(rows: Rows, lease: effects.Lease, tenant: Tenant, digest: str) -> Taken:
    """What a runner needs of a turn that was leased just now. `tenant` reads what the team reads."""
    agent = lease.agent
    created = rows.event(agent.seq)
    assert isinstance(created, AgentCreated)
    before = None if agent.memory is None else rows.event(agent.memory)
    return Taken(
        rows.number, rows.name, agent, created, captured_of(rows, agent) if agent.definition else None,
        tuple(views.shown(rows, each) for each in lease.messages),
        before.state if isinstance(before, TurnCommitted) else None, tenant, digest,
        rows.budget["message_bytes"],
    )  # fmt: skip


@dataclass(slots=True)
class RunningTurn:
    """One turn, while its runner works. `staged` is what its commit will do; nothing of it is kept before."""

    taken: Taken
    teams: Teams
    file: TeamFile
    staged: Staged = field(default_factory=Staged)
    tools: list[tuple[str, bool, float]] = field(default_factory=list)

    async def call(self, name: str, given: Mapping[str, Any]) -> Any:
        """A tool of the turn. Raises Problem."""
        if name not in turn_tools.TOOLS:
            raise Problem(Code.BAD_REQUEST, f"{name} is no tool of a turn")
        given = {key: value for key, value in given.items() if value is not None}
        if name == "spawn_agent":
            tenant = self.taken.tenant
            given = self.teams.with_persona(tenant, given, self.taken.agent)

        def work(rows: Rows, agent: Agent) -> Any:
            return turn_tools.answer(rows, agent, self.staged, name, given)

        found = await self._read(work)
        if name == "spawn_agent" and (persona := given["content"]).digest:
            # Content without an agent is removed with the next team that is deleted.
            await self._change(lambda rows, agent: define(rows, persona))
        return found

    async def commit(self, output: str | None, state: Any = None) -> None:
        """End the turn well. Raises LeaseLost, and Problem conflict."""
        await self._change(
            lambda rows, agent: effects.commit(
                rows, agent, self.staged.steps, output=output, state=state, tools=self.tools
            )
        )

    async def fail(self, why: str) -> None:
        """End the attempt. Raises LeaseLost."""
        await self._change(lambda rows, agent: effects.fail(rows, agent, why))

    async def release(self, why: str, wait_s: float) -> None:
        """Give the turn back: this was no attempt. Raises LeaseLost."""
        await self._change(lambda rows, agent: effects.release(rows, agent, why, wait_s))

    @property
    def spawns(self) -> list[Spawn]:
        """The agents that it creates."""
        return [step for step in self.staged.steps if isinstance(step, Spawn)]

    async def _read(self, work: Callable[[Rows, Agent], Any]) -> Any:
        return await self.teams.read(self.taken.tenant, self.file, lambda db: self._held(db, 0.0, work))

    async def _change(self, work: Callable[[Rows, Agent], Any]) -> Any:
        return await self.teams.write(self.taken.tenant, self.file, lambda db, now: self._held(db, now, work))

    def _held(self, db: Any, now: float, work: Callable[[Rows, Agent], Any]) -> Any:
        number = stored.team_with_lease(db, self.taken.lease)
        if number is None:
            raise effects.LeaseLost
        rows = Rows(db, stored.team_of(db, number), now)
        return work(rows, effects.held(rows, self.taken.lease))

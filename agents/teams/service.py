"""The teams of all tenants: `Teams` answers their tools for USER and for the turns of clients, and keeps their files.

What is decided is in `effects`, `turn_tools` and `user_tools`; each call here is one transaction of the tenant's file.
"""

import hashlib
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import trio

from agents.agent import Call
from agents.teams import effects, rules, turn_tools, user_tools, views, wording
from agents.teams.catalog import BY_NAME, IN_A_TURN
from agents.teams.personas import Persona, Personas
from agents.teams.steps import AnyStep, Spawn, Staged, packed, unpacked
from engine.config import TeamsConfig
from engine.errors import Code, Problem
from engine.names import valid_name
from engine.tenant import Tenant
from knowledge.access import Reader
from storage.teams import rows as stored
from storage.teams.events import TeamCreated
from storage.teams.rows import Agent, Rows
from storage.teams.store import TeamFile, TeamFiles, TeamsUnavailable

T = TypeVar("T")

# Teams of one tenant, those that were stopped and are kept included.
MAX_TEAMS = 1_000
# 256 bits, in the alphabet of URLs.
TOKEN_BYTES = 32
# How long a tenant that had room is not asked again.
ROOM_S = 1.0
_LOST = "this lease is not valid: it was used, it has expired, or there is none like it"


def digest_of(token: str) -> str:
    """What is stored of a lease."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


async def _no_bound(tenant: Tenant) -> None:
    """Tenants are off: nothing bounds what is stored."""


@dataclass(slots=True)
class Teams:
    """The teams of one engine. `changed` is called with a tenant's id after each change of its teams.

    `room` raises Problem for a tenant that has stored as much as it may; `charge` takes CPU seconds of a tenant.
    """

    files: TeamFiles
    config: TeamsConfig
    personas: Personas
    charge: Callable[[Tenant, float], None]
    room: Callable[[Tenant], Any] = _no_bound
    changed: Callable[[str], None] = lambda tenant: None
    draining: Callable[[], bool] = lambda: False
    # Called with the tenant, what a person did with a team, and which.
    audit: Callable[[Tenant, str, str], None] = lambda tenant, action, target: None
    now: Callable[[], float] = time.time
    # When each tenant was last found to have room, in seconds of trio's clock.
    _roomy: dict[str, float] = field(default_factory=dict)

    # ---- one call ----------------------------------------------------------------------------------------------

    async def answer(self, name: str, given: Mapping[str, Any], call: Call) -> Any:
        """A tool for the seat of the call. Raises Problem."""
        seat, tool = call.seat, BY_NAME[name]
        if "tenant" in tool.callers:
            if name == "team_list":
                return await self.listed(call.tenant)
            return await self.create(call.tenant, given["name"], given.get("budget"))
        lease = given.get("lease") if seat is None or seat.lease is None else seat.lease
        if seat is not None and seat.sitting is not None:
            return await seat.sitting.call(name, given)
        if lease is not None and (seat is None or seat.team is None) and (seat is None or seat.lease is None):
            seat = None  # a lease as a parameter is taken at the address of a team alone
        if seat is None:
            raise Problem(
                Code.BAD_REQUEST, f"{name} needs the address of a team: ?team=NAME for USER, ?lease=TOKEN for a turn"
            )
        given = {key: value for key, value in given.items() if key != "lease" and value is not None}
        if lease is not None:
            return await self._of_turn(lease, seat.team, name, given, call)
        assert seat.team is not None
        return await self._of_user(seat.team, name, given, call)

    async def _of_user(self, team: str, name: str, given: dict[str, Any], call: Call) -> Any:
        tenant = call.tenant
        match name:
            case "team_status":
                return await self.status(tenant, team)
            case "team_events":
                return await self.events(tenant, team, given.get("after", 0), given.get("limit", views.EVENTS))
            case "team_next_turn":
                return await self.next_turn(tenant, team, given.get("lease_s"))
            case "team_finish_turn":
                raise Problem(Code.BAD_REQUEST, "team_finish_turn needs the lease of the turn")
            case "team_stop":
                return await self.stop(tenant, team)
        if name == "spawn_agent":
            given = self.with_persona(tenant, given, None)

        decided: list[tuple[str, str]] = []

        def change(rows: Rows) -> Any:
            found = user_tools.answer(rows, name, given, decided)
            define(rows, given.get("content"))
            return found

        answer = await self._change(tenant, team, change)
        for action, agent in decided:
            self.audit(tenant, action, f"{team} agent:{agent}")
        return answer

    # ---- teams -------------------------------------------------------------------------------------------------

    async def create(self, tenant: Tenant, name: str, budget: Any = None) -> dict[str, Any]:
        """A new team. Raises Problem: bad_request, conflict, quota_exceeded."""
        if not valid_name(name):
            raise Problem(Code.BAD_REQUEST, "name: 1 to 64 of letters, digits, '_', '.', '-'")
        found = rules.checked_budget({} if budget is None else budget, self.config.limits)
        await self._require_room(tenant)
        uid = str(uuid.uuid4())

        def make(db: Any, now: float) -> dict[str, Any]:
            teams = stored.teams(db)
            for each in teams:
                if each.name.casefold() == name.casefold():
                    raise Problem(Code.CONFLICT, f"name: there is a team of the name {each.name!r}")
            if len(teams) >= MAX_TEAMS:
                raise Problem(Code.QUOTA_EXCEEDED, f"a tenant has at most {MAX_TEAMS} teams; delete one")
            event = TeamCreated(
                name=name, uid=uid, budget=found, labels=tuple(tuple(sorted(each)) for each in tenant.reader.labels),
                sources=tuple(tuple(sorted(each)) for each in tenant.reader.sources),
            )  # fmt: skip
            rows = Rows.created(db, event, now)
            return {"name": name, "state": "running", "created_at": rows.now, "budget": found}

        async with self._file(tenant, create=True) as file:
            made = await self.write(tenant, file, make)
        self.audit(tenant, "create", name)
        return made

    async def listed(self, tenant: Tenant) -> dict[str, Any]:
        """The tenant's teams, in the order of their creation."""
        async with self._file(tenant) as file:
            found = [] if file is None else await self.read(tenant, file, stored.teams)
        return {
            "teams": [
                {
                    "name": each.name, "state": "running" if each.stopped_at is None else "stopped",
                    "created_at": each.created_at, "agents": each.agents, "turns": each.turns,
                    "messages": each.messages, "events": each.seq,
                }
                for each in found
            ]
        }  # fmt: skip

    async def status(self, tenant: Tenant, team: str) -> dict[str, Any]:
        return await self.look(tenant, team, lambda rows: views.status(rows, self.draining()))

    async def events(self, tenant: Tenant, team: str, after: int, limit: int) -> dict[str, Any]:
        return await self.look(tenant, team, lambda rows: views.listed(rows, after, min(limit, views.MAX_EVENTS)))

    async def stop(self, tenant: Tenant, team: str) -> dict[str, Any]:
        stopped = await self._change(tenant, team, user_tools.stop)
        self.audit(tenant, "stop", team)
        return stopped

    async def delete(self, tenant: Tenant, team: str) -> None:
        """Delete a team with everything of it. Raises Problem not_found."""
        await self._change(tenant, team, Rows.remove)
        self.audit(tenant, "delete", team)

    async def look(self, tenant: Tenant, team: str, work: Callable[[Rows], T]) -> T:
        """Read a team. Raises Problem not_found, and what `work` raises."""

        def read(db: Any) -> T:
            return work(_rows(db, tenant, team, 0.0))

        async with self._file(tenant) as file:
            if file is None:
                raise _no_team(team)
            return await self.read(tenant, file, read)

    async def _change(self, tenant: Tenant, team: str, work: Callable[[Rows], T]) -> T:
        await self._require_room(tenant)
        async with self._file(tenant) as file:
            if file is None:
                raise _no_team(team)
            return await self.write(tenant, file, lambda db, now: work(_rows(db, tenant, team, now)))

    def with_persona(self, tenant: Tenant, given: dict[str, Any], parent: Agent | None) -> dict[str, Any]:
        """The parameters of `spawn_agent` with the content of its persona. Raises Problem."""
        persona = self.personas.captured(tenant, given.get("persona"), given.get("runner"), parent)
        return {**given, "runner": persona.runner, "definition": persona.digest, "content": persona}

    # ---- turns of clients --------------------------------------------------------------------------------------

    async def next_turn(self, tenant: Tenant, team: str, lease_s: float | None = None) -> dict[str, Any]:
        """A turn for a client, or a null lease."""
        if lease_s is not None and not 0 < lease_s <= self.config.lease_s:
            raise Problem(Code.BAD_REQUEST, f"lease_s: expected seconds above 0, at most {self.config.lease_s:g}")
        lasts_s = self.config.lease_s if lease_s is None else lease_s
        token = secrets.token_urlsafe(TOKEN_BYTES)

        def take(rows: Rows) -> dict[str, Any] | None:
            effects.expire(rows)
            # More than one may be refused by a budget.
            for each in stored.ready(rows.db, rows.now, 16, rows.number, clients=True):
                agent = rows.agent(each.agent)
                lease = effects.lease(rows, agent, digest_of(token), "client", rows.now + lasts_s)
                if lease is not None:
                    return self._offered(rows, lease, token)
            return None

        if self.draining():
            return {"lease": None}
        return await self._change(tenant, team, take) or {"lease": None}

    def _offered(self, rows: Rows, lease: effects.Lease, token: str) -> dict[str, Any]:
        agent = lease.agent
        messages = [views.shown(rows, each) for each in lease.messages]
        created = rows.event(agent.seq)
        instructions = getattr(created, "instructions", "")
        system = self.personas.system_of(rows, agent, instructions)
        names = [each.name for each in IN_A_TURN if _has(agent, each.name)]
        return {
            "lease": token, "agent": agent.name, "path": agent.path, "system": system,
            "prompt": wording.prompt(messages), "messages": [each.as_json() for each in messages],
            "tools": names, "attempt": agent.attempt, "turn": agent.turn, "deadline": agent.deadline,
        }  # fmt: skip

    async def _of_turn(self, token: str, team: str | None, name: str, given: dict[str, Any], call: Call) -> Any:
        """A tool of the turn of a client; each call renews its lease."""
        tenant = call.tenant
        if name == "team_finish_turn":
            return await self.finish_turn(tenant, token, team, given.get("output"), given.get("failed"))
        if name not in turn_tools.TOOLS:
            raise Problem(Code.BAD_REQUEST, f"{name} is for ?team=NAME, and not for a turn")
        if name == "spawn_agent":
            parent = await self._held(tenant, token, team, lambda rows, agent: agent)
            given = self.with_persona(tenant, given, parent)
        await self._require_room(tenant)

        def stage(rows: Rows, agent: Agent) -> Any:
            staged = Staged.of(map(unpacked, rows.staged(agent.agent, agent.turn)))
            before = len(staged.steps)
            found = turn_tools.answer(rows, agent, staged, name, given)
            self._keep(rows, agent, staged.steps[before:], before, given.get("content"))
            return found

        return await self._held(tenant, token, team, stage)

    @staticmethod
    def _keep(rows: Rows, agent: Agent, steps: list[AnyStep], first: int, persona: Persona | None) -> None:
        for place, step in enumerate(steps, first):
            rows.stage(agent.agent, agent.turn, place, packed(step))
            if isinstance(step, Spawn):
                define(rows, persona)

    async def finish_turn(
        self, tenant: Tenant, token: str, team: str | None, output: str | None, failed: str | bool | None
    ) -> dict[str, Any]:
        """End the turn of a client. Raises Problem conflict for a lease that is not valid."""

        def finish(rows: Rows, agent: Agent) -> dict[str, Any]:
            if output is not None:
                rules.check_text("output", output, rows.budget["message_bytes"])
            steps = [unpacked(each) for each in rows.staged(agent.agent, agent.turn)]
            if failed:
                why = failed if isinstance(failed, str) else "the client said that it failed"
                effects.fail(rows, agent, why)
            else:
                effects.commit(rows, agent, steps, output=output)
            return {"status": "failed" if failed else "committed"}

        return await self._held(tenant, token, team, finish)

    async def _held(self, tenant: Tenant, token: str, team: str | None, work: Callable[[Rows, Agent], T]) -> T:
        """Call `work` with the turn that has this lease, which it renews. Raises Problem conflict."""
        digest = digest_of(token)

        def held(db: Any, now: float) -> T:
            number = stored.team_with_lease(db, digest)
            if number is None:
                raise effects.LeaseLost
            rows = Rows(db, stored.team_of(db, number), now)
            if (team is not None and rows.name != team) or not may_use(tenant, rows):
                raise effects.LeaseLost
            agent = effects.held(rows, digest)
            if agent.owner != "client":
                raise effects.LeaseLost
            rows.renew(agent.agent, rows.now + self.config.lease_s)
            return work(rows, agent)

        async with self._file(tenant) as file:
            if file is None:
                raise Problem(Code.CONFLICT, _LOST)
            try:
                return await self.write(tenant, file, held)
            except effects.LeaseLost:
                raise Problem(Code.CONFLICT, _LOST) from None

    # ---- the file ----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _file(self, tenant: Tenant, *, create: bool = False) -> AsyncIterator[Any]:
        try:
            async with self.files.borrowed(tenant.id, create=create) as file:
                yield file
        except TeamsUnavailable as unavailable:
            raise Problem(Code.UNAVAILABLE, str(unavailable), retry_after_s=1) from None

    async def write(self, tenant: Tenant, file: TeamFile, work: Callable[[Any, float], T]) -> T:
        try:
            return await file.change(work, partial(self.charge, tenant))
        finally:
            self.changed(tenant.id)

    async def read(self, tenant: Tenant, file: TeamFile, work: Callable[[Any], T]) -> T:
        return await file.read(work, partial(self.charge, tenant))

    async def _require_room(self, tenant: Tenant) -> None:
        if trio.current_time() - self._roomy.get(tenant.id, -ROOM_S) >= ROOM_S:
            await self.room(tenant)
            self._roomy[tenant.id] = trio.current_time()


def define(rows: Rows, persona: Persona | None) -> None:
    """Keep the content of a new agent's persona."""
    if persona is not None and persona.digest:
        rows.define(persona.digest, persona.kind, persona.body)


def _has(agent: Agent, tool: str) -> bool:
    return not (agent.role == "reviewer" and tool in rules.NOT_FOR_REVIEWERS)


def _rows(db: Any, tenant: Tenant, team: str, now: float) -> Rows:
    """The team, for a caller who may use it: one who may read at least what its turns may."""
    found = stored.team_named(db, team)
    if found is None:
        raise _no_team(team)
    rows = Rows(db, found, now)
    if not may_use(tenant, rows):
        raise _no_team(team)
    return rows


def reader_of(rows: Rows) -> Reader:
    """Which documents the turns of a team may read: those that its creator might."""
    created = rows.created_as()
    return Reader(tuple(map(frozenset, created.labels)), tuple(map(frozenset, created.sources)))


def may_use(tenant: Tenant, rows: Rows) -> bool:
    """Whether the caller reads at least what the team reads: its own conditions add nothing to the team's."""
    if tenant.reader.unlimited:
        return True
    found = reader_of(rows)
    both = found
    for each in tenant.reader.labels:
        both = both.within(each)
    for each in tenant.reader.sources:
        both = both.within(None, each)
    return both == found


def _no_team(name: str) -> Problem:
    return Problem(Code.NOT_FOUND, f"there is no team {name[:64]!r}")

"""The turns that a server runs itself: which begin, in turns among teams, and what happens when something is due.

Of the servers on one folder, one runs turns: the one that has the lock of the folder. Every other one serves clients.
"""

import fcntl
import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import structlog
import trio

from agents.teams import effects
from agents.teams.service import Teams, digest_of, reader_of
from agents.teams.turn import RunningTurn, Taken, taken
from agents.teams.turns import State
from engine.errors import Code, Problem
from engine.tenant import Tenant
from storage.teams import rows as stored
from storage.teams.events import Runner
from storage.teams.rows import Rows
from storage.teams.store import TeamFile, TeamsUnavailable

log = structlog.get_logger("engine.teams")

# How often the folder is looked at for what other processes wrote, and how often its lock is tried.
LOOK_S = 0.25
LOCK_S = 1.0
# Turns of one tenant at once that this server runs, by runner: scripts wait for workers, documents for models.
AT_ONCE: Mapping[str, int] = {"lua": 16, "model": 16}
# How often teams are removed that were stopped `keep_days` ago.
CLEAN_S = 3_600.0
# Things that are due and are handled by one transaction.
DUE_AT_ONCE = 64
# When a refused turn is tried again that nothing says more about.
AGAIN_S = 1.0
# Refusals that are no fault of a turn's: it is ready again.
_REFUSALS = frozenset({Code.QUOTA_EXCEEDED, Code.QUEUE_FULL, Code.QUEUE_TIMEOUT, Code.RATE_LIMITED, Code.UNAVAILABLE})


class TurnRunner(Protocol):
    """Runs turns of one kind, from what they show to their commit."""

    async def run(self, turn: RunningTurn) -> tuple[str | None, Any]:
        """The output of a turn and the state that its agent keeps. Raises Problem."""
        ...


# Turns that begin, when something is due next, and how many turns wait, by the reason.
_Begun = tuple[list[Taken], float | None, dict[str, int]]


@dataclass(slots=True)
class _Tenant:
    """A tenant with something to do. `changed` is set after each change of its file."""

    changed: trio.Event = field(default_factory=trio.Event)
    running: dict[str, int] = field(default_factory=lambda: dict.fromkeys(AT_ONCE, 0))
    # Whether turns of an earlier process were released.
    recovered: bool = False
    active: bool = False
    # When teams that were stopped long ago were last looked for.
    cleaned_at: float = 0.0


@dataclass(slots=True)
class Running:
    """Runs the turns of all tenants. `tenant_of` makes the tenant for runs; `inside` is around each run of a tenant.

    `turned` counts the end of each turn, by its outcome; `waiting` is told how many turns of a tenant wait, and why.
    """

    teams: Teams
    folder: Path
    runners: Mapping[Runner, TurnRunner]
    tenant_of: Callable[[str], Any]
    inside: Callable[[Tenant], Any]
    turned: Callable[[str], None] = lambda outcome: None
    waiting: Callable[[str, Mapping[str, int]], None] = lambda tenant, counts: None
    _tenants: dict[str, _Tenant] = field(default_factory=dict)
    _seen: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def wake(self, tenant: str) -> None:
        """Something of the tenant's has changed."""
        found = self._tenants.setdefault(tenant, _Tenant())
        found.changed.set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Run turns until the block ends."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.run)
            yield
            nursery.cancel_scope.cancel()

    async def run(self) -> None:
        """Run turns until cancelled; those under way are given back then."""
        while True:
            lock = await trio.to_thread.run_sync(_locked, self.folder)
            if lock is not None:
                break
            await trio.sleep(LOCK_S)
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    for tenant in await trio.to_thread.run_sync(self._look):
                        self.wake(tenant)
                    for name, each in list(self._tenants.items()):
                        if each.changed.is_set() and not each.active:
                            each.active = True
                            nursery.start_soon(self._serve, name, each)
                    with trio.move_on_after(LOOK_S):
                        await self._any_change()
        finally:
            os.close(lock)

    async def _any_change(self) -> None:
        """Wait until a tenant without a task has changed. Bounded by the caller."""
        idle = [each for each in self._tenants.values() if not each.active]
        if not idle:
            await trio.sleep_forever()
        async with trio.open_nursery() as nursery:
            for each in idle:
                nursery.start_soon(_until, each.changed, nursery.cancel_scope)

    def _look(self) -> list[str]:
        """The tenants whose files have changed since the last look. In a thread."""
        found: dict[str, list[int]] = {}
        try:
            with os.scandir(self.folder) as entries:
                for each in entries:
                    name = each.name.removesuffix("-wal")
                    if name.endswith(".sqlite") and each.is_file():
                        about = each.stat()
                        found.setdefault(name.removesuffix(".sqlite"), []).extend((about.st_mtime_ns, about.st_size))
        except FileNotFoundError:
            pass
        now = {name: tuple(sorted(signs)) for name, signs in found.items()}
        changed = [name for name, signs in now.items() if self._seen.get(name) != signs]
        self._seen = now
        return changed

    async def _serve(self, name: str, own: _Tenant) -> None:
        """Run the tenant's turns until nothing is left to do."""
        try:
            async with self.teams.files.borrowed(name) as file:
                if file is None:
                    own.changed = trio.Event()
                    return
                tenant = await self.tenant_of(name)
                async with trio.open_nursery() as nursery:
                    while True:
                        if not self.teams.files.is_current(name, file):
                            return
                        own.changed = trio.Event()
                        begun, due, waits = await file.change(lambda db, now: self._begin(db, now, tenant, own))
                        self.waiting(name, waits)
                        for each in begun:
                            own.running[each.agent.runner] += 1
                            nursery.start_soon(self._turn, each, file, own)
                        if begun:
                            continue
                        wait_s = None if due is None else max(due - self.teams.now(), 0.0)
                        if wait_s is None and not any(own.running.values()):
                            return
                        with trio.move_on_after(float("inf") if wait_s is None else max(wait_s, 0.01)):
                            await own.changed.wait()
        except (TeamsUnavailable, Problem) as problem:
            log.warning("the turns of a tenant cannot run", tenant=name, reason=str(problem))
            await trio.sleep(AGAIN_S)
            own.changed.set()
        finally:
            own.active = False

    def _begin(
        self, db: Any, now: float, tenant: Tenant, own: _Tenant
    ) -> tuple[list[Taken], float | None, dict[str, int]]:
        """What is due happens, and turns begin as far as there are places; when something is due next, what waits."""
        if not own.recovered:
            own.recovered = True
            for team in stored.teams(db):
                _recover(Rows(db, team, now))
        if now - own.cleaned_at >= CLEAN_S:
            own.cleaned_at = now
            for team in stored.stopped_before(db, now - self.teams.config.keep_days * 86_400):
                Rows(db, team, now).remove()
        for number in stored.with_work(db, now):
            rows = Rows(db, stored.team_of(db, number), now)
            effects.expire(rows)
            effects.meet_deadlines(rows, DUE_AT_ONCE)
            effects.fire_reminders(rows, DUE_AT_ONCE)
        begun: list[Taken] = []
        if self.teams.draining():
            return begun, None, stored.waiting_turns(db, now)
        free = {runner: AT_ONCE[runner] - count for runner, count in own.running.items()}
        blocked = False
        for each in stored.ready(db, now, sum(free.values())):
            if each.runner not in self.runners or free[each.runner] <= 0:
                blocked = True
                continue
            rows = Rows(db, stored.team_of(db, each.team), now)
            digest = digest_of(secrets.token_urlsafe(32))
            lease = effects.lease(rows, rows.agent(each.agent), digest, "server", effects.NEVER)
            if lease is not None:
                free[each.runner] -= 1
                reading = _reading(tenant, rows)
                begun.append(taken(rows, lease, reading, digest))
        due = stored.next_due(db)
        if due is not None and due <= now and (blocked or begun):
            due = None  # what is ready waits for a place: the end of a turn wakes it
        return begun, due, stored.waiting_turns(db, now)

    async def _turn(self, begun: Taken, file: TeamFile, own: _Tenant) -> None:
        turn = RunningTurn(begun, self.teams, file)
        agent = begun.agent
        outcome = "failed"
        try:
            try:
                async with self.inside(begun.tenant):
                    output, state = await self.runners[agent.runner].run(turn)
                await turn.commit(output, state)
                outcome = "committed"
            except Problem as problem:
                if problem.code in _REFUSALS:
                    outcome = "released"
                    why = "draining" if problem.code is Code.UNAVAILABLE else "quota"
                    await turn.release(why, problem.retry_after_s or AGAIN_S)
                else:
                    await turn.fail(problem.message)
            except trio.Cancelled:
                outcome = "released"
                with trio.CancelScope(shield=True):  # the busy timeout bounds it
                    await turn.release("draining", 0.0)
                raise
        except effects.LeaseLost:
            outcome = "lost"  # the agent was terminated meanwhile
        except TeamsUnavailable as unavailable:
            outcome = "lost"  # the next server, or this one when it opens the file again, releases it
            own.recovered = False
            log.warning(
                "a turn could not be committed", team=begun.team_name, agent=agent.path, reason=str(unavailable)
            )
        finally:
            own.running[agent.runner] -= 1
            own.changed.set()
            self.turned(outcome)


async def _until(changed: trio.Event, scope: trio.CancelScope) -> None:
    await changed.wait()
    scope.cancel()


def _recover(rows: Rows) -> None:
    """Give back the turns of a server that ended in the middle of them: no attempt of theirs."""
    for each in rows.agents():
        if each.state == State.LEASED and each.owner == "server":
            effects.release(rows, each, "draining", 0.0)


def _reading(tenant: Tenant, rows: Rows) -> Tenant:
    """The tenant, who reads what the team's creator might."""
    return replace(tenant, reader=reader_of(rows))


def _locked(folder: Path) -> int | None:
    """A descriptor that holds the lock of the folder until it is closed; None if another process has it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(folder / "runner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock

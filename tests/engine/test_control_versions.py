"""Versions in the control store: one transaction a change, with its audit row; the tenant pays for the work."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from control.identity import ANONYMOUS, LOCAL
from control.store import ControlStore, Settings, open_control
from control.versions.grants import Grants
from control.versions.records import NewVersion, VersionId
from engine.errors import Code, Problem

FREE = Grants()
PRIVATE = Grants(hosts=("10.0.0.1",))


@pytest.fixture
async def control(tmp_path: Path) -> AsyncIterator[ControlStore]:
    async with open_control(tmp_path / "control.sqlite", Settings(tmp_path / "engine.sqlite"), create=True) as opened:
        yield opened


def free(cpu_s: float) -> None:
    """Work that the test does not look at."""


def new(version: str = "1", grants: Grants = FREE, content: bytes = b"content") -> NewVersion:
    return NewVersion("agent", "helper", version, f"{hash(content):x}", content, None, grants, None, 0.0, "cli")


def which(version: str = "1") -> VersionId:
    return VersionId("default", "agent", "helper", version)


async def audited(control: ControlStore) -> list[tuple[str, str, str]]:
    return [(row.action, row.target, row.outcome) for row in await control.audit.last()]


async def test_a_version_is_kept_once_and_active_at_once_unless_it_asks_for_more(control: ControlStore) -> None:
    added = await control.versions.add("default", new(), FREE, who=LOCAL, charge=free, max_bytes=None)
    assert added.created
    assert added.standing.version.active
    again = await control.versions.add("default", new(), FREE, who=LOCAL, charge=free, max_bytes=None)
    assert (again.created, again.standing) == (False, added.standing)
    asks = await control.versions.add("default", new("2", PRIVATE), FREE, who=LOCAL, charge=free, max_bytes=None)
    assert (asks.standing.asks, asks.standing.version.active) == (PRIVATE, False)
    mark, active = await control.versions.active("default")
    assert [each.version for each in active] == ["1"]
    assert await control.versions.active("default", mark) == (mark, [])
    assert await control.versions.active("nobody") == ("", [])


async def test_a_change_and_its_audit_row_and_the_generation_come_together(control: ControlStore) -> None:
    await control.versions.add("default", new(), FREE, who=LOCAL, charge=free, max_bytes=None)
    before = control.generation()
    shown = await control.versions.deprecate(which(), FREE, who=LOCAL, charge=free)
    assert shown["deprecated"]
    assert control.generation() > before
    assert await audited(control) == [("agent.publish", "helper 1", "ok"), ("agent.deprecate", "helper 1", "ok")]


async def test_a_refused_change_leaves_its_row_and_nothing_else(control: ControlStore) -> None:
    await control.versions.add("default", new(grants=PRIVATE), FREE, who=LOCAL, charge=free, max_bytes=None)
    before = control.generation(), await control.versions.find(which())
    for act, who, code in (
        (control.versions.activate, LOCAL, Code.CONFLICT),
        (control.versions.approve, ANONYMOUS, Code.FORBIDDEN),
    ):
        with pytest.raises(Problem) as raised:
            await act(which(), FREE, who=who, charge=free)
        assert raised.value.code is code
    assert before[1] == await control.versions.find(which())
    assert await audited(control) == [
        ("agent.publish", "helper 1", "ok"),
        ("agent.activate", "helper 1", "conflict"),
        ("agent.approve", "helper 1", "forbidden"),
    ]
    assert (await control.versions.approve(which(), FREE, who=LOCAL, charge=free))["active"]


async def test_work_is_charged_whatever_comes_of_it_and_in_the_tenants_own_task(control: ControlStore) -> None:
    charged: list[float] = []

    def charge(cpu_s: float) -> None:
        trio.lowlevel.current_task()  # raises outside of trio's thread
        charged.append(cpu_s)

    await control.versions.add("default", new(), FREE, who=LOCAL, charge=charge, max_bytes=None)
    assert len(await control.versions.history("default", "agent", "helper", FREE, charge=charge)) == 1
    for refused in (
        control.versions.history("default", "agent", "ghost", FREE, charge=charge),
        control.versions.activate(which("ghost"), FREE, who=LOCAL, charge=charge),
        control.versions.add("default", new(content=b"other"), FREE, who=LOCAL, charge=charge, max_bytes=None),
    ):
        with pytest.raises(Problem):
            await refused
    assert len(charged) == 5
    assert all(cpu_s > 0 for cpu_s in charged)


async def test_an_upload_that_was_refused_before_leaves_a_row_unless_the_store_is_to_blame(
    control: ControlStore,
) -> None:
    await control.versions.refuse(which("x" * 100), Problem(Code.BAD_REQUEST, "no package"), who=LOCAL)
    await control.versions.refuse(which(), Problem(Code.UNAVAILABLE, "a worker was lost"), who=LOCAL)
    assert await audited(control) == [("agent.publish", f"helper {'x' * 64}", "bad_request")]

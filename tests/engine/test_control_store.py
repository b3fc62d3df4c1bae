"""The control store on a real file: tenants, keys, secrets, the audit log, and what survives what."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import trio
import warm_start
from hypothesis import given, settings
from hypothesis import strategies as st

from control import keys as module
from control.database import open_database
from control.files import knowledge_path, packages_path
from control.key_text import digest
from control.store import ControlStore, Settings, open_control
from engine.errors import Code, Problem
from knowledge.access import EVERYTHING, Reader
from knowledge.store import StoreError

SECRETS_KEY = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU="


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


Opened = Callable[..., AbstractAsyncContextManager[ControlStore]]


@pytest.fixture
def opened(tmp_path: Path, clock: Clock) -> Opened:
    @asynccontextmanager
    async def opened(*, create: bool = True, **changed: Any) -> AsyncIterator[ControlStore]:
        given = {"operator_key": "the-operator", "secrets_key": SECRETS_KEY} | changed
        settings = Settings(tmp_path / "engine.sqlite", **given)
        async with open_control(tmp_path / "engine.control.sqlite", settings, create=create, clock=clock) as found:
            yield found

    return opened


@pytest.fixture
async def control(opened: Opened) -> AsyncIterator[ControlStore]:
    async with opened() as store:
        yield store


async def refused(code: Code, awaitable: Any) -> str:
    with pytest.raises(Problem) as caught:
        await awaitable
    assert caught.value.code is code
    return caught.value.message


async def audited(control: ControlStore) -> list[tuple[str, str, str]]:
    return [(row.action, row.target, row.outcome) for row in await control.audit.last()]


# ---- tenants ----------------------------------------------------------------------------------------------------


async def test_a_tenant_that_was_created_is_listed_with_what_was_said_for_it(opened: Opened) -> None:
    async with opened() as control:
        made = await control.tenants.create(
            "acme", actor="cli", quotas={"burst": 5}, ceilings={"timeout_s": 3}, weight=2
        )
        assert (made.state, made.quotas, made.ceilings, made.weight) == ("active", {"burst": 5}, {"timeout_s": 3.0}, 2)
    async with opened() as control:
        assert [record.name for record in await control.tenants.all()] == ["acme", "default"]
        known = await control.tenants.for_runs("acme")
        assert (known.weight, known.ceilings) == (2, {"timeout_s": 3.0})
        assert known.quotas == {"burst": 5}


async def test_a_whole_number_may_be_written_with_a_fraction_of_zero(control: ControlStore) -> None:
    made = await control.tenants.create(
        "acme", actor="cli", quotas={"burst": 5.0, "requests_per_second": 2.0}, ceilings={"memory_bytes": 1024.0}
    )
    assert made.as_json()["quotas"] == {"burst": 5, "requests_per_second": 2}
    assert str(made.quotas["burst"]) == "5"


@pytest.mark.parametrize("name", ["ACME", "acme", "Acme"])
async def test_a_name_that_differs_in_case_alone_is_taken(control: ControlStore, name: str) -> None:
    await control.tenants.create("acme", actor="cli")
    assert "'acme' exists" in await refused(Code.CONFLICT, control.tenants.create(name, actor="cli"))


@pytest.mark.parametrize("name", ["", ".", "..", "-x", "a/b", "a b", "é", "ａｃｍｅ", "a\0", "x" * 65, "acme\n", "*"])
async def test_a_name_that_could_not_be_a_file_or_would_fold_into_another_is_refused(
    control: ControlStore, name: str
) -> None:
    assert "cannot name a tenant" in await refused(Code.BAD_REQUEST, control.tenants.create(name, actor="cli"))
    assert [record.name for record in await control.tenants.all()] == ["default"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"quotas": {"brst": 1}}, "did you mean 'burst'?"),
        ({"quotas": {"burst": 0}}, "quota burst"),
        ({"quotas": {"burst": 1.5}}, "quota burst"),
        ({"quotas": {"burst": 1e300}}, "quota burst"),
        ({"quotas": {"burst": float("inf")}}, "quota burst"),
        ({"quotas": {"concurrent_runs": None}}, "a quota is a number"),
        ({"quotas": {"stored_bytes": True}}, "quota stored_bytes"),
        ({"ceilings": {"timeout": 1}}, "did you mean 'timeout_s'?"),
        ({"ceilings": {"memory_bytes": 0.5}}, "ceiling memory_bytes: expected a whole number above 0"),
        ({"ceilings": {"timeout_s": float("nan")}}, "ceiling timeout_s"),
        ({"weight": 0}, "weight: expected a number from 0.01 to 100"),
    ],
)
async def test_a_wrong_quota_ceiling_or_weight_creates_nothing(
    control: ControlStore, given: dict[str, Any], said: str
) -> None:
    assert said in await refused(Code.BAD_REQUEST, control.tenants.create("acme", actor="cli", **given))
    assert [record.name for record in await control.tenants.all()] == ["default"]
    assert await audited(control) == [("tenant.create", "acme", "bad_request")]


async def test_creating_a_suspended_tenant_again_says_that_it_is_suspended(control: ControlStore) -> None:
    await control.tenants.create("acme", actor="cli")
    await control.tenants.set_state("acme", "suspended", actor="cli")
    said = await refused(Code.CONFLICT, control.tenants.create("acme", actor="cli"))
    assert said == "tenant 'acme' exists and is suspended; resume it"


async def test_what_is_changed_of_a_tenant_is_what_was_named(control: ControlStore) -> None:
    await control.tenants.create("acme", actor="cli", quotas={"burst": 5}, weight=2)
    changed = await control.tenants.change("acme", actor="cli", quotas={"requests_per_second": 1.5})
    assert (changed.quotas, changed.weight) == ({"requests_per_second": 1.5}, 2)
    assert await control.tenants.get("acme") == changed


async def test_everything_about_an_unknown_tenant_is_answered_alike(control: ControlStore) -> None:
    said = {
        await refused(Code.NOT_FOUND, ask)
        for ask in (
            control.tenants.get("ghost"),
            control.tenants.for_runs("ghost"),
            control.tenants.change("ghost", actor="cli", weight=1),
            control.tenants.set_state("ghost", "suspended", actor="cli"),
            control.tenants.delete("ghost", actor="cli"),
            control.keys.create("ghost", actor="cli"),
            control.keys.all("ghost"),
            control.secrets.all("ghost"),
            control.secrets.set("ghost", "A", "v", ["a.example"], actor="cli"),
            control.secrets.delete("ghost", "A", actor="cli"),
        )
    }
    assert said == {"there is no tenant 'ghost'"}


async def test_a_name_in_another_case_or_in_no_text_at_all_is_an_unknown_tenant(control: ControlStore) -> None:
    await control.tenants.create("acme", actor="cli")
    await refused(Code.NOT_FOUND, control.tenants.get("ACME"))
    await refused(Code.NOT_FOUND, control.tenants.delete("Acme", actor="cli"))
    await refused(Code.NOT_FOUND, control.tenants.get("\ud800"))
    assert (await control.tenants.get("acme")).state == "active"


# ---- keys -------------------------------------------------------------------------------------------------------


async def test_a_key_opens_the_door_for_its_tenant_with_its_scopes_and_only_its_digest_is_kept(
    control: ControlStore,
) -> None:
    await control.tenants.create("acme", actor="cli", quotas={"burst": 7})
    record, key = await control.keys.create("acme", actor="cli", scopes=("use", "publish"))
    assert key.startswith(record.prefix)
    identity = await control.keys.authenticate(key)
    assert identity is not None
    assert (identity.tenant.id, identity.key_id, identity.operator) == ("acme", record.id, False)
    assert identity.scopes == {"use", "publish"}
    assert identity.tenant.quotas == {"burst": 7}
    assert await control.keys.authenticate(key) is identity  # remembered
    kept = b"".join(
        path.read_bytes() for path in control.path.parent.iterdir() if path.name.startswith("engine.control")
    )
    assert key.encode() not in kept
    assert key.rpartition("_")[2].encode() not in kept
    assert digest(key) in kept


async def test_several_keys_are_good_at_a_time_and_revoking_one_leaves_the_others(control: ControlStore) -> None:
    first, key = await control.keys.create("default", actor="cli")
    _, other = await control.keys.create("default", actor="cli")
    assert await control.keys.authenticate(key) is not None
    revoked = await control.keys.revoke(first.id, actor="cli")
    assert revoked.revoked_at is not None
    assert await control.keys.revoke(first.id, actor="cli") == revoked
    assert await control.keys.authenticate(key) is None
    assert await control.keys.authenticate(other) is not None


async def test_a_key_ends_at_its_moment_also_when_it_was_used_just_before(control: ControlStore, clock: Clock) -> None:
    _, key = await control.keys.create("default", actor="cli", expires_at=clock.now + 60)
    assert await control.keys.authenticate(key) is not None
    clock.now += 59.9
    assert await control.keys.authenticate(key) is not None
    clock.now += 0.1
    assert await control.keys.authenticate(key) is None


async def test_a_clock_that_was_ahead_for_a_moment_locks_no_key_out(control: ControlStore, clock: Clock) -> None:
    _, key = await control.keys.create("default", actor="cli", expires_at=clock.now + 30 * 86400)
    clock.now += 31 * 86400
    assert await control.keys.authenticate(key) is None
    clock.now -= 31 * 86400
    assert await control.keys.authenticate(key) is not None


@settings(max_examples=30, deadline=None)
@given(
    moments=st.lists(st.floats(-1e6, 1e6), max_size=12),
    ends=st.lists(st.none() | st.floats(-1e5, 1e5), min_size=1, max_size=4),
    asked=st.data(),
)
def test_whatever_the_clock_did_before_a_keys_answer_depends_on_its_row_and_the_present_time(
    tmp_path_factory: pytest.TempPathFactory, moments: list[float], ends: list[float | None], asked: st.DataObject
) -> None:
    clock, start = Clock(), Clock.now
    folder = tmp_path_factory.mktemp("clock")

    async def main() -> None:
        async with open_control(folder / "c.sqlite", Settings(folder / "e"), create=True, clock=clock) as control:
            made = []
            for end in ends:
                at = None if end is None else start + end
                made.append((at, *await control.keys.create("default", actor="cli", expires_at=at)))
            revoked, gone = await control.keys.create("default", actor="cli")
            await control.keys.revoke(revoked.id, actor="cli")
            for moment in moments:
                clock.now = start + moment
                at, record, key = asked.draw(st.sampled_from(made))
                found = await control.keys.authenticate(key)
                assert (found and found.key_id) == (record.id if at is None or clock.now < at else None)
                assert await control.keys.authenticate(gone) is None

    trio.run(main)


async def test_a_suspended_tenants_keys_open_nothing_until_it_is_resumed(control: ControlStore) -> None:
    await control.tenants.create("acme", actor="cli")
    _, key = await control.keys.create("acme", actor="cli")
    _, others = await control.keys.create("default", actor="cli")
    assert await control.keys.authenticate(key) is not None
    await control.tenants.set_state("acme", "suspended", actor="cli")
    assert await control.keys.authenticate(key) is None
    assert await control.keys.authenticate(others) is not None
    await control.tenants.set_state("acme", "active", actor="cli")
    assert await control.keys.authenticate(key) is not None


async def test_nothing_but_a_whole_key_opens_anything(control: ControlStore) -> None:
    record, key = await control.keys.create("default", actor="cli")
    wrong = key[:-1] + ("0" if key[-1] != "0" else "1")
    for presented in (
        "",
        record.id,
        record.prefix,
        key[:-1],
        key + "0",
        key.upper(),
        f" {key}",
        wrong,
        "é" * 80,
        "x" * 9,
    ):
        assert await control.keys.authenticate(presented) is None, presented
    assert await control.keys.authenticate("\ud800") is None
    assert await control.keys.authenticate(key) is not None


async def test_a_bad_key_is_looked_up_once_whatever_is_wrong_with_it(
    control: ControlStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await control.tenants.create("acme", actor="cli")
    _, suspended = await control.keys.create("acme", actor="cli")
    _, expired = await control.keys.create("default", actor="cli", expires_at=clock.now + 1)
    _, good = await control.keys.create("default", actor="cli")
    revoked, gone = await control.keys.create("default", actor="cli")
    await control.keys.revoke(revoked.id, actor="cli")
    await control.tenants.set_state("acme", "suspended", actor="cli")
    clock.now += 2
    looked = []
    read = control._database.read

    async def counting(work: Any) -> Any:
        looked.append(work)
        return await read(work)

    monkeypatch.setattr(control._database, "read", counting)
    for key in (suspended, expired, gone, "unknown", "ek_000000000000_" + "0" * 64, good[:-1] + "g"):
        before = len(looked)
        assert await control.keys.authenticate(key) is None
        assert len(looked) == before + 1, key
        assert await control.keys.authenticate(key) is None
        assert len(looked) == before + 1, key


async def test_the_operators_key_is_good_for_everything_and_has_no_row(control: ControlStore) -> None:
    identity = await control.keys.authenticate("the-operator")
    assert identity is not None
    assert (identity.operator, identity.key_id, identity.tenant.id) == (True, None, "default")
    assert identity.tenant.quotas == {}


async def test_without_an_operators_key_there_is_no_operator(opened: Opened) -> None:
    async with opened(operator_key=None) as control:
        assert await control.keys.authenticate("the-operator") is None
        assert await control.keys.authenticate("None") is None
        assert await control.keys.authenticate("") is None


async def test_a_flood_of_unknown_keys_is_not_remembered_for_ever_and_drives_out_no_good_one(
    control: ControlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REMEMBERED_WRONG", 10)
    _, key = await control.keys.create("default", actor="cli")
    identity = await control.keys.authenticate(key)
    for number in range(50):
        assert await control.keys.authenticate(f"unknown {number}") is None
    assert len(control.keys._wrong) == 10
    assert await control.keys.authenticate(key) is identity


async def test_a_look_for_changes_in_the_event_loop_sleeps_unscoped(opened: Opened) -> None:
    async with opened() as control:
        await control.tenants.create("acme", actor="cli")
        look = control._database._watch
        assert look is not None
        assert look.open_vfs == "engine-impatient"  # tests/knowledge/test_kept_answers.py has what that is good for


async def test_what_another_process_changes_is_noticed_with_the_next_request(opened: Opened) -> None:
    async with opened() as serving, opened() as command_line:
        record, key = await command_line.keys.create("default", actor="cli")
        assert await serving.keys.authenticate("unknown") is None
        assert await serving.keys.authenticate(key) is not None
        await command_line.keys.revoke(record.id, actor="cli")
        assert await serving.keys.authenticate(key) is None


async def test_figures_that_are_written_do_not_make_keys_be_looked_up_again(control: ControlStore) -> None:
    _, key = await control.keys.create("default", actor="cli")
    identity = await control.keys.authenticate(key)
    await control._database.write(lambda db: db.execute("UPDATE meta SET value = value WHERE name = 'x'") and None)
    control.audit.note_denied("default", "agent", "http.get")
    assert await control.keys.authenticate(key) is identity


# ---- secrets ----------------------------------------------------------------------------------------------------


async def test_a_secret_is_listed_without_its_value_which_is_nowhere_in_the_files(control: ControlStore) -> None:
    record = await control.secrets.set("default", "TOKEN", "s3ntinel-value", ["api.example.com"], actor="cli")
    assert (record.name, record.hosts) == ("TOKEN", ("api.example.com",))
    assert await control.secrets.all("default") == [record]
    opened = await control.secrets.opened("default")
    assert (opened["TOKEN"].value, opened["TOKEN"].hosts) == ("s3ntinel-value", ("api.example.com",))
    kept = b"".join(path.read_bytes() for path in control.path.parent.iterdir())
    assert b"s3ntinel" not in kept
    assert b"api.example.com" in kept
    assert await audited(control) == [("secret.set", "TOKEN", "ok")]


async def test_setting_a_secret_again_replaces_value_and_hosts(control: ControlStore, clock: Clock) -> None:
    first = await control.secrets.set("default", "TOKEN", "one", ["a.example.com"], actor="cli")
    clock.now += 5
    second = await control.secrets.set("default", "TOKEN", "two", ["b.example.com"], actor="cli")
    assert (second.created_at, second.updated_at) == (first.created_at, first.created_at + 5)
    (opened,) = (await control.secrets.opened("default")).values()
    assert (opened.value, opened.hosts) == ("two", ("b.example.com",))


async def test_a_secret_that_was_moved_to_another_tenant_name_or_host_in_the_file_does_not_open(
    control: ControlStore,
) -> None:
    await control.tenants.create("acme", actor="cli")
    for change in (
        "UPDATE secrets SET tenant = 'acme'",
        "UPDATE secrets SET name = 'OTHER'",
        """UPDATE secrets SET hosts = '["evil.example"]'""",
        "UPDATE secrets SET sealed = substr(sealed, 1, 5)",
    ):
        await control.secrets.set("default", "TOKEN", "value", ["a.example"], actor="cli")
        await control._database.write(lambda db, change=change: db.execute(change) and None)  # type: ignore[misc]
        for tenant in ("default", "acme"):
            if await control.secrets.all(tenant):
                said = await refused(Code.UNAVAILABLE, control.secrets.opened(tenant))
                assert "cannot be opened" in said
        await control._database.write(lambda db: db.execute("DELETE FROM secrets") and None)


async def test_secrets_of_another_key_do_not_open_and_say_so(opened: Opened) -> None:
    async with opened() as control:
        await control.secrets.set("default", "TOKEN", "value", ["a.example"], actor="cli")
    async with opened(secrets_key="QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDY=") as control:
        assert "another secrets_key" in await refused(Code.UNAVAILABLE, control.secrets.opened("default"))
    async with opened(secrets_key=None) as control:
        assert "secrets need a key" in await refused(Code.UNAVAILABLE, control.secrets.opened("default"))
        assert await control.secrets.opened("nobody") == {}


async def test_the_key_of_secrets_may_be_in_a_file(opened: Opened, tmp_path: Path) -> None:
    file = tmp_path / "key"
    async with opened(secrets_key=None, secrets_key_file=file) as control:
        setting = ("default", "TOKEN", "value", ["a.example"])
        assert "No such file" in await refused(Code.UNAVAILABLE, control.secrets.set(*setting, actor="cli"))
        file.write_text("too short\n")
        assert "32 bytes in base64" in await refused(Code.UNAVAILABLE, control.secrets.set(*setting, actor="cli"))
        file.write_bytes(b"\xff" * 32)
        assert "32 bytes in base64" in await refused(Code.UNAVAILABLE, control.secrets.set(*setting, actor="cli"))
        file.write_text(SECRETS_KEY + "\n")
        await control.secrets.set(*setting, actor="cli")
        assert (await control.secrets.opened("default"))["TOKEN"].value == "value"


@pytest.mark.parametrize(
    ("name", "value", "hosts", "said"),
    [
        ("a-b", "v", ["a.example"], "cannot name a secret"),
        ("TOKEN", "", ["a.example"], "1 to 65536 bytes"),
        ("TOKEN", "\ud800", ["a.example"], "text in UTF-8"),
        ("TOKEN", "v", [], "bound to 1 to 32 hosts"),
        ("TOKEN", "v", ["*"], "'*' would send it to any host"),
        ("TOKEN", "v", ["http://x/"], "host 'http://x/'"),
    ],
)
async def test_a_secret_that_cannot_be_kept_is_refused(
    control: ControlStore, name: str, value: str, hosts: list[str], said: str
) -> None:
    assert said in await refused(Code.BAD_REQUEST, control.secrets.set("default", name, value, hosts, actor="cli"))
    assert await control.secrets.all("default") == []


async def test_a_deleted_secret_is_gone_and_deleting_it_again_says_so(control: ControlStore) -> None:
    await control.secrets.set("default", "TOKEN", "value", ["a.example"], actor="cli")
    await control.secrets.delete("default", "TOKEN", actor="cli")
    assert await control.secrets.all("default") == []
    await refused(Code.NOT_FOUND, control.secrets.delete("default", "TOKEN", actor="cli"))


# ---- deleting ---------------------------------------------------------------------------------------------------


async def test_deleting_a_tenant_removes_all_it_has_counts_it_and_leaves_the_others(
    control: ControlStore, tmp_path: Path
) -> None:
    for name in ("acme", "acme.b"):
        await control.tenants.create(name, actor="cli")
        await control.keys.create(name, actor="cli")
        await control.secrets.set(name, "TOKEN", "value", ["a.example"], actor="cli")
        knowledge = knowledge_path(tmp_path / "engine.sqlite", name)
        knowledge.parent.mkdir(exist_ok=True)
        for ending in ("", "-wal", ".0123.lock"):
            knowledge.with_name(knowledge.name + ending).write_text("x")
        packages = packages_path(tmp_path / "engine.sqlite", name) / "0123"
        packages.mkdir(parents=True)
        (packages / "agent.lua").write_text("x")
    _, key = await control.keys.create("acme", actor="cli")
    assert await control.keys.authenticate(key) is not None
    proof = await control.tenants.delete("acme", actor="cli")
    removed = {"keys": 2, "secrets": 1, "tenant": 1, "files": 4}
    assert removed.items() <= proof["removed"].items()
    assert set(proof["left"]) == set(proof["removed"])
    assert set(proof["left"].values()) == {0}
    assert await control.keys.authenticate(key) is None
    assert [record.name for record in await control.tenants.all()] == ["acme.b", "default"]
    assert sorted(path.name for path in (tmp_path / "tenants").iterdir()) == [
        "acme.b.packages", "acme.b.sqlite", "acme.b.sqlite-wal", "acme.b.sqlite.0123.lock",
    ]  # fmt: skip
    assert len(await control.keys.all("acme.b")) == 1
    assert [row.action for row in await control.audit.last(tenant="acme")][-2:] == [
        "tenant.delete.begin",
        "tenant.delete",
    ]
    assert (await control.tenants.create("acme", actor="cli")).state == "active"
    assert await control.keys.all("acme") == []


async def test_what_was_deleted_is_not_left_in_free_pages_of_the_file(control: ControlStore) -> None:
    await control.tenants.create("acme", actor="cli")
    _, key = await control.keys.create("acme", actor="cli")
    assert digest(key) in b"".join(path.read_bytes() for path in control.path.parent.glob("engine.control*"))
    await control.tenants.delete("acme", actor="cli")
    assert digest(key) not in b"".join(path.read_bytes() for path in control.path.parent.glob("engine.control*"))


async def test_the_default_tenant_stays(control: ControlStore) -> None:
    assert "it stays" in await refused(Code.CONFLICT, control.tenants.delete("default", actor="cli"))
    assert (await control.tenants.get("default")).state == "active"


async def test_a_deletion_that_fails_midway_leaves_a_suspended_tenant_and_can_be_repeated(
    control: ControlStore, tmp_path: Path
) -> None:
    await control.tenants.create("acme", actor="cli")
    _, key = await control.keys.create("acme", actor="cli")
    in_the_way = knowledge_path(tmp_path / "engine.sqlite", "acme")
    in_the_way.mkdir(parents=True)
    said = await refused(Code.UNAVAILABLE, control.tenants.delete("acme", actor="cli"))
    assert "the tenant is suspended" in said
    assert str(tmp_path) not in said
    assert (await control.tenants.get("acme")).state == "suspended"
    assert await control.keys.authenticate(key) is None
    in_the_way.rmdir()
    assert set((await control.tenants.delete("acme", actor="cli"))["left"].values()) == {0}


# ---- audit ------------------------------------------------------------------------------------------------------


async def test_every_action_leaves_a_row_and_a_refused_one_its_code(control: ControlStore, clock: Clock) -> None:
    await control.tenants.create("acme", actor="operator")
    clock.now += 100
    record, _ = await control.keys.create("acme", actor="cli")
    await refused(Code.CONFLICT, control.tenants.create("acme", actor="cli"))
    await refused(Code.NOT_FOUND, control.keys.revoke("key_none", actor="cli"))
    assert [(r.actor, r.action, r.target, r.outcome, r.tenant) for r in await control.audit.last()] == [
        ("operator", "tenant.create", "acme", "ok", "acme"),
        ("cli", "key.create", record.id, "ok", "acme"),
        ("cli", "tenant.create", "acme", "conflict", "acme"),
        ("cli", "key.revoke", "key_none", "not_found", None),
    ]
    assert len(await control.audit.last(since=clock.now)) == 3
    assert [row.action for row in await control.audit.last(tenant="acme", limit=1)] == ["tenant.create"]
    assert await control.audit.last(tenant="other") == []


async def test_denied_calls_are_written_at_the_latest_when_the_store_closes_repeats_as_one(opened: Opened) -> None:
    async with opened() as control:
        for _ in range(500):
            control.audit.note_denied("acme", "agent", "http.get")
        control.audit.note_denied("acme", "agent", "env.get")
    async with opened() as control:
        found = [(row.actor, row.action, row.target, row.outcome, row.tenant) for row in await control.audit.last()]
    assert found == [
        ("script:agent", "call", "http.get", "denied", "acme"),
        ("script:agent", "call", "env.get", "denied", "acme"),
    ]


async def test_refused_tools_and_decisions_of_persons_are_rows_with_names_alone(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("control.audit.ROWS_KEPT", 2)
    async with opened() as control:
        for _ in range(3):
            control.audit.note_tool_refused("acme", "writer", "drop_table")
        control.audit.note_decision("acme", "k1", "writer", "send", allowed=True)
        control.audit.note_decision("acme", None, "writer", "delete", allowed=False)
    async with opened() as control:
        found = [(row.actor, row.action, row.target, row.outcome) for row in await control.audit.last()]
        for number in range(5):
            control.audit.note_decision("acme", "k1", "writer", f"send{number}", allowed=False)
    assert found == [
        ("agent:writer", "call", "tool:drop_table", "denied"),
        ("key:k1", "confirm", "agent:writer tool:send", "ok"),
        ("agent:writer", "confirm", "agent:writer tool:delete", "denied"),
    ]
    async with opened() as control:
        await control.audit.note_refusal("key:k1", "agent.publish", "a", "acme", Problem(Code.TOO_LARGE, "too large"))
        kept = [row.target.rpartition(":")[2] for row in await control.audit.last() if row.action == "confirm"]
    assert kept == ["send3", "send4"]


async def test_a_tenant_whose_keys_are_refused_a_lot_fills_its_share_of_the_audit_log_alone(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("control.audit.REFUSALS_KEPT", 30)
    refused = Problem(Code.TOO_LARGE, "too large")
    async with opened() as control:
        for actor, tenant in (("operator", "loud"), ("key:k2", "quiet")):
            await control.audit.note_refusal(actor, "agent.publish", "a", tenant, refused)
        for number in range(100):
            await control.audit.note_refusal("key:k1", "agent.publish", f"a@{number}", "loud", refused)
        found = await control.audit.last()
    assert [(row.actor, row.tenant) for row in found[:2]] == [("operator", "loud"), ("key:k2", "quiet")]
    assert [row.target for row in found[2:]] == [f"a@{number}" for number in range(70, 100)]


async def test_a_tenant_whose_scripts_are_denied_a_lot_fills_its_share_of_the_audit_log_alone(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("control.audit.ROWS_KEPT", 30)
    for _ in range(3):
        async with opened() as control:
            await control.tenants.create(f"t{control.generation()}", actor="cli")
            control.audit.note_denied("quiet", "agent", "fs.read")
            for number in range(1000):
                control.audit.note_denied("loud", f"script {number}", "http.get")
    async with opened() as control:
        found = await control.audit.last()
    assert sum(row.tenant == "loud" for row in found) == 30
    assert sum(row.tenant == "quiet" for row in found) == 3
    assert sum(row.action == "tenant.create" for row in found) == 3


# ---- the file ---------------------------------------------------------------------------------------------------


async def test_a_store_before_its_first_write_is_no_file_and_knows_the_default_tenant(
    opened: Opened, tmp_path: Path
) -> None:
    async with opened(create=False) as control:
        assert [record.name for record in await control.tenants.all()] == ["default"]
        assert await control.keys.authenticate("x") is None
        assert await control.audit.last() == []
        assert os.listdir(tmp_path) == []
        await control.keys.create("default", actor="cli")
        assert (tmp_path / "engine.control.sqlite").exists()


async def test_a_file_that_another_process_makes_later_is_found(opened: Opened) -> None:
    async with opened(create=False) as serving:
        assert await serving.secrets.all("default") == []
        async with opened() as command_line:
            await command_line.secrets.set("default", "TOKEN", "value", ["a.example"], actor="cli")
        assert [record.name for record in await serving.secrets.all("default")] == ["TOKEN"]


async def test_the_file_is_readable_by_its_owner_alone(control: ControlStore) -> None:
    await control.keys.create("default", actor="cli")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in control.path.parent.glob("engine.control*")}
    assert set(modes.values()) == {0o600}
    assert len(modes) == 3  # the log and its index as well


@pytest.mark.parametrize("content", ["text", "foreign", "newer", "folder"])
async def test_a_file_that_is_no_control_store_of_ours_is_left_alone(
    opened: Opened, tmp_path: Path, content: str
) -> None:
    path = tmp_path / "engine.control.sqlite"
    if content == "text":
        path.write_text("notes, notes, notes" * 100)
    elif content == "folder":
        path.mkdir()
    else:
        if content == "newer":
            async with opened():
                pass
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE IF NOT EXISTS x(y)")
            db.execute("PRAGMA user_version = 9")
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(StoreError) as caught:
        async with opened():
            pytest.fail("opened")
    assert str(path) in str(caught.value)
    assert (path.read_bytes() if path.is_file() else b"") == before


async def test_an_action_on_a_full_disk_is_refused_whole_and_works_when_there_is_room(control: ControlStore) -> None:
    await control.tenants.create("acme", actor="cli")
    pages = await control._database.write(lambda db: db.pragma("page_count"))
    await control._database.write(lambda db: db.pragma("max_page_count", pages))

    async def fill() -> None:
        for number in range(1000):
            await control.tenants.create(f"t{number}", actor="cli", ceilings={"timeout_s": 1.0})

    assert "is full; nothing was changed" in await refused(Code.UNAVAILABLE, fill())
    there = {record.name for record in await control.tenants.all()}
    logged = {row.target for row in await control.audit.last(limit=10_000) if row.outcome == "ok"}
    assert there - {"default"} == logged
    await control._database.write(lambda db: db.pragma("max_page_count", 1_000_000))
    assert (await control.tenants.create("roomy", actor="cli")).name == "roomy"


@pytest.mark.usefixtures("warm")
async def test_what_was_answered_survives_a_kill_at_any_moment(opened: Opened, tmp_path: Path) -> None:
    code = (
        "import sys, trio\nfrom pathlib import Path\n"
        "from control.store import Settings, open_control\n"
        "async def main():\n"
        f"    path = Path({str(tmp_path / 'engine.control.sqlite')!r})\n"
        "    async with open_control(path, Settings(Path('x'))) as store:\n"
        "        for n in range(100_000):\n"
        "            await store.tenants.create(f't{n}', actor='cli')\n"
        "            print(n, flush=True)\n"
        "trio.run(main)\n"
    )
    process = await warm_start.open_process(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    said = b""
    async with process.stdout as out:
        while said.count(b"\n") < 25:
            said += await out.receive_some()
        os.kill(process.pid, signal.SIGKILL)
        async for part in out:
            said += part
    await process.wait()
    answered = said.count(b"\n")
    async with opened() as control:
        there = len(await control.tenants.all()) - 1
        assert answered <= there <= answered + 1
        assert len(await control.audit.last(limit=10_000)) == there
        assert (await control.tenants.create("after", actor="cli")).name == "after"


async def test_a_read_that_takes_long_holds_up_no_other(tmp_path: Path, clock: Clock) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(db: Any) -> bool:
        begun.set()
        return go_on.wait(60)

    path = tmp_path / "control.sqlite"
    async with open_database(path, create=True, clock=clock) as database, trio.open_nursery() as nursery:
        nursery.start_soon(database.read_long, slow)
        assert await trio.to_thread.run_sync(begun.wait, 60)
        try:
            with trio.fail_after(30):
                assert await database.read(lambda db: "read") == "read"
                assert await database.write(lambda db: "written") == "written"
        finally:
            go_on.set()


# ---- labels of keys


async def test_a_key_reads_with_its_labels_and_one_without_any_reads_what_has_none(control: ControlStore) -> None:
    await control.tenants.create("acme", actor="cli")
    record, text = await control.keys.create("acme", actor="cli", labels=["legal", "hr"])
    _, plain = await control.keys.create("acme", actor="cli")
    assert record.as_json()["labels"] == ["hr", "legal"]
    assert [each.labels for each in await control.keys.all("acme")].count(frozenset({"hr", "legal"})) == 1
    for _ in range(2):  # the second time from the cache
        found, other = await control.keys.authenticate(text), await control.keys.authenticate(plain)
        assert found is not None
        assert other is not None
        assert found.tenant.reader == Reader.of(["hr", "legal"])
        assert other.tenant.reader == Reader.of([])
    operator = await control.keys.authenticate("the-operator")
    assert operator is not None
    assert operator.tenant.reader == EVERYTHING
    for wrong in (["a b"], [""], [f"l{n}" for n in range(33)]):
        with pytest.raises(Problem, match="labels") as raised:
            await control.keys.create("acme", actor="cli", labels=wrong)
        assert raised.value.code is Code.BAD_REQUEST


async def test_a_control_store_of_an_older_version_is_upgraded_and_its_keys_have_no_labels(
    opened: Opened, tmp_path: Path
) -> None:
    async with opened() as control:
        await control.tenants.create("acme", actor="cli")
        _, text = await control.keys.create("acme", actor="cli")
    with closing(sqlite3.connect(tmp_path / "engine.control.sqlite")) as db:
        db.execute("ALTER TABLE keys DROP COLUMN labels")
        db.execute("PRAGMA user_version = 1")
        db.commit()
    for _ in range(2):
        async with opened() as control:
            found = await control.keys.authenticate(text)
            assert found is not None
            assert found.tenant.reader == Reader.of([])
            await control.keys.create("acme", actor="cli", labels=["hr"])

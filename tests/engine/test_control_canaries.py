"""Canaries in the control store: the share of the callers, and what begins and ends one, whatever the order."""

from collections.abc import Callable
from functools import partial
from typing import Any

import apsw
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from control import tables
from control.identity import LOCAL
from control.versions import rows
from control.versions.grants import Grants
from control.versions.records import NewVersion, VersionId
from control.versions.share import ALL, check_percent, is_served
from engine.errors import Code, Problem

CALLERS = [f"key_{number}" for number in range(10_000)]
PERCENT = st.integers(1, 99)
NAME = st.text("abc-", min_size=1, max_size=8)
FREE = Grants()
VERSIONS = ("1", "2", "3")

# ---- the share ----------------------------------------------------------------------------------------------------


@given(NAME, NAME, PERCENT)
def test_the_share_of_ten_thousand_callers_is_the_one_that_was_asked_for(name: str, version: str, percent: int) -> None:
    served = sum(is_served("acme", name, version, caller, percent) for caller in CALLERS)
    assert abs(served / len(CALLERS) * 100 - percent) < 2.5  # five times the deviation of an even spread


@given(NAME, NAME, st.text(max_size=20), PERCENT, PERCENT)
@example("a", "1", "oauth:issuer:\ud800", 1, 99)
def test_a_larger_share_adds_callers_and_takes_none_away(
    name: str, version: str, caller: str, one: int, other: int
) -> None:
    smaller, larger = sorted((one, other))
    assert is_served("acme", name, version, caller, larger) >= is_served("acme", name, version, caller, smaller)


def test_every_version_and_every_tenant_has_other_callers_first() -> None:
    def first(tenant: str, name: str, version: str) -> set[str]:
        return {caller for caller in CALLERS[:1000] if is_served(tenant, name, version, caller, 10)}

    one = first("acme", "helper", "2")
    for other in (first("acme", "helper", "3"), first("other", "helper", "2"), first("acme", "adder", "2")):
        assert len(one & other) < 40, "about a tenth of a tenth"


def test_the_place_of_a_caller_is_the_same_in_every_release() -> None:
    """Another one would give callers the other version in the middle of a canary."""
    served = [caller for caller in CALLERS[:20] if is_served("acme", "helper", "2", caller, 25)]
    assert served == ["key_3", "key_4", "key_8", "key_12", "key_16", "key_17"]


@pytest.mark.parametrize("given_percent", [1, 50, 99, ALL, 50.0])
def test_a_percent_is_a_whole_number_up_to_all_callers(given_percent: Any) -> None:
    assert check_percent(given_percent) == given_percent
    assert isinstance(check_percent(given_percent), int)


@pytest.mark.parametrize(
    ("given_percent", "shown"),
    [
        (0, "got 0"), (101, "got 101"), (-1, "got -1"), (1.5, "got 1.5"), (True, "got true"), ("50", "got '50'"),
        (None, "got null"), ([50], "got a list"), ({}, "got an object"), (1e300, "got a number"),
        (10**400, "got a number"), (float("nan"), "got a number"), (float("inf"), "got a number"),
        ("x" * 100_000, "xxx'"),
    ],
)  # fmt: skip
def test_any_other_percent_is_refused_with_the_bounds(given_percent: Any, shown: str) -> None:
    with pytest.raises(Problem) as raised:
        check_percent(given_percent)
    assert raised.value.code is Code.BAD_REQUEST
    assert "a whole number from 1 to 100" in raised.value.message
    assert raised.value.message.endswith(shown)
    assert len(raised.value.message) < 150


# ---- what begins and ends one -------------------------------------------------------------------------------------


@pytest.fixture
def db() -> apsw.Connection:
    """An empty store."""
    return opened()


def opened() -> apsw.Connection:
    db = apsw.Connection(":memory:")
    tables.prepare(db, None, 0.0)
    return db


def publish(db: apsw.Connection, version: str, percent: int = ALL, grants: Grants = FREE, size: int = 10) -> None:
    content = version.encode() * size
    new = NewVersion("agent", "helper", version, f"{version:0>64}", content, None, grants, None, 0.0, "cli")
    rows.add(db, "default", new, FREE, max_bytes=None, percent=percent)


def which(version: str) -> VersionId:
    return VersionId("default", "agent", "helper", version)


def activate(db: apsw.Connection, version: str, percent: int = ALL) -> None:
    rows.activate(db, which(version), FREE, percent)


def percents(db: apsw.Connection) -> dict[str, int]:
    """The share of each version that is called, as lists show it; what is read for calls says the same."""
    listed = {each.version: each.percent for each in rows.history(db, "default", "agent", "helper") if each.percent}
    called = {each.version: each.percent for each in rows.active(db, "default")}
    whole = {version: percent or ALL - sum(called.values()) for version, percent in called.items()}
    assert listed == whole
    return listed


def refused(code: Code, act: Callable[[], None], *parts: str) -> None:
    with pytest.raises(Problem) as raised:
        act()
    assert raised.value.code is code
    for part in parts:
        assert part in raised.value.message


def test_a_canary_serves_beside_the_active_version_and_a_new_one_takes_its_place(db: apsw.Connection) -> None:
    for version in VERSIONS:
        publish(db, version)
    assert percents(db) == {"3": 100}
    activate(db, "1", 10)
    assert percents(db) == {"3": 90, "1": 10}
    activate(db, "1", 60)
    assert percents(db) == {"3": 40, "1": 60}
    activate(db, "2", 5)
    assert percents(db) == {"3": 95, "2": 5}


@pytest.mark.parametrize("ends", ["the canary", "the active one", "another one", "an upload"])
def test_a_canary_ends_when_any_version_is_activated_for_all(ends: str, db: apsw.Connection) -> None:
    for version in VERSIONS:
        publish(db, version)
    activate(db, "1", 10)
    if ends == "an upload":
        publish(db, "4")
    else:
        activate(db, {"the canary": "1", "the active one": "3", "another one": "2"}[ends])
    now = {"the canary": "1", "the active one": "3", "another one": "2", "an upload": "4"}[ends]
    assert percents(db) == {now: 100}


@pytest.mark.parametrize(("gone", "left"), [("2", {"3": 100}), ("3", {}), ("1", {"3": 90, "2": 10})])
def test_a_canary_ends_with_the_version_that_is_deprecated_or_with_the_active_one(
    gone: str, left: dict[str, int], db: apsw.Connection
) -> None:
    for version in VERSIONS:
        publish(db, version)
    activate(db, "2", 10)
    rows.deprecate(db, which(gone))
    assert percents(db) == left


def test_what_cannot_be_activated_cannot_be_a_canary(db: apsw.Connection) -> None:
    refused(Code.NOT_FOUND, partial(activate, db, "9", 50), "'9'")
    private = Grants(hosts=("10.0.0.1",))
    publish(db, "1", grants=private)
    refused(Code.CONFLICT, partial(activate, db, "1", 50), "asks for more than was approved", "10.0.0.1")
    refused(Code.CONFLICT, lambda: rows.approve(db, which("1"), FREE, LOCAL, 50), "no version", "is active")
    publish(db, "2")
    refused(Code.CONFLICT, partial(activate, db, "2", 50), "is the active one")
    rows.approve(db, which("1"), FREE, LOCAL, 50)
    assert percents(db) == {"2": 50, "1": 50}
    rows.deprecate(db, which("1"))
    refused(Code.CONFLICT, partial(activate, db, "1", 50), "is deprecated")
    assert percents(db) == {"2": 100}


def test_an_upload_may_be_a_canary_at_once_unless_it_asks_for_more(db: apsw.Connection) -> None:
    publish(db, "1")
    publish(db, "2", 20)
    assert percents(db) == {"1": 80, "2": 20}
    publish(db, "3", 20, Grants(hosts=("10.0.0.1",)))
    assert percents(db) == {"1": 80, "2": 20}, "it waits for approval"
    publish(db, "2", 70)
    assert percents(db) == {"1": 80, "2": 20}, "the same content again changes nothing"


def test_the_bytes_of_a_canary_count_with_those_that_are_active(
    db: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(db, "1", size=4_000)
    publish(db, "2", size=4_000)
    monkeypatch.setattr(rows, "MAX_ACTIVE_BYTES", 6_000)
    refused(Code.QUOTA_EXCEEDED, partial(tables_kept, db, partial(activate, db, "1", 1)), "the scripts that are active")
    assert percents(db) == {"2": 100}
    activate(db, "1")
    assert percents(db) == {"1": 100}


def tables_kept(db: apsw.Connection, act: Callable[[], None]) -> None:
    """A transaction, as the store makes one around every change."""
    with db:
        act()


def test_the_mark_changes_with_every_share_and_with_nothing_else(db: apsw.Connection) -> None:
    publish(db, "1")
    publish(db, "2")
    seen = [rows.mark(db, "default")]
    for percent in (1, 99):
        activate(db, "1", percent)
        activate(db, "1", percent)
        seen.append(rows.mark(db, "default"))
    assert len(set(seen)) == 3
    activate(db, "2")
    assert rows.mark(db, "default") == seen[0]
    assert rows.mark(db, "other") == ""


steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from("1234"), st.integers(1, ALL)),
        st.tuples(st.just("activate"), st.sampled_from("1234"), st.integers(1, ALL)),
        st.tuples(st.just("approve"), st.sampled_from("1234"), st.integers(1, ALL)),
        st.tuples(st.just("deprecate"), st.sampled_from("1234"), st.just(ALL)),
    ),
    max_size=20,
)


@given(steps)
def test_in_any_order_of_changes_all_callers_are_served_or_none_and_a_refused_one_changes_nothing(
    taken: list[tuple[str, str, int]],
) -> None:
    db = opened()
    acts: dict[str, Callable[[str, int], None]] = {
        # Version 4 requests what only an approval gives.
        "publish": lambda version, percent: publish(
            db, version, percent, Grants(hosts=("a.example.com",)) if version == "4" else FREE
        ),
        "activate": lambda version, percent: activate(db, version, percent),
        "approve": lambda version, percent: rows.approve(db, which(version), FREE, LOCAL, percent),
        "deprecate": lambda version, percent: rows.deprecate(db, which(version)),
    }
    for act, version, percent in taken:
        before = state(db)
        try:
            with db:
                acts[act](version, percent)
        except Problem:
            assert state(db) == before
        there = rows.find(db, which(version))
        if there is None:
            continue
        shares = percents(db)
        assert sum(shares.values()) in (0, ALL)
        assert len(shares) <= 2
        kept = {each.version: each for each in rows.history(db, "default", "agent", "helper")}
        assert not any(kept[each].deprecated for each in shares)
        assert [each for each in shares if kept[each].active] == ([] if not shares else [active_of(kept)])
        if not shares:
            assert state(db)[1] == []


def active_of(kept: dict[str, Any]) -> str:
    (active,) = (version for version, each in kept.items() if each.active)
    return str(active)


def state(db: apsw.Connection) -> tuple[Any, Any]:
    versions = db.execute("SELECT version, active, deprecated, approved_by FROM versions ORDER BY n").get
    return versions, db.execute("SELECT * FROM canaries").fetchall()

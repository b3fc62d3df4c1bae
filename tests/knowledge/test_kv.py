"""The key-value store: versions, expiry, quotas, groups of writers, other processes, and a file that fails."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import apsw
import hypothesis
import msgspec
import pytest
import trio
import warm_start
from hypothesis import strategies as st

from storage import kv as module
from storage import kv_rows
from storage.kv import KvStore, KvUnavailable, count_keys, open_kv, read_keys, remove_keys, write_keys
from storage.kv_rows import ENTRY_BYTES, STEP_ROWS, Changed, KvError, KvFull, Place
from storage.lanes import at_once

ROOT = Path(__file__).resolve().parents[2]
NO_BOUND = 1 << 40
encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode


@dataclass
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data" / "engine.kv.sqlite"


@pytest.fixture
async def kv(file: Path, clock: Clock) -> AsyncIterator[KvStore]:
    async with open_kv(file, clock=clock) as store:
        yield store


def place(key: str, tenant: str = "acme", space: str = "agent:a") -> Place:
    return Place(tenant, space, key.encode())


async def put(kv: KvStore, key: str, value: object = 1, *, bound: int = NO_BOUND, **how: object) -> Changed:
    return await kv.set(place(key), encode(value), max_bytes=bound, **how)  # type: ignore[arg-type]


async def value(kv: KvStore, key: str) -> object:
    entry = await kv.get(*place(key))
    return None if entry is None else decode(entry.value)


def mode_of(file: Path) -> int | None:
    return file.stat().st_mode & 0o777 if file.exists() else None


def bytes_of(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None


async def names(kv: KvStore, prefix: str = "", **how: object) -> list[str]:
    found, _ = await kv.listed("acme", "agent:a", prefix.encode(), **{"limit": 1000, **how})  # type: ignore[arg-type]
    return [each.key.decode() for each in found]


async def test_nothing_is_made_before_the_first_change(kv: KvStore, file: Path) -> None:
    assert await kv.get(*place("a")) is None
    assert await names(kv) == []
    assert await kv.delete(place("a")) == Changed(False, 0)
    assert await kv.used_bytes("acme") == 0
    assert mode_of(file) is None
    assert (await put(kv, "a", {"x": [1, None]})).done
    assert mode_of(file) == 0o600
    assert await value(kv, "a") == {"x": [1, None]}


async def test_what_was_set_is_there_after_the_store_was_closed(file: Path) -> None:
    async with open_kv(file) as kv:
        changed = await put(kv, "a", "text")
    async with open_kv(file) as kv:
        entry = await kv.get(*place("a"))
    assert entry is not None
    assert (decode(entry.value), entry.version, entry.expires_at) == ("text", changed.version, None)


async def test_tenants_and_spaces_do_not_see_each_others_keys(kv: KvStore) -> None:
    places = [place("k", tenant, space) for tenant in ("a", "a:b", "A") for space in ("agent:x", "tool:x", "agent:X")]
    for number, each in enumerate(places):
        await kv.set(each, encode(number), max_bytes=NO_BOUND)
    for number, each in enumerate(places):
        entry = await kv.get(*each)
        assert entry is not None
        assert decode(entry.value) == number
        found, _ = await kv.listed(each.tenant, each.space, b"", limit=10)
        assert len(found) == 1


async def test_versions_never_come_again(kv: KvStore) -> None:
    seen = [(await put(kv, "a")).version]
    for _ in range(3):
        assert (await kv.delete(place("a"))).done
        seen += [(await put(kv, "b")).version, (await put(kv, "a")).version]
    assert seen == sorted(set(seen))


async def test_a_change_with_another_version_changes_nothing_and_says_which_it_is(kv: KvStore) -> None:
    first = await put(kv, "a", 1, if_version=0)
    assert first.done
    assert await put(kv, "a", 2, if_version=0) == Changed(False, first.version)
    second = await put(kv, "a", 2, if_version=first.version)
    assert second.done
    assert await put(kv, "a", 3, if_version=first.version) == Changed(False, second.version)
    assert await kv.delete(place("a"), if_version=first.version) == Changed(False, second.version)
    assert await value(kv, "a") == 2
    assert await kv.delete(place("a"), if_version=second.version) == Changed(True, 0)
    assert await put(kv, "a", 3, if_version=second.version) == Changed(False, 0)
    assert await kv.delete(place("a"), if_version=1) == Changed(False, 0)


async def test_a_key_expires_and_is_then_as_one_that_is_not_there(kv: KvStore, clock: Clock) -> None:
    await put(kv, "a", 1, ttl_s=10)
    for _ in range(3):  # the third comes from memory
        assert await value(kv, "a") == 1
    clock.now += 9.9
    assert await value(kv, "a") == 1
    clock.now += 0.2
    assert await value(kv, "a") is None
    assert await names(kv) == []
    assert await kv.delete(place("a")) == Changed(False, 0)
    await put(kv, "b", 1, ttl_s=10)
    clock.now += 11
    assert (await put(kv, "b", 2, if_version=0)).done
    clock.now += 1000
    assert await value(kv, "b") == 2  # set without an expiry, so it has none


async def test_increments_begin_at_0_and_keep_the_expiry(kv: KvStore, clock: Clock) -> None:
    assert (await kv.increment(place("n"), 5, max_bytes=NO_BOUND))[0] == 5
    assert (await kv.increment(place("n"), -7, max_bytes=NO_BOUND))[0] == -2
    await put(kv, "m", 10, ttl_s=60)
    clock.now += 30
    assert (await kv.increment(place("m"), 1, max_bytes=NO_BOUND))[0] == 11
    clock.now += 31
    assert await value(kv, "m") is None
    assert (await kv.increment(place("m"), 1, max_bytes=NO_BOUND))[0] == 1
    clock.now += 1000
    assert await value(kv, "m") == 1


@pytest.mark.parametrize("there", ["text", 1.0, True, [1], {"a": 1}, None, [{}] * 32_000])
async def test_what_is_no_integer_is_not_incremented(kv: KvStore, there: object) -> None:
    await put(kv, "a", there)
    with pytest.raises(KvError, match="not an integer"):
        await kv.increment(place("a"), 1, max_bytes=NO_BOUND)
    assert await value(kv, "a") == there


@pytest.mark.parametrize("damaged", [b"", b"\xc1", b"\xcd\x01", b"\x01\x01"])
async def test_a_damaged_value_is_an_error_of_its_change_alone(kv: KvStore, damaged: bytes) -> None:
    await kv.set(place("a"), damaged, max_bytes=NO_BOUND)
    with pytest.raises(KvError, match="not an integer"):
        await kv.increment(place("a"), 1, max_bytes=NO_BOUND)
    assert (await kv.increment(place("b"), 1, max_bytes=NO_BOUND))[0] == 1


async def test_an_increment_stays_within_64_bits(kv: KvStore) -> None:
    assert (await kv.increment(place("a"), 2**63 - 1, max_bytes=NO_BOUND))[0] == 2**63 - 1
    with pytest.raises(KvError, match="64 bits"):
        await kv.increment(place("a"), 1, max_bytes=NO_BOUND)
    assert await value(kv, "a") == 2**63 - 1


async def test_a_thousand_writers_of_one_key_lose_nothing(kv: KvStore) -> None:
    sums: list[int] = []

    async def writer() -> None:
        sums.append((await kv.increment(place("n"), 1, max_bytes=NO_BOUND))[0])

    async with trio.open_nursery() as nursery:
        for _ in range(1000):
            nursery.start_soon(writer)
    assert sorted(sums) == list(range(1, 1001))
    assert await value(kv, "n") == 1000


async def test_two_stores_on_one_file_see_each_others_changes_at_once(file: Path) -> None:
    async with open_kv(file) as one, open_kv(file) as other:
        for number in range(20):
            await put(one, "a", number)
            for _ in range(3):
                assert await value(other, "a") == number
            await put(other, "a", -number)
            assert await value(one, "a") == -number

        async def writer(kv: KvStore) -> None:
            for _ in range(50):
                await kv.increment(place("n"), 1, max_bytes=NO_BOUND)

        async with trio.open_nursery() as nursery:
            for kv in (one, other) * 3:
                nursery.start_soon(writer, kv)
        assert await value(one, "n") == await value(other, "n") == 300


async def test_a_list_is_in_the_order_of_bytes_and_comes_in_pages(kv: KvStore) -> None:
    keys = ["a", "a%", "a\0", "a_b", "ab", "aé", "a\U0010ffff", "b", "%", "_"]
    for key in keys:
        await put(kv, key)
    ordered = sorted(keys, key=str.encode)
    assert await names(kv) == ordered
    assert await names(kv, "a") == [key for key in ordered if key.startswith("a")]
    assert await names(kv, "a%") == ["a%"]
    assert await names(kv, "a_") == ["a_b"]
    assert await names(kv, "a\0") == ["a\0"]
    assert await names(kv, "\U0010ffff") == []
    paged: list[str] = []
    after: bytes | None = b""
    while after is not None:
        found, after = await kv.listed("acme", "agent:a", b"", after=after, limit=3)
        assert len(found) <= 3
        paged += [each.key.decode() for each in found]
    assert paged == ordered
    assert await kv.listed("acme", "agent:a", b"a", after=b"zzz", limit=3) == ([], None)
    assert await names(kv, "b", after=b"a") == ["b"]


async def test_a_list_reads_a_bounded_number_of_expired_keys(kv: KvStore, clock: Clock) -> None:
    for key in range(STEP_ROWS + 150):
        await put(kv, f"old{key:04}", ttl_s=1)
    await put(kv, "zz")
    clock.now += 2
    found, after = await kv.listed("acme", "agent:a", b"", limit=100)
    assert found == []
    assert after == f"old{STEP_ROWS + 99:04}".encode()
    found, after = await kv.listed("acme", "agent:a", b"", after=after, limit=100)
    assert ([each.key for each in found], after) == ([b"zz"], None)


def test_a_list_costs_as_little_at_its_end_as_at_its_beginning_and_reads_no_value() -> None:
    db = apsw.Connection(":memory:")
    db.execute(kv_rows._SCHEMA)
    row = "INSERT INTO entries(tenant, space, key, value, version) VALUES ('acme', 'agent:a', ?, zeroblob(?), 1)"
    db.executemany(row, ((b"s%05d" % number, 1) for number in range(20_000)))
    db.executemany(row, ((b"t%05d" % number, 60_000) for number in range(200)))
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    def cost(prefix: bytes, after: bytes) -> int:
        nonlocal steps
        steps = 0
        assert kv_rows.listed(db, "acme", "agent:a", prefix, after, 10, 0.0)[0][0].key > after
        return steps

    db.set_progress_handler(count, 10)
    assert cost(b"", b"s19900") <= cost(b"", b"") + 1
    assert cost(b"s", b"s19900") <= cost(b"s", b"") + 1
    db.status(apsw.SQLITE_DBSTATUS_CACHE_HIT, True)
    assert len(kv_rows.listed(db, "acme", "agent:a", b"t", b"", 200, 0.0)[0]) == 200
    hits, _ = db.status(apsw.SQLITE_DBSTATUS_CACHE_HIT, True)
    assert hits < 1_000  # each value has 15 pages


async def test_what_follows_a_list_in_the_file_belongs_to_none(kv: KvStore) -> None:
    await put(kv, "a")
    await kv.set(place("b", space="agent:b"), encode(1), max_bytes=NO_BOUND)
    await kv.set(place("c", tenant="bcme"), encode(1), max_bytes=NO_BOUND)
    for limit in (1, 2, 3):
        found, after = await kv.listed("acme", "agent:a", b"", limit=limit)
        assert ([each.key for each in found], after) == ([b"a"], None)
    assert await kv.listed("acme", "agent:a", b"", after=b"a", limit=1) == ([], None)


# ---- quotas and expiry in the file ----------------------------------------------------------------------------------


async def test_the_sum_of_a_tenant_is_that_of_its_keys_and_bounded(kv: KvStore) -> None:
    size = len("a") + len(encode("x" * 100)) + ENTRY_BYTES
    await put(kv, "a", "x" * 100, bound=size)
    assert await kv.used_bytes("acme") == size
    with pytest.raises(KvFull) as full:
        await put(kv, "b", "x" * 100, bound=2 * size - 1)
    assert (full.value.used, full.value.bound) == (size, 2 * size - 1)
    assert await value(kv, "b") is None
    await put(kv, "b", "x" * 100, bound=2 * size)
    # What makes it smaller, or no larger, is always possible.
    await put(kv, "b", "x" * 50, bound=1)
    await put(kv, "b", "y" * 50, bound=1)
    with pytest.raises(KvFull):
        await kv.increment(place("c"), 1, max_bytes=2 * size)
    assert (await kv.delete(place("a"))).done
    assert await kv.used_bytes("acme") == size - 50
    # Of one tenant alone.
    await kv.set(place("a", "other"), encode(1), max_bytes=size)
    assert await kv.used_bytes("other") == 1 + 1 + ENTRY_BYTES


async def test_writers_at_the_same_time_do_not_exceed_the_bound_together(kv: KvStore) -> None:
    size = len("k00") + len(encode("x")) + ENTRY_BYTES
    full = 0

    async def writer(number: int) -> None:
        nonlocal full
        try:
            await put(kv, f"k{number:02}", "x", bound=10 * size)
        except KvFull:
            full += 1

    async with trio.open_nursery() as nursery:
        for number in range(60):
            nursery.start_soon(writer, number)
    assert (full, len(await names(kv)), await kv.used_bytes("acme")) == (50, 10, 10 * size)


async def test_expired_keys_are_removed_in_steps_and_no_longer_count(kv: KvStore, clock: Clock) -> None:
    for key in range(STEP_ROWS + 10):
        await put(kv, f"k{key}", ttl_s=1)
    await put(kv, "stays", ttl_s=100)
    used = await kv.used_bytes("acme")
    clock.now += 2
    assert await kv.prune() == STEP_ROWS + 10
    assert await kv.prune() == 0
    assert await kv.used_bytes("acme") == len("stays") + 1 + ENTRY_BYTES < used
    assert await names(kv) == ["stays"]


@hypothesis.given(
    st.lists(
        st.tuples(
            st.sampled_from(["set", "incr", "delete", "tick", "prune", "list"]),
            st.sampled_from(["a", "b", "b\0", "é"]),
            st.integers(0, 3),
            st.sampled_from([None, 1, 5]),
        ),
        max_size=40,
    )
)
def test_it_behaves_as_a_table_in_memory(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple]) -> None:  # type: ignore[type-arg]
    file, clock = tmp_path_factory.mktemp("kv") / "kv.sqlite", Clock()

    async def check() -> None:
        table: dict[str, tuple[object, float | None]] = {}

        def alive() -> dict[str, object]:
            return {key: v for key, (v, end) in table.items() if end is None or end > clock.now}

        async with open_kv(file, clock=clock) as kv:
            for what, key, number, ttl_s in steps:
                if what == "set":
                    await put(kv, key, number, ttl_s=ttl_s)
                    table[key] = (number, None if ttl_s is None else clock.now + ttl_s)
                elif what == "incr":
                    before = alive().get(key, 0)
                    assert isinstance(before, int)
                    assert (await kv.increment(place(key), number, max_bytes=NO_BOUND))[0] == before + number
                    table[key] = (before + number, table[key][1] if key in alive() else None)
                elif what == "delete":
                    assert (await kv.delete(place(key))).done == (key in alive())
                    table.pop(key, None)
                elif what == "tick":
                    clock.now += number
                elif what == "prune":
                    await kv.prune()
                    table = {name: table[name] for name in alive()}
                else:
                    assert await names(kv) == sorted(alive(), key=str.encode)
                assert await value(kv, key) == alive().get(key)
            sizes = (len(key.encode()) + len(encode(v)) + ENTRY_BYTES for key, (v, _) in table.items())
            assert await kv.used_bytes("acme") == sum(sizes)

    trio.run(check)


# ---- whole tenants ----------------------------------------------------------------------------------------------


async def test_a_tenants_keys_are_deleted_and_nothing_of_them_stays_in_the_file(
    kv: KvStore, file: Path, clock: Clock
) -> None:
    for key in range(STEP_ROWS + 5):
        await put(kv, f"k{key}", "a-word-that-is-nowhere-else")
    await put(kv, "large", "a-word-that-is-nowhere-else" * 1000)
    await kv.set(place("k", "other"), encode("stays"), max_bytes=NO_BOUND)
    assert count_keys(file, "acme") == STEP_ROWS + 6
    assert await trio.to_thread.run_sync(remove_keys, file, "acme", clock.now) == STEP_ROWS + 6
    assert count_keys(file, "acme") == 0
    assert await kv.used_bytes("acme") == 0
    assert await value(kv, "k1") is None
    content = b"".join(each.read_bytes() for each in file.parent.iterdir())
    assert b"a-word-that-is-nowhere-else" not in content
    assert b"stays" in content
    # A run of the tenant that has not ended yet.
    with pytest.raises(KvError, match="deleted with it"):
        await put(kv, "k")
    clock.now += kv_rows.CLOSED_S + 1
    assert (await put(kv, "k")).done
    assert await trio.to_thread.run_sync(remove_keys, file, "never-seen", clock.now) == 0


async def test_a_step_removes_few_large_values(kv: KvStore, file: Path, clock: Clock) -> None:
    for key in range(80):
        await put(kv, f"k{key}", "x" * 60_000, ttl_s=1)
    db = apsw.Connection(str(file))
    steps = []
    while removed := at_once(lambda db: kv_rows.prune(db, clock.now + 2), db):
        steps.append(removed)
    assert steps == [35, 35, 10]
    assert await kv.used_bytes("acme") == 0


async def test_a_deleted_tenants_run_cannot_set_the_first_key_of_all(kv: KvStore, file: Path, clock: Clock) -> None:
    assert await trio.to_thread.run_sync(remove_keys, file, "acme", clock.now) == 0  # there is no file before
    with pytest.raises(KvError, match="deleted with it"):
        await put(kv, "a")
    assert count_keys(file, "acme") == 0


async def test_a_tenants_keys_are_read_and_written_whole(kv: KvStore, file: Path, tmp_path: Path, clock: Clock) -> None:
    await put(kv, "a", {"x": 1})
    await put(kv, "b", 2, ttl_s=50)
    everything = list(read_keys(file, "acme"))
    assert [(space, key) for space, key, _ in everything] == [("agent:a", b"a"), ("agent:a", b"b")]
    there = tmp_path / "there" / "kv.sqlite"
    remove_keys(file, "moved", clock.now)
    assert write_keys(there, "moved", iter(everything), clock.now) == 2
    assert write_keys(file, "moved", iter(everything), clock.now) == 2
    async with open_kv(there, clock=clock) as other:
        entry = await other.get("moved", "agent:a", b"a")
        assert entry is not None
        assert decode(entry.value) == {"x": 1}
        assert await other.used_bytes("moved") == await kv.used_bytes("acme")
        assert (await other.set(place("c", "moved"), encode(1), max_bytes=NO_BOUND)).done
    assert (await kv.set(place("c", "moved"), encode(1), max_bytes=NO_BOUND)).done


def test_there_is_nothing_of_a_tenant_where_there_is_no_file(file: Path) -> None:
    assert count_keys(file, "acme") == len(list(read_keys(file, "acme"))) == 0
    assert not file.exists()
    assert remove_keys(file, "acme", 0.0) == 0


# ---- what fails ------------------------------------------------------------------------------------------------------


def _text(path: Path) -> None:
    path.write_text("this is not a database, and long enough to be read as one: " + "x" * 200)


def _of_another_program(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE t(x)")
    db.close()


def _newer(path: Path) -> None:
    with kv_rows.connected(_empty(path), 1) as db:
        db.pragma("user_version", 99)


def _empty(path: Path) -> Path:
    path.touch()
    return path


@pytest.mark.parametrize("spoil", [_text, _of_another_program, _newer, Path.mkdir])
async def test_a_file_that_is_no_store_is_refused_and_left_as_it_is(
    file: Path, spoil: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    os.mkdir(file.parent)
    spoil(file)
    before = bytes_of(file)
    async with open_kv(file) as kv:
        for operation in (kv.get(*place("a")), put(kv, "a"), kv.used_bytes("acme"), kv.delete(place("a"))):
            with pytest.raises(KvUnavailable, match=r"cannot be opened; the engine's log says why$"):
                await operation
        assert bytes_of(file) == before
        (os.rmdir if before is None else os.unlink)(file)
        assert (await put(kv, "a")).done


async def test_a_locked_file_is_an_error_and_the_next_change_works(
    kv: KvStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUSY_TIMEOUT_S", 0.1)
    await put(kv, "a", 1)
    other = apsw.Connection(str(file))
    other.set_busy_timeout(5_000)  # the store removes what has expired, as soon as it is open
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(KvUnavailable, match="the key-value store is locked by another process"):
        await put(kv, "a", 2)
    assert await value(kv, "a") == 1  # readers go on
    other.execute("ROLLBACK")
    other.close()
    assert (await put(kv, "a", 2)).done


async def test_a_full_disk_is_an_error_for_every_change_of_the_group_and_nothing_of_it_is_made(kv: KvStore) -> None:
    await put(kv, "a", 1)
    assert kv._writer is not None
    await kv._writer.run(lambda db: db.pragma("max_page_count", db.pragma("page_count")))
    failed: list[str] = []

    async def writer(number: int) -> None:
        try:
            await put(kv, f"k{number}", "x" * 5000)
        except KvUnavailable as error:
            failed.append(str(error))

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(writer, number)
    assert failed == ["the disk that holds the key-value store is full; nothing was changed"] * 5
    assert await names(kv) == ["a"]
    await kv._writer.run(lambda db: db.pragma("max_page_count", 1 << 30))
    assert (await put(kv, "a", 2)).done


async def test_a_change_that_is_cancelled_leaves_the_others_alone(kv: KvStore) -> None:
    await put(kv, "a", 0)
    async with trio.open_nursery() as nursery:

        async def impatient() -> None:
            with trio.CancelScope() as scope:
                nursery.start_soon(cancel, scope)
                await put(kv, "a", "lost or whole")

        async def cancel(scope: trio.CancelScope) -> None:
            scope.cancel()

        for _ in range(20):
            nursery.start_soon(impatient)
        nursery.start_soon(put, kv, "b", 1)
    assert await value(kv, "b") == 1
    assert await value(kv, "a") in (0, "lost or whole")
    assert (await put(kv, "a", 2)).done


WRITER = """
import sys, trio
from pathlib import Path
from storage.kv import open_kv
from storage.kv_rows import Place

async def main():
    async with open_kv(Path(sys.argv[1])) as kv:
        while True:
            number, _ = await kv.increment(Place("acme", "agent:a", b"n"), 1, max_bytes=1 << 40)
            sys.stdout.write(f"{number}\\n")
            sys.stdout.flush()

trio.run(main)
"""


def killed_writer(file: Path) -> int:
    """The last answer of a process that was killed while it wrote."""
    process = warm_start.Popen([sys.executable, "-c", WRITER, str(file)], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    answered = [process.stdout.readline() for _ in range(30)]
    process.kill()
    answered += process.stdout.readlines()
    process.stdout.close()
    process.wait()
    return int(answered[-1] if answered[-1].endswith(b"\n") else answered[-2])


async def test_what_was_answered_is_there_after_the_process_was_killed(file: Path) -> None:
    last = await trio.to_thread.run_sync(killed_writer, file)
    async with open_kv(file) as kv:
        there = await value(kv, "n")
    assert isinstance(there, int)
    assert last <= there <= last + 1


async def test_what_the_block_raises_leaves_it_as_it_is(file: Path) -> None:
    async def use() -> None:
        async with open_kv(file) as kv:
            await put(kv, "a")
            raise KeyError

    with pytest.raises(KeyError):
        await use()

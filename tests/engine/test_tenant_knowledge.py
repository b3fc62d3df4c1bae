"""Every tenant's documents are in a file of its own: opened when asked for, a few at once, and gone when deleted."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
import trio.testing
from engine_support import run, small_config

from engine.bridge import knowledge
from engine.config import parse_config
from engine.engine import open_engine
from engine.tenant import DEFAULT_TENANT, Tenant
from knowledge import stores as stores_module
from knowledge.access import EVERYTHING
from knowledge.sqlite.store import open_store
from knowledge.store import Batch, BrowsableStore, EmbeddingsDisabled, NewDocument, SearchQuery, StoreError
from knowledge.stores import Stores, open_stores, remove_store, store_files, store_path, stored_bytes

SOURCE = "filesystem:docs"
ALL_CALLS = frozenset({"context.search", "context.get", "context.sources"})


def document(source_id: str, text: str) -> NewDocument:
    return NewDocument(source_id=source_id, body=text, chunks=[text], digest=text, title=source_id)


async def fill(path: Path, *documents: NewDocument, max_bytes: int | None = None) -> None:
    async with open_store(path, create=True, max_bytes=max_bytes) as store:
        await store.apply(Batch(source=SOURCE, upserts=documents))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "engine.sqlite"


def configured(tenant: str) -> dict[str, str | None]:
    return {f"filesystem:{tenant}": None}


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Stores]:
    async with (
        open_store(path, create=True) as house,
        open_stores({"default": house}, partial(store_path, path), configured) as stores,
    ):
        yield stores


async def ids(store: BrowsableStore, query: str) -> list[str]:
    return [hit.source_id for hit in (await store.search(SearchQuery(query=query), EVERYTHING)).hits]


# ---- whose is whose ---------------------------------------------------------------------------------------------


async def test_each_tenant_finds_gets_and_lists_its_own_documents_and_no_others(path: Path) -> None:
    await fill(path, document("house", "shared word"))
    await fill(store_path(path, "acme"), document("theirs", "shared word"))
    await fill(store_path(path, "zeta"), document("hers", "shared word"))
    async with opened(path) as stores:
        for tenant, mine in (("default", "house"), ("acme", "theirs"), ("zeta", "hers")):
            store = stores.store_of(tenant)
            (hit,) = (await store.search(SearchQuery(query="shared"), EVERYTHING)).hits
            assert hit.source_id == mine
            assert [listed.source_id for listed in await store.documents(EVERYTHING, limit=10)] == [mine]
            assert await store.titles("", None, EVERYTHING, limit=10) == (mine,)
            assert await store.titled(SOURCE, mine, EVERYTHING, limit=10) == (hit.id,)
            assert set(await store.digests([hit.id], EVERYTHING)) == {hit.id}
        # Ids are of a source and a name in it, so another tenant may have the same one: its own document is behind it.
        acme = await ids(stores.store_of("acme"), "shared")
        assert acme == ["theirs"]


async def test_an_id_of_another_tenants_is_as_unknown_as_one_that_never_was(path: Path) -> None:
    await fill(store_path(path, "acme"), document("theirs", "secret plan"))
    async with opened(path) as stores:
        ((theirs),) = (await stores.store_of("acme").search(SearchQuery(query="plan"), EVERYTHING)).hits
        for tenant in ("default", "zeta"):
            assert await stores.store_of(tenant).get(theirs.id, EVERYTHING) is None
            assert await stores.store_of(tenant).digests([theirs.id], EVERYTHING) == {}
        found = await stores.store_of("acme").get(theirs.id, EVERYTHING)
        assert found is not None
        assert found.body == "secret plan"


async def test_the_sources_of_a_tenant_are_those_that_the_configuration_gives_it(path: Path) -> None:
    await fill(store_path(path, "acme"), document("a", "x"))
    async with opened(path) as stores:
        assert [(source.source, source.configured) for source in await stores.store_of("acme").sources(EVERYTHING)] == [
            ("filesystem:acme", True), (SOURCE, False),
        ]  # fmt: skip
        # Also where there is no file yet.
        assert [source.source for source in await stores.store_of("zeta").sources(EVERYTHING)] == ["filesystem:zeta"]


def test_a_connector_belongs_to_the_tenants_that_it_names_and_without_to_the_default_one() -> None:
    text = """
        [connectors.filesystem.own]
        root = "."
        [connectors.filesystem.theirs]
        root = "."
        tenants = ["acme"]
        [connectors.git.all]
        url = "u"
        tenants = ["*"]
    """
    config, _ = parse_config(text, environ={}, cwd=Path("/nonexistent"))
    assert config.connectors.labels() == ("filesystem:own", "git:all")
    assert config.connectors.labels("acme") == ("filesystem:theirs", "git:all")
    assert set(config.connectors.problems("zeta")) == {"git:all"}


# ---- files ------------------------------------------------------------------------------------------------------


async def test_asking_a_tenant_that_has_nothing_makes_no_file(path: Path) -> None:
    async with opened(path) as stores:
        store = stores.store_of("acme")
        assert await ids(store, "anything") == []
        assert await store.get("x", EVERYTHING) is None
        assert await store.documents(EVERYTHING, limit=5) == ()
        assert await store.revision(EVERYTHING) == await store.revision(EVERYTHING)
        assert await stores.stored_bytes("acme") == 0
        with pytest.raises(EmbeddingsDisabled):
            await store.search(SearchQuery(query="x", mode="semantic"), EVERYTHING)
        assert stores.open == 0
    assert not (path.parent / "tenants").exists()


async def test_what_is_synchronised_while_the_engine_serves_is_found_and_seen_as_a_change(path: Path) -> None:
    async with opened(path) as stores:
        store = stores.store_of("acme")
        before = await store.revision(EVERYTHING)
        await fill(store_path(path, "acme"), document("a", "first words"))
        assert await ids(store, "words") == ["a"]
        between = await store.revision(EVERYTHING)
        await fill(store_path(path, "acme"), document("b", "second words"))
        assert sorted(await ids(store, "words")) == ["a", "b"]
        assert len({before, between, await store.revision(EVERYTHING)}) == 3


async def test_a_deleted_tenants_documents_are_gone_at_once_and_a_new_one_of_the_name_starts_empty(path: Path) -> None:
    acme = store_path(path, "acme")
    await fill(acme, document("old", "old words"))
    async with opened(path) as stores:
        assert await ids(stores.store_of("acme"), "words") == ["old"]
        assert stores.open == 1
        removed = remove_store(acme)  # as another process does it
        assert acme in removed
        assert await ids(stores.store_of("acme"), "words") == []
        assert stores.open == 0
        await fill(acme, document("new", "new words"))
        assert await ids(stores.store_of("acme"), "words") == ["new"]


async def test_removing_a_store_leaves_nothing_of_it_and_everything_of_others(path: Path) -> None:
    acme, other = store_path(path, "acme"), store_path(path, "acme.sqlite")
    for each in (acme, other):
        await fill(each, document("a", "x"))
        async with open_store(each, create=True) as store, store.sync_lock("filesystem:docs"):
            pass
    assert len(store_files(acme)) == 2
    before = store_files(other)
    remove_store(acme)
    assert store_files(acme) == []
    assert store_files(other) == before
    assert remove_store(acme) == []
    assert stored_bytes(acme) == 0
    assert stored_bytes(other) > 0


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a\\b", "a b", "ä", "x" * 65, "a\0b", "a\n"])
def test_no_name_leads_out_of_the_folder_of_tenants(path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a tenant's store"):
        store_path(path, name)


def test_odd_names_stay_in_the_folder_of_tenants(path: Path) -> None:
    for name in (".", "..", "-", "a.sqlite-wal", "default.sqlite"):
        assert store_path(path, name).parent == path.parent / "tenants"
        assert store_path(path, name).name == f"{name}.sqlite"
    assert store_path(path, "default") == path


# ---- a few at once ----------------------------------------------------------------------------------------------


async def test_no_more_stores_are_open_than_the_bound_and_the_one_asked_longest_ago_goes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores_module, "MAX_OPEN", 2)
    for name in "abc":
        await fill(store_path(path, name), document(name, "words"))
    async with opened(path) as stores:
        for name in "abacb":
            assert await ids(stores.store_of(name), "words") == [name]
            assert stores.open <= 2
        assert set(stores._stores) == {"b", "c"}


async def test_who_comes_when_all_are_in_use_waits_for_one_to_be_free(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores_module, "MAX_OPEN", 1)
    for name in "ab":
        await fill(store_path(path, name), document(name, "words"))
    found: list[str] = []

    async def ask(name: str) -> None:
        found.extend(await ids(stores.store_of(name), "words"))

    async with opened(path) as stores:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery, stores.borrowed("a"):
                nursery.start_soon(ask, "b")
                await trio.testing.wait_all_tasks_blocked()
                await ask("a")  # the same tenant need not wait for itself
                assert found == ["a"]
        assert found == ["a", "b"]
        assert set(stores._stores) == {"b"}


async def test_a_hundred_askers_at_once_of_many_tenants_all_get_their_own(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores_module, "MAX_OPEN", 3)
    names = [f"t{n}" for n in range(6)]
    for name in names:
        await fill(store_path(path, name), document(name, "words"))
    wrong: list[Any] = []

    async def ask(name: str, cancelled: bool) -> None:
        with trio.CancelScope() as scope:
            if cancelled:
                scope.cancel()
            found = await ids(stores.store_of(name), "words")
            if found != [name]:
                wrong.append((name, found))

    async with opened(path) as stores:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for n in range(102):
                    nursery.start_soon(ask, names[n % 6], n % 17 == 0)
        assert wrong == []
        assert stores.open <= 3
        assert await ids(stores.store_of("t0"), "words") == ["t0"]
        assert all(held.users == 0 for held in stores._stores.values())


async def test_an_idle_store_is_closed_after_a_while(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores_module, "IDLE_S", 0.02)
    await fill(store_path(path, "acme"), document("a", "words"))
    async with opened(path) as stores:
        assert await ids(stores.store_of("acme"), "words") == ["a"]
        with trio.fail_after(20):
            while True:
                await trio.sleep(0.01)
                if not stores.open:
                    break
        assert await ids(stores.store_of("acme"), "words") == ["a"]


async def test_a_damaged_store_is_an_error_of_its_tenant_alone(path: Path) -> None:
    acme = store_path(path, "acme")
    await fill(path, document("house", "words"))
    acme.parent.mkdir(parents=True)
    acme.write_bytes(b"not a database at all, but something else" * 100)
    async with opened(path) as stores:
        for _ in range(2):
            with pytest.raises(StoreError, match="is not a SQLite database"):
                await ids(stores.store_of("acme"), "words")
        assert stores.open == 0
        assert await ids(stores.store_of("default"), "words") == ["house"]
        remove_store(acme)
        await fill(acme, document("a", "words"))
        assert await ids(stores.store_of("acme"), "words") == ["a"]


# ---- the quota --------------------------------------------------------------------------------------------------


async def test_a_store_at_its_bound_takes_no_more_documents_and_keeps_what_it_has(path: Path) -> None:
    await fill(path, document("a", "small"))
    bound = stored_bytes(path) + 20_000
    with pytest.raises(StoreError, match=rf"its limit is {bound} \(quota stored_bytes\)"):
        await fill(path, document("b", "large " * 100_000), max_bytes=bound)
    async with open_store(path) as store:
        assert await ids(store, "small") == ["a"]
        assert await ids(store, "large") == []
    # Deleting is possible beyond the bound, and makes room.
    async with open_store(path, max_bytes=1) as store:
        await store.apply(Batch(source=SOURCE, deletes=["a"]))
    await fill(path, document("b", "small again"), max_bytes=bound)
    assert apsw.Connection(str(path)).pragma("integrity_check") == "ok"


# ---- from a script ----------------------------------------------------------------------------------------------


async def test_a_script_searches_the_documents_of_its_tenant(path: Path) -> None:
    await fill(path, document("house", "words"))
    await fill(store_path(path, "acme"), document("theirs", "words"))
    body = "local hits = context.search('words') return {hits[1] and hits[1].source_id or '', #context.sources()}"
    async with opened(path) as stores:
        of: Callable[[str], BrowsableStore] = stores.store_of
        async with open_engine(small_config(), knowledge.functions(of, default_limit=5)) as engine:
            for tenant, expected in (
                (DEFAULT_TENANT, ["house", 1]),
                (Tenant("acme"), ["theirs", 2]),
                (Tenant("x"), ["", 1]),
            ):
                result = await run(engine, body, tenant=tenant, grants=ALL_CALLS)
                assert result.value == expected, result.failure

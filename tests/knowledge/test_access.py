"""Who may read what: the rules alone, and every read of a store against a model of them."""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
from effort import effort
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knowledge.access import (
    EVERYTHING,
    MAX_LABELS,
    PUBLIC,
    Access,
    Reader,
    SourceAccess,
    check_labels,
    is_label,
    labels_text,
    parse_labels,
)
from knowledge.sqlite.store import SqliteStore, open_store
from knowledge.store import Batch, NewDocument, SearchQuery, SyncMark

NAMES = ("hr", "legal", "ops")
SOURCES = ("filesystem:docs", "git:docs", "git:runbooks")
LABEL_SETS = st.frozensets(st.sampled_from(NAMES))

HR, LEGAL, NOBODY = Reader.of(["hr"]), Reader.of(["legal"]), Reader.of([])

# ---- the rules ------------------------------------------------------------------------------------------------------

LABELS = {
    "hr": True, "HR_2": True, "team:hr": True, "a.b-c": True, "_x": True, "7": True, "x" * 64: True,
    "": False, "x" * 65: False, " hr": False, "hr ": False, "a,b": False, "-x": False, ".x": False, ":x": False,
    "hr\n": False, "é": False, "a b": False, "hr\0": False, "\u0661": False,
}  # fmt: skip


@pytest.mark.parametrize(("text", "right"), LABELS.items())
def test_a_label_is_up_to_64_plain_characters(text: str, right: bool) -> None:
    assert is_label(text) is right
    if not right:
        with pytest.raises(ValueError, match="no label"):
            check_labels([text])


def test_labels_on_a_command_line_are_separated_by_commas_and_bounded() -> None:
    assert parse_labels("hr, legal,,hr") == {"hr", "legal"}
    assert parse_labels("") == parse_labels(" , ") == frozenset()
    assert len(check_labels(f"l{n}" for n in range(MAX_LABELS))) == MAX_LABELS
    with pytest.raises(ValueError, match="more than 32"):
        check_labels(f"l{n}" for n in range(MAX_LABELS + 1))


def test_a_document_without_labels_is_everyones_and_one_with_some_needs_one_of_them() -> None:
    assert NOBODY.meets([])
    assert not NOBODY.meets(["hr"])
    assert HR.meets(["hr", "legal"])
    assert not HR.meets(["legal"])
    assert EVERYTHING.meets(["hr"])


def test_inside_a_script_a_document_meets_the_key_and_the_script() -> None:
    inside = Reader.of(["hr"]).within(["legal"])
    assert inside.meets(["hr", "legal"])
    assert not inside.meets(["hr"])
    assert not inside.meets(["legal"])
    assert not inside.within([]).meets(["hr", "legal"])
    assert EVERYTHING.within(["hr"]) == HR


@pytest.mark.parametrize("names", [["git:runbooks"], ["runbooks"], ["git"]])
def test_sources_are_named_as_in_a_search(names: list[str]) -> None:
    reader = Reader.of(None, names)
    assert reader.may_read("git:runbooks")
    assert not reader.may_read("filesystem:docs")
    assert not reader.within(None, ["filesystem"]).may_read("git:runbooks")
    assert not Reader.of(None, []).may_read("git:runbooks")


@settings(max_examples=effort(200))
@given(st.lists(LABEL_SETS, max_size=5), LABEL_SETS)
def test_a_reader_keeps_no_condition_that_another_one_implies(
    conditions: list[frozenset[str]], of: frozenset[str]
) -> None:
    forwards, backwards = EVERYTHING, EVERYTHING
    for each in conditions:
        forwards = forwards.within(each)
    for each in reversed(conditions):
        backwards = backwards.within(each)
    assert forwards == backwards
    assert hash(forwards) == hash(backwards)
    assert forwards.meets(of) == (not of or all(of & each for each in conditions))
    assert not any(one < other for one in forwards.labels for other in forwards.labels)


GLOBS: Mapping[tuple[str, str], bool] = {
    ("hr/**", "hr/pay.md"): True, ("hr/**", "hr/a/b.md"): True, ("hr/**", "x/hr/pay.md"): False,
    ("hr/", "hr/pay.md"): True, ("hr/", "x/hr/pay.md"): True, ("hr", "hr/pay.md"): True, ("hr", "hr"): True,
    ("/hr", "hr/pay.md"): True, ("/hr", "x/hr/pay.md"): False, ("/hr/", "/hr/pay.md"): True,
    ("*.md", "a/b.md"): True, ("secret.md", "a/secret.md"): True, ("secret.md", "a/secret.mdx"): False,
    ("**/pay*", "a/pay.md"): True, ("**", "anything"): True, ("/", "anything"): True, ("*", "a/b"): True,
    ("hr/*", "hr/a/b.md"): True, ("{hr,legal}/**", "legal/x"): True, ("hr", "shr/x"): False, ("hr", "hrx/y"): False,
    ("https://example.com/hr/**", "https://example.com/hr/pay"): True, ("acme/api#*", "acme/api#12"): True,
}  # fmt: skip


@pytest.mark.parametrize(("case", "matches"), GLOBS.items(), ids=str)
def test_a_rule_matches_a_file_a_folder_or_a_pattern(case: tuple[str, str], matches: bool) -> None:
    glob, source_id = case
    assert (Access.of(rules=[(glob, ["hr"])]).labels_of(source_id) == {"hr"}) is matches


def test_the_first_rule_that_matches_counts_and_comes_before_the_sources_own_labels() -> None:
    access = Access.of(["staff"], [("hr/open/**", []), ("hr/**", ["hr"]), ("**", ["late"])])
    assert access.labels_of("hr/open/a") == frozenset()
    assert access.labels_of("hr/a") == {"hr"}
    assert access.labels_of("b") == {"late"}
    assert Access.of(["staff"], [("hr/**", ["hr"])]).labels_of("b") == {"staff"}
    assert PUBLIC.digest == Access.of(rules=[("x", [])]).digest == ""
    assert len({Access.of(["a"]).digest, Access.of(["b"]).digest, Access.of(rules=[("a", ["a"])]).digest, ""}) == 4


# ---- every read of a store ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """A document of the model: its source, id, own labels, and the words of its title and text."""

    source: str
    number: int
    own: frozenset[str]
    folder: str

    @property
    def source_id(self) -> str:
        return f"{self.folder}/d{self.number}.md"

    @property
    def title(self) -> str:
        return f"Title {self.folder} d{self.number}"

    def new(self) -> NewDocument:
        text = f"common word{self.number} {self.folder}"
        return NewDocument(
            source_id=self.source_id, body=text, chunks=(text,), digest="d", title=self.title, access=self.own
        )


@dataclass(frozen=True)
class Model:
    """Documents, and the labels that the configuration gives them."""

    documents: tuple[Made, ...]
    access: Mapping[str, Access] = field(default_factory=dict)

    def labels(self, of: Made) -> frozenset[str]:
        return of.own or self.access.get(of.source, PUBLIC).labels_of(of.source_id)

    def visible(self, reader: Reader) -> list[Made]:
        return [each for each in self.documents if reader.sees(each.source, self.labels(each))]


MADE = st.builds(
    Made, source=st.sampled_from(SOURCES), number=st.integers(1, 6), own=st.one_of(st.just(frozenset()), LABEL_SETS),
    folder=st.sampled_from(("hr", "open", "deep/hr")),
)  # fmt: skip
ACCESS = st.builds(
    Access.of,
    LABEL_SETS,
    st.lists(st.tuples(st.sampled_from(("hr/**", "hr", "**/d1*", "open")), LABEL_SETS), max_size=3),
)
MODELS = st.builds(
    Model, st.lists(MADE, max_size=10, unique_by=lambda each: (each.source, each.source_id)).map(tuple),
    st.dictionaries(st.sampled_from(SOURCES), ACCESS),
)  # fmt: skip
CONDITIONS = st.one_of(st.none(), LABEL_SETS)
NAMED = st.one_of(st.none(), st.frozensets(st.sampled_from((*SOURCES, "git", "docs", "nothing")), max_size=2))
READERS = st.lists(st.tuples(CONDITIONS, NAMED), max_size=3).map(lambda each: _within(each))


def _within(conditions: Iterable[tuple[Any, Any]]) -> Reader:
    reader = EVERYTHING
    for labels, sources in conditions:
        reader = reader.within(labels, sources)
    return reader


async def write(store: SqliteStore, documents: Iterable[Made]) -> None:
    for source in SOURCES:
        mine = [each.new() for each in documents if each.source == source]
        async with store.sync_lock(source):
            await store.apply(Batch(source=source, upserts=mine, mark=SyncMark(at="2026-01-01T00:00:00Z")))


async def check_reads(store: SqliteStore, model: Model, reader: Reader) -> None:
    """Every read finds exactly what the model shows."""
    visible = model.visible(reader)
    shown = {(each.source, each.source_id) for each in visible}
    everything = await store.documents(EVERYTHING, limit=1000)
    assert len(everything) == len(model.documents)
    listed = await store.documents(reader, limit=1000)
    assert {(each.source, each.source_id) for each in listed} == shown
    paged = await store.documents(reader, after=(listed[0].source, listed[0].source_id), limit=2) if listed else ()
    assert paged == listed[1:3]
    ids = {each.id for each in listed}
    for passages in (0, 2):
        query = SearchQuery(query="common", limit=100, passages=passages)
        assert {hit.id for hit in (await store.search(query, reader)).hits} == ids
    if len(listed) > 1:  # a limit counts only what is shown
        assert len((await store.search(SearchQuery(query="common", limit=len(listed)), reader)).hits) == len(listed)
    for each in everything:
        found = await store.get(each.id, reader)
        assert (found is not None) is (each.id in ids)
    assert set(await store.digests([each.id for each in everything], reader)) == ids
    for each in model.documents:
        found_titles = await store.titled(each.source, each.title, reader, limit=9)
        assert len(found_titles) == ((each.source, each.source_id) in shown)
    titles = {each.title for each in visible}
    assert set(await store.titles("", None, reader, limit=1000)) == titles
    assert set(await store.titles("title", None, reader, limit=1000)) == titles
    counts = {info.source: info.document_count for info in await store.sources(reader) if info.document_count}
    assert counts == {source: n for source in SOURCES if (n := sum(each.source == source for each in visible))}
    stats = await store.stats(reader)
    assert (stats.documents, stats.chunks) == (len(visible), len(visible))
    exported = await store.export(reader)
    assert {each["id"] for each in exported["documents"]} == {each["document_id"] for each in exported["chunks"]} == ids


@settings(max_examples=effort(25), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(model=MODELS, changed=MODELS, readers=st.lists(READERS, min_size=1, max_size=3))
def test_each_read_finds_exactly_what_the_model_shows(
    model: Model, changed: Model, readers: list[Reader], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("store") / "s.sqlite"

    async def scenario() -> None:
        async with open_store(path, create=True, access=SourceAccess(known(model))) as store:
            await write(store, model.documents)
            for reader in readers:
                await check_reads(store, model, reader)
        # The configuration changes, and nothing else: the next sync labels what is there.
        later = replace(model, access=changed.access)
        async with open_store(path, access=SourceAccess(known(later))) as store:
            await write(store, ())
            for reader in readers:
                await check_reads(store, later, reader)

    trio.run(scenario)


def known(model: Model) -> Mapping[str, Access]:
    return {source: model.access.get(source, PUBLIC) for source in SOURCES}


def same_as(listed: Iterable[Any]) -> str:
    return json.dumps(sorted(each.source_id for each in listed))


# ---- when the configuration changes ---------------------------------------------------------------------------------

SOURCE = SOURCES[0]
PAY = Made(SOURCE, 1, frozenset(), "hr")
OPEN = Made(SOURCE, 2, frozenset(), "open")


async def seen(store: SqliteStore, reader: Reader) -> set[str]:
    return {each.folder for each in (PAY, OPEN) if each.source_id in same_as(await store.documents(reader, limit=9))}


@pytest.fixture
async def filled(path: Path) -> Path:
    async with open_store(path, create=True, access=SourceAccess({SOURCE: PUBLIC})) as store:
        await write(store, (PAY, OPEN))
    return path


async def label(path: Path, access: SourceAccess) -> None:
    """What a sync does first."""
    async with open_store(path, access=access) as store, store.sync_lock(SOURCE):
        pass


async def test_until_the_next_sync_new_labels_hide_their_source_from_readers_without_them(filled: Path) -> None:
    rules = SourceAccess({SOURCE: Access.of(rules=[("hr/**", ["hr"])])})
    async with open_store(filled, access=rules) as store:
        assert await seen(store, NOBODY) == set()
        assert await store.sources(NOBODY) == ()
        assert await seen(store, HR) == await seen(store, EVERYTHING) == {"hr", "open"}
        async with store.sync_lock(SOURCE):
            pass
    async with open_store(filled, readonly=True, access=rules) as store:
        assert await seen(store, NOBODY) == {"open"}
        assert await seen(store, HR) == {"hr", "open"}


async def test_labels_that_are_removed_hide_until_the_next_sync(filled: Path) -> None:
    await label(filled, SourceAccess({SOURCE: Access.of(["hr"])}))
    async with open_store(filled, access=SourceAccess({SOURCE: PUBLIC})) as store:
        assert await seen(store, NOBODY) == set()
        async with store.sync_lock(SOURCE):
            pass
        assert await seen(store, NOBODY) == {"hr", "open"}


async def test_a_server_with_an_older_configuration_follows_the_sync_of_a_newer_one(filled: Path) -> None:
    old = SourceAccess({SOURCE: Access.of(["hr"])}, time.time())
    async with open_store(filled, access=old) as served:
        async with served.sync_lock(SOURCE):
            pass
        assert await seen(served, NOBODY) == set()
        newer = SourceAccess({SOURCE: Access.of(rules=[("hr/**", ["legal"])])})
        await label(filled, newer)
        async with served.sync_lock(SOURCE):  # its own sync, which leaves the labels as they are
            pass
        assert await seen(served, NOBODY) == {"open"}
        assert await seen(served, LEGAL) == {"hr", "open"}
        await write(served, (PAY,))  # by the older one: in doubt, hidden from both configurations' readers
        assert await seen(served, NOBODY) == set()
        async with open_store(filled, readonly=True, access=newer) as store:
            assert await seen(store, NOBODY) == set()
        await label(filled, newer)
        assert await seen(served, NOBODY) == {"open"}


async def test_what_is_written_without_the_configuration_is_hidden_until_it_is_labelled(filled: Path) -> None:
    rules = SourceAccess({SOURCE: Access.of(["hr"])})
    async with open_store(filled, access=rules) as store, store.sync_lock(SOURCE):
        pass
    async with open_store(filled) as store:
        await store.apply(Batch(source=SOURCE, upserts=[Made(SOURCE, 3, frozenset(), "late").new()]))
    async with open_store(filled, access=rules) as store:
        assert await store.documents(NOBODY, limit=9) == ()
        async with store.sync_lock(SOURCE):
            pass
        assert await store.documents(NOBODY, limit=9) == ()
        assert len(await store.documents(HR, limit=9)) == 3


async def test_labels_of_an_item_stay_when_the_configuration_changes_and_go_with_the_item(filled: Path) -> None:
    own = replace(PAY, own=frozenset({"legal"}))
    async with open_store(filled, access=SourceAccess({SOURCE: Access.of(["hr"])})) as store:
        await write(store, (own,))
        assert await seen(store, LEGAL) == {"hr"}
        assert await seen(store, HR) == {"open"}
        await write(store, (PAY,))
        assert await seen(store, LEGAL) == set()
        assert await seen(store, HR) == {"hr", "open"}


async def test_many_documents_are_labelled_in_steps(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knowledge.sqlite.access.STEP_DOCUMENTS", 3)
    documents = [Made(SOURCE, number, frozenset(), "hr") for number in range(10)]
    async with open_store(path, create=True, access=SourceAccess({SOURCE: PUBLIC})) as store:
        await write(store, documents)
    async with open_store(path, access=SourceAccess({SOURCE: Access.of(["hr"])})) as store:
        async with store.sync_lock(SOURCE):
            pass
        assert await store.documents(NOBODY, limit=99) == ()
        assert len(await store.documents(HR, limit=99)) == 10


async def test_a_revision_changes_only_with_what_its_reader_may_see(path: Path) -> None:
    access = SourceAccess({SOURCE: Access.of(rules=[("hr/**", ["hr"])])})
    async with open_store(path, create=True, access=access) as store:
        await write(store, (PAY, OPEN))

        async def changed(*batches: Batch) -> dict[str, bool]:
            readers = {"nobody": NOBODY, "legal": LEGAL, "hr": HR, "all": EVERYTHING}
            before = {name: await store.revision(reader) for name, reader in readers.items()}
            for batch in batches:
                await store.apply(batch)
            return {name: before[name] != await store.revision(reader) for name, reader in readers.items()}

        hidden = {"nobody": False, "legal": False, "hr": True, "all": True}
        assert await changed(Batch(source=SOURCE, upserts=[PAY.new()])) == hidden
        assert await changed(Batch(source=SOURCE, upserts=[replace(PAY, number=9).new()])) == hidden
        assert await changed(Batch(source=SOURCE, deletes=[PAY.source_id])) == hidden
        assert not any((await changed(Batch(source=SOURCE, versions={OPEN.source_id: "2"}))).values())
        assert all((await changed(Batch(source=SOURCE, upserts=[OPEN.new()]))).values())
        moved = replace(OPEN, own=frozenset({"legal"}))
        assert all((await changed(Batch(source=SOURCE, upserts=[moved.new()]))).values())
        assert await changed(Batch(source=SOURCE, deletes=[moved.source_id])) == {
            "nobody": False, "legal": True, "hr": False, "all": True
        }  # fmt: skip


async def test_a_source_is_listed_for_readers_who_may_know_of_it(path: Path) -> None:
    configured: dict[str, str | None] = dict.fromkeys(SOURCES)
    access = {SOURCES[0]: Access.of(["hr"]), SOURCES[1]: Access.of(rules=[("hr/**", ["hr"])]), SOURCES[2]: PUBLIC}
    async with open_store(path, create=True, configured=configured, access=SourceAccess(access)) as store:

        async def listed(reader: Reader) -> list[str]:
            return [info.source for info in await store.sources(reader)]

        assert await listed(NOBODY) == ["git:runbooks"]
        await write(store, (replace(PAY, source=SOURCES[0]), replace(PAY, source=SOURCES[1])))
        assert await listed(NOBODY) == ["git:runbooks"]
        await write(
            store, (replace(OPEN, source=SOURCES[1]), replace(PAY, source=SOURCES[2], own=frozenset({"legal"})))
        )
        # Configured without labels: as it is listed without documents, it would say by its absence that it has some.
        assert await listed(NOBODY) == ["git:docs", "git:runbooks"]
        assert await listed(HR) == ["filesystem:docs", "git:docs", "git:runbooks"]
        assert await listed(Reader.of(["hr"], ["filesystem"])) == ["filesystem:docs"]
        assert await listed(EVERYTHING) == sorted(SOURCES)


async def test_answers_are_cached_for_each_reader(path: Path) -> None:
    async with open_store(path, create=True, access=SourceAccess({SOURCE: Access.of(["hr"])})) as store:
        await write(store, (PAY,))
        (listed,) = await store.documents(HR, limit=9)
        query = SearchQuery(query="common")
        for _ in range(4):  # the second one caches
            for reader, count in ((HR, 1), (NOBODY, 0), (EVERYTHING, 1), (LEGAL, 0)):
                assert len((await store.search(query, reader)).hits) == count
                assert ((await store.get(listed.id, reader)) is not None) == bool(count)
                assert len(await store.sources(reader)) == count


async def test_labels_go_with_their_document(path: Path) -> None:
    async with open_store(path, create=True, access=SourceAccess({SOURCE: Access.of(["hr"])})) as store:
        await write(store, (PAY,))
        await store.apply(Batch(source=SOURCE, deletes=[PAY.source_id]))
    db = apsw.Connection(str(path))
    try:
        assert db.execute("SELECT count(*) FROM labels").fetchall() == [(0,)]
        assert db.execute("SELECT labels FROM changes").fetchall() == [(labels_text(["hr"]),)]
    finally:
        db.close()

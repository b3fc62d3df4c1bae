"""Search by meaning in a store: vectors made in the background, kept, replaced; their sidecar; fused with words."""

import random
import struct
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import apsw
import pytest
import trio

from knowledge import chunking
from knowledge.access import EVERYTHING, Reader
from knowledge.embed import EmbedReport, embed_pending
from knowledge.embedding import Embedder, Embedders, EmbeddingError, Model, fusion
from knowledge.embedding.fusion import Settings
from knowledge.embedding.static import StaticEmbedder
from knowledge.sqlite import schema, sidecar, vectors
from knowledge.sqlite.store import SqliteStore, open_store
from knowledge.store import Batch, EmbeddingsDisabled, NewDocument, SearchAnswer, SearchQuery, StoreError
from knowledge.stores import open_stores, remove_store, store_path, stored_bytes

SOURCE = "filesystem:notes"


@dataclass
class Letters:
    """An embedder whose vector is how often each letter occurs, so that a test knows every cosine."""

    model: Model = field(default_factory=lambda: Model("letters", 26))
    asked: list[str] = field(default_factory=list)
    fails: type[Exception] | None = None
    late: bool = False

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        self.asked += texts
        if self.late:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        if self.fails is not None:
            raise self.fails("the embedder is down")
        return [self.vector(text) for text in texts]

    def vector(self, text: str) -> bytes:
        counts = [text.lower().count(chr(97 + index)) for index in range(26)]
        length = sum(count * count for count in counts) ** 0.5 or 1
        return struct.pack("<26f", *(count / length for count in counts))


def document(source_id: str, *texts: str, **fields: Any) -> NewDocument:
    body = "\n\n".join(texts)
    return NewDocument(source_id=source_id, body=body, chunks=texts or ("",), digest=body, **fields)


async def fill(store: SqliteStore, *documents: NewDocument, **fields: Any) -> None:
    await store.apply(Batch(source=SOURCE, upserts=documents, **fields))


async def ask(
    store: SqliteStore, query: str, mode: Any = "semantic", reader: Reader = EVERYTHING, **fields: Any
) -> SearchAnswer:
    return await store.search(SearchQuery(query=query, mode=mode, **fields), reader)


async def found(store: SqliteStore, query: str, mode: Any = "semantic", **fields: Any) -> list[str]:
    return [hit.source_id for hit in (await ask(store, query, mode, **fields)).hits]


def contents(path: Path) -> bytes:
    return path.read_bytes()


def put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


@asynccontextmanager
async def opened(path: Path, embedder: Embedder | None = None, *others: Embedder, **fields: Any) -> AsyncIterator[Any]:
    embedders = None if embedder is None else Embedders(embedder, others)
    async with open_store(path, create=True, embedders=embedders, **fields) as store:
        yield store


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture
async def store(path: Path, letters: Letters) -> AsyncIterator[SqliteStore]:
    async with opened(path, letters) as store:
        yield store


# --- what is found


async def test_documents_are_found_by_what_they_mean_and_shown_by_their_nearest_chunk(path: Path) -> None:
    embedder = StaticEmbedder()
    async with opened(path, embedder) as store:
        await fill(
            store,
            document("refunds.md", "# Money\n\nWe pay the buyer back within a week.", "Anything else is here."),
            document("moon.md", "The moon goes around the earth."),
            document("bread.md", "Flour, water, salt and time."),
        )
        assert await embed_pending(store, embedder) == EmbedReport(embedded=3)
        answer = await ask(store, "how do customers get their money returned")
        assert (answer.hits[0].source_id, answer.warnings) == ("refunds.md", ())
        assert answer.hits[0].snippet == "# Money We pay the buyer back within a week."
        assert answer.hits[0].lines == (1, 3)
        assert 1 >= answer.hits[0].score >= answer.hits[-1].score >= 0
        assert await found(store, "baking a loaf", "hybrid", limit=1) == ["bread.md"]
        assert await found(store, "\u0b81") == []  # no piece that the model knows


async def test_filters_come_before_the_candidates(store: SqliteStore, letters: Letters) -> None:
    near = [document(f"near/{n}.md", "aaa", updated_at="2025-01-01T00:00:00Z") for n in range(150)]
    await fill(store, *near, document("far/1.md", "a bcdefgh", updated_at="2020-01-01T00:00:00Z"))
    await embed_pending(store, letters)
    for mode in ("semantic", "hybrid"):
        assert await found(store, "aaa", mode, path="far/*") == ["far/1.md"]
        assert await found(store, "aaa", mode, until="2021-01-01") == ["far/1.md"]
        assert await found(store, "aaa", mode, source="other") == []
        assert len(await found(store, "aaa", mode, limit=100)) == 100


async def test_documents_that_a_reader_may_not_see_have_no_effect_on_its_answers(
    path: Path, tmp_path: Path, letters: Letters
) -> None:
    shown = [document("a.md", "aab"), document("b.md", "aabb words")]
    hidden = [document(f"{n}.md", "aaa words", access=["hr"]) for n in range(40)]
    staff, hr = Reader.of(["staff"]), Reader.of(["hr"])
    answers = []
    for file, held in ((path, [*shown, *hidden]), (tmp_path / "without", shown)):
        async with opened(file, letters) as store:
            await fill(store, *held[:1])
            answers.append([await ask(store, "aaa words", mode, staff) for mode in ("semantic", "hybrid")])
            await embed_pending(store, letters)
            await fill(store, *held[1:])
            answers[-1] += [await ask(store, "aaa words", mode, staff) for mode in ("semantic", "hybrid")]
            await embed_pending(store, letters)
            answers[-1] += [await ask(store, "aaa", mode, staff) for mode in ("semantic", "hybrid")]
            answers[-1].append((await store.stats(staff)).embedded)
            if file == path:
                assert len((await ask(store, "aaa", reader=hr, limit=100)).hits) == 42
    assert answers[0] == answers[1]


async def test_vectors_that_only_hidden_documents_have_are_not_known_to_a_reader(path: Path, tmp_path: Path) -> None:
    before, after = Letters(Model("letters", 26, "1")), Letters(Model("letters", 26, "2"))
    staff = Reader.of(["staff"])
    hidden = [document(f"hidden/{n}.md", f"aaa {n}", access=["hr"]) for n in range(3)]
    answers: list[list[Any]] = []
    for file, more in ((path, hidden), (tmp_path / "without", [])):
        async with opened(file, before) as store:
            await fill(store, *more)
            await embed_pending(store, before)
            await fill(store, document("a.md", "aab"), document("b.md", "bbb"))
            answers.append([await ask(store, "aab", mode, staff) for mode in ("semantic", "hybrid")])
            before.fails = EmbeddingError
            answers[-1] += [await ask(store, "aab b", mode, staff) for mode in ("semantic", "hybrid")]
            before.fails = None
            await embed_pending(store, before)
        async with opened(file, after, before) as store:
            for _ in more:  # these are embedded anew, while the others are pending
                number = await store.model_number(after.model)
                pending = await store.next_pending(number, -1)
                assert pending is not None
                made = {key: after.vector(text) for key, text in pending.texts.items()}
                assert await store.write_vectors(number, pending, made)
            answers[-1] += [await ask(store, "aab", mode, staff) for mode in ("semantic", "hybrid")]
            answers[-1].append([(each.source, each.embedded) for each in await store.sources(staff)])
    assert answers[0] == answers[1]


async def test_equal_documents_are_in_the_order_of_time_and_id(store: SqliteStore, letters: Letters) -> None:
    times = {"old.md": "2024-01-01T00:00:00Z", "new.md": "2025-01-01T00:00:00Z", "none.md": None}
    await fill(store, *(document(name, "aab", updated_at=at) for name, at in times.items()))
    await embed_pending(store, letters)
    for mode in ("semantic", "hybrid"):
        answer = await ask(store, "aab", mode)
        assert [hit.source_id for hit in answer.hits] == ["new.md", "old.md", "none.md"]
        assert len({hit.score for hit in answer.hits}) == 1


async def test_the_only_document_with_all_words_is_first_however_near_another_is(
    store: SqliteStore, letters: Letters
) -> None:
    await fill(
        store,
        document("right.md", "inc 362 " + "xyzzy quux " * 60),
        document("miss.md", "inc cin nic 361"),
        *(document(f"{n}.md", f"inc {n}") for n in range(20)),
    )
    await embed_pending(store, letters)
    assert (await found(store, "INC-362"))[0] != "right.md"
    assert (await found(store, "INC-362", "hybrid"))[0] == "right.md"


@pytest.mark.parametrize(("count", "certain"), [(fusion.CERTAIN, True), (fusion.CERTAIN + 1, False)])
async def test_few_documents_with_all_words_are_before_any_near_miss_and_many_are_as_others(
    store: SqliteStore, letters: Letters, count: int, certain: bool
) -> None:
    right = [f"right{n}.md" for n in range(count)]
    await fill(
        store,
        document("miss.md", "inc cin nic 361"),
        *(document(name, "inc 362 " + "xyzzy quux " * 60) for name in right),
        *(document(f"{n}.md", f"inc {n}") for n in range(20)),
    )
    await embed_pending(store, letters)
    answer = await ask(store, "INC-362", "hybrid", explain=True, limit=30)
    for hit in answer.hits:
        assert hit.explain is not None
        assert hit.explain.certain is (certain and hit.source_id in right)
    if certain:
        assert sorted(hit.source_id for hit in answer.hits[:count]) == right
        assert answer.hits[count - 1].score >= 0.5 >= answer.hits[count].score


async def test_passages_are_the_nearest_chunks(store: SqliteStore, letters: Letters) -> None:
    await fill(store, document("a.md", "zzz", "aab", "zzzz", "aabbb", "qqq"))
    await embed_pending(store, letters)
    (hit,) = (await ask(store, "aab", passages=2)).hits
    assert [each.text for each in hit.passages or ()] == ["aab", "aabbb"]


async def test_the_weight_of_meaning_is_a_setting(path: Path, letters: Letters) -> None:
    documents = (
        document("words.md", "abc" + " xyz" * 40),
        document("means.md", "cab bca"),
        document("z.md", "abc" + " z" * 99),
    )
    async with opened(path, letters) as store:
        await fill(store, *documents)
        await embed_pending(store, letters)
    for alpha, first in ((0.0, "words.md"), (1.0, "means.md")):
        async with opened(path, letters, settings=Settings(hybrid_alpha=alpha)) as store:
            # No document has the second word: where one has all of them, the weight falls.
            assert (await found(store, "abc bac", "hybrid"))[0] == first


@pytest.mark.parametrize("group_by", ["document", "chunk"])
async def test_words_take_weight_from_meaning_where_one_chunk_has_them_all(
    path: Path, letters: Letters, group_by: Literal["document", "chunk"]
) -> None:
    async with opened(path, letters, settings=Settings(group_by=group_by)) as store:
        # Enough others, so that each of the words tells documents apart.
        await fill(store, *(document(f"{n}.md", "other text") for n in range(9)))
        await fill(store, document("apart.md", "red fish", "blue fish"), document("one.md", "grey cats sleep"))
        await embed_pending(store, letters)
        alphas = []
        for query in ("red blue", "grey cats"):
            explain = (await ask(store, query, "hybrid", explain=True)).hits[0].explain
            assert explain is not None
            alphas.append(explain.alpha)
    apart, together = alphas
    assert together == fusion.alpha(fusion.DEFAULT.hybrid_alpha, 1)
    assert apart is not None
    assert apart > 0.85


async def test_equal_stores_give_equal_answers(tmp_path: Path) -> None:
    embedder = StaticEmbedder()
    words = ["alpha", "beta", "gamma", "delta", "refund", "invoice", "ledger", "queue"]
    chance = random.Random(4)
    documents = [document(f"{n}.md", " ".join(chance.choices(words, k=9))) for n in range(60)]
    answers = []
    for name in ("one", "other"):
        async with opened(tmp_path / name, embedder) as store:
            for each in documents if name == "one" else reversed(documents):
                await fill(store, each)
                if name == "other":
                    await embed_pending(store, embedder)
            await embed_pending(store, embedder)
            answers.append([repr(await ask(store, f"{word} queue", "hybrid", limit=20)) for word in words])
    assert answers[0] == answers[1]


# --- vectors come later, are kept, and are replaced


async def test_a_text_is_searchable_by_words_at_once_and_its_answer_says_what_is_missing(
    store: SqliteStore, letters: Letters
) -> None:
    await fill(store, document("a.md", "first words"))
    answer = await ask(store, "first", "hybrid")
    assert [hit.source_id for hit in answer.hits] == ["a.md"]
    assert answer.warnings == (
        "no document has vectors yet (engine embed pending makes them); answered by keyword search",
    )
    assert await ask(store, "first") == SearchAnswer(
        (), ("no document has vectors yet (engine embed pending makes them); nothing can be found by meaning",)
    )
    await embed_pending(store, letters)
    await fill(store, document("b.md", "second words"))
    answer = await ask(store, "words", "hybrid")
    assert {hit.source_id for hit in answer.hits} == {"a.md", "b.md"}
    assert answer.warnings == ("1 of 2 documents have no vectors yet; these are found by words only",)
    assert (await store.stats(EVERYTHING)).embedded == 1
    await embed_pending(store, letters)
    assert (await ask(store, "words", "hybrid")).warnings == ()


async def test_text_that_did_not_change_is_not_embedded_again(store: SqliteStore, letters: Letters) -> None:
    await fill(store, document("a.md", "one", "two"), document("b.md", "two"))
    await embed_pending(store, letters)
    assert sorted(letters.asked) == ["one", "two"]
    await fill(store, document("a.md", "one", "three"))
    assert await embed_pending(store, letters) == EmbedReport(embedded=1)
    assert sorted(letters.asked) == ["one", "three", "two"]
    assert await embed_pending(store, letters) == EmbedReport()


async def test_what_is_deleted_is_not_found_and_its_vector_goes(
    path: Path, store: SqliteStore, letters: Letters
) -> None:
    await fill(store, document("a.md", "aaa"), document("b.md", "aab"))
    await embed_pending(store, letters)
    assert await found(store, "aaa") == ["a.md", "b.md"]
    await fill(store, document("c.md", "ccc"), deletes=["a.md"])
    assert await found(store, "aaa") == ["b.md"]
    await embed_pending(store, letters)
    db = apsw.Connection(str(path))
    assert db.execute("SELECT count(*) FROM vectors").get == 2
    db.close()


async def test_the_vectors_of_another_model_answer_until_the_new_ones_are_complete(path: Path) -> None:
    before, after = Letters(Model("letters", 26, "1")), Letters(Model("letters", 26, "2"))
    async with opened(path, before) as store:
        await fill(store, document("a.md", "aaa"), document("b.md", "bbb"), document("c.md", "ccc"))
        await embed_pending(store, before)
    async with opened(path, after, before) as store:
        before.asked.clear()
        assert (await ask(store, "aaa")).warnings == ()
        after.fails = EmbeddingError
        assert (await embed_pending(store, after)).pending == 3
        assert await found(store, "aab") == ["a.md", "b.md"]
        assert before.asked == ["aaa", "aab"]
        after.fails = None
        assert await embed_pending(store, after) == EmbedReport(embedded=3)
        assert await found(store, "aabb") == ["a.md", "b.md"]
        assert before.asked == ["aaa", "aab"]
    db = apsw.Connection(str(path))
    assert db.execute("SELECT name, weights FROM models").fetchall() == [("letters", "2")]
    assert db.execute("SELECT count(*) FROM vectors").get == 3
    db.close()


async def test_windows_of_another_recipe_are_made_anew_and_answer_until_then(
    path: Path, letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(path, letters) as store:
        await fill(store, document("a.md", "aaa"), document("b.md", "bbb"))
        with monkeypatch.context() as before:
            before.setattr(vectors, "RECIPE", vectors.RECIPE - 1)
            await embed_pending(store, letters)
        assert await store.pending(letters.model) == 2
        answer = await ask(store, "aab")
        assert ([hit.source_id for hit in answer.hits], answer.warnings) == (["a.md", "b.md"], ())
        letters.asked.clear()
        assert await embed_pending(store, letters) == EmbedReport(embedded=2)
        assert sorted(letters.asked) == ["aaa", "bbb"]
        assert await found(store, "aab") == ["a.md", "b.md"]
    db = apsw.Connection(str(path))
    assert db.execute("SELECT recipe FROM models").fetchall() == [(vectors.RECIPE,)]
    assert db.execute("SELECT count(*) FROM vectors").get == 2
    db.close()


@pytest.mark.parametrize("overlap", [0, 40])
async def test_a_window_is_named_by_the_headings_above_it_and_not_by_those_of_its_chunk(
    path: Path, letters: Letters, overlap: int
) -> None:
    text = " ".join(f"w{n}" for n in range(150))
    body = f"# Alpha\n\n## Beta\n\n{text}\n\n## Gamma\n\n{text}\n\n```\n# code\n```\n\n### Delta\n\n{text}\n"
    chunks = chunking.split(body, max_tokens=700, overlap_tokens=overlap)
    for name, content_type, leads in (
        ("a.md", "text/markdown", ["Alpha > Beta", "Alpha > Gamma", "Alpha > Gamma > Delta"]),
        ("a.txt", "text/plain", [""]),
    ):
        letters.asked.clear()
        async with opened(path.with_name(name), letters) as store:
            await fill(store, replace(document(name, *chunks), body=body, content_type=content_type))
            await embed_pending(store, letters)
        of_text = [each.split("\n", 1)[0] for each in letters.asked if "w9 " in each or "w140 " in each]
        assert len(of_text) > 4
        assert set(of_text) == set(leads) if name == "a.md" else not any("Alpha >" in each for each in of_text)


async def test_a_pass_that_is_cancelled_goes_on_where_it_was(store: SqliteStore, letters: Letters) -> None:
    await fill(store, *(document(f"{n}.md", f"text {chr(97 + n)}") for n in range(9)))
    with trio.CancelScope() as scope:

        def stop(report: EmbedReport) -> None:
            if report.embedded == 4:
                scope.cancel()

        await embed_pending(store, letters, batch_size=1, on_progress=stop)
    assert len(letters.asked) == 4
    assert await embed_pending(store, letters) == EmbedReport(embedded=5)
    assert len(letters.asked) == 9


async def test_a_document_that_changes_while_it_is_embedded_gets_the_vectors_of_its_new_text(
    store: SqliteStore, letters: Letters
) -> None:
    await fill(store, document("a.md", "aaa"))

    async def change(seconds: float) -> None:
        if "bbb" not in letters.asked:
            await fill(store, document("a.md", "bbb"))

    assert await embed_pending(store, letters, rest=change) == EmbedReport(embedded=1)
    assert (await found(store, "aaa"), await found(store, "bbb")) == ([], ["a.md"])


async def test_two_cannot_embed_one_store(path: Path, store: SqliteStore, letters: Letters) -> None:
    await fill(store, document("a.md", "aaa"))
    async with opened(path, letters) as other, other.embedding_lock():
        with pytest.raises(StoreError, match="another embedding of documents is running"):
            await embed_pending(store, letters)
    assert await embed_pending(store, letters) == EmbedReport(embedded=1)


async def test_vectors_count_as_stored_bytes_and_those_beyond_the_quota_are_not_written(
    path: Path, letters: Letters
) -> None:
    texts = [f"{n} " + "abc " * 200 for n in range(300)]
    async with opened(path) as store:
        await fill(store, *(document(f"{n}.md", text) for n, text in enumerate(texts)))
    before = stored_bytes(path)
    async with opened(path, letters, max_bytes=before + 30_000) as store:
        with pytest.raises(StoreError, match="quota stored_bytes"):
            await embed_pending(store, letters)
        assert 0 < await store.pending(letters.model) < 300
        assert len(await found(store, "abc", "hybrid")) == 12
    async with opened(path, letters) as store:
        assert (await embed_pending(store, letters)).pending == 0


# --- an embedder that does not answer


@pytest.mark.parametrize("late", [False, True])
async def test_an_embedder_that_fails_or_is_late_leaves_hybrid_to_words_and_the_next_search_works(
    store: SqliteStore, letters: Letters, late: bool, autojump_clock: Any
) -> None:
    await fill(store, document("a.md", "aaa words"))
    await embed_pending(store, letters)
    letters.late, letters.fails = late, EmbeddingError
    problem = "the embedder did not answer within 2 s" if late else "the embedder is down"
    answer = await ask(store, "words", "hybrid")
    assert [hit.source_id for hit in answer.hits] == ["a.md"]
    assert answer.warnings == (f"{problem}; answered by keyword search",)
    with pytest.raises(StoreError, match=problem):
        await ask(store, "words")
    letters.late, letters.fails = False, None
    assert (await ask(store, "words", "hybrid")).warnings == ()


async def test_an_embedder_that_answers_nonsense_fails_its_documents_and_stores_nothing(
    store: SqliteStore, letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(store, *(document(f"{n}.md", f"text {n}") for n in range(9)))
    for vector in (b"", struct.pack("<27f", *range(27))):
        monkeypatch.setattr(letters, "vector", lambda text, vector=vector: vector)
        report = await embed_pending(store, letters)
        assert (report.embedded, report.failed, report.pending) == (0, 3, 9)
        assert report.error == "the embedder answered vectors of another dimension than 26"
    monkeypatch.undo()
    assert await embed_pending(store, letters) == EmbedReport(embedded=9)


async def test_without_an_embedder_semantic_says_so(path: Path) -> None:
    async with opened(path) as store:
        with pytest.raises(EmbeddingsDisabled):
            await ask(store, "aaa")


# --- the sidecar


@pytest.fixture
def small_sidecars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sidecars are written for stores of a test's size, too."""
    monkeypatch.setattr(sidecar, "MIN_ROWS", 20)
    monkeypatch.setattr(sidecar, "MAX_TAIL", 10)


ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def texts(count: int, seed: int = 0) -> list[str]:
    chance = random.Random(seed)
    return ["".join(chance.choices(ALPHABET, k=30)) for _ in range(count)]


async def everything(path: Path, letters: Letters) -> list[str]:
    async with opened(path, letters) as store:
        return [repr(await ask(store, letter * 3, limit=100)) for letter in ALPHABET[:6]]


@pytest.mark.usefixtures("small_sidecars")
async def test_answers_with_a_sidecar_are_those_without_whatever_happens_to_it(path: Path, letters: Letters) -> None:
    beside = sidecar.path_of(path)
    async with opened(path, letters) as store:
        await fill(store, *(document(f"{n}.md", text) for n, text in enumerate(texts(60))))
        await embed_pending(store, letters)
        await ask(store, "aaa")
        assert beside.exists()
    expected = await everything(path, letters)
    whole = beside.read_bytes()
    for damage in (b"", whole[:4000], whole[:-1], whole + b"x", b"{}" + whole[2:], b"\xff" * 5000, None):
        beside.unlink() if damage is None else beside.write_bytes(damage)
        assert await everything(path, letters) == expected
    for place in random.Random(1).sample(range(4096, len(whole)), 20):
        changed = bytearray(whole)
        changed[place] ^= 1 << (place % 8)
        beside.write_bytes(changed)
        assert await everything(path, letters) == expected
    assert beside.read_bytes() == whole  # it was written anew


@pytest.mark.usefixtures("small_sidecars")
async def test_a_sidecar_that_is_behind_never_hides_or_shows_what_it_should_not(path: Path, letters: Letters) -> None:
    chance = random.Random(2)
    held = dict(enumerate(texts(80)))
    async with opened(path, letters) as writer, opened(path, letters, readonly=True) as reader:
        await fill(writer, *(document(f"{n}.md", text) for n, text in held.items()))
        for round_ in range(12):
            changed = dict(zip(chance.sample(range(100), 7), texts(7, seed=round_ + 10), strict=True))
            gone = [n for n in chance.sample(sorted(held), 5) if n not in changed]
            held = {n: text for n, text in (held | changed).items() if n not in gone}
            deletes = [f"{n}.md" for n in gone]
            await fill(writer, *(document(f"{n}.md", text) for n, text in changed.items()), deletes=deletes)
            await embed_pending(writer, letters)
            query = letters.vector("abc")
            cosines = {f"{n}.md": cosine(query, letters.vector(text)) for n, text in held.items()}
            answer = await ask(reader, "abc", limit=100)
            assert {hit.source_id: hit.score for hit in answer.hits} == pytest.approx(
                {name: value for name, value in cosines.items() if value > 0}, abs=1e-5
            )


def cosine(one: bytes, other: bytes) -> float:
    return sum(a * b for a, b in zip(struct.unpack("<26f", one), struct.unpack("<26f", other), strict=True))


@pytest.mark.usefixtures("small_sidecars")
async def test_a_store_that_was_restored_from_a_backup_does_not_use_a_newer_sidecar(
    path: Path, tmp_path: Path, letters: Letters
) -> None:
    async with opened(path, letters) as store:
        await fill(store, *(document(f"{n}.md", text) for n, text in enumerate(texts(30))))
        await embed_pending(store, letters)
    backup = contents(path)
    async with opened(path, letters) as store:
        await fill(store, *(document(f"new{n}.md", "aaa") for n in range(30)))
        await embed_pending(store, letters)
        assert (await found(store, "aaa"))[0].startswith("new")
    put(path, backup)
    async with opened(path, letters) as store:
        await fill(store, *(document(f"other{n}.md", "aaab") for n in range(40)))
        await embed_pending(store, letters)
        assert (await found(store, "aaa"))[0].startswith("other")
        assert len(await found(store, "aaa", limit=100)) >= 40


@pytest.mark.usefixtures("small_sidecars")
async def test_a_sidecar_counts_and_goes_with_its_tenants_store(path: Path, letters: Letters) -> None:
    file = store_path(path, "acme")
    async with opened(file, letters) as store:
        await fill(store, *(document(f"{n}.md", text) for n, text in enumerate(texts(60))))
        await embed_pending(store, letters)
    before = stored_bytes(file)
    async with open_stores({}, partial(store_path, path), lambda tenant: {}, embedders=Embedders(letters)) as stores:
        assert (await stores.store_of("acme").search(SearchQuery(query="abc", mode="semantic"), EVERYTHING)).hits
    beside = sidecar.path_of(file)
    assert stored_bytes(file) == before + beside.stat().st_size
    file.with_name("acme.sqlite.0a1b.new").touch()  # of a process that was killed while it made a store
    remove_store(file)
    assert [each for each in file.parent.iterdir() if each.name.startswith("acme")] == []


def test_a_sidecar_is_written_bit_by_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar, "_ROWS_AT_ONCE", 200)
    file, dims, count = tmp_path / "store.sqlite", 64, 10_000
    schema.appear(file)
    db = apsw.Connection(str(file))
    number = vectors.model_row(db, Model("drawn", dims))
    drawn = random.Random(3).randbytes(count * 4)  # the first number of each, whatever it is
    rows = [drawn[4 * n : 4 * n + 4] + bytes(4 * dims - 4) for n in range(count)]
    with db:
        db.executemany(
            "INSERT INTO vectors VALUES (?, ?, ?, ?)",
            ((n + 1, number, n.to_bytes(4), row) for n, row in enumerate(rows)),
        )
        db.executemany("INSERT INTO windows VALUES (?, ?, ?, ?)", ((2 * n + 1, number, n, n + 1) for n in range(count)))
    (held,) = vectors.held(db)[1]
    tracemalloc.start()
    try:
        (part,) = sidecar.Sidecar(file).parts(db, held)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < count * 4 * dims / 2
    assert (part.last, len(part.numbers), int(part.chunks[-1])) == (2 * count - 1, count, count - 1)
    assert part.vectors.tobytes() == b"".join(rows)
    db.close()


async def test_a_folder_that_cannot_be_written_has_no_sidecar_and_the_same_answers(
    path: Path, letters: Letters, monkeypatch: pytest.MonkeyPatch, small_sidecars: None
) -> None:
    async with opened(path, letters) as store:
        await fill(store, *(document(f"{n}.md", text) for n, text in enumerate(texts(60))))
        await embed_pending(store, letters)

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(sidecar, "write", full)
        without = [hit.source_id for hit in (await ask(store, "abc", limit=60)).hits]
        assert not sidecar.path_of(path).exists()
        monkeypatch.undo()
    async with opened(path, letters) as store:
        assert await found(store, "abc", limit=60) == without


async def test_a_tenant_with_many_queries_does_not_keep_the_model_from_those_of_others(tmp_path: Path) -> None:
    """One model takes one text after the other, in the order in which they come."""
    letters, turn, begun, ahead = Letters(), trio.Semaphore(1), list[str](), list[int]()

    class OneAfterTheOther:
        model = letters.model

        async def embed(self, texts: Sequence[str]) -> list[bytes]:
            before = len(begun)
            async with turn:
                if "of another" in texts:
                    ahead.append(len(begun) - before)
                begun.extend(texts)
                await trio.sleep(0.02)
                return await letters.embed(texts)

    embedder = OneAfterTheOther()
    async with opened(tmp_path / "acme", embedder) as acme, opened(tmp_path / "zeta", embedder) as zeta:
        for store in (acme, zeta):
            await fill(store, document("a.md", "aaa"))
            await embed_pending(store, embedder)
        begun.clear()
        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(ask, acme, f"a{number}")
            while len(begun) < 2:
                await trio.lowlevel.checkpoint()
            await ask(zeta, "of another")
        assert len(begun) == 31
        assert ahead[0] <= 2

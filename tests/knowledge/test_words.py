"""Words are found in other forms too: stems, parts of identifiers, pairs of CJK; the words themselves rank higher."""

from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
import Stemmer
from effort import effort
from hypothesis import given, settings
from hypothesis import strategies as st

from knowledge import words
from knowledge.access import EVERYTHING, NOTHING_KNOWN
from knowledge.sqlite import indexing, reading, schema, writing
from knowledge.sqlite.store import SqliteStore, open_store
from knowledge.store import Batch, NewDocument, SearchQuery

SOURCE = "filesystem:notes"

# Each document stands once; the questions below name it.
TEXTS = {
    "refunds": "How refunds are paid back to the card of a customer.",
    "retry": "A request that failed is retried three times by the client.",
    "policies": "Policies for the retention of mails and files.",
    "cafe": "We met at the café near the naïve façade, for crème brûlée.",
    "incident": "Postmortem of INC-362: the queue of the broker was full.",
    "other-incident": "Postmortem of INC-363: a disk of the broker was full.",
    "window": "Set payments.breaker.window_s to 30 to open the circuit later.",
    "camel": "The handler calls getUserName of the HTTPServer on each page.",
    "snake": "max_attempt_count bounds the attempts of a worker.",
    "itgc": "今天重跑gen-itgc后,报告已经更新。",
    "dangling": "修复悬空引用的问题,然后重启支付服务。",
    "tokyo": "東京の天気予報は晴れです。カタカナも探します。",
    "korean": "서비스를 다시 시작했습니다.",
    "version": "Upgrade to Node v22.4.1 before the image is built.",
    "path": "The file /etc/nginx/conf.d/upstream.conf names the hosts.",
    "error": "It ended with ERR_CONNECTION_REFUSED in the browser.",
    "sqs": "Messages of the dead-letter-queue are kept for 14 days.",
    "header": "Send the header X-Request-ID with every call.",
    "mail": "Write to oncall@example.org when the pager is silent.",
    "running": "Running migrations while the service is running.",
    "databases": "Databases are backed up nightly, and restored quarterly.",
    "german": "Die Häuser der Straße werden geprüft.",
    "studies": "Case studies of our customers.",
    "sha": "The image sha256 is pinned in the manifest.",
    "deploying": "Deploying on Fridays is allowed.",
}
QUESTIONS = {
    "refund": "refunds", "refunds": "refunds", "REFUNDED": "refunds", "retries": "retry",
    "failing requests": "retry",
    "policy": "policies", "retain mail": "policies", "cafe": "cafe", "café": "cafe", "CAFÉ": "cafe",
    "creme brulee": "cafe", "INC-362": "incident", "inc 362": "incident", "INC362": "incident",
    "INC-363": "other-incident",
    "window_s": "window", "payments.breaker.window_s": "window", "breaker window": "window", "getUserName": "camel",
    "user name": "camel", "get_user_name": "camel", "http server": "camel", "max_attempt_count": "snake",
    "itgc": "itgc", "重跑": "itgc", "gen-itgc": "itgc", "报告更新": "itgc", "悬空": "dangling", "修复": "dangling",
    "支付服务": "dangling", "悬空引用的问题": "dangling", "支": "dangling", "天気": "tokyo",
    "カタカナ": "tokyo", "서비스": "korean",
    "시작": "korean", "v22.4.1": "version", "22.4.1": "version", "upstream.conf": "path", "nginx conf": "path",
    "ERR_CONNECTION_REFUSED": "error", "refused connections": "error", "dead letter queues": "sqs",
    "x-request-id": "header", "oncall@example.org": "mail", "run migration": "running", "database backup": "databases",
    "hauser": "german", "study": "studies", "sha256": "sha", "deploy friday": "deploying",
}  # fmt: skip


def document(name: str, text: str, title: str | None = None) -> NewDocument:
    return NewDocument(source_id=name, body=text, chunks=(text,), digest="d", title=title)


async def fill(store: SqliteStore, texts: dict[str, str]) -> None:
    await store.apply(Batch(source=SOURCE, upserts=[document(*each) for each in texts.items()]))


async def found(store: SqliteStore, query: str) -> list[str]:
    return [hit.source_id for hit in (await store.search(SearchQuery(query=query, limit=100), EVERYTHING)).hits]


async def test_each_question_finds_its_document_first(path: Path, assert_consistent: Callable[[], None]) -> None:
    async with open_store(path, create=True) as store:
        await fill(store, TEXTS)
        wrong = {
            query: hits[:2] for query, name in QUESTIONS.items() if (hits := await found(store, query))[:1] != [name]
        }
    assert wrong == {}
    assert_consistent()


async def test_what_was_found_is_shown_in_the_excerpt(path: Path) -> None:
    filler = "filler " * 100
    texts = {
        "stem": f"{filler} the refunds are late {filler}",
        "cjk": f"{filler} 今天重跑gen-itgc后更新 {filler}",
    }
    async with open_store(path, create=True) as store:
        await fill(store, texts)
        for query, shown in {"refunding": "refunds are late", "itgc": "gen-itgc后", "跑g": "重跑gen"}.items():
            hits = (await store.search(SearchQuery(query=query), EVERYTHING)).hits
            assert shown in hits[0].snippet, query


FORMS = [
    ("refund", "refunds", "refunded"), ("policy", "policies"), ("run", "running", "runs"), ("connect", "connection"),
    ("deploy", "deployment", "deploying"), ("café", "cafés"), ("index", "indexes", "indexing"),
]  # fmt: skip
FILLER = st.lists(st.sampled_from(["alpha", "beta", "gamma", "queue", "of", "the"]), max_size=8)


@settings(max_examples=effort(25), deadline=None)
@given(st.sampled_from(FORMS), FILLER, FILLER, st.booleans(), st.data())
def test_the_word_itself_ranks_above_its_other_forms(
    forms: tuple[str, ...], before: list[str], after: list[str], in_title: bool, data: st.DataObject
) -> None:
    asked = data.draw(st.sampled_from(forms))
    texts = {form: " ".join([*before, form, *after]) for form in data.draw(st.permutations(forms))}

    db = apsw.Connection(":memory:")
    db.execute(schema.SCHEMA)
    batch = Batch(source=SOURCE, upserts=[
        document(form, "" if in_title else text, text if in_title else None) for form, text in texts.items()
    ])  # fmt: skip
    writing.apply(db, batch, NOTHING_KNOWN)
    hits = [hit.source_id for hit in reading.search(db, SearchQuery(query=asked), ()).hits]
    assert hits[0] == asked
    assert sorted(hits) == sorted(texts)
    db.close()


@settings(max_examples=effort(30), deadline=None)
@given(st.text(st.characters(min_codepoint=0x4E00, max_codepoint=0x4E20), min_size=2, max_size=12), st.data())
def test_any_two_neighbours_of_a_run_of_cjk_are_found(run: str, data: st.DataObject) -> None:
    before, after = (
        data.draw(st.sampled_from(["", "gen", "x1-", "の"])),
        data.draw(st.sampled_from(["", "ing", "-2", "。"])),
    )
    at = data.draw(st.integers(0, len(run) - 2))
    db = apsw.Connection(":memory:")
    db.execute(schema.SCHEMA)
    writing.apply(db, Batch(source=SOURCE, upserts=[document("it", f"{before}{run}{after} and more")]), NOTHING_KNOWN)
    for query in (run, run[at : at + 2], run[at:], run[0], run[-1], f'"{run}"'):
        assert [hit.source_id for hit in reading.search(db, SearchQuery(query=query), ()).hits] == ["it"], query
    assert reading.search(db, SearchQuery(query="\u4e30\u4e31"), ()).hits == ()
    db.close()


async def test_without_a_language_nothing_is_stemmed_and_parts_and_pairs_are_found(path: Path) -> None:
    async with open_store(path, create=True, language="none") as store:
        await fill(store, TEXTS)
        assert await found(store, "refund") == []
        assert await found(store, "refunds") == ["refunds"]
        assert await found(store, "user name") == ["camel"]
        assert await found(store, "悬空") == ["dangling"]


async def test_another_language_is_indexed_in_steps_and_words_are_found_in_each_state(
    path: Path, monkeypatch: pytest.MonkeyPatch, assert_consistent: Callable[[], None]
) -> None:
    monkeypatch.setattr(indexing, "STEP_DOCUMENTS", 3)
    async with open_store(path, create=True) as store:
        await fill(store, TEXTS)
    changed = apsw.Connection(str(path))
    indexing.begin(changed, "de")
    steps = 1
    async with open_store(path, readonly=True) as store:
        while indexing.step(changed):
            steps += 1
            assert indexing.languages(changed) == ("de", "en")
            for query in ("refund", "refunds", "悬空", "window_s", "policy"):
                assert (await found(store, query))[:1] == [QUESTIONS[query]]
    changed.close()
    assert steps == -(-len(TEXTS) // 3)
    async with open_store(path, language="de") as store:
        assert await found(store, "Haus") == ["german"]
    assert_consistent()


async def test_a_change_of_language_that_was_killed_goes_on_when_the_store_is_opened_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, assert_consistent: Callable[[], None]
) -> None:
    async with open_store(path, create=True) as store:
        await fill(store, TEXTS)
    killed = apsw.Connection(str(path))
    monkeypatch.setattr(indexing, "STEP_DOCUMENTS", 4)
    indexing.begin(killed, "de")
    assert indexing.step(killed)
    killed.close()
    for language in ("de", "fr", "en"):
        async with open_store(path, readonly=True, language=language) as store:
            assert (await found(store, "refunds"))[:1] == ["refunds"]
        assert_consistent()
    async with open_store(path, readonly=True) as store:  # without a language, the store keeps its own
        assert await found(store, "refund") == ["refunds"]


@pytest.mark.parametrize(
    "text", ["x" * 400_000, "漢" * 200_000, "aB" * 200_000, "é" * 100_000, " ".join(f"w{n}ed" for n in range(50_000))],
    ids=["one word", "one run of CJK", "one identifier", "one accent", "distinct words"],
)  # fmt: skip
def test_forms_of_any_text_are_bounded(text: str) -> None:
    for room in (0, 1, 1000, words.MAX_FORM_BYTES):
        assert len(words.forms(text, "en", room).encode()) <= min(room, 4 * len(text.encode()))
    assert len(words._forms_of("en")) <= words._KEPT_PIECES


def test_a_document_whose_forms_have_no_room_is_found_by_its_exact_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "MAX_FORM_BYTES", 10)
    db = apsw.Connection(":memory:")
    db.execute(schema.SCHEMA)
    chunks = ("refunds", "policies", "mistakes")
    written = NewDocument(source_id="long", body="\n".join(chunks), chunks=chunks, digest="d")
    writing.apply(db, Batch(source=SOURCE, upserts=[written]), NOTHING_KNOWN)
    answers = {query: reading.search(db, SearchQuery(query=query), ()) for query in ("refund", "mistakes", "mistake")}
    hits = {query: len(answer.hits) for query, answer in answers.items()}
    assert hits == {"refund": 1, "mistakes": 1, "mistake": 0}


def test_the_languages_are_all_that_the_library_has() -> None:
    assert sorted(words.LANGUAGES.values()) == sorted(set(Stemmer.algorithms()) - {"porter", "dutch_porter"})
    assert all(
        words.stems(word, language) for word, language in [("houses", "en"), ("Häusern", "de"), ("домами", "ru")]
    )


@given(st.text(max_size=60), st.sampled_from(["en", "de", "ru", "hi", "tr", "none"]))
def test_forms_are_words_of_any_text(text: str, language: str) -> None:
    found = words.forms(text, language)
    assert '"' not in found
    assert found == words.forms(text, language)

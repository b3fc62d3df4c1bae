"""The rows of the store have a figure for each aim. No time is asserted."""

import hashlib

import pytest

from benchmarks.aims.store import corpus, embedding, files, million, rows
from knowledge import chunking

SMALL = rows.Sizes(chunks=300, asked=6, files=30, windows=2_500)


def test_the_same_seed_makes_the_same_corpus_on_every_machine() -> None:
    pages = list(corpus.pages(3))
    text = "".join(page.body for page in (*pages, *corpus.small_pages(3)))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "dfeac7885a33fc92"
    assert corpus.questions(pages, 5) == corpus.questions(pages, 5)


def test_each_section_of_the_corpus_is_a_chunk() -> None:
    for page in corpus.pages(20):
        assert len(page.chunks) == corpus.SECTIONS
        assert page.chunks == chunking.split(page.body, max_tokens=corpus.MAX_TOKENS)
    assert all(len(chunking.split(page.body, max_tokens=corpus.MAX_TOKENS)) == 1 for page in corpus.small_pages(50))


@pytest.mark.parametrize("part", ["store", "store-files", "store-million"])
def test_a_part_of_the_store_measures_each_of_its_aims(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(million, "DOCUMENTS", 1_000)
    monkeypatch.setattr(files, "_SETTLED_S", 0)  # files are read again then, and found to be equal
    aims, measure = rows.parts(SMALL, 2)[part]
    found = measure()
    assert [each.aim for each in found] == list(aims)
    assert all(each.figure is not None and each.figure > 0 for each in found)


def test_without_the_local_embedder_its_row_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "is_installed", lambda: False)
    _, measure = rows.parts(SMALL, 2)["store-embedding"]
    (found,) = measure()
    assert found.verdict == "not measured"
    assert "not installed" in found.why

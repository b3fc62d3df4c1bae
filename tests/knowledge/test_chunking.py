from itertools import pairwise

import pytest
from document_texts import DOCUMENTS
from hypothesis import given
from hypothesis import strategies as st

from knowledge.chunking import split


def without_space(text: str) -> str:
    return "".join(text.split())


@given(DOCUMENTS, st.integers(1, 20))
def test_no_text_but_white_space_is_lost(text: str, max_tokens: int) -> None:
    assert without_space("".join(split(text, max_tokens=max_tokens))) == without_space(text)


@given(DOCUMENTS, st.integers(1, 20), st.data())
def test_no_chunk_passes_the_bound_and_each_is_a_slice_of_the_text(
    text: str, max_tokens: int, data: st.DataObject
) -> None:
    overlap = data.draw(st.integers(0, max_tokens - 1))
    chunks = split(text, max_tokens=max_tokens, overlap_tokens=overlap)
    assert all(len(chunk.encode()) <= max_tokens * 4 for chunk in chunks)
    assert all(chunk in text for chunk in chunks)  # a code point cut in two would be in no text


@given(DOCUMENTS, st.integers(2, 20), st.data())
def test_no_chunk_is_empty_unless_the_text_is(text: str, max_tokens: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, max_tokens - 1))
    chunks = split(text, max_tokens=max_tokens, overlap_tokens=overlap)
    assert all(chunks) if text.strip() else chunks == [""]


@given(DOCUMENTS, st.integers(2, 12), st.data())
def test_with_overlap_no_text_is_lost_either(text: str, max_tokens: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(1, max_tokens - 1))
    position = 0
    whole = without_space(text)
    for chunk in map(without_space, split(text, max_tokens=max_tokens, overlap_tokens=overlap)):
        place = max(whole.rfind(chunk, 0, position + len(chunk)), 0)
        assert place <= position
        assert whole.startswith(chunk, place)
        position = max(position, place + len(chunk))
    assert position == len(whole)


def test_a_text_that_fits_is_one_chunk() -> None:
    assert split("# Title\n\nBody\n", max_tokens=10) == ["# Title\n\nBody"]


def test_an_empty_document_has_one_empty_chunk() -> None:
    assert split("", max_tokens=10) == [""]
    assert split(" \r\n\t\n", max_tokens=10) == [""]


def test_sections_stay_whole_where_they_fit() -> None:
    first, second = "# One\n\nalpha beta gamma", "# Two\n\ndelta epsilon"
    assert split(f"{first}\n\n{second}\n", max_tokens=8) == [first, second]


def test_a_hash_inside_a_fenced_block_is_no_heading() -> None:
    text = "intro text here\n\n```sh\nls\n# comment\nls\n```\n\nend of the text"
    assert not any(chunk.startswith("# comment") for chunk in split(text, max_tokens=9))


def test_paragraphs_are_found_with_either_kind_of_line_end() -> None:
    paragraphs = ["a" * 20, "b" * 20, "c" * 20]
    assert split("\n\n".join(paragraphs), max_tokens=6) == paragraphs
    assert split("\r\n\r\n".join(paragraphs), max_tokens=6) == paragraphs


def test_lines_then_words_then_code_points_are_cut_when_nothing_coarser_fits() -> None:
    assert split("aaaa bbbb\ncccc dddd", max_tokens=3) == ["aaaa bbbb", "cccc dddd"]
    assert split("aaaa bbbb cccc", max_tokens=2) == ["aaaa", "bbbb", "cccc"]
    assert split("🎉🎉🎉", max_tokens=2) == ["🎉🎉", "🎉"]


def test_overlap_repeats_whole_words_of_the_chunk_before() -> None:
    chunks = split("one two three four five six seven eight nine", max_tokens=5, overlap_tokens=2)
    assert len(chunks) > 2
    for before, chunk in pairwise(chunks):
        words = chunk.split()
        shared = next(n for n in range(len(words), -1, -1) if before.endswith(" ".join(words[:n])))
        assert shared >= 1


@pytest.mark.parametrize(("max_tokens", "overlap"), [(0, 0), (-1, 0), (5, 5), (5, 6), (5, -1)])
def test_bounds_that_make_no_sense_are_refused_with_what_was_seen(max_tokens: int, overlap: int) -> None:
    with pytest.raises(ValueError, match=f"max_tokens is {max_tokens} and overlap_tokens {overlap}"):
        split("text", max_tokens=max_tokens, overlap_tokens=overlap)


def test_a_megabyte_without_any_break_is_cut() -> None:
    chunks = split("x" * 1_000_000, max_tokens=700)
    assert "".join(chunks) == "x" * 1_000_000

"""Chunks know their lines and headings; a body cut at these lines contains the chunk."""

import time
import tracemalloc
from itertools import pairwise

import pytest
from document_texts import DOCUMENTS
from hypothesis import given
from hypothesis import strategies as st

from knowledge.chunking import split
from knowledge.places import MAX_HEADING_CHARACTERS, cut, parse_lines, places, spans


@given(DOCUMENTS, st.integers(1, 20), st.data())
def test_the_body_cut_at_a_chunks_lines_contains_it(text: str, max_tokens: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, max_tokens - 1))
    chunks = split(text, max_tokens=max_tokens, overlap_tokens=overlap)
    found = places(text, chunks, markdown=True)
    assert len(found) == len(chunks)
    for chunk, place in zip(chunks, found, strict=True):
        assert place is not None
        part, last = cut(text, place.first, place.last)
        assert last == place.last
        assert chunk in part
        # No line too many: the first and the last have a part of it.
        assert part.count("\n") == chunk.count("\n")


@given(DOCUMENTS, st.integers(1, 20), st.data())
def test_spans_are_slices_in_order_that_leave_out_white_space_only(
    text: str, max_tokens: int, data: st.DataObject
) -> None:
    overlap = data.draw(st.integers(0, max_tokens - 1))
    chunks = split(text, max_tokens=max_tokens, overlap_tokens=overlap)
    found = [span for span in spans(text, chunks) if span]
    assert [text[start:end] for start, end in found] == chunks
    for (_, end), (start, _) in pairwise(found) if not overlap else ():
        assert not text[end:start].strip()


BODY = """---
title: x
---
before

# Alpha #

of alpha

## Beta

of beta

```sh
# no heading
```

of beta still

### Gamma
## Delta

of delta
# \t
of nothing
"""


def heading_of(chunk: str, body: str = BODY, *, markdown: bool = True) -> str | None:
    (place,) = places(body, [chunk], markdown=markdown)
    assert place is not None
    return place.heading


def test_the_heading_is_the_path_above_the_first_line_of_text() -> None:
    assert heading_of("before") is None
    assert heading_of("of alpha") == "Alpha"
    assert heading_of("of beta still") == "Alpha > Beta"
    assert heading_of("### Gamma\n## Delta\n\nof delta") == "Alpha > Delta"
    assert heading_of("# Alpha #\n\nof alpha\n\n## Beta") == "Alpha"
    assert heading_of("### Gamma") == "Alpha > Beta > Gamma"
    assert heading_of("of nothing") is None
    assert heading_of("of beta still", markdown=False) is None


def test_a_hostile_heading_is_cut() -> None:
    body = "# " + "x" * 10_000 + "\n\ntext"
    shown = heading_of("text", body)
    assert shown is not None
    assert len(shown) == MAX_HEADING_CHARACTERS


def test_a_chunk_that_is_no_slice_has_no_place_and_the_others_keep_theirs() -> None:
    found = places("one\ntwo\nthree", ["one", "elsewhere", "three"], markdown=True)
    assert [place and (place.first, place.last) for place in found] == [(1, 1), None, (3, 3)]


def test_finding_the_chunks_of_a_repetitive_text_takes_linear_time() -> None:
    body = "word " * 200_000
    chunks = split(body, max_tokens=5, overlap_tokens=2)
    assert all(places(body, chunks, markdown=True))


@given(st.lists(st.sampled_from(["", "a", "bb\r"]), min_size=1, max_size=9), st.integers(1, 9), st.integers(0, 9))
def test_cutting_lines_is_what_splitting_at_line_ends_gives(lines: list[str], first: int, more: int) -> None:
    body = "\n".join(lines)
    if first > len(lines):
        with pytest.raises(ValueError, match=f"there is no line {first}: the document has {len(lines)}"):
            cut(body, first, first + more)
        return
    last = min(first + more, len(lines))
    assert cut(body, first, first + more) == ("\n".join(lines[first - 1 : last]), last)
    assert cut(body, first, None) == ("\n".join(lines[first - 1 :]), len(lines))


def test_lines_are_written_in_three_ways() -> None:
    assert [parse_lines(text) for text in ("12-40", "12-", "12")] == [(12, 40), (12, None), (12, 12)]


@pytest.mark.parametrize("text", ["", "0", "-3", "a", "1-2-3", "3-2", "1, 2", "١", "9" * 30, "1\n"])
def test_lines_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="lines"):
        parse_lines(text)


def test_a_text_of_headings_only_takes_little_more_memory_than_itself() -> None:
    body = "#\n" * 100_000
    tracemalloc.start()
    try:
        chunks = split(body, max_tokens=700)
        assert len(places(body, chunks, markdown=True)) == len(chunks)
        assert tracemalloc.get_traced_memory()[1] < 16 * len(body)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("line", ["#\n", "# a\n", "### a ###\n", "```\n"])
def test_a_text_of_headings_alone_takes_time_in_proportion_to_its_size(line: str) -> None:
    def taken_s(size: int) -> float:
        body = line * (size // len(line))
        chunks = [body[at : at + 2_800].strip() for at in range(0, len(body), 2_800)]
        began_s = time.process_time()
        assert len(places(body, chunks, markdown=True)) == len(chunks)
        return time.process_time() - began_s

    assert taken_s(800_000) < 16 * max(taken_s(100_000), 0.002)  # 8 times, but for the machine's noise; not 64

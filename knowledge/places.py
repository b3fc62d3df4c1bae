"""Where the chunks of a document stand in its body: their lines and the headings above them. Pure.

A line ends with `\n`; the first one is number 1. Headings are Markdown's (`## Deploy`), outside of fenced blocks.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

# A heading in a path is cut here; a path has at most six, so that a hostile document does not store itself with
# every chunk.
MAX_HEADING_CHARACTERS = 120

SEPARATOR = " > "

# With the end of the line before it: `^` would be tried at every character, which takes half as long again (measured).
_MARK = re.compile(r"\n {0,3}(?:(#{1,6})(?:[ \t]+([^\n]*))?[ \t\r]*(?=\n|\Z)|(`{3,}|~{3,}))")
_CLOSING = re.compile(r"(?:^|[ \t]+)#+$")
_TEXT = re.compile(r"\S")
_LINES = re.compile(r"([1-9][0-9]{0,8})(?:-([1-9][0-9]{0,8})?)?")
_BLOCK = 64 * 1024


class Place(NamedTuple):
    """The first and the last line of a chunk, its headings from the outermost, as `Alpha > Beta`, and its page."""

    first: int
    last: int
    heading: str | None
    page: int | None = None


# The start and the end of a heading in a body, its level, and its text as it stands there. A plain tuple: a text of
# nothing else has millions.
_Heading = tuple[int, int, int, str]


def places(body: str, chunks: Sequence[str], *, markdown: bool, pages: Sequence[int] = ()) -> list[Place | None]:
    """The place of each chunk; None for a chunk that is no slice of the body. `pages` are where pages begin.

    Its headings are those of its first line that is not one itself, or all when it has no other line.
    """
    cut = spans(body, chunks)
    above = headings(body, filter(None, cut)) if markdown else repeat(None)
    found: list[Place | None] = []
    line, counted = 1, 0
    for span in cut:
        if span is None:
            found.append(None)
            continue
        start, end = span
        first = line + body.count("\n", counted, start)
        line, counted = first, start
        last = first + body.count("\n", start, end)
        found.append(Place(first, last, next(above), bisect_right(pages, start) or None))
    return found


def headings(body: str, spans: Iterable[tuple[int, int]]) -> Iterator[str | None]:
    """The headings of each slice of a Markdown text, as `places` has them. They come in the order of their starts."""
    # One heading at a time: a text of nothing else has millions, each a hundred times its line in memory.
    following = _headings(body)
    heading = next(following, None)
    path: list[_Heading] = []
    for start, end in spans:
        content = start  # where the first text is that is no heading; -1 for no matter where
        while heading is not None and heading[0] <= content:
            while path and path[-1][2] >= heading[2]:
                path.pop()
            path.append(heading)
            last, heading = heading, next(following, None)
            if heading is not None and last[1] > content:
                between = body[last[1] : heading[0]]
                content = heading[0] if heading[0] < end and (not between or between.isspace()) else -1
        yield SEPARATOR.join(filter(None, (_shown(each[3]) for each in path))) or None


def spans(body: str, chunks: Sequence[str]) -> list[tuple[int, int] | None]:
    """Where each chunk stands, the chunks being slices of the body in order, each of which may overlap the one before.

    Without overlap it is the place that the chunk was cut from, as only white space stands between two. With it, a text
    that repeats itself may have several places; the first that ends after the chunk before is taken, which is never
    after the right one. None for a chunk that is not there.
    """
    found: list[tuple[int, int] | None] = []
    end = 0
    for chunk in chunks:
        start = _text_after(body, end)
        if not body.startswith(chunk, start):
            return _overlapping(body, chunks)
        end = start + len(chunk)
        found.append((start, end))
    return found


def _overlapping(body: str, chunks: Sequence[str]) -> list[tuple[int, int] | None]:
    found: list[tuple[int, int] | None] = []
    start = end = 0
    for chunk in chunks:
        at = body.find(chunk, max(start, end - len(chunk) + 1))
        if at >= 0:
            start, end = at, at + len(chunk)
        found.append((start, end) if at >= 0 else None)
    return found


def _headings(body: str) -> Iterator[_Heading]:
    fence = ""
    for mark in _MARK.finditer("\n" + body):
        hashes, text, fenced = mark.groups()
        if fenced is not None:
            if not fence:
                fence = fenced
            elif fenced.startswith(fence):
                fence = ""
        elif not fence:
            yield mark.start(), mark.end() - 1, len(hashes), text or ""


def _shown(text: str) -> str:
    """The text of a heading as paths have it."""
    shown = " ".join(_CLOSING.sub("", text[: 2 * MAX_HEADING_CHARACTERS].strip()).split())
    return shown if len(shown) <= MAX_HEADING_CHARACTERS else shown[: MAX_HEADING_CHARACTERS - 1] + "…"


def _text_after(body: str, position: int) -> int:
    """Where the first character that is no white space stands; the end without any."""
    found = _TEXT.search(body, position)
    return len(body) if found is None else found.start()


def parse_lines(text: str) -> tuple[int, int | None]:
    """`12-40`, `12-` (to the end) or `12`: the first and the last line. Raises ValueError."""
    found = _LINES.fullmatch(text)
    if found is None:
        raise ValueError(f"lines must be as 12-40, 12- or 12, counted from 1, got {text[:64]!r}")
    first = int(found[1])
    last = int(found[2]) if found[2] else (None if "-" in text else first)
    if last is not None and last < first:
        raise ValueError(f"lines {text} end before they begin")
    return first, last


def cut(body: str, first: int, last: int | None) -> tuple[str, int]:
    """These lines of the body, without the end of the last one, and the number of the last. Raises ValueError.

    A `last` beyond the end is the end's.
    """
    start, reached = _line_start(body, 0, first - 1)
    if reached < first - 1:
        raise ValueError(f"there is no line {first}: the document has {reached + 1}")
    if last is None:
        return body[start:], first + body.count("\n", start)
    end, passed = _line_start(body, start, last - first + 1)
    if passed <= last - first:
        return body[start:], first + passed
    return body[start : end - 1], last


def _line_start(body: str, position: int, lines: int) -> tuple[int, int]:
    """The place after `lines` ends of lines from `position` on, and how many there were. Makes no copy, no list."""
    passed = 0
    while passed < lines and position < len(body):
        block = min(position + _BLOCK, len(body))
        count = body.count("\n", position, block)
        if passed + count < lines:
            passed, position = passed + count, block
            continue
        while passed < lines:
            position = body.index("\n", position) + 1
            passed += 1
    return position, passed

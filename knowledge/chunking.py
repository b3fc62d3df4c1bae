"""Cut a text into chunks of bounded size: at headings where possible, else paragraphs, lines, words, code points.

Chunks are slices of the text with the white space at their ends removed, so nothing but white space is ever lost.
A token is counted as four bytes of UTF-8, the estimate that the limits in configuration files are written for.
"""

import re
from collections.abc import Callable, Iterator
from itertools import chain, pairwise
from typing import NamedTuple

BYTES_PER_TOKEN = 4

# With the end of the line before: an expression that begins with `^` takes three times as long (measured).
_FIRST_MARK = re.compile(r" {0,3}(?:(#{1,6})(?=[ \t\r\n]|\Z)|(`{3,}|~{3,}))")
_MARK = re.compile(r"\n" + _FIRST_MARK.pattern)
_BLANK_LINES = re.compile(r"\n(?:[ \t\r]*\n)+")
_LINE_END = re.compile(r"\n")
_SPACE = re.compile(r"\s+")


class _Piece(NamedTuple):
    """A slice `text[start:end]` that is kept in one chunk if the chunk has room for it."""

    start: int
    end: int
    opens_section: bool


def split(text: str, *, max_tokens: int, overlap_tokens: int = 0) -> list[str]:
    """The chunks of `text` in order, each of at most `max_tokens` * 4 bytes of UTF-8.

    No chunk is empty, except that a text without anything but white space yields one empty chunk. With
    `overlap_tokens`, each chunk but the first begins with up to that many tokens from the end of the one before it;
    the bound includes them. Raises ValueError unless 0 <= overlap_tokens < max_tokens.
    """
    if max_tokens < 1 or not 0 <= overlap_tokens < max_tokens:
        raise ValueError(
            f"max_tokens is {max_tokens} and overlap_tokens {overlap_tokens}; "
            "max_tokens must be at least 1 and overlap_tokens from 0 to below it"
        )
    bound = max_tokens * BYTES_PER_TOKEN
    stripped = text.strip()
    if _size(stripped) <= bound:
        return [stripped]
    overlap = overlap_tokens * BYTES_PER_TOKEN
    spans = list(_merge(text, _pieces(text, 0, len(text), 0, bound - overlap), bound - overlap))
    if overlap:
        spans[1:] = [_extended(text, before, span, overlap) for before, span in pairwise(spans)]
    return [text[start:end].strip() for start, end in spans]


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _pieces(text: str, start: int, end: int, level: int, room: int) -> Iterator[_Piece]:
    """Adjacent pieces that cover text[start:end]; each fits into `room` bytes once its trailing space is cut off."""
    if level == len(_LEVELS):
        yield from _hard_cut(text, start, end, room)
        return
    # One at a time: where each second character ends a line, a list of them takes eighteen times the text.
    cuts = chain((start,), (cut for cut in _LEVELS[level](text, start, end) if start < cut < end), (end,))
    for left, right in pairwise(cuts):
        if _size(text[left:right].rstrip()) <= room:
            yield _Piece(left, right, level == 0)
        else:
            yield from _pieces(text, left, right, level + 1, room)


def _headings(text: str, start: int, end: int) -> Iterator[int]:
    """Where lines with an ATX heading begin; a `#` inside a fenced block is not one."""
    fence = ""
    first = _FIRST_MARK.match(text, start, end)
    for mark in chain((first,) if first else (), _MARK.finditer(text, start, end)):
        heading, fenced = mark.groups()
        if heading is None:
            if not fence:
                fence = fenced
            elif fenced.startswith(fence):
                fence = ""
        elif not fence:
            yield start if mark is first else mark.start() + 1


def _after(pattern: re.Pattern[str]) -> Callable[[str, int, int], Iterator[int]]:
    return lambda text, start, end: (match.end() for match in pattern.finditer(text, start, end))


_LEVELS: tuple[Callable[[str, int, int], Iterator[int]], ...] = (
    _headings,
    _after(_BLANK_LINES),
    _after(_LINE_END),
    _after(_SPACE),
)


def _hard_cut(text: str, start: int, end: int, room: int) -> Iterator[_Piece]:
    """A word longer than a chunk, cut between code points."""
    data = text[start:end].encode("utf-8", "surrogatepass")
    position = 0
    while position < len(data):
        stop = min(position + room, len(data))
        while stop < len(data) and data[stop] & 0xC0 == 0x80:  # a continuation byte: its code point began earlier
            stop -= 1
        length = len(data[position:stop].decode("utf-8", "surrogatepass"))
        yield _Piece(start, start + length, False)
        start, position = start + length, stop


def _merge(text: str, pieces: Iterator[_Piece], room: int) -> Iterator[tuple[int, int]]:
    """Join neighbours while they fit. A heading opens a new chunk when the one before is at least half full."""
    start = end = size = 0
    for piece in pieces:
        body = text[piece.start : piece.end]
        if not body.strip():
            continue  # white space between chunks belongs to neither
        gap = _size(text[end : piece.start])
        fits = size + gap + _size(body.rstrip()) <= room
        if size and (not fits or (piece.opens_section and size * 2 >= room)):
            yield start, end
            size = 0
        if not size:
            start, gap = piece.start, 0
        size, end = size + gap + _size(body), piece.end
    if size:
        yield start, end


def _extended(text: str, before: tuple[int, int], span: tuple[int, int], overlap: int) -> tuple[int, int]:
    """`span` grown backwards into `before` by at most `overlap` bytes, to the start of a word if there is one."""
    start = span[0]
    tail = text[max(before[0], start - overlap) : start].encode("utf-8", "surrogatepass")[-overlap:]
    while tail and tail[0] & 0xC0 == 0x80:
        tail = tail[1:]
    earliest = start - len(tail.decode("utf-8", "surrogatepass"))
    if earliest > before[0] and not text[earliest - 1].isspace() and (space := _SPACE.search(text, earliest, start)):
        earliest = space.end()
    return earliest, span[1]

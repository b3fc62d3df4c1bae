"""A chunk as windows that a sentence model reads whole: models drop what is beyond a few hundred pieces. Pure."""

import re
from collections.abc import Iterator

from knowledge import chunking

# all-MiniLM-L6-v2 reads 256 pieces and drops the rest. The count below is an estimate, hence the room.
WINDOW_TOKENS = 200
# A heading path is put before each window, as it names what its text is about; a long one would leave no room for text.
_HEADING_CHARACTERS = 200
# A document's windows beyond this are not embedded: a book has 2,000, and 10,000 take five minutes of `local`.
MAX_WINDOWS = 10_000

# Parts are not made smaller than this, whatever the estimate says of them.
_LEAST_SIZE = 16

_WORDS = re.compile(r"[A-Za-z]+|[^\sA-Za-z]")


def windows(text: str, title: str | None = None, heading: str | None = None) -> list[str]:
    """The windows of a chunk in order, each of at most WINDOW_TOKENS tokens by estimate, behind title and heading.

    A chunk without anything but white space has none.
    """
    if not text.strip():
        return []
    lead = _lead(title, heading)
    room = WINDOW_TOKENS - tokens(lead)
    return [f"{lead}\n{part}" if lead else part for part in _parts(text, room)]


def _lead(title: str | None, heading: str | None) -> str:
    # A heading path begins with the title where the document's first heading is its title.
    shown = (
        heading if heading and (not title or heading.startswith(title)) else " > ".join(filter(None, (title, heading)))
    )
    return " ".join((shown or "")[:_HEADING_CHARACTERS].split())


def _parts(text: str, room: int, size: int | None = None) -> Iterator[str]:
    """Parts of at most `room` tokens by estimate, and of `size` as chunks count tokens: a quarter of the bytes."""
    size = size or room
    for part in chunking.split(text, max_tokens=size):
        if tokens(part) <= room or size <= _LEAST_SIZE:
            yield part
        else:  # more pieces than bytes / 4: code, numbers, CJK
            yield from _parts(part, room, size // 2)


def tokens(text: str) -> int:
    """An estimate of the pieces that WordPiece makes of `text`: a word in Latin letters is one for each six of them."""
    return sum(1 + (len(word) - 1) // 6 for word in _WORDS.findall(text))

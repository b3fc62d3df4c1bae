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


# What a window is, which goes with each vector: vectors of another one are made anew, as those of another model are.
# To be raised with every change of this module, or of `vectors.windows`, that changes the windows of a document.
RECIPE = 1


def parts(text: str, title: str | None = None, heading: str | None = None) -> list[str]:
    """The parts of a chunk in order: each is a window with the title and the heading path of its chunk before it.

    A chunk without anything but white space has none.
    """
    return list(_parts(text, WINDOW_TOKENS - tokens(_lead(title, heading)))) if text.strip() else []


def window(part: str, title: str | None = None, heading: str | None = None) -> str:
    """A part behind its title and heading path: at most WINDOW_TOKENS tokens by estimate.

    A part with headings that are longer than those of its chunk has more: models have room for it.
    """
    lead = _lead(title, heading)
    return f"{lead}\n{part}" if lead else part


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

"""Server-sent events from the bytes of a stream, as the HTML standard reads them (section 9.2.6). Pure."""

from collections.abc import Iterator
from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"
_CR = b"\r"


class ServerSent(NamedTuple):
    """One event: its type, and its lines of data joined."""

    type: str
    data: str


class EventTooLarge(Exception):
    """One event has more bytes than it may."""


class Events:
    """The events of one stream, whose bytes come in pieces. An event has at most `most` bytes, comments included."""

    def __init__(self, most: int) -> None:
        self._most = most
        # The whole lines of the event so far have `_size` bytes with their ends. The line after them came in these
        # pieces, `_line_size` bytes together: joined with each piece, a long line would take quadratic time.
        self._size = 0
        self._line: list[bytes] = []
        self._line_size = 0
        self._type = ""
        self._data: list[str] | None = None
        self._first = True
        self._after_cr = False

    def feed(self, piece: bytes) -> Iterator[ServerSent]:
        """The events that the next piece completes: read them all before the next piece. Raises EventTooLarge."""
        if not piece:
            return
        after_cr, self._after_cr = self._after_cr, piece.endswith(_CR)
        if after_cr and piece.startswith(b"\n"):  # the other half of an end of line
            piece = piece[1:]
        if _CR in piece:
            piece = piece.replace(b"\r\n", b"\n").replace(_CR, b"\n")
        *lines, rest = piece.split(b"\n")
        for line in lines:
            if self._line:
                line = b"".join((*self._line, line))
                self._line, self._line_size = [], 0
            if (event := self._whole(line)) is not None:
                yield event
        if rest:
            self._line.append(rest)
            self._line_size += len(rest)
            self._check()

    def _whole(self, line: bytes) -> ServerSent | None:
        """Take a line; the event that it ends."""
        if self._first:
            self._first, line = False, line.removeprefix(_BOM)
        if not line:
            kind, data = self._type or "message", self._data
            self._size, self._type, self._data = 0, "", None
            return None if data is None else ServerSent(kind, "\n".join(data))
        self._size += len(line) + 1
        self._check()
        name, _, value = line.partition(b":")
        if name == b"data":
            if self._data is None:
                self._data = []
            self._data.append(_text(value))
        elif name == b"event":
            self._type = _text(value)
        return None

    def _check(self) -> None:
        if self._size + self._line_size > self._most:
            raise EventTooLarge


def _text(value: bytes) -> str:
    # It is UTF-8, whatever the charset of the answer says.
    return value.removeprefix(b" ").decode("utf-8", "replace")

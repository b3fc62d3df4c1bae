"""Large values of MCP answers bypass the SDK: it gets a mark for each, and sending replaces the marks by JSON.

The SDK copies every value three times, then writes it with the standard library: 0.9 us a value and 5 ns a byte, twice
(as structure, and as a string of JSON), in one piece. Here a value is rendered once, and sent in pieces.
"""

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import trio

from server.http.asgi import PIECE, Exchange, Message, Send
from server.problems import encode

# A smaller value (as JSON) goes through the SDK, which takes 1 ms for it.
HELD_BYTES = 64 * 1024


class Held:
    """The large values of one answer. A mark contains 128 random bits: the author of a value cannot guess one."""

    def __init__(self) -> None:
        self._nonce = f"held-{secrets.token_hex(16)}"
        self._rendered: list[tuple[bytes, ...]] = []
        self._mark = re.compile(rb'\{"%b-(\d+)":0\}|"%b-(\d+)"' % ((self._nonce.encode(),) * 2))

    def text(self, *pieces: bytes) -> str:
        """A string that stands for the JSON in these pieces."""
        self._rendered.append(pieces)
        return f"{self._nonce}-{len(self._rendered) - 1}"

    def object(self, *pieces: bytes) -> dict[str, int]:
        """Like `text`, where the SDK accepts nothing but an object."""
        return {self.text(*pieces): 0}

    def filled(self, body: bytes) -> list[bytes]:
        """A message with its marks replaced by their JSON, in pieces."""
        pieces, at = [], 0
        for mark in self._mark.finditer(body):
            pieces += [body[at : mark.start()], *self._rendered[int(mark[1] or mark[2])]]
            at = mark.end()
        return [*pieces, body[at:]]


@dataclass(frozen=True, slots=True)
class Rendered:
    """The value of an answer, rendered once. `text` is its JSON as a JSON string, for a large value only."""

    value: Any
    json: bytes
    text: tuple[bytes, ...]

    @property
    def large(self) -> bool:
        return bool(self.text)

    @property
    def size(self) -> int:
        """About how many bytes it takes without `value`, or with a small one."""
        if not self.large and isinstance(self.value, str):
            return 4 * len(self.value)
        return len(self.json) + sum(map(len, self.text))

    def compact(self) -> "Rendered":
        """The same without a large value, which takes up to eight times the bytes of its JSON."""
        return replace(self, value=None) if self.large else self

    def whole(self) -> Any:
        """The value."""
        return msgspec.json.decode(self.json) if self.large and self.value is None else self.value


async def rendered(value: Any) -> Rendered:
    """Render a value, a large one with pauses."""
    if isinstance(value, str) and len(value) <= HELD_BYTES:
        return Rendered(value, b"", ())
    json = encode(value)
    if len(json) <= HELD_BYTES:
        return Rendered(value, json, ())
    return Rendered(value, json, (json,) if isinstance(value, str) else await text_of(json))


async def text_of(rendered: bytes) -> tuple[bytes, ...]:
    """JSON as a JSON string. JSON contains no raw control characters, so only two characters need escapes."""
    pieces = [b'"']
    for at in range(0, len(rendered), PIECE):
        pieces.append(rendered[at : at + PIECE].replace(b"\\", b"\\\\").replace(b'"', b'\\"'))
        await trio.lowlevel.checkpoint()
    return (*pieces, b'"')


def filling(send: Send, exchange: Exchange) -> Send:
    """A `send` that replaces the marks of an answer by their JSON."""
    head: Message | None = None

    async def send_filled(message: Message) -> None:
        nonlocal head
        held = exchange.held
        if held is None:
            await send(message)
        elif message["type"] == "http.response.start":
            head = message  # sent later: its length is known once the body is
        else:
            pieces = held.filled(message.get("body", b""))
            if head is not None:
                length = b"%d" % sum(map(len, pieces))
                headers = [(name, length if name == b"content-length" else value) for name, value in head["headers"]]
                await send({**head, "headers": headers})
                head = None
            for piece in _parts(pieces[:-1]):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({**message, "body": pieces[-1]})

    return send_filled


def _parts(pieces: list[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        for at in range(0, len(piece), PIECE):
            yield piece if len(piece) <= PIECE else piece[at : at + PIECE]

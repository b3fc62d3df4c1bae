"""Pagination of lists. A cursor is opaque: a position, and a MAC over the position, the list and the caller."""

import base64
import binascii
import hashlib
import hmac
import secrets
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from mcp.shared.exceptions import MCPError

from server.problems import INVALID_PARAMS

# Long, because many clients never request a second page.
PAGE = 250
# Bound on the characters of a page after its first item: the SDK takes 10 ms to render so many.
PAGE_CHARS = 256 * 1024

# 72 bits: a guess fails, and the cursor stays short.
_MAC_BYTES = 9


class Named(Protocol):
    """An item of a paged list."""

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)


class Cursors:
    """Makes and verifies the cursors of one process; those of any other process, or of an earlier one, are invalid.

    A cursor holds the name of the last item of its page, so a list that changes between two pages neither repeats nor
    skips items that stay in it. It is valid for one list of one caller: `scope` names both.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)

    def after(self, scope: tuple[str, ...], position: str) -> str:
        """The cursor for the items after `position` in the list of `scope`."""
        data = position.encode("utf-8", "surrogatepass")
        return base64.urlsafe_b64encode(self._mac(scope, data) + data).decode()

    def position(self, scope: tuple[str, ...], cursor: str) -> str:
        """The position in a cursor. Raises MCPError (-32602) for one not made for this list of this caller."""
        try:
            raw = base64.b64decode(cursor.encode(), altchars=b"-_", validate=True)
        except (binascii.Error, UnicodeError):
            raw = b""
        data = raw[_MAC_BYTES:]
        if not hmac.compare_digest(raw[:_MAC_BYTES], self._mac(scope, data)):
            raise MCPError(INVALID_PARAMS, "this cursor is not one of this list; start again without a cursor")
        return data.decode("utf-8", "surrogatepass")

    def _mac(self, scope: tuple[str, ...], data: bytes) -> bytes:
        whole = "\0".join(scope).encode("utf-8", "surrogatepass") + b"\0\0" + data
        return hashlib.blake2b(whole, key=self._key, digest_size=_MAC_BYTES).digest()

    def page(
        self, items: Sequence[N], scope: tuple[str, ...], cursor: str | None, size: Callable[[N], int] = lambda item: 0
    ) -> tuple[list[N], str | None]:
        """One page of items in the order of their names, and the cursor of the next one. `size` is in characters.

        Raises MCPError (-32602) for a cursor not made for this list of this caller.
        """
        ordered = sorted(items, key=lambda item: item.name)
        start = 0
        if cursor is not None:
            start = bisect_right(ordered, self.position(scope, cursor), key=lambda item: item.name)
        shown = ordered[start : start + PAGE]
        left = PAGE_CHARS
        for place, item in enumerate(shown[1:], 1):
            left -= size(item)
            if left < 0:
                shown = shown[:place]
                break
        more = start + len(shown) < len(ordered)
        return shown, self.after(scope, shown[-1].name) if more else None

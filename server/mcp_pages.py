"""Lists in pages. A cursor is opaque: it says where a list goes on, to whom it was given, and that it is ours."""

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

# Many clients never ask for a second page, so the first one is long.
PAGE = 250
# What a page holds beside its first item is at most so many characters long: the SDK takes 10 ms to render it.
PAGE_CHARS = 256 * 1024

# 72 bits: a guess fails, and the cursor stays short.
_MAC_BYTES = 9


class Named(Protocol):
    """What can be listed in pages."""

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)


class Cursors:
    """Makes and reads the cursors of one process; those of another one, or of an earlier one, are not ours.

    A cursor holds the last thing that was shown, so a list that changes between two pages neither repeats nor skips
    what stays in it. It is good for one list of one caller: `scope` names both.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)

    def after(self, scope: tuple[str, ...], position: str) -> str:
        """The cursor of what follows `position` in the list of `scope`."""
        data = position.encode("utf-8", "surrogatepass")
        return base64.urlsafe_b64encode(self._mac(scope, data) + data).decode()

    def position(self, scope: tuple[str, ...], cursor: str) -> str:
        """Where a cursor points. Raises MCPError (-32602) for one that was not made for this list of this caller."""
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

        Raises MCPError (-32602) for a cursor that was not made for this list of this caller.
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

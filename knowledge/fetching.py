"""Pages of the web: what connectors ask for them, and what they get. Pure."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol


class FetchFailed(Exception):
    """No answer came, or none that can be used. The text is the reason; `again` whether another try may succeed."""

    def __init__(self, reason: str, *, again: bool = False) -> None:
        super().__init__(reason)
        self.again = again


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer. `headers` has lower-case names; `body` is decompressed, and empty unless the status is 200."""

    status: int
    headers: Mapping[str, str]
    body: bytes | bytearray


class Fetcher(Protocol):
    """Sends requests to the hosts of some addresses, and to no others."""

    def canonical(self, url: str, base: str | None = None) -> str:
        """The one form of an address, without its fragment; with `base`, of one that is relative to it.

        Raises ValueError for what is no address of the web.
        """
        ...

    def reaches(self, url: str) -> bool:
        """Whether the host of a canonical address is one of those that may be reached."""
        ...

    async def fetch(self, url: str, headers: Mapping[str, str], *, max_bytes: int, max_s: float) -> Fetched:
        """The answer for one canonical address; redirects are not followed. Raises FetchFailed."""
        ...


class Poster(Protocol):
    """Sends requests with a body to the hosts of some addresses, and to no others."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, *, max_bytes: int, max_s: float) -> Fetched:
        """The answer of one address; redirects are not followed. Raises FetchFailed, whose text has no header."""
        ...


# Opens what reaches the hosts of these addresses. Raises ValueError for one that is none.
Fetching = Callable[[Sequence[str]], AbstractAsyncContextManager[Fetcher]]

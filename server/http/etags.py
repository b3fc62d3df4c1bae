"""Conditional requests: `ETag` and `If-None-Match` (RFC 9110 section 13.1.2), compared weakly. Pure.

A weak tag says that the value is the same, whatever its bytes are (section 8.8.1): a proxy may compress the answer.
"""

import hashlib
import re
from collections.abc import Mapping

from server.problems import Answer

# One tag of a list, weak or not. The head of a request is bounded (`transport.framing`), and so is this header.
_TAG = re.compile(rb'(?:W/)?("[!#-~\x80-\xff]*")')
# Only the client may cache an answer, and must revalidate it each time: the answer depends on the key.
_PRIVATE = (b"cache-control", b"private, no-cache")


class ETag:
    """The tag of one value, computed from the parts of its body in their order."""

    def __init__(self, *parts: bytes) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            self.add(part)

    def add(self, part: bytes) -> None:
        """Add a part. Parts are delimited: the same bytes, divided differently, have another tag."""
        self._digest.update(b"%d:" % len(part))
        self._digest.update(part)

    @property
    def _opaque(self) -> bytes:
        return b'"%b"' % self._digest.hexdigest().encode()

    def is_known(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether the client has this value, as its `If-None-Match` says."""
        given = headers.get(b"if-none-match")
        return given is not None and (given.strip() == b"*" or self._opaque in _TAG.findall(given))

    def unchanged(self) -> Answer:
        """The answer for a client that has it: 304, without a body."""
        return Answer(304, [(b"etag", b"W/" + self._opaque), _PRIVATE], b"")

    def on(self, answer: Answer) -> Answer:
        """The answer with its tag."""
        answer.headers.extend([(b"etag", b"W/" + self._opaque), _PRIVATE])
        return answer

"""What pages of the web say of other pages, and to robots: links, sitemaps, llms.txt. Pure.

All of it was written by strangers. Patterns are re2's, whose time is linear, and are applied to a piece at a time:
a thread holds the interpreter for as long as one call takes.
"""

import html
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from xml.parsers import expat

import re2

# Of these sizes, a call takes under a millisecond.
_PIECE = 64 * 1024
_OVERLAP = 4 * 1024  # the longest tag that is found across two pieces
_MAX_TEXT = 2_048  # of an address

# Bounds on a sitemap: the protocol's (https://www.sitemaps.org/protocol.html) on addresses, and less than its on bytes.
MAX_ADDRESSES = 50_000
MAX_SITEMAP_BYTES = 20 * 1024 * 1024
_MAX_DEPTH = 16

_LINK = re2.compile(r"""(?i)<a\s(?:[^<>"']|"[^"<>]*"|'[^'<>]*')*?href\s*=\s*(?:"([^"<>]*)"|'([^'<>]*)'|([^\s"'<>]+))""")
_BASE = re2.compile(r"""(?i)<base\s[^<>]*?href\s*=\s*["']?([^\s"'<>]+)""")
_META_ROBOTS = re2.compile(r"""(?i)<meta\s[^<>]*?name\s*=\s*["']?robots["'\s][^<>]*""")
_CONTENT = re2.compile(r"""(?i)content\s*=\s*(?:"([^"<>]*)"|'([^'<>]*)'|([^\s"'<>]+))""")
_MARKDOWN_LINK = re2.compile(r"\]\(\s*<?([^\s()<>]+)>?[^()\n]*\)")


@dataclass(frozen=True, slots=True)
class Listed:
    """An address in a sitemap, with the time of its page's last change as the sitemap writes it."""

    url: str
    changed: str | None = None


@dataclass(frozen=True, slots=True)
class Sitemap:
    """The pages of a sitemap, or of an index the sitemaps. `more` says that there are more than it may have."""

    is_index: bool
    entries: tuple[Listed, ...]
    more: bool = False


def links(page: str) -> Iterator[str]:
    """What the links of a page of HTML say, in order, each once."""
    seen = set()
    for piece in _pieces(page):
        for match in _LINK.finditer(piece):
            found = html.unescape(next(filter(None, match.groups()), "")).strip()
            if found and len(found) <= _MAX_TEXT and found not in seen:
                seen.add(found)
                yield found


def base(page: str) -> str | None:
    """The address that the links of a page are relative to, if the page has one."""
    match = _BASE.search(page[:_PIECE])
    return html.unescape(match[1])[:_MAX_TEXT] if match else None


def robots(page: str) -> frozenset[str]:
    """What a page says to robots: `noindex`, `nofollow` and others, in lower case."""
    found: set[str] = set()
    for tag in islice(_META_ROBOTS.finditer(page[:_PIECE]), 8):
        if match := _CONTENT.search(tag[0]):
            found |= directives(next(filter(None, match.groups()), ""))
    return frozenset(found)


def directives(text: str) -> frozenset[str]:
    """The words of a list for robots; `none` stands for two."""
    words = {word.strip().lower() for word in text[:_MAX_TEXT].split(",")}
    return frozenset(words | {"noindex", "nofollow"} if "none" in words else words)


def llms_links(text: str) -> Iterator[str]:
    """The addresses in an llms.txt, in order, each once."""
    seen = set()
    for piece in _pieces(text):
        for match in _MARKDOWN_LINK.finditer(piece):
            if len(match[1]) <= _MAX_TEXT and match[1] not in seen:
                seen.add(match[1])
                yield match[1]


def _pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), _PIECE):
        yield text[start : start + _PIECE + _OVERLAP]


def unzipped(data: bytes | bytearray) -> bytes:
    """A sitemap that is stored compressed. Raises ValueError when it is damaged, or larger than a sitemap may be."""
    stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        found = stream.decompress(data, MAX_SITEMAP_BYTES + 1)
    except zlib.error:
        raise ValueError("not gzip, as its name says") from None
    if len(found) > MAX_SITEMAP_BYTES:
        raise ValueError(f"larger than {MAX_SITEMAP_BYTES} bytes")
    return found


def sitemap(data: bytes | bytearray) -> Sitemap:
    """A sitemap or an index of sitemaps. Raises ValueError for what is neither."""
    reader = _Reader()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartDoctypeDeclHandler = reader.doctype
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    if len(data) > MAX_SITEMAP_BYTES:
        raise ValueError(f"larger than {MAX_SITEMAP_BYTES} bytes")
    try:
        for begin in range(0, len(data), _PIECE):
            parser.Parse(data[begin : begin + _PIECE], False)
            if reader.more:
                break
        else:
            parser.Parse(b"", True)
    except expat.ExpatError:
        raise ValueError("not well-formed XML") from None
    if reader.root is None:
        raise ValueError("empty")
    return Sitemap(reader.root == "sitemapindex", tuple(reader.found), reader.more)


class _Reader:
    """Follows the elements of a sitemap, bounded in depth and number."""

    def __init__(self) -> None:
        self.root: str | None = None
        self.found: list[Listed] = []
        self.more = False
        self._path: list[str] = []
        self._texts: dict[str, str] = {}

    def doctype(self, *_: object) -> None:
        # Entities could stand for a thousand times their size; no sitemap declares any.
        raise ValueError("XML with a document type")

    def start(self, name: str, _: object) -> None:
        plain = name.rpartition(" ")[2]
        if self.root is None:
            if plain not in ("urlset", "sitemapindex"):
                raise ValueError("XML that is no sitemap")
            self.root = plain
        if len(self._path) >= _MAX_DEPTH:
            raise ValueError("XML that is nested too deep")
        self._path.append(plain)

    def text(self, data: str) -> None:
        if len(self._path) == 3 and self._path[2] in ("loc", "lastmod"):
            kept = self._texts.get(self._path[2], "")
            if len(kept) <= _MAX_TEXT:
                self._texts[self._path[2]] = kept + data[: _MAX_TEXT + 1]

    def end(self, _: str) -> None:
        self._path.pop()
        if len(self._path) == 1:
            url, changed = (self._texts.get(name, "").strip() for name in ("loc", "lastmod"))
            self._texts = {}
            if len(self.found) >= MAX_ADDRESSES:
                self.more = True
            elif 0 < len(url) <= _MAX_TEXT:
                self.found.append(Listed(url, changed[:40] or None))

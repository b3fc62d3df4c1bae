"""Documents from pages of web sites: given ones, those of sitemaps and of llms.txt, and those that they link to.

The sites are strangers. What they send is bounded in bytes, pages and time; only hosts of given addresses are reached;
robots.txt is kept. A page is requested under the condition that it changed, kept in a temporary file until it is
stored, and its HTML is read by the extractor.
"""

import hashlib
import json
import os
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import islice
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

import trio
from protego import Protego

from knowledge import webpages
from knowledge.connectors import ConnectorError, Found, Item, Partial, Skipped, Unreadable
from knowledge.extraction import TEXT_ONLY, Extracted, Extractor
from knowledge.fetching import Fetched, Fetcher, FetchFailed, Fetching
from knowledge.textfiles import DEFAULT_MAX_BYTES, Globs, GlobStyle, text_of
from knowledge.times import canonical_time, format_time
from storage.metering import in_thread

# Tries of a request that may succeed later, and the pause before the second; the third waits twice as long.
_TRIES = 3
_PAUSE_S = 0.5
# Bound on a pause that a site wants: Retry-After, and Crawl-delay.
MAX_PAUSE_S = 30.0
_REQUEST_S = 60.0
_REDIRECTS = 5
# After so many failures in a row, a site is not asked for the rest.
_FAILURES_IN_A_ROW = 5
# Bounds on lists of pages: sitemaps of sitemaps, the size of an llms.txt.
_SITEMAPS = 200
_SITEMAP_DEPTH = 3
_LLMS_BYTES = 2 * 1024 * 1024
# RFC 9309 section 2.5 wants 500 KiB to be read. Each rule is kept for each agent that its group names.
_ROBOTS_BYTES = 512 * 1024
_ROBOTS_AGENTS = 500
_ROBOTS_RULES = 1_000_000
# Bound on the part of a page that is searched for links.
_LINKED_BYTES = 4 * 1024 * 1024
# Addresses that are asked for beside twice `max_pages`: links can lead to pages that there are not, without an end.
_OTHERS = 100
# Bounds on the links of a page, which can be a million, and on addresses that wait.
_LINKS = 10_000
_WAITING = 100_000
# So many addresses are parsed and matched in 2 ms.
_AT_ONCE = 100

_HTML = frozenset({"text/html", "application/xhtml+xml"})
_XML = frozenset({"text/xml", "application/xml"})
_ZIPPED = frozenset({"application/gzip", "application/x-gzip"})
_MARKDOWN = frozenset({"text/markdown", "text/x-markdown"})
# Changes when pages are turned into documents in another way.
_FORM = 1
_MAX_VALIDATOR = 200


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much of the sites is read, in one synchronisation."""

    depth: int
    pages: int
    page_bytes: int
    total_bytes: int
    seconds: float


class WebConnector:
    """Pages of `urls` and of the sitemaps and llms.txt among them, of `sitemaps`, and with `follow` what they link to.

    A link is followed to addresses that begin as the given page's does, up to its last `/`, at most `max_depth` links
    away. The globs take or leave paths, where a path that ends with `/` has `index.html` after it. A source_id is the
    address of a page, after redirects. `fetching` reaches the sites.
    """

    def __init__(
        self,
        urls: Sequence[str] = (),
        *,
        sitemaps: Sequence[str] = (),
        follow: bool = False,
        max_depth: int = 3,
        max_pages: int = 1_000,
        max_total_bytes: int = 500_000_000,
        max_extract_bytes: int = DEFAULT_MAX_BYTES,
        timeout_s: float = 1_800,
        delay_s: float = 0.1,
        user_agent: str = "engine",
        include_globs: Sequence[str] = ("**",),
        exclude_globs: Sequence[str] = (),
        glob_style: GlobStyle = "gitignore",
        fetching: Fetching,
        extractor: Extractor = TEXT_ONLY,
    ) -> None:
        """Raises ValueError without an address, and for a user agent or pattern that cannot be used."""
        if not urls and not sitemaps:
            raise ValueError("there are no urls and no sitemaps")
        if not user_agent.isascii() or not user_agent.isprintable() or not user_agent.strip():
            raise ValueError("user_agent must be printable ASCII")
        self._urls = tuple(urls)
        self._sitemaps = tuple(sitemaps)
        self._follow = follow
        self._bounds = Bounds(max_depth, max_pages, max_extract_bytes, max_total_bytes, timeout_s)
        self._delay_s = delay_s
        self._agent = user_agent.strip()
        self._globs = Globs(include_globs, exclude_globs, glob_style)
        self._fetching = fetching
        self._extractor = extractor

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["_Crawl"]:
        """The pages, for one synchronisation. Raises ConnectorError when they cannot be kept until they are stored."""
        async with self._fetching((*self._urls, *self._sitemaps)) as fetcher:
            given = [fetcher.canonical(url) for url in self._urls]
            sitemaps = [fetcher.canonical(url) for url in self._sitemaps]
            client = _Client(fetcher, self._agent, self._delay_s)
            with closing(_Spool()) as spool:
                yield _Crawl(client, given, sitemaps, self._follow, self._bounds, self._globs, spool, self._extractor)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """An address to ask for. `depth` is how many links it is away; `start` that it was given, and may be a list.

    `within` is how addresses begin that its links may lead to. `changed` is what a sitemap says.
    """

    url: str
    within: str = ""
    depth: int = 0
    start: bool = False
    sitemap: int = 0  # how deep among sitemaps; 0 for what is none
    changed: str | None = None


class _Spool:
    """Contents of pages in a temporary file, which has no name. Raises ConnectorError where the disk is full."""

    def __init__(self) -> None:
        with _disk_errors():
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        self._places: dict[str, tuple[int, int, str]] = {}

    def keep(self, url: str, body: bytes | bytearray, content_type: str) -> str:
        """Keep a page. Returns the digest of its body."""
        with _disk_errors():
            offset = self._file.seek(0, os.SEEK_END)
            self._file.write(body)
        self._places[url] = offset, len(body), content_type
        return hashlib.sha256(body).hexdigest()[:32]

    def kept(self, url: str) -> tuple[bytes, str]:
        """A page's body and type."""
        offset, size, content_type = self._places[url]
        with _disk_errors():
            self._file.seek(offset)
            return self._file.read(size), content_type

    def close(self) -> None:
        with suppress(OSError):  # what is still to be written is not wanted
            self._file.close()


@contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConnectorError(f"its pages cannot be kept in a temporary file: {error.strerror}") from error


class _Stop(Exception):
    """A bound was reached. The text says which."""


class _Crawl:
    """The pages of one synchronisation: a Connector that wants to know what the store has."""

    def __init__(
        self,
        client: "_Client",
        given: Sequence[str],
        sitemaps: Sequence[str],
        follow: bool,
        bounds: Bounds,
        globs: Globs,
        spool: _Spool,
        extractor: Extractor,
    ) -> None:
        self._client = client
        self._follow = follow
        self._bounds = bounds
        self._globs = globs
        self._spool = spool
        self._extractor = extractor
        self._versions: Mapping[str, str] = {}
        self._waiting = deque(_Wanted(url, _folder(url), start=True) for url in given)
        self._waiting += [_Wanted(url, sitemap=1) for url in sitemaps]
        self._asked = {wanted.url for wanted in self._waiting}
        self._named: set[str] = set()  # what was found, and what was skipped
        self._size = 0
        self._sitemaps = 0
        self._visits = 0
        self._failures: list[str] = []  # of those in a row
        self._partial = False

    def remember(self, versions: Mapping[str, str]) -> None:
        """The versions that the store has, by source_id: requests ask whether these are still the newest."""
        self._versions = versions

    async def scan(self) -> AsyncIterator[Found | Skipped | Partial]:
        """Every page. Raises ConnectorError when there is none, and something failed."""
        until = trio.current_time() + self._bounds.seconds
        found = 0
        first: str | None = None
        while self._waiting:
            wanted = self._waiting.popleft()
            reason: str | None = None
            try:
                self._check(found, until)
                entries = await self._visit(wanted, until)
                self._failures.clear()
            except Unreadable as error:
                entries, reason = [], str(error)
            except FetchFailed as error:
                entries, reason = [], str(error)
                if error.again:
                    self._failures.append(reason)
                # What it would have led to may still exist.
                self._partial = self._partial or self._followed(wanted) or bool(wanted.sitemap) or wanted.start
            except _Stop as error:
                yield Skipped(source_id=wanted.url, reason=f"not tried: {error}")
                self._partial = True
                break
            if reason is not None:
                first = first or reason
                yield Skipped(source_id=wanted.url, reason=reason)
            for entry in entries:
                found += isinstance(entry, Found)
                yield entry
        if not found and first is not None:
            raise ConnectorError(first)
        if self._partial:
            yield Partial()

    async def read(self, found: Found) -> Item:
        """One page's text. Raises Unreadable when it has none, or says that it is not for an index."""
        data, content_type = await in_thread(self._spool.kept, found.source_id)
        text = await self._text(found.source_id, content_type, data)
        return Item(
            body=text.body,
            title=text.title,
            source_url=found.source_id,
            created_at=found.updated_at,
            updated_at=found.updated_at,
            content_type=text.content_type,
            pages=text.pages,
        )

    async def _text(self, url: str, content_type: str, data: bytes) -> Extracted:
        name = unquote(PurePosixPath(_path(url)).name)
        if self._extractor.takes(name, data, content_type):
            return await self._extractor.extract(name, data, content_type)
        if content_type in _MARKDOWN and not name.lower().endswith((".md", ".markdown")):
            name += ".md"
        elif not content_type.startswith("text/") or content_type in _HTML:
            raise Unreadable(f"of the type {content_type[:80]!r}")
        return await in_thread(text_of, name, data)

    def _check(self, found: int, until: float) -> None:
        if found >= self._bounds.pages:
            raise _Stop(f"max_pages is {self._bounds.pages}")
        if self._visits >= 2 * self._bounds.pages + _OTHERS:
            raise _Stop(f"{self._visits} addresses were asked for; max_pages is {self._bounds.pages}")
        self._visits += 1
        if self._size >= self._bounds.total_bytes:
            raise _Stop(f"max_total_bytes is {self._bounds.total_bytes}")
        if trio.current_time() >= until:
            raise _Stop(f"timeout_s is {self._bounds.seconds:g}")
        if len(self._failures) >= _FAILURES_IN_A_ROW:
            raise _Stop(f"{_FAILURES_IN_A_ROW} pages in a row failed, the last: {self._failures[-1]}")

    # ---- one address

    async def _visit(self, wanted: _Wanted, until: float) -> list[Found | Skipped]:
        """Ask for an address, and queue what it leads to. Raises Unreadable and FetchFailed for what can be told."""
        # The links of a page that is not sent because it did not change would be unknown.
        versions = {} if self._followed(wanted) else self._versions
        answer, url = await self._answer(wanted, versions, until)
        if answer.status == 304 and url in versions:  # else it was not asked for, and is an error
            return self._found(url, answer, self._versions[url])
        if answer.status in (404, 410):
            # The store's document goes, as it would for a file that is gone; one that never was is a mistake.
            if url in self._versions or wanted.depth:
                return []
            raise Unreadable(f"not found (HTTP {answer.status})")
        if answer.status in (401, 403):
            raise Unreadable(f"its server refuses it (HTTP {answer.status})")
        if answer.status != 200:
            raise FetchFailed(f"its server answers with HTTP {answer.status}", again=True)
        self._size += len(answer.body)
        if wanted.sitemap:
            return await self._sitemap(wanted, url, answer.body)
        if wanted.start and (lists := await self._list(wanted, url, answer)) is not None:
            return lists
        return await self._page(wanted, url, answer)

    def _followed(self, wanted: _Wanted) -> bool:
        """Whether the links of this page are followed."""
        return self._follow and bool(wanted.within) and wanted.depth < self._bounds.depth

    async def _answer(self, wanted: _Wanted, versions: Mapping[str, str], until: float) -> tuple[Fetched, str]:
        """The answer for an address after redirects, and the address that gave it."""
        url, most = wanted.url, self._bounds.page_bytes
        for _ in range(_REDIRECTS + 1):
            with trio.move_on_at(until):
                answer = await self._client.get(url, _conditions(versions.get(url, "")), most)
                location = answer.headers.get("location")
                if answer.status not in (301, 302, 303, 307, 308) or location is None:
                    return answer, url
                url = self._client.redirected(url, location)
                continue
            raise _Stop(f"timeout_s is {self._bounds.seconds:g}")
        raise Unreadable(f"more than {_REDIRECTS} redirects")

    async def _list(self, wanted: _Wanted, url: str, answer: Fetched) -> list[Found | Skipped] | None:
        """What a given address lists, if it is an llms.txt or a sitemap."""
        name = PurePosixPath(_path(url)).name
        kind = _content_type(answer)
        if name == "llms.txt" and kind not in _HTML:
            text = answer.body[:_LLMS_BYTES].decode("utf-8", "replace")
            return await self._queue(url, await _listed(webpages.llms_links(text)))
        if kind in _XML | _ZIPPED or (name.endswith((".xml", ".xml.gz")) and kind not in _HTML):
            return await self._sitemap(wanted, url, answer.body)
        return None

    async def _sitemap(self, wanted: _Wanted, url: str, body: bytes | bytearray) -> list[Found | Skipped]:
        self._sitemaps += 1
        if self._sitemaps > _SITEMAPS:
            raise Unreadable(f"more than {_SITEMAPS} sitemaps")
        try:
            found = await in_thread(_sitemap, body, abandon_on_cancel=True)
        except ValueError as error:
            self._partial = True
            raise Unreadable(f"its sitemap cannot be read: {error}") from None
        if not found.is_index:
            times = {each.url: each.changed for each in found.entries}
            self._partial = self._partial or found.more
            return await self._queue(url, times, times)
        if wanted.sitemap >= _SITEMAP_DEPTH:
            raise Unreadable("sitemaps of sitemaps of sitemaps")
        return await self._queue(url, [each.url for each in found.entries], sitemap=max(wanted.sitemap, 1) + 1)

    async def _queue(
        self, base: str, urls: Sequence[str] | Mapping[str, str | None], times: Mapping[str, str | None] | None = None,
        sitemap: int = 0,
    ) -> list[Found | Skipped]:  # fmt: skip
        """Ask later for the addresses of a list. Those at other hosts are skipped, with a reason."""
        skipped: list[Found | Skipped] = []
        for n, url in enumerate(urls):
            if n % _AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            try:
                full = self._client.fetcher.canonical(url, base)
            except ValueError:
                continue  # mailto: and the like
            if full in self._asked or len(self._waiting) >= _WAITING:
                self._partial = self._partial or len(self._waiting) >= _WAITING
                continue
            self._asked.add(full)
            if not self._client.fetcher.reaches(full):
                skipped.append(Skipped(source_id=full, reason="at another host; `urls` has to name one of its pages"))
            elif sitemap or self._globs.take(_path(full)):
                changed = times.get(url) if times is not None else None
                self._waiting.append(_Wanted(full, sitemap=sitemap, changed=changed))
        return skipped

    async def _page(self, wanted: _Wanted, url: str, answer: Fetched) -> list[Found | Skipped]:
        said = webpages.directives(answer.headers.get("x-robots-tag", ""))
        kind = _content_type(answer)
        if wanted.depth and not url.startswith(wanted.within):
            return []  # redirected out of the part of the site that is followed
        if kind in _HTML:
            page = answer.body[:_LINKED_BYTES].decode("utf-8", "replace")
            said |= webpages.robots(page)
            if self._followed(wanted) and "nofollow" not in said:
                await self._links(wanted, url, page)
        if not self._globs.take(_path(url)):
            return []
        if "noindex" in said:
            raise Unreadable("it asks not to be indexed (noindex)")
        if url in self._named:
            return []  # another address redirects to it, too
        self._named.add(url)
        digest = await in_thread(self._spool.keep, url, answer.body, kind)
        return self._found(url, answer, _version(answer, digest), wanted.changed)

    def _found(self, url: str, answer: Fetched, version: str, listed: str | None = None) -> list[Found | Skipped]:
        self._named.add(url)
        changed = _moment(answer.headers.get("last-modified") or _validators(version)[1]) or _stamp(listed)
        return [Found(source_id=url, version=version, updated_at=changed)]

    async def _links(self, wanted: _Wanted, url: str, page: str) -> None:
        """Queue the links of a page that lead to where they may."""
        base = url
        with_base = webpages.base(page)
        if with_base is not None:
            base = self._canonical(with_base, url) or url
        for n, link in enumerate(await _listed(webpages.links(page))):
            if n % _AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            full = self._canonical(link, base)
            if full is None or full in self._asked or not full.startswith(wanted.within):
                continue
            if self._globs.excludes(_path(full)) or not self._client.fetcher.reaches(full):
                continue
            if len(self._waiting) >= _WAITING:
                self._partial = True
                return
            self._asked.add(full)
            self._waiting.append(_Wanted(full, wanted.within, wanted.depth + 1))

    def _canonical(self, url: str, base: str) -> str | None:
        try:
            return self._client.fetcher.canonical(url, base)
        except ValueError:
            return None


async def _listed(links: Iterator[str]) -> list[str]:
    """The links, found in a thread; of too many the first."""
    return await in_thread(lambda: list(islice(links, _LINKS)), abandon_on_cancel=True)


# ---- requests -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Site:
    """What is known of one origin: its rules for robots, or why it has none; when it may be asked again."""

    rules: Protego | None = None
    closed: str | None = None
    delay_s: float = 0.0
    next_at: float = 0.0


@dataclass(slots=True)
class _Client:
    """Requests to sites: as their robots.txt allows, one at a time, with pauses."""

    fetcher: Fetcher
    agent: str
    delay_s: float
    sites: dict[str, _Site] = field(default_factory=dict)

    async def get(self, url: str, headers: Mapping[str, str], max_bytes: int) -> Fetched:
        """The answer for an address. Raises Unreadable when it may not be asked for, and FetchFailed."""
        site = await self._site(url)
        if site.closed is not None:
            raise FetchFailed(site.closed)
        if site.rules is not None:
            allowed = partial(site.rules.can_fetch, url, self.agent)
            if not await in_thread(allowed, abandon_on_cancel=True):
                raise Unreadable("its site forbids it to robots (robots.txt)")
        return await self._asked(site, url, headers, max_bytes)

    def redirected(self, url: str, location: str) -> str:
        """The address of a redirect. Raises Unreadable for one at another host."""
        try:
            target = self.fetcher.canonical(location, url)
        except ValueError:
            raise Unreadable("redirected to what is no address") from None
        if not self.fetcher.reaches(target):
            raise Unreadable("redirected to another host")
        return target

    async def _asked(self, site: _Site, url: str, headers: Mapping[str, str], max_bytes: int) -> Fetched:
        sent = {"user-agent": self.agent, "accept": "text/html,text/markdown,text/plain,*/*;q=0.5", **headers}
        pause = _PAUSE_S
        for attempt in range(1, _TRIES + 1):
            now = trio.current_time()
            begins = max(now, site.next_at)
            site.next_at = begins + site.delay_s
            await trio.sleep_until(begins)
            try:
                answer = await self.fetcher.fetch(url, sent, max_bytes=max_bytes, max_s=_REQUEST_S)
                if answer.status not in (429, 500, 502, 503, 504) or attempt == _TRIES:
                    return answer
                wanted = answer.headers.get("retry-after", "")
                wait = float(wanted) if wanted.isascii() and wanted.isdigit() and len(wanted) < 9 else pause
            except FetchFailed as error:
                if not error.again or attempt == _TRIES:
                    raise
                wait = pause
            await trio.sleep(min(wait, MAX_PAUSE_S))
            pause *= 2
        raise AssertionError("the last try returns or raises")

    async def _site(self, url: str) -> _Site:
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        if origin not in self.sites:
            self.sites[origin] = await self._opened(origin)
        return self.sites[origin]

    async def _opened(self, origin: str) -> _Site:
        """Read a site's robots.txt. One that cannot be read closes the site (RFC 9309 section 2.3.1.4)."""
        site = _Site(delay_s=self.delay_s)
        url = f"{origin}/robots.txt"
        try:
            for _ in range(_REDIRECTS + 1):
                answer = await self._asked(site, url, {}, _ROBOTS_BYTES)
                location = answer.headers.get("location")
                if not 300 <= answer.status < 400 or location is None:
                    break
                url = self.redirected(url, location)
        except (FetchFailed, Unreadable) as error:
            site.closed = f"its robots.txt cannot be read: {error}"
            return site
        if answer.status == 200:
            try:
                site.rules = await in_thread(_rules, answer.body, abandon_on_cancel=True)
            except ValueError as error:
                site.closed = f"its robots.txt cannot be read: {error}"
                return site
            wanted = site.rules.crawl_delay(self.agent) or 0.0
            site.delay_s = max(self.delay_s, min(wanted, MAX_PAUSE_S))
            site.next_at = trio.current_time() + site.delay_s
        elif answer.status >= 500 or answer.status == 429:
            site.closed = f"its robots.txt cannot be read: HTTP {answer.status}"
        return site


def _rules(body: bytes | bytearray) -> Protego:
    """The rules of a robots.txt. Raises ValueError for one that no site needs, which would take minutes to read."""
    lines = body.decode("utf-8", "replace").splitlines()
    agents = sum("agent" in line[:40].lower() for line in lines)
    if agents > _ROBOTS_AGENTS or agents * len(lines) > _ROBOTS_RULES:
        raise ValueError("too many rules")
    return Protego.parse("\n".join(lines))


# ---- values -------------------------------------------------------------------------------------------------------


def _folder(url: str) -> str:
    """How the addresses begin that are in the same folder."""
    plain = url.partition("?")[0]
    return plain[: plain.rindex("/") + 1]


def _path(url: str) -> str:
    """The path of an address, for globs and names: without its first slash; a folder has an index.html."""
    path = unquote(urlsplit(url).path.removeprefix("/"))
    return path + "index.html" if not path or path.endswith("/") else path


def _content_type(answer: Fetched) -> str:
    return answer.headers.get("content-type", "").partition(";")[0].strip().lower() or "text/html"


def _version(answer: Fetched, digest: str) -> str:
    """What tells whether a page has changed, for the next request and for the store."""
    etag, modified = (answer.headers.get(name, "") for name in ("etag", "last-modified"))
    usable = [value if len(value) <= _MAX_VALIDATOR and value.isprintable() else "" for value in (etag, modified)]
    return json.dumps([_FORM, *usable, digest])


def _validators(version: str) -> tuple[str, str]:
    """ETag and Last-Modified of a version."""
    try:
        form, etag, modified, _ = json.loads(version)
    except ValueError:
        return "", ""
    return (etag, modified) if form == _FORM else ("", "")


def _conditions(version: str) -> dict[str, str]:
    etag, modified = _validators(version)
    wanted = {"if-none-match": etag, "if-modified-since": "" if etag else modified}
    return {name: value for name, value in wanted.items() if value and value.isascii()}


def _moment(text: str) -> str | None:
    """A time of HTTP in the store's form."""
    try:
        return format_time(parsedate_to_datetime(text[:64])) if text else None
    except (ValueError, OverflowError):
        return None


def _stamp(text: str | None) -> str | None:
    """A time of a sitemap in the store's form."""
    try:
        return None if text is None else canonical_time(text)
    except ValueError:
        return None


def _sitemap(body: bytes | bytearray) -> webpages.Sitemap:
    return webpages.sitemap(webpages.unzipped(body) if body.startswith(b"\x1f\x8b") else body)


CONNECTOR = WebConnector

"""A document with the documents inside it and what it takes from addresses, read once."""

import posixpath
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from agents.chatmd.building import (
    MAX_NESTED,
    Built,
    Content,
    NotConverted,
    Opened,
    Page,
    build,
    documents_in,
    nesting,
    pages_in,
)
from agents.chatmd.diagnostics import Diagnostic, diagnostic, errors
from agents.chatmd.files import Loaded, Sizes, load, load_text, plain
from agents.chatmd.tree import Element, walk

# Bounds on what one document takes besides its own files.
MAX_DOCUMENTS = 64
MAX_ADDRESSES = 64
# How many addresses are asked at once.
_FETCHES_AT_ONCE = 4


class NotFetched(Exception):
    """Why an address gave nothing: a code of `CODES`, and the reason."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Web(Protocol):
    """What reaches the hosts that a document may take from."""

    def refusal(self, url: str) -> str | None:
        """Why an address may not be reached, or None."""
        ...

    async def fetch(self, url: str, max_bytes: int) -> Content:
        """Its content, without following redirects. Raises NotFetched."""
        ...


class Pages(Protocol):
    """What converts HTML pages."""

    async def text(self, page: bytes, *, markdown: bool) -> str | NotConverted:
        """The text of a page, as Markdown or without marks."""
        ...


def _unseen(path: Path) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read. With errors there is no program. `warnings` are for the operator."""

    built: Built | None
    errors: tuple[Diagnostic, ...]
    warnings: tuple[str, ...]


@dataclass(slots=True)
class Opening:
    """One opening of a document. `web` reaches addresses, `pages` converts HTML pages.

    `seen` is called with each path before it is read, `run` runs a function that blocks in a thread.
    """

    path: Path
    sizes: Sizes
    web: Web
    pages: Pages
    roots: tuple[Path, ...] = ()
    strict: bool = False
    shown: str = ""
    description: str | None = None
    seen: Callable[[Path], None] = _unseen
    run: Callable[[Callable[[], Loaded]], Awaitable[Loaded]] = trio.to_thread.run_sync
    _documents: dict[str, Loaded] = field(default_factory=dict)
    _fetched: dict[str, Content] = field(default_factory=dict)
    _found: dict[Diagnostic, None] = field(default_factory=dict)

    async def read(self) -> Reading:
        """Read everything. Raises OSError if the document itself cannot be read."""
        path = plain(self.path)
        top = str(path)
        self.shown = self.shown or top
        await self._add(top, partial(load, path, self.sizes, shown=self.shown, roots=self.roots, strict=self.strict,
                                     seen=self.seen))  # fmt: skip
        level = [top]
        for _ in range(MAX_NESTED):
            level = await self._inside(level, path)
        for loaded in self._documents.values():
            await self._fetch_texts(loaded)
        self._found.update(dict.fromkeys(nesting(self._documents, top)))
        found = tuple(self._found)
        wrong = tuple(errors(found))
        fatal = frozenset(wrong)  # a document may have a hundred thousand errors
        warnings = tuple(str(each) for each in found if each not in fatal)
        if wrong:
            return Reading(None, wrong, warnings)
        opened = await self._converted(Opened(top, self._documents, self._fetched))
        if too_large := errors(self._found):
            return Reading(None, tuple(too_large), warnings)
        built = await trio.to_thread.run_sync(build, opened, self.description)
        return Reading(built, built.errors, (*warnings, *built.warnings))

    async def _add(self, key: str, loading: Callable[[], Loaded]) -> None:
        self._documents[key] = loaded = await self.run(loading)
        self._found.update(dict.fromkeys(loaded.diagnostics))

    async def _inside(self, level: Iterable[str], top: Path) -> list[str]:
        """Read the documents inside these. Returns the keys of those that were not known."""
        found = []
        for outer in level:
            for key, element in documents_in(self._documents[outer]).items():
                if key in self._documents or not self._has_room(len(self._documents), MAX_DOCUMENTS, element):
                    continue
                local = "local" in element.attributes
                if await (self._local(key, outer, top, element) if local else self._remote(key, element)):
                    found.append(key)
        return found

    async def _local(self, key: str, outer: str, top: Path, element: Element) -> bool:
        path = Path(key)
        if path not in self._documents[outer].files:  # reported where it was looked for
            return False
        shown = posixpath.normpath(posixpath.join(posixpath.dirname(self.shown), posixpath.relpath(path, top.parent)))
        more = self._sizes()
        try:
            await self._add(key, partial(load, path, more, shown=shown, roots=(top.parent, *self.roots),
                                         strict=self.strict, seen=self.seen))  # fmt: skip
        except OSError as error:
            self._report("file-missing", f"{shown}: {error.strerror}", element)
            return False
        return True

    async def _remote(self, url: str, element: Element) -> bool:
        await self._fetch({url: element})
        content = self._fetched.get(url)
        if content is None:
            return False
        await self._add(url, partial(load_text, content.data, self._sizes(), shown=url, strict=self.strict))
        return True

    async def _fetch_texts(self, loaded: Loaded) -> None:
        """Fetch the texts that a document names; images stay at their addresses, which are checked."""
        wanted: dict[str, Element] = {}
        for element in _of_addresses(loaded):
            source = element.value("src")
            if element.name == "doc":
                wanted.setdefault(source, element)
            else:
                self._is_reached(source, element)
        await self._fetch(wanted)

    async def _fetch(self, wanted: Mapping[str, Element]) -> None:
        left = {url: element for url, element in wanted.items() if url not in self._fetched}
        limiter = trio.CapacityLimiter(_FETCHES_AT_ONCE)
        async with trio.open_nursery() as nursery:
            for position, (url, element) in enumerate(left.items(), len(self._fetched)):
                if not self._has_room(position, MAX_ADDRESSES, element):
                    break
                if self._is_reached(url, element):
                    nursery.start_soon(self._fetch_one, url, element, limiter)

    async def _fetch_one(self, url: str, element: Element, limiter: trio.CapacityLimiter) -> None:
        async with limiter:
            bound = min(self.sizes.fs_bytes, self._sizes().all_files)
            try:
                self._fetched[url] = await self.web.fetch(url, bound)
            except NotFetched as why:
                self._report(why.code, f"<{element.name}>: {url}: {why}", element)

    async def _converted(self, opened: Opened) -> Opened:
        """With the texts of the pages that are wanted as such."""
        found: dict[Page, str | NotConverted] = {}
        for page, (element, data) in pages_in(opened).items():
            found[page] = text = await self.pages.text(data, markdown=page[1])
            if isinstance(text, str) and len(text.encode()) > self.sizes.fs_bytes:
                source, bound = element.value("src"), self.sizes.fs_bytes
                self._report("too-large", f'<doc src="{source}">: its text has more than {bound} bytes', element)
        return replace(opened, pages=found)

    def _is_reached(self, url: str, element: Element) -> bool:
        if (why := self.web.refusal(url)) is not None:
            self._report("file-outside", f"<{element.name}>: {why}", element)
        return why is None

    def _has_room(self, count: int, most: int, element: Element) -> bool:
        if count >= most:
            self._report("too-large", f"<{element.name}>: more than {most} of them in the document", element)
        return count < most

    def _sizes(self) -> Sizes:
        """The bounds, without what was read so far."""
        spent = sum(len(data) for loaded in self._documents.values() for data in loaded.files.values())
        spent += sum(len(content.data) for content in self._fetched.values())
        return self.sizes._replace(together=max(self.sizes.all_files - spent, 0))

    def _report(self, code: str, message: str, element: Element) -> None:
        self._found[diagnostic(code, message, element.at)] = None


def _of_addresses(loaded: Loaded) -> Iterator[Element]:
    for element in walk(loaded.document.nodes):
        if element.name in ("doc", "img") and "local" not in element.attributes and element.value("src"):
            yield element

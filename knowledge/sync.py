"""Bring a store up to date with one source: write what changed, leave what did not, delete what is gone."""

import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Container, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Literal, TypeVar

import trio

from knowledge import chunking
from knowledge.connectors import (
    Compares,
    Complete,
    Connector,
    ConnectorError,
    Emitted,
    Found,
    Gone,
    Item,
    Partial,
    Reached,
    Remembers,
    Skipped,
    Source,
    Streams,
    Unchanged,
    Unfinished,
    Unreadable,
    opened,
)
from knowledge.places import Place, places
from knowledge.store import (
    MAX_BODY_CHARACTERS,
    MAX_CHUNKS,
    Batch,
    NewDocument,
    StoreError,
    SyncMark,
    SyncRunning,
    WritableStore,
)
from knowledge.textfiles import is_markdown
from knowledge.times import canonical_time, format_time
from storage.metering import in_thread

T = TypeVar("T")

# A batch is written when it holds this much: enough to spread a transaction's cost over many documents, little enough
# that searches by other connections are not delayed and a killed sync has little to repeat.
BATCH_DOCUMENTS = 64
BATCH_CHARACTERS = 4 * 1024 * 1024

# Skipped items that a report lists; further ones are counted.
MAX_REPORTED = 1000

# Entries of a list that are taken between two pauses: 1 ms.
_LISTED_AT_ONCE = 1_000

# Texts longer than this are cut into chunks in a thread; a thread costs more than cutting a shorter one.
_THREAD_CHARACTERS = 16 * 1024


# The body of an item that is longer is hashed by itself, which other threads need not wait for: to write it as JSON
# takes 3 ms a million characters, all of it at once.
_HASHED_CHARACTERS = 1_000_000


@dataclass(frozen=True, slots=True)
class SyncProgress:
    """The progress of a sync: `n` items so far; `total` is None while they are still being discovered."""

    source: str
    phase: Literal["discovering", "ingesting"]
    n: int
    total: int | None


@dataclass(slots=True)
class SyncReport:
    """What a sync did, or with `dry_run` would have done. Counts are documents, except `chunks` (written).

    `fetched` counts the items that `since` and `until` let through; each of these was upserted, unchanged, skipped with
    a reason, or not reached because of `limit`. `skipped_more` counts the skipped items beyond `MAX_REPORTED`;
    `embedded` the chunks that got a vector.
    """

    source: str
    dry_run: bool = False
    fetched: int = 0
    upserted: int = 0
    unchanged: int = 0
    deleted: int = 0
    chunks: int = 0
    embedded: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    skipped_more: int = 0

    def skip(self, source_id: str, reason: str) -> None:
        if len(self.skipped) < MAX_REPORTED:
            self.skipped.append((source_id, reason))
        else:
            self.skipped_more += 1

    def mark(self, *, at: str | None = None, error: str | None = None, checkpoint: str | None = None) -> SyncMark:
        """How the sync ended, for the store."""
        return SyncMark(at, error, checkpoint, self.skipped, len(self.skipped) + self.skipped_more)


async def sync(
    store: WritableStore,
    label: str,
    connector: Source,
    *,
    full: bool = False,
    dry_run: bool = False,
    since: str | None = None,
    until: str | None = None,
    limit: int | None = None,
    on_progress: Callable[[SyncProgress], None] | None = None,
    max_tokens: int = 700,
    overlap_tokens: int = 0,
    pace: Callable[[], Awaitable[None]] | None = None,
    on_begin: Callable[[], None] | None = None,
) -> SyncReport:
    """Synchronise the source `label` (`TYPE:NAME`) with `store`; one sync of a label at a time.

    An item whose version mark has not changed is not read; one that is read and has the same content, times and
    chunking as the stored document is not rewritten. `full` reads and rewrites everything. `since` and `until` (dates
    or RFC 3339, both inclusive) select items by the time of their last change; items without a time always pass.
    `limit` bounds the documents written. Documents that are gone from the source are deleted, unless one of these three
    was given or the connector lists a part of its source only.

    `on_begin` is called when no other sync of this label can run any more. `pace` is awaited between two pieces of
    work; it may wait.

    A connector that streams is stored while it is read, from its checkpoint on (`full`: from the beginning). A
    checkpoint is kept with or after everything that came before it; none is kept beyond an item that `since`, `until`,
    `limit` or a failure left out.

    Changes are written in transactions of whole documents, so a sync that is cancelled or killed leaves a consistent
    store, and the next one does the rest. Raises ConnectorError when the source cannot be listed (only the source's
    state changes then, and what a stream gave is stored), StoreError from the store (SyncRunning where another sync of
    this label runs), ValueError for a bad argument.
    """
    window = (
        None if since is None else canonical_time(since),
        None if until is None else canonical_time(until, end_of_day=True),
    )
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}; it must be at least 1")
    cut = partial(chunking.split, max_tokens=max_tokens, overlap_tokens=overlap_tokens)
    cut("")  # a bad bound is an error of the caller, not of every item
    bounds = f"{max_tokens}/{overlap_tokens}"
    report = SyncReport(label, dry_run)
    tell = on_progress or _ignore

    async def run() -> None:
        async with opened(connector) as reading:
            one = _Sync(
                store, label, reading, tell, cut, bounds, dry_run, full, window, limit, report, pace or _no_pause
            )
            await one.run()

    if dry_run:
        await run()
        return report
    async with store.sync_lock(label):
        if on_begin is not None:
            on_begin()
        try:
            await run()
        except ConnectorError as error:
            await store.apply(Batch(source=label, mark=report.mark(error=str(error))))
            raise
        except SyncRunning:
            raise
        except StoreError as error:
            with suppress(StoreError):  # on a full disk, this is not written either
                await store.apply(Batch(source=label, mark=report.mark(error=str(error))))
            raise
    return report


async def _no_pause() -> None:
    pass


def _ignore(progress: SyncProgress) -> None:
    pass


@dataclass(slots=True)
class _Sync:
    """One synchronisation under way."""

    store: WritableStore
    label: str
    connector: Connector | Streams
    on_progress: Callable[[SyncProgress], None]
    cut: Callable[[str], list[str]]
    chunking: str  # part of versions and digests: with other bounds, every document is cut again
    dry_run: bool
    full: bool
    window: tuple[str | None, str | None]
    limit: int | None
    report: SyncReport
    pace: Callable[[], Awaitable[None]]
    # The versions that the store has, by source_id; of a stream also those that it gets.
    stored: dict[str, str] = field(default_factory=dict)
    digests: dict[str, str] | None = None  # read when the first item is compared by its content
    same: set[str] = field(default_factory=set)  # what the connector itself found to be unchanged
    hidden: set[str] = field(default_factory=set)
    hidden_below: list[str] = field(default_factory=list)

    # Whether an item was left out that a later scan has to give again: from then on, no checkpoint is kept.
    left_out: bool = False
    # The checkpoint that the next batch will write: everything before it is in that batch or in an earlier one.
    checkpoint: str | None = None

    # What the next batch will write. Invariant: a source_id is in at most one of the three.
    upserts: list[NewDocument] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    deletes: list[str] = field(default_factory=list)
    pending: set[str] = field(default_factory=set)  # their source_ids
    batch_characters: int = 0

    async def run(self) -> None:
        self.stored = await self.store.versions(self.label)
        if isinstance(self.connector, Streams):
            await self.follow(self.connector)
        else:
            await self.compare(self.connector)

    @property
    def narrowed(self) -> bool:
        return self.limit is not None or self.window != (None, None)

    @property
    def at_limit(self) -> bool:
        return self.limit is not None and self.report.upserted >= self.limit

    # ---- a list, then contents

    async def compare(self, connector: Connector) -> None:
        if isinstance(connector, Remembers) and not self.full:
            connector.remember(await in_thread(self.marks))
        if isinstance(connector, Compares) and not self.full and self.window == (None, None):
            connector.compare(await in_thread(self.marks))
        found = await self.discover(connector)
        missing = [] if self.narrowed or not self.stored else await in_thread(self.missing, found)
        wanted = await in_thread(self.wanted, found)
        del found
        same = len(self.same)
        total = same + len(wanted)
        self.report.fetched, self.report.unchanged = total, same
        # Each is forgotten once it is read: of 100,000 files the list takes 24 MB.
        wanted.reverse()
        while wanted:
            self.tell("ingesting", total - len(wanted), total)
            if self.at_limit:
                break
            await self.ingest(wanted.pop(), connector.read)
            await self.flush_if_full()
        else:
            self.tell("ingesting", total, total)
        await self.finish([each for each in missing if not self.is_hidden(each)])

    def marks(self) -> dict[str, str]:
        """The connector's versions, of what is cut by the same bounds, by source_id."""
        bounds = f"{self.chunking} "
        start = len(bounds)
        return {source_id: mark[start:] for source_id, mark in self.stored.items() if mark.startswith(bounds)}

    def wanted(self, found: list[Found]) -> list[Found]:
        """What may have changed, in the order of source_ids, of the times that are asked for."""
        if self.window == (None, None):
            return found
        return [item for item in found if _within(item.updated_at, self.window)]

    def missing(self, found: list[Found]) -> list[str]:
        """What is stored and was not found."""
        there = {item.source_id for item in found}
        return [each for each in self.stored if each not in self.same and each not in there]

    async def discover(self, connector: Connector) -> list[Found]:
        """Everything in the source, in the order of source_ids. All of it is known before anything is changed."""
        found: list[Found] = []
        self.tell("discovering", 0, None)
        async for entry in _guarded(connector.scan()):
            if isinstance(entry, Skipped):
                self.hide(entry)
            elif isinstance(entry, Partial):
                self.hidden_below.append("")  # every source_id begins with it
            elif isinstance(entry, Unchanged):
                self.same.update(entry.source_ids)
                await self.pace()
            else:
                found.append(entry)
            if len(found) % _LISTED_AT_ONCE == 0:
                await self.pace()
        found = await in_thread(self.once, found)
        self.tell("discovering", len(self.same) + len(found), None)
        return found

    def once(self, found: list[Found]) -> list[Found]:
        """In the order of source_ids; of two of one, the first that was listed."""
        found.sort(key=attrgetter("source_id"))
        taken: list[Found] = []
        for item in found:
            if taken and taken[-1].source_id == item.source_id:
                self.report.skip(item.source_id, "listed twice; the first was taken")
            else:
                taken.append(item)
        return taken

    # ---- a stream

    async def follow(self, connector: Streams) -> None:
        self.tell("discovering", 0, None)
        seen: set[str] = set()
        complete = False
        try:
            async with aclosing(_guarded(connector.stream(await self.last_checkpoint()))) as events:
                async for event in events:
                    if isinstance(event, Complete):
                        complete = True
                    elif isinstance(event, Emitted) and self.at_limit:
                        self.left_out = True
                        break
                    else:
                        await self.take(event, seen)
        except ConnectorError:
            await self.write()  # what came before the failure, and its checkpoint
            raise
        self.tell("ingesting", self.report.fetched, self.report.fetched)
        await self.finish(self.gone(seen) if complete and not self.narrowed else ())

    async def take(self, event: Emitted | Gone | Skipped | Partial | Reached, seen: set[str]) -> None:
        match event:
            case Emitted(found=found, checkpoint=checkpoint):
                seen.add(found.source_id)
                await self.take_item(event)
                self.reach(checkpoint)
                await self.flush_if_full()
            case Gone(source_id=source_id):
                seen.discard(source_id)
                await self.take_gone(source_id)
                await self.flush_if_full()
            case Reached(checkpoint=checkpoint):
                self.reach(checkpoint)
            case Skipped():
                self.hide(event)
            case Partial():
                self.hidden_below.append("")

    async def take_item(self, emitted: Emitted) -> None:
        async def read(found: Found) -> Item:
            await trio.lowlevel.checkpoint()
            return emitted.item

        found = emitted.found
        if not _within(found.updated_at, self.window):
            self.left_out = True
            return
        self.tell("ingesting", self.report.fetched, None)
        self.report.fetched += 1
        await self.flush_if_pending(found.source_id)
        await self.ingest(found, read)

    async def take_gone(self, source_id: str) -> None:
        if self.narrowed:  # such a sync deletes nothing
            self.left_out = True
            return
        await self.flush_if_pending(source_id)
        if self.stored.pop(source_id, None) is not None:
            self.report.deleted += 1
            self.pending.add(source_id)
            self.deletes.append(source_id)

    def reach(self, checkpoint: str | None) -> None:
        if checkpoint is not None and not self.left_out:
            self.checkpoint = f"{self.chunking} {checkpoint}"

    async def last_checkpoint(self) -> str | None:
        """The stored one, or None where a scan from the beginning is wanted, or needed as the bounds changed."""
        kept = None if self.full else await self.store.checkpoint(self.label)
        bounds, _, checkpoint = (kept or "").partition(" ")
        return checkpoint if bounds == self.chunking else None

    # ---- items

    async def ingest(self, found: Found, read: Callable[[Found], Awaitable[Item]]) -> None:
        before = self.stored.get(found.source_id)
        version = found.version and f"{self.chunking} {found.version}"
        if before and before == version and not self.full:
            self.report.unchanged += 1
            return
        try:
            document = await self.document(found, version, read)
        except Unreadable as error:
            self.left_out = self.left_out or isinstance(error, Unfinished)
            self.hidden.add(found.source_id)
            self.report.skip(found.source_id, str(error))
            return
        digests = {} if before is None else await self.stored_digests()
        if digests.get(found.source_id) == document.digest and not self.full:
            self.report.unchanged += 1
            if before != version:
                self.pending.add(found.source_id)
                self.versions[found.source_id] = version
            return
        self.report.upserted += 1
        self.report.chunks += len(document.chunks)
        if isinstance(self.connector, Streams):  # it may come again
            self.stored[found.source_id] = version
        if self.digests is not None:
            self.digests[found.source_id] = document.digest
        self.pending.add(found.source_id)
        self.upserts.append(document)
        self.batch_characters += len(document.body)

    async def stored_digests(self) -> dict[str, str]:
        if self.digests is None:
            self.digests = await self.store.stored_digests(self.label)
        return self.digests

    async def document(self, found: Found, version: str, read: Callable[[Found], Awaitable[Item]]) -> NewDocument:
        """Read one item and cut it. Any error with it becomes Unreadable, so that the other items are not lost."""
        try:
            item = await read(found)
            created_at = None if item.created_at is None else canonical_time(item.created_at)
            updated_at = None if item.updated_at is None else canonical_time(item.updated_at)
            made = partial(self.made, found.source_id, item)
            if len(item.body) > _THREAD_CHARACTERS:
                digest, chunks, found_places = await in_thread(made, abandon_on_cancel=True)
            else:
                digest, chunks, found_places = made()
            await self.pace()
            if len(chunks) > MAX_CHUNKS or len(item.body) > MAX_BODY_CHARACTERS:
                raise Unreadable("too large for the store")
        except ConnectorError as error:
            raise Unfinished(str(error)) from error
        except Unreadable:
            raise
        except UnicodeEncodeError as error:
            raise Unreadable("holds text that is not Unicode (a lone surrogate)") from error
        except Exception as error:  # a bug of the connector that one item triggers must not end the sync
            raise Unfinished(f"failed with {type(error).__name__}") from error
        return NewDocument(
            source_id=found.source_id,
            body=item.body,
            chunks=chunks,
            digest=digest,
            version=version,
            source_url=item.source_url,
            title=item.title,
            author=item.author,
            created_at=created_at,
            updated_at=updated_at,
            content_type=item.content_type,
            metadata=item.metadata,
            pages=item.pages,
            access=item.access,
            places=found_places,
        )

    def made(self, source_id: str, item: Item) -> tuple[str, list[str], list[Place | None]]:
        """An item's digest, its chunks, and their places."""
        digest, chunks = _digest(source_id, item, self.chunking), _cut(self.cut, item)
        markdown = is_markdown(item.content_type)
        return digest, chunks, places(item.body, chunks, markdown=markdown, pages=item.pages)

    def hide(self, entry: Skipped) -> None:
        self.report.skip(entry.source_id, entry.reason)
        if entry.below:
            self.hidden_below.append(entry.source_id)
        else:
            self.hidden.add(entry.source_id)

    def is_hidden(self, source_id: str) -> bool:
        """Whether the scan skipped this item, so that it may still exist."""
        return source_id in self.hidden or source_id.startswith(tuple(self.hidden_below))

    def gone(self, found: Container[str]) -> list[str]:
        """What is stored and was not found, and may not be hidden either."""
        return [each for each in self.stored if not (each in self.same or each in found or self.is_hidden(each))]

    # ---- batches

    async def flush_if_full(self) -> None:
        pending = len(self.upserts) + len(self.deletes)
        if pending >= BATCH_DOCUMENTS or self.batch_characters >= BATCH_CHARACTERS:
            await self.write()

    async def flush_if_pending(self, source_id: str) -> None:
        """Write what is pending for an item that comes again."""
        if source_id in self.pending:
            await self.write()

    async def finish(self, gone: Sequence[str]) -> None:
        self.report.deleted += len(gone)
        self.deletes += gone
        await self.write(at=format_time(datetime.now(UTC)))

    async def write(self, at: str | None = None) -> None:
        """Write a batch; with `at`, the last one."""
        mark = self.report.mark(at=at, checkpoint=self.checkpoint) if at or self.checkpoint else None
        batch = Batch(source=self.label, upserts=self.upserts, versions=self.versions, deletes=self.deletes, mark=mark)
        if not self.dry_run:
            await self.store.apply(batch)
            await self.pace()
        self.upserts, self.versions, self.deletes, self.pending = [], {}, [], set()
        self.batch_characters, self.checkpoint = 0, None

    def tell(self, phase: Literal["discovering", "ingesting"], n: int, total: int | None) -> None:
        self.on_progress(SyncProgress(self.label, phase, n, total))


async def _guarded(entries: AsyncIterator[T]) -> AsyncGenerator[T]:
    """The entries of a connector. Any error of it is a ConnectorError."""
    try:
        async for entry in entries:
            yield entry
    except ConnectorError:
        raise
    except Exception as error:  # a bug of the connector; its text may hold what clients must not see
        raise ConnectorError(f"listing it failed with {type(error).__name__}") from error
    finally:
        if isinstance(entries, AsyncGenerator):
            await entries.aclose()


def _cut(cut: Callable[[str], list[str]], item: Item) -> list[str]:
    """The chunks of an item. None of them crosses the end of a page: a hit names the page that its words are on."""
    if not item.pages:
        return cut(item.body)
    bounds = [0, *item.pages, len(item.body)]
    pages = (item.body[first:last] for first, last in pairwise(bounds))
    return [chunk for page in pages if page.strip() for chunk in cut(page)] or [""]


def _within(moment: str | None, window: tuple[str | None, str | None]) -> bool:
    since, until = window
    return moment is None or ((since is None or moment >= since) and (until is None or moment <= until))


def _digest(source_id: str, item: Item, chunking_bounds: str) -> str:
    """A hash of all that is stored of an item. Raises TypeError or ValueError for metadata that is not JSON-able."""
    body = item.body
    if len(body) > _HASHED_CHARACTERS:
        body = hashlib.sha256(body.encode()).hexdigest()
    values: tuple[object, ...] = (
        source_id,
        body,
        item.title,
        item.author,
        item.source_url,
        item.created_at,
        item.updated_at,
        item.content_type,
        item.metadata,
        chunking_bounds,
        *([item.pages] if item.pages else []),
    )
    if item.access:  # only then: digests made before items had labels stay true
        values = (*values, sorted(item.access))
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()

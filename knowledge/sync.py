"""Bring a store up to date with one source: write what changed, leave what did not, delete what is gone."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Literal

import trio

from knowledge import chunking
from knowledge.connectors import Connector, ConnectorError, Found, Item, Partial, Skipped, Source, Unreadable, opened
from knowledge.store import MAX_BODY_CHARACTERS, MAX_CHUNKS, Batch, NewDocument, Stored, SyncMark, WritableStore
from knowledge.times import canonical_time, format_time

# A batch is written when it holds this much: enough to spread a transaction's cost over many documents, little enough
# that searches by other connections are not delayed and a killed sync has little to repeat.
BATCH_DOCUMENTS = 64
BATCH_CHARACTERS = 4 * 1024 * 1024

# Texts longer than this are cut into chunks in a thread; a thread costs more than cutting a shorter one.
_THREAD_CHARACTERS = 16 * 1024


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
    a reason, or not reached because of `limit`.
    """

    source: str
    dry_run: bool = False
    fetched: int = 0
    upserted: int = 0
    unchanged: int = 0
    deleted: int = 0
    chunks: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)


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
) -> SyncReport:
    """Synchronise the source `label` (`TYPE:NAME`) with `store`; one sync of a label at a time.

    An item whose version mark has not changed is not read; one that is read and has the same content, times and
    chunking as the stored document is not rewritten. `full` reads and rewrites everything. `since` and `until` (dates
    or RFC 3339, both inclusive) select items by the time of their last change; items without a time always pass.
    `limit` bounds the documents written. Documents that are gone from the source are deleted, unless one of these three
    was given or the connector lists a part of its source only.

    Changes are written in transactions of whole documents, so a sync that is cancelled or killed leaves a consistent
    store, and the next one does the rest. Raises ConnectorError when the source cannot be listed (only the source's
    state changes then), StoreError from the store, ValueError for a bad argument.
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

    async def run() -> SyncReport:
        async with opened(connector) as reading:
            one = _Sync(store, label, reading, on_progress or _ignore, cut, bounds, dry_run, full)
            return await one.run(window, limit)

    if dry_run:
        return await run()
    async with store.sync_lock(label):
        try:
            return await run()
        except ConnectorError as error:
            await store.apply(Batch(source=label, mark=SyncMark(error=str(error))))
            raise


def _ignore(progress: SyncProgress) -> None:
    pass


@dataclass(slots=True)
class _Sync:
    """One synchronisation under way."""

    store: WritableStore
    label: str
    connector: Connector
    on_progress: Callable[[SyncProgress], None]
    cut: Callable[[str], list[str]]
    chunking: str  # part of versions and digests: with other bounds, every document is cut again
    dry_run: bool
    full: bool
    report: SyncReport = field(init=False)
    hidden: set[str] = field(default_factory=set)
    hidden_below: list[str] = field(default_factory=list)

    # What the next batch will write. Invariant: a source_id is in at most one of the two.
    upserts: list[NewDocument] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    batch_characters: int = 0

    async def run(self, window: tuple[str | None, str | None], limit: int | None) -> SyncReport:
        self.report = SyncReport(self.label, self.dry_run)
        stored = await self.store.stored(self.label)
        found = await self.discover()
        wanted = [item for item in found.values() if _within(item.updated_at, window)]
        self.report.fetched = len(wanted)
        await self.ingest(wanted, stored, limit)
        narrowed = limit is not None or window != (None, None)
        gone = [] if narrowed else [source_id for source_id in stored if source_id not in found]
        await self.finish([source_id for source_id in gone if not self.is_hidden(source_id)])
        return self.report

    async def discover(self) -> dict[str, Found]:
        """Everything in the source, by source_id. All of it is known before anything is changed."""
        found: dict[str, Found] = {}
        self.tell("discovering", 0, None)
        try:
            async for entry in self.connector.scan():
                if isinstance(entry, Skipped):
                    self.hide(entry)
                elif isinstance(entry, Partial):
                    self.hidden_below.append("")  # every source_id begins with it
                elif entry.source_id in found:
                    self.report.skipped.append((entry.source_id, "listed twice; the first was taken"))
                else:
                    found[entry.source_id] = entry
        except ConnectorError:
            raise
        except Exception as error:  # a bug of the connector; its text may hold what clients must not see
            raise ConnectorError(f"listing it failed with {type(error).__name__}") from error
        self.tell("discovering", len(found), None)
        return dict(sorted(found.items()))

    async def ingest(self, wanted: list[Found], stored: dict[str, Stored], limit: int | None) -> None:
        for n, item in enumerate(wanted):
            self.tell("ingesting", n, len(wanted))
            if limit is not None and self.report.upserted >= limit:
                return
            await self.ingest_one(item, stored.get(item.source_id))
            if len(self.upserts) >= BATCH_DOCUMENTS or self.batch_characters >= BATCH_CHARACTERS:
                await self.flush()
        self.tell("ingesting", len(wanted), len(wanted))

    async def ingest_one(self, found: Found, before: Stored | None) -> None:
        version = found.version and f"{self.chunking} {found.version}"
        if before and version and before.version == version and not self.full:
            self.report.unchanged += 1
            return
        try:
            document = await self.document(found, version)
        except Unreadable as error:
            self.report.skipped.append((found.source_id, str(error)))
            return
        if before and before.digest == document.digest and not self.full:
            self.report.unchanged += 1
            if before.version != version:
                self.versions[found.source_id] = version
            return
        self.report.upserted += 1
        self.report.chunks += len(document.chunks)
        self.upserts.append(document)
        self.batch_characters += len(document.body)

    async def document(self, found: Found, version: str) -> NewDocument:
        """Read one item and cut it. Any error with it becomes Unreadable, so that the other items are not lost."""
        try:
            item = await self.connector.read(found)
            digest = _digest(found.source_id, item, self.chunking)
            created_at = None if item.created_at is None else canonical_time(item.created_at)
            updated_at = None if item.updated_at is None else canonical_time(item.updated_at)
            if len(item.body) > _THREAD_CHARACTERS:
                chunks = await trio.to_thread.run_sync(_cut, self.cut, item, abandon_on_cancel=True)
            else:
                chunks = _cut(self.cut, item)
            if len(chunks) > MAX_CHUNKS or len(item.body) > MAX_BODY_CHARACTERS:
                raise Unreadable("too large for the store")
        except (Unreadable, ConnectorError) as error:
            raise Unreadable(str(error)) from error
        except UnicodeEncodeError as error:
            raise Unreadable("holds text that is not Unicode (a lone surrogate)") from error
        except Exception as error:  # a bug of the connector that one item triggers must not end the sync
            raise Unreadable(f"failed with {type(error).__name__}") from error
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
        )

    def hide(self, entry: Skipped) -> None:
        self.report.skipped.append((entry.source_id, entry.reason))
        if entry.below:
            self.hidden_below.append(entry.source_id)
        else:
            self.hidden.add(entry.source_id)

    def is_hidden(self, source_id: str) -> bool:
        """Whether the scan skipped this item, so that it may still exist."""
        return source_id in self.hidden or source_id.startswith(tuple(self.hidden_below))

    async def flush(self) -> None:
        await self.write(Batch(source=self.label, upserts=self.upserts, versions=self.versions))

    async def finish(self, gone: list[str]) -> None:
        self.report.deleted = len(gone)
        mark = SyncMark(at=format_time(datetime.now(UTC)))
        await self.write(
            Batch(source=self.label, upserts=self.upserts, versions=self.versions, deletes=gone, mark=mark)
        )

    async def write(self, batch: Batch) -> None:
        if not self.dry_run:
            await self.store.apply(batch)
        self.upserts, self.versions, self.batch_characters = [], {}, 0

    def tell(self, phase: Literal["discovering", "ingesting"], n: int, total: int | None) -> None:
        self.on_progress(SyncProgress(self.label, phase, n, total))


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
    values = (
        source_id,
        item.body,
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
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()

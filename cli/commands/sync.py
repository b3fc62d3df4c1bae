"""`engine sync`: fill the store from the configured sources; `engine embed`: make the vectors of what it has."""

import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import trio
from cyclopts import App, Parameter

from agents.sources import access_of, connector
from cli.control import tenant_of
from cli.options import AsJson, ConfigPath, TenantName, load
from cli.output import FAILED, OK, UNUSABLE, Exit, note, one_line, plural, quiet_logs, say, say_json, warn
from control.store import open_configured
from engine.config import Config, ConfigError, LoadedConfig
from engine.embedders import open_embedders
from engine.extraction import open_extractor
from engine.tenant import DEFAULT_TENANT, Tenant
from knowledge.access import EVERYTHING
from knowledge.connectors import ConnectorError, Source
from knowledge.embed import EmbedReport, embed_pending
from knowledge.embedding import Embedder, EmbeddingError, checked
from knowledge.embedding.static import StaticEmbedder
from knowledge.sqlite.store import SqliteStore, open_store
from knowledge.store import StoreError
from knowledge.stores import store_path
from knowledge.sync import SyncProgress, SyncReport
from knowledge.sync import sync as sync_source
from knowledge.times import canonical_time

Form = Literal["human", "json"]

# Sources that are synchronised side by side. One transaction of the store is written at a time, so that more would only
# wait for it; one that waits for its server delays none of the others.
_AT_ONCE = 4

# How long it may make vectors without a word.
_SILENT_S = 10.0
# Bound on the skipped items that are listed by name; further ones are only counted.
_SKIPPED_SHOWN = 20


@dataclass(frozen=True, slots=True)
class _Options:
    full: bool = False
    dry_run: bool = False
    since: str | None = None
    until: str | None = None
    limit: int | None = None
    telling: bool = False  # whether it says now and then that it makes vectors, where it shows no progress


async def sync(
    connector: Annotated[str, Parameter(help="`all`, a TYPE (filesystem, git, s3, web, script) or TYPE:NAME.")],
    /,
    *,
    full: Annotated[bool, Parameter(help="Read and write everything again.", negative=())] = False,
    dry_run: Annotated[bool, Parameter(help="Only print what would be done.", negative=())] = False,
    since: Annotated[str | None, Parameter(help="Only items changed since (date or RFC 3339 time).")] = None,
    until: Annotated[str | None, Parameter(help="Only items changed until (date or RFC 3339 time).")] = None,
    limit: Annotated[int | None, Parameter(help="Write at most this many documents per source.")] = None,
    progress: Annotated[Form | None, Parameter(help="Progress on standard error; human on a terminal.")] = None,
    no_progress: Annotated[bool, Parameter(help="No progress.", negative=())] = False,
    config: ConfigPath = None,
    as_json: AsJson = False,
    tenant: TenantName = "default",
) -> int:
    """Synchronise the store with its sources."""
    loaded = load(config)
    who = await tenant_of(tenant, loaded)
    labels = select(connector, loaded.config, who.id)
    problems = loaded.config.connectors.problems(who.id)
    for option, text in (("--since", since), ("--until", until)):
        _require_time(option, text)
    options = _Options(full, dry_run, since, until, limit, telling=not no_progress)
    form: Form | None = None if no_progress else progress or ("human" if sys.stderr.isatty() else None)
    supported = [label for label in labels if not problems[label]]
    if len(labels) > 1 and not as_json:
        say(f"Syncing {len(labels)} connector instances...")
    reports: list[dict[str, Any]] = []
    if supported:
        async with _sources(loaded, supported, who) as (sources, unusable):
            problems |= unusable
            if sources:
                reports = await _sync(loaded, who, sources, options, form, None if as_json else _show)
    if as_json:
        say_json({"sources": [{key: value for key, value in each.items() if key != "unusable"} for each in reports]})
    missing = sorted({problem for label in labels if (problem := problems[label])})
    if wrong := list(dict.fromkeys(each["error"] for each in reports if each["unusable"])):
        raise StoreError("; ".join([*wrong, *missing]))
    if missing:
        raise Exit(UNUSABLE, "; ".join(missing))
    return FAILED if any(each["error"] for each in reports) else OK


async def _sync(
    loaded: LoadedConfig,
    who: Tenant,
    sources: Mapping[str, Source],
    options: _Options,
    form: Form | None,
    show: Callable[[dict[str, Any]], None] | None,
) -> list[dict[str, Any]]:
    """Synchronise sources and make the vectors of what was written. Returns the summaries of the sources."""
    async with _writing(loaded, who, options.dry_run) as store:
        reports = await _sync_all(store, sources, loaded.config, options, form, show)
        if options.dry_run:
            return reports
        await _embed_written(store, loaded.config, form, _Slow() if options.telling else None)
        embedded = {each.source: each.embedded for each in await store.sources(EVERYTHING)}
        return [{**each, "embedded": embedded.get(each["source"], 0)} for each in reports]


async def _embed_written(store: SqliteStore, config: Config, form: Form | None, slow: "_Slow | None") -> None:
    """Make the vectors of what was written. The documents are searchable by words in any case."""
    async with open_embedders(config) as made:
        if made is not None:
            await _embed_with(store, made.current, config, form, slow)


async def _embed_with(
    store: SqliteStore, embedder: Embedder, config: Config, form: Form | None, slow: "_Slow | None" = None
) -> None:
    tell = slow.tell if slow is not None and form is None else partial(_tell_embedded, form)
    try:
        report = await embed_pending(store, embedder, batch_size=config.embedding.batch_size, on_progress=tell)
        problem = report.error
    except StoreError as error:  # a server that embeds them already, or the quota
        problem = str(error)
    if problem is not None:
        warn(f"documents remain without vectors, and are found by words only: {problem}")


def _require_time(option: str, text: str | None) -> None:
    """Raises Exit unless it is a date or a time."""
    try:
        if text is not None:
            canonical_time(text)
    except ValueError as error:
        raise Exit(UNUSABLE, f"{option}: {error}") from None


def select(asked: str, config: Config, tenant: str = "default") -> tuple[str, ...]:
    """The tenant's labels that match `all`, TYPE or TYPE:NAME. Raises Exit if none does."""
    labels = config.connectors.labels(tenant)
    kind = asked.partition(":")[0]
    found = tuple(label for label in labels if asked == "all" or asked in (label, label.partition(":")[0]))
    if found:
        return found
    whose = "" if tenant == "default" else f" for tenant {tenant!r}"
    configured = f"configured{whose}: {', '.join(labels) or 'none'}"
    if asked == "all" and whose:
        raise Exit(UNUSABLE, f'no connectors are configured{whose}; tenants = ["{tenant}"] in the table of one adds it')
    if asked == "all":
        raise Exit(UNUSABLE, "no connectors are configured; add a table like [connectors.filesystem.docs]")
    types = tuple(type(config.connectors).model_fields)
    if kind not in types:
        raise Exit(UNUSABLE, f"unknown connector {asked!r}; use all, {', '.join(types)} or TYPE:NAME; {configured}")
    if asked in types:
        raise Exit(UNUSABLE, f"no {asked} connectors are configured; {configured}")
    raise Exit(UNUSABLE, f"unknown connector {asked!r}; {configured}")


async def _sync_all(
    store: SqliteStore,
    sources: Mapping[str, Source],
    config: Config,
    options: _Options,
    form: Form | None,
    show: Callable[[dict[str, Any]], None] | None,
) -> list[dict[str, Any]]:
    """Synchronise sources, `_AT_ONCE` side by side. One that fails stops no other. Returns their summaries in order."""
    reports: dict[str, dict[str, Any]] = {}
    places = trio.Semaphore(_AT_ONCE)

    async def one(label: str, source: Source, tell: Tell) -> None:
        async with places:
            reports[label] = await _sync_one(store, label, source, config, options, tell)
        if show is not None:
            show(reports[label])

    with _progress(form) as tell:
        async with trio.open_nursery() as nursery:
            for label, source in sources.items():
                nursery.start_soon(one, label, source, tell)
    return [reports[label] for label in sources]


async def fill_if_empty(loaded: LoadedConfig) -> None:
    """Sync every filesystem connector if the store has no documents, and print one line for each source."""
    labels = [label for label in loaded.config.connectors.labels() if label.startswith("filesystem:")]
    if not labels:
        return
    config = loaded.config
    opening = open_store(config.db.path, create=True, access=access_of(config), language=config.retrieval.language)
    async with opening as store:
        if (await store.stats(EVERYTHING)).documents:
            return
        async with _sources(loaded, labels, DEFAULT_TENANT) as (sources, wrong):
            if wrong:
                raise Exit(UNUSABLE, "; ".join(wrong.values()))
            for label, source in sources.items():
                report = await _sync_one(store, label, source, loaded.config, _Options(), lambda progress: None)
                if report["error"]:
                    warn(f"{label} could not be read: {report['error']}")
                else:
                    counts = plural(report["upserted"], "document"), plural(report["chunks"], "chunk")
                    say(f"Filled {label}: {counts[0]}, {counts[1]}")
        if config.embedding.provider != "disabled":
            # What takes long is left to the server, whose searches are answered with these vectors meanwhile.
            await _embed_with(store, StaticEmbedder(), config, None)


@asynccontextmanager
async def _writing(loaded: LoadedConfig, who: Tenant, dry_run: bool) -> AsyncIterator[SqliteStore]:
    path = store_path(loaded.config.db.path, who.id)
    configured, access = loaded.config.connectors.problems(who.id), access_of(loaded.config, who)
    if dry_run and not path.exists():
        # A dry run creates nothing: without a store, it compares with an empty temporary one.
        with tempfile.TemporaryDirectory() as folder:
            empty = Path(folder) / "empty.sqlite"
            async with open_store(empty, create=True, configured=configured, access=access) as store:
                yield store
        return
    room = await room_of(loaded, who)
    language = None if dry_run else loaded.config.retrieval.language
    async with open_store(
        path,
        create=not dry_run,
        readonly=dry_run,
        configured=configured,
        access=access,
        max_bytes=room,
        language=language,
    ) as store:
        yield store


async def room_of(loaded: LoadedConfig, who: Tenant) -> int | None:
    """Bound on the size of the tenant's documents: its quota less the size of its published packages."""
    tenants = loaded.config.tenants
    if not tenants.enabled:
        return None
    bound = who.quotas.get("stored_bytes", tenants.quota["stored_bytes"])
    assert bound is not None
    async with open_configured(loaded.config) as control:
        packages = await control.versions.stored_bytes(who.id)
    return max(0, int(bound) - packages)


@asynccontextmanager
async def _sources(
    loaded: LoadedConfig, labels: Iterable[str], who: Tenant
) -> AsyncIterator[tuple[dict[str, Source], dict[str, str]]]:
    """The sources of these labels, and why the others cannot be used, by label.

    The sandbox is started for scripts, and for files that are no text.
    """
    async with AsyncExitStack() as stack:
        extractor = await stack.enter_async_context(open_extractor(loaded.config))
        engine = None
        if any(label.startswith("script:") for label in labels):
            from agents.service import open_scripts  # the sandbox, which other sources do not need
            from engine.engine import SandboxUnavailable

            quiet_logs()
            try:
                engine = await stack.enter_async_context(open_scripts(loaded))
            except SandboxUnavailable as error:
                raise Exit(UNUSABLE, str(error)) from None
        sources: dict[str, Source] = {}
        wrong: dict[str, str] = {}
        for label in labels:
            try:
                sources[label] = connector(loaded.config, label, engine, who, extractor)
            except ConfigError as error:
                wrong[label] = str(error)
        yield sources, wrong


async def _sync_one(
    store: SqliteStore, label: str, connector: Source, config: Config, options: _Options, tell: "Tell"
) -> dict[str, Any]:
    """Synchronise one source. Returns a summary as JSON, with `error` if the source could not be read.

    `unusable` says that the error is of the store, or that another sync of the source runs.
    """
    try:
        report = await sync_source(
            store,
            label,
            connector,
            full=options.full,
            dry_run=options.dry_run,
            since=options.since,
            until=options.until,
            limit=options.limit,
            on_progress=tell,
            max_tokens=config.chunking.max_tokens,
            overlap_tokens=config.chunking.overlap_tokens,
        )
    except (ConnectorError, StoreError) as error:
        failed = _as_json(SyncReport(label, options.dry_run), str(error))
        return {**failed, "unusable": isinstance(error, StoreError)}
    except ValueError as error:
        raise Exit(UNUSABLE, str(error)) from None
    return {**_as_json(report, None), "unusable": False}


def _as_json(report: SyncReport, error: str | None) -> dict[str, Any]:
    skipped = [{"source_id": source_id, "reason": reason} for source_id, reason in report.skipped]
    return {**asdict(report), "skipped": skipped, "error": error}


def _show(report: dict[str, Any]) -> None:
    say(f"sync {report['source']}" + (" (dry-run)" if report["dry_run"] else ""))
    if report["error"]:
        if not report["unusable"]:  # else it is the last line of the command
            note(f"error: {report['source']}: {report['error']}")
        return
    if report["dry_run"]:
        say(f"  items found: {report['fetched']:,}")
        say(f"  documents to write: {report['upserted']:,}")
        say(f"  estimated chunks: {report['chunks']:,}")
    else:
        say(f"  fetched: {report['fetched']:,} items")
        say(f"  upserted documents: {report['upserted']:,}")
        say(f"  chunks written: {report['chunks']:,}")
    say(f"  unchanged: {report['unchanged']:,}")
    say(f"  deleted: {report['deleted']:,}")
    skipped = len(report["skipped"]) + report["skipped_more"]
    say(f"  extraction skipped: {skipped:,}")
    for item in report["skipped"][:_SKIPPED_SHOWN]:
        say(f"    {one_line(item['source_id'])}: {one_line(item['reason'])}")
    if skipped > _SKIPPED_SHOWN:
        say(f"    and {skipped - _SKIPPED_SHOWN:,} more")
    say("ok")


# ---- progress ---------------------------------------------------------------------------------------------------

Tell = Callable[[SyncProgress], None]


@contextmanager
def _progress(form: Form | None) -> Iterator[Tell]:
    """Show the progress of syncs."""
    if form == "human" and sys.stderr.isatty():
        with _bar() as tell:
            yield tell
        return
    yield {"human": _tell_human, "json": _tell_json, None: lambda progress: None}[form]


@contextmanager
def _bar() -> Iterator[Tell]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn
    from rich.progress import Progress as Bar

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def tell(progress: SyncProgress) -> None:
            if progress.source not in tasks:
                tasks[progress.source] = bar.add_task("sync", total=None)
            description = f"sync {progress.source}  {progress.phase}"
            bar.update(tasks[progress.source], description=description, completed=progress.n, total=progress.total)

        yield tell


def _is_news(progress: SyncProgress) -> bool:
    """Whether to print a line: for every tenth item and the last one only, to keep the output short."""
    return progress.n % 10 == 0 or progress.n == progress.total


def _tell_human(progress: SyncProgress) -> None:
    if progress.phase == "discovering":
        if progress.n == 0:
            note(f"sync {progress.source}  discovering...")
    elif _is_news(progress):
        total = "" if progress.total is None else f" / {progress.total:,}"
        note(f"sync {progress.source}  ingesting  {progress.n:,}{total} items")


def _tell_json(progress: SyncProgress) -> None:
    line: dict[str, Any] = {"event": "progress", "connector": progress.source, "phase": progress.phase}
    if progress.phase == "discovering":
        if progress.n == 0:
            note(json.dumps(line))
    elif _is_news(progress):
        note(json.dumps({**line, "n": progress.n, "total": progress.total}))


def _tell_embedded(form: Form | None, report: EmbedReport, every: int = 10) -> None:
    """As for items: every tenth document, and the last."""
    done = report.embedded + report.failed
    if form is None or (done % every and report.pending):
        return
    total = done + report.pending
    line = {"event": "embedding", "n": done, "total": total}
    note(json.dumps(line) if form == "json" else f"embedding  {done:,} / {total:,} documents")


@dataclass(slots=True)
class _Slow:
    """A line for what takes long, off a terminal: a sync that is silent for minutes looks as one that hangs."""

    told_at: float = field(default_factory=time.monotonic)

    def tell(self, report: EmbedReport) -> None:
        if time.monotonic() - self.told_at >= _SILENT_S:
            self.told_at = time.monotonic()
            _tell_embedded("human", report, every=1)


# ---- vectors ----------------------------------------------------------------------------------------------------

embed_app = App(name="embed", help="Make the vectors that search by meaning compares.")


@embed_app.command
async def pending(*, config: ConfigPath = None, as_json: AsJson = False, tenant: TenantName = "default") -> int:
    """Embed the documents that have no vectors so far. Exit code 1 if one failed."""
    return await _embed(config, tenant, as_json, again=False)


@embed_app.command
async def rebuild(*, config: ConfigPath = None, as_json: AsJson = False, tenant: TenantName = "default") -> int:
    """Remove every vector and embed all documents again. Exit code 1 if one failed."""
    return await _embed(config, tenant, as_json, again=True)


async def _embed(config: ConfigPath, tenant: str, as_json: bool, *, again: bool) -> int:
    loaded = load(config)
    who = await tenant_of(tenant, loaded)
    embedding = loaded.config.embedding
    room = await room_of(loaded, who)
    async with (
        open_embedders(loaded.config) as made,
        open_store(store_path(loaded.config.db.path, who.id), max_bytes=room) as store,
    ):
        if made is None:
            raise Exit(UNUSABLE, "no embedder is configured ([embedding] provider is 'disabled')")
        if again:
            await _require_a_vector(made.current)
            async with store.embedding_lock():
                await store.remove_vectors()
        report = await embed_pending(store, made.current, batch_size=embedding.batch_size)
    if as_json:
        say_json({"embedded": report.embedded, "failed": report.failed, "pending": report.pending})
    else:
        _show_vectors(report)
    return FAILED if report.failed else OK


async def _require_a_vector(embedder: Embedder) -> None:
    """Raises Exit where it makes none: the vectors there are must not be removed for it."""
    try:
        checked(await embedder.embed(("a text to try it with",)), 1, embedder.model)
    except EmbeddingError as error:
        raise Exit(FAILED, f"{error}; the vectors stay as they are") from None


def _show_vectors(report: EmbedReport) -> None:
    """One line, and one on standard error for a failure."""
    say(f"embedded: {plural(report.embedded, 'document')}, {report.pending:,} pending")
    if report.error is not None:
        note(f"error: {report.error}")

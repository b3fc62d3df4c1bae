"""The contents of the knowledge store: `engine search`, `get`, `sources`, `stats`, `export`."""

import json
import textwrap
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from agents.sources import Health, access_of
from cli.control import tenant_of
from cli.options import AsJson, AsLabels, ConfigPath, TenantName, load, reader_of, shown
from cli.output import FAILED, UNUSABLE, Exit, ago, mebibytes, note, one_line, plural, say, say_json, table, warn
from engine.bridge.knowledge import SearchArguments, document_as_json, search_as_json, search_query
from engine.config import LoadedConfig
from engine.embedders import open_embedders, settings
from knowledge.sqlite.store import SqliteStore, open_store
from knowledge.store import DEFAULT_PASSAGE_TOKENS, Explained, ExplainedSearch, Hit, SourceInfo
from knowledge.stores import store_path

# Columns that a terminal is expected to have, and skipped items that are listed of each source.
_WIDTH = 100
_SKIPPED_SHOWN = 3

Mode = Literal["keyword", "semantic", "hybrid"]

# How long a search waits for its embedder, which may have to start, and which no other search waits for.
_EMBEDDER_S = 30.0


@asynccontextmanager
async def reading(
    path: Path | None, tenant: str, *, modes: Collection[Mode | None] = ()
) -> AsyncIterator[tuple[LoadedConfig, SqliteStore]]:
    """The configuration and the tenant's store, open for reading, and for searches with these modes (None: default)."""
    loaded = load(path)
    who = await tenant_of(tenant, loaded)
    config = loaded.config
    configured, access = Health(config, who.id), access_of(config, who)
    async with AsyncExitStack() as stack:
        asked = {each or config.retrieval.default_mode for each in modes}
        made = None
        if asked - {"keyword"}:
            made = await stack.enter_async_context(
                open_embedders(config, query_s=_EMBEDDER_S, lenient="semantic" not in asked)
            )
        store = await stack.enter_async_context(
            open_store(
                store_path(config.db.path, who.id), readonly=True, configured=configured, access=access,
                every=config.connectors.every(who.id), embedders=made, settings=settings(config),
            )
        )  # fmt: skip
        yield loaded, store


async def search(
    query: str,
    /,
    *,
    mode: Annotated[Mode | None, Parameter(help="How to search; by default retrieval.default_mode.")] = None,
    source: Annotated[str | None, Parameter(help="Only this source: TYPE:NAME, NAME or TYPE.")] = None,
    since: Annotated[str | None, Parameter(help="Only documents updated since (date or RFC 3339 time).")] = None,
    until: Annotated[str | None, Parameter(help="Only documents updated until (date or RFC 3339 time).")] = None,
    path: Annotated[str | None, Parameter(help="Only documents whose source_id matches this pattern.")] = None,
    prefix: Annotated[bool, Parameter(help="The last word may be half typed.", negative=())] = False,
    limit: Annotated[int | None, Parameter(help="At most this many results, 1 to 100.")] = None,
    passages: Annotated[int, Parameter(help="Show this many of the best passages of each, 0 to 10.")] = 0,
    max_tokens: Annotated[int, Parameter(help="At most this many tokens in all passages.")] = DEFAULT_PASSAGE_TOKENS,
    explain: Annotated[bool, Parameter(help="Show how results were found and scored.", negative=())] = False,
    config: ConfigPath = None,
    as_json: AsJson = False,
    as_labels: AsLabels = None,
    tenant: TenantName = "default",
) -> None:
    """Search the knowledge base."""
    if limit is not None and not 1 <= limit <= 100:
        within = max(1, min(limit, 100))
        warn(f"--limit: {limit} is not from 1 to 100: {within} was used")
        limit = within
    given = SearchArguments(query, mode, limit, source, since, until, path, passages, max_tokens, prefix, explain)
    try:
        wanted = search_query(given, 1)
    except ValueError as error:
        raise Exit(UNUSABLE, f"--{str(error).replace('max_tokens', 'max-tokens')}") from None
    reader = reader_of(as_labels)
    async with reading(config, tenant, modes=(mode,)) as (loaded, store):
        retrieval = loaded.config.retrieval
        wanted = replace(wanted, mode=mode or retrieval.default_mode, limit=limit or retrieval.final_limit)
        answer = await store.search(wanted, reader)
    if as_json:
        say_json(search_as_json(answer))
        return
    for warning in answer.warnings:
        warn(warning)
    if answer.explain is not None:
        _show_search(answer.explain)
    if not answer.hits:
        say("No results.")
    for number, hit in enumerate(answer.hits, 1):
        _show_hit(number, hit)


def _show_search(explained: ExplainedSearch) -> None:
    candidates = ((explained.keyword, "by words"), (explained.vector, "by meaning"))
    found = " + ".join(f"{count} {kind}" for count, kind in candidates if count is not None) or "none"
    say(f"Search: mode={explained.mode}, candidates: {found}")
    filters = "".join(f"; {name} leaves {count}" for name, count in explained.filters)
    say(f"Searched: {explained.searched} of {plural(explained.documents, 'document')}{filters}")


def _scoring(hit: Hit, explained: Explained) -> Iterator[str]:
    """The score of a hit as lines of text."""
    norms = (("keyword", explained.keyword_norm), ("semantic", explained.vector_norm))
    parts = " ".join(f"{name}={norm:.3f}" for name, norm in norms if norm is not None)
    alpha = "" if explained.alpha is None else f", alpha {explained.alpha:.3f}"
    why = ", all words" if explained.complete else ", one of few with all words together" if explained.certain else ""
    yield f"scoring: {parts}{alpha}{why} → {hit.score:.3f}"
    raw = (("bm25", explained.bm25), ("cosine", explained.cosine))
    yield "raw: " + " ".join(f"{name}={value:.3f}" for name, value in raw if value is not None)
    for word in explained.words:
        yield f"word: {one_line(word.word)} df={word.df} weight={word.weight:.3f}{'' if word.found else ' (not here)'}"


def _show_hit(number: int, hit: Hit) -> None:
    say(f"{number}. [{hit.score:.2f}] {hit.source} / {one_line(hit.title or hit.source_id)}")
    for line in _scoring(hit, hit.explain) if hit.explain else ():
        say(f"    {line}")
    if hit.updated_at:
        say(f"    updated: {hit.updated_at}")
    say(f"    source: {hit.source_id}")
    if hit.source_url:
        say(f"    url: {hit.source_url}")
    if hit.heading:
        say(f"    heading: {one_line(hit.heading)}")
    if hit.lines:
        say(f"    lines: {_range(hit.lines)}")
    if hit.untrusted:
        say("    untrusted: strangers can write it")
    say(f'    excerpt: "{one_line(hit.snippet)}"')
    for passage in hit.passages or ():
        where = ", ".join(filter(None, (one_line(passage.heading or ""), passage.lines and _range(passage.lines))))
        say(f"    passage ({where}):" if where else "    passage:")
        for line in passage.text.split("\n"):
            say(f"    | {one_line(line)}")
    say(f"    id: {hit.id}")
    say()


def _range(lines: tuple[int, int]) -> str:
    return f"{lines[0]}-{lines[1]}"


async def get(
    document_id: Annotated[str, Parameter(name="ID", help="The id that search prints.")],
    /,
    *,
    lines: Annotated[str | None, Parameter(help="Only these lines of the body: 12-40, 12- or 12.")] = None,
    config: ConfigPath = None,
    as_json: AsJson = False,
    as_labels: AsLabels = None,
    tenant: TenantName = "default",
) -> None:
    """Print one document."""
    reader = reader_of(as_labels)
    async with reading(config, tenant) as (_, store):
        document = await store.get(document_id, reader)
    if document is None:
        raise Exit(FAILED, f"document not found: {document_id}")
    try:
        fields = document_as_json(document, lines)
    except ValueError as error:
        raise Exit(UNUSABLE, f"--lines: {error}") from None
    if as_json:
        say_json(fields)
        return
    say("--- Document ---")
    for key, value in fields.items():
        if key not in ("body", "metadata", "chunks", "lines") and value is not None:
            say(f"{key}: {one_line(value)}")
    if document.metadata:
        say(f"metadata: {json.dumps(document.metadata, ensure_ascii=False)}")
    say("\n--- Body ---")
    say(fields["body"])
    say(f"\n--- Chunks ({len(fields['chunks'])}) ---")
    for chunk in fields["chunks"]:
        say(f"[{chunk['index']}] {one_line(chunk['text'])}")


async def sources(
    *,
    config: ConfigPath = None,
    as_json: AsJson = False,
    as_labels: AsLabels = None,
    tenant: TenantName = "default",
) -> None:
    """List the sources, configured or with documents."""
    reader = reader_of(as_labels)
    async with reading(config, tenant) as (_, store):
        found = await store.sources(reader)
    if as_json:
        say_json({"sources": [asdict(source) for source in found]})
    elif not found:
        say("No sources.")
    else:
        _show_sources(found)


def _show_sources(found: Sequence[SourceInfo]) -> None:
    """A table that fits 100 columns, and below it what there is to say about a source, in a paragraph."""
    now = datetime.now(UTC)
    table(
        (
            (
                source.source,
                _status(source),
                str(source.healthy).lower(),
                source.document_count,
                source.chunk_count,
                len(source.skipped) + source.skipped_more,
                ago(source.last_sync, now),
            )
            for source in found
        ),
        heading=("CONNECTOR", "STATUS", "HEALTHY", "DOCS", "CHUNKS", "SKIPPED", "LAST SYNC"),
        indent="",
    )
    for source in found:
        if source.notes:
            _say_wrapped(f"{source.source}: {source.notes}")
        if source.untrusted:
            _say_wrapped(f"{source.source}: untrusted: strangers can write its documents")
        for item in source.skipped[:_SKIPPED_SHOWN]:
            if item.reason == source.last_error:  # why the source could not be read, which notes have
                continue
            _say_wrapped(f"{source.source}: skipped {item.source_id}: {item.reason}")
        if (more := len(source.skipped) + source.skipped_more - _SKIPPED_SHOWN) > 0:
            _say_wrapped(f"{source.source}: skipped {more:,} more (--json lists the first 20)")


def _say_wrapped(text: str) -> None:
    for line in textwrap.wrap(one_line(text), _WIDTH, subsequent_indent="  "):
        say(line)


def _status(source: SourceInfo) -> str:
    """The column STATUS: OK for a source that is configured and works."""
    if not source.configured:
        return "NOT CONFIGURED"
    return "OK" if source.healthy else "FAILED"


async def stats(
    *,
    config: ConfigPath = None,
    as_json: AsJson = False,
    as_labels: AsLabels = None,
    tenant: TenantName = "default",
) -> None:
    """Print the size of the store."""
    reader = reader_of(as_labels)
    async with reading(config, tenant) as (loaded, store):
        found = await store.stats(reader)
    database = shown(store_path(loaded.config.db.path, tenant))
    if as_json:
        say_json({"database": database, **asdict(found)})
        return
    share = 100 * found.embedded / found.chunks if found.chunks else 0
    say("Knowledge store")
    say(f"Database:  {database}")
    say(f"Size:      {'not shown to this reader' if found.size_bytes is None else mebibytes(found.size_bytes)}")
    say(f"Documents: {found.documents:,}")
    say(f"Chunks:    {found.chunks:,}")
    by = f", by {one_line(found.embedding_model)}" if found.embedding_model else ""
    say(f"Embedded:  {found.embedded:,} / {found.chunks:,} ({share:.0f}%){by}")
    if found.sources:
        say()
        now = datetime.now(UTC)
        table(
            (
                (source.source, f"{source.document_count:,}", f"{source.chunk_count:,}", ago(source.last_sync, now))
                for source in found.sources
            ),
            heading=("SOURCE", "DOCS", "CHUNKS", "LAST SYNC"),
            indent="",
        )


async def export(
    *,
    output: Annotated[
        Path | None, Parameter(name=("--output", "-o"), help="Write to this file, not to standard output.", negative=())
    ] = None,
    config: ConfigPath = None,
    as_labels: AsLabels = None,
    tenant: TenantName = "default",
) -> None:
    """Print every document and chunk as JSON."""
    reader = reader_of(as_labels)
    async with reading(config, tenant) as (_, store):
        everything = await store.export(reader)
    if output is None or str(output) == "-":
        say_json(everything)
        return
    with output.open("w", encoding="utf-8") as file:
        json.dump(everything, file, ensure_ascii=False, indent=2)
        file.write("\n")
    counts = plural(len(everything["documents"]), "document"), plural(len(everything["chunks"]), "chunk")
    note(f"exported {counts[0]} and {counts[1]} to {output}")

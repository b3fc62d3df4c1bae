"""`context.search`, `context.get`, `context.sources`: the documents of the script's tenant.

The builtin tools of the same names use the same functions, so their answers are equal (`agents/tools/builtin.py`).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any, Literal

import msgspec

from engine.bridge import CallRefused, HostContext, HostFunction
from engine.bridge.families import Family
from knowledge.store import Document, EmbeddingsDisabled, Hit, SearchQuery, SourceInfo, Store, StoreError
from knowledge.times import canonical_time

SEARCH, GET, SOURCES = "context.search", "context.get", "context.sources"
GRANTS = frozenset({SEARCH, GET, SOURCES})
MAX_HITS = 100


class Filters(msgspec.Struct):
    source: str | None = None
    since: str | None = None


class SearchArguments(msgspec.Struct):
    """`filters` is ctx's spelling of the two plain keys; if both are given they must agree."""

    query: str
    mode: Literal["keyword", "semantic", "hybrid"] = "keyword"
    limit: int | float | None = None
    source: str | None = None
    since: str | None = None
    filters: Filters | None = None


class GetArguments(msgspec.Struct):
    id: str


class NoArguments(msgspec.Struct):
    pass


def functions(store_of: Callable[[str], Store], *, default_limit: int) -> tuple[HostFunction, ...]:
    """The family. `store_of` returns the store of a tenant, by its id; `default_limit` is `retrieval.final_limit`."""

    async def search(context: HostContext, arguments: SearchArguments) -> list[dict[str, Any]]:
        if not arguments.query.strip():
            return []
        try:
            answer = await store_of(context.request.tenant.id).search(search_query(arguments, default_limit))
        except (ValueError, EmbeddingsDisabled, StoreError) as error:
            raise CallRefused(str(error)) from None
        for warning in (*limit_warnings(arguments), *answer.warnings):
            context.log("warn", f"{SEARCH}: {warning}")
        return [_without_nulls(hit_as_json(hit)) for hit in answer.hits]

    async def get(context: HostContext, arguments: GetArguments) -> dict[str, Any]:
        try:
            document = await store_of(context.request.tenant.id).get(arguments.id)
        except StoreError as error:
            raise CallRefused(str(error)) from None
        if document is None:
            raise CallRefused(f"document not found: {arguments.id[:128]}")
        return _without_nulls(document_as_json(document))

    async def sources(context: HostContext, arguments: NoArguments) -> list[dict[str, Any]]:
        try:
            # `name` is what context-harness calls the label.
            return [
                {"name": source.source, **_without_nulls(source_as_json(source))}
                for source in await store_of(context.request.tenant.id).sources()
            ]
        except StoreError as error:
            raise CallRefused(str(error)) from None

    return (
        HostFunction(SEARCH, SearchArguments, search),
        HostFunction(GET, GetArguments, get),
        HostFunction(SOURCES, NoArguments, sources),
    )


def search_query(arguments: SearchArguments, default_limit: int) -> SearchQuery:
    """The store's query for these arguments. Raises ValueError, naming the argument, when one is invalid."""
    filters = arguments.filters or Filters()
    limit = arguments.limit if arguments.limit is not None else default_limit
    if not math.isfinite(limit) or limit != int(limit):
        raise ValueError(f"limit must be a whole number from 1 to {MAX_HITS}, got {limit:g}")
    since = _agreeing("since", arguments.since, filters.since)
    try:
        since = canonical_time(since) if since is not None else None
    except ValueError as error:
        raise ValueError(f"since: {error}") from None
    return SearchQuery(
        query=arguments.query,
        mode=arguments.mode,
        limit=_within_bounds(limit),
        source=_agreeing("source", arguments.source, filters.source),
        since=since,
    )


def limit_warnings(arguments: SearchArguments) -> tuple[str, ...]:
    """The warnings about a limit outside its bounds. In ctx, 0 finds nothing and there is no upper bound."""
    limit = arguments.limit
    if limit is None or 1 <= limit <= MAX_HITS:
        return ()
    return (f"limit {limit:g} is not from 1 to {MAX_HITS}: {_within_bounds(limit)} was used",)


def _within_bounds(limit: float) -> int:
    return int(max(1, min(limit, MAX_HITS)))


def _agreeing(name: str, plain: str | None, filtered: str | None) -> str | None:
    if plain is not None and filtered is not None and plain != filtered:
        raise ValueError(f"{name} and filters.{name} disagree: {plain[:64]!r} and {filtered[:64]!r}")
    return plain if plain is not None else filtered


# Shallow copies of the store's flat answers; `dataclasses.asdict` would copy every value deeply (measured: 20 times
# the cost on a document of some chunks).
_HIT = tuple(field.name for field in fields(Hit))
_DOCUMENT = tuple(field.name for field in fields(Document))
_SOURCE = tuple(field.name for field in fields(SourceInfo))
_hit_values, _document_values, _source_values = attrgetter(*_HIT), attrgetter(*_DOCUMENT), attrgetter(*_SOURCE)


def hit_as_json(hit: Hit) -> dict[str, Any]:
    """One search result as the contract shows it, nulls included."""
    return dict(zip(_HIT, _hit_values(hit), strict=True))


def document_as_json(document: Document) -> dict[str, Any]:
    """One document as the contract shows it, nulls included."""
    shown: dict[str, Any] = dict(zip(_DOCUMENT, _document_values(document), strict=True))
    shown["chunks"] = [{"index": chunk.index, "text": chunk.text} for chunk in document.chunks]
    return shown


def source_as_json(source: SourceInfo) -> dict[str, Any]:
    """One source as the contract shows it, nulls included."""
    return dict(zip(_SOURCE, _source_values(source), strict=True))


def _without_nulls(shown: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in shown.items() if value is not None}


FAMILY = Family.plain(lambda host: functions(host.store_of, default_limit=host.default_limit))

"""`context.search`, `context.get`, `context.sources`: the documents of the script's tenant.

The builtin tools of the same names use the same functions, so their answers are equal (`agents/tools/builtin.py`).
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from operator import attrgetter
from typing import Any, Literal

import msgspec

from engine.bridge import CallRefused, HostContext, HostFunction
from engine.bridge.families import Family
from knowledge import places
from knowledge.globs import sqlite_globs
from knowledge.store import (
    DEFAULT_PASSAGE_TOKENS,
    MAX_PASSAGE_TOKENS,
    MAX_PASSAGES,
    Document,
    EmbeddingsDisabled,
    ExplainedSearch,
    Hit,
    Mode,
    SearchAnswer,
    SearchQuery,
    SourceInfo,
    Store,
    StoreError,
)
from knowledge.times import canonical_time
from storage.metering import metered

SEARCH, GET, SOURCES = "context.search", "context.get", "context.sources"
GRANTS = frozenset({SEARCH, GET, SOURCES})
MAX_HITS = 100


class Filters(msgspec.Struct):
    source: str | None = None
    since: str | None = None
    until: str | None = None
    path: str | None = None


class SearchArguments(msgspec.Struct):
    """`filters` is ctx's spelling of the plain keys of the same names; if both are given they must agree."""

    query: str
    mode: Literal["keyword", "semantic", "hybrid"] | None = None
    limit: int | float | None = None
    source: str | None = None
    since: str | None = None
    until: str | None = None
    path: str | None = None
    passages: int | float | None = None
    max_tokens: int | float | None = None
    prefix: bool = False
    explain: bool = False
    filters: Filters | None = None


class GetArguments(msgspec.Struct):
    id: str
    lines: str | None = None


class NoArguments(msgspec.Struct):
    pass


def functions(
    store_of: Callable[[str], Store], *, default_limit: int, default_mode: Mode = "keyword"
) -> tuple[HostFunction, ...]:
    """The family. `store_of` returns the store of a tenant, by its id; the defaults are those of `[retrieval]`."""

    async def search(context: HostContext, arguments: SearchArguments) -> list[dict[str, Any]]:
        if not arguments.query.strip():
            return []
        try:
            request, query = context.request, search_query(arguments, default_limit, default_mode)
            with charging(context.worked):
                answer = await store_of(request.tenant.id).search(query, request.reader)
        except (ValueError, EmbeddingsDisabled, StoreError) as error:
            raise CallRefused(str(error)) from None
        for warning in (*limit_warnings(arguments), *answer.warnings):
            context.log("warn", f"{SEARCH}: {warning}")
        if answer.explain is not None:  # the answer is a list of hits, with no place for it
            context.log("info", f"{SEARCH}: {json.dumps(explained_search_as_json(answer.explain))}")
        return [_hit_without_nulls(hit) for hit in answer.hits]

    async def get(context: HostContext, arguments: GetArguments) -> dict[str, Any]:
        try:
            request = context.request
            with charging(context.worked):
                document = await store_of(request.tenant.id).get(arguments.id, request.reader)
        except StoreError as error:
            raise CallRefused(str(error)) from None
        if document is None:
            raise CallRefused(f"document not found: {arguments.id[:128]}")
        try:
            shown = document_as_json(document, arguments.lines)
        except ValueError as error:
            raise CallRefused(str(error)) from None
        shown["chunks"] = [_without_nulls(chunk) for chunk in shown["chunks"]]
        return _without_nulls(shown)

    async def sources(context: HostContext, arguments: NoArguments) -> list[dict[str, Any]]:
        try:
            request = context.request
            with charging(context.worked):
                found = await store_of(request.tenant.id).sources(request.reader)
            # `name` is what context-harness calls the label.
            return [{"name": source.source, **_without_nulls(source_as_json(source))} for source in found]
        except StoreError as error:
            raise CallRefused(str(error)) from None

    return (
        HostFunction(SEARCH, SearchArguments, search),
        HostFunction(GET, GetArguments, get),
        HostFunction(SOURCES, NoArguments, sources),
    )


@contextmanager
def charging(charge: Callable[[float], None]) -> Iterator[None]:
    """Call `charge` with the CPU seconds of what the store, and its embedder, compute inside the block."""
    with metered() as meter:
        try:
            yield
        finally:
            charge(meter.take())


def search_query(arguments: SearchArguments, default_limit: int, default_mode: Mode = "keyword") -> SearchQuery:
    """The store's query for these arguments. Raises ValueError, naming the argument, when one is invalid."""
    filters = arguments.filters or Filters()
    limit = arguments.limit if arguments.limit is not None else default_limit
    if not math.isfinite(limit) or limit != int(limit):
        raise ValueError(f"limit must be a whole number from 1 to {MAX_HITS}, got {limit:g}")
    return SearchQuery(
        query=arguments.query,
        mode=arguments.mode or default_mode,
        limit=_within_bounds(limit),
        source=_agreeing("source", arguments.source, filters.source),
        since=_time("since", _agreeing("since", arguments.since, filters.since)),
        until=_time("until", _agreeing("until", arguments.until, filters.until), end_of_day=True),
        path=_pattern(_agreeing("path", arguments.path, filters.path)),
        prefix=arguments.prefix,
        passages=_whole("passages", arguments.passages, 0, MAX_PASSAGES, 0),
        max_tokens=_whole("max_tokens", arguments.max_tokens, 1, MAX_PASSAGE_TOKENS, DEFAULT_PASSAGE_TOKENS),
        explain=arguments.explain,
    )


def _time(name: str, text: str | None, *, end_of_day: bool = False) -> str | None:
    try:
        return None if text is None else canonical_time(text, end_of_day=end_of_day)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _pattern(path: str | None) -> str | None:
    try:
        if path is not None:
            sqlite_globs(path)
    except ValueError as error:
        raise ValueError(f"path: {error}") from None
    return path


def _whole(name: str, value: float | None, least: int, most: int, default: int) -> int:
    if value is None:
        return default
    if not math.isfinite(value) or value != int(value) or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}, got {value:g}")
    return int(value)


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
_HIT = tuple(field.name for field in fields(Hit) if field.name not in ("passages", "explain", "untrusted"))
_DOCUMENT = tuple(field.name for field in fields(Document) if field.name != "untrusted")
_SOURCE = tuple(field.name for field in fields(SourceInfo))
_hit_values, _document_values, _source_values = attrgetter(*_HIT), attrgetter(*_DOCUMENT), attrgetter(*_SOURCE)


def hit_as_json(hit: Hit) -> dict[str, Any]:
    """One search result as the contract shows it, nulls included."""
    shown: dict[str, Any] = dict(zip(_HIT, _hit_values(hit), strict=True))
    shown["lines"] = hit.lines and list(hit.lines)
    if hit.passages is not None:
        shown["passages"] = [
            {"text": each.text, "heading": each.heading, "lines": each.lines and list(each.lines), "page": each.page}
            for each in hit.passages
        ]
    if hit.explain is not None:
        shown["explain"] = asdict(hit.explain)
        shown["explain"]["words"] = list(shown["explain"]["words"])
    if hit.untrusted:
        shown["untrusted"] = True
    return shown


def explained_search_as_json(explained: ExplainedSearch) -> dict[str, Any]:
    """How a search went, nulls included."""
    return {
        "mode": explained.mode,
        "documents": explained.documents,
        "searched": explained.searched,
        "filters": dict(explained.filters),
        "candidates": {"keyword": explained.keyword, "vector": explained.vector},
    }


def search_as_json(answer: SearchAnswer, warnings: tuple[str, ...] = ()) -> dict[str, Any]:
    """The answer of the tool `search`, with `warnings` before its own."""
    shown: dict[str, Any] = {"results": [hit_as_json(hit) for hit in answer.hits]}
    if said := (*warnings, *answer.warnings):
        shown["warnings"] = list(said)
    if answer.explain is not None:
        shown["explain"] = explained_search_as_json(answer.explain)
    return shown


def document_as_json(document: Document, lines: str | None = None) -> dict[str, Any]:
    """One document as the contract shows it, nulls included; with `lines` only these and their chunks.

    Raises ValueError for lines that make no sense or are not there.
    """
    shown: dict[str, Any] = dict(zip(_DOCUMENT, _document_values(document), strict=True))
    chunks = document.chunks
    if lines is not None:
        first, last = places.parse_lines(lines)
        shown["body"], last = places.cut(document.body, first, last)
        shown["lines"] = [first, last]
        chunks = tuple(each for each in chunks if each.lines and each.lines[0] <= last and first <= each.lines[1])
    shown["chunks"] = [
        {
            "index": chunk.index,
            "text": chunk.text,
            "lines": None if chunk.lines is None else list(chunk.lines),
            "heading": chunk.heading,
        }
        for chunk in chunks
    ]
    if document.untrusted:
        shown["untrusted"] = True
    return shown


def source_as_json(source: SourceInfo) -> dict[str, Any]:
    """One source as the contract shows it, nulls included."""
    shown = dict(zip(_SOURCE, _source_values(source), strict=True))
    shown["skipped"] = [{"source_id": each.source_id, "reason": each.reason} for each in source.skipped]
    return shown


def _without_nulls(shown: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in shown.items() if value is not None}


def _hit_without_nulls(hit: Hit) -> dict[str, Any]:
    shown = _without_nulls(hit_as_json(hit))
    if hit.passages is not None:
        shown["passages"] = [_without_nulls(each) for each in shown["passages"]]
    if hit.explain is not None:
        shown["explain"] = _without_nulls(shown["explain"])
    return shown


FAMILY = Family.plain(
    lambda host: functions(host.store_of, default_limit=host.default_limit, default_mode=host.default_mode)
)

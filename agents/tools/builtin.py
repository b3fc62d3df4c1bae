"""The builtin tools: `search`, `get` and `sources` over the caller's documents. A script cannot take their names."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from agents.agent import Call
from agents.documents import answered
from agents.tool import Called, ToolInfo
from engine.bridge import knowledge
from engine.errors import Code, Problem
from engine.tenant import Tenant
from knowledge.access import Reader
from knowledge.store import (
    DEFAULT_PASSAGE_TOKENS,
    MAX_PASSAGE_TOKENS,
    MAX_PASSAGES,
    MODES,
    EmbeddingsDisabled,
    Mode,
    Store,
)

T = TypeVar("T")

_SOURCE = {"type": "string", "description": "Only this source: its label (git:runbooks), its name or its type"}
_SINCE = {"type": "string", "description": "Only documents changed since this date or RFC 3339 time"}
_UNTIL = {"type": "string", "description": "Only documents changed until this date or RFC 3339 time"}
_PATH = {"type": "string", "description": "Only documents whose source_id matches this pattern, as docs/**/*.md"}
_PLACED = {
    "heading": {"type": ["string", "null"], "description": "The headings above it, as Alpha > Beta"},
    "lines": {
        "type": ["array", "null"],
        "items": {"type": "integer"},
        "description": "The first and the last line in the body, from 1",
    },
    "page": {"type": ["integer", "null"]},
}
_UNTRUSTED = {"type": "boolean", "description": "Strangers can write it: it may hold instructions; there only if true"}
_NUMBER, _BOOLEAN = {"type": ["number", "null"]}, {"type": ["boolean", "null"]}
_COUNT = {"type": ["integer", "null"]}
_EXPLAIN = {
    "type": "object",
    "description": "How it came by its score; null for what the mode has none of",
    "properties": {
        "words": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "word": {"type": "string"},
                    "df": {"type": "integer", "description": "In how many of the chunks that were searched it stands"},
                    "weight": {"type": "number"},
                    "found": {"type": "boolean", "description": "Whether the result has it"},
                },
            },
        },
        "bm25": _NUMBER,
        "keyword_norm": _NUMBER,
        "cosine": _NUMBER,
        "vector_norm": _NUMBER,
        "alpha": _NUMBER,
        "complete": _BOOLEAN,
        "certain": _BOOLEAN,
    },
}
_EXPLAIN_SEARCH = {
    "type": "object",
    "properties": {
        "mode": {"type": "string", "enum": list(MODES)},
        "documents": {"type": "integer", "description": "How many the caller may read"},
        "searched": {"type": "integer", "description": "How many of these all filters left"},
        "filters": {
            "type": "object",
            "additionalProperties": {"type": "integer"},
            "description": "How many each filter alone leaves",
        },
        "candidates": {"type": "object", "properties": {"keyword": _COUNT, "vector": _COUNT}},
    },
}

SEARCH = ToolInfo(
    name="search",
    description="Search the knowledge base. Returns the best matching documents with snippets; get has the text.",
    builtin=True,
    read_only=True,
    idempotent=True,
    open_world=False,
    parameters={
        "type": "object",
        "properties": {
            "query": {
                "type": "string",
                "description": 'Words to look for; a "quoted phrase" is matched as a phrase',
            },
            "mode": {"type": "string", "enum": list(MODES), "default": "keyword", "description": "How to search"},
            "limit": {
                "type": "integer",
                "description": f"How many results at most, 1 to {knowledge.MAX_HITS}; others become the nearest",
            },
            "source": _SOURCE,
            "since": _SINCE,
            "until": _UNTIL,
            "path": _PATH,
            "prefix": {"type": "boolean", "default": False, "description": "Whether the last word may be half typed"},
            "passages": {
                "type": "integer",
                "description": f"How many of its best passages each result has, 0 to {MAX_PASSAGES}; default 0",
            },
            "max_tokens": {
                "type": "integer",
                "description": f"Tokens of all passages at most, to {MAX_PASSAGE_TOKENS}; "
                f"default {DEFAULT_PASSAGE_TOKENS}",
            },
            "explain": {
                "type": "boolean",
                "default": False,
                "description": "Whether to say how each result was found and scored, and what the filters left",
            },
            "filters": {
                "type": "object",
                "properties": {"source": _SOURCE, "since": _SINCE, "until": _UNTIL, "path": _PATH},
                "description": "Another way to give these four",
            },
        },
        "required": ["query"],
    },
    returns={
        "type": "object",
        "properties": {
            "results": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "id": {"type": "string"},
                        "source": {"type": "string"},
                        "source_id": {"type": "string"},
                        "title": {"type": ["string", "null"]},
                        "score": {"type": "number"},
                        "snippet": {"type": "string"},
                        "source_url": {"type": ["string", "null"]},
                        "updated_at": {"type": ["string", "null"]},
                        **_PLACED,
                        "digest": {"type": ["string", "null"], "description": "SHA-256 of the document's body"},
                        "uri": {"type": ["string", "null"], "description": "Its resource"},
                        "passages": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "properties": {"text": {"type": "string"}, **_PLACED},
                                "required": ["text"],
                            },
                        },
                        "explain": _EXPLAIN,
                        "untrusted": _UNTRUSTED,
                    },
                    "required": ["id", "source", "source_id", "score", "snippet"],
                },
            },
            "warnings": {"type": "array", "items": {"type": "string"}},
            "explain": _EXPLAIN_SEARCH,
        },
        "required": ["results"],
    },
)  # fmt: skip

GET = ToolInfo(
    name="get",
    description="Get one document with its full text and metadata, by the id that search returned.",
    builtin=True,
    read_only=True,
    idempotent=True,
    open_world=False,
    parameters={
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "The id of a search result"},
            "lines": {"type": "string", "description": "Only these lines of the body, as 12-40, 12- or 12"},
        },
        "required": ["id"],
    },
    returns={
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "title": {"type": ["string", "null"]},
            "body": {"type": "string"},
            "lines": {"type": "array", "items": {"type": "integer"}},
            "untrusted": _UNTRUSTED,
        },
        "required": ["id", "body"],
    },
)

SOURCES = ToolInfo(
    name="sources",
    description="List the sources of the knowledge base with their counts and health.",
    builtin=True,
    read_only=True,
    idempotent=True,
    open_world=False,
    parameters={"type": "object", "properties": {}},
    returns={
        "type": "object",
        "properties": {"sources": {"type": "array", "items": {"type": "object"}}},
        "required": ["sources"],
    },
)

# Unknown parameters that a search warns of by name.
_SHOWN = 5

NAMES = frozenset({SEARCH.name, GET.name, SOURCES.name})


@dataclass(frozen=True, slots=True)
class BuiltinTool:
    """A tool that the engine itself answers."""

    info: ToolInfo
    _store_of: Callable[[str], Store]
    _answer: Callable[[Store, Mapping[str, Any], Reader], Awaitable[dict[str, Any]]]
    _charge: Callable[[Tenant, float], None]
    _answering: Callable[[], AbstractContextManager[None]]

    async def execute(self, params: Mapping[str, Any], call: Call) -> Called:
        """Answer. Raises Problem: bad_request, embeddings_disabled, not_found, unavailable (the store).

        What the store computes is charged to the run that calls, else to the tenant.
        """
        charge = partial(self._charge, call.tenant) if call.inside is None else call.inside.worked
        with self._answering(), knowledge.charging(charge):
            return Called(await self._answer(self._store_of(call.tenant.id), params, call.tenant.reader))


def _search_by(mode: Mode) -> ToolInfo:
    """The tool `search` with another mode by default."""
    properties = SEARCH.parameters["properties"]
    shown = properties | {"mode": properties["mode"] | {"default": mode}}
    return SEARCH.model_copy(update={"parameters": {**SEARCH.parameters, "properties": shown}})


def builtin_tools(
    store_of: Callable[[str], Store],
    *,
    charge: Callable[[Tenant, float], None],
    answering: Callable[[], AbstractContextManager[None]],
    default_limit: int,
    default_mode: Mode = "keyword",
) -> tuple[BuiltinTool, ...]:
    """The three tools. `store_of` returns the store of a tenant, `charge` takes CPU seconds that it used, inside of
    `answering` a question is answered; the defaults are those of `[retrieval]`.
    """

    async def search(store: Store, params: Mapping[str, Any], reader: Reader) -> dict[str, Any]:
        if not params["query"].strip():
            raise Problem(Code.BAD_REQUEST, "search: query must not be empty")
        arguments = msgspec.convert({k: v for k, v in params.items() if v is not None}, knowledge.SearchArguments)
        try:
            query = knowledge.search_query(arguments, default_limit, default_mode)
        except ValueError as error:
            raise Problem(Code.BAD_REQUEST, f"search: {error}") from None
        answer = await _answered(store.search(query, reader))
        return knowledge.search_as_json(answer, (*_unknown(params), *knowledge.limit_warnings(arguments)))

    async def get(store: Store, params: Mapping[str, Any], reader: Reader) -> dict[str, Any]:
        if not params["id"].strip():
            raise Problem(Code.BAD_REQUEST, "get: id must not be empty")
        document = await _answered(store.get(params["id"], reader))
        if document is None:
            raise Problem(Code.NOT_FOUND, f"get: document not found: {params['id'][:128]}")
        try:
            return knowledge.document_as_json(document, params.get("lines"))
        except ValueError as error:
            raise Problem(Code.BAD_REQUEST, f"get: {error}") from None

    async def sources(store: Store, params: Mapping[str, Any], reader: Reader) -> dict[str, Any]:
        found = await _answered(store.sources(reader))
        return {"sources": [knowledge.source_as_json(source) for source in found]}

    answers = ((_search_by(default_mode), search), (GET, get), (SOURCES, sources))
    return tuple(BuiltinTool(info, store_of, answer, charge, answering) for info, answer in answers)


def _unknown(params: Mapping[str, Any]) -> tuple[str, ...]:
    """A warning for each parameter that `search` does not have. In ctx they have no effect, and are no error."""
    properties = SEARCH.parameters["properties"]
    names = [name for name in params if name not in properties]
    filters = properties["filters"]["properties"]
    names += [f"filters.{name}" for name in params.get("filters") or () if name not in filters]
    shown = [f"unknown parameter {name[:64]!r} was ignored" for name in names[:_SHOWN]]
    return tuple(shown if len(names) <= _SHOWN else [*shown, f"{len(names) - _SHOWN} more were ignored"])


async def _answered(answer: Awaitable[T]) -> T:
    try:
        return await answered(answer)
    except EmbeddingsDisabled as error:
        raise Problem(Code.EMBEDDINGS_DISABLED, f"search: {error}") from None

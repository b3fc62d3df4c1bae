"""`context.search`, `context.get`, `context.sources` as scripts call them: spellings, bounds, what is refused."""

from typing import Any

import pytest
from engine_support import DOCUMENT, HIT, FakeStore, run

from engine.bridge import knowledge
from engine.bridge.knowledge import Filters, SearchArguments, search_query
from engine.engine import Engine
from knowledge.store import SearchQuery
from sandbox.wire.outcome import Outcome

# How a script may put a search, and the query that the store gets.
SPELLINGS: dict[str, SearchQuery] = {
    "context.search('q')": SearchQuery(query="q", limit=12),
    "context.search{query = 'q'}": SearchQuery(query="q", limit=12),
    "context.search('q', {})": SearchQuery(query="q", limit=12),
    "context.search('q', nil)": SearchQuery(query="q", limit=12),
    "context.search('q', {limit = 3, source = 's'})": SearchQuery(query="q", limit=3, source="s"),
    "context.search{query = 'q', limit = 3, source = 's'}": SearchQuery(query="q", limit=3, source="s"),
    "context.search('q', {filters = {source = 's'}})": SearchQuery(query="q", limit=12, source="s"),
    "context.search{query = 'q', filters = {source = 's', since = '2026-01-31'}}": SearchQuery(
        query="q", limit=12, source="s", since="2026-01-31T00:00:00Z"
    ),
    "context.search{query = 'q', source = 's', filters = {source = 's'}}": SearchQuery(query="q", limit=12, source="s"),
    "context.search{query = 'q', filters = {}}": SearchQuery(query="q", limit=12),
    "context.search('q', {mode = 'hybrid'})": SearchQuery(query="q", limit=12, mode="hybrid"),
    "context.search('q', {limit = 1})": SearchQuery(query="q", limit=1),
    "context.search('q', {limit = 100})": SearchQuery(query="q", limit=100),
    "context.search('q', {limit = 5.0})": SearchQuery(query="q", limit=5),
    "context.search('q', {limit = 10 / 2})": SearchQuery(query="q", limit=5),
    "context.search('q', {since = '2026-01-31'})": SearchQuery(query="q", limit=12, since="2026-01-31T00:00:00Z"),
    "context.search('q', {since = '2026-01-31T12:00:00Z'})": SearchQuery(
        query="q", limit=12, since="2026-01-31T12:00:00Z"
    ),
    "context.search('q', {since = '2026-01-31T12:00:00.5+02:00'})": SearchQuery(
        query="q", limit=12, since="2026-01-31T10:00:00Z"
    ),
    "context.search('q', {unknown = 1, query = 'other'})": SearchQuery(query="q", limit=12),
    "context.search('  spaced out  ')": SearchQuery(query="  spaced out  ", limit=12),
}


# Limits beyond the bounds, and what is used.
BROUGHT = {"0": 1, "-1": 1, "101": 100, "500": 100, "1e300": 100}


@pytest.mark.parametrize("limit", BROUGHT)
async def test_a_limit_beyond_its_bounds_is_brought_to_them_and_the_log_says_so_once(
    engine: Engine, store: FakeStore, limit: str
) -> None:
    call = f"context.search('q', {{limit = {limit}}})"
    result = await run(engine, f"for _ = 1, 3 do {call} end")
    assert {query.limit for query in store.queries} == {BROUGHT[limit]}
    shown = limit.replace("1e300", "1e+300")
    assert [line.text for line in result.logs] == [
        f"context.search: limit {shown} is not from 1 to 100: {BROUGHT[limit]} was used"
    ]


async def outcome_of(engine: Engine, call: str) -> list[Any]:
    """[whether it worked, its value or error] of a call in a script."""
    result = await run(engine, f"return {{pcall(function() return {call} end)}}")
    assert result.outcome is Outcome.OK, result.failure
    assert isinstance(result.value, list)
    return result.value


async def test_every_spelling_of_a_search_is_the_query_that_is_meant(engine: Engine, store: FakeStore) -> None:
    for call, query in SPELLINGS.items():
        store.queries.clear()
        assert (await outcome_of(engine, call))[0] is True, call
        assert store.queries == [query], call


@pytest.mark.parametrize("query", ["''", "'   '", "'\\n\\t'"])
async def test_a_blank_query_is_an_empty_list_without_a_search(engine: Engine, store: FakeStore, query: str) -> None:
    assert await outcome_of(engine, f"context.search({query})") == [True, []]
    assert store.queries == []


REFUSED = {
    "context.search('q', {limit = 1.5})": "limit must be a whole number from 1 to 100, got 1.5",
    "context.search('q', {limit = '5'})": "limit: expected ",
    "context.search('q', {since = 'yesterday'})": "since: 'yesterday' is not a date",
    "context.search('q', {since = '2026-02-30'})": "since: '2026-02-30' is not a date",
    "context.search('q', {since = 20260131})": "since: expected string or nil, got number",
    "context.search('q', {source = 'a', filters = {source = 'b'}})": "source and filters.source disagree: 'a' and 'b'",
    "context.search('q', {since = '2026-01-01', filters = {since = '2026-01-02'}})": "since and filters.since disagree",
    "context.search('q', {mode = 'magic'})": "mode: ",
    "context.search('q', {mode = 'semantic'})": "no embedder is configured",
    "context.search('broken')": "context.search: the store is locked",
    "context.get('none')": "context.get: document not found: none",
    "context.get{id = 'none'}": "context.get: document not found: none",
    "context.get('')": "context.get: document not found: ",
}


async def test_what_makes_no_sense_is_a_catchable_error_that_says_what(engine: Engine) -> None:
    for call, text in REFUSED.items():
        ok, error = await outcome_of(engine, call)
        assert ok is False, call
        assert text in error, call


async def test_a_hit_holds_no_nulls(engine: Engine) -> None:
    ok, hits = await outcome_of(engine, "context.search('q')")
    assert ok is True
    shown = {name: value for name, value in knowledge.hit_as_json(HIT).items() if value is not None}
    assert hits == [shown]
    assert "source_url" not in hits[0]


@pytest.mark.parametrize("call", ["context.get('doc-1')", "context.get{id = 'doc-1'}", "context.get('doc-1', 'more')"])
async def test_a_document_comes_whole_in_either_spelling(engine: Engine, call: str) -> None:
    ok, document = await outcome_of(engine, call)
    assert ok is True
    assert (document["id"], document["body"], document["chunks"]) == (DOCUMENT.id, DOCUMENT.body, [])
    assert not {"title", "author", "created_at", "source_url"} & set(document)
    assert document["metadata"] == {"big": float(1 << 70)}


async def test_a_missing_document_ends_a_script_that_does_not_look(engine: Engine) -> None:
    result = await run(engine, "\nreturn context.get('none').body")
    assert result.outcome is Outcome.SCRIPT_ERROR
    assert result.failure is not None
    assert result.failure.message == "t.lua:2: context.get: document not found: none"


async def test_an_id_without_end_is_told_in_part(engine: Engine) -> None:
    _, error = await outcome_of(engine, "context.get(('x'):rep(10000))")
    assert len(error) < 300


async def test_sources_are_listed(engine: Engine) -> None:
    ok, sources = await outcome_of(engine, "context.sources()")
    assert ok is True
    assert sources == [
        {
            "name": "filesystem:runbooks",
            "source": "filesystem:runbooks",
            "document_count": 1,
            "chunk_count": 2,
            "configured": True,
            "healthy": True,
            "embedded": 0,
            "skipped": [],
            "skipped_more": 0,
            "untrusted": False,
        }
    ]


async def test_a_warning_of_the_store_is_one_line_of_the_scripts_log(engine: Engine) -> None:
    result = await run(engine, "return #context.search('warned')")
    assert result.value == 1
    assert [(line.level, line.text) for line in result.logs] == [("warn", "context.search: answered by keyword")]


async def test_lists_that_the_host_answers_are_lists_in_json_too(engine: Engine) -> None:
    ok, text = await outcome_of(engine, "json.encode({context.search(''), context.get('doc-1').chunks})")
    assert (ok, text) == (True, "[[],[]]")


def test_where_the_plain_key_is_missing_the_filter_counts() -> None:
    arguments = SearchArguments("q", filters=Filters(source="git:runbooks", since="2026-01-31"))
    assert search_query(arguments, 7) == SearchQuery(
        query="q", limit=7, source="git:runbooks", since="2026-01-31T00:00:00Z"
    )


@pytest.mark.parametrize("limit", [float("nan"), float("inf"), -float("inf")])
def test_a_limit_that_is_no_number_is_refused(limit: float) -> None:
    with pytest.raises(ValueError, match="limit"):
        search_query(SearchArguments("q", limit=limit), 12)

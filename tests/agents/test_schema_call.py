"""`json.schema`: a script validates values, as tools' parameters are validated."""

import time
from typing import Any

import msgspec
import pytest

from agents.code import schema_call
from engine.bridge import Bridge, HostContext
from engine.run import RunRequest, Script, Usage
from engine.tenant import DEFAULT_TENANT, bind_limits

BRIDGE = Bridge(schema_call.functions())


async def validated(value: Any, schema: Any, paid: list[Usage] | None = None) -> Any:
    """The list of errors, or the text of a refusal."""
    request = RunRequest(
        tenant=DEFAULT_TENANT, name="mine", script=Script.from_source("t.lua", b""), root="agent", method="resolve",
        limits=bind_limits({}, DEFAULT_TENANT, {}, {}), grants=BRIDGE.names,
    )  # fmt: skip
    usages = paid if paid is not None else []
    context = HostContext(request, "run-1", lambda level, text: None, dict, usages.append)
    reply = await BRIDGE.call(context, "json.schema", msgspec.msgpack.encode({"value": value, "schema": schema}))
    return msgspec.msgpack.decode(reply.value) if reply.ok else reply.value.decode()


@pytest.mark.parametrize(
    ("value", "schema", "path", "keyword"),
    [
        (5, {"type": "string"}, "", "type"),
        ({"a": [1, "x"]}, {"properties": {"a": {"items": {"type": "integer"}}}}, "/a/1", "type"),
        ({"a/b~": 1}, {"properties": {"a/b~": {"type": "null"}}}, "/a~1b~0", "type"),
        ({}, {"required": ["a"]}, "", "required"),
        (1, False, "", "not"),
        (None, {"type": "string"}, "", "type"),
    ],
)
async def test_a_value_that_does_not_match_is_told_where_and_why(
    value: Any, schema: Any, path: str, keyword: str
) -> None:
    (error,) = await validated(value, schema)
    assert (error["path"], error["keyword"]) == (path, keyword)
    assert error["message"]


async def test_a_value_that_matches_has_no_errors_and_luas_empty_tables_are_lists_where_lists_are_meant() -> None:
    assert await validated({"a": 1}, {"type": "object", "required": ["a"]}) == []
    assert await validated({}, {"required": {}, "properties": {"a": {"allOf": {}}}}) != []
    assert await validated({"a": 1}, {"required": {}}) == []
    assert await validated(1, True) == []


@pytest.mark.parametrize(
    ("value", "schema", "refusal"),
    [
        (1, {"type": "strin"}, "is not a JSON Schema"),
        (1, {"$ref": "https://example.com/schema"}, "a schema must stand by itself"),
        (1, {"$ref": "file:///etc/passwd"}, "a schema must stand by itself"),
        (1, {"pattern": "(a{1000}){1000}"}, "is not a JSON Schema"),
        (1, {"pattern": "(?=a)"}, "is not a JSON Schema"),
        (1, {"enum": list(range(3000))}, "is larger than 2000 values"),
        (1, "string", "expected boolean or table, got string"),
        (b"\xff", {}, "a string that is not UTF-8"),
        ([{"a": i} for i in range(12_000)], {"items": {"anyOf": [{"pattern": "a+b"}] * 40}}, "too much to check"),
    ],
)
async def test_a_schema_or_value_beyond_the_bounds_is_refused_with_the_bound(
    value: Any, schema: Any, refusal: str
) -> None:
    assert refusal in await validated(value, schema)


async def test_the_run_pays_for_the_work() -> None:
    paid: list[Usage] = []
    began = time.thread_time()
    assert await validated(["x"] * 10_000, {"items": {"type": "string"}}, paid) == []
    took = time.thread_time() - began
    assert 0.2 * took < sum(usage.cpu_s for usage in paid) <= took


async def test_schemas_are_cached_within_a_bound() -> None:
    accepted = schema_call._Accepted()
    first = accepted.get("t", {"minimum": 0})
    assert accepted.get("t", {"minimum": 0}) is first
    assert accepted.get("other", {"minimum": 0}) is not first
    for number in range(schema_call.CACHED):
        accepted.get("t", {"minimum": number + 1})
    assert len(accepted._schemas) == schema_call.CACHED
    assert accepted.get("t", {"minimum": 0}) is not first

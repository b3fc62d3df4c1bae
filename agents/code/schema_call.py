"""`json.schema`: a script validates a value with a schema, within the bounds of tools' schemas."""

import time
from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
import trio
from jsonschema_rs import ValidationError

from agents.shapes.checked import CheckedSchema, TooMuchWork, Working
from agents.shapes.schema import LIST_KEYWORDS, check_schema
from agents.shapes.shape import WrongShape
from engine.bridge import CallRefused, HostContext, HostFunction
from engine.host.pieces import in_pieces
from engine.values import is_plain

SCHEMA = "json.schema"
# Accepted schemas in the cache: one in a loop is checked and compiled once. Each has at most 2,000 values.
CACHED = 256


class SchemaArguments(msgspec.Struct):
    value: Any = None
    schema: dict[str, Any] | bool = True


class _Accepted:
    """The schemas used last, by tenant and content."""

    def __init__(self) -> None:
        # Invariant: least recently used first; at most CACHED.
        self._schemas: OrderedDict[tuple[str, bytes], CheckedSchema] = OrderedDict()

    def get(self, tenant: str, schema: Mapping[str, Any]) -> CheckedSchema:
        """Raises WrongShape."""
        key = (tenant, msgspec.msgpack.encode(schema))
        found = self._schemas.get(key)
        if found is None:
            check_schema(schema, "the schema")
            found = self._schemas[key] = CheckedSchema(schema)
            if len(self._schemas) > CACHED:
                self._schemas.popitem(last=False)
        self._schemas.move_to_end(key)
        return found


def functions() -> tuple[HostFunction, ...]:
    """The host functions of this family."""
    accepted = _Accepted()

    async def validate(context: HostContext, arguments: SchemaArguments) -> list[dict[str, str]]:
        with _charged(context)():
            schema = _lists_restored(arguments.schema)
        await trio.lowlevel.checkpoint()
        if isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        depth = context.request.limits.values.value_depth
        work = _validating(partial(accepted.get, context.request.tenant.id, schema), arguments.value, depth, context)
        try:
            return await in_pieces(work)
        except TooMuchWork as much:
            raise CallRefused(str(much)) from None
        except WrongShape as wrong:
            raise CallRefused(str(wrong)) from None
        except (ValueError, ValidationError):
            raise CallRefused("the schema cannot be compiled") from None

    # At most one call of a tenant at a time: each may take 40 ms.
    return (HostFunction(SCHEMA, SchemaArguments, validate, at_once=1),)


def _validating(
    accept: "partial[CheckedSchema]", value: Any, depth: int, context: HostContext
) -> Generator[None, None, list[dict[str, str]]]:
    """The violations that were found: none, or the first. The run pays for the work."""
    working = _charged(context)
    with working():
        checked = accept()
        plain = is_plain(value, depth)
    if not plain:
        raise WrongShape("the value holds a string that is not UTF-8, or is nested too deep")
    yield
    wrong = yield from checked.validating(value, working)
    if wrong is None:
        return []
    path = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in wrong.path)
    return [{"path": path, "keyword": wrong.keyword, "message": wrong.text or "the value does not match the schema"}]


def _charged(context: HostContext) -> Working:
    @contextmanager
    def working() -> Iterator[None]:
        began_s = time.thread_time()
        try:
            yield
        finally:
            context.worked(time.thread_time() - began_s)

    return working


def _lists_restored(schema: Any) -> Any:
    """Lua has one empty table; under some keywords it is a list."""
    if isinstance(schema, dict):
        return {k: [] if k in LIST_KEYWORDS and v == {} else _lists_restored(v) for k, v in schema.items()}
    if isinstance(schema, list):
        return [_lists_restored(each) for each in schema]
    return schema

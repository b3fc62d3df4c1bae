"""Documents from a Lua script: `connector.scan(config, context)`, run in a worker under the grants of its entry."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import trio

from agents.agent import Call
from agents.code.files import read_script
from agents.code.script import LuaScript
from engine.config import ScriptEntry
from engine.config.entries import ScriptConnector
from engine.egress.redaction import Redactor
from engine.engine import Engine
from engine.errors import Problem
from engine.tenant import Tenant
from knowledge.connectors import Connector, ConnectorError, Found, Item, Partial, Skipped, Unreadable
from knowledge.textfiles import too_large
from knowledge.times import canonical_time, format_time, from_timestamp

# What a scan may use unless its entry says less: it fetches many pages, where a tool answers a person who waits.
_LIMITS: Mapping[str, float] = {"timeout_s": 300, "cpu_s": 60, "output_bytes": 16 * 1024 * 1024}
# Bounds on an item, in characters. A list shows a source_id and a title; metadata is parsed here.
MAX_ID = 1_024
MAX_TITLE = 1_024
MAX_URL = 8_192
MAX_METADATA = 64 * 1024
# Bound on the items of one scan: each costs a read of the store.
MAX_ITEMS = 100_000


@dataclass(frozen=True, slots=True)
class ScriptSource:
    """A configured script. Every synchronisation runs it once."""

    name: str
    entry: ScriptConnector
    engine: Engine
    tenant: Tenant

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Connector]:
        """The items that the script returns. Raises ConnectorError when it fails."""
        yield Scanned.from_answer(await self._answer(), self.entry.max_extract_bytes)

    async def _answer(self) -> object:
        entry: ScriptEntry = self.entry
        if entry.unset is not None:
            raise ConnectorError(entry.unset)
        limits = {**_LIMITS, **entry.limits}
        bound = int(self.engine.limits_for(limits, self.tenant)["source_bytes"])
        read = await trio.to_thread.run_sync(read_script, entry.path, bound)
        if read.script is None:
            assert read.failure is not None
            raise ConnectorError(read.failure.message)
        redactor = Redactor(entry.from_environment)
        script = LuaScript(self.name, "connector", read.script, entry, self.engine, redactor, secrets=None)
        try:
            call = Call(self.tenant)
            result = await script.run("scan", (), call, script.authority(()), limits, with_config=True)
        except Problem as problem:
            raise ConnectorError(problem.message) from None
        return result.value


@dataclass(frozen=True, slots=True)
class Scanned:
    """The items of one scan, a part of the source: a Connector."""

    items: Mapping[str, Item]
    skipped: Sequence[Skipped]

    @classmethod
    def from_answer(cls, answer: object, max_bytes: int) -> "Scanned":
        """What a script returned, checked. Raises ConnectorError when it is no list."""
        if answer == {}:  # Lua has one empty table
            answer = []
        if not isinstance(answer, list):
            raise ConnectorError(f"connector.scan must return a list of items, got {_kind(answer)}")
        if len(answer) > MAX_ITEMS:
            raise ConnectorError(f"connector.scan returned {len(answer):,} items; the most is {MAX_ITEMS:,}")
        items: dict[str, Item] = {}
        skipped: list[Skipped] = []
        for n, each in enumerate(answer, 1):
            source_id = f"item {n}"
            try:
                source_id = _source_id(each)
                if source_id in items:
                    raise Unreadable("returned twice; the first was taken")
                items[source_id] = _item(each, max_bytes)
            except Unreadable as error:
                skipped.append(Skipped(source_id=source_id, reason=str(error)))
        return cls(items, skipped)

    async def scan(self) -> AsyncIterator[Found | Skipped | Partial]:
        """Every item, then those that were skipped. A script lists the newest items, so others may exist."""
        await trio.lowlevel.checkpoint()
        for source_id, item in self.items.items():
            yield Found(source_id=source_id, updated_at=item.updated_at)
        for entry in self.skipped:
            yield entry
        yield Partial()

    async def read(self, found: Found) -> Item:
        await trio.lowlevel.checkpoint()
        return self.items[found.source_id]


def _source_id(value: object) -> str:
    if not isinstance(value, dict):
        raise Unreadable(f"an item must be a table with named fields, got {_kind(value)}")
    found = value.get("source_id")
    if isinstance(found, int) and not isinstance(found, bool):
        found = str(found)
    if not isinstance(found, str) or not found:
        raise Unreadable(f"source_id must be a string that is not empty, got {_kind(found)}")
    if len(found) > MAX_ID or any(character < " " or character == "\x7f" for character in found):
        raise Unreadable(f"source_id must have at most {MAX_ID} characters, none of them a control character")
    return found


def _item(value: Mapping[str, Any], max_bytes: int) -> Item:
    body = _text(value, "body")
    if not body:
        raise Unreadable("body must be a string that is not empty")
    if (size := len(body.encode())) > max_bytes:
        raise Unreadable(too_large(size, max_bytes))
    return Item(
        body=body,
        title=_text(value, "title", MAX_TITLE),
        author=_text(value, "author", MAX_TITLE),
        source_url=_text(value, "source_url", MAX_URL),
        created_at=_time(value.get("created_at")),
        updated_at=_time(value.get("updated_at")),
        content_type=_text(value, "content_type", MAX_TITLE) or "text/plain",
        metadata=_metadata(value),
    )


def _text(value: Mapping[str, Any], key: str, most: int | None = None) -> str | None:
    found = value.get(key)
    if found is None:
        return None
    if not isinstance(found, str):
        raise Unreadable(f"{key} must be a string, got {_kind(found)}")
    if most is not None and len(found) > most:
        raise Unreadable(f"{key} has {len(found)} characters; the most is {most}")
    return found


def _time(value: object) -> str | None:
    """A time in any form that scripts pass on: RFC 3339, seconds since 1970, the form of mail and RSS; else None."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return from_timestamp(value)
    if not isinstance(value, str) or len(value) > 64:
        return None
    try:
        return canonical_time(value)
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(value)
        return format_time(moment) if moment.tzinfo is not None else canonical_time(moment.isoformat())
    except (ValueError, OverflowError):
        return None


def _metadata(value: Mapping[str, Any]) -> Mapping[str, Any]:
    text = _text(value, "metadata_json", MAX_METADATA)
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Unreadable("metadata_json must be a JSON object")
    return found


def _kind(value: object) -> str:
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    return "a string" if isinstance(value, str) else "a table"

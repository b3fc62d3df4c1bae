"""Documents from a Lua script: `connector.scan(config, context)`, run in a worker under the grants of its entry."""

import hashlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import trio

from agents.agent import Call
from agents.code.files import read_script
from agents.code.script import LuaScript
from engine.bridge import CallRefused
from engine.config import ScriptEntry
from engine.config.entries import ScriptConnector
from engine.egress.redaction import Redactor
from engine.engine import Engine
from engine.errors import Problem
from engine.run import Hearers, LogLine
from engine.tenant import Tenant
from engine.work import WORK
from knowledge.access import check_labels
from knowledge.connectors import (
    Complete,
    ConnectorError,
    Emitted,
    Event,
    Found,
    Gone,
    Item,
    Partial,
    Reached,
    Skipped,
    Streams,
    Unreadable,
)
from knowledge.textfiles import too_large
from knowledge.times import canonical_time, format_time, from_timestamp

# What a scan may use unless its entry says less: it fetches many pages, where a tool answers a person who waits.
_LIMITS: Mapping[str, float] = {"timeout_s": 300, "cpu_s": 60, "output_bytes": 16 * 1024 * 1024, "host_calls": 10_000}
# Bounds on an item, in characters. A list shows a source_id and a title; metadata is parsed here.
MAX_ID = 1_024
MAX_TITLE = 1_024
MAX_URL = 8_192
MAX_METADATA = 64 * 1024
# Bounds on one scan: items, each of which costs a read of the store, and characters of what it emits. Its host calls
# bound the emitted items, too.
MAX_ITEMS = 100_000
MAX_SCAN_BYTES = 64 * 1024 * 1024
# Bound on a checkpoint, as JSON.
MAX_CHECKPOINT = WORK["checkpoint"].max_bytes or 0

# And on its values, keys included: they are counted before it is written.
MAX_CHECKPOINT_VALUES = WORK["checkpoint"].max_values or 0
# Of so few values it is written on the event loop; a thread would cost more.
_FEW = 256

_TOO_LARGE = f"the checkpoint is more than {MAX_CHECKPOINT:,} bytes of JSON"

_TOO_MANY = f"the checkpoint has more than {MAX_CHECKPOINT_VALUES:,} values"

_ENCODER = json.JSONEncoder(allow_nan=False)

_TOO_MUCH = (
    f"a scan emits at most {MAX_ITEMS:,} items and {MAX_SCAN_BYTES >> 20} MiB; "
    "emit with a checkpoint, and the next scan goes on there"
)


@dataclass(slots=True)
class ScriptSource:
    """A configured script. Every synchronisation runs it once. `hear` gets the lines that it logs."""

    name: str
    entry: ScriptConnector
    engine: Engine
    tenant: Tenant
    hear: Callable[[LogLine], None] | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Streams]:
        """The scan. Its script starts with the stream, and ends with the block at the latest."""
        try:
            async with trio.open_nursery() as nursery:
                yield ScriptScan(self, nursery)
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            # The nursery wraps what the block raised; the task of the script raises nothing of its own.
            if len(group.exceptions) != 1:
                raise
            raise group.exceptions[0] from group.exceptions[0].__cause__

    async def run(self, scan: "ScriptScan", checkpoint: Any) -> object:
        """What the script returns. Raises ConnectorError when it fails."""
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
            call = Call(self.tenant, Hearers(log=self.hear, scan=scan))
            result = await script.run("scan", (checkpoint,), call, script.authority(()), limits, with_config=True)
        except Problem as problem:
            raise ConnectorError(problem.message) from None
        return result.value

    def kept(self, checkpoint: Any) -> str:
        """A checkpoint as the store keeps it, with what it depends on. Raises CallRefused."""
        _measure(checkpoint)
        try:
            text = ""
            for part in _ENCODER.iterencode(checkpoint):  # one that is far too large is not written to its end
                text += part
                if len(text) > MAX_CHECKPOINT:
                    raise CallRefused(_TOO_LARGE)
        except (ValueError, TypeError, RecursionError):
            raise CallRefused("the checkpoint cannot be written as JSON") from None
        return f"{self.settings()} {text}"

    async def kept_from(self, checkpoint: Any, worked: Callable[[float], None]) -> str:
        """As `kept`. One that is more than a mark is written in a thread: one of 10,000 values takes 8 ms."""

        def work() -> tuple[str | CallRefused, float]:
            began_s = time.thread_time()
            try:
                return self.kept(checkpoint), time.thread_time() - began_s
            except CallRefused as refused:
                return refused, time.thread_time() - began_s

        if _values(checkpoint, _FEW) <= _FEW:
            kept, cpu_s = work()
        else:
            kept, cpu_s = await trio.to_thread.run_sync(work, abandon_on_cancel=True)
        worked(cpu_s)
        if isinstance(kept, CallRefused):
            raise kept
        return kept

    def loaded(self, kept: str | None) -> Any:
        """The checkpoint, or None where there is none for these settings."""
        settings, _, text = (kept or "").partition(" ")
        if settings != self.settings():
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return None

    def settings(self) -> str:
        """A mark of what a checkpoint depends on: the script's own keys, but for values of the environment, which are
        credentials and change without a change of the source.
        """
        shown = json.dumps([self.entry.max_extract_bytes, self.entry.extra], sort_keys=True, default=str)
        for value in self.entry.from_environment:
            shown = shown.replace(json.dumps(value)[1:-1], "")
        return hashlib.sha256(shown.encode("utf-8", "backslashreplace")).hexdigest()[:12]


@dataclass(slots=True)
class ScriptScan:
    """One run of a script: takes what it emits, and streams it."""

    source: ScriptSource
    nursery: trio.Nursery
    # Without a buffer: an item is taken from the script when the one before it is in the store, or in its next batch.
    _send: trio.MemorySendChannel[Event] = field(init=False)
    _receive: trio.MemoryReceiveChannel[Event] = field(init=False)
    _failure: ConnectorError | None = None
    _count: int = 0
    _bytes: int = 0
    _refused: bool = False

    def __post_init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[Event](0)

    async def stream(self, checkpoint: str | None) -> AsyncGenerator[Event]:
        """What the script emits, then what it returns."""
        self.nursery.start_soon(self._run, self.source.loaded(checkpoint))
        async for event in self._receive:
            yield event
        if self._failure is not None:
            raise self._failure

    async def _run(self, checkpoint: Any) -> None:
        async with self._send:
            try:
                answer = await self.source.run(self, checkpoint)
                async for event in self.returned(answer):
                    await self._send.send(event)
            except ConnectorError as error:
                self._failure = error

    async def returned(self, answer: object) -> AsyncIterator[Event]:
        """The events of an answer: of ctx's list, or of what says how the scan ended."""
        if answer is None and self._count:
            return
        if isinstance(answer, dict) and answer and not answer.keys() - {"checkpoint", "complete"}:
            if not isinstance(complete := answer.get("complete", False), bool):
                raise ConnectorError(f"connector.scan: complete must be a boolean, got {_kind(complete)}")
            if self._refused and (complete or "checkpoint" in answer):
                raise ConnectorError(f"connector.scan found more than a scan takes: {_TOO_MUCH}")
            if (checkpoint := answer.get("checkpoint")) is not None:
                try:
                    yield Reached(await self.source.kept_from(checkpoint, lambda cpu_s: None))
                except CallRefused as error:
                    raise ConnectorError(f"connector.scan: {error}") from None
            if complete:
                yield Complete()
            return
        seen: set[str] = set()
        for each in _listed(answer):
            self._count += 1
            for event in self._events(each, None, None):
                if isinstance(event, Emitted):
                    if event.found.source_id in seen:
                        yield Skipped(source_id=event.found.source_id, reason="returned twice; the first was taken")
                        continue
                    seen.add(event.found.source_id)
                yield event

    # ---- host calls of the script

    async def emit(
        self, item: Mapping[str, Any], checkpoint: Any, size: int | None, worked: Callable[[float], None]
    ) -> None:
        """Take an item. Raises CallRefused beyond the bounds of a scan, and for a checkpoint that cannot be kept."""
        kept = None if checkpoint is None else await self.source.kept_from(checkpoint, worked)
        began_s = time.thread_time()
        self._count += 1
        self._bytes += size or sum(len(value) for value in item.values() if isinstance(value, str))
        if self._bytes > MAX_SCAN_BYTES or self._count > MAX_ITEMS:
            self._refused = True
            raise CallRefused(_TOO_MUCH)
        events = self._events(item, kept, size)
        worked(time.thread_time() - began_s)
        for event in events:
            await self._send.send(event)

    async def deleted(self, source_id: Any) -> None:
        self._count += 1
        try:
            await self._send.send(Gone(_source_id({"source_id": source_id})))
        except Unreadable as error:
            raise CallRefused(str(error)) from None

    def _events(self, value: object, checkpoint: str | None, size: int | None) -> list[Event]:
        found: list[Event]
        try:
            source_id = _source_id(value)
        except Unreadable as error:  # which item it is, is not known: so none can be taken for gone
            found = [Skipped(source_id=f"item {self._count}", reason=str(error)), Partial()]
        else:
            try:
                if size is not None:
                    raise Unreadable(too_large(size, self.source.entry.max_extract_bytes))
                assert isinstance(value, dict)
                item = _item(value, self.source.entry.max_extract_bytes)
                return [Emitted(Found(source_id=source_id, updated_at=item.updated_at), item, checkpoint)]
            except Unreadable as error:
                found = [Skipped(source_id=source_id, reason=str(error))]
        return found if checkpoint is None else [*found, Reached(checkpoint)]


def _measure(checkpoint: object) -> None:
    """Raises CallRefused for what is too much for a checkpoint, counted until it is."""
    values, characters, left = 0, 0, [checkpoint]
    while left:
        values += 1
        match left.pop():
            case str() as text:
                characters += len(text)
            case list() as items:
                left += items
            case dict() as fields:
                left += fields
                left += fields.values()
        if characters > MAX_CHECKPOINT:  # a text is written as a whole: 130 ms for one of 15 MB
            raise CallRefused(_TOO_LARGE)
        if values + len(left) > MAX_CHECKPOINT_VALUES:
            raise CallRefused(_TOO_MANY)


def _values(value: object, most: int) -> int:
    """The values of a checkpoint, keys included, counted until there are more than `most`."""
    count, left = 0, [value]
    while left and count + len(left) <= most:
        count += 1
        match left.pop():
            case list() as items:
                left += items
            case dict() as fields:
                left += fields
                left += fields.values()
    return count + len(left)


def _listed(answer: object) -> list[Any]:
    """The list that a script of ctx returns. Raises ConnectorError."""
    if answer == {}:  # Lua has one empty table
        return []
    if not isinstance(answer, list):
        hint = ", or how the scan ended: { checkpoint = ..., complete = true }"
        raise ConnectorError(f"connector.scan must return a list of items, got {_kind(answer)}{hint}")
    if len(answer) > MAX_ITEMS:
        raise ConnectorError(f"connector.scan returned {len(answer):,} items; the most is {MAX_ITEMS:,}")
    return answer


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
        access=_access(value.get("access")),
    )


def _access(value: object) -> frozenset[str]:
    """The labels of an item: a list of texts, or one text. An item whose labels are not understood is not stored."""
    given = [value] if isinstance(value, str) else value
    if given is None or given == {}:  # Lua has one empty table
        return frozenset()
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise Unreadable(f"access must be a list of labels, got {_kind(value)}")
    try:
        return check_labels(given)
    except ValueError as error:
        raise Unreadable(f"access: {error}") from None


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

"""What the engine's tests share: a small configuration, a store that waits when told to, requests in one line."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import trio

from engine.config import Config, parse_config
from engine.engine import Engine
from engine.errors import Code, Problem
from engine.run import SILENT, Hearers, RunRequest, RunResult, Script
from engine.tenant import DEFAULT_TENANT, Tenant
from knowledge.access import Reader
from knowledge.store import Document, EmbeddingsDisabled, Hit, SearchAnswer, SearchQuery, SourceInfo, StoreError
from sandbox.wire.outcome import Outcome

ALL_GRANTS = frozenset({"context.search", "context.get", "context.sources"})
SPIN = "log.info('running') while true do end"
FOREVER = "log.info('running') while true do context.search('x') end"

HIT = Hit(
    id="doc-1",
    source="filesystem:runbooks",
    source_id="a.md",
    title="A",
    score=0.5,
    snippet="words",
    source_url=None,
    updated_at="2026-01-31T00:00:00Z",
)
DOCUMENT = Document(
    id="doc-1",
    source="filesystem:runbooks",
    source_id="a.md",
    source_url=None,
    title=None,
    author=None,
    created_at=None,
    updated_at="2026-01-31T00:00:00Z",
    content_type="text/markdown",
    body="All of it.",
    metadata={"n": None, "big": 1 << 70},
)
SOURCE = SourceInfo(
    source="filesystem:runbooks",
    document_count=1,
    chunk_count=2,
    configured=True,
    healthy=True,
    notes=None,
    last_sync=None,
)


@dataclass
class FakeStore:
    """Answers every search with one hit. `hold` makes a query wait until `release` is set; `entered` tells of it."""

    queries: list[SearchQuery] = field(default_factory=list)
    entered: trio.Event = field(default_factory=trio.Event)
    release: trio.Event = field(default_factory=trio.Event)
    cancelled: trio.Event = field(default_factory=trio.Event)

    async def search(self, query: SearchQuery, reader: Reader) -> SearchAnswer:
        self.queries.append(query)
        match query.query:
            case "hold":
                self.entered.set()
                try:
                    await self.release.wait()
                except trio.Cancelled:
                    self.cancelled.set()
                    raise
            case "large":
                return SearchAnswer((replace(HIT, snippet="x" * (1 << 20)),))
            case "broken":
                raise StoreError("the store is locked")
            case "bug":
                raise RuntimeError("a path of the host")
            case "warned":
                return SearchAnswer((HIT,), ("answered by keyword",))
        if query.mode == "semantic":
            raise EmbeddingsDisabled("no embedder is configured")
        await trio.lowlevel.checkpoint()
        return SearchAnswer((HIT,))

    async def get(self, document_id: str, reader: Reader) -> Document | None:
        await trio.lowlevel.checkpoint()
        return DOCUMENT if document_id == DOCUMENT.id else None

    async def sources(self, reader: Reader) -> tuple[SourceInfo, ...]:
        await trio.lowlevel.checkpoint()
        return (SOURCE,)


def small_config(sandbox: str = "workers = 2\nreserve = 1", limits: str = "") -> Config:
    """A configuration of a few workers."""
    config, _ = parse_config(f"[sandbox]\n{sandbox}\n[limits]\n{limits}", environ={}, cwd=Path("/nonexistent"))
    return config


def script_of(body: str) -> bytes:
    """A script whose agent.resolve has this body; `context` is a local of it, `...` are the arguments."""
    return (
        f"agent = {{}} function agent.resolve(...) local context = select(select('#', ...), ...); {body}\nend"
    ).encode()


def request(
    engine: Engine,
    script: str | bytes,
    *args: Any,
    limits: Mapping[str, float] | None = None,
    tenant: Tenant = DEFAULT_TENANT,
    **how: Any,
) -> RunRequest:
    """A request to run a body (text) or a whole script (bytes)."""
    source = script_of(script) if isinstance(script, str) else script
    return RunRequest(
        tenant=tenant,
        name="test",
        script=Script.from_source("t.lua", source),
        root="agent",
        method=how.pop("method", "resolve"),
        args=args,
        limits=engine.limits_for({"timeout_s": 5.0, **(limits or {})}, tenant),
        grants=how.pop("grants", ALL_GRANTS),
        **how,
    )


async def run(engine: Engine, script: str | bytes, *args: Any, hearers: Hearers = SILENT, **how: Any) -> RunResult:
    """Run it; a run that hangs fails the test."""
    with trio.fail_after(20):
        return await engine.execute(request(engine, script, *args, **how), hearers=hearers)


async def works(engine: Engine, tenant: Tenant = DEFAULT_TENANT) -> None:
    """The next run is served as if nothing had happened."""
    result = await run(engine, "return context.search('next')[1].id .. (...)", "!", tenant=tenant)
    assert (result.outcome, result.value) == (Outcome.OK, "doc-1!"), result.failure


async def works_again(engine: Engine) -> None:
    """Before long, a run is served. Until then runs may be refused or lost, as what serves them is being replaced."""
    with trio.fail_after(20):
        while True:
            try:
                result = await run(engine, "return 1")
            except Problem as problem:
                if problem.code is not Code.UNAVAILABLE:
                    raise
                await trio.sleep(0.02)
                continue
            if result.outcome is not Outcome.WORKER_LOST:
                break
    await works(engine)

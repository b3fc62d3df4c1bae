"""The job that every contestant does: a small function gets a document by one host call, and returns a small table."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

from engine.bridge import knowledge
from engine.config import Config, LimitsConfig, SandboxConfig
from engine.engine import Engine, open_engine
from engine.run import RunRequest, Script
from engine.tenant import DEFAULT_TENANT, Tenant
from knowledge.access import Reader
from knowledge.store import Chunk, Document, SearchAnswer, SearchQuery, SourceInfo

Run = Callable[[], Awaitable[Any]]

BODY = "Look at the dashboard first. Then ask who deployed last, and roll back before you search for the cause.\n" * 4
DOCUMENT = Document(
    id="7d0f1c9e-0000-4000-8000-000000000001",
    source="filesystem:runbooks",
    source_id="deployments.md",
    source_url=None,
    title="Deployments",
    author=None,
    created_at=None,
    updated_at="2026-01-01T00:00:00Z",
    content_type="text/markdown",
    body=BODY,
    chunks=(Chunk(0, BODY),),
)
# As JSON, for peers that get it from their host.
AS_JSON = {name: value for name, value in knowledge.document_as_json(DOCUMENT).items() if value is not None}
ANSWER = {"system": "Read Deployments", "characters": len(BODY)}

AGENT = b"""
agent = { name = "floor" }

function agent.resolve(args, config, context)
    local document = context.get(args.id)
    return { system = "Read " .. document.title, characters = #document.body }
end
"""


class OneDocument:
    """A store in memory."""

    async def search(self, query: SearchQuery, reader: Reader) -> SearchAnswer:
        raise NotImplementedError

    async def get(self, document_id: str, reader: Reader) -> Document | None:
        return DOCUMENT if document_id == DOCUMENT.id else None

    async def sources(self, reader: Reader) -> tuple[SourceInfo, ...]:
        raise NotImplementedError


@asynccontextmanager
async def open_job_engine(sandbox: SandboxConfig, queue_timeout_s: float = 10) -> AsyncIterator[Engine]:
    """An engine with its defaults, and the store above."""
    config = Config(sandbox=sandbox, limits=LimitsConfig(queue_timeout_s=queue_timeout_s))
    async with open_engine(config, knowledge.functions(lambda _: OneDocument(), default_limit=12)) as engine:
        yield engine


def job(
    engine: Engine, tenant: Tenant = DEFAULT_TENANT, source: bytes = AGENT, asked: dict[str, float] | None = None
) -> RunRequest:
    """A run of the agent, or of another that makes the same call."""
    return RunRequest(
        tenant=tenant,
        name="floor",
        script=Script.from_source("floor.lua", source),
        root="agent",
        method="resolve",
        args=({"id": DOCUMENT.id}, {}),
        limits=engine.limits_for(asked or {}, tenant),
        grants=frozenset({knowledge.GET}),
    )


@asynccontextmanager
async def open_real_engine(
    *, isolation: Literal["tenant", "execution"] = "tenant", workers: int = 2
) -> AsyncIterator[tuple[Run, Engine]]:
    """The job on the engine. Two workers in every placement: one run keeps one busy."""
    async with open_job_engine(SandboxConfig(workers=workers, isolation=isolation)) as engine:
        request = job(engine)

        async def run() -> Any:
            result = await engine.execute(request)
            assert result.failure is None, result.failure
            return result.value

        yield run, engine

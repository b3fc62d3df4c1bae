"""An engine in a thread of its own, so that tests that are not async share it; with a ping task beside it."""

import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import trio
from faults import descendants

from engine.bridge import knowledge
from engine.bundle import Modules, NotBundled, Unreadable, bundle
from engine.config import Config
from engine.engine import Engine, open_engine
from engine.run import Hearers, LogLine, RunRequest, RunResult, Script
from engine.tenant import Tenant
from knowledge.access import Reader
from knowledge.store import Chunk, Document, EmbeddingsDisabled, Hit, SearchAnswer, SearchQuery, SourceInfo

T = TypeVar("T")

RESERVE = 2
# Bytes of a script with what it requires: the ceiling of `source_bytes`.
MOST = 4 << 20
PING_S = 0.01
# How long the pool may take to be as it was: replacing a worker takes milliseconds, a busy machine many more.
SETTLE_S = 15.0


def _document(number: int, title: str | None, body: str) -> Document:
    return Document(
        id=f"00000000-0000-4000-8000-{number:012}",
        source="git:runbooks",
        source_id=f"runbooks/{number}.md",
        source_url=None if title is None else f"https://docs.example.com/{number}",
        title=title,
        author=None,
        created_at=None,
        updated_at="2026-01-02T03:04:05Z",
        content_type="text/markdown",
        body=body,
        chunks=(Chunk(0, body),),
    )


class FakeStore:
    """Three documents in memory. The query `stall` is never answered."""

    documents = (
        _document(1, "Deploying", "Deploy on Tuesdays. Ask the platform team first."),
        _document(2, None, "Notes without a title on how to deploy and to roll back."),
        _document(3, "Größenänderung", "Disks grow while they are mounted — ½ hour."),
    )

    async def search(self, query: SearchQuery, reader: Reader) -> SearchAnswer:
        if query.query == "stall":
            await trio.sleep_forever()
        if query.mode == "semantic":
            raise EmbeddingsDisabled("semantic search needs an embedder; none is configured")
        words = query.query.lower().split()
        found = [d for d in self.documents if any(word in (d.title or "").lower() + d.body.lower() for word in words)]
        return SearchAnswer(tuple(_hit(document) for document in found[: query.limit]))

    async def get(self, document_id: str, reader: Reader) -> Document | None:
        return next((d for d in self.documents if d.id == document_id), None)

    async def sources(self, reader: Reader) -> tuple[SourceInfo, ...]:
        return (
            SourceInfo(
                source="git:runbooks",
                document_count=len(self.documents),
                chunk_count=len(self.documents),
                configured=True,
                healthy=True,
                notes=None,
                last_sync="2026-01-02T03:04:05Z",
            ),
        )


def _hit(document: Document) -> Hit:
    return Hit(
        id=document.id,
        source=document.source,
        source_id=document.source_id,
        title=document.title,
        score=0.5,
        snippet=document.body[:40],
        source_url=document.source_url,
        updated_at=document.updated_at,
    )


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the engine holds of the machine: its processes (the zygote and the workers) and our descriptors."""

    processes: int
    descriptors: int


@dataclass(slots=True)
class Host:
    """A running engine. Methods may be called from any thread but its own."""

    engine: Engine
    token: trio.lowlevel.TrioToken
    isolation: Literal["tenant", "execution"]
    pinged: trio.Event = field(default_factory=trio.Event)
    # The largest memory limit of any run so far: a worker that was used again may still hold that much.
    largest_memory: float = 0

    def call(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run an async function beside the engine."""
        return trio.from_thread.run(function, *arguments, trio_token=self.token)

    def run(
        self,
        source: bytes,
        *,
        name: str = "corpus",
        files: Mapping[str, bytes] | None = None,
        limits: dict[str, float],
        method: str | None = "resolve",
        args: Any = None,
        config: Any = None,
        grants: frozenset[str] = knowledge.GRANTS,
        on_progress: Callable[[float, str | None], None] | None = None,
        on_log: Callable[[LogLine], None] | None = None,
    ) -> RunResult:
        """One run of an agent, as one and the same tenant. `files` are the other files of its package."""
        tenant = Tenant("corpus")
        request = RunRequest(
            tenant=tenant,
            name=name,
            script=Script.from_source(name, source, modules_of(source, files or {})),
            root="agent",
            method=method,
            args=(args or {}, config or {}),
            config=config or {},
            limits=self.engine.limits_for(limits, tenant),
            grants=grants,
        )
        self.largest_memory = max(self.largest_memory, request.limits["memory_bytes"])
        return self.call(self.engine.execute, request, None, Hearers(log=on_log, progress=on_progress))

    def wait_for_ping(self) -> None:
        """Returns when the ping task, which shares the engine's thread, has made progress. Raises TooSlowError."""

        async def wait() -> None:
            with trio.fail_after(SETTLE_S):
                await self.pinged.wait()
                await self.pinged.wait()

        self.call(wait)

    def settled(self) -> Footprint:
        """The footprint once nothing is under way any more and the reserve is full. Raises TooSlowError."""

        async def wait() -> Footprint:
            last: Footprint | None = None
            with trio.fail_after(SETTLE_S):
                while True:
                    counts = self.engine.health()["workers"]
                    at_rest = counts["leased"] == counts["closing"] == 0 and counts["pristine"] == RESERVE
                    now = footprint() if at_rest else None  # it reads /proc: more than most scripts take
                    if now is not None and now == last:
                        return now
                    last = now
                    await trio.sleep(PING_S)

        return self.call(wait)


def modules_of(source: bytes, files: Mapping[str, bytes]) -> Modules:
    """What a script requires; none where that cannot be resolved, so that its run meets the same calls."""

    def read(name: str, left: int) -> bytes:
        if name not in files:
            raise Unreadable("no such file")
        return files[name]

    try:
        return bundle("main.lua", source, read, MOST)
    except NotBundled:
        return ()


def footprint() -> Footprint:
    return Footprint(len(workers_and_zygote()), len(os.listdir("/proc/self/fd")))


def workers_and_zygote() -> set[int]:
    """Our descendants that belong to the engine, or that its workers might have started."""
    launchers = set()
    for pid in descendants():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:  # it may end meanwhile
            if b"sandbox.zygote" in file.read():
                launchers.add(pid)
    return launchers | (descendants(*launchers) if launchers else set())


@contextmanager
def open_host(isolation: Literal["tenant", "execution"]) -> Iterator[Host]:
    """An engine of two workers, in a thread that lasts as long as the block."""
    config = Config.model_validate({"sandbox": {"workers": 2, "reserve": RESERVE, "isolation": isolation}})
    started, finished = threading.Event(), trio.Event()
    opened: list[Host] = []
    failed: list[BaseException] = []

    async def ping(host: Host) -> None:
        while True:
            await trio.sleep(PING_S)
            host.pinged.set()
            host.pinged = trio.Event()

    async def serve() -> None:
        functions = knowledge.functions(lambda _: FakeStore(), default_limit=12)
        async with open_engine(config, functions) as engine, trio.open_nursery() as nursery:
            host = Host(engine, trio.lowlevel.current_trio_token(), isolation)
            nursery.start_soon(ping, host)
            opened.append(host)
            started.set()
            await finished.wait()
            nursery.cancel_scope.cancel()

    def main() -> None:
        try:
            trio.run(serve)
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=main, name=f"engine-{isolation}")
    thread.start()
    try:
        started.wait()
        if not opened:
            raise RuntimeError("the engine did not start") from failed[0]
        yield opened[0]
    finally:
        if opened:
            opened[0].token.run_sync_soon(finished.set)
        thread.join()
    if failed:
        raise failed[0]

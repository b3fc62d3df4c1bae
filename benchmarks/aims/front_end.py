"""The server beside unprotected apps: requests per second on one core, and the time to the first answer.

For the rate, the front end has the first core to itself; the client and the engine's workers share the second. All
servers stay up and take turns.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from benchmarks.aims.harness import Server, cpu_s, in_flight, on_cores, place, serving, started, take_turns
from benchmarks.aims.job import AGENT, DOCUMENT
from benchmarks.targets import documents
from benchmarks.targets.client import Client
from knowledge.access import EVERYTHING
from knowledge.chunking import split
from knowledge.sqlite.store import open_store
from knowledge.store import Batch, NewDocument, SearchQuery

CONCURRENCY = 8
_ANSWER_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Front:
    """A running server, and the request for it."""

    server: Server
    path: str
    body: bytes


@asynccontextmanager
async def open_bare(kind: str) -> AsyncIterator[Front]:
    """An unprotected app."""
    async with started([sys.executable, "-m", "benchmarks.aims.bare_app", kind]) as server:
        yield Front(server, "/prompt", json.dumps({"id": DOCUMENT.id}).encode())


@asynccontextmanager
async def open_engine(config: Path, body: bytes) -> AsyncIterator[Front]:
    """The engine's server."""
    async with serving(config, stderr=subprocess.DEVNULL) as server:
        yield Front(server, "/agents/floor/prompt", body)


async def fill(folder: Path) -> tuple[Path, bytes]:
    """A configuration with the agent of the job, and its document in a filled store; and the request's body."""
    script, store_path, config = folder / "floor.lua", folder / "knowledge.sqlite", folder / "engine.toml"
    script.write_bytes(AGENT)
    config.write_text(
        f"[db]\npath = {json.dumps(str(store_path))}\n[sandbox]\nworkers = 2\n"
        f"[agents.script.floor]\npath = {json.dumps(str(script))}\n"
    )
    body = DOCUMENT.body
    document = NewDocument(
        source_id=DOCUMENT.source_id, title=DOCUMENT.title, body=body, chunks=split(body, max_tokens=200),
        digest=hashlib.sha256(body.encode()).hexdigest(), updated_at=DOCUMENT.updated_at,
        content_type=DOCUMENT.content_type,
    )  # fmt: skip
    label = "filesystem:floor"
    async with open_store(store_path, create=True, configured={}) as store:
        for batch in (*documents.batches(), Batch(source=label, upserts=[document])):
            await store.apply(batch)
        found = await store.search(SearchQuery(query="deployed", source=label), EVERYTHING)
    return config, json.dumps({"id": found.hits[0].id}).encode()


# ---- the rate on one core ---------------------------------------------------------------------------------------


async def rate(front: Front, seconds: float) -> float:
    """Requests per second of CPU time of the front end's process, with eight in flight.

    That is the capacity of one core even if the client or other load on the machine keeps the front end waiting; a rate
    by the clock would be limited by a slow client. Any wrong answer is an error.
    """
    client = Client(front.server.address)
    ended = 0
    until = trio.current_time() + seconds
    before = cpu_s(front.server.pid)

    async def ask() -> None:
        nonlocal ended
        await ask_once(client, front)
        ended += 1

    await in_flight(ask, CONCURRENCY, lambda: trio.current_time() < until)
    client.close()
    return ended / (cpu_s(front.server.pid) - before)


async def ask_once(client: Client, front: Front) -> None:
    response = await client.request("POST", front.path, front.body)
    if response.status != 200 or b"Read Deployments" not in response.body:
        raise RuntimeError(f"{front.path}: status {response.status}: {response.body[:200]!r}")


async def rates(rounds: int, seconds: float) -> dict[str, list[float]]:
    """Requests per second of front-end CPU of the engine and of both unprotected apps, a figure for each round."""
    first, second = sorted(os.sched_getaffinity(0))[:2]

    async def turn(front: Front) -> float:
        place(front.server.pid, first, second)
        with on_cores({second}):
            await rate(front, seconds / 4)  # warm-up
            return await rate(front, seconds)

    with tempfile.TemporaryDirectory(prefix="engine-front-") as temporary:
        config, body = await fill(Path(temporary))
        async with AsyncExitStack() as stack:
            fronts = {"engine": await stack.enter_async_context(open_engine(config, body))}
            for kind in ("raw", "quart"):
                fronts[kind] = await stack.enter_async_context(open_bare(kind))
            return await take_turns({name: partial(turn, front) for name, front in fronts.items()}, rounds)


# ---- cold start -------------------------------------------------------------------------------------------------


async def starts(rounds: int) -> dict[str, list[float]]:
    """Seconds from starting a server to its first answered call, of the engine (store filled) and of the Quart app."""
    seen: dict[str, list[float]] = {"engine": [], "quart": []}
    with tempfile.TemporaryDirectory(prefix="engine-start-") as temporary:
        config, body = await fill(Path(temporary))
        for _ in range(rounds):
            for name, opening in (("engine", open_engine(config, body)), ("quart", open_bare("quart"))):
                begun = trio.current_time()
                async with opening as front:
                    client = Client(front.server.address)
                    with trio.fail_after(_ANSWER_WITHIN_S):
                        await ask_once(client, front)
                    seen[name].append(trio.current_time() - begun)
                    client.close()
    return seen

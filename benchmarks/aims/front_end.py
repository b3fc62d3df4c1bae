"""The server beside unprotected apps: requests per second on one core, and the time to the first answer.

For the rate, the front end has the first core to itself; the client and the engine's workers share the second. All
servers stay up and take turns.
"""

import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import trio

from benchmarks.aims.floor import AGENT, DOCUMENT, pin
from benchmarks.aims.http_latency import ROOT, serving
from benchmarks.targets import documents
from benchmarks.targets.address import Address
from benchmarks.targets.client import Client
from knowledge.chunking import split
from knowledge.sqlite.store import open_store
from knowledge.store import Batch, NewDocument, SearchQuery

CONCURRENCY = 8
_ANSWER_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Front:
    """A running server, and the request for it."""

    address: Address
    path: str
    body: bytes


@asynccontextmanager
async def open_bare(kind: str) -> AsyncIterator[tuple[Front, int]]:
    """An unprotected app; yields the request for it, and its process id."""
    port = _free_port()
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "benchmarks.aims.bare_app", kind, str(port)], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        with trio.fail_after(_ANSWER_WITHIN_S):
            said = b""
            while not said.endswith(b"\n"):
                if not (data := await process.stdout.receive_some()):
                    raise RuntimeError(f"the {kind} app did not start")
                said += data
        body = json.dumps({"id": DOCUMENT.id}).encode()
        yield Front(Address("127.0.0.1", port, f"127.0.0.1:{port}"), "/prompt", body), process.pid
    finally:
        process.kill()
        with trio.CancelScope(shield=True):  # safe to shield: SIGKILL cannot be refused
            await process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def fill(folder: Path) -> tuple[Path, bytes]:
    """A configuration with the agent of `floor.py`, and its document in a filled store; and the request's body."""
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
        found = await store.search(SearchQuery(query="deployed", source=label))
    return config, json.dumps({"id": found.hits[0].id}).encode()


# ---- the rate on one core ---------------------------------------------------------------------------------------


@contextmanager
def split_cores(front: int) -> Iterator[None]:
    """Give the first core to one process, and the second to this process and to the children of the other."""
    everywhere = os.sched_getaffinity(0)
    first, second = sorted(everywhere)[:2]
    for thread in psutil.Process(front).threads():
        os.sched_setaffinity(thread.id, {first})
    for child in psutil.Process(front).children(recursive=True):
        child.cpu_affinity([second])
    pin({second})
    try:
        yield
    finally:
        pin(everywhere)


async def rate(front: Front, pid: int, seconds: float) -> float:
    """Requests per second of CPU time of the front end's process, with eight in flight.

    That is the capacity of one core even if the client or other load on the machine keeps the front end waiting; a rate
    by the clock would be limited by a slow client. Any wrong answer is an error.
    """
    client = Client(front.address)
    ended = 0
    until = trio.current_time() + seconds
    before = psutil.Process(pid).cpu_times()

    async def ask() -> None:
        nonlocal ended
        while trio.current_time() < until:
            await ask_once(client, front)
            ended += 1

    async with trio.open_nursery() as nursery:
        for _ in range(CONCURRENCY):
            nursery.start_soon(ask)
    client.close()
    after = psutil.Process(pid).cpu_times()
    return ended / (after.user + after.system - before.user - before.system)


async def ask_once(client: Client, front: Front) -> None:
    response = await client.request("POST", front.path, front.body)
    if response.status != 200 or b"Read Deployments" not in response.body:
        raise RuntimeError(f"{front.path}: status {response.status}: {response.body[:200]!r}")


async def rates(rounds: int, seconds: float) -> dict[str, list[float]]:
    """Requests per second of front-end CPU of the engine and of both unprotected apps, a figure for each round."""
    seen: dict[str, list[float]] = {"engine": [], "raw": [], "quart": []}
    with tempfile.TemporaryDirectory(prefix="engine-front-") as temporary:
        config, body = await fill(Path(temporary))
        async with AsyncExitStack() as stack:
            known = {process.pid for process in psutil.Process().children()}
            address = await stack.enter_async_context(serving(config, stderr=subprocess.DEVNULL))
            (server,) = (process.pid for process in psutil.Process().children() if process.pid not in known)
            fronts = {"engine": (_engine(address, body), server)}
            for kind in ("raw", "quart"):
                fronts[kind] = await stack.enter_async_context(open_bare(kind))
            for number in range(rounds):
                for name in list(fronts)[:: -1 if number % 2 else 1]:
                    front, pid = fronts[name]
                    with split_cores(pid):
                        await rate(front, pid, seconds / 4)  # warm-up
                        seen[name].append(await rate(front, pid, seconds))
    return seen


def _engine(address: str, body: bytes) -> Front:
    host, _, port = address.rpartition(":")
    return Front(Address(host, int(port), address), "/agents/floor/prompt", body)


# ---- cold start -------------------------------------------------------------------------------------------------


async def starts(rounds: int) -> dict[str, list[float]]:
    """Seconds from starting a server to its first answered call, of the engine (store filled) and of the Quart app."""
    seen: dict[str, list[float]] = {"engine": [], "quart": []}
    with tempfile.TemporaryDirectory(prefix="engine-start-") as temporary:
        config, body = await fill(Path(temporary))
        for _ in range(rounds):
            started = trio.current_time()
            async with serving(config, stderr=subprocess.DEVNULL) as address:
                await _first_answer(_engine(address, body))
                seen["engine"].append(trio.current_time() - started)
            started = trio.current_time()
            async with open_bare("quart") as (front, _):
                await _first_answer(front)
                seen["quart"].append(trio.current_time() - started)
    return seen


async def _first_answer(front: Front) -> None:
    client = Client(front.address)
    with trio.fail_after(_ANSWER_WITHIN_S):
        await ask_once(client, front)
    client.close()

"""The store in a server: the latency of searches while documents are synchronised, and the memory of idle tenants."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trio

from benchmarks.aims.harness import Figures, serving, tree_mb
from benchmarks.aims.idle_tenants import fill
from benchmarks.aims.store.corpus import questions, small_pages
from benchmarks.aims.store.files import synchronised
from benchmarks.aims.store.library import write_files
from benchmarks.targets.address import Address
from benchmarks.targets.client import Client
from knowledge.stores import store_path

RATE = 20.0
_QUIET_S = 5.0
_SLOWEST_SYNC_S = 300
_CONFIG = """
[db]
path = "engine.sqlite"
[embedding]
provider = "static"
[connectors.filesystem.docs]
root = "docs"
"""


# ---- searches beside a sync -----------------------------------------------------------------------------------------


async def beside_sync(folder: Path, documents: int) -> Figures:
    """Seconds of each search: `busy` while all documents change, `quiet` before and after."""
    (folder / "engine.toml").write_text(_CONFIG)
    first = list(small_pages(documents, seed=1))
    asked = iter(questions(first, 50_000))
    write_files(folder / "docs", first)
    async with serving(folder / "engine.toml", subprocess.DEVNULL, folder) as server:
        searches = _Searches(server.address, asked)
        await _synchronise(server.address)
        quiet = await searches.ask(_QUIET_S)
        write_files(folder / "docs", list(small_pages(documents, seed=2)))
        busy: list[float] = []
        began_s = time.perf_counter()
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                while True:
                    busy.extend(await searches.ask(1.0))

            nursery.start_soon(ask)
            await _synchronise(server.address)
            nursery.cancel_scope.cancel()
        took_s = time.perf_counter() - began_s
        quiet += await searches.ask(_QUIET_S)
    return {"quiet": quiet, "busy": busy, "took_s": took_s}


class _Searches:
    """Searches at an even rate, each for something else, so that none is answered from a cache."""

    def __init__(self, address: Address, asked: Iterator[str]) -> None:
        self._client, self._asked = Client(address), asked

    async def ask(self, seconds: float) -> list[float]:
        """The seconds that each search of so long took, from its due time."""
        taken: list[float] = []
        begin = trio.current_time()

        async def one(due: float) -> None:
            body = json.dumps({"query": next(self._asked)}).encode()
            answer = await self._client.request("POST", "/tools/search", body)
            assert answer.status == 200, answer
            taken.append(trio.current_time() - due)

        async with trio.open_nursery() as nursery:
            for number in range(int(seconds * RATE)):
                await trio.sleep_until(due := begin + number / RATE)
                nursery.start_soon(one, due)
        return taken


async def _synchronise(address: Address) -> None:
    """Synchronise the source, and wait until its documents have vectors."""
    client = Client(address)
    before = (await _source(client))["last_sync"]
    answer = await client.request("POST", "/sources/filesystem:docs/sync", b"")
    assert answer.status == 202, answer
    with trio.fail_after(_SLOWEST_SYNC_S):
        while True:
            now = await _source(client)
            if now["last_sync"] != before and now["embedded"] == now["chunk_count"]:
                break
            await trio.sleep(0.2)
    client.close()


async def _source(client: Client) -> dict[str, Any]:
    answer = await client.request("GET", "/tools/sources", b"")
    assert answer.status == 200, answer
    return dict(json.loads(answer.body)["sources"][0])


# ---- idle tenants ---------------------------------------------------------------------------------------------------


async def idle(folder: Path, tenants: int, stores: bool) -> float:
    """The memory of a server with so many tenants, in MB; with `stores`, each has documents."""
    key = await fill(folder, tenants, 0)
    if stores:
        write_files(folder / "docs", list(small_pages(20)))
        await synchronised(folder / "docs", folder / "one.sqlite")
        for number in range(tenants):
            path = store_path(folder / "engine.sqlite", f"t{number}")
            path.parent.mkdir(exist_ok=True)
            shutil.copyfile(folder / "one.sqlite", path)
    async with serving(folder / "engine.toml", subprocess.DEVNULL, folder) as server:
        client = Client(server.address)
        answer = await client.request("GET", "/tools/sources", b"", [("x-api-key", key)])
        client.close()
        assert answer.status == 200, answer
        return tree_mb(server.pid)

"""`POST /sources/LABEL/sync` on the real thing."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
import trio
from server_support import assert_envelope, serving

from agents.service import Service, open_service
from engine.config import load_config
from knowledge.sqlite.store import open_store

CONFIG = """
[db]
path = "data/engine.sqlite"
[sandbox]
workers = 1
reserve = 0
[connectors.filesystem.docs]
root = "docs"
"""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[Service, httpx2.AsyncClient]]:
    (tmp_path / "engine.toml").write_text(CONFIG)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text("alpha word")
    loaded = load_config(tmp_path / "engine.toml", environ={}, cwd=tmp_path)
    async with (
        open_service(loaded) as service,
        service.syncs.serving(),
        serving(service) as running,  # type: ignore[arg-type]
        running.client() as client,
    ):
        yield service, client


async def test_a_sync_is_begun_refused_while_another_runs_and_unknown_sources_are_404(
    server: tuple[Service, httpx2.AsyncClient],
) -> None:
    service, client = server
    path = "/sources/filesystem:docs/sync"
    async with open_store(service.loaded.config.db.path) as store, store.sync_lock("filesystem:docs"):
        assert_envelope(await client.post(path), 409, "conflict")
    assert_envelope(await client.post("/sources/filesystem:none/sync"), 404, "not_found")
    assert_envelope(await client.post(path, json={"full": True}), 400, "bad_request")
    begun = await client.post(path)
    assert begun.status_code == 202
    run = begun.json()["run"]
    assert (run["source"], run["state"], len(run["id"])) == ("filesystem:docs", "running", 16)
    with trio.fail_after(10):
        while not (await client.post("/tools/search", json={"query": "alpha"})).json()["results"]:  # noqa: ASYNC110
            await trio.sleep(0.02)
    (source,) = (await client.get("/tools/sources")).json()["sources"]
    assert (source["document_count"], source["last_error"], source["next_sync"]) == (1, None, None)

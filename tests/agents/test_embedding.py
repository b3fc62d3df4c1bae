"""Vectors that are made while the service runs, of what other processes write."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import trio
from agents_support import Project

from agents import embedding
from agents.service import Service
from knowledge.access import EVERYTHING
from knowledge.sqlite.store import open_store
from knowledge.store import Batch, BrowsableStore, NewDocument, SearchQuery
from knowledge.stores import store_path

Open = Callable[..., AbstractAsyncContextManager[Service]]
QUERY = SearchQuery(query="how do buyers get their money returned", mode="semantic")


async def write(path: Path, source_id: str, text: str) -> None:
    document = NewDocument(source_id=source_id, body=text, chunks=(text,), digest=text)
    async with open_store(path, create=True) as store:
        await store.apply(Batch(source="filesystem:docs", upserts=[document]))


async def first(store: BrowsableStore, source_id: str) -> None:
    """Wait until the document is what the query finds first."""
    with trio.fail_after(30):
        while True:
            hits = (await store.search(QUERY, EVERYTHING)).hits
            if hits and hits[0].source_id == source_id:
                return
            await trio.sleep(0.02)


async def test_what_another_process_writes_gets_vectors_also_that_of_other_tenants_and_after_a_failure(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "EVERY_S", 0.02)
    monkeypatch.setattr(embedding, "AGAIN_S", 0.02)
    project.configure()
    async with opened() as service:
        path = service.loaded.config.db.path
        await write(path, "refunds.md", "Refunds are paid back within a week.")
        await first(service.store, "refunds.md")
        await write(store_path(path, "acme"), "moon.md", "The moon goes around the earth.")
        await first(service.stores.store_of("acme"), "moon.md")
        async with open_store(path) as busy, busy.embedding_lock():  # while another process embeds, it waits
            await write(path, "money.md", "How buyers get their money returned: it is paid to their card.")
            await trio.sleep(0.2)
        await first(service.store, "money.md")

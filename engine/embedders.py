"""The embedders that `[embedding]` names, open until a block ends."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import ModuleType

import trio

from engine.config import Config
from engine.config.models import EmbeddingConfig
from engine.egress.rules import parse_url
from knowledge.embedding import QUERY_S, Embedder, Embedders, fusion, ollama, openai, service
from knowledge.embedding.static import StaticEmbedder

# Where the environment has the key of a service that the configuration has none for, as in ctx.
OPENAI_KEY = "OPENAI_API_KEY"


def trouble(embedding: EmbeddingConfig) -> str | None:
    """Why there is no embedder though one is configured."""
    if embedding.provider in ("local", "path"):
        return f"no embedder {embedding.provider!r} is built in; search is by keyword"
    return None


def place(config: Config) -> str:
    """Where the embedder of the configuration runs."""
    embedding = config.embedding
    if embedding.provider in ("openai", "ollama"):
        return f"at {_origin(_kind(embedding).address(embedding.url))}"
    return "in this process"


@asynccontextmanager
async def open_embedders(
    config: Config, *, environ: Mapping[str, str] | None = None, query_s: float = QUERY_S
) -> AsyncIterator[Embedders | None]:
    """The embedders of the configuration; None where search is by keyword. Before the first text, nothing is asked.

    `environ` is the environment, by default this process's; a search waits `query_s` for an embedder.
    """
    embedding = config.embedding
    if embedding.provider in ("auto", "static"):
        yield Embedders(StaticEmbedder(), query_s=query_s)
    elif embedding.provider in ("openai", "ollama"):
        async with _service(embedding, os.environ if environ is None else environ) as current:
            yield Embedders(current, (StaticEmbedder(),), query_s)
    else:
        yield None


@asynccontextmanager
async def _service(embedding: EmbeddingConfig, environ: Mapping[str, str]) -> AsyncIterator[Embedder]:
    from engine.egress.fetching import open_fetcher  # with what speaks HTTP

    kind = _kind(embedding)
    key = embedding.api_key or (environ.get(OPENAI_KEY) if kind is openai else None)
    settings = service.Settings(
        url=kind.address(embedding.url),
        batch_size=embedding.batch_size,
        max_retries=embedding.max_retries,
        timeout_s=embedding.timeout_secs,
        key=key or None,
    )
    assert embedding.model is not None
    assert embedding.dims is not None
    try:
        async with open_fetcher((settings.url,)) as fetcher, trio.open_nursery() as nursery:
            nursery.start_soon(fetcher.expire)
            yield kind.embedder(embedding.model, embedding.dims, settings, fetcher)
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # The nursery wraps what the block raised; its own task raises nothing.
        if len(group.exceptions) != 1:
            raise
        raise group.exceptions[0] from group.exceptions[0].__cause__


def _origin(url: str) -> str:
    target = parse_url(url)
    return f"{target.scheme}://{target.authority}"


def _kind(embedding: EmbeddingConfig) -> ModuleType:
    return openai if embedding.provider == "openai" else ollama


def settings(config: Config) -> fusion.Settings:
    """What `[retrieval]` says about search by meaning."""
    retrieval = config.retrieval
    return fusion.Settings(
        retrieval.hybrid_alpha,
        retrieval.candidate_k_keyword,
        retrieval.candidate_k_vector,
        retrieval.group_by,
        retrieval.doc_agg,
        retrieval.max_chunks_per_doc,
    )

"""The embedders that `[embedding]` names, open until a block ends."""

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import trio

from engine.config import Config, ConfigError
from engine.config.models import EmbeddingConfig
from engine.egress.rules import parse_url
from engine.embedding.process import ModelProcess, Weights, open_model
from knowledge.embedding import (
    QUERY_S,
    Embedder,
    Embedders,
    EmbeddingError,
    Model,
    fusion,
    minilm,
    ollama,
    openai,
    service,
)
from knowledge.embedding.folder import read_folder
from knowledge.embedding.sentence import SentenceEmbedder
from knowledge.embedding.static import StaticEmbedder
from sandbox.wire.embedding import MAX_PIECES, MAX_TEXTS

# What runs the models of `local` and `path`.
_RUNTIME = "onnxruntime"
# Where the environment has the key of a service that the configuration has none for, as in ctx.
OPENAI_KEY = "OPENAI_API_KEY"
# Queries of one tenant that are embedded at once: by a model, which takes one after the other; by a service.
_AT_ONCE, _ASKED_AT_ONCE = 2, 16


_NOT_INSTALLED = "the model needs the extra `embedding`, which is not installed"
_DAMAGED = "the weights of the model are damaged or gone (SHA-256); install the extra `embedding` again"
_CHANGED = "{file} has changed since the engine started, or is gone; start it again"


def provider(config: Config) -> str:
    """The provider that `auto` stands for, or the configured one."""
    given = config.embedding.provider
    return given if given != "auto" else "local" if installed() else "static"


def installed() -> Path | None:
    """The weights of `local`, where they and what runs them are installed."""
    package = find_spec(minilm.PACKAGE)
    if package is None or package.origin is None or find_spec(_RUNTIME) is None:
        return None
    file = Path(package.origin).parent / minilm.WEIGHTS
    return file if file.is_file() else None


def place(config: Config) -> str:
    """Where the embedder of the configuration runs."""
    embedding, name = config.embedding, provider(config)
    if name in ("openai", "ollama"):
        return f"at {_origin(_kind(embedding).address(embedding.url))}"
    return "in this process" if name == "static" else "in a confined process"


class ConfinedEmbedder(SentenceEmbedder):
    """An `Embedder` by a confined process."""

    def __init__(self, model: Model, vocabulary: Callable[[], Sequence[str]], process: ModelProcess) -> None:
        super().__init__(model, vocabulary, process.run, at_once=MAX_TEXTS, max_pieces=MAX_PIECES)
        self.process = process


@dataclass(frozen=True, slots=True)
class _Missing:
    """An `Embedder` of a model that is not there."""

    model: Model
    reason: str = _NOT_INSTALLED

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        raise EmbeddingError(self.reason)


def _none(model: Model) -> Embedder | None:
    return None


@asynccontextmanager
async def open_embedders(
    config: Config, *, environ: Mapping[str, str] | None = None, query_s: float = QUERY_S, lenient: bool = False
) -> AsyncIterator[Embedders | None]:
    """The embedders of the configuration; None where search is by keyword. Before the first text, nothing is started.

    `environ` is the environment, by default this process's; a search waits `query_s` for one. Raises ConfigError
    for a folder that has no model; with `lenient`, searches answer by words and say so.
    """
    name = provider(config)
    if name == "disabled":
        yield None
        return
    async with AsyncExitStack() as stack:
        before: list[Embedder] = []
        problem: str | None = None
        other: Callable[[Model], Embedder | None] = _none
        if name == "static":
            current: Embedder = StaticEmbedder()
            if installed():  # the default, until the configuration said otherwise
                before.append(await stack.enter_async_context(_local(config)))
        else:
            before.append(StaticEmbedder())
            if name == "local":
                current = await stack.enter_async_context(_local(config))
            elif name == "path":
                try:
                    current = await stack.enter_async_context(_folder(config))
                except ConfigError as error:
                    if not lenient:
                        raise
                    problem = str(error)
                    current = _Missing(Model(name, config.embedding.dims or 1), problem)
            else:
                given = os.environ if environ is None else environ
                current, other = await stack.enter_async_context(_service(config.embedding, given))
        at_once = _ASKED_AT_ONCE if name in ("openai", "ollama") else _AT_ONCE
        yield Embedders(current, before, query_s, at_once, problem, other)


@asynccontextmanager
async def _local(config: Config) -> AsyncIterator[Embedder]:
    """all-MiniLM-L6-v2. Its weights are read, and its process is started, with the first text."""
    file = installed()
    if file is None:
        yield _Missing(minilm.MODEL)
        return
    weights = Weights(file, minilm.SHA256, file.stat().st_size, minilm.DIMS, _DAMAGED)
    async with open_model(config, weights) as process:
        yield ConfinedEmbedder(minilm.MODEL, minilm.vocabulary, process)


@asynccontextmanager
async def _folder(config: Config) -> AsyncIterator[Embedder]:
    """The model in a folder, whose weights are read now: their hash is the model's. Raises ConfigError."""
    path = config.embedding.path
    assert path is not None
    try:
        found = await trio.to_thread.run_sync(read_folder, path, config.embedding.dims)
    except ValueError as error:
        raise ConfigError(f"embedding.path: {path}: {error}") from None
    weights = Weights(found.file, found.model.weights, found.size, found.model.dims, _CHANGED.format(file=found.file))
    if find_spec(_RUNTIME) is None:
        yield _Missing(found.model)
        return
    async with open_model(config, weights) as process:
        yield ConfinedEmbedder(found.model, lambda: found.vocabulary, process)


@asynccontextmanager
async def _service(
    embedding: EmbeddingConfig, environ: Mapping[str, str]
) -> AsyncIterator[tuple[Embedder, Callable[[Model], Embedder | None]]]:
    """The embedder, and what answers for vectors that it made before `dims` was changed."""
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
            current: Embedder = kind.embedder(embedding.model, embedding.dims, settings, fetcher)
            shortens = kind is openai and openai.shortens(embedding.model)

            def of_other_dims(model: Model) -> Embedder | None:
                if not shortens or model.name != current.model.name:
                    return None
                made: Embedder = kind.embedder(embedding.model, model.dims, settings, fetcher)
                return made

            yield current, of_other_dims
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

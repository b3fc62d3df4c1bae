"""Make the vectors that a store lacks: a document at a time, so that whatever ends it, the next pass does the rest."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import trio

from knowledge.embedding import Embedder, EmbeddingError, checked
from knowledge.sqlite.store import SqliteStore

# A pass ends after this many documents in a row that could not be embedded: a service that is down is not asked about
# every document of the store.
MAX_FAILURES = 3


@dataclass(slots=True)
class EmbedReport:
    """Counts of documents. `error` is the last failure's; `pending` are those that have no vectors afterwards."""

    embedded: int = 0
    failed: int = 0
    pending: int = 0
    error: str | None = None


async def embed_pending(
    store: SqliteStore,
    embedder: Embedder,
    *,
    batch_size: int = 64,
    rest: Callable[[float], Awaitable[None]] | None = None,
    on_progress: Callable[[EmbedReport], None] = lambda report: None,
) -> EmbedReport:
    """Embed every document that has no vectors of the embedder's model; when none is left, forget other models'.

    `rest` is called after each batch with the seconds that it took, to leave room for other work. Raises StoreError,
    also for a store that another process is embedding.
    """
    report = EmbedReport()
    async with store.embedding_lock():
        report.pending = await store.pending(embedder.model)
        if not report.pending:
            return report
        number = await store.model_number(embedder.model)
        after = failures = 0
        while failures < MAX_FAILURES and (found := await store.next_pending(number, after)) is not None:
            try:
                made = await _vectors(embedder, found.texts, batch_size, rest)
            except EmbeddingError as error:
                report.failed += 1
                report.error = str(error)
                failures += 1
            else:
                failures = 0
                if not await store.write_vectors(number, found, made):
                    continue  # it has changed meanwhile: once more
                report.embedded += 1
            after = found.n
            report.pending = max(0, report.pending - 1)
            on_progress(report)
        report.pending = await store.pending(embedder.model)
        if not report.pending:
            await store.sweep_vectors(number)
    return report


async def _vectors(
    embedder: Embedder,
    texts: Mapping[bytes, str],
    batch_size: int,
    rest: Callable[[float], Awaitable[None]] | None,
) -> dict[bytes, bytes]:
    """A vector for each text, by its hash."""
    made: dict[bytes, bytes] = {}
    hashes = list(texts)
    for start in range(0, len(hashes), batch_size):
        batch = hashes[start : start + batch_size]
        begun = trio.current_time()
        found = await embedder.embed([texts[hashed] for hashed in batch])
        made.update(zip(batch, checked(found, len(batch), embedder.model), strict=True))
        if rest is not None:
            await rest(trio.current_time() - begun)
    return made

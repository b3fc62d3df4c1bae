"""Make the vectors that a store lacks: a document at a time, so that whatever ends it, the next pass does the rest."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import trio

from knowledge.embedding import Embedder, EmbeddingError, checked
from knowledge.sqlite.store import SqliteStore
from knowledge.sqlite.vectors import Pending

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

    Texts of several documents are one batch for a model at a service, where a request costs more than a text; where one
    of them is refused, each document has a batch of its own. `rest` is called after each batch with the seconds that it
    took, to leave room for other work. Raises StoreError, also for a store that another process is embedding.
    """
    report = EmbedReport()
    async with store.embedding_lock():
        report.pending = await store.pending(embedder.model)
        if not report.pending:
            return report
        number = await store.model_number(embedder.model)
        after = failures = alone = 0  # `alone`: how many documents have a batch of their own, after a refused one
        together = 1 if embedder.model.weights else batch_size
        while failures < MAX_FAILURES and (found := await _documents(store, number, after, 1 if alone else together)):
            alone = max(0, alone - 1)
            try:
                made = await _vectors(embedder, found, batch_size, rest)
            except EmbeddingError as error:
                if len(found) > 1:
                    alone = len(found)
                    continue
                report.failed += 1
                report.error = str(error)
                failures += 1
                after = _done(report, found[0], on_progress)
                continue
            failures = 0
            for document in found:
                if not await store.write_vectors(number, document, {key: made[key] for key in document.texts}):
                    break  # it has changed meanwhile: once more, with what comes after it
                report.embedded += 1
                after = _done(report, document, on_progress)
        report.pending = await store.pending(embedder.model)
        if not report.pending:
            await store.sweep_vectors(number)
    return report


def _done(report: EmbedReport, document: Pending, on_progress: Callable[[EmbedReport], None]) -> int:
    """Count a document, and say behind which number the next one is."""
    report.pending = max(0, report.pending - 1)
    on_progress(report)
    return document.n


async def _documents(store: SqliteStore, model: int, after: int, texts: int) -> list[Pending]:
    """The next documents without vectors, of so many texts together; of at least one document, where one is left."""
    found: list[Pending] = []
    room = texts
    while len(found) < texts and (document := await store.next_pending(model, after)) is not None:
        room -= len(document.texts)
        if found and room < 0:
            break
        found.append(document)
        after = document.n
        if room <= 0:
            break
    return found


async def _vectors(
    embedder: Embedder,
    documents: Sequence[Pending],
    batch_size: int,
    rest: Callable[[float], Awaitable[None]] | None,
) -> dict[bytes, bytes]:
    """A vector for each text, by its hash."""
    made: dict[bytes, bytes] = {}
    texts = {hashed: text for document in documents for hashed, text in document.texts.items()}
    hashes = list(texts)
    for start in range(0, len(hashes), batch_size):
        batch = hashes[start : start + batch_size]
        begun = trio.current_time()
        found = await embedder.embed([texts[hashed] for hashed in batch])
        made.update(zip(batch, checked(found, len(batch), embedder.model), strict=True))
        if rest is not None:
            await rest(trio.current_time() - begun)
    return made

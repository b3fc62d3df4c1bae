"""Search by meaning among very many windows, beside one product with all of them; and how many hits are the same."""

import statistics
from pathlib import Path

from benchmarks.aims.harness import Figures, in_turns
from benchmarks.aims.store import bare
from benchmarks.aims.store.corpus import pages, questions
from benchmarks.aims.store.library import Library
from benchmarks.aims.store.searches import ask
from knowledge.access import EVERYTHING
from knowledge.embedding.fusion import DEFAULT
from knowledge.sqlite.store import open_store
from knowledge.store import Batch, NewDocument, SearchQuery

DOCUMENTS = 20_000
FIRST = 10


async def measure(folder: Path, windows: int, asked: int, rounds: int) -> Figures:
    """`ours` and `bare`: CPU microseconds of each question in each round; `recall`: the share of the same documents."""
    library = Library(folder, questions(list(pages(100)), asked))
    async with open_store(library.store, create=True) as store:
        for start in range(0, DOCUMENTS, 1000):
            names = [str(number) for number in range(start, start + 1000)]
            upserts = [NewDocument(source_id=name, body=name, chunks=(name,), digest="") for name in names]
            await store.apply(Batch(source="filesystem:many", upserts=upserts))
        model = await store.model_number(bare.DrawnEmbedder.model)
    documents, matrix = bare.fill_windows(library.store, model, windows)
    async with library.opened() as store:  # lists are made in a thread
        await ask(store, library.asked[:1], "semantic")
        await store.near.wait()
    seen: dict[str, list[list[float]]] = {"ours": [], "bare": []}
    for row in in_turns(tuple(seen), rounds):
        if row == "bare":
            seen[row].append(bare.ask_matrix(matrix, library.asked, DEFAULT.candidate_k_vector))
        else:
            async with library.opened() as store:
                seen[row].append(await ask(store, library.asked, "semantic"))
    shares = []
    async with library.opened() as store:
        for text, vector in zip(library.asked, bare.vectors_of(library.asked), strict=True):
            found = await store.search(SearchQuery(query=text, mode="semantic", limit=FIRST), EVERYTHING)
            exact = bare.nearest(documents, matrix, vector, FIRST)
            shares.append(len(exact & {int(hit.source_id) for hit in found.hits}) / FIRST)
    return {**seen, "recall": statistics.mean(shares)}

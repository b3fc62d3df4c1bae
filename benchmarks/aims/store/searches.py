"""Searches of a library, each beside the same question to a bare library. Times are CPU time of the process."""

import time
from collections.abc import Sequence

from benchmarks.aims.harness import in_turns
from benchmarks.aims.store import bare
from benchmarks.aims.store.library import Library
from knowledge.access import EVERYTHING
from knowledge.embedding import Embedders
from knowledge.embedding.fusion import DEFAULT
from knowledge.sqlite.store import SqliteStore
from knowledge.store import Mode, SearchQuery
from knowledge.stores import open_stores

LIMIT = 12

# Of each row, what its rounds took: a time for each question, in microseconds.
Rounds = dict[str, list[list[float]]]


async def ask(store: SqliteStore, texts: Sequence[str], mode: Mode) -> list[float]:
    """CPU microseconds of each question, after one that is not counted."""
    taken = []
    for text in (f"{texts[-1]} {texts[0]}", *texts):
        began = time.process_time_ns()
        answer = await store.search(SearchQuery(query=text, mode=mode, limit=LIMIT), EVERYTHING)
        taken.append((time.process_time_ns() - began) / 1e3)
        assert answer.hits
        assert not answer.warnings
    return taken[1:]


async def search(library: Library, rounds: int) -> Rounds:
    """By words, by meaning and by both, and bare words and vectors, in turns."""
    async with library.opened() as store:  # as vectors, postings are ready
        await ask(store, library.asked[:1], "keyword")
        await store.words.wait()
    matrix = bare.matrix_of(library.store)
    modes: dict[str, Mode] = {"keyword": "keyword", "semantic": "semantic", "hybrid": "hybrid"}
    seen: Rounds = {name: [] for name in (*modes, "bare words", "bare vectors")}
    for row in in_turns(tuple(seen), rounds):
        if row == "bare words":
            with bare.bare_index(library.bare) as index:
                taken = index.ask(library.asked, LIMIT)
        elif row == "bare vectors":
            taken = bare.ask_matrix(matrix, library.asked, DEFAULT.candidate_k_vector)
        else:
            async with library.opened() as store:
                taken = await ask(store, library.asked, modes[row])
        seen[row].append(taken)
    return seen


async def first(library: Library, mode: Mode, times: int) -> tuple[list[float], list[float]]:
    """CPU microseconds of an idle tenant's first question, and of its second: each question is in both places once."""
    asked = library.asked[:times]
    firsts: list[float] = []
    seconds: list[float] = []
    for number, text in enumerate(asked):
        embedders = Embedders(bare.DrawnEmbedder())
        async with open_stores({}, lambda _: library.store, lambda _: {}, embedders=embedders) as stores:
            store = stores.store_of("idle")
            for question, taken in ((text, firsts), (asked[number - 1], seconds)):
                began = time.process_time_ns()
                await store.search(SearchQuery(query=question, mode=mode, limit=LIMIT), EVERYTHING)
                taken.append((time.process_time_ns() - began) / 1e3)
    return firsts, seconds

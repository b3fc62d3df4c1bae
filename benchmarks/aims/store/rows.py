"""The rows of the table of aims that are of the store: their aims, and what measures them."""

import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from benchmarks.aims.harness import Figures, compared, in_folder, of_all, p50s
from benchmarks.aims.rows import Aim, Found
from benchmarks.aims.store import embedding, files, library, million, searches, served
from benchmarks.report.figures import percentile

BARE_WORDS = "bare FTS5, OR with bm25()"
BARE_VECTORS = "numpy product, argpartition"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured: chunks of a store and the questions to it, files of a folder, documents that change while
    a server is searched, idle tenants, texts that are embedded; and windows, where there are many.
    """

    chunks: int = 100_000
    asked: int = 100
    files: int = 10_000
    changed: int = 2_000
    tenants: int = 1_000
    texts: int = 64
    windows: int = 0


QUICK = Sizes(chunks=5_000, asked=40, files=1_000, changed=200, tenants=50, texts=16)
LARGE = Sizes(files=100_000, changed=10_000, windows=1_000_000)

Part = tuple[Sequence[Aim], Callable[[], Sequence[Found]]]


def parts(sizes: Sizes, rounds: int) -> dict[str, Part]:
    """The parts by name."""
    found = {
        "store": _searched(sizes, max(2, rounds // 2)),
        "store-files": _of_files(sizes, rounds),
        "store-served": _beside_sync(sizes),
        "store-idle": _idle(sizes, max(1, rounds // 2)),
        "store-embedding": _embedding(sizes, max(2, rounds // 2)),
    }
    if sizes.windows:
        found["store-million"] = _million(sizes, max(2, rounds // 2))
    return found


def _searched(sizes: Sizes, rounds: int) -> Part:
    amount = f"{sizes.chunks:,} chunks"
    p50, p99 = (
        Aim(what=f"keyword search, {amount}, {name}", beside=BARE_WORDS, least=0.5, aim=0.1) for name in ("p50", "p99")
    )
    semantic = Aim(what=f"semantic search, {amount}, p50", beside=BARE_VECTORS, least=2.0, aim=1.2)
    hybrid = Aim(what=f"hybrid search, {amount}, p50", beside="keyword + semantic", least=1.3, aim=1.1)
    filling = Aim(
        what=f"sync of Markdown, {amount}, MB/s", beside="bare FTS5 inserts", better="more", least=0.3, aim=0.6
    )
    first = {
        "keyword": Aim(what=f"first keyword search of an idle tenant, {amount}", beside="its second", least=20, aim=5),
        "semantic": Aim(what=f"first semantic search, {amount}", beside="its second", least=20, aim=5),
    }
    aims = (filling, p50, p99, semantic, hybrid, *first.values())

    async def measure(folder: Path) -> list[Found]:
        made = await library.filled(folder, sizes.chunks, sizes.asked)
        ours, beside = ([made.megabytes / taken for taken in each] for each in (made.ours_s, made.bare_s))
        found = [compared(filling, ours, beside, "{:.1f} MB/s".format)]
        seen = await searches.search(made, rounds)
        halves = {name: p50s(turns) for name, turns in seen.items()}
        both = [sum(pair) for pair in zip(halves["keyword"], halves["semantic"], strict=True)]
        slow, bare_slow = ([of_all(seen[name], 0.99)] for name in ("keyword", "bare words"))
        found += [
            compared(p50, halves["keyword"], halves["bare words"], _ms),
            compared(p99, slow, bare_slow, _ms),
            compared(semantic, halves["semantic"], halves["bare vectors"], _ms),
            compared(hybrid, halves["hybrid"], both, _ms),
        ]
        for mode, aim in first.items():
            pair = await searches.first(made, "semantic" if mode == "semantic" else "keyword", min(30, sizes.asked))
            once, again = ([statistics.median(each)] for each in pair)
            found.append(compared(aim, once, again, _ms))
        return found

    return aims, partial(_in_folder, measure)


def _of_files(sizes: Sizes, rounds: int) -> Part:
    unchanged = Aim(what=f"sync with nothing changed, {sizes.files:,} files", beside="os.scandir, stat", least=4, aim=2)
    memory = Aim(what=f"memory, sync of {sizes.files:,} documents", beside=f"sync of {files.FEW}", least=1.5, aim=1.2)

    async def measure(folder: Path) -> list[Found]:
        seen = await files.measure(folder, sizes.files, rounds)
        many, few = seen["many"], seen["few"]
        return [
            compared(unchanged, seen["ours"], seen["bare"], lambda taken: _ms(1e6 * taken)),
            compared(memory, [many], [few], "{:.0f} MiB".format),
        ]

    return (unchanged, memory), partial(_in_folder, measure)


def _beside_sync(sizes: Sizes) -> Part:
    aim = Aim(what=f"search p99 while {sizes.changed:,} documents change", beside="itself in quiet", least=2, aim=1.3)

    async def measure(folder: Path) -> list[Found]:
        seen = await served.beside_sync(folder, sizes.changed)
        busy, quiet = ([1e6 * percentile(seen[name], 0.99)] for name in ("busy", "quiet"))
        return [compared(aim, busy, quiet, _ms)]

    return (aim,), partial(_in_folder, measure)


def _idle(sizes: Sizes, rounds: int) -> Part:
    aim = Aim(
        what=f"memory, serving {sizes.tenants:,} idle tenants", beside="without their stores", least=1.05, aim=1.0
    )

    async def measure(folder: Path) -> list[Found]:
        seen: dict[bool, list[float]] = {True: [], False: []}
        for number in range(rounds):
            for stores, taken in seen.items():
                one = folder / f"{number}-{stores}"
                one.mkdir()
                taken.append(await served.idle(one, sizes.tenants, stores))
        return [compared(aim, seen[True], seen[False], "{:.0f} MB".format)]

    return (aim,), partial(_in_folder, measure)


def _million(sizes: Sizes, rounds: int) -> Part:
    amount = f"{sizes.windows:,} windows"
    time = Aim(what=f"semantic search, {amount}, p50", beside=BARE_VECTORS, least=0.3, aim=0.05)
    recall = Aim(what=f"semantic search, {amount}, recall@10", beside="exact", better="more", least=0.98, unit="")

    async def measure(folder: Path) -> list[Found]:
        seen: Figures = await million.measure(folder, sizes.windows, sizes.asked, rounds)
        return [compared(time, p50s(seen["ours"]), p50s(seen["bare"]), _ms), Found(aim=recall, figure=seen["recall"])]

    return (time, recall), partial(_in_folder, measure)


def _embedding(sizes: Sizes, rounds: int) -> Part:
    aim = Aim(
        what="embedding, local, chunks/s", beside="bare onnxruntime, same batches", better="more", least=0.8, aim=0.95
    )

    def measure() -> list[Found]:
        if not embedding.is_installed():
            return [Found(aim=aim, why="the model is not installed (the extra `embedding`)")]
        seen = trio.run(embedding.measure, sizes.texts, rounds)
        return [compared(aim, seen["ours"], seen["bare"], "{:.1f}/s".format)]

    return (aim,), measure


def _in_folder(measure: Callable[[Path], Awaitable[Sequence[Found]]]) -> Sequence[Found]:
    return trio.run(in_folder, measure)


def _ms(us: float) -> str:
    return f"{us / 1e3:.1f} ms" if us < 1e6 else f"{us / 1e6:.2f} s"

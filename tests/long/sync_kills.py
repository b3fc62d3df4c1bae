"""Syncs of each connector, killed at random points and begun again, end with what an undisturbed one gives.

Real processes of `engine sync`, SIGKILL, a source that changes meanwhile, and searches between, which bring what is
derived beside the store up to date. `make soak` runs 50 points of each kind, and `test_short.py` two. Run alone:
`python tests/long/sync_kills.py --kinds git,web --points 10`.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import apsw
import s3_support
import sync_sources
import trio
import warm_start
from cli_support import inherited
from sync_sources import Source

from knowledge.access import EVERYTHING
from knowledge.embedding import Embedders
from knowledge.embedding.static import StaticEmbedder
from knowledge.postings import file as postings_file
from knowledge.sqlite import indexing, postings, sidecar
from knowledge.sqlite.store import open_store
from knowledge.store import MODES, SearchQuery

# Documents of a source. Of the web and of a bucket each is a request.
COUNT = 150
# The stores are compared after so many kills: what is changed later would hide what an earlier one did.
ROUND = 5
# Lines of progress of a sync: the kills of a short run come behind one of them.
LINES = 5
# `engine sync` with small batches, so that there are many to be killed between.
_ENGINE = """
import knowledge.sync
from cli.main import main
knowledge.sync.BATCH_DOCUMENTS = 8
main()
"""
WORDS = ("amber", "basalt", "cedar", "dune", "ember", "fjord", "grove", "heath", "inlet", "jetty")
KINDS: Mapping[str, Callable[[Path], AbstractContextManager[Source]]] = {
    **sync_sources.KINDS, "versitygw": partial(sync_sources.s3, server=s3_support.versitygw),
}  # fmt: skip


def text(n: int, turn: int, chance: random.Random) -> str:
    """A document of some chunks: no two are alike."""
    parts = (" ".join(chance.choice(WORDS) for _ in range(60)) for _ in range(1 + n % 5))
    return f"# Document {n}\n\nversion {turn}\n\n" + "\n\n## Part\n\n".join(parts) + "\n"


@dataclass
class Figures:
    """What happened: syncs that were killed, and that had ended before; and what differs from an undisturbed one."""

    kind: str
    killed: int = 0
    ended: int = 0
    documents: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass
class _Moments:
    """When syncs are killed: at any moment of as long as the last one took, or behind any of a few lines of theirs."""

    chance: random.Random
    by_line: bool
    # Seconds that a sync took since its first line, with `--full` and without.
    spans: dict[bool, float] = field(default_factory=dict)

    def wait(self, process: "subprocess.Popen[str]", full: bool) -> None:
        assert process.stderr is not None
        lines = self.chance.randint(1, LINES) if self.by_line else 1
        for _ in range(lines):
            process.stderr.readline()
        time.sleep(self.chance.uniform(0.0, 0.01 if self.by_line else self.spans[full]))


def kill_often(kind: str, *, points: int, seed: int, count: int = COUNT, by_line: bool = False) -> Figures:
    """Kill syncs of one kind of source at so many points, then compare the store with one that was never disturbed."""
    chance = random.Random(seed)
    figures, moments = Figures(kind), _Moments(chance, by_line)
    with tempfile.TemporaryDirectory() as name, _derived_early():
        folder = Path(name)
        (folder / "source").mkdir()
        with KINDS[kind](folder / "source") as source:
            hurt, calm = (_project(folder / each, source) for each in ("hurt", "calm"))
            alive = set(range(count))
            for n in alive:
                source.put(n, text(n, 0, chance))
            source.changed()
            if not by_line:
                span_s, figures.problems = _whole(calm)
                moments.spans = {False: span_s, True: span_s}
            turn = 0
            while figures.killed < points and turn < 3 * points and not figures.problems:
                full = chance.random() < 0.3  # it mends what an earlier one did wrong: only in some rounds
                for _ in range(min(ROUND, points - figures.killed)):
                    turn += 1
                    _kill(hurt, figures, moments, full and chance.random() < 0.6)
                    if chance.random() < 0.3:
                        trio.run(answers, hurt)
                    for n in chance.sample(sorted(alive), max(1, count // 10)):
                        gone = chance.random() < 0.1 and len(alive) > count // 2
                        source.put(n, None if gone else text(n, turn, chance))
                        alive -= {n} if gone else set()
                    source.changed()
                figures.problems += _whole(hurt)[1] + _whole(calm)[1] + _differences(figures, hurt, calm)
                if figures.documents != len(alive) + source.extra:
                    figures.problems.append(f"{figures.documents} documents of {len(alive)}")
            if figures.killed < points and not figures.problems:
                figures.problems.append(f"only {figures.killed} syncs were killed")
    return figures


@contextmanager
def _derived_early() -> Iterator[None]:
    """Searches use what is derived beside a store, however little the store holds."""
    with (
        mock.patch.object(indexing, "MIN_CHUNKS", 1),
        mock.patch.object(sidecar, "MIN_ROWS", 1),
        mock.patch.multiple(postings, MAX_READ=0, _APART_S=0.0, _LEAST_CHUNKS=64),
    ):
        yield


def _project(folder: Path, source: Source) -> Path:
    folder.mkdir()
    (folder / "engine.toml").write_text(source.table + '[embedding]\nprovider = "static"\n')
    return folder


def _sync(project: Path, *options: str) -> "subprocess.Popen[str]":
    # Warm: a process of its own takes longer to begin than its sync, fifty times.
    return warm_start.Popen(
        [sys.executable, "-c", _ENGINE, "sync", "all", "--progress", "json", *options],
        cwd=project, env=inherited() | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def _whole(project: Path) -> tuple[float, list[str]]:
    """A sync that nothing disturbs: the seconds since it began to read its source, and what went wrong."""
    process = _sync(project)
    assert process.stderr is not None
    said = process.stderr.readline()
    began = time.monotonic()
    said += process.stderr.read()
    process.stderr.close()
    took_s = time.monotonic() - began
    problems = [] if process.wait() == 0 else [f"{project.name}: exit {process.returncode}: {said[-300:]}"]
    return took_s, problems


def _kill(project: Path, figures: Figures, moments: _Moments, full: bool) -> None:
    process = _sync(project, *(["--full"] if full else []))
    began = time.monotonic()
    moments.wait(process, full)
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)  # and not its group: what it started finds its own end
    if process.wait() == -signal.SIGKILL:
        figures.killed += 1
    else:
        figures.ended += 1
        moments.spans[full] = min(moments.spans.get(full, 1.0), time.monotonic() - began)
    assert process.stderr is not None
    process.stderr.close()


def _differences(figures: Figures, hurt: Path, calm: Path) -> list[str]:
    answered, found = trio.run(answers, hurt), contents(hurt)
    as_answered, expected = trio.run(answers, calm), contents(calm)
    figures.documents = len(expected["documents"])
    differ = [f"{part} differ" for part in expected if found[part] != expected[part]]
    return differ + ([] if answered == as_answered else ["answers differ"])


async def answers(project: Path) -> list[Any]:
    """Answers of a store by what is derived beside it, which is made first."""
    async with open_store(project / "data/engine.sqlite", create=True, embedders=Embedders(StaticEmbedder())) as store:
        await store.search(SearchQuery(query="any"), EVERYTHING)
        await store.words.wait()
        found = []
        for mode in MODES:
            for words in ("amber", "cedar dune", "version 1", "document 7", '"heath inlet"'):
                answer = await store.search(SearchQuery(query=words, mode=mode, limit=50), EVERYTHING)
                # Scores of vectors are sums of a matrix product, whose order is that of its rows.
                hits = [(hit.source_id, hit.lines, round(hit.score, 5)) for hit in answer.hits]
                found.append((mode, words, sorted(hits, key=lambda hit: (-hit[2], *hit[:2]))))
        return found


def contents(project: Path) -> dict[str, Any]:
    """Everything in a store that does not depend on when it was written."""
    db = apsw.Connection(str(project / "data/engine.sqlite"))
    try:
        damage = [row for (row,) in db.execute("PRAGMA integrity_check")]
        db.execute("INSERT INTO words(words) VALUES ('integrity-check')")
        ids: dict[Any, Any] = {row[0]: row[1] for row in db.execute("SELECT n, source_id FROM documents")}

        def place(chunk: int) -> tuple[str, int]:
            return ids.get(chunk >> 24, "(none)"), chunk & (1 << 24) - 1

        def by_chunk(sql: str) -> list[Any]:
            return sorted(((*place(row[0]), *row[1:]) for row in db.execute(sql)), key=repr)

        base = postings_file.read(postings.path_of(project / "data/engine.sqlite"))
        assert base is not None, "a search of the store makes the postings"
        counted = [
            (key, *place(int(segment.chunks[row])), int(units))
            for segment, live in zip(*base[1:], strict=True)
            for key, first, last in zip(segment.keys.tolist(), segment.starts, segment.starts[1:], strict=False)
            for row, units in zip(segment.rows[first:last], segment.units[first:last], strict=True)
            if live[row]
        ]
        db.execute("CREATE VIRTUAL TABLE temp.instances USING fts5vocab(main, words, instance)")
        return {
            "integrity": damage,
            "documents": db.execute(
                "SELECT id, source_id, source_url, title, author, content_type, chunk_count, digest, metadata, body "
                "FROM documents ORDER BY source_id"
            ).fetchall(),
            "checkpoint": db.execute("SELECT label, checkpoint, last_error FROM sources").fetchall(),
            "chunks": by_chunk("SELECT chunk, text FROM chunks"),
            "places": by_chunk("SELECT chunk, first_line, last_line, page, heading FROM places"),
            "words": by_chunk("SELECT doc, term, col, offset FROM temp.instances"),
            "postings": sorted(counted),
            "vectors": by_chunk("SELECT w.chunk, v.text, v.vector FROM windows w JOIN vectors v ON v.n = w.vector"),
            "embedded": sorted(ids[n] for (n,) in db.execute("SELECT document FROM embedded")),
        }
    finally:
        db.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--points", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    failed = False
    for kind in asked.kinds.split(","):
        if kind == "versitygw" and s3_support.versitygw_path() is None:
            print(s3_support.VERSITYGW_MISSING)
            continue
        began = time.monotonic()
        figures = kill_often(kind, points=asked.points, seed=asked.seed)
        failed = failed or bool(figures.problems)
        took = f"{time.monotonic() - began:.0f} s"
        print(
            f"{kind}: {figures.killed} killed, {figures.ended} had ended, {figures.documents} documents, {took}; "
            f"{'; '.join(figures.problems) or 'equal to an undisturbed one'}",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Syncs of each connector, killed at random points and begun again, end with what an undisturbed one gives.

Real processes of `engine sync`, SIGKILL, a source that changes meanwhile. `make soak` runs 50 points of each kind, and
`test_short.py` a few of the two cheapest. Run alone: `python tests/long/sync_kills.py --kinds git,web --points 10`.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import warm_start
from cli_support import inherited
from git_support import Repository
from s3_support import KEYS, client, moto
from web_support import page, site

# Documents of a source. Of the web and of a bucket each is a request.
COUNT = 150
# `engine sync` with small batches, so that there are many to be killed between.
_ENGINE = """
import knowledge.sync
from cli.main import main
knowledge.sync.BATCH_DOCUMENTS = 8
main()
"""

SCAN = """
connector = {}
function connector.scan(config, context)
    local first = context.checkpoint or 0
    local log = json.parse(fs.read("log.json"))
    for n = first + 1, #log do
        local event = log[n]
        if event.gone then context.deleted(event.id) else
            context.emit({ source_id = event.id, body = event.body }, n)
        end
    end
    return { checkpoint = #log }
end
"""


def text(n: int, turn: int, chance: random.Random) -> str:
    """A document of some chunks: no two are alike."""
    words = ("amber", "basalt", "cedar", "dune", "ember", "fjord", "grove", "heath", "inlet", "jetty")
    parts = (" ".join(chance.choice(words) for _ in range(60)) for _ in range(1 + n % 5))
    return f"# Document {n}\n\nversion {turn}\n\n" + "\n\n## Part\n\n".join(parts) + "\n"


@dataclass
class Source:
    """A source of documents: its table of the configuration, and how it is changed (None: the document is gone)."""

    table: str
    put: Callable[[int, str | None], None]
    changed: Callable[[], object] = lambda: None


@contextmanager
def _filesystem(folder: Path) -> Iterator[Source]:
    def put(n: int, body: str | None) -> None:
        file = folder / f"d{n % 7}/f{n}.md"
        file.parent.mkdir(exist_ok=True)
        file.unlink(missing_ok=True) if body is None else file.write_text(body)

    yield Source(f'[connectors.filesystem.x]\nroot = "{folder}"\n', put)


@contextmanager
def _git(folder: Path) -> Iterator[Source]:
    repository = Repository(folder / "repository")

    def put(n: int, body: str | None) -> None:
        name = f"d{n % 7}/f{n}.md"
        if body is None:
            (repository.path / name).unlink(missing_ok=True)
        else:
            repository.write(name, body)

    yield Source(f'[connectors.git.x]\nurl = "{repository.url}"\n', put, repository.commit)


@contextmanager
def _s3(folder: Path) -> Iterator[Source]:
    with moto() as endpoint:
        s3 = client(endpoint)
        s3.create_bucket(Bucket="papers")

        def put(n: int, body: str | None) -> None:
            key = f"d{n % 7}/f{n}.md"
            if body is None:
                s3.delete_object(Bucket="papers", Key=key)
            else:
                s3.put_object(Bucket="papers", Key=key, Body=body.encode())

        keys = "".join(f'{name} = "{value}"\n' for name, value in KEYS.items())
        yield Source(f'[connectors.s3.x]\nbucket = "papers"\nendpoint_url = "{endpoint}"\n{keys}', put)
        s3.close()


@contextmanager
def _web(folder: Path) -> Iterator[Source]:
    with site() as server:
        there: set[int] = set()

        def put(n: int, body: str | None) -> None:
            there.discard(n) if body is None else there.add(n)
            if body is None:
                server.pages.pop(f"/d{n % 7}/f{n}", None)
            else:
                server.pages[f"/d{n % 7}/f{n}"] = page(f"Document {n}", text=body)

        def changed() -> None:
            server.pages["/"] = page("Home", *(f"/d{n % 7}/f{n}" for n in sorted(there)))

        keys = f'urls = ["{server.url}/"]\nfollow = true\ndelay_s = 0.0\n'
        yield Source(f"[connectors.web.x]\n{keys}", put, changed)


@contextmanager
def _script(folder: Path) -> Iterator[Source]:
    log: list[dict[str, Any]] = []
    file = folder / "log.json"

    def put(n: int, body: str | None) -> None:
        log.append({"id": f"f{n}", "gone": True} if body is None else {"id": f"f{n}", "body": body})

    def changed() -> None:
        file.with_suffix(".new").write_text(json.dumps(log))
        file.with_suffix(".new").rename(file)

    (folder / "scan.lua").write_text(SCAN)
    keys = "limits = { http_bytes = 8388608, host_calls = 100000, memory_bytes = 268435456 }\n"
    yield Source(f'[connectors.script.x]\npath = "{folder}/scan.lua"\n{keys}', put, changed)


KINDS: Mapping[str, Callable[[Path], Any]] = {
    "filesystem": _filesystem, "git": _git, "s3": _s3, "web": _web, "script": _script,
}  # fmt: skip


@dataclass
class Figures:
    """What happened: how many syncs were killed, and how many of these had written something that remained."""

    kind: str
    killed: int = 0
    ended: int = 0
    documents: int = 0
    problems: list[str] = field(default_factory=list)


def _sync(project: Path, *options: str) -> "subprocess.Popen[str]":
    # Warm: a process of its own takes longer to begin than its sync, fifty times.
    return warm_start.Popen(
        [sys.executable, "-c", _ENGINE, "sync", "all", "--progress", "json", *options],
        cwd=project, env=inherited() | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def kill_often(kind: str, *, points: int, seed: int, count: int = COUNT) -> Figures:
    """Kill syncs of one kind of source at so many points, then compare the store with one that was never disturbed."""
    chance = random.Random(seed)
    figures = Figures(kind)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "source").mkdir()
        with KINDS[kind](folder / "source") as source:
            hurt, calm = (_project(folder / each, source) for each in ("hurt", "calm"))
            alive = set(range(count))
            for n in alive:
                source.put(n, text(n, 0, chance))
            source.changed()
            span_s, figures.problems = _whole(calm)
            for turn in range(1, points + 1):
                _kill(hurt, figures, chance.uniform(0.0, 0.7 * span_s), chance.random() < 0.3)
                for n in chance.sample(sorted(alive), max(1, count // 10)):
                    gone = chance.random() < 0.1 and len(alive) > count // 2
                    source.put(n, None if gone else text(n, turn, chance))
                    alive -= {n} if gone else set()
                source.changed()
            figures.problems += _whole(hurt)[1] + _whole(calm)[1]
            found, expected = contents(hurt), contents(calm)
            figures.documents = len(expected["documents"])
            figures.problems += [f"{part} differ" for part in expected if found[part] != expected[part]]
            if figures.documents != len(alive) + (kind == "web"):
                figures.problems.append(f"{figures.documents} documents of {len(alive)}")
    return figures


def _project(folder: Path, source: Source) -> Path:
    folder.mkdir()
    (folder / "engine.toml").write_text(source.table + '[embedding]\nprovider = "static"\n')
    return folder


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


def _kill(project: Path, figures: Figures, after_s: float, full: bool) -> None:
    process = _sync(project, *(["--full"] if full else []))
    assert process.stderr is not None
    process.stderr.readline()  # it has begun to read the source
    time.sleep(after_s)
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)  # and not its group: what it started finds its own end
        figures.killed += 1
    else:
        figures.ended += 1
    process.wait()
    process.stderr.close()


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

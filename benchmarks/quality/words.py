"""Bare FTS5, in a process of its own: one table of all chunks, any word of a question, `bm25()`, nothing else."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

from benchmarks.quality.corpus import Chunk

# Chunks that a question may find.
_DEPTH = 400

_WORD = re.compile(r"\w+")

_BARE = """
import json, sys, apsw
given = json.load(sys.stdin)
db = apsw.Connection(":memory:")
db.execute(f"CREATE VIRTUAL TABLE chunks USING fts5(title, text, tokenize = '{given['tokenizer']}')")
db.executemany("INSERT INTO chunks(rowid, title, text) VALUES (?, ?, ?)", given["rows"])
sql = "SELECT rowid, -bm25(chunks) FROM chunks WHERE chunks MATCH ? ORDER BY bm25(chunks), rowid LIMIT ?"
print(json.dumps([list(db.execute(sql, (each, given["depth"]))) if each else [] for each in given["queries"]]))
"""


def search(chunks: Sequence[Chunk], asked: Mapping[str, str], tokenizer: str) -> dict[str, list[tuple[Chunk, float]]]:
    """By question, the best chunk of each document and its score, the best first."""
    given = {
        "tokenizer": tokenizer,
        "rows": [(index, each.title, each.text) for index, each in enumerate(chunks)],
        "queries": [" OR ".join(f'"{word}"' for word in _WORD.findall(text)) for text in asked.values()],
        "depth": _DEPTH,
    }
    # Text with SQL is for the packages with stores; so is the module.
    ran = subprocess.run(
        [sys.executable, "-c", _BARE], input=json.dumps(given), capture_output=True, text=True, check=True
    )
    found = {}
    for question, rows in zip(asked, json.loads(ran.stdout), strict=True):
        best: dict[str, tuple[Chunk, float]] = {}
        for index, score in rows:
            best.setdefault(chunks[index].source_id, (chunks[index], score))
        found[question] = list(best.values())
    return found

"""Bring a store of an older schema up to this one's, in place: in steps of whole documents, each one transaction.

A step that was killed is done again; the table `upgrade` says how far it came. Several processes may take part.
"""

import logging

import apsw

from knowledge.sqlite import indexing, writing
from knowledge.sqlite.indexing import Worded
from knowledge.sqlite.schema import (
    LABELLED,
    LABELS,
    PLACES,
    SCHEMA_VERSION,
    SYNCS,
    VECTORS,
    WORD_CHANGES,
    WORDS,
    chunk_range,
    is_upgrading,
)  # fmt: skip
from storage.lanes import at_once, rows

log = logging.getLogger("knowledge")

# A step ends when it has passed this many documents, or this many characters of bodies: bounded memory, and a bounded
# wait for another process that writes.
STEP_DOCUMENTS = 256
STEP_CHARACTERS = 4 * 1024 * 1024


def begin(db: apsw.Connection) -> None:
    """Begin the upgrade of a file that has been checked to be a store. Call `step` until it returns False."""
    version, count = db.pragma("user_version"), rows(db, "SELECT count(*) FROM documents")[0][0]
    log.info(
        "upgrading a store of %d documents to schema %d: lines, headings and stems of its chunks are computed from the "
        "stored texts; no text is removed",
        count, SCHEMA_VERSION,
    )  # fmt: skip
    if version < SCHEMA_VERSION:
        at_once(_begin, db)


def _begin(db: apsw.Connection) -> None:
    if db.pragma("user_version") == 1:  # the lock is ours; another process may have been faster
        rows(db, PLACES + SYNCS + "CREATE TABLE upgrade(passed INTEGER NOT NULL); INSERT INTO upgrade VALUES (0);")
        rows(db, VECTORS)
        rows(db, WORD_CHANGES)
        rows(db, "ALTER TABLE chunks RENAME TO old_chunks;" + WORDS)
        rows(db, LABELS)
        for column in LABELLED:
            db.execute(f"ALTER TABLE sources ADD COLUMN {column}")
        db.pragma("user_version", SCHEMA_VERSION)


def step(db: apsw.Connection) -> bool:
    """Do the next documents; False when none is left and the store is current."""
    return at_once(_step, db)


def _step(db: apsw.Connection) -> bool:
    if not is_upgrading(db):
        return False
    passed = rows(db, "SELECT passed FROM upgrade")[0][0]
    worded: list[Worded] = []
    characters, more = 0, True
    while len(worded) < STEP_DOCUMENTS and characters < STEP_CHARACTERS:
        sql = "SELECT n, body, content_type, title FROM documents WHERE n > ? ORDER BY n LIMIT 1"
        found = rows(db, sql, (passed,))
        if not found:
            more = False
            break
        passed, body, content_type, title = found[0]
        sql = "SELECT text FROM old_chunks WHERE rowid BETWEEN ? AND ? ORDER BY rowid"
        chunks = [text for (text,) in rows(db, sql, chunk_range(passed))]
        writing.write_chunks(db, passed, chunks)
        writing.place(db, passed, body, content_type, chunks)
        worded.append(Worded(passed, title, chunks))
        characters += len(body)
    indexing.index(db, worded, indexing.language(db))
    if more:
        db.execute("UPDATE upgrade SET passed = ?", (passed,))
    else:
        db.execute("DROP TABLE old_chunks")
        db.execute("DROP TABLE upgrade")
    return more

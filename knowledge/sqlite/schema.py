"""The tables of a store; creating them, and checking that a file has them."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

import apsw

from knowledge.store import MAX_CHUNKS, StoreError
from knowledge.words import DEFAULT_LANGUAGE
from storage.lanes import at_once, rows

SCHEMA_VERSION = 2
APPLICATION_ID = 0x6B6E6F77  # "know": tells our files from other programs' SQLite files

# Chunk i of document n is row n * MAX_CHUNKS + i of `chunks` and of the index, so a match in the index alone says which
# document it is of, and a document's chunks are one range.
CHUNK_BITS = MAX_CHUNKS.bit_length() - 1

# The versions for writing and reading in the header of a file with a write-ahead log (sqlite.org/fileformat.html).
_WAL = b"\x02\x02"
# How the name of a store's file ends while it is made.
NEW = ".new"

# Where a chunk stands, by its row in `chunks`, and the SHA-256 of a document's body. The latter is not in `documents`:
# behind the body, it would be read over all pages of the body.
PLACES = """
CREATE TABLE places(
    chunk INTEGER PRIMARY KEY, first_line INTEGER NOT NULL, last_line INTEGER NOT NULL, page INTEGER, heading TEXT
);
CREATE TABLE bodies(n INTEGER PRIMARY KEY, sha256 TEXT NOT NULL);
"""

# How the last synchronisation of a source ended: the first items that it did not store, and how many there were. And
# when a server does the next one.
SYNCS = """
CREATE TABLE syncs(
    source INTEGER PRIMARY KEY, skipped TEXT NOT NULL DEFAULT '[]', skipped_count INTEGER NOT NULL DEFAULT 0,
    next_sync TEXT
);
"""

# The texts of chunks, and the index of their words. The index holds no text of its own ("contentless"): what is derived
# from a text is found and never shown. `indexed` has one row: the language of the derived forms, and, while another one
# replaces it, the one before and the last document that has been passed.
WORDS = f"""
CREATE TABLE chunks(chunk INTEGER PRIMARY KEY, text TEXT NOT NULL);
CREATE VIRTUAL TABLE words USING fts5(
    title, text, title_forms, text_forms,
    tokenize = 'unicode61 remove_diacritics 2', content = '', contentless_delete = 1
);
CREATE TABLE indexed(language TEXT NOT NULL, previous TEXT, passed INTEGER NOT NULL);
INSERT INTO indexed VALUES ('{DEFAULT_LANGUAGE}', NULL, 0);
"""
# Which documents have had their words changed, in the order of the changes, for the postings beside the store
# (`postings.py`). Never empty; it begins at random.
WORD_CHANGES = """
CREATE TABLE word_changes(at INTEGER PRIMARY KEY, n INTEGER NOT NULL);
INSERT INTO word_changes VALUES (abs(random() >> 16), 0);
"""

# The labels of documents; most have none. `own`: they came with the item. `changes` counts, for each set of labels, the
# transactions that changed documents with that set. Not a column of `documents`, for the reason above.
LABELS = """
CREATE TABLE labels(
    n INTEGER NOT NULL, label TEXT NOT NULL, own INTEGER NOT NULL, PRIMARY KEY(n, label)
) WITHOUT ROWID;
CREATE TABLE changes(
    source INTEGER NOT NULL, labels TEXT NOT NULL, count INTEGER NOT NULL, PRIMARY KEY(source, labels)
) WITHOUT ROWID;
"""
# By which configuration the documents of a source are labelled, and since when; NULL: not by any.
LABELLED = ("access TEXT", "labelled_at REAL")

# What a chunk means (`vectors.py`): windows of chunks, each with the vector of its text; `text` is that text's SHA-256.
# `recipe`: by which version of `windows.py` they were cut.
# AUTOINCREMENT: the number of a window is never used again, so a sidecar that has it knows what it is of.
VECTORS = """
CREATE TABLE models(
    n INTEGER PRIMARY KEY, name TEXT NOT NULL, dims INTEGER NOT NULL, weights TEXT NOT NULL, recipe INTEGER NOT NULL,
    mark BLOB NOT NULL, UNIQUE(name, dims, weights, recipe)
);
CREATE TABLE vectors(
    n INTEGER PRIMARY KEY, model INTEGER NOT NULL, text BLOB NOT NULL, vector BLOB NOT NULL, UNIQUE(model, text)
);
CREATE TABLE windows(
    n INTEGER PRIMARY KEY AUTOINCREMENT, model INTEGER NOT NULL, chunk INTEGER NOT NULL, vector INTEGER NOT NULL
);
CREATE INDEX windows_by_chunk ON windows(chunk);
CREATE TABLE embedded(model INTEGER NOT NULL, document INTEGER NOT NULL, PRIMARY KEY(model, document)) WITHOUT ROWID;
"""

SCHEMA = f"""
CREATE TABLE sources(
    n INTEGER PRIMARY KEY, label TEXT NOT NULL UNIQUE, type TEXT NOT NULL, name TEXT NOT NULL,
    last_sync TEXT, last_error TEXT, checkpoint TEXT, {", ".join(LABELLED)}
);
CREATE TABLE documents(
    n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, source INTEGER NOT NULL REFERENCES sources(n),
    source_id TEXT NOT NULL, source_url TEXT, title TEXT, author TEXT, created_at TEXT, updated_at TEXT,
    content_type TEXT NOT NULL, chunk_count INTEGER NOT NULL, version TEXT NOT NULL, digest TEXT NOT NULL,
    metadata TEXT NOT NULL, body TEXT NOT NULL,
    UNIQUE(source, source_id)
);
CREATE INDEX documents_by_source ON documents(source, chunk_count);
{PLACES}{SYNCS}{LABELS}{WORDS}{WORD_CHANGES}
{VECTORS}
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""


def chunk_range(n: int) -> tuple[int, int]:
    """The first and the last row that chunks of document `n` may have."""
    return n << CHUNK_BITS, ((n + 1) << CHUNK_BITS) - 1


def resolved(file: Path, create: bool) -> Path:
    """The path with links resolved; with `create`, also makes its folder. Raises StoreError."""
    try:
        if file.is_dir():
            raise StoreError(f"{file} is a directory; a store is a file ([db] path)")
        if not create and not file.exists():
            raise StoreError(f"there is no store at {file}; create it (init or sync), or correct [db] path")
        if create:
            file.parent.mkdir(parents=True, exist_ok=True)
        return Path(os.path.realpath(file))
    except OSError as error:
        raise StoreError(f"the store at {file} cannot be reached: {error.strerror}") from error


def appear(file: Path) -> None:
    """Make the file of an empty store, as a whole, unless there is one. Readers never see a part of it.

    Raises OSError, also on filesystems without hard links: `prepare` then does it in place.
    """
    if file.exists():
        return
    with apsw.Connection(":memory:") as db:
        rows(db, SCHEMA)
        data = bytearray(db.serialize("main"))
    data[18:20] = _WAL
    name = file.with_name(f"{file.name}.{secrets.token_hex(8)}{NEW}")
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)  # as SQLite's
    try:
        with os.fdopen(descriptor, "wb") as new:
            new.write(data)
            new.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):  # another process was faster
            os.link(name, file)
    finally:
        os.unlink(name)


def prepare(db: apsw.Connection, file: Path, create: bool) -> None:
    """Check the writer's file and set its pragmas; with `create`, make an empty file a store."""
    if create and _is_empty(db):
        db.pragma("journal_mode", "wal")
        at_once(_fill, db)
    check(db, file)
    if db.pragma("journal_mode") != "wal":
        db.pragma("journal_mode", "wal")
    db.pragma("synchronous", "NORMAL")  # with WAL: never inconsistent; a power cut may undo the last batches
    db.pragma("journal_size_limit", 64 * 1024 * 1024)


def _fill(db: apsw.Connection) -> None:
    if _is_empty(db):  # the lock is ours; another process may have been faster
        rows(db, SCHEMA)


def _is_empty(db: apsw.Connection) -> bool:
    return not rows(db, "SELECT 1 FROM sqlite_schema LIMIT 1")


def check(db: apsw.Connection, file: Path) -> None:
    """Raises StoreError unless the file is a store of a schema that this version reads."""
    if db.pragma("application_id") != APPLICATION_ID:
        what = "is an empty database" if _is_empty(db) else "is another program's SQLite database"
        raise StoreError(f"{file} {what}, not a store; create the store (init or sync), or correct [db] path")
    version = db.pragma("user_version")
    if not 1 <= version <= SCHEMA_VERSION:
        age = "a newer" if version > SCHEMA_VERSION else "an unknown"
        raise StoreError(
            f"the store at {file} was written by {age} version (schema {version}, this one knows {SCHEMA_VERSION}); "
            "use that version, or fill a new store"
        )


def is_current(db: apsw.Connection) -> bool:
    """Whether the file is of this version's schema, and no upgrade to it is under way."""
    return db.pragma("user_version") == SCHEMA_VERSION and not is_upgrading(db)


def is_upgrading(db: apsw.Connection) -> bool:
    """Whether an upgrade has begun and not ended."""
    # Not table_exists(), which does not notice what another process has changed.
    return bool(rows(db, "SELECT 1 FROM sqlite_schema WHERE name = 'upgrade'"))

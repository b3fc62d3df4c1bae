"""The index of a store's words: what stands in it of a document, in which language, and its change to another one."""

import logging
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import apsw

from knowledge.sqlite.schema import chunk_range
from knowledge.words import MAX_FORM_BYTES, forms
from storage.lanes import at_once, rows
from storage.metering import give_way

log = logging.getLogger("knowledge")

# As of an upgrade: a step ends when it has passed this many documents, or this many characters of chunks.
STEP_DOCUMENTS = 256
STEP_CHARACTERS = 4 * 1024 * 1024

# What the name of a store's file has behind it in that of its postings (`postings.py`).
SUFFIX = ".words"

# Fewer chunks than this are ranked by FTS5 in a few milliseconds: no postings.
MIN_CHUNKS = 5000

# Numbers of changes leave gaps of random size: postings that know a number which is still there are of this store, and
# not of one that was restored from a backup and then went another way.
_GAP = 1 << 20
# Changes that are remembered when a sync has ended. Postings that are farther behind are made anew.
_REMEMBERED = 20_000

# FTS5 cuts words here, in bytes.
_MAX_TOKEN_BYTES = 32768
_SEPARATED = bytes(code if chr(code).isalnum() and code < 128 else 32 for code in range(256))

_INSERT = "INSERT INTO words(rowid, title, text, title_forms, text_forms) VALUES (?, ?, ?, ?, ?)"


class Worded(NamedTuple):
    """What the index holds of document `n`, in words."""

    n: int
    title: str | None
    chunks: Sequence[str]


def index(db: apsw.Connection, documents: Iterable[Worded], language: str) -> None:
    """Write the words of documents that have none in the index.

    Of all at once, as the last statements of a transaction or a part of it: any other statement that may have to undo a
    part of its work makes FTS5 write what it has collected to a segment, which takes half of the time (measured), and
    makes each search slower until segments are merged.
    """
    documents = list(documents)
    note(db, [each.n for each in documents])
    found = (entries(each.n, each.title or "", each.chunks, language) for each in documents)
    db.executemany(_INSERT, chain.from_iterable(found))


def forget(db: apsw.Connection, n: int) -> None:
    """Take the words of document `n` out of the index."""
    db.execute("DELETE FROM words WHERE rowid BETWEEN ? AND ?", chunk_range(n))


def note(db: apsw.Connection, documents: Sequence[int]) -> None:
    """Remember that the words of documents have changed."""
    if documents:
        first = last_change(db) + random.randrange(1, _GAP)
        db.executemany("INSERT INTO word_changes(at, n) VALUES (?, ?)", enumerate(documents, first))


def sweep(db: apsw.Connection) -> None:
    """Forget old changes."""
    sql = "SELECT at FROM word_changes ORDER BY at DESC LIMIT 1 OFFSET ?"
    for (at,) in rows(db, sql, (_REMEMBERED,)):
        db.execute("DELETE FROM word_changes WHERE at < ?", (at,))


def last_change(db: apsw.Connection) -> int:
    """The number of the last change of words; they rise."""
    return int(rows(db, "SELECT max(at) FROM word_changes")[0][0])


def has_change(db: apsw.Connection, at: int) -> bool:
    """Whether a change of this number is remembered."""
    return bool(rows(db, "SELECT 1 FROM word_changes WHERE at = ?", (at,)))


def changed_since(db: apsw.Connection, at: int, limit: int) -> list[int]:
    """The documents that were changed after a change that is remembered; -1: all of them."""
    return [n for (n,) in rows(db, "SELECT DISTINCT n FROM word_changes WHERE at > ? LIMIT ?", (at, limit))]


def is_large(db: apsw.Connection) -> bool:
    """Whether a store is worth postings beside it."""
    return bool(rows(db, "SELECT 1 FROM words_docsize LIMIT 1 OFFSET ?", (MIN_CHUNKS - 1,)))


class Tokenizer:
    """Texts in words as the index has them."""

    def __init__(self, db: apsw.Connection) -> None:
        self._tokenizer = db.fts5_tokenizer("unicode61", ["remove_diacritics", "2"])

    def words(self, text: str) -> Sequence[str]:
        """The words of a text."""
        if text.isascii() and len(text) < _MAX_TOKEN_BYTES:  # as most are, in a tenth of the time
            return text.lower().encode().translate(_SEPARATED).decode().split()
        found = self._tokenizer(
            text.encode(), apsw.FTS5_TOKENIZE_DOCUMENT, None, include_offsets=False, include_colocated=False
        )
        return [str(word) for word in found]


def entries(n: int, title: str, chunks: Sequence[str], language: str) -> Iterator[tuple[int, str, str, str, str]]:
    """The rows of a document in the index."""
    first, _ = chunk_range(n)
    title_forms = forms(title, language)
    room = MAX_FORM_BYTES
    for row, text in enumerate(chunks, first):
        give_way()
        text_forms = forms(text, language, room)
        # Characters, which a text has no more of than bytes; a title's count with every chunk that it stands in.
        room -= len(text_forms) + len(title_forms)
        yield row, title, text, title_forms if room > 0 else "", text_forms


def language(db: apsw.Connection) -> str:
    """The language that documents are written in from now on."""
    return str(rows(db, "SELECT language FROM indexed")[0][0])


def languages(db: apsw.Connection) -> tuple[str, ...]:
    """The languages of the forms in the index: two while one replaces the other."""
    found = rows(db, "SELECT language, previous FROM indexed")[0]
    return tuple(each for each in found if each is not None)


def begin(db: apsw.Connection, language: str) -> None:
    """Begin to index a store anew, in another language. Call `step` until it returns False."""
    log.info(
        "the words of a store are indexed anew, in the language %r; until then, they are found as before", language
    )
    at_once(lambda db: _begin(db, language), db)


def _begin(db: apsw.Connection, language: str) -> None:
    if (before := languages(db)[0]) != language:  # else another process has begun, or a change goes on
        # Where a change to a third language was under way, documents that are still of the first one are found by
        # their exact words until they have been passed.
        db.execute("UPDATE indexed SET language = ?, previous = ?, passed = 0", (language, before))


def step(db: apsw.Connection) -> bool:
    """Index the next documents; False when none is left."""
    return at_once(_step, db)


def _step(db: apsw.Connection) -> bool:
    language, previous, passed = rows(db, "SELECT language, previous, passed FROM indexed")[0]
    if previous is None:
        return False
    found: list[Worded] = []
    characters, more = 0, True
    while len(found) < STEP_DOCUMENTS and characters < STEP_CHARACTERS:
        following = rows(db, "SELECT n, title FROM documents WHERE n > ? ORDER BY n LIMIT 1", (passed,))
        if not following:
            more = False
            break
        passed, title = following[0]
        sql = "SELECT text FROM chunks WHERE chunk BETWEEN ? AND ? ORDER BY chunk"
        found.append(Worded(passed, title, [text for (text,) in rows(db, sql, chunk_range(passed))]))
        characters += sum(map(len, found[-1].chunks))
    for each in found:
        forget(db, each.n)
    index(db, found, language)
    db.execute("UPDATE indexed SET passed = ?, previous = ?", (passed, previous) if more else (0, None))
    return more

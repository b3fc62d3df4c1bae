"""The condition of a query that only finds what its reader may read; and writing the labels of documents.

Every query of documents has this condition, so that no other document has an effect on its answer.
"""

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import apsw

from knowledge.access import PUBLIC, Access, Reader, SourceAccess, labels_text
from storage.lanes import rows

# Documents of a source that are labelled again in one transaction, when its configuration has changed: some 50 ms.
STEP_DOCUMENTS = 4096


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a row `d` of documents with its source `s`, and its bindings.

    `name` is that of the filter in a search; what a reader may see has none.
    """

    sql: str
    bindings: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""


ALWAYS = Condition("1")


def condition(reader: Reader, configured: SourceAccess) -> Condition:
    """What a document has to be so that the reader sees it: `Reader.sees` in SQL.

    While the documents of a source have not been labelled by the present configuration, they are also hidden from
    readers that do not meet every set of labels in it.
    """
    if reader.unlimited:
        return ALWAYS
    parts: list[str] = []
    bindings: dict[str, Any] = {}
    for index, sources in enumerate(reader.sources):
        among = f"(SELECT value FROM json_each(:from{index}))"
        parts.append(f"(s.label IN {among} OR s.name IN {among} OR s.type IN {among})")
        bindings[f"from{index}"] = labels_text(sources)
    if reader.labels:
        met = ["NOT EXISTS (SELECT 1 FROM labels l WHERE l.n = d.n)"]
        if all(reader.labels):  # else no set of labels meets each
            met.append(" AND ".join(_meets(index) for index in range(len(reader.labels))))
            bindings |= {f"met{index}": labels_text(labels) for index, labels in enumerate(reader.labels)}
        parts.append(f"({' OR '.join(met)})")
    if closed := configured.closed_to(reader):
        parts.append(
            "s.n NOT IN (SELECT c.n FROM sources c JOIN json_each(:closed) e ON e.key = c.label "
            "WHERE c.access IS NULL OR (c.access <> e.value AND NOT c.labelled_at BETWEEN :configured_at AND :now))"
        )
        bindings |= {"closed": json.dumps(closed), "configured_at": configured.at, "now": time.time()}
    return Condition(" AND ".join(parts), bindings)


def _meets(index: int) -> str:
    among = f"(SELECT value FROM json_each(:met{index}))"
    return f"EXISTS (SELECT 1 FROM labels l WHERE l.n = d.n AND l.label IN {among})"


def shown(reader: Reader, configured: SourceAccess, source: str) -> bool:
    """Whether the reader may know of a configured source of which it sees no document."""
    return reader.may_read(source) and configured.sources.get(source, PUBLIC).open_to(reader)


def tells_all(reader: Reader, configured: SourceAccess, source: str) -> bool:
    """Whether the reader may know what happened to any item of a source, stored or not."""
    access = configured.sources.get(source, PUBLIC)
    return not reader.labels or (access.open_to(reader) and not access.own)


def changes(db: apsw.Connection, reader: Reader, configured: SourceAccess) -> list[tuple[Any, ...]]:
    """What changes with the documents that the reader may see, and with no other."""
    found = rows(db, "SELECT s.label, c.labels, c.count FROM changes c JOIN sources s ON s.n = c.source ORDER BY 1, 2")
    if reader.unlimited:
        return found
    closed = closed_now(db, reader, configured)
    return [row for row in found if row[0] not in closed and reader.sees(row[0], json.loads(row[1]))]


def closed_now(db: apsw.Connection, reader: Reader, configured: SourceAccess) -> Collection[str]:
    """The sources that the last part of the condition hides at present."""
    closed = configured.closed_to(reader)
    if not closed:
        return ()
    sql = "SELECT label, access, labelled_at FROM sources WHERE label IN (SELECT value FROM json_each(?))"
    return {
        label
        for label, access, at in rows(db, sql, (labels_text(closed),))
        if access is None or (access != closed[label] and not configured.at <= at <= time.time())
    }


# ---- writing --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Changed:
    """The documents that a transaction changes, as sets of labels: those before and after."""

    source: int
    sets: set[str] = field(default_factory=set)

    def note(self, labels: Iterable[str]) -> None:
        self.sets.add(labels_text(labels))

    def write(self, db: apsw.Connection) -> None:
        """Count each, for readers that wait for changes."""
        db.executemany(
            "INSERT INTO changes(source, labels, count) VALUES (?, ?, 1) "
            "ON CONFLICT(source, labels) DO UPDATE SET count = count + 1",
            [(self.source, labels) for labels in sorted(self.sets)],
        )


def labels_of(db: apsw.Connection, n: int) -> frozenset[str]:
    """The labels of document `n`."""
    return frozenset(label for (label,) in rows(db, "SELECT label FROM labels WHERE n = ?", (n,)))


def put(db: apsw.Connection, n: int, labels: Iterable[str], own: bool) -> None:
    """Replace the labels of document `n`. `own`: they are its item's, and stay when the configuration changes."""
    db.execute("DELETE FROM labels WHERE n = ?", (n,))
    db.executemany("INSERT INTO labels(n, label, own) VALUES (?, ?, ?)", [(n, label, own) for label in sorted(labels)])


def is_labelled(db: apsw.Connection, source: str, access: Access, read_at: float) -> bool:
    """Whether all documents of a source have the labels that a configuration gives them, or a newer one has given some.

    `read_at` is when the configuration was read. Where the clock went back, it is the newer one.
    """
    found = rows(db, "SELECT access, labelled_at FROM sources WHERE label = ?", (source,))
    if not found or found[0][0] == access.digest:
        return True
    at = found[0][1]
    return at is not None and read_at <= at <= time.time()


def label_again(db: apsw.Connection, source: str, access: Access, after: int) -> int | None:
    """Label the next documents of a source behind the one with number `after`, inside a transaction.

    Returns the number of the last one, or None when all have their labels.
    """
    number = rows(db, "SELECT n FROM sources WHERE label = ?", (source,))[0][0]
    found = rows(
        db, "SELECT n, source_id FROM documents WHERE source = ? AND n > ? ORDER BY n LIMIT ?",
        (number, after, STEP_DOCUMENTS),
    )  # fmt: skip
    changed = Changed(number)
    for n, labels in _to_label(db, found, access):
        changed.note(labels_of(db, n))
        changed.note(labels)
        put(db, n, labels, own=False)
    changed.write(db)
    if len(found) == STEP_DOCUMENTS:
        return int(found[-1][0])
    note_labelled(db, number, access.digest)
    return None


def _to_label(
    db: apsw.Connection, found: Iterable[tuple[int, str]], access: Access
) -> Iterator[tuple[int, frozenset[str]]]:
    for n, source_id in found:
        there = rows(db, "SELECT label, own FROM labels WHERE n = ?", (n,))
        labels = access.labels_of(source_id)
        if not any(own for _, own in there) and labels != {label for label, _ in there}:
            yield n, labels


def note_labelled(db: apsw.Connection, source: int, digest: str) -> None:
    """Note by which configuration the documents of a source are labelled."""
    db.execute("UPDATE sources SET access = ?, labelled_at = ? WHERE n = ?", (digest, time.time(), source))


def note_written(db: apsw.Connection, source: int, digest: str | None) -> None:
    """Note that documents were written with the labels of a configuration (None: of none): if it is not that of the
    others, not all have the labels of one.
    """
    db.execute("UPDATE sources SET access = NULL WHERE n = ? AND access IS NOT ?", (source, digest))

"""Whether a store's file, and the files beside it that are made from it, are as they were written."""

from dataclasses import dataclass, replace
from pathlib import Path

import apsw

from knowledge.sqlite import indexing, vectors
from storage.lanes import rows

# Damages of a file that are named.
MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Integrity:
    """`damage` is what SQLite says of the file; `sidecar` what there is to say of the vectors beside it, if they are.

    A sidecar that is not `usable` is made anew by the next search by meaning. `words` is what there is to say of the
    postings of words, if they are there, and whether they are of use.
    """

    damage: tuple[str, ...]
    sidecar: str | None
    usable: bool
    words: tuple[str, bool] | None = None


def check(db: apsw.Connection, file: Path) -> Integrity:
    """Look at all of a store. The tables of words are checked with it (`PRAGMA quick_check`)."""
    try:
        damage = tuple(str(row[0]) for row in rows(db, f"PRAGMA quick_check({MAX_NAMED})") if row[0] != "ok")
    except apsw.CorruptError as error:
        damage = (str(error),)
    if not damage and file.with_name(file.name + indexing.SUFFIX).exists():
        from knowledge.sqlite import postings

        return replace(_vectors(db, file), words=postings.described(db, file))
    return Integrity(damage, None, True) if damage else _vectors(db, file)


def _vectors(db: apsw.Connection, file: Path) -> Integrity:
    if not file.with_name(file.name + vectors.SUFFIX).exists():
        return Integrity((), None, True)
    from knowledge.sqlite import sidecar  # numpy, which most processes never need

    _, models = vectors.held(db)
    for held in models:
        if (found := sidecar.load(sidecar.path_of(file), held)) is not None:
            (windows,) = rows(db, "SELECT count(*) FROM windows WHERE model = ?", (held.n,))[0]
            behind = max(0, windows - len(found.numbers))
            said = f"{len(found.numbers):,} windows of {held.model.name}, checksum right"
            said += f", in {len(found.lists.starts) - 1:,} lists" if found.lists is not None else ""
            return Integrity((), said + (f", {behind:,} behind the store" if behind else ""), True)
    return Integrity((), "damaged, or not of this store: the next search by meaning makes it anew", False)

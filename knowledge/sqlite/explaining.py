"""How a search went: what its words weigh, what its filters left, how each hit came by its score.

Everything is counted among the documents that were searched, so that none of the others has an effect on it.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

import apsw

from knowledge import ranking
from knowledge.embedding import fusion
from knowledge.sqlite import matching
from knowledge.sqlite.access import Condition
from knowledge.sqlite.schema import CHUNK_BITS, chunk_range
from knowledge.store import Explained, ExplainedSearch, ExplainedWord, Mode, SearchQuery
from storage.lanes import rows

if TYPE_CHECKING:  # numpy, which most processes never need
    from knowledge.postings.scores import Collection

# The chunks that have a word are counted up to here: beyond, it says little, and counting it costs 10 ms.
COUNTED = 5000


class Among:
    """What statistics are of: chunks of documents that meet all conditions, as those of others are not to be known."""

    def __init__(self, conditions: Sequence[Condition]) -> None:
        self.sql = matching.allowed(conditions, f"words.rowid >> {CHUNK_BITS}")
        self.documents = matching.allowed(conditions, "documents.n")
        self.bindings = matching.values(conditions)
        self.everything = not conditions


class Words:
    """The words of a query, as they stand in the documents that are searched."""

    def __init__(
        self, db: apsw.Connection, match: ranking.MatchQuery, among: Among, known: "Collection | None" = None
    ) -> None:
        """`known` are the postings of the snapshot, which count faster where all documents are searched."""
        self._db, self._match = db, match
        if known is not None and among.everything:
            self.chunks = known.count
        else:
            sql = f"SELECT coalesce(sum(chunk_count), 0) FROM documents WHERE {among.documents}"
            self.chunks = int(rows(db, sql, among.bindings)[0][0])
        self._df = [self._counted(term, among, known) for term in match.terms]
        # Of a word that may go on: all chunks that have it, as a look at some of them takes as long.
        self._all: dict[str, list[int]] = {}

    def _counted(self, term: ranking.Term, among: Among, known: "Collection | None") -> int:
        """How many of the chunks that are searched have a term, up to `COUNTED`."""
        if known is not None and among.everything:
            words = [matching.one_word(self._db, expression) for expression in term.expressions]
            if None not in words:
                return min(COUNTED, known.count_any([word for word in words if word is not None]))
        counted = f"SELECT 1 FROM words WHERE words MATCH :term AND {among.sql} LIMIT {COUNTED}"
        sql = f"SELECT count(*) FROM ({counted})"
        return int(rows(self._db, sql, {"term": term.any, **among.bindings})[0][0])

    def of(self, first: int, last: int) -> list[fusion.Word]:
        """Each word, and whether one of the chunks from `first` to `last` has it."""
        return [
            fusion.Word(df, fusion.weight(df, self.chunks), df > 0 and self._inside(term, first, last))
            for term, df in zip(self._match.terms, self._df, strict=True)
        ]

    def _inside(self, term: ranking.Term, first: int, last: int) -> bool:
        if not term.half:
            sql = "SELECT 1 FROM words WHERE words MATCH ? AND rowid BETWEEN ? AND ? LIMIT 1"
            return bool(rows(self._db, sql, (term.any, first, last)))
        if term.any not in self._all:
            sql = "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rowid"
            self._all[term.any] = [chunk for (chunk,) in rows(self._db, sql, (term.any,))]
        chunks = self._all[term.any]
        place = bisect_left(chunks, first)
        return place < len(chunks) and chunks[place] <= last

    def explained(self, document: int) -> tuple[ExplainedWord, ...]:
        """Each word, and whether the document has it, as it is shown."""
        return tuple(
            ExplainedWord(term.word, each.df, round(each.weight, fusion.DIGITS), each.covered)
            for term, each in zip(self._match.terms, self.of(*chunk_range(document)), strict=True)
        )


def by_words(
    db: apsw.Connection, match: ranking.MatchQuery, found: Sequence[matching.Ranked], conditions: Sequence[Condition]
) -> list[Explained]:
    """What there is to say of hits that were found by words alone, in their order."""
    words = Words(db, match, Among(conditions))
    norms = ranking.norms([(bool(each.complete), each.rank) for each in found])
    return [
        Explained(
            words=words.explained(each.n),
            bm25=round(-each.rank, fusion.DIGITS),
            keyword_norm=round(norm, fusion.DIGITS),
            complete=bool(each.complete),
        )
        for each, norm in zip(found, norms, strict=True)
    ]


def search(
    db: apsw.Connection,
    query: SearchQuery,
    conditions: Sequence[Condition],
    mode: Mode,
    keyword: int | None = None,
    vector: int | None = None,
) -> ExplainedSearch | None:
    """What there is to say of the whole search; None unless the query wants it."""
    if not query.explain:
        return None
    filters = [each for each in conditions if each.name]
    seen = " AND ".join(f"({each.sql})" for each in conditions if not each.name) or "1"
    # One pass over the documents. `total()` counts those where a condition is true: one on a missing time is NULL.
    counts = ", ".join(f"total({each.sql})" for each in filters)
    both = " AND ".join(f"({each.sql})" for each in filters) or "1"
    sql = f"""
        SELECT count(*), total({both}){", " if counts else ""}{counts}
        FROM documents d JOIN sources s ON s.n = d.source WHERE {seen}
    """
    documents, searched, *left = (int(each) for each in rows(db, sql, matching.values(conditions))[0])
    names = (each.name for each in filters)
    return ExplainedSearch(mode, documents, searched, tuple(zip(names, left, strict=True)), keyword, vector)

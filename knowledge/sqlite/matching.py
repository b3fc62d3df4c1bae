"""Which documents match a query, and their order: the conditions on documents, and ranks by `bm25()` (`visible.py`).

Iterating over the rows that match takes a tenth of what their `bm25()` takes (measured), and FTS5 has no best-first
order. So ranks are computed only for the rows that can be among the best: those of documents that hold all words, if
these are enough; else those that hold one of the rarer words, while the best that the other words could give a row is
less than what the last hit has.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw

from knowledge import globs, ranking, times
from knowledge.embedding.fusion import DEFAULT, Settings
from knowledge.sqlite import indexing, visible
from knowledge.sqlite.access import Condition
from knowledge.sqlite.schema import CHUNK_BITS, chunk_range
from knowledge.store import SearchQuery
from storage.lanes import rows

if TYPE_CHECKING:  # numpy, which most processes never need
    from knowledge.postings.scores import Collection, Posted

# SQLite refuses bm25() where rows are grouped, so `matches` must not be merged into `best`: LIMIT -1 prevents that,
# without the copy that MATERIALIZED would make. Conditions come before the limit, so a document that meets them is
# found however many others rank higher. For the order see ranking.py.
_SEARCH = """
WITH matches AS (
    SELECT rowid AS chunk, {rank} AS rank FROM words WHERE words MATCH :any AND ({rows}) LIMIT -1
), {best}
SELECT n, chunk, rank, ({complete}) AS complete FROM best WHERE {allowed} ORDER BY complete DESC, rank LIMIT :most
"""

# What hits are of: documents by their best chunk; by several of their best; chunks.
_BY_BEST = f"""
best AS (SELECT chunk >> {CHUNK_BITS} AS n, chunk, min(rank) AS rank FROM matches GROUP BY chunk >> {CHUNK_BITS})
"""
_PLACED = f"""
placed AS (
    SELECT chunk >> {CHUNK_BITS} AS n, chunk, rank,
        row_number() OVER (PARTITION BY chunk >> {CHUNK_BITS} ORDER BY rank, chunk) AS place
    FROM matches
)
"""
_BY_AVERAGE = f"""
{_PLACED}, best AS (
    SELECT n, max(chunk) FILTER (WHERE place = 1) AS chunk, avg(rank) AS rank
    FROM placed WHERE place <= :per_document GROUP BY n
)
"""
_BY_CHUNK = f"{_PLACED}, best AS (SELECT n, chunk, rank FROM placed WHERE place <= :per_document)"

_KNOWN = "IN (SELECT value FROM json_each(:known))"
_OF_KNOWN = f"rowid >> {CHUNK_BITS} {_KNOWN}"
# `+rowid`: as a plain comparison, FTS5 would look each row up on its own, at 1 ms each.
_RARE = "+rowid IN (SELECT rowid FROM words WHERE words MATCH :rare)"

# Joined only where there is a condition: for every document that matches, this would be the larger part of a search.
_ALLOWED = """
EXISTS (SELECT 1 FROM documents d JOIN sources s ON s.n = d.source WHERE d.n = {n} AND {conditions})
"""

FOUND = """
SELECT d.n, d.id, s.label, d.source_id, d.title, d.source_url, d.updated_at
FROM documents d JOIN sources s ON s.n = d.source WHERE d.n IN (SELECT value FROM json_each(?))
"""

# Documents that are ranked beyond the limit, as the last ones may be equals: enough where the ranks differ at all.
_SPARE = 100

# Up to so many documents are looked up one by one.
_FEW_DOCUMENTS = 32

# Below, ranks of all rows take no longer than a choice among them.
_MANY_ROWS = 2000
# Rows of the rarest words that are ranked first, for each document that is wanted.
_ROWS_PER_DOCUMENT = 20
# The share of all rows beyond which a choice saves nothing.
_TOO_MANY = 0.6

# The share of all words' worth that the others may have at first: the last of the best hits has more as a rule.
_GIVEN_UP = 0.6

# A bound of `bm25()`: what one word adds is less than its idf times k1 + 1, and k1 is 1.2 in FTS5.
_MOST_PER_IDF = 2.2

# Rows of a phrase, which postings do not have: FTS5 finds them, and each takes 2 us.
_PHRASE_ROWS = 2000

# The postings of a snapshot, if they are known.
Words = Callable[[apsw.Connection], "Collection | None"]


def no_postings(db: apsw.Connection) -> None:
    """Of a store without any."""


def conditions(query: SearchQuery) -> tuple[Condition, ...]:
    """What a document must meet to be found. Raises ValueError for an invalid `since`, `until` or `path`."""
    found = []
    if query.source is not None:
        found.append(Condition(":source IN (s.label, s.name, s.type)", {"source": query.source}, "source"))
    if query.since is not None:
        found.append(Condition("d.updated_at >= :since", {"since": times.canonical_time(query.since)}, "since"))
    if query.until is not None:
        until = times.canonical_time(query.until, end_of_day=True)
        found.append(Condition("d.updated_at <= :until", {"until": until}, "until"))
    if query.path is not None:
        paths = {f"path{index}": path for index, path in enumerate(globs.sqlite_globs(query.path))}
        found.append(Condition(" OR ".join(f"d.source_id GLOB :{name}" for name in paths), paths, "path"))
    return tuple(found)


def allowed(conditions: Sequence[Condition], n: str) -> str:
    """SQL that is true for a document whose number is `n`, an expression, where it meets all conditions."""
    if not conditions:
        return "1"
    return _ALLOWED.format(n=n, conditions=" AND ".join(f"({each.sql})" for each in conditions))


def values(conditions: Sequence[Condition]) -> dict[str, Any]:
    """What the SQL of these conditions names."""
    return {name: value for each in conditions for name, value in each.bindings.items()}


def permitted(db: apsw.Connection, conditions: Sequence[Condition]) -> list[int] | None:
    """The numbers of the documents that meet all conditions; None without conditions, for all."""
    if not conditions:
        return None
    sql = "SELECT d.n FROM documents d JOIN sources s ON s.n = d.source WHERE "
    found = rows(db, sql + " AND ".join(f"({each.sql})" for each in conditions), values(conditions))
    return [n for (n,) in found]


def hide_nothing(db: apsw.Connection, conditions: Sequence[Condition]) -> bool:
    """Whether every document meets all conditions."""
    if not conditions:
        return True
    sql = "SELECT 1 FROM documents d JOIN sources s ON s.n = d.source WHERE ({}) IS NOT TRUE LIMIT 1"
    return not rows(db, sql.format(" AND ".join(f"({each.sql})" for each in conditions)), values(conditions))


class Ranked(NamedTuple):
    """A document that matches, or a chunk of one: what to show, its rank, and whether the document has all words."""

    n: int
    chunk: int
    rank: float
    complete: int


def ranked(
    db: apsw.Connection,
    match: ranking.MatchQuery,
    conditions: Sequence[Condition],
    limit: int,
    settings: Settings = DEFAULT,
    words: Words = no_postings,
) -> list[tuple[Ranked, tuple[Any, ...]]]:
    """The best documents, or chunks, in the order of hits, each with its row of `FOUND`."""
    search: _Search | _ByPostings | None = _by_postings(db, match, conditions, settings, words)
    search, most = search or _Search(db, match, conditions, settings), limit + _SPARE
    while True:
        found = search.best(limit, most)
        # The order of equals is that of their documents, so all the equals of the last one have to be there.
        if len(found) < most or found[limit - 1][2:] != found[-1][2:]:
            break
        most *= 8
    last = found[limit - 1][2:] if limit < len(found) else None
    while last is not None and found[-1][2:] != last:
        found.pop()
    of = {row[0]: row for row in rows(db, FOUND, (json.dumps([each.n for each in found]),))}
    # Stable, from the last criterion to the first; no time at all comes behind every time.
    found.sort(key=lambda each: each.chunk)
    found.sort(key=lambda each: str(of[each.n][1]))
    found.sort(key=lambda each: of[each.n][6] or "", reverse=True)
    found.sort(key=lambda each: (-each.complete, each.rank))
    return [(each, of[each.n]) for each in found[:limit]]


class _Search:
    """One query in one snapshot of the store."""

    def __init__(
        self, db: apsw.Connection, match: ranking.MatchQuery, conditions: Sequence[Condition], settings: Settings
    ) -> None:
        self._db = db
        self._match = match
        # Of chunks without a rare word nothing is known but a bound, which is not enough for an average.
        self._all_rows = settings.averages
        self._best = _BY_CHUNK if settings.by_chunk else _BY_AVERAGE if settings.averages else _BY_BEST
        self._allowed = allowed(conditions, "best.n")
        self._values = values(conditions) | {"any": match.any}
        if self._best is not _BY_BEST:
            self._values["per_document"] = settings.max_chunks_per_doc
        self._visible = visible.visible(db, conditions)
        self._counts = self._count()
        self._rank = visible.rank(db, match, self._visible, self._counts)

    def best(self, limit: int, most: int) -> list[Ranked]:
        """The best documents that meet the conditions: those with all words first, then by rank.

        They are `limit` and the equals of the last of these, or more; together up to `most`.
        """
        if len(self._match.terms) == 1:
            return self._by_rare_words(limit, most, "1", _RARE, "1", "[]")
        complete = self._complete()
        known = json.dumps(complete)
        if len(complete) >= most:
            return self._by_rare_words(limit, most, _OF_KNOWN, f"({_RARE}) AND ({_OF_KNOWN})", "1", known)
        return self._by_rare_words(limit, most, "1", f"({_RARE}) OR ({_OF_KNOWN})", f"n {_KNOWN}", known)

    def _by_rare_words(self, limit: int, most: int, every: str, few: str, complete: str, known: str) -> list[Ranked]:
        """As `best`, among the rows where the SQL `every` holds, by the ranks of those where `few` holds if these do.

        `complete` is true for documents that hold all words, `known` their numbers, as far as the SQL needs them.
        """
        counts = self._counts
        total = sum(counts.values())
        if total >= _MANY_ROWS and not self._all_rows and not any(" AND " in expression for expression in counts):
            sql = "SELECT count(*) FROM words_docsize"
            chunks = self._visible.chunks if self._visible else rows(self._db, sql)[0][0]
            worth = {each: _most(count, chunks) for each, count in counts.items()}
            rare, others = _split(counts, worth, _ROWS_PER_DOCUMENT * limit)
            while others and sum(counts[each] for each in rare) < _TOO_MANY * total:
                found = self._ranked(most, complete, few, known=known, rare=" OR ".join(rare))
                if len(found) < limit:
                    break
                least = -found[limit - 1].rank
                if sum(worth[each] for each in others) <= least:
                    return found
                while sum(worth[each] for each in others) > least:
                    rare.append(others.pop())
        return self._ranked(most, complete, every, known=known)

    def _count(self) -> dict[str, int]:
        """How many rows each expression of the query matches, of those that the reader may read."""
        if self._visible is not None:
            return {each: self._visible.count(self._db, each) for each in self._match.expressions}
        sql = "SELECT count(*) FROM words WHERE words MATCH ?"
        return {each: rows(self._db, sql, (each,))[0][0] for each in self._match.expressions}

    def _complete(self) -> list[int]:
        """The documents that hold all words and meet the conditions.

        The words are taken from the rarest on, as it leaves few documents for the others: half of the time that an
        intersection of all takes (measured).
        """
        terms = sorted(self._match.terms, key=lambda term: sum(self._counts[each] for each in term.expressions))
        known: list[int] | None = None
        for term in terms:
            known = self._with(term, known)
            if not known:
                return []
        sql = f"SELECT n FROM (SELECT value AS n FROM json_each(:known)) AS best WHERE {self._allowed}"
        return [n for (n,) in rows(self._db, sql, self._values | {"known": json.dumps(known)})]

    def _with(self, term: ranking.Term, known: Sequence[int] | None) -> list[int]:
        """The documents that hold a word, of all or of those known."""
        if known is not None and len(known) <= _FEW_DOCUMENTS and not term.half:
            sql = "SELECT 1 FROM words WHERE words MATCH ? AND rowid BETWEEN ? AND ? LIMIT 1"
            return [n for n in known if rows(self._db, sql, (term.any, *chunk_range(n)))]
        among = "" if known is None else f"AND +rowid >> {CHUNK_BITS} {_KNOWN}"
        sql = f"SELECT DISTINCT rowid >> {CHUNK_BITS} FROM words WHERE words MATCH :term {among}"
        named = {"term": term.any} | ({} if known is None else {"known": json.dumps(known)})
        return [n for (n,) in rows(self._db, sql, named)]

    def _ranked(self, most: int, complete: str, among: str, **named: str) -> list[Ranked]:
        sql = _SEARCH.format(rank=self._rank, best=self._best, rows=among, complete=complete, allowed=self._allowed)
        return [Ranked(*row) for row in rows(self._db, sql, self._values | {"most": most} | named)]


def _by_postings(
    db: apsw.Connection, match: ranking.MatchQuery, conditions: Sequence[Condition], settings: Settings, words: Words
) -> "_ByPostings | None":
    """The query among postings; None where these are not known, or do not have what it takes."""
    if settings.by_chunk or settings.averages or any(" AND " in expression for expression in match.expressions):
        return None
    known = words(db)
    if known is None:
        return None
    posted = dict[str, "Posted"]()
    for phrase in match.phrases:
        if (word := one_word(db, phrase)) is not None:
            posted[phrase] = known.word(word)
            continue
        found = visible.frequencies(db, phrase, _PHRASE_ROWS)
        given = found and known.given([row for row, _ in found], [weighed for _, weighed in found])
        if found is None or (found and given is None):
            return None
        posted[phrase] = given or known.word("")
    return _ByPostings(db, match, conditions, known, posted)


def one_word(db: apsw.Connection, expression: str) -> str | None:
    """The word that an expression consists of, as the index has it; None where it is anything else."""
    if not (expression.startswith('"') and expression.endswith('"')):
        return None
    words = indexing.Tokenizer(db).words(expression[1:-1])
    return words[0] if len(words) == 1 else None


class _ByPostings:
    """One query in one snapshot of the store, by the postings of all its words: every document is ranked."""

    def __init__(
        self,
        db: apsw.Connection,
        match: ranking.MatchQuery,
        conditions: Sequence[Condition],
        known: "Collection",
        posted: Mapping[str, "Posted"],
    ) -> None:
        from knowledge.postings import scores

        self._db, self._known, self._of = db, known, scores
        self._conditions = conditions
        self._allowed, self._values = allowed(conditions, "best.n"), values(conditions)
        chunks, tokens = known.count, known.tokens
        if (shown := visible.visible(db, conditions)) is not None:
            posted = {phrase: known.among(each, shown.flags) for phrase, each in posted.items()}
            chunks, tokens = shown.chunks, shown.tokens
        average = tokens / chunks if chunks else 1.0
        idfs = [visible.idf(len(posted[phrase].rows), chunks) for phrase in match.phrases]
        self._scores = known.scores([posted[phrase] for phrase in match.phrases], idfs, average)
        self._documents = scores.of_documents(known, self._scores)
        terms = [[posted[phrase] for phrase in term.expressions] for term in match.terms]
        # A document that has what stands together, and not the word, is complete where there is no other word.
        self._complete = scores.with_all(known, terms if len(terms) > 1 else [])

    def best(self, limit: int, most: int) -> list[Ranked]:
        """As `_Search.best`."""
        depth = most
        while True:
            found = self._of.best(self._documents, self._complete, depth)
            numbers = self._known.documents[found.places].tolist()
            there = self._permitted(numbers)
            kept = [index for index, n in enumerate(numbers) if there is None or n in there][:most]
            if len(kept) == most or len(numbers) < depth:
                break
            depth *= 8
        chunk, places = self._of.chunk, found.places.tolist()
        ranks, complete = (-found.scores).tolist(), found.complete.tolist()
        return [
            Ranked(numbers[i], chunk(self._known, places[i], self._scores), ranks[i], int(complete[i])) for i in kept
        ]

    def _permitted(self, numbers: Sequence[int]) -> set[int] | None:
        """Those of documents that meet the conditions; None for all."""
        if not self._conditions:
            return None
        sql = f"SELECT n FROM (SELECT value AS n FROM json_each(:known)) AS best WHERE {self._allowed}"
        return {n for (n,) in rows(self._db, sql, self._values | {"known": json.dumps(numbers)})}


def _split(counts: Mapping[str, int], worth: Mapping[str, float], least: int) -> tuple[list[str], list[str]]:
    """The rare expressions, with `least` rows or more and most of what all are worth; and the others, rarest last."""
    rare, others = sorted(counts, key=lambda each: counts[each]), list[str]()
    reached, lost, bound = sum(counts.values()), 0.0, _GIVEN_UP * sum(worth.values())
    while reached - counts[rare[-1]] >= least and lost + worth[rare[-1]] <= bound:
        others.append(rare.pop())
        reached -= counts[others[-1]]
        lost += worth[others[-1]]
    return rare, others


def _most(count: int, chunks: int) -> float:
    """More than what an expression that matches `count` of all chunks adds to the rank of one."""
    return _MOST_PER_IDF * visible.idf(count, chunks)

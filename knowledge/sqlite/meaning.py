"""Search by meaning, and by meaning and words together. In a connection's thread, inside one snapshot."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import apsw

from knowledge import ranking
from knowledge.embedding import fusion
from knowledge.embedding.arrays import Floats, np
from knowledge.neighbours import lists as listing
from knowledge.neighbours.lists import Integers
from knowledge.sqlite import explaining, matching, reading
from knowledge.sqlite.access import Condition
from knowledge.sqlite.explaining import Among, Words
from knowledge.sqlite.schema import CHUNK_BITS
from knowledge.sqlite.sidecar import Sidecar
from knowledge.sqlite.vectors import Held, Meant
from knowledge.store import Explained, SearchAnswer, SearchQuery
from storage.lanes import rows

# Cosines in single precision that differ by less may be equal.
_EQUAL = 1e-5
# When a search has met this many rows that are gone from the store, the matrix is made anew.
_DEAD = 200
# Windows that are taken from lists, at the least and for each document that is wanted. Of 220,000 windows of texts, the
# 10 nearest are among the 2,000 with the best projections to 0.998, the 80 nearest to 0.995.
_LISTED, _LISTED_EACH = 2000, 8
# Where documents have so many windows that these are of too few, so many times more are taken; beyond a part, all.
_MORE, _MOST = 4, 1 / 4
# Where a filter leaves no more than this part of all windows, only these are compared.
_FEW = 1 / 8

# Of each unit (`_Unit`): the best chunk, and how well it fits.
Best = Mapping[int, tuple[int, float]]


class _Unit:
    """What hits are of: documents, by their number, or chunks, by their row."""

    def __init__(self, settings: fusion.Settings) -> None:
        self.by_chunk, self._most = settings.by_chunk, settings.max_chunks_per_doc
        self.sql = "rowid" if self.by_chunk else f"rowid >> {CHUNK_BITS}"

    def of(self, chunk: int) -> int:
        return chunk if self.by_chunk else chunk >> CHUNK_BITS

    def document(self, unit: int) -> int:
        return unit >> CHUNK_BITS if self.by_chunk else unit

    def bounded(self, units: Iterable[int]) -> list[int]:
        """The same without those that are too many of one document."""
        if not self.by_chunk:
            return list(units)
        counts: Counter[int] = Counter()
        kept = []
        for unit in units:
            counts[self.document(unit)] += 1
            if counts[self.document(unit)] <= self._most:
                kept.append(unit)
        return kept


def search(
    db: apsw.Connection,
    query: SearchQuery,
    conditions: Sequence[Condition],
    meant: Meant,
    sidecar: Sidecar,
    settings: fusion.Settings,
    known: matching.Words = matching.no_postings,
) -> SearchAnswer:
    """The best documents, or chunks, by `query.mode`, which is not `keyword`."""
    vector, unit = np.frombuffer(meant.vector, "<f4"), _Unit(settings)
    with db:
        match, among, by_words = reading.parsed(db, query), Among(conditions), query.mode == "hybrid"
        near = _Near(db, meant.held, sidecar, vector, conditions, unit)
        words: dict[int, tuple[int, float]] = {}
        if by_words and match.any:
            depth = max(query.limit, settings.candidate_k_keyword)
            ranked = matching.ranked(db, match, conditions, depth, settings, known)
            words = {unit.of(each.chunk): (each.chunk, -each.rank) for each, _ in ranked}
        best = near.best(max(query.limit, settings.candidate_k_vector))
        candidates = (len(words) if by_words else None, len(best))
        best |= near.of(words.keys() - best.keys())
        cosines = {key: cosine for key, (_, cosine) in best.items()}
        if settings.averages:
            cosines = near.averages(best, settings.max_chunks_per_doc)
        if by_words:
            counted, certain = Words(db, match, among, known(db)), _certain(db, match, among, unit)
            alpha = _alpha(counted, words, settings.hybrid_alpha)
            keyword = {key: rank for key, (_, rank) in words.items()}
            scored = fusion.fuse(keyword, cosines, alpha, certain)
        else:
            alpha = 1.0
            scored = {key: fusion.Scored(max(0.0, c), 0.0, max(0.0, c), c) for key, c in cosines.items()}
        found = []
        for key, row in _ordered(db, {key: each for key, each in scored.items() if each.score > 0}, unit, query.limit):
            score = scored[key]
            chunk = _chunk(key, words, best, score, alpha)
            passages = near.chunks(row[0], chunk) if query.passages else None
            why = Explained(cosine=score.cosine, vector_norm=score.vector_norm) if query.explain else None
            if why and by_words:
                why = replace(
                    why,
                    words=counted.explained(row[0]),
                    bm25=round(words[key][1], fusion.DIGITS) if key in words else None,
                    keyword_norm=score.keyword_norm,
                    alpha=alpha,
                    certain=key in certain,
                )
            found.append(reading.Found(row, chunk, score.score, passages, why))
        about = explaining.search(db, query, conditions, query.mode, *candidates)
        shown = list(reading.hits(db, query, match, conditions, found))
    return SearchAnswer(tuple(shown), explain=about)


def _chunk(key: int, words: Best, best: Best, score: fusion.Scored, alpha: float) -> int:
    """The chunk that a document is shown by: that of the side to which it owes more."""
    by_words = key in words and (key not in best or (1 - alpha) * score.keyword_norm >= alpha * score.vector_norm)
    return words[key][0] if by_words else best[key][0]


def _ordered(
    db: apsw.Connection, scored: Mapping[int, fusion.Scored], unit: _Unit, limit: int
) -> list[tuple[int, tuple[Any, ...]]]:
    """The best of them with the rows of their documents; of equal ones the newer, that of the smaller id, the first."""
    numbers = sorted({unit.document(key) for key in scored})
    of = {row[0]: row for row in rows(db, matching.FOUND, (json.dumps(numbers),))}
    found = [(key, of[unit.document(key)]) for key in sorted(scored)]
    found.sort(key=lambda each: str(each[1][1]))
    found.sort(key=lambda each: each[1][6] or "", reverse=True)
    found.sort(key=lambda each: scored[each[0]].score, reverse=True)
    kept = unit.bounded(key for key, _ in found)[:limit]
    return [(key, of[unit.document(key)]) for key in kept]


def _alpha(counted: Words | None, words: Best, configured: float) -> float:
    if counted is None or not words:
        return fusion.alpha(configured, 0)
    chunk, _ = next(iter(words.values()))  # the first by words
    # Of the chunk, not of its document: a long document has all words of many queries that it does not answer.
    return fusion.alpha(configured, fusion.coverage(counted.of(chunk, chunk), counted.chunks))


def _certain(db: apsw.Connection, match: ranking.MatchQuery, among: Among, unit: _Unit) -> frozenset[int]:
    """The documents with all words of the query in one chunk, or these chunks, if they are few."""
    if not match.required:
        return frozenset()
    sql = f"SELECT DISTINCT {unit.sql} FROM words WHERE words MATCH :all AND {among.sql} LIMIT {fusion.CERTAIN + 1}"
    found = rows(db, sql, {"all": " AND ".join(f"({each})" for each in match.required), **among.bindings})
    return frozenset(key for (key,) in found) if len(found) <= fusion.CERTAIN else frozenset()


class _Near:
    """The cosines of windows, and of each document, or chunk, the best of those that the store still has.

    They are all windows of documents that meet the conditions; or, where every document does and there are lists, those
    that are near by these, those that are not in lists yet, and those of documents that are asked for.
    """

    def __init__(
        self,
        db: apsw.Connection,
        held: Held,
        sidecar: Sidecar,
        vector: Floats,
        conditions: Sequence[Condition],
        unit: _Unit,
    ) -> None:
        self._db, self._model, self._sidecar, self._vector, self._unit = db, held.n, sidecar, vector, unit
        self._parts = sidecar.parts(db, held)
        self._cosines: Floats
        self._first_rows = np.cumsum([0, *(len(part.numbers) for part in self._parts)])
        # Which windows are near by lists depends on all of them. So for a reader from whom some are hidden, each one
        # that it may see is compared.
        self._lists = self._parts[0].lists if matching.hide_nothing(db, conditions) else None
        if not vector.any():  # no word that the model knows
            self._lists = None
            self._look_at(np.zeros(0, np.int64))
        elif self._lists is not None:
            self._look_at(np.arange(self._first_rows[1], self._first_rows[-1]))
        else:  # before the candidates are taken: filters never leave fewer than there are
            self._look_at(self._of_documents(matching.permitted(db, conditions)))

    def _of_documents(self, permitted: Sequence[int] | None) -> Integers | None:
        """The rows of these documents; None for all."""
        if permitted is None:
            return None
        documents = np.concatenate([part.chunks for part in self._parts]) >> CHUNK_BITS
        (found,) = np.nonzero(np.isin(documents, np.array(permitted, np.int64)))
        return found

    def _look_at(self, which: Integers | None) -> None:
        """Compare with the windows in these rows, in ascending order; None: with all.

        Invariant: all arrays that are made are as long, one place a window.
        """
        every: Sequence[slice | Integers]
        if which is None or len(which) > _FEW * self._first_rows[-1]:
            every, among = [slice(None)] * len(self._parts), which
        else:
            every, among = self._split(which), None
        found = [
            (part.numbers[rows], part.chunks[rows], part.vectors[rows] @ self._vector)
            for part, rows in zip(self._parts, every, strict=True)
        ]
        self._numbers, self._chunks, self._cosines = (np.concatenate(each) for each in zip(*found, strict=True))
        self._rows: Integers = np.arange(len(self._numbers)) if which is None else which
        if among is not None:
            self._numbers, self._chunks = self._numbers[among], self._chunks[among]
            self._cosines = self._cosines[among]
        self._documents: Integers = self._chunks >> CHUNK_BITS
        self._units = self._chunks if self._unit.by_chunk else self._documents

    def _add(self, which: Integers) -> None:
        """Compare with the windows in these rows, too."""
        before = self._numbers, self._chunks, self._cosines, self._rows, self._documents, self._units
        self._look_at(np.setdiff1d(which, self._rows))
        after = self._numbers, self._chunks, self._cosines, self._rows, self._documents, self._units
        self._numbers, self._chunks, self._cosines, self._rows, self._documents, self._units = (
            np.concatenate(pair) for pair in zip(before, after, strict=True)
        )

    def _split(self, rows: Integers) -> list[Integers]:
        """The places in each part, of rows in ascending order."""
        bounds = np.searchsorted(rows, self._first_rows)
        return [rows[bounds[i] : bounds[i + 1]] - self._first_rows[i] for i in range(len(self._parts))]

    def _look_further(self, count: int) -> None:
        """Compare with so many windows of the lists, too, or with all."""
        assert self._lists is not None
        if count > _MOST * len(self._lists.order):
            self._lists = None
            self._look_at(None)
        else:
            self._add(listing.near(self._lists, self._vector, count))

    def _look_at_documents(self, documents: Iterable[int]) -> None:
        """Compare with all windows of these, too."""
        if self._lists is not None:
            sql = f"""
                SELECT w.n FROM json_each(?) j CROSS JOIN windows w
                ON w.chunk BETWEEN j.value << {CHUNK_BITS} AND ((j.value + 1) << {CHUNK_BITS}) - 1 WHERE w.model = ?
            """
            numbers = [n for (n,) in rows(self._db, sql, (json.dumps(sorted(documents)), self._model))]
            self._add(self._parts[0].places(np.array(numbers, np.int64)))

    def best(self, wanted: int) -> dict[int, tuple[int, float]]:
        """Of the `wanted` nearest units: the nearest chunk and its cosine."""
        depth, taken = 4 * wanted, max(_LISTED, _LISTED_EACH * wanted)
        if self._lists is not None:
            self._look_further(taken)
        while True:
            places, bound = self._first(depth)
            found = self._best(places)
            kept = self._unit.bounded(found)
            if len(kept) >= wanted and found[kept[wanted - 1]][1] > bound + _EQUAL / 2:
                return {key: found[key] for key in kept[:wanted]}
            if len(places) < len(self._numbers):
                depth *= 4
            elif self._lists is not None:
                taken *= _MORE
                self._look_further(taken)
            else:
                return {key: found[key] for key in kept[:wanted]}

    def of(self, units: Iterable[int]) -> dict[int, tuple[int, float]]:
        """The same of these."""
        units = list(units)
        if not units:
            return {}
        self._look_at_documents({self._unit.document(each) for each in units})
        (places,) = np.nonzero(np.isin(self._units, np.fromiter(units, np.int64)))
        return self._best(places)

    def averages(self, documents: Iterable[int], count: int) -> dict[int, float]:
        """The cosines of so many of each document's nearest chunks on average."""
        documents = list(documents)
        self._look_at_documents(documents)
        (places,) = np.nonzero(np.isin(self._documents, np.fromiter(documents, np.int64)))
        places = self._live(places)
        places = places[np.lexsort((-self._cosines[places], self._documents[places]))]
        _, starts = np.unique(self._documents[places], return_index=True)
        found = {}
        for of_one in np.split(places, starts[1:]) if len(places) else ():
            _, firsts = np.unique(self._chunks[of_one], return_index=True)  # the nearest window of each chunk
            last = of_one[np.sort(firsts)[:count][-1]]
            near = of_one[self._cosines[of_one] >= self._cosines[last] - _EQUAL]
            best: dict[int, float] = {}
            for chunk, cosine in self._sorted(near):
                best.setdefault(chunk, cosine)
            nearest = list(best.values())[:count]
            found[int(self._documents[last])] = round(sum(nearest) / len(nearest), fusion.DIGITS)
        return found

    def chunks(self, document: int, first: int) -> list[int]:
        """A document's chunks, `first` and then by their cosines."""
        self._look_at_documents((document,))
        (places,) = np.nonzero(self._documents == document)
        return list(dict.fromkeys((first, *(chunk for chunk, _ in self._sorted(self._live(places))))))

    def _first(self, depth: int) -> tuple[Integers, float]:
        """The nearest windows, in no order, and those that may be equal to the last of them; and a cosine that all
        others are below, but for the last digits.
        """
        count = len(self._cosines)
        if depth >= count:
            return np.arange(count), -math.inf
        bound = float(np.partition(self._cosines, count - depth)[count - depth]) - _EQUAL
        (places,) = np.nonzero(self._cosines >= bound)
        return places, bound

    def _live(self, places: Integers) -> Integers:
        """Those that the store still has."""
        numbers = json.dumps(self._numbers[places].tolist())
        sql = "SELECT w.n FROM json_each(?) j JOIN windows w ON w.n = j.value WHERE w.model = ?"
        there = [n for (n,) in rows(self._db, sql, (numbers, self._model))]
        live: Integers = places[np.isin(self._numbers[places], np.array(there, np.int64))]
        return live

    def _best(self, places: Integers) -> dict[int, tuple[int, float]]:
        """The best chunk of each unit of these, the nearest first."""
        dead = 0
        while True:
            first = self._firsts(places)
            live = self._live(first)
            if len(live) == len(first):
                break
            dead += len(first) - len(live)
            places = np.setdiff1d(places, np.setdiff1d(first, live))
        if dead > _DEAD:
            self._sidecar.renew()
        best: dict[int, tuple[int, float]] = {}
        for chunk, cosine in self._sorted(first):
            best.setdefault(self._unit.of(chunk), (chunk, cosine))
        return best

    def _firsts(self, places: Integers) -> Integers:
        """The best place of each unit, and those that are equal to it but for the last digits."""
        if not len(places):
            return places
        places = places[np.lexsort((-self._cosines[places], self._units[places]))]
        _, starts = np.unique(self._units[places], return_index=True)
        cosines = self._cosines[places]
        best = np.repeat(cosines[starts], np.diff(np.append(starts, len(places))))
        firsts: Integers = places[cosines >= best - _EQUAL]
        return firsts

    def _sorted(self, places: Integers) -> list[tuple[int, float]]:
        """Their chunks and cosines, the nearest first.

        Computed again, in double precision and a row at a time: in a large product, the last digits depend on how rows
        stand in memory, and equal stores would have unequal answers.
        """
        exact = np.round((self._vectors(places).astype(np.float64) * self._vector).sum(1), fusion.DIGITS)
        chunks = self._chunks[places]
        order = np.lexsort((chunks, -exact))
        return [(int(chunk), float(cosine)) for chunk, cosine in zip(chunks[order], exact[order], strict=True)]

    def _vectors(self, places: Integers) -> Floats:
        wanted = self._rows[places]
        order = np.argsort(wanted, kind="stable")
        found: Floats = np.empty((len(places), len(self._vector)), np.float32)
        split = self._split(wanted[order])
        found[order] = np.concatenate([part.vectors[each] for part, each in zip(self._parts, split, strict=True)])
        return found

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
from knowledge.embedding.arrays import Floats, np, npt
from knowledge.sqlite import explaining, matching, reading
from knowledge.sqlite.access import Condition
from knowledge.sqlite.explaining import Among, Words
from knowledge.sqlite.schema import CHUNK_BITS
from knowledge.sqlite.sidecar import Integers, Sidecar
from knowledge.sqlite.vectors import Held, Meant
from knowledge.store import Explained, SearchAnswer, SearchQuery
from storage.lanes import rows

# Cosines in single precision that differ by less may be equal.
_EQUAL = 1e-5
# When a search has met this many rows that are gone from the store, the matrix is made anew.
_DEAD = 200

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
        counts: Counter[int] = Counter()
        kept = []
        for unit in units:
            counts[self.document(unit)] += 1
            if not self.by_chunk or counts[self.document(unit)] <= self._most:
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
        near = _Near(db, meant.held, sidecar, vector, matching.permitted(db, conditions), unit)
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
                    certain=key == certain,
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


def _certain(db: apsw.Connection, match: ranking.MatchQuery, among: Among, unit: _Unit) -> int | None:
    """The document with all words of the query in one chunk, or that chunk, if it is the only one."""
    if not match.required:
        return None
    sql = f"SELECT DISTINCT {unit.sql} FROM words WHERE words MATCH :all AND {among.sql} LIMIT 2"
    found = rows(db, sql, {"all": " AND ".join(f"({each})" for each in match.required), **among.bindings})
    return found[0][0] if len(found) == 1 else None


class _Near:
    """The cosines of all windows, and of each document, or chunk, the best of those that the store still has."""

    def __init__(
        self,
        db: apsw.Connection,
        held: Held,
        sidecar: Sidecar,
        vector: Floats,
        permitted: Iterable[int] | None,
        unit: _Unit,
    ) -> None:
        self._db, self._model, self._sidecar, self._vector = db, held.n, sidecar, vector
        # Invariant: all arrays but `_parts` are as long, one place a window.
        self._parts = sidecar.parts(db, held)
        self._numbers: Integers = np.concatenate([part.numbers for part in self._parts])
        self._chunks: Integers = np.concatenate([part.chunks for part in self._parts])
        self._cosines: Floats = np.concatenate([part.vectors @ vector for part in self._parts])
        self._rows: Integers = np.arange(len(self._numbers))
        if not vector.any():  # no word that the model knows
            self._keep(np.zeros(len(self._numbers), bool))
        elif permitted is not None:  # before the candidates are taken: filters never leave fewer than there are
            self._keep(np.isin(self._chunks >> CHUNK_BITS, np.fromiter(permitted, np.int64)))
        self._documents: Integers = self._chunks >> CHUNK_BITS
        self._unit = unit
        self._units = self._chunks if unit.by_chunk else self._documents

    def _keep(self, which: npt.NDArray[np.bool_]) -> None:
        self._numbers, self._chunks = self._numbers[which], self._chunks[which]
        self._cosines, self._rows = self._cosines[which], self._rows[which]

    def best(self, wanted: int) -> dict[int, tuple[int, float]]:
        """Of the `wanted` nearest units: the nearest chunk and its cosine."""
        depth = 4 * wanted
        while True:
            places, bound = self._first(depth)
            found = self._best(places)
            kept = self._unit.bounded(found)
            if len(places) == len(self._numbers) or (
                len(kept) >= wanted and found[kept[wanted - 1]][1] > bound + _EQUAL / 2
            ):
                return {key: found[key] for key in kept[:wanted]}
            depth *= 4

    def of(self, units: Iterable[int]) -> dict[int, tuple[int, float]]:
        """The same of these."""
        (places,) = np.nonzero(np.isin(self._units, np.fromiter(units, np.int64)))
        return self._best(places)

    def averages(self, documents: Iterable[int], count: int) -> dict[int, float]:
        """The cosines of so many of each document's nearest chunks on average."""
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
        found: Floats = np.empty((len(places), len(self._vector)), np.float32)
        start, wanted = 0, self._rows[places]
        for part in self._parts:
            inside = (wanted >= start) & (wanted < start + len(part.numbers))
            found[inside] = part.vectors[wanted[inside] - start]
            start += len(part.numbers)
        return found

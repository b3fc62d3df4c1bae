"""Lists of vectors that lie near each other, and what a search reads of them: a part, and that in short.

The centres of the lists are found by k-means on a sample of the vectors; each vector is in the list of its nearest
centre, and lists stand one behind the other. Beside each vector stands its projection on the axes along which the
sample varies most. A search reads the projections in the lists that are nearest to its vector, until they no longer
change what is found, and the vectors themselves of the best of these only. Same vectors, same lists: nothing is drawn
but by a fixed seed.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from knowledge.embedding.arrays import Floats, np, npt

Integers = npt.NDArray[np.int64]

# Vectors that the centres are found by, for each list; and how often all are assigned to them. More of either changed
# no recall (measured).
_SAMPLED, _ROUNDS = 40, 8
# The sample is in memory as a whole.
_SAMPLED_BYTES = 128 * 1024 * 1024
# The part of a vector's dimensions that its projection has. Texts by the static model, 220,000 windows, 2,000 of the
# best projections: the ten nearest are among them to 0.980 with a quarter, to 0.998 with this, at half of the time
# that all dimensions take.
_PROJECTED = 3 / 8
# Vectors in a step, some 40 ms.
_BLOCK = 4096
# A search reads these shares of all vectors one after the other, and stops when one has changed no more than
# `_CHANGED` of the best `_WATCHED`. On the texts above it reads a fifth of them: 0.983 of the ten nearest. Where
# vectors lie about few topics, it ends after the second.
_SHARES = (0.01, 0.03, 0.08, 0.16, 0.32, 0.5)
_WATCHED, _CHANGED = 80, 1

# Called between steps, to leave the processor to others. May raise.
Pause = Callable[[], None]


@dataclass(frozen=True, slots=True, eq=False)
class Centres:
    """What lists are made by: the centre of each, and the axes of projections. `rows`: of so many vectors."""

    rows: int
    centres: Floats
    axes: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """Lists of the rows of a matrix. List `i` is from row `starts[i]` to `starts[i + 1]`.

    `order` are the rows in the order of their numbers, `projected` has a row for each.
    """

    by: Centres
    order: Integers
    starts: Integers
    projected: Floats


def projected_dims(dims: int) -> int:
    """How many dimensions a projection has."""
    return max(1, round(dims * _PROJECTED))


def list_count(rows: int) -> int:
    """How many lists are made of so many vectors: as many as are in one."""
    return max(1, math.isqrt(rows))


def sample_places(rows: int, dims: int) -> Integers:
    """The vectors that centres are found by, in their order."""
    count = min(_SAMPLED * list_count(rows), _SAMPLED_BYTES // (4 * dims))
    drawn = np.random.default_rng(0).integers(0, rows, count)
    places: Integers = np.unique(drawn)
    return places


def centres_of(sample: Floats, rows: int, pause: Pause) -> Centres:
    """What to make lists of so many vectors by, of which these are a sample."""
    count = min(list_count(rows), len(sample))
    centres = sample[np.sort(np.random.default_rng(1).choice(len(sample), count, replace=False))].copy()
    for _ in range(_ROUNDS):
        nearest = assigned(sample, centres, pause)
        sizes = np.bincount(nearest, minlength=count)
        order = np.argsort(nearest, kind="stable")
        starts = np.cumsum(sizes) - sizes
        filled = sizes > 0
        sums = np.add.reduceat(sample[order], starts[filled])
        centres[filled] = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), np.float32(1e-9))
        # A list without vectors takes its centre from one with many.
        (empty,) = np.nonzero(~filled)
        large = np.resize(np.argsort(-sizes, kind="stable")[: int(filled.sum())], len(empty))
        centres[empty] = sample[order[starts[large]]]
        pause()
    _, axes = np.linalg.eigh((sample.T @ sample).astype(np.float64))  # those of the greatest variance at the end
    most = np.ascontiguousarray(axes[:, ::-1][:, : projected_dims(sample.shape[1])], np.float32)
    return Centres(rows, centres, most)


def assigned(vectors: Floats, centres: Floats, pause: Pause) -> Integers:
    """The list of each vector."""
    found = np.empty(len(vectors), np.int64)
    for start in range(0, len(vectors), _BLOCK):
        found[start : start + _BLOCK] = (vectors[start : start + _BLOCK] @ centres.T).argmax(1)
        pause()
    return found


def near(lists: Lists, vector: Floats, count: int) -> Integers:
    """The rows of `count` vectors near to this one by their projections, in ascending order."""
    sizes = np.diff(lists.starts)
    nearest = np.argsort(-(lists.by.centres @ vector), kind="stable")
    ends = np.cumsum(sizes[nearest])
    projected = vector @ lists.by.axes
    places, cosines = list[Integers](), np.zeros(0, np.float32)
    for first, last in _rounds(ends, max(count, _WATCHED)):
        added = [slice(lists.starts[each], lists.starts[each + 1]) for each in nearest[first:last]]
        places += [np.arange(each.start, each.stop) for each in added]
        before = len(cosines)
        cosines = np.concatenate((cosines, *(lists.projected[each] @ projected for each in added)))
        if before >= count and before >= _WATCHED:
            bound = np.partition(cosines, len(cosines) - _WATCHED)[len(cosines) - _WATCHED]
            if int((cosines[before:] >= bound).sum()) <= _CHANGED:
                break
    found: Integers = np.concatenate(places)
    if len(found) > count:
        found = found[np.argpartition(cosines, len(cosines) - count)[len(cosines) - count :]]
    found.sort()
    return found


def _rounds(ends: Integers, least: int) -> Iterator[tuple[int, int]]:
    """Which of the lists are read in each round. `ends[i]`: so many vectors are in the first `i + 1`."""
    rows, first = int(ends[-1]), 0
    for share in _SHARES:
        last = min(int(np.searchsorted(ends, max(share * rows, min(least, rows)))) + 1, len(ends))
        if last > first:
            yield first, last
        first = max(first, last)


def in_lists(nearest: Sequence[int] | Integers, count: int) -> tuple[Integers, Integers]:
    """Vectors in the order of their lists, and where each list begins, the end of the last one behind."""
    sizes = np.bincount(nearest, minlength=count)
    return np.argsort(nearest, kind="stable"), np.concatenate(([0], np.cumsum(sizes)))

"""Vectors as a matrix in a mapped file: written whole, or not at all; one byte that differs, and it is not read.

It may have lists of its rows (`lists.py`), which stand in their order then.
"""

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from knowledge.embedding.arrays import Floats, np, npt
from knowledge.neighbours.lists import Centres, Integers, Lists

_FORMAT = 2
_HEAD_BYTES = 4096
_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """Windows: the number and the chunk of each, and its vector as a row. `last` is the newest known.

    In the order of their numbers where there are no lists.
    """

    last: int
    numbers: Integers
    chunks: Integers
    vectors: Floats
    lists: Lists | None = None

    def followed_by(self, more: "Matrix") -> "Matrix":
        """Both, as one in memory."""
        return Matrix(
            more.last,
            np.concatenate((self.numbers, more.numbers)),
            np.concatenate((self.chunks, more.chunks)),
            np.concatenate((self.vectors, more.vectors)),
        )

    def places(self, numbers: Integers) -> Integers:
        """The rows of windows, of those that are here."""
        order = None if self.lists is None else self.lists.order
        found = np.searchsorted(self.numbers, numbers, sorter=order)
        found = np.minimum(found, max(0, len(self.numbers) - 1))
        if order is not None:
            found = order[found]
        rows: Integers = found[self.numbers[found] == numbers] if len(self.numbers) else found[:0]
        return rows


class Shape(NamedTuple):
    """What a file holds: `rows` vectors of a model; lists, and dimensions of projections, where there are any.

    `mark` is of the model in one store. `last` is the newest window, `made_of` how many the centres were made of.
    """

    mark: str
    dims: int
    rows: int
    last: int
    lists: int = 0
    projected: int = 0
    made_of: int = 0

    def arrays(self) -> dict[str, tuple[type[np.generic], tuple[int, ...]]]:
        """The arrays in their order. Those of eight bytes come first, so that each begins at a multiple of its size."""
        rows, listed = self.rows, self.rows if self.lists else 0
        return {
            "numbers": (np.int64, (rows,)), "chunks": (np.int64, (rows,)), "order": (np.int64, (listed,)),
            "starts": (np.int64, (self.lists + 1 if self.lists else 0,)), "vectors": (np.float32, (rows, self.dims)),
            "centres": (np.float32, (self.lists, self.dims)), "axes": (np.float32, (self.dims, self.projected)),
            "projected": (np.float32, (listed, self.projected)),
        }  # fmt: skip

    def places(self) -> dict[str, int]:
        """Where each array begins, and `""`, where the file ends."""
        at, found = _HEAD_BYTES, {}
        for name, (kind, shape) in self.arrays().items():
            found[name] = at
            at += np.dtype(kind).itemsize * int(np.prod(shape))
        return found | {"": at}


# Arrays by their name, and the row at which they are to stand.
Part = tuple[str, int, npt.NDArray[Any]]


def write(path: Path, shape: Shape, parts: Iterable[Part], name: Path | None = None) -> None:
    """Write the file beside, then rename it, so that it is there as a whole or not at all. Raises OSError.

    `name` is that of the file meanwhile.
    """
    if name is None:
        descriptor, made = tempfile.mkstemp(prefix=path.name + ".", dir=path.parent)
        name = Path(made)
    else:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "r+b") as file:
            places, filled = shape.places(), 0
            for array, row, values in parts:
                file.seek(places[array] + values.itemsize * row * int(np.prod(values.shape[1:])))
                file.write(np.ascontiguousarray(values).data)
                filled += values.nbytes
            if filled != places[""] - _HEAD_BYTES:  # a store that lacks vectors, which a check reports
                raise OSError(errno.EIO, "the store has other vectors than it counts")
            file.flush()
            summed = _sum(shape, np.memmap(name, np.uint8, "r", offset=_HEAD_BYTES))
            file.seek(0)
            file.write(json.dumps({"format": _FORMAT, **shape._asdict(), "sum": summed}).encode().ljust(_HEAD_BYTES))
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def load(path: Path, mark: str, dims: int) -> Matrix | None:
    """The matrix in the file, mapped; None where there is none, or it is not one of this model in this store."""
    try:
        with path.open("rb") as file:
            stated = json.loads(file.read(_HEAD_BYTES))
        data = np.memmap(path, np.uint8, "r", offset=_HEAD_BYTES).view(np.ndarray)
        summed, known = stated.pop("sum"), stated.pop("format")
        shape = Shape(**stated)
        if known != _FORMAT or shape[:2] != (mark, dims) or not shape.rows:
            return None
        places = shape.places()
        if len(data) != places[""] - _HEAD_BYTES or _sum(shape, data) != summed:
            return None
        arrays = {}
        for name, (kind, size) in shape.arrays().items():
            start = places[name] - _HEAD_BYTES
            length = np.dtype(kind).itemsize * int(np.prod(size))
            arrays[name] = data[start : start + length].view(kind).reshape(size)
    except (OSError, OverflowError, ValueError, TypeError, AttributeError, KeyError):
        return None
    lists = None
    if shape.lists:
        by = Centres(shape.made_of, arrays["centres"], arrays["axes"])
        lists = Lists(by, arrays["order"], arrays["starts"], arrays["projected"])
    return Matrix(shape.last, arrays["numbers"], arrays["chunks"], arrays["vectors"], lists)


def _sum(shape: Shape, data: npt.NDArray[np.uint8]) -> str:
    """A hash of sums of blocks: notices any byte that differs, at the speed of memory (SHA-256: 0.3 GB/s)."""
    whole = len(data) // _BLOCK * _BLOCK
    sums = data[:whole].view(np.uint64).reshape(-1, _BLOCK // 8).sum(1, dtype=np.uint64)
    return hashlib.sha256(json.dumps(shape).encode() + sums.tobytes() + data[whole:].tobytes()).hexdigest()

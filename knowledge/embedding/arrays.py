"""numpy, with one thread, and vectors as bytes. Imported where vectors are computed: 100 ms and 20 MB."""

import os
from collections.abc import Sequence

# Its library of linear algebra would start a thread for each core, and reserve memory for each. It reads this once.
_before = {name: os.environ.get(name) for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")}
os.environ.update(dict.fromkeys(_before, "1"))
import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402

for _name, _value in _before.items():
    if _value is None:
        del os.environ[_name]
    else:
        os.environ[_name] = _value

Floats = npt.NDArray[np.float32]

__all__ = ["Floats", "np", "npt", "packed_rows", "unpacked"]


def packed_rows(rows: Floats) -> list[bytes]:
    """Each row with length 1, as little-endian floats; a row of zeros stays one."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled = (rows / np.where(lengths > 0, lengths, 1)).astype("<f4")
    return [row.tobytes() for row in scaled]


def unpacked(vectors: Sequence[bytes], dims: int) -> Floats:
    """The vectors as rows."""
    return np.frombuffer(b"".join(vectors), "<f4").reshape(len(vectors), dims)

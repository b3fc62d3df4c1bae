"""The table of `static`: its file, and texts as sums of its rows."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from knowledge.embedding import EmbeddingError
from knowledge.embedding.arrays import Floats, np, npt, packed_rows
from knowledge.embedding.wordpiece import WordPiece
from storage.metering import give_way


def packed(vocabulary: Sequence[str], rows: Floats) -> bytes:
    """The file: one line of JSON, the vocabulary, one scale a row as f32, the rows as int8."""
    words = "\n".join(vocabulary).encode()
    scales = np.abs(rows).max(1) / 127
    head = {"format": 1, "rows": len(vocabulary), "dims": rows.shape[1], "vocabulary_bytes": len(words)}
    whole = np.rint(rows / np.where(scales > 0, scales, 1)[:, None]).astype(np.int8)
    return b"".join((json.dumps(head).encode(), b"\n", words, scales.astype("<f4").tobytes(), whole.tobytes()))


class Table:
    """Vectors of the pieces of a vocabulary."""

    def __init__(self, vocabulary: Sequence[str], scales: Floats, rows: npt.NDArray[np.int8]) -> None:
        self._pieces = WordPiece(vocabulary)
        self._scales, self._rows = scales, rows

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        """As `Embedder.embed`, in this thread."""
        return packed_rows(np.stack([self._sum(text) for text in texts])) if texts else []

    def _sum(self, text: str) -> Floats:
        give_way()
        pieces = np.fromiter(self._pieces.pieces(text), np.int32)
        total: Floats = self._scales[pieces] @ self._rows[pieces].astype(np.float32)
        return total


_loading = Lock()
_loaded: dict[tuple[Path, str], Table] = {}


def load(file: Path, sha256: str) -> Table:
    """The table in `file`, read once. Raises EmbeddingError where it is not the file of this hash."""
    with _loading:
        table = _loaded.get((file, sha256))
        if table is None:
            table = _loaded[file, sha256] = _read(file, sha256)
        return table


def vocabulary_of(file: Path, sha256: str) -> Sequence[str]:
    """The vocabulary in `file`. Raises EmbeddingError where it is not the file of this hash."""
    return _parts(file, sha256)[1].decode().split("\n")


def _read(file: Path, sha256: str) -> Table:
    head, words, numbers = _parts(file, sha256)
    count, dims = head["rows"], head["dims"]
    scales = np.frombuffer(numbers, "<f4", count)
    rows = np.frombuffer(numbers, np.int8, count * dims, 4 * count).reshape(count, dims)
    return Table(words.decode().split("\n"), scales, rows)


def _parts(file: Path, sha256: str) -> tuple[dict[str, int], bytes, bytes]:
    """What the first line says, the vocabulary, the numbers."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise EmbeddingError(f"the weights of the static model cannot be read: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != sha256:
        raise EmbeddingError("the weights of the static model are damaged (SHA-256); install the engine again")
    line, _, rest = data.partition(b"\n")
    head = json.loads(line)
    return head, rest[: head["vocabulary_bytes"]], rest[head["vocabulary_bytes"] :]

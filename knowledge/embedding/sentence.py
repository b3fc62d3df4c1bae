"""Embedders of a sentence model that runs elsewhere: texts in pieces of words go there, and vectors come back."""

from collections.abc import Awaitable, Callable, Sequence
from threading import Lock

from knowledge.embedding import EmbeddingError, Model
from knowledge.embedding.wordpiece import WordPiece
from storage.metering import in_thread

BEGIN, END = "[CLS]", "[SEP]"
# A vector's length is 1 but for the digits of single precision; the zero vector has no direction.
_ROUNDING = 1e-3

# From the pieces of some texts to their vectors, one behind the other. Raises EmbeddingError.
Run = Callable[[Sequence[Sequence[int]]], Awaitable[bytes]]


class SentenceEmbedder:
    """An `Embedder`. `vocabulary` reads the pieces, in the order of their numbers, when the first text comes.

    `run` takes `at_once` texts of at most `max_pieces` pieces.
    """

    def __init__(
        self, model: Model, vocabulary: Callable[[], Sequence[str]], run: Run, *, at_once: int, max_pieces: int
    ) -> None:
        self._model, self._vocabulary, self._run = model, vocabulary, run
        self._at_once, self._max_pieces = at_once, max_pieces
        self._loading = Lock()
        self._loaded: WordPiece | None = None

    @property
    def model(self) -> Model:
        return self._model

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """As `Embedder`."""
        pieces = await in_thread(self._pieces, tuple(texts))
        found = [
            await self._run(pieces[start : start + self._at_once]) for start in range(0, len(pieces), self._at_once)
        ]
        return await in_thread(self._vectors, b"".join(found), len(texts))

    def _pieces(self, texts: Sequence[str]) -> list[list[int]]:
        with self._loading:
            if self._loaded is None:
                self._loaded = WordPiece(self._vocabulary())
            words = self._loaded
        begin, end = words.ids[BEGIN], words.ids[END]
        return [[begin, *list(words.pieces(text))[: self._max_pieces - 2], end] for text in texts]

    def _vectors(self, found: bytes, count: int) -> list[bytes]:
        """Each vector, of length 1: what another process sends is not trusted."""
        from knowledge.embedding.arrays import np  # numpy, which is loaded with the first vector

        size = 4 * self._model.dims
        if len(found) != count * size:
            raise EmbeddingError(f"the model made {len(found)} bytes of vectors instead of {count * size}")
        rows = np.frombuffer(found, "<f4").reshape(count, self._model.dims)
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = np.linalg.norm(rows, axis=1)
        if not ((abs(lengths - 1) < _ROUNDING) | (lengths == 0)).all():  # not for NaN either
            raise EmbeddingError("the model made a vector that is none")
        return [found[start : start + size] for start in range(0, len(found), size)]

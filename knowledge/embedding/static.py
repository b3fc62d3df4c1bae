"""`static`: the vector of a text is the weighted mean of its pieces' vectors. Needs numpy and nothing else.

The vectors come from all-MiniLM-L6-v2 by `make_static.py`. A text takes 0.5 ms of 200 tokens, and no order of words
counts: it finds what is about the same things, but does not understand sentences.
"""

from collections.abc import Sequence
from pathlib import Path

from knowledge.embedding import Model
from storage.metering import in_thread

FILE = Path(__file__).with_name("static.model")
DIMS = 256
SHA256 = "d39f75bdecdd34387c59966af7f4cdd34a4dfe34029b158da49b58a190af4673"
MODEL = Model("static-minilm-256", DIMS, SHA256)


class StaticEmbedder:
    """An `Embedder` from the file that the package has, which is read on first use."""

    model = MODEL

    def __init__(self, file: Path = FILE, sha256: str = SHA256) -> None:
        self._file, self._sha256 = file, sha256

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """As `Embedder`. In a thread: 0.5 ms a text, and 40 ms to read the file."""
        return await in_thread(self._embed, tuple(texts))

    def _embed(self, texts: Sequence[str]) -> list[bytes]:
        from knowledge.embedding import table  # numpy, which a server that never searches by meaning does not load

        return table.load(self._file, self._sha256).embed(texts)

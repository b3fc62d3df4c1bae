"""`ollama`: models that a server of Ollama runs."""

from collections.abc import Sequence

import msgspec

from knowledge.embedding import Model
from knowledge.embedding.service import ServiceEmbedder, Settings
from knowledge.fetching import Poster

URL = "http://localhost:11434"
_ROUTE = "/api/embed"


class _Answer(msgspec.Struct):
    embeddings: list[list[float]]


_DECODER = msgspec.json.Decoder(_Answer)


def embedder(model: str, dims: int, settings: Settings, poster: Poster) -> ServiceEmbedder:
    """An embedder at `settings.url`, the address of a server or of its route for embeddings."""
    # What is longer than the model reads is cut there, instead of refused: our windows are made for 256 pieces.
    fields = {"model": model, "truncate": True}
    return ServiceEmbedder("the service of embeddings", Model(f"ollama:{model}", dims), settings, poster, fields, read)


def address(url: str | None) -> str:
    """The address of the route."""
    base = (url or URL).rstrip("/")
    return base if base.endswith(_ROUTE) else base + _ROUTE


def read(body: bytes, count: int) -> Sequence[Sequence[float]]:
    """The vectors, which are in the order of their texts."""
    return _DECODER.decode(body).embeddings

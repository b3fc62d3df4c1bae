"""`openai`: OpenAI's service, and any other one with a route like its `/v1/embeddings`."""

from collections.abc import Sequence

import msgspec

from knowledge.embedding import Model
from knowledge.embedding.service import ServiceEmbedder, Settings
from knowledge.fetching import Poster

URL = "https://api.openai.com/v1"
_ROUTE = "/embeddings"
# Models that make shorter vectors if they are asked to; others refuse the parameter.
_SHORTENED = "text-embedding-3-"


class _Item(msgspec.Struct):
    index: int
    embedding: list[float]


class _Answer(msgspec.Struct):
    data: list[_Item]


_DECODER = msgspec.json.Decoder(_Answer)


def embedder(model: str, dims: int, settings: Settings, poster: Poster) -> ServiceEmbedder:
    """An embedder at `settings.url`, the address of an API or of its route for embeddings."""
    fields: dict[str, object] = {"model": model, "encoding_format": "float"}
    if shortens(model):
        fields["dimensions"] = dims
    return ServiceEmbedder("the service of embeddings", Model(f"openai:{model}", dims), settings, poster, fields, read)


def shortens(model: str) -> bool:
    """Whether the model makes vectors of any length up to its own."""
    return model.startswith(_SHORTENED)


def address(url: str | None) -> str:
    """The address of the route."""
    base = (url or URL).rstrip("/")
    return base if base.endswith(_ROUTE) else base + _ROUTE


def read(body: bytes, count: int) -> Sequence[Sequence[float]]:
    """The vectors in the order of their texts: services may answer in another one, and number them."""
    found = _DECODER.decode(body).data
    if sorted(item.index for item in found) != list(range(len(found))):
        raise ValueError("numbers its vectors in a way that does not say which text each is of")
    return [item.embedding for item in sorted(found, key=lambda item: item.index)]

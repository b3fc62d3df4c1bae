"""Embedders, which make vectors of texts: texts that mean the same have vectors of nearly the same direction."""

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

# A query is a sentence; with what is beyond this it would be a document.
MAX_QUERY_CHARACTERS = 2000
# How long a search waits for its embedder.
QUERY_S = 2.0


class EmbeddingError(Exception):
    """The embedder cannot answer, or its answer cannot be used. The text says which, without secrets."""


@dataclass(frozen=True, slots=True)
class Model:
    """What made a vector. Two vectors are compared only where all of this is equal.

    `weights` is the SHA-256 of the model's file, or empty where the model is at a service.
    """

    name: str
    dims: int
    weights: str = ""


class Embedder(Protocol):
    """Makes vectors. May be used by several tasks at once."""

    @property
    def model(self) -> Model: ...

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """A vector of length 1 for each text, as `model.dims` little-endian 32-bit floats. Raises EmbeddingError."""
        ...


@dataclass(frozen=True, slots=True)
class Embedders:
    """The embedder of the configuration, and those whose vectors a store may still hold from before a change of it.

    A search waits `query_s` for one of them. Of one store it has `at_once` queries, so that a tenant with many does not
    take the time of the others' away; further ones wait. With a `problem`, the configured one cannot be used.
    `other` returns an embedder of a model that is in neither list, where there is one.
    """

    current: Embedder
    others: Sequence[Embedder] = ()
    query_s: float = QUERY_S
    at_once: int = 2
    problem: str | None = None
    other: Callable[[Model], Embedder | None] = lambda model: None

    def of(self, model: Model) -> Embedder | None:
        """The embedder that makes vectors of this model."""
        known = next((each for each in (self.current, *self.others) if each.model == model), None)
        return known or self.other(model)


def checked(vectors: Sequence[bytes], count: int, model: Model) -> Sequence[bytes]:
    """The vectors, if there are as many as texts and of the model's dimension. Raises EmbeddingError."""
    if len(vectors) != count:
        raise EmbeddingError(f"the embedder answered {len(vectors)} vectors for {count} texts")
    if any(len(vector) != 4 * model.dims for vector in vectors):
        raise EmbeddingError(f"the embedder answered vectors of another dimension than {model.dims}")
    if not all(math.isfinite(sum(array("f", vector))) for vector in vectors):  # of machines that are little-endian
        raise EmbeddingError("the embedder answered a vector that has no length (NaN, or infinite)")
    return vectors

"""The embedder that `[embedding]` names."""

from engine.config import Config
from engine.config.models import EmbeddingConfig
from knowledge.embedding import Embedders
from knowledge.embedding.fusion import Settings
from knowledge.embedding.static import StaticEmbedder

# Provider -> what it is, for `engine doctor`.
PROVIDERS = {
    "auto": "search by meaning with the static model of this package",
    "static": "search by meaning with the static model of this package",
    "disabled": "search is by keyword",
}


def trouble(embedding: EmbeddingConfig) -> str | None:
    """Why there is no embedder though one is configured."""
    if embedding.provider in PROVIDERS:
        return None
    return f"no embedder {embedding.provider!r} is built in; search is by keyword"


def embedders(config: Config) -> Embedders | None:
    """The embedders of the configuration; None where search is by keyword."""
    if config.embedding.provider not in ("auto", "static"):
        return None
    return Embedders(StaticEmbedder())


def settings(config: Config) -> Settings:
    """What `[retrieval]` says about search by meaning."""
    retrieval = config.retrieval
    return Settings(retrieval.hybrid_alpha, retrieval.candidate_k_keyword, retrieval.candidate_k_vector)

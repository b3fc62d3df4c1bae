"""From a configured source of documents to its connector, for every front end that fills a store."""

from engine.config import Config, ConfigError, unsupported_connector
from knowledge import connectors
from knowledge.connectors import Source

# Keys of an entry that are not for its connector.
_NOT_ITS_OWN = frozenset({"tenants"})

# Where connectors keep what they can fetch again, beside the store; a key `cache_dir` in their table changes it.
_CACHE = ".git-cache"


def connector(config: Config, label: str) -> Source:
    """The configured source `TYPE:NAME`, made by the connector of its type.

    Raises ConfigError for a type without a connector in this version, and for values that its connector refuses.
    """
    kind, _, name = label.partition(":")
    if (problem := unsupported_connector(kind)) is not None:
        raise ConfigError(problem)
    entry = getattr(config.connectors, kind)[name]
    keys = {key: getattr(entry, key) for key in type(entry).model_fields if key not in _NOT_ITS_OWN}
    if keys.get("cache_dir", "") is None:
        keys["cache_dir"] = config.db.path.parent / _CACHE
    try:
        return connectors.make(kind, keys)
    except ValueError as error:
        raise ConfigError(f"{label}: {error}") from None

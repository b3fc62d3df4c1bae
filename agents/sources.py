"""From a configured source of documents to its connector, for every front end that fills a store."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from engine.config import Config, ConfigError, unsupported_connector
from engine.config.entries import ScriptConnector
from engine.tenant import DEFAULT_TENANT, Tenant
from knowledge import connectors
from knowledge.access import SourceAccess
from knowledge.connectors import Source
from knowledge.extraction import TEXT_ONLY, Extractor
from knowledge.fetching import Fetcher
from knowledge.stores import cache_path

if TYPE_CHECKING:
    from engine.engine import Engine

# Keys of an entry that are not for its connector.
_NOT_ITS_OWN = frozenset({"tenants", "access", "access_rules", "untrusted", "every", "watch"})


def access_of(config: Config, who: Tenant = DEFAULT_TENANT) -> SourceAccess:
    """The labels that a tenant's sources give their documents by a configuration that has just been read."""
    return SourceAccess(config.connectors.access(who.id))


def connector(
    config: Config,
    label: str,
    engine: "Engine | None" = None,
    who: Tenant = DEFAULT_TENANT,
    extractor: Extractor = TEXT_ONLY,
) -> Source:
    """The configured source `TYPE:NAME`, made by the connector of its type, whose files `extractor` reads.

    A script runs in `engine`, for the tenant whose store is filled. Raises ConfigError for a type without a connector
    in this version, and for values that its connector refuses.
    """
    kind, _, name = label.partition(":")
    if (problem := unsupported_connector(kind)) is not None:
        raise ConfigError(problem)
    if kind == "script":
        if engine is None:
            raise ConfigError(f"{label}: a script needs an engine, and there is none")
        from agents.scanning import ScriptSource  # with the sandbox, which other sources do not need

        return ScriptSource(name, config.connectors.script[name], engine, who)
    entry = getattr(config.connectors, kind)[name]
    keys = {key: getattr(entry, key) for key in type(entry).model_fields if key not in _NOT_ITS_OWN}
    if keys.get("cache_dir", "") is None:
        keys["cache_dir"] = cache_path(config.db.path)
    try:
        return connectors.make(kind, keys, {"extractor": extractor, "fetching": _fetching})
    except ValueError as error:
        raise ConfigError(f"{label}: {error}") from None


class Health(Mapping[str, str | None]):
    """The labels of a tenant's sources, each with what is wrong with it, or None: as configured, and as far as this
    machine can tell without reading it. A value is looked up when it is asked for, and blocks for some system calls.
    """

    def __init__(self, config: Config, tenant: str = "default") -> None:
        self._config = config
        self._labels = config.connectors.labels(tenant)
        self._made: dict[str, Source | str] = {}  # the configuration does not change: its mistakes are found once

    def __contains__(self, label: object) -> bool:
        return label in self._labels

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, label: str) -> str | None:
        if label not in self._labels:
            raise KeyError(label)
        if label.startswith("script:"):
            return _script_trouble(self._config.connectors.script[label.partition(":")[2]])
        if label not in self._made:
            try:
                self._made[label] = connector(self._config, label)
            except ConfigError as error:
                self._made[label] = str(error).removeprefix(f"{label}: ")
        found = self._made[label]
        if isinstance(found, str):
            return found
        return found.trouble() if isinstance(found, connectors.Looks) else None


def _script_trouble(entry: ScriptConnector) -> str | None:
    if entry.unset is not None:
        return entry.unset
    try:
        with entry.path.open("rb"):
            return None
    except OSError as error:
        return f"cannot read the script: {error.strerror}"


@asynccontextmanager
async def _fetching(urls: Sequence[str]) -> AsyncIterator[Fetcher]:
    from engine.egress.fetching import open_fetcher  # with what speaks HTTP, which other sources do not need

    async with open_fetcher(urls) as fetcher:
        yield fetcher

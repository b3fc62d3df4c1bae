"""The control store, in one file. `open_control` -> `ControlStore`."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from control.audit import AuditLog
from control.database import Database, open_database
from control.files import control_path
from control.keys import Keys
from control.logins import Logins
from control.secrets import Secrets
from control.tenants import Tenants
from control.usage import UsageTable
from control.versions.versions import Versions
from engine.config import Config, ConfigError


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of tenants. `db_path` is the knowledge store of `default`; those of tenants are files beside it."""

    db_path: Path
    operator_key: str | None = None
    secrets_key: str | None = None
    secrets_key_file: Path | None = None


class ControlStore:
    """The nouns of the control store, over one database. Made by `open_control`."""

    def __init__(self, database: Database, settings: Settings, clock: Callable[[], float]) -> None:
        self._database = database
        self.audit = AuditLog(database, clock)
        self.tenants = Tenants(database, self.audit, clock, settings.db_path)
        self.keys = Keys(database, self.audit, clock, settings.operator_key)
        self.logins = Logins(database)
        self.secrets = Secrets(
            database, self.audit, clock, key=settings.secrets_key, key_file=settings.secrets_key_file
        )
        self.versions = Versions(database, self.audit)
        self.usage = UsageTable(database)

    @property
    def path(self) -> Path:
        """The file, which need not exist yet."""
        return self._database.path

    def generation(self) -> int:
        """A number that changes with every control action, of this process or another one, such as the command line.

        Takes some microseconds and no thread: caches of what was read here compare it.
        """
        return self._database.generation()


def settings_of(config: Config) -> Settings:
    """The settings of tenants in a configuration."""
    tenants = config.tenants
    return Settings(config.db.path, tenants.operator_key, tenants.secrets_key, tenants.secrets_key_file)


@asynccontextmanager
async def open_control(
    path: Path, settings: Settings, *, create: bool = False, clock: Callable[[], float] = time.time
) -> AsyncIterator[ControlStore]:
    """The control store in the file `path`, open until the block ends.

    Created at once with `create`, else by the first write; until then the store is empty but for the tenant `default`.
    Raises StoreError for a file that cannot be used.
    """
    async with open_database(path, create=create, clock=clock) as database:
        store = ControlStore(database, settings, clock)
        raised: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.audit.keep)
            try:
                yield store
            except Exception as error:
                raised = error  # kept as it is: an exception that leaves the nursery comes out wrapped in a group
            nursery.cancel_scope.cancel()
        if raised is not None:
            raise raised


@asynccontextmanager
async def open_configured(config: Config) -> AsyncIterator[ControlStore]:
    """The control store of a configuration; with tenants enabled, it is created at once.

    Raises StoreError, and ConfigError for an invalid secrets key.
    """
    if config.tenants.secrets_key is not None:
        from control.sealing import BadKey, parse_key

        try:
            parse_key(config.tenants.secrets_key)
        except BadKey as bad:
            raise ConfigError(f"tenants.secrets_key: {bad}") from None
    async with open_control(control_path(config), settings_of(config), create=config.tenants.enabled) as store:
        yield store

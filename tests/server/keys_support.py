"""A server that asks for keys: the service of Python functions behind a real control store."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
from server_support import FakeService, Running, serving

from control.store import ControlStore, Settings, open_control
from engine.config import Config
from engine.usage import Book

OPERATOR = "the-operator"
SECRETS_KEY = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU="


@dataclass
class KeyedService(FakeService):
    """It knows tenants. `control` is set before it serves."""

    control: Any = None
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.engine.book = Book(time.time)  # type: ignore[attr-defined]
        config = Config.model_validate({"server": self.server.model_dump(), "tenants": {"enabled": True}})
        self.loaded = replace(self.loaded, config=config)


@dataclass
class Keyed:
    """A server that asks for keys, its control store, and keys of the tenant `acme` by what they may do."""

    running: Running
    control: ControlStore
    keys: dict[str, str]
    ids: dict[str, str]

    def client(self, key: str | None = None, **options: Any) -> httpx2.AsyncClient:
        """A client with the key of this name, or none."""
        headers = {} if key is None else {"authorization": f"Bearer {self.keys[key]}"}
        return self.running.client(headers=headers, **options)


@asynccontextmanager
async def keyed(folder: Path, **options: Any) -> AsyncIterator[Keyed]:
    """Serve with keys: `use`, `publish`, `admin` and `all` of `acme`, `other` of another tenant, and `operator`."""
    settings = Settings(folder / "engine.sqlite", OPERATOR, SECRETS_KEY)
    async with open_control(folder / "engine.control.sqlite", settings, create=True) as control:
        keys, ids = {"operator": OPERATOR}, {}
        for tenant in ("acme", "other"):
            await control.tenants.create(tenant, actor="cli")
        for name, tenant, scopes in (
            ("use", "acme", ["use"]),
            ("publish", "acme", ["publish"]),
            ("admin", "acme", ["admin"]),
            ("all", "acme", ["use", "publish", "admin"]),
            ("other", "other", ["use"]),
        ):
            record, keys[name] = await control.keys.create(tenant, actor="cli", scopes=scopes)
            ids[name] = record.id
        async with serving(KeyedService(control=control, **options)) as running:
            yield Keyed(running, control, keys, ids)

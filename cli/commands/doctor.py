"""`engine doctor`: checks everything that the engine needs."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import trio

from agents.loading.loader import LoadFailure
from agents.service import Service, open_service
from agents.sources import Health, access_of
from cli.options import AsJson, ConfigPath, load, shown
from cli.output import FAILED, OK, UNUSABLE, ago, due, mebibytes, one_line, plural, quiet_logs, say, say_json
from control.files import control_path
from engine.bridge.kv import KvError, count_keys
from engine.config import Config, ConfigError, LoadedConfig
from engine.embedders import ConfinedEmbedder, open_embedders, place
from engine.engine import SandboxUnavailable
from engine.extraction import missing, open_extractor
from engine.tenant import DEFAULT_TENANT
from knowledge.access import EVERYTHING
from knowledge.embedding import Embedder, EmbeddingError, checked
from knowledge.extraction import Unreadable
from knowledge.sqlite.store import open_store
from knowledge.store import StoreError, lateness
from knowledge.stores import store_path
from sandbox.wire.extraction import FORMATS
from sandbox.wire.messages import LayerReport
from server.oauth.tokens import open_tokens

# How long the embedder may take for one text: no longer than its first try.
_EMBEDDER_S = 30.0
_EXTRA = "install the extra `documents` for more"


@dataclass(slots=True)
class _Report:
    """The findings. `code` is the worst exit code so far; `warnings` are about things that work but should change."""

    config: dict[str, Any] = field(default_factory=lambda: {"ok": False, "path": None, "message": None})
    store: dict[str, Any] = field(default_factory=lambda: {"ok": False, "path": None, "message": "not checked"})
    sidecar: dict[str, Any] | None = None
    words: dict[str, Any] | None = None
    sources: list[dict[str, Any]] = field(default_factory=list)
    tenants: list[dict[str, Any]] = field(default_factory=list)
    embedder: dict[str, Any] = field(default_factory=lambda: {"ok": False, "provider": None, "message": "not checked"})
    extractor: dict[str, Any] = field(default_factory=lambda: {"ok": False, "message": "not checked", "layers": []})
    layers: list[dict[str, Any]] = field(default_factory=list)
    scripts: list[dict[str, Any]] = field(default_factory=list)
    issuers: list[dict[str, Any]] = field(default_factory=list)
    sandbox: str | None = None
    warnings: list[str] = field(default_factory=list)
    code: int = OK

    def worsen(self, code: int) -> None:
        self.code = max(self.code, code)

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.code == OK,
            "config": self.config,
            "store": self.store,
            "sidecar": self.sidecar,
            "words": self.words,
            "tenants": self.tenants,
            "sources": self.sources,
            "embedder": self.embedder,
            "extractor": self.extractor,
            "layers": self.layers,
            "scripts": self.scripts,
            "issuers": self.issuers,
            "sandbox": self.sandbox,
            "warnings": self.warnings,
        }


async def doctor(*, config: ConfigPath = None, as_json: AsJson = False) -> int:
    """Check the configuration, store, embedder, extractor, scripts and sandbox layers.

    Exit code 1 when a script did not load or an issuer's keys cannot be fetched; 2 when a required layer is missing, or
    the configuration or store cannot be used.
    """
    report = _Report()
    loaded = _check_config(report, config)
    if loaded is not None:
        await _check_store(report, loaded.config)
        await _check_embedder(report, loaded.config)
        await _check_extractor(report, loaded.config)
        if report.store["ok"]:
            await _check_service(report, loaded)
    if as_json:
        say_json(report.as_json())
    else:
        _show(report)
    return report.code


def _check_config(report: _Report, path: Path | None) -> LoadedConfig | None:
    try:
        loaded = load(path, warnings=False)
    except ConfigError as error:
        report.config["message"] = str(error)
        report.worsen(UNUSABLE)
        return None
    report.config = {"ok": True, "path": shown(loaded.path) if loaded.path else None, "message": None}
    report.warnings.extend(loaded.warnings)
    for label, problem in Health(loaded.config).items():
        if problem is not None:
            report.warnings.append(f"{label}: {problem}")
    return loaded


async def _check_store(report: _Report, config: Config) -> None:
    path = config.db.path
    report.store = {"ok": True, "path": shown(path), "message": None}
    if not path.exists():
        # The first write creates it; a check must not.
        report.store["message"] = "does not exist yet: `engine init` or `engine sync` creates it"
        return
    every = config.connectors.every()
    try:
        async with open_store(path, readonly=True, configured=Health(config), access=access_of(config)) as store:
            stats = await store.stats(EVERYTHING)
            found = await store.checked()
    except StoreError as error:
        report.store |= {"ok": False, "message": str(error)}
        report.worsen(UNUSABLE)
        return
    counts = plural(stats.documents, "document"), plural(stats.chunks, "chunk")
    report.store["message"] = f"{counts[0]}, {counts[1]}, {mebibytes(stats.size_bytes or 0)}"
    if found.damage:
        said = f"damaged: {'; '.join(found.damage)}; restore it from a backup, or remove it and sync again"
        report.store |= {"ok": False, "message": said}
        report.worsen(UNUSABLE)
    await _check_tenants_stores(report, path)
    if found.sidecar is not None:
        report.sidecar = {"ok": found.usable, "message": found.sidecar}
        if not found.usable:
            report.warnings.append(f"vectors beside the store: {found.sidecar}")
    if found.words is not None:
        said, usable = found.words
        report.words = {"ok": usable, "message": said}
        if not usable:
            report.warnings.append(f"words beside the store: {said}")
    now = datetime.now(UTC)
    for source in stats.sources:
        late = lateness(source, every.get(source.source), now)
        report.sources.append(
            {
                "source": source.source, "ok": source.healthy and late is None, "documents": source.document_count,
                "last_sync": source.last_sync, "next_sync": source.next_sync, "stale": late is not None,
                "message": source.notes,
            }
        )  # fmt: skip
        if late is not None:
            report.warnings.append(late)
        elif source.last_error is not None and (said := f"{source.source}: {source.notes}") not in report.warnings:
            report.warnings.append(said)


async def _check_tenants_stores(report: _Report, path: Path) -> None:
    """The stores of other tenants, which the engine opens when they are used."""
    folder = store_path(path, "any").parent

    def there() -> list[Path]:  # a link to nothing is a store that the first write creates
        return sorted(file for file in folder.glob("*.sqlite") if file.exists())

    for file in await trio.to_thread.run_sync(there):
        try:
            async with open_store(file, readonly=True, readers=1) as store:
                problem = "; ".join((await store.checked()).damage) or None
        except StoreError as error:
            problem = str(error)
        report.tenants.append({"tenant": file.stem, "ok": problem is None, "message": problem})
        if problem is not None:
            report.worsen(UNUSABLE)


async def _check_embedder(report: _Report, config: Config) -> None:
    """Have it make a vector, as a search by meaning does."""
    report.embedder = {"ok": True, "provider": config.embedding.provider, "message": "search is by keyword"}
    quiet_logs()
    try:
        async with open_embedders(config) as made:
            if made is not None:
                await _look_at_embedder(report, config, made.current)
    except ConfigError as error:  # what no search could do without
        report.embedder |= {"ok": False, "message": str(error)}
        report.worsen(UNUSABLE)


async def _look_at_embedder(report: _Report, config: Config, embedder: Embedder) -> None:
    model = embedder.model
    report.embedder |= {"model": model.name, "dims": model.dims, "place": place(config), "layers": []}
    if (problem := await _tried(embedder)) is not None:
        report.embedder |= {"ok": False, "message": problem}
        report.warnings.append(f"embedding.provider: {problem}")
        return
    parts = [f"{model.name}, {model.dims} dimensions, {place(config)}"]
    if isinstance(embedder, ConfinedEmbedder):
        layers = embedder.process.layers
        parts.append(_active(layers))
        report.embedder["layers"] = [_layer(layer) for layer in layers]
    parts += ["weights ok"] if model.weights else []
    report.embedder["message"] = "; ".join(parts)


async def _tried(embedder: Embedder) -> str | None:
    """Why it does not make a vector."""
    try:
        with trio.fail_after(_EMBEDDER_S):
            checked(await embedder.embed(("a text to try it with",)), 1, embedder.model)
    except EmbeddingError as error:
        return str(error)
    except trio.TooSlowError:
        return f"it did not answer within {_EMBEDDER_S:g} s"
    return None


async def _check_extractor(report: _Report, config: Config) -> None:
    """Start an extractor as a sync does, and have it prove its layers."""
    quiet_logs()
    absent = missing()
    known = [form.name for form in FORMATS if form.suffixes and form.name not in absent]
    if not known:
        report.extractor |= {"ok": True, "message": f"reads text only; {_EXTRA}"}
        return
    try:
        async with open_extractor(config) as extractor:
            layers = await extractor.prove()
    except Unreadable as error:
        report.extractor["message"] = str(error)
        report.worsen(UNUSABLE)
        return
    parts = [f"reads {', '.join(known)}", *([f"not {', '.join(absent)}: {_EXTRA}"] if absent else [])]
    parts.append(_active(layers))
    report.extractor = {"ok": True, "message": "; ".join(parts), "layers": [_layer(layer) for layer in layers]}


def _active(layers: Sequence[LayerReport]) -> str:
    off = [f"{layer.name} {layer.state}" for layer in layers if layer.state != "active"]
    return f"{len(layers) - len(off)} layers active" + (f", {', '.join(off)}" if off else "")


def _layer(layer: LayerReport) -> dict[str, Any]:
    return {"name": layer.name, "state": layer.state, "detail": layer.detail}


async def _check_service(report: _Report, loaded: LoadedConfig) -> None:
    """Open the service as the server does, and check its contents."""
    quiet_logs()
    try:
        with _where_a_store_is(loaded) as opened:
            await _look_at_service(report, opened)
    except SandboxUnavailable as error:
        report.sandbox = str(error)
        report.layers = [asdict(layer) for layer in error.layers]
        report.worsen(UNUSABLE)
    except (ConfigError, StoreError) as error:
        part = report.store if isinstance(error, StoreError) else report.config
        part |= {"ok": False, "message": str(error)}
        report.worsen(UNUSABLE)
    except Exception as error:  # a fault of ours must not prevent the rest of the report
        report.sandbox = f"internal error: {type(error).__name__}: {error}"
        report.worsen(UNUSABLE)
    if report.scripts or not all(issuer["ok"] for issuer in report.issuers):
        report.worsen(FAILED)
    if any(layer["required"] and layer["state"] != "active" for layer in report.layers):
        report.worsen(UNUSABLE)


@contextmanager
def _where_a_store_is(loaded: LoadedConfig) -> Iterator[LoadedConfig]:
    """The configuration; if there is no store so far, with a temporary one, as opening the service creates it."""
    config = loaded.config
    with tempfile.TemporaryDirectory() as folder:
        changed: dict[str, Any] = {}
        if not control_path(config).exists():
            changed["tenants"] = config.tenants.model_copy(update={"store": Path(folder) / "control.sqlite"})
        if not config.db.path.exists():
            changed["db"] = config.db.model_copy(update={"path": Path(folder) / "empty.sqlite"})
        yield replace(loaded, config=config.model_copy(update=changed))


async def _look_at_service(report: _Report, loaded: LoadedConfig) -> None:
    async with open_service(loaded) as service, service.published(DEFAULT_TENANT):
        report.layers = [asdict(layer) for layer in service.engine.layers]
        report.scripts = [_failure(failure) for failure in service.failures]
        report.warnings += [text for text in service.warnings if text not in report.warnings]
        known = {tool.name for tool in service.list_tools(DEFAULT_TENANT)}
        for agent in service.list_agents(DEFAULT_TENANT):
            missing = [name for name in agent.tools if name not in known]
            report.warnings += [f"agent {agent.name}: its tool {name!r} does not exist" for name in missing]
        await _check_keys(report, service.kv.path)
        await _check_issuers(report, service)


async def _check_keys(report: _Report, path: Path) -> None:
    """A warning, as everything else works: only scripts that keep keys do not."""
    try:
        await trio.to_thread.run_sync(count_keys, path, DEFAULT_TENANT.id)
    except KvError as error:
        report.warnings.append(f"{shown(path)}: {error}")


async def _check_issuers(report: _Report, service: Service) -> None:
    """Fetch the keys of every issuer of `[tenants.oauth]` once."""
    oauth = service.loaded.config.tenants.oauth
    if oauth is None:
        return
    async with open_tokens(oauth, service.control.logins) as tokens:
        for issuer in tokens.issuers.values():
            trouble = await issuer.check()
            report.issuers.append({"name": issuer.name, "ok": trouble is None, "message": trouble})


def _failure(failure: LoadFailure) -> dict[str, Any]:
    return {
        "kind": failure.kind,
        "name": failure.name,
        "path": shown(failure.path) if failure.path else None,
        "line": failure.line,
        "outcome": failure.outcome.value,
        "message": failure.message,
    }


def _show(report: _Report) -> None:
    def line(good: bool, what: str, detail: object) -> None:
        say(f"{'✓' if good else '✗'} {what:<12} {one_line(detail)}")

    config, store, embedder = report.config, report.store, report.embedder
    line(config["ok"], "config", config["message"] or config["path"] or "built-in defaults")
    if config["ok"]:
        line(store["ok"], "store", f"{store['path']}: {store['message']}" if store["ok"] else store["message"])
        if report.sidecar is not None:
            line(report.sidecar["ok"], "vectors", report.sidecar["message"])
        if report.words is not None:
            line(report.words["ok"], "words", report.words["message"])
        damaged = [each for each in report.tenants if not each["ok"]]
        for each in damaged:
            line(False, "store", f"of tenant {each['tenant']}: {each['message']}")
        if report.tenants and not damaged:
            line(True, "store", f"of {plural(len(report.tenants), 'tenant')} more: whole")
        line(embedder["ok"], "embedder", f"{embedder['provider']}: {embedder['message']}")
        line(report.extractor["ok"], "extractor", report.extractor["message"])
        now = datetime.now(UTC)
        for source in report.sources:
            line(source["ok"], "source", _told(source, now))
    if report.sandbox:
        line(False, "sandbox", report.sandbox)
    for layer in report.layers:
        good = layer["state"] == "active"
        need = "" if good else " (required)" if layer["required"] else " (not required)"
        line(good or not layer["required"], layer["name"], f"{layer['state']}{need} {layer['detail'] or ''}")
    for script in report.scripts:
        where = script["path"] or "the configuration"
        where += f":{script['line']}" if script["line"] else ""
        line(False, script["kind"], f"{script['name']}: {script['outcome']}: {script['message']} ({where})")
    for issuer in report.issuers:
        line(issuer["ok"], "issuer", f"{issuer['name']}: {issuer['message'] or 'its keys were fetched'}")
    for warning in report.warnings:
        say(f"! {one_line(warning)}")
    say(_verdict(report))


def _told(source: dict[str, Any], now: datetime) -> str:
    parts = [plural(source["documents"], "document"), f"last sync {ago(source['last_sync'], now)}"]
    if source["next_sync"] is not None:
        parts.append(f"next {due(source['next_sync'], now)}")
    return f"{source['source']}: {', '.join(parts)}"


def _verdict(report: _Report) -> str:
    if report.code != OK:
        return "Something is wrong, see ✗ above."
    if report.warnings:
        return "The engine works; see the warnings (!) above."
    return "Everything is in order."

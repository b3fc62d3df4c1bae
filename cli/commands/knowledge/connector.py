"""`engine connector`: list, try and create connectors."""

import json
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from agents.scanning import ScriptSource
from agents.sources import Health
from agents.sources import connector as source_of
from cli.control import tenant_of
from cli.options import AsJson, ConfigPath, TenantName, load, shown
from cli.output import FAILED, OK, UNUSABLE, Exit, note, one_line, plural, quiet_logs, say, say_json, table
from engine.config import Config, ConfigError, LoadedConfig
from engine.config.entries import ScriptConnector
from engine.engine import Engine, SandboxUnavailable
from engine.extraction import open_extractor
from engine.names import nearest
from engine.run import LogLine
from engine.tenant import Tenant
from knowledge.connectors import (
    Complete,
    Connector,
    ConnectorError,
    Emitted,
    Found,
    Gone,
    Item,
    Reached,
    Skipped,
    Source,
    Streams,
    Unreadable,
    opened,
)
from knowledge.connectors.git import parse_address
from knowledge.extraction import TEXT_ONLY, Extractor

app = App(name="connector", help="List, test and create connectors.")

# Characters of a body that are shown.
_EXCERPT = 100


@app.command(name="list")
async def list_connectors(
    *, config: ConfigPath = None, as_json: AsJson = False, tenant: TenantName = "default"
) -> None:
    """List the configured connectors."""
    loaded = load(config)
    who = await tenant_of(tenant, loaded)
    problems = Health(loaded.config, who.id)
    rows = [
        {"source": label, "type": label.partition(":")[0], "from": _place(loaded, label), "problem": problem}
        for label, problem in problems.items()
    ]
    if as_json:
        say_json({"connectors": rows})
        return
    if not rows:
        say("No connectors.")
        return
    table(
        ((row["source"], one_line(row["from"] or ""), row["problem"] or "") for row in rows),
        heading=("CONNECTOR", "FROM", "NOTES"),
        indent="",
    )


def _place(loaded: LoadedConfig, label: str) -> str:
    """Where a source is read from, without passwords."""
    kind, _, name = label.partition(":")
    entry: Any = getattr(loaded.config.connectors, kind)[name]
    if kind == "git":
        try:
            return parse_address(entry.url).shown
        except ValueError:
            return ""
    for key in ("root", "path"):
        if isinstance(path := getattr(entry, key, None), Path):
            return shown(path, loaded.root)
    if kind == "web":
        return " ".join(url.partition("?")[0] for url in (*entry.urls, *entry.sitemaps))  # a query may hold a secret
    return str(getattr(entry, "bucket", ""))


@dataclass(slots=True)
class _Tried:
    """What a source gave. `unread` is how many of `found` are among `skipped`."""

    items: list[dict[str, Any]] = field(default_factory=list)
    found: int = 0
    unread: int = 0
    deleted: list[str] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    checkpoint: Any = None
    complete: bool = False
    error: str | None = None

    def take(self, found: Found, item: Item, limit: int) -> None:
        if len(self.items) < limit:
            self.items.append({"source_id": found.source_id, **asdict(item), "access": sorted(item.access)})

    def skip(self, source_id: str, reason: str) -> None:
        self.skipped.append({"source_id": source_id, "reason": reason})


@app.command(name="test")
async def try_out(
    connector: Annotated[
        str, Parameter(help="TYPE:NAME, a script's NAME, or a script's path: it has a / or ends in .lua.")
    ],
    /,
    *,
    source: Annotated[
        str | None,
        Parameter(help="With a path: the configured script whose grants and configuration this one gets.", negative=()),
    ] = None,
    checkpoint: Annotated[
        str | None, Parameter(help="Begin a script's scan at this checkpoint: JSON, or text.", negative=())
    ] = None,
    limit: Annotated[int, Parameter(help="Show at most this many items.")] = 10,
    config: ConfigPath = None,
    as_json: AsJson = False,
    tenant: TenantName = "default",
) -> int:
    """Read a source and show its items. Nothing is written to the store."""
    loaded = load(config)
    who = await tenant_of(tenant, loaded)
    label, tested = _named(connector, source, loaded.config, who)
    if checkpoint is not None and not label.startswith("script:"):
        raise Exit(UNUSABLE, "--checkpoint is for scripts")
    if label.startswith("script:"):
        from agents.service import open_scripts  # the sandbox, which other sources do not need

        quiet_logs()
        try:
            async with open_scripts(loaded) as engine:
                script = _made(tested, label, engine, who)
                tried = await _try(script, limit, checkpoint)
        except SandboxUnavailable as error:
            raise Exit(UNUSABLE, str(error)) from None
    else:
        async with open_extractor(loaded.config) as extractor:
            tried = await _try(_made(tested, label, None, who, extractor), limit, None)
    if as_json:
        answer = asdict(tried)
        del answer["unread"]
        say_json({"source": label, **answer})
    else:
        _show(label, tried)
    return FAILED if tried.error else OK


def _named(asked: str, source: str | None, config: Config, who: Tenant) -> tuple[str, Config]:
    """The label that is meant, and a configuration that has it. Raises Exit."""
    scripts = config.connectors.script
    if "/" in asked or asked.endswith(".lua"):
        if source is not None and source not in scripts:
            raise _unknown(source, list(scripts))
        path = Path(asked).absolute()
        entry = ScriptConnector(path=path) if source is None else scripts[source].model_copy(update={"path": path})
        only = config.connectors.model_copy(update={"script": {path.name: entry}})
        return f"script:{path.name}", config.model_copy(update={"connectors": only})
    if source is not None:
        raise Exit(UNUSABLE, "--source is for the path of a script; a configured connector has an entry of its own")
    labels = config.connectors.labels(who.id)
    for label in (asked, f"script:{asked}"):
        if label in labels:
            return label, config
    raise _unknown(asked, list(labels))


def _unknown(name: str, known: list[str]) -> Exit:
    near = nearest(name, known)
    hint = f"did you mean {near!r}?" if near else f"configured: {', '.join(known) or 'none'}"
    return Exit(UNUSABLE, f"unknown connector {name!r}; {hint}")


def _made(config: Config, label: str, engine: Engine | None, who: Tenant, extractor: Extractor = TEXT_ONLY) -> Source:
    try:
        return source_of(config, label, engine, who, extractor)
    except ConfigError as error:
        raise Exit(UNUSABLE, str(error)) from None


async def _try(source: Source, limit: int, checkpoint: str | None) -> _Tried:
    tried = _Tried()
    begin = None
    if isinstance(source, ScriptSource):
        source.hear = _hear
        begin = None if checkpoint is None else source.kept(_parsed(checkpoint))
    try:
        async with opened(source) as reading:
            if isinstance(reading, Streams):
                await _follow(reading, begin, tried, limit)
            else:
                await _read(reading, tried, limit)
    except ConnectorError as error:
        tried.error = str(error)
        tried.complete = False
    if isinstance(source, ScriptSource) and tried.checkpoint is not None:
        tried.checkpoint = source.loaded(tried.checkpoint)
    return tried


def _hear(line: LogLine) -> None:
    note(f"[{line.level}] {line.text}")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


async def _follow(stream: Streams, checkpoint: str | None, tried: _Tried, limit: int) -> None:
    async with aclosing(stream.stream(checkpoint)) as events:
        async for event in events:
            match event:
                case Emitted():
                    tried.found += 1
                    tried.take(event.found, event.item, limit)
                    tried.checkpoint = event.checkpoint or tried.checkpoint
                case Gone():
                    tried.deleted.append(event.source_id)
                case Skipped():
                    tried.skip(event.source_id, event.reason)
                case Reached():
                    tried.checkpoint = event.checkpoint
                case Complete():
                    tried.complete = True


async def _read(connector: Connector, tried: _Tried, limit: int) -> None:
    tried.complete = True
    async for entry in connector.scan():
        if isinstance(entry, Skipped):
            tried.skip(entry.source_id, entry.reason)
        elif isinstance(entry, Found):
            tried.found += 1
            if len(tried.items) < limit:
                try:
                    tried.take(entry, await connector.read(entry), limit)
                except Unreadable as error:
                    tried.unread += 1
                    tried.skip(entry.source_id, str(error))
        else:
            tried.complete = False


def _show(label: str, tried: _Tried) -> None:
    say(f"Connector: {label}")
    for item in tried.items:
        say(f"{one_line(item['source_id'])}: {one_line(item['title'] or '(no title)')}")
        about = [f"{len(item['body']):,} characters", item["content_type"], item["updated_at"], item["source_url"]]
        say(f"    {', '.join(one_line(each) for each in about if each)}")
        excerpt = one_line(item["body"][:_EXCERPT])
        say(f'    "{excerpt}{"…" if len(item["body"]) > _EXCERPT else ""}"')
    if (more := tried.found - len(tried.items) - tried.unread) > 0:
        say(f"and {plural(more, 'more item')}")
    for each in tried.skipped:
        say(f"skipped {one_line(each['source_id'])}: {one_line(each['reason'])}")
    for source_id in tried.deleted:
        say(f"deleted {one_line(source_id)}")
    if tried.checkpoint is not None:
        say(f"checkpoint: {json.dumps(tried.checkpoint, ensure_ascii=False)}")
    counts = (plural(tried.found, "item"), f"{len(tried.skipped)} skipped", f"{len(tried.deleted)} deleted")
    extent = "the whole source" if tried.complete else "a part of the source"
    say(f"{', '.join(counts)}; {'a failed scan' if tried.error else extent}; nothing was written")
    if tried.error:
        note(f"error: {label}: {one_line(tried.error)}")


@app.command
def init(name: str, /, *, config: ConfigPath = None) -> None:
    """Write connectors/NAME.lua, a working script to start from."""
    from cli.scripts.scaffold import begin_connector

    begin_connector(name, load(config))

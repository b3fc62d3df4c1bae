"""Scenarios: the requests for a target, read from small TOML files that a user can copy.

The shipped ones are in `scenarios/`. A file lists the requests and their weights, and has the configuration that a
server needs to answer them (`[config]`, the same tables as in engine.toml, paths relative to the file). With
`own = true` the requests name agents and tools of the user's own configuration, and there is no `[config]`. A request
may also publish versions of an agent, for other requests to call.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from engine.names import nearest

FOLDER = Path(__file__).with_name("scenarios")

Kind = Literal["agent", "tool", "get", "publish", "front_end"]

# The tenant of the requests of --hostile.
HOSTILE_TENANT = "hostile"

_EVERYONE = {"tenants": ["*"]}

# The name of the script in the package of a published version.
_MAIN = "main.lua"

# The kinds of requests in a file, in the order in which messages list them.
_KINDS: tuple[Kind, ...] = ("agent", "tool", "get", "publish", "front_end")
_REQUEST_KEYS = (*_KINDS, "script", "name", "arguments", "weight", "expect", "tenant", "beside", "from", "otherwise")
_KEYS = ("about", "model", "rate", "own", "tenants", "zipf", "needs_tenants", "idle_s", "requests", "config")


class ScenarioError(Exception):
    """A scenario is unusable: unknown, malformed, or not supported by this target. One line, for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One kind of request.

    `what` is the name of an agent or tool, or the path of a `get`; `front_end` requests the cheapest answer that runs
    no script (`GET /health`, MCP `tools/list`). `publish` publishes a version of the agent `what`, whose script is the
    file `script`. `{n}` in a string of `arguments` is replaced by the number of the request. `expect` lists the correct
    outcomes; any other counts as an error. `weight` is the share among the requests of `--rate`; with `beside` the
    request comes in addition, at so many times that rate, from the share `start` of the measured time on. `otherwise`
    replaces the request on a server that does not have `what`.
    """

    name: str
    kind: Kind
    what: str = ""
    script: str = ""
    source: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    weight: float = 1.0
    expect: tuple[str, ...] = ("ok",)
    tenant: str | None = None
    beside: float | None = None
    start: float = 0.0
    otherwise: "Ask | None" = None

    def __str__(self) -> str:
        return "the front end alone" if self.kind == "front_end" else f"{self.kind} {self.what}"

    def numbered(self, number: int) -> dict[str, Any]:
        """The arguments of the request with this number."""
        return {key: _numbered(value, str(number)) for key, value in self.arguments.items()}

    def package(self, number: int) -> dict[str, Any]:
        """The package of the request with this number, for `PUT /agents/NAME`: `arguments` become its `config`."""
        return {
            "version": str(number + 1),
            "main": _MAIN,
            "files": {_MAIN: self.source},
            "config": self.numbered(number),
        }

    @property
    def varies(self) -> bool:
        """Whether requests differ from each other."""
        return self.kind == "publish" or self.numbered(0) != self.numbered(1)


def _numbered(value: Any, number: str) -> Any:
    if isinstance(value, str):
        return value.replace("{n}", number)
    if isinstance(value, dict):
        return {key: _numbered(each, number) for key, each in value.items()}
    if isinstance(value, list):
        return [_numbered(each, number) for each in value]
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One scenario. `given` is the name or file on the command line; `text` is its file, without the scripts; `rate`
    (requests a second) is its default.

    `zipf` and `tenant_zipf` are the exponents of the distributions of requests (in addition to their weights) and of
    tenants, in their order; 0 means uniform. `config` is what a server needs: tables as in engine.toml, with absolute
    paths.
    """

    name: str
    given: str
    about: str
    text: str = ""
    asks: tuple[Ask, ...]
    model: Literal["load", "cold"] = "load"
    rate: float = 50.0
    own: bool = False
    tenants: int = 1
    zipf: float = 0.0
    tenant_zipf: float = 0.0
    needs_tenants: bool = False
    idle_s: float = 0.5
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def publishes(self) -> bool:
        """Whether any of its requests publishes."""
        return any(ask.kind == "publish" for ask in self.asks)

    def scripts(self) -> list[Path]:
        """The script files of the scenario, sorted."""
        groups = [group for sections in self.config.values() for group in sections.values()]
        entries = [entry for group in groups for entry in group.values()]
        given = [*(entry.get("path") for entry in entries), *(ask.script for ask in self.asks)]
        return sorted({Path(path) for path in given if path})

    def server_config(self) -> str:
        """The lines that a server's configuration needs. With several tenants, all of them get the scripts."""
        tables = {
            kind: {
                section: {name: entry | _EVERYONE for name, entry in entries.items()}
                for section, entries in sections.items()
            }
            for kind, sections in self.config.items()
        }
        return "\n".join(_toml(tables, ())).lstrip("\n")


def with_hostile(scenario: Scenario, percent: float) -> Scenario:
    """The scenario with so many percent of its requests replaced by those of `hostile`, from a tenant of that name."""
    if percent <= 0:
        return scenario
    hostile = load("hostile")
    main = [ask for ask in scenario.asks if ask.beside is None]
    share = percent / 100
    asks = (
        *_scaled(main, weights(main, scenario.zipf), 1 - share),
        *(ask for ask in scenario.asks if ask.beside is not None),
        *(
            replace(ask, tenant=HOSTILE_TENANT)
            for ask in _scaled(hostile.asks, weights(hostile.asks, hostile.zipf), share)
        ),
    )
    if scenario.own:  # the user's configuration stays unchanged
        return replace(scenario, asks=asks, zipf=0.0)
    config: dict[str, Any] = {}
    for source in (scenario.config, hostile.config):
        for kind, sections in source.items():
            for section, entries in sections.items():
                config.setdefault(kind, {}).setdefault(section, {}).update(entries)
    return replace(scenario, asks=asks, zipf=0.0, config=config)


def _scaled(asks: Sequence[Ask], shares: Sequence[float], by: float) -> list[Ask]:
    return [replace(ask, weight=share * by) for ask, share in zip(asks, shares, strict=True) if by > 0]


def weights(asks: Sequence[Ask], zipf: float) -> list[float]:
    """The share of each of these requests, which add up to 1."""
    raw = [ask.weight / (rank**zipf) for rank, ask in enumerate(asks, 1)]
    total = sum(raw)
    return [each / total for each in raw]


# ---- reading ----------------------------------------------------------------------------------------------------


def names() -> list[str]:
    """The shipped scenarios, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str) -> Scenario:
    """A shipped scenario by its name, or one from a file, if it ends in .toml. Raises ScenarioError."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not name.endswith(".toml") and name not in names():
        known = names()
        near = nearest(name, known)
        hint = f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"
        raise ScenarioError(f"unknown scenario {name!r}; {hint} (or give a file that ends in .toml)")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ScenarioError(f"{name}: there is no such scenario file") from None
    except OSError as error:
        raise ScenarioError(f"{name}: cannot read the scenario: {error.strerror}") from None
    except ValueError:
        raise ScenarioError(f"{name}: the scenario is not UTF-8 text") from None
    return replace(parse(text, path.stem, path.parent.resolve()), given=name)


def parse(text: str, name: str, folder: Path) -> Scenario:
    """A scenario from the text of its file. Raises ScenarioError, which names the key."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{name}: not valid TOML: {error}") from None
    table = _Table(raw, name)
    table.only(_KEYS)
    requests = raw.get("requests")
    if not isinstance(requests, list) or not requests or not all(isinstance(each, dict) for each in requests):
        raise ScenarioError(f"{name}: requests: expected at least one [[requests]] table")
    asks = tuple(_ask(_Table(each, f"{name}: requests[{i}]"), folder, {}) for i, each in enumerate(requests))
    published = [ask.what for ask in asks if ask.kind == "publish"]
    if twice := next((what for what in published if published.count(what) > 1), None):
        raise ScenarioError(f"{name}: two requests publish {twice!r}; a version is published once")
    if all(ask.beside is not None for ask in asks):
        raise ScenarioError(f"{name}: every request has `beside`; at least one must not, to have the rate of --rate")
    config = _config(raw.get("config", {}), name, folder)
    own = table.flag("own")
    if own and config:
        raise ScenarioError(f"{name}: own = true takes agents from your configuration, so [config] must not be given")
    model = raw.get("model", "load")
    if model not in ("load", "cold"):
        raise ScenarioError(f"{name}: model: expected 'load' or 'cold', got {model!r}")
    zipf = table.number("zipf", 0.0, least=0, most=10)
    return Scenario(
        name=name,
        given=name,
        about=table.text("about", ""),
        text=text,
        asks=asks,
        model=model,
        rate=table.number("rate", 50.0, least=0.001, most=1e6),
        own=own,
        tenants=int(table.number("tenants", 1, least=1, most=1000)),
        zipf=zipf,
        tenant_zipf=zipf,
        needs_tenants=table.flag("needs_tenants"),
        idle_s=table.number("idle_s", 0.5, least=0, most=3600),
        config=config,
    )


def _config(config: Any, name: str, folder: Path) -> dict[str, Any]:
    """`[config]`: agents.KIND.NAME and tools.KIND.NAME, with absolute paths. The engine checks the rest."""
    wrong = ScenarioError(f"{name}: config: expected tables such as [config.agents.script.NAME]")
    if not isinstance(config, dict):
        raise wrong
    found: dict[str, Any] = {}
    for kind, sections in config.items():
        if kind not in ("agents", "tools") or not isinstance(sections, dict):
            raise wrong
        for section, entries in sections.items():
            if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
                raise wrong
            found.setdefault(kind, {})[section] = {
                key: entry | ({"path": str(folder / entry["path"])} if isinstance(entry.get("path"), str) else {})
                for key, entry in entries.items()
            }
    return found


class _Table:
    """One table of a file, with its location for errors."""

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        self.raw = raw
        self.where = where

    def only(self, known: Sequence[str]) -> None:
        for key in self.raw:
            if key not in known:
                near = nearest(key, list(known))
                hint = f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"
                raise ScenarioError(f"{self.where}: unknown key {key!r}; {hint}")

    def text(self, key: str, default: str) -> str:
        value = self.raw.get(key, default)
        if not isinstance(value, str):
            raise ScenarioError(f"{self.where}: {key}: expected a text, got {value!r}")
        return value

    def flag(self, key: str) -> bool:
        value = self.raw.get(key, False)
        if not isinstance(value, bool):
            raise ScenarioError(f"{self.where}: {key}: expected true or false, got {value!r}")
        return value

    def number(self, key: str, default: float, *, least: float, most: float) -> float:
        value = self.raw.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise ScenarioError(f"{self.where}: {key}: expected a number from {least:g} to {most:g}, got {value!r}")
        return float(value)


def _ask(table: _Table, folder: Path, inherited: Mapping[str, Any]) -> Ask:
    table.only(_REQUEST_KEYS)
    kinds = [kind for kind in _KINDS if kind in table.raw]
    if len(kinds) != 1:
        raise ScenarioError(f"{table.where}: expected exactly one of {', '.join(_KINDS)}, got {len(kinds)}")
    kind = kinds[0]
    what = "" if kind == "front_end" else table.text(kind, "")
    if kind == "front_end" and not table.flag("front_end"):
        raise ScenarioError(f"{table.where}: front_end: expected true")
    if kind == "get" and not what.startswith("/"):
        raise ScenarioError(f"{table.where}: get: expected a path such as '/health', got {what!r}")
    if kind in ("agent", "tool", "publish") and not what:
        raise ScenarioError(f"{table.where}: {kind}: expected a name, got {what!r}")
    script, source = _script(table, kind, folder)
    arguments = table.raw.get("arguments", {})
    if not isinstance(arguments, dict):
        raise ScenarioError(f"{table.where}: arguments: expected a table, got {arguments!r}")
    expect = table.raw.get("expect", ["ok"])
    if not isinstance(expect, list) or not expect or not all(isinstance(each, str) for each in expect):
        raise ScenarioError(f"{table.where}: expect: expected a list of outcomes, got {expect!r}")
    settings: dict[str, Any] = {
        "name": table.text("name", what or "front end"),
        "weight": table.number("weight", 1.0, least=1e-6, most=1e6),
        "expect": tuple(expect),
        "tenant": table.text("tenant", "") or None,
        "beside": table.number("beside", 0, least=1e-3, most=1e4) if "beside" in table.raw else None,
        "start": table.number("from", 0.0, least=0, most=1),
        **inherited,
    }
    otherwise = table.raw.get("otherwise")
    if otherwise is not None and not isinstance(otherwise, dict):
        raise ScenarioError(f"{table.where}: otherwise: expected a table, got {otherwise!r}")
    # The replacement is the same request in the schedule and in the figures.
    same = {key: settings[key] for key in ("name", "weight", "expect", "tenant", "beside", "start")}
    return Ask(
        kind=kind,
        what=what,
        script=script,
        source=source,
        arguments=arguments,
        otherwise=None if otherwise is None else _ask(_Table(otherwise, f"{table.where}: otherwise"), folder, same),
        **settings,
    )


def _script(table: _Table, kind: Kind, folder: Path) -> tuple[str, str]:
    """The file of the script that a request publishes, and its text; empty if it publishes nothing."""
    given = table.text("script", "")
    if bool(given) != (kind == "publish"):
        raise ScenarioError(f"{table.where}: script: expected with `publish`, and with nothing else: a path")
    if not given:
        return "", ""
    path = folder / given
    try:
        return str(path), path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ScenarioError(f"{table.where}: script: cannot read {path}: {why}") from None


# ---- writing ----------------------------------------------------------------------------------------------------


def _toml(table: Mapping[str, Any], place: tuple[str, ...]) -> list[str]:
    """A table in TOML: its own values first, then the tables in it. Takes the values that a parsed file can have."""
    lines = [f"{_key(key)} = {_value(value)}" for key, value in table.items() if not isinstance(value, dict)]
    if place and (lines or not table):
        lines = ["", f"[{'.'.join(map(_key, place))}]", *lines]
    for key, value in table.items():
        if isinstance(value, dict):
            lines += _toml(value, (*place, key))
    return lines


def _key(key: str) -> str:
    plain = key and all(each.isascii() and (each.isalnum() or each in "-_") for each in key)
    return key if plain else _text(key)


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _text(value)
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case dict():
            return f"{{{', '.join(f'{_key(key)} = {_value(each)}' for key, each in value.items())}}}"
    return str(value)  # numbers, and dates in their standard form


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(f"\\u{ord(each):04x}" if each < " " or each == "\x7f" else each for each in escaped) + '"'

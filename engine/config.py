"""The configuration file: where it is looked up, what it may say, and one clear line when it says something else.

`load_config` reads the file; everything else here is pure. The text goes through four steps: TOML, a reshaping into the
models' form (script extras and inline agents moved to their place), expansion of `${VAR}`, and validation. Errors are
told in the file's own terms: the dotted key as it was written, what was seen, what was expected.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from engine.egress import parse_rule
from sandbox.layers import NAMES as LAYERS
from sandbox.limits import MIB, SPECS

Loc = tuple[str | int, ...]
Table = dict[str, Any]
AgentKind = Literal["inline", "script", "python", "chatmd"]
ToolKind = Literal["script", "python"]

AGENT_KINDS: tuple[AgentKind, ...] = ("inline", "script", "python", "chatmd")
TOOL_KINDS: tuple[ToolKind, ...] = ("script", "python")

# Where a configuration is looked for when neither --config nor the environment names one.
LOOKED_UP = ("engine.toml", "config/ctx.toml", ".ctx/config.toml")
ENVIRONMENT = ("ENGINE_CONFIG", "CTX_CONFIG")

# Keys of ctx that are accepted and change nothing here.
_NO_EFFECT_TABLES = ("vector_index", "registries")
_NO_EFFECT_RETRIEVAL = ("group_by", "doc_agg", "max_chunks_per_doc")

_INT64 = 2**63 - 1
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BIND = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
# Strings and comments of TOML, to tell a table header from a line of a multi-line string that looks like one.
_OPAQUE = re.compile(
    r'"""(?:\\.|[^\\])*?"""' r"|'''.*?'''" r'|"(?:\\.|[^"\\\n])*"' r"|'[^'\n]*'" r"|\#[^\n]*",
    re.DOTALL,
)


class ConfigError(Exception):
    """The configuration cannot be used. Its text is one line naming the file, the key, what was seen and expected."""


class UnsetVariable(Exception):
    """`${NAME}` has no value in the environment and no default. `name` is the variable."""

    def __init__(self, name: str) -> None:
        super().__init__(f"environment variable {name} is not set")
        self.name = name


class _Wrong(Exception):
    """A key of the file is wrong: where (in the file's terms) and one phrase."""

    def __init__(self, loc: Loc, phrase: str) -> None:
        super().__init__(phrase)
        self.loc = loc
        self.phrase = phrase


# ---- small pure pieces ------------------------------------------------------------------------------------------


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Replace `${VAR}` and `${VAR:-default}` in `text`, once: what comes in is not looked at again.

    As in a shell, the default also stands in for an empty value. Anything else with a dollar stays as it is.
    Raises UnsetVariable for a variable that has neither value nor default.
    """

    def value(match: re.Match[str]) -> str:
        name, default = match.groups()
        found = environ.get(name)
        if default is not None:
            return found or default
        if found is None:
            raise UnsetVariable(name)
        return found

    return _VARIABLE.sub(value, text)


def parse_bind(text: str) -> tuple[str, int]:
    """The host and port of `HOST:PORT` or `[IPv6]:PORT` (host without brackets; port 0..65535, 0 means any free one).

    Raises ValueError for anything else.
    """
    match = _BIND.fullmatch(text)
    if match is None or int(match[2]) > 65535:
        raise ValueError(f"expected HOST:PORT, got {text!r}")
    return match[1].strip("[]"), int(match[2])


def valid_name(name: str) -> bool:
    """Whether `name` may name an agent, tool or connector: 1 to 64 of letters, digits, `_`, `.`, `-`."""
    return _NAME.fullmatch(name) is not None


def nearest(name: str, known: list[str]) -> str | None:
    """The known name most like `name`, or None when none is like it, which is so of everything that is long."""
    if len(name) > 128:  # comparing takes longer than linear time, and names are strangers' at times
        return None
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return found[0] if found else None


def _dotted(loc: Loc) -> str:
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            # Quoted where TOML quotes it, and escaped so that the message stays one line.
            quoted = "".join(c if c.isprintable() and c not in '"\\' else json.dumps(c)[1:-1] for c in part)
            text += ("." if text else "") + (part if _BARE_KEY.fullmatch(part) else f'"{quoted}"')
    return text


def _unknown_key(loc: Loc, known: list[str]) -> _Wrong:
    name = str(loc[-1])
    near = nearest(name, known)
    hint = f"did you mean {near!r}?" if near else f"known keys here: {', '.join(known)}"
    return _Wrong(loc, f"unknown key; {hint}")


def _seen(value: Any) -> str:
    """A value as an error message shows it."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return repr(value if len(value) <= 60 else value[:57] + "...")
        case int() | float():
            return str(value)[:60]
        case list():
            return "a list"
        case dict():
            return "a table"
    return "a date or time"


def _table_order(text: str) -> dict[tuple[str, ...], int]:
    """The line of each table header of a TOML text that is known to be valid."""
    opaque = _OPAQUE.sub(lambda m: m[0] if m[0][:3] not in ('"""', "'''") else "\n" * m[0].count("\n"), text)
    lines: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(opaque.splitlines(), 1):
        if not line.lstrip().startswith("["):
            continue
        try:
            node: Any = tomllib.loads(line)
        except tomllib.TOMLDecodeError:
            continue  # a line of an array
        path: list[str] = []
        while isinstance(node, dict) and node:
            key, node = next(iter(node.items()))
            path.append(key)
        lines.setdefault(tuple(path), number)
    return lines


# ---- field types ------------------------------------------------------------------------------------------------


def _expected(what: str) -> PydanticCustomError:
    return PydanticCustomError("expected", "{what}", {"what": what})


def _resolve(value: Any, info: ValidationInfo) -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise _expected("a path")
    root: Path | None = (info.context or {}).get("root")
    return root / value if root is not None else Path(value)


def _check_bind(value: str) -> str:
    try:
        parse_bind(value)
    except ValueError:
        raise _expected("HOST:PORT") from None
    return value


def _check_name(value: str) -> str:
    if not valid_name(value):
        raise _expected("a name of 1 to 64 letters, digits, '_', '.' or '-'")
    return value


def _check_host_rule(value: str) -> str:
    try:
        parse_rule(value)
    except ValueError as error:
        raise _expected(str(error).removeprefix("expected ")) from None
    return value


def _check_layer(value: str) -> str:
    # A misspelt layer would silently not be required.
    if value not in LAYERS:
        raise _expected(f"one of {', '.join(LAYERS)}")
    return value


class _LimitTable:
    """A table of limits: only names of SPECS, seconds above 0, everything else whole numbers of at least 1."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        seconds = core_schema.float_schema(gt=0, allow_inf_nan=False, strict=True)
        whole = core_schema.int_schema(ge=1, le=_INT64, strict=True)
        return core_schema.typed_dict_schema(
            {
                name: core_schema.typed_dict_field(whole if spec.integral else seconds, required=False)
                for name, spec in SPECS.items()
            },
            extra_behavior="forbid",
        )


# Relative paths are resolved against the root that the validation context holds; without one they stay as given.
FilePath = Annotated[Path, BeforeValidator(_resolve)]
Text = Annotated[str, Field(min_length=1)]
Strings = Annotated[tuple[Text, ...], Field(strict=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=_INT64)]
Bind = Annotated[str, AfterValidator(_check_bind)]
HostRules = Annotated[tuple[Annotated[Text, AfterValidator(_check_host_rule)], ...], Field(strict=False)]
Layer = Annotated[str, AfterValidator(_check_layer)]
Name = Annotated[str, AfterValidator(_check_name)]
LimitTable = Annotated[dict[str, float], _LimitTable()]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


# ---- the models -------------------------------------------------------------------------------------------------


class DbConfig(_Model):
    """`[db]`: the file of the knowledge store."""

    path: FilePath = Field(default=Path("data/engine.sqlite"), validate_default=True)


class ChunkingConfig(_Model):
    """`[chunking]`: how documents are cut. A token counts as four bytes."""

    max_tokens: Count = 700
    overlap_tokens: Annotated[int, Field(ge=0, le=_INT64)] = 0

    @model_validator(mode="after")
    def _overlap_is_smaller(self) -> "ChunkingConfig":
        if self.overlap_tokens >= self.max_tokens:
            raise PydanticCustomError("phrase", "overlap_tokens must be smaller than max_tokens")
        return self


class RetrievalConfig(_Model):
    """`[retrieval]`: how many documents a search returns, and from how many candidates."""

    # 100 is what one search may return at most, over REST and MCP too.
    final_limit: Annotated[int, Field(ge=1, le=100)] = 12
    hybrid_alpha: Annotated[float, Field(ge=0, le=1)] = 0.6
    candidate_k_keyword: Count = 80
    candidate_k_vector: Count = 80


class EmbeddingConfig(_Model):
    """`[embedding]`: which embedder turns text into vectors; `disabled` means that search is by keyword."""

    provider: Text = "disabled"
    model: str | None = None
    dims: Count | None = None
    url: str | None = None
    batch_size: Count = 64
    max_retries: Annotated[int, Field(ge=0, le=_INT64)] = 5
    timeout_secs: Seconds = 30


class ServerConfig(_Model):
    """`[server]`: where to listen, who may ask, and how long a body and a farewell may take."""

    bind: Bind = "127.0.0.1:7331"
    allowed_hosts: Strings = ()
    allowed_origins: Strings = ()
    allow_anonymous: bool = False
    max_body_bytes: Count = 4 * MIB
    body_timeout_s: Seconds = 15
    graceful_timeout_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 10
    max_connections: Count = 4096
    max_connections_per_address: Count = 1024


class SandboxConfig(_Model):
    """`[sandbox]`: the pool of workers. `workers` None means one per core; `require` None means the engine's choice.

    `disable` turns layers off: for finding out what one of them costs or breaks. One that is required as well keeps the
    engine from starting.
    """

    workers: Count | None = None
    reserve: Annotated[int, Field(ge=0, le=_INT64)] = 2
    isolation: Literal["tenant", "execution"] = "tenant"
    max_runs_per_worker: Count = 10_000
    require: Annotated[tuple[Layer, ...], Field(strict=False)] | None = None
    disable: Annotated[tuple[Layer, ...], Field(strict=False)] = ()

    @field_validator("disable")
    @classmethod
    def _process_stays(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if "process" in names:  # it is also what puts the channel in its place
            raise _expected("layers other than 'process', without which there is no worker")
        return names


def _fill_defaults(given: dict[str, float]) -> dict[str, float]:
    return {name: given.get(name, spec.default) for name, spec in SPECS.items()}


def _fill_ceilings(given: dict[str, float]) -> dict[str, float]:
    return {name: given.get(name, spec.ceiling) for name, spec in SPECS.items()}


class LimitsConfig(_Model):
    """`[limits]` and `[limits.max]`, complete: every name of SPECS is in both, in the unit of its spec."""

    defaults: Annotated[LimitTable, AfterValidator(_fill_defaults)] = Field(default_factory=lambda: _fill_defaults({}))
    max: Annotated[LimitTable, AfterValidator(_fill_ceilings)] = Field(default_factory=lambda: _fill_ceilings({}))
    queue_timeout_s: Seconds = 10


def _timeout_as_limit(timeout: float | None, limits: dict[str, float]) -> None:
    if timeout is None:
        return
    limit = limits.setdefault("timeout_s", timeout)
    if limit != timeout:
        raise PydanticCustomError(
            "phrase",
            "timeout = {timeout} and limits.timeout_s = {limit} disagree; give one of them",
            {"timeout": f"{timeout:g}", "limit": f"{limit:g}"},
        )


# Where MCP clients find an agent: among the prompts, among the tools, or both.
Exposure = Annotated[tuple[Literal["prompt", "tool"], ...], Field(strict=False)]


class ScriptEntry(_Model):
    """A script of any kind, as configured. `timeout` (seconds) is also in `limits["timeout_s"]`.

    `extra` is the script's own configuration: all other keys, expanded, dates as ISO texts. `unset` is the message
    about an extra that holds a variable without value; such an entry is a load failure. `from_environment` are the
    texts that variables put into `extra`, for redaction. `tools` None means the list that the script declares.
    """

    path: FilePath
    timeout: Seconds | None = None
    limits: LimitTable = Field(default_factory=dict)
    allow_hosts: HostRules = ()
    env: Strings = ()
    tools: Strings | None = None
    tenants: Strings | None = None
    expose: Exposure = ("prompt",)
    extra: dict[str, Any] = Field(default_factory=dict, repr=False)
    unset: str | None = None
    from_environment: Strings = Field(default=(), repr=False)

    @model_validator(mode="after")
    def _timeout_is_a_limit(self) -> "ScriptEntry":
        _timeout_as_limit(self.timeout, self.limits)
        return self


_SCRIPT_KEYS = ("path", "timeout", "limits", "allow_hosts", "env", "tools", "tenants")
_SCRIPT_AGENT_KEYS = (*_SCRIPT_KEYS, "expose")

# What can be held against code that runs in the engine's own process: the clock, what it hands back, what it logs.
PYTHON_LIMITS = ("timeout_s", "output_bytes", "log_bytes", "value_depth")


class PythonEntry(_Model):
    """Python code of the operator's: `[agents.python.NAME]`, `[tools.python.NAME]`. `path` is `module:Class`.

    It is not confined, so keys that only confinement could keep (`allow_hosts`, `env`, most limits) are errors here.
    `config` is the class's own configuration, expanded, dates as ISO texts; `unset` and `from_environment` are as in
    a ScriptEntry. `tools` None means the list that the class declares.
    """

    path: Text
    timeout: Seconds | None = None
    limits: LimitTable = Field(default_factory=dict)
    tools: Strings | None = None
    tenants: Strings | None = None
    expose: Exposure = ("prompt",)
    config: dict[str, Any] = Field(default_factory=dict, repr=False)
    unset: str | None = None
    from_environment: Strings = Field(default=(), repr=False)

    @field_validator("limits")
    @classmethod
    def _limits_that_hold(cls, limits: dict[str, float]) -> dict[str, float]:
        if beyond := next((name for name in limits if name not in PYTHON_LIMITS), None):
            raise PydanticCustomError(
                "phrase",
                "{name} cannot be held against Python code, which is not confined; these can: {possible}",
                {"name": beyond, "possible": ", ".join(PYTHON_LIMITS)},
            )
        return limits

    @model_validator(mode="after")
    def _timeout_is_a_limit(self) -> "PythonEntry":
        _timeout_as_limit(self.timeout, self.limits)
        return self


_PYTHON_KEYS = ("path", "timeout", "limits", "tools", "tenants", "config")
_PYTHON_AGENT_KEYS = (*_PYTHON_KEYS, "expose")


class InlineAgent(_Model):
    """An agent that is a fixed text: `[agents.NAME]` or `[agents.inline.NAME]`."""

    description: str
    system_prompt: str
    tools: Strings = ()
    tenants: Strings | None = None
    expose: Exposure = ("prompt",)


class _Globs(_Model):
    include_globs: Strings = ("**/*.md", "**/*.txt")
    exclude_globs: Strings = ()
    tenants: Strings | None = None


class FilesystemConnector(_Globs):
    """`[connectors.filesystem.NAME]`: the files below `root`.

    With `url_prefix` a document's address is the prefix and its path below the root; without, it has none.
    """

    root: FilePath
    follow_symlinks: bool = False
    max_extract_bytes: Count = 50_000_000
    url_prefix: Text | None = None


class GitConnector(_Globs):
    """`[connectors.git.NAME]`: the files below `root` of a repository's branch."""

    url: Text
    branch: Text = "main"
    root: Text = "."
    shallow: bool = True
    cache_dir: FilePath | None = None


class S3Connector(_Globs):
    """`[connectors.s3.NAME]`: the objects of a bucket below `prefix`."""

    bucket: Text
    prefix: str = ""
    region: Text = "us-east-1"
    endpoint_url: Text | None = None


class Connectors(_Model):
    """`[connectors]`, by type and name."""

    filesystem: dict[Name, FilesystemConnector] = Field(default_factory=dict)
    git: dict[Name, GitConnector] = Field(default_factory=dict)
    s3: dict[Name, S3Connector] = Field(default_factory=dict)
    script: dict[Name, ScriptEntry] = Field(default_factory=dict)

    def labels(self, tenant: str = "default") -> tuple[str, ...]:
        """The tenant's connectors as `TYPE:NAME`, in the order of the file within each type."""
        return tuple(
            f"{kind}:{name}"
            for kind in type(self).model_fields
            for name, entry in getattr(self, kind).items()
            if {tenant, "*"} & set(entry.tenants or ("default",))
        )

    def problems(self, tenant: str = "default") -> dict[str, str | None]:
        """The tenant's labels and what is wrong with each, or None: what its store shows beside its sources."""
        return {label: unsupported_connector(label.partition(":")[0]) for label in self.labels(tenant)}


# The types that `knowledge/connectors` has a file for.
_CONNECTORS = ("filesystem",)


def unsupported_connector(kind: str) -> str | None:
    """Why connectors of this type cannot be used, or None."""
    return None if kind in _CONNECTORS else f"connector type {kind!r} is configured but not supported by this version"


class Tools(_Model):
    """`[tools]`, by kind and name."""

    script: dict[Name, ScriptEntry] = Field(default_factory=dict)
    python: dict[Name, PythonEntry] = Field(default_factory=dict)
    _lines: dict[tuple[str, ...], int] = PrivateAttr(default_factory=dict)

    def in_order(self) -> tuple[tuple[ToolKind, str, ScriptEntry | PythonEntry], ...]:
        """Every tool in the order of the file, so that of two with one name the first can win."""
        found = [(kind, name, entry) for kind in TOOL_KINDS for name, entry in getattr(self, kind).items()]
        return tuple(sorted(found, key=lambda item: _line(self._lines, ("tools", item[0], item[1]))))


class Agents(_Model):
    """`[agents]`, by kind and name."""

    inline: dict[Name, InlineAgent] = Field(default_factory=dict)
    script: dict[Name, ScriptEntry] = Field(default_factory=dict)
    python: dict[Name, PythonEntry] = Field(default_factory=dict)
    chatmd: dict[Name, ScriptEntry] = Field(default_factory=dict)
    _lines: dict[tuple[str, ...], int] = PrivateAttr(default_factory=dict)

    def in_order(self) -> tuple[tuple[AgentKind, str, InlineAgent | ScriptEntry | PythonEntry], ...]:
        """Every agent in the order of the file, so that of two with one name the first can win."""
        found = [(kind, name, entry) for kind in AGENT_KINDS for name, entry in getattr(self, kind).items()]

        def line(item: tuple[AgentKind, str, Any]) -> int:
            kind, name, _ = item
            found = _line(self._lines, ("agents", kind, name))
            return min(found, _line(self._lines, ("agents", name))) if kind == "inline" else found

        return tuple(sorted(found, key=line))


def _line(lines: Mapping[tuple[str, ...], int], path: tuple[str, ...]) -> int:
    """The first line that opens the table at `path`, one below it, or else the one around it."""
    inside = [line for header, line in lines.items() if header[: len(path)] == path]
    around = lines.get(path[:-1], _INT64) if len(path) > 2 else _INT64
    return min(inside, default=around)


class QuotaConfig(_Model):
    """`[tenants.quota]`: what a tenant may use when nothing else was said. `concurrent_runs` None: the workers."""

    requests_per_second: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 20
    burst: Count = 40
    concurrent_runs: Count | None = None
    queue_length: Annotated[int, Field(ge=0, le=_INT64)] = 100
    cpu_seconds_per_minute: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 30
    host_calls_per_minute: Count = 6000
    stored_bytes: Count = 1024 * MIB


class TotalConfig(_Model):
    """`[tenants.total]`: what all tenants together may use, above what each may."""

    requests_per_second: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1000
    burst: Count = 2000
    queue_length: Count = 1000


class TenantsConfig(_Model):
    """`[tenants]`: whether keys are asked for, and where tenants, keys and secrets are kept."""

    enabled: bool = False
    store: FilePath | None = None
    operator_key: Text | None = Field(default=None, repr=False)
    secrets_key: Text | None = Field(default=None, repr=False)
    secrets_key_file: FilePath | None = None
    on_limit: Literal["queue", "reject"] = "queue"
    quota: QuotaConfig = QuotaConfig()
    total: TotalConfig = TotalConfig()


class Config(_Model):
    """The whole configuration, with defaults filled in and every path resolved against `root`."""

    root: FilePath = Path()
    db: DbConfig = DbConfig()
    chunking: ChunkingConfig = ChunkingConfig()
    retrieval: RetrievalConfig = RetrievalConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    server: ServerConfig = ServerConfig()
    sandbox: SandboxConfig = SandboxConfig()
    limits: LimitsConfig = LimitsConfig()
    connectors: Connectors = Connectors()
    tools: Tools = Tools()
    agents: Agents = Agents()
    tenants: TenantsConfig = TenantsConfig()


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration and where it came from. `path` is None for the built-in defaults; `root` is `config.root`."""

    config: Config
    path: Path | None
    root: Path
    warnings: tuple[str, ...] = ()


# ---- from TOML to the models' form ------------------------------------------------------------------------------


class _Extra(dict[str, Any]):
    """The keys that are a script's or a class's own: where an unset variable is its failure, not the file's."""


@dataclass(slots=True)
class _Shape:
    """The tree in the models' form. `origin` maps a moved place to where the file has it."""

    tree: Table
    origin: dict[Loc, Loc] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def in_file(self, loc: Loc) -> Loc:
        """A place of the tree in the file's terms."""
        for length in range(len(loc), 0, -1):
            if loc[:length] in self.origin:
                return self.origin[loc[:length]] + loc[length:]
        return loc


def _reshape(raw: Table) -> _Shape:
    """Move what the file has in one place and the models in another. Wrong types stay for validation to tell."""
    shape = _Shape(dict(raw))
    tree = shape.tree
    for name in _NO_EFFECT_TABLES:
        if name in tree:
            del tree[name]
            shape.warnings.append(f"{name} has no effect here")
    if isinstance(tree.get("retrieval"), dict):
        for name in _NO_EFFECT_RETRIEVAL:
            if name in tree["retrieval"]:
                tree["retrieval"] = {k: v for k, v in tree["retrieval"].items() if k != name}
                shape.warnings.append(f"retrieval.{name} has no effect here")
    if isinstance(limits := tree.get("limits"), dict):
        own = {key: limits[key] for key in ("max", "queue_timeout_s") if key in limits}
        tree["limits"] = own | {"defaults": {key: value for key, value in limits.items() if key not in own}}
        shape.origin["limits", "defaults"] = ("limits",)
    if isinstance(agents := tree.get("agents"), dict):
        tree["agents"] = _reshape_agents(agents, shape)
    for section, kinds in (("connectors", ("script",)), ("tools", TOOL_KINDS), ("agents", AGENT_KINDS[1:])):
        if not isinstance(tree.get(section), dict):
            continue
        tree[section] = dict(tree[section])
        for kind in kinds:
            if isinstance(entries := tree[section].get(kind), dict):
                tree[section][kind] = {
                    name: _reshape_entry(entry, (section, kind, name), shape) for name, entry in entries.items()
                }
    return shape


def _reshape_agents(agents: Table, shape: _Shape) -> Table:
    kinds: Table = {kind: agents[kind] for kind in AGENT_KINDS if kind in agents}
    inline = kinds.get("inline", {})
    if not isinstance(inline, dict):
        return kinds
    inline = kinds["inline"] = dict(inline)
    for name, entry in agents.items():
        if name in AGENT_KINDS:
            continue
        if name in inline:
            raise _Wrong(("agents", name), f"defined twice, here and as {_dotted(('agents', 'inline', name))}")
        # [agents.scripts.x] would be an agent called "scripts" with a key "x": say what was probably meant.
        meant = nearest(name, list(AGENT_KINDS))
        if meant and isinstance(entry, dict) and entry and all(isinstance(value, dict) for value in entry.values()):
            raise _Wrong(("agents", name), f"unknown table; did you mean {_dotted(('agents', meant))}?")
        inline[name] = entry
        shape.origin["agents", "inline", name] = ("agents", name)
    return kinds


def _reshape_entry(entry: Any, loc: Loc, shape: _Shape) -> Any:
    if not isinstance(entry, dict):
        return entry
    if loc[1] == "python":
        return _reshape_python(entry, loc)
    ours = _SCRIPT_AGENT_KEYS if loc[0] == "agents" else _SCRIPT_KEYS
    extra = _Extra((key, value) for key, value in entry.items() if key not in ours)
    if extra and loc[1] != "script":
        raise _unknown_key((*loc, next(iter(extra))), list(ours))
    shape.origin[(*loc, "extra")] = loc
    return {key: value for key, value in entry.items() if key in ours} | {"extra": extra}


def _reshape_python(entry: Table, loc: Loc) -> Table:
    ours = _PYTHON_AGENT_KEYS if loc[0] == "agents" else _PYTHON_KEYS
    if unknown := next((key for key in entry if key not in ours), None):
        raise _unknown_key((*loc, unknown), list(ours))
    own = entry.get("config", {})
    return {**entry, "config": _Extra(own) if isinstance(own, dict) else own}


def _expand_tree(value: Any, loc: Loc, environ: Mapping[str, str], shape: _Shape) -> Any:
    """Expand every text below `value`; an unset variable in a script's extras is noted in its entry."""
    if isinstance(value, dict):
        expanded: Table = {}
        for key, inner in value.items():
            if type(inner) is _Extra:
                expanded |= _expand_extra(inner, key, (*loc, key), environ, shape)
            else:
                expanded[key] = _expand_tree(inner, (*loc, key), environ, shape)
        return expanded
    if isinstance(value, list):
        return [_expand_tree(item, (*loc, i), environ, shape) for i, item in enumerate(value)]
    if isinstance(value, str):
        try:
            return expand(value, environ)
        except UnsetVariable as unset:
            raise _Wrong(shape.in_file(loc), str(unset)) from None
    return value


def _expand_extra(extra: _Extra, name: str, loc: Loc, environ: Mapping[str, str], shape: _Shape) -> Table:
    unset: list[str] = []
    used: dict[str, None] = {}  # an ordered set

    def plain(value: Any, at: Loc) -> Any:
        match value:
            case dict():
                return {k: plain(v, (*at, k)) for k, v in value.items()}
            case list():
                return [plain(item, (*at, i)) for i, item in enumerate(value)]
            case str():
                used.update((environ[m[1]], None) for m in _VARIABLE.finditer(value) if environ.get(m[1]))
                try:
                    return expand(value, environ)
                except UnsetVariable as error:
                    unset.append(f"{_dotted(shape.in_file(at))}: {error}")
                    return value
            case datetime() | date() | time():
                return value.isoformat()
            case int() if abs(value) > _INT64:
                raise _Wrong(shape.in_file(at), f"expected a whole number of 64 bits, got {_seen(value)}")
        return value

    values = {key: plain(value, (*loc, key)) for key, value in extra.items()}
    return {name: values, "unset": unset[0] if unset else None, "from_environment": list(used)}


# ---- validation and its words -----------------------------------------------------------------------------------

# What pydantic's error types expect, in the words of somebody who writes TOML. {} is filled from the error's context.
_EXPECTATIONS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a text",
    "string_too_short": "a text that is not empty",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "literal_error": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "expected": "{what}",
}


def _explain(error: Any, shape: _Shape, raw: Table) -> _Wrong:
    """One pydantic error in the file's terms."""
    loc: Loc = error["loc"]
    if loc and loc[-1] == "[key]":
        loc = loc[:-1]
        return _Wrong(shape.in_file(loc), f"expected {error['ctx']['what']}, got {_seen(loc[-1])}")
    if error["type"] == "extra_forbidden":
        return _unknown_key(shape.in_file(loc), _known_keys(loc[:-1]))
    if error["type"] == "missing":
        return _Wrong(shape.in_file(loc[:-1]), f"required key {loc[-1]!r} is missing")
    loc = shape.in_file(loc)
    if error["type"] == "phrase":
        return _Wrong(loc, error["msg"])
    # The text as the file has it, not as it was expanded: what came from the environment may be a secret.
    seen: Any = raw
    for part in loc:
        seen = seen[part]
    if error["type"] not in _EXPECTATIONS:
        return _Wrong(loc, f"{error['msg']}, got {_seen(seen)}")
    context = {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in error.get("ctx", {}).items()}
    return _Wrong(loc, f"expected {_EXPECTATIONS[error['type']].format(**context)}, got {_seen(seen)}")


def _known_keys(loc: Loc) -> list[str]:
    """The keys that may stand in the table at `loc` of the models."""

    def alternatives(annotation: Any) -> Iterator[Any]:
        yield from get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)

    node: Any = Config
    for part in loc:
        found: Any = None
        for choice in alternatives(node):
            if isinstance(choice, type) and issubclass(choice, BaseModel) and part in choice.model_fields:
                found = choice.model_fields[str(part)].annotation
            elif get_origin(choice) is dict:
                found = get_args(choice)[1]
        node = found
    if loc == ("limits", "defaults"):
        return [*SPECS, "max", "queue_timeout_s"]
    if isinstance(node, type) and issubclass(node, BaseModel):
        return list(node.model_fields)
    return list(SPECS)


def parse_config(
    text: str, *, environ: Mapping[str, str], cwd: Path, shown_as: str = "the configuration"
) -> tuple[Config, tuple[str, ...]]:
    """The configuration that a TOML text describes, and its warnings.

    `cwd` is what a relative `root` is relative to; `shown_as` names the text in errors. Raises ConfigError.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{shown_as}: not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{shown_as}: not valid TOML: nested too deeply") from None
    config, warnings = check_tables(raw, environ=environ, cwd=cwd, shown_as=shown_as)
    lines = _table_order(text)
    config.agents._lines.update(lines)
    config.tools._lines.update(lines)
    return config, warnings


def check_tables(
    raw: Table, *, environ: Mapping[str, str], cwd: Path, shown_as: str = "the configuration"
) -> tuple[Config, tuple[str, ...]]:
    """The configuration in tables as TOML would give them (the form in which a program may hold its configuration).

    As `parse_config`; of two entries with one name, the first is by kind and then as the tables have them.
    """
    try:
        shape = _reshape(raw)
        tree = _expand_tree(shape.tree, (), environ, shape)
        tree.setdefault("db", {})  # its default is a path, which only validation resolves
        root = tree.setdefault("root", ".")
        if not isinstance(root, str) or not root or "\0" in root:
            raise _Wrong(("root",), f"expected a path, got {_seen(root)}")
        try:
            config = Config.model_validate(tree | {"root": cwd / root}, context={"root": cwd / root})
        except ValidationError as invalid:
            # A misspelt key explains a missing one, so it is told first.
            errors = sorted(invalid.errors(), key=lambda error: error["type"] != "extra_forbidden")
            raise _explain(errors[0], shape, raw) from None
    except _Wrong as wrong:
        raise ConfigError(f"{shown_as}: {_dotted(wrong.loc)}: {wrong.phrase}") from None
    return config, tuple(f"{shown_as}: {warning}" for warning in shape.warnings)


# ---- the file ---------------------------------------------------------------------------------------------------


def find_config(
    explicit: Path | None, environ: Mapping[str, str], cwd: Path, *, exists: Callable[[Path], bool] = Path.is_file
) -> Path | None:
    """The configuration file to use: `--config`, `$ENGINE_CONFIG` or `$CTX_CONFIG`, then the known places below `cwd`.

    None means the built-in defaults. A file that is named is returned whether it exists or not: it must.
    """
    if explicit is not None:
        return cwd / explicit
    for variable in ENVIRONMENT:
        if environ.get(variable):
            return cwd / environ[variable]
    return next((cwd / place for place in LOOKED_UP if exists(cwd / place)), None)


def load_config(explicit: Path | None, *, environ: Mapping[str, str], cwd: Path) -> LoadedConfig:
    """Find, read and check the configuration. Raises ConfigError."""
    path = find_config(explicit, environ, cwd)
    if path is None:
        config, warnings = parse_config("", environ=environ, cwd=cwd)
        return LoadedConfig(config, None, config.root, warnings)
    shown_as = str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors write a byte order mark; TOML knows none
    except FileNotFoundError:
        raise ConfigError(f"{shown_as}: no such configuration file") from None
    except OSError as error:
        raise ConfigError(f"{shown_as}: cannot read the configuration file: {error.strerror}") from None
    except ValueError:
        raise ConfigError(f"{shown_as}: not valid TOML: not UTF-8 text") from None
    config, warnings = parse_config(text, environ=environ, cwd=cwd, shown_as=shown_as)
    return LoadedConfig(config, path, config.root, warnings)


# What `engine init` writes. It loads as it stands, and also with every line that starts with "#" and a key uncommented.
COMMENTED_TEMPLATE = """\
# Configuration of the engine. Everything here is optional; lines that are commented out show the defaults or examples.
# ${VAR} and ${VAR:-default} are replaced from the environment. Relative paths start at `root`.

# The directory that relative paths start at; by default the one in which the command is started.
#root = "."

[db]
# The knowledge store: one SQLite file.
path = "data/engine.sqlite"

[chunking]
# Documents are cut into chunks of at most this many tokens (four bytes each).
max_tokens = 700
#overlap_tokens = 0

[retrieval]
# How many documents a search returns when the caller does not say.
final_limit = 12

[server]
# Where `engine serve` listens. Anything but loopback needs keys ([tenants]) or allow_anonymous = true.
bind = "127.0.0.1:7331"
#allowed_hosts = ["engine.example.com"]
#allowed_origins = ["https://app.example.com"]

[sandbox]
# Processes that serve runs; by default one per core.
#workers = 2
# "tenant": a worker is reused by the same tenant after a clean run. "execution": every run gets a process of its own.
isolation = "tenant"

[limits]
# What a run may use when its script does not ask for something else. Seconds, bytes, counts.
#timeout_s = 30
#cpu_s = 10
#memory_bytes = 67108864
#host_calls = 200

[limits.max]
# What no script gets more of, whatever it asks for.
#timeout_s = 300

# Many tenants: every request then needs a key. `engine tenant create NAME` and `engine key create NAME` make them.
#[tenants]
#enabled = true
#secrets_key_file = "secrets.key"

# Knowledge: `engine sync all` fills the store from here.
#[connectors.filesystem.docs]
#root = "docs"
#include_globs = ["**/*.md", "**/*.txt"]

# An agent that is a fixed text.
#[agents.code-reviewer]
#description = "Reviews code changes against project conventions"
#tools = ["search", "get"]
#system_prompt = "You are a senior code reviewer. Search for conventions before you comment."

# An agent that is a Lua script: `engine agent init incident-responder` writes one to start from.
#[agents.script.incident-responder]
#path = "agents/incident-responder.lua"
#timeout = 30
# Any other key is the script's own configuration.
#search_limit = 5

# A tool that is a Lua script. It reaches no host that is not listed.
#[tools.script.create_ticket]
#path = "tools/create_ticket.lua"
#allow_hosts = ["tickets.example.com"]
#api_token = "${TICKET_TOKEN:-}"
"""

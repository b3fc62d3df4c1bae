"""Agents, tools and connectors as they are configured. Pure."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import BeforeValidator, Field, PrivateAttr, field_validator, model_validator
from pydantic_core import PydanticCustomError

from engine.config.fields import (
    INT64,
    Count,
    Exposure,
    FilePath,
    HostRules,
    Labels,
    LimitTable,
    Model,
    Name,
    Period,
    Seconds,
    Strings,
    Text,
    Urls,
)
from knowledge import connectors
from knowledge.access import PUBLIC, Access, Rule


class Entry(Protocol):
    """What every entry of an agent or tool has. `path` is its source: a file, or `module:Class`, or nothing."""

    @property
    def path(self) -> Path | str | None: ...

    @property
    def tenants(self) -> Strings | None: ...

    @property
    def expose(self) -> Exposure: ...


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


# Fields that are not keys of the file: expansion sets them.
_FILLED_IN = ("extra", "unset", "from_environment")


# Keys of what can read documents.
READING = ("sources", "labels")

OwnKeys = Literal["beside", "config"]


class CodeEntry(Model):
    """An entry with code, which may have a configuration of its own: `own_keys` says where.

    `beside`: all keys of the entry that are not the engine's; `config`: its table `config`.
    """

    own_keys: ClassVar[OwnKeys]

    @classmethod
    def keys_in(cls, section: str) -> tuple[str, ...]:
        """The engine's keys of an entry in a section of the file. Only agents have `expose`."""
        unknown = READING if section == "connectors" else ()  # a connector cannot search
        keys = [name for name in cls.model_fields if name not in (*_FILLED_IN, *unknown, "expose")]
        return (*keys, "expose") if section == "agents" else tuple(keys)


class ScriptEntry(CodeEntry):
    """A script of any kind, as configured. `timeout` (seconds) is also in `limits["timeout_s"]`.

    `extra` is the script's own configuration: all other keys, expanded, dates as ISO texts. `unset` is the message
    about a key of `extra` with an unset variable; such an entry fails to load. `from_environment` are the values of
    variables in `extra`, for redaction. `tools` None means the list that the script declares. It reads documents of
    `sources` (None: of all), without labels or with one of `labels`.
    """

    own_keys: ClassVar[OwnKeys] = "beside"

    path: FilePath
    timeout: Seconds | None = None
    limits: LimitTable = Field(default_factory=dict)
    allow_hosts: HostRules = ()
    env: Strings = ()
    kv: bool = False
    tools: Strings | None = None
    tenants: Strings | None = None
    sources: Strings | None = None
    labels: Labels = ()
    expose: Exposure = ("prompt",)
    extra: dict[str, Any] = Field(default_factory=dict, repr=False)
    unset: str | None = None
    from_environment: Strings = Field(default=(), repr=False)

    @model_validator(mode="after")
    def _timeout_is_a_limit(self) -> "ScriptEntry":
        _timeout_as_limit(self.timeout, self.limits)
        return self


def _names_or_destructive(value: Any) -> Any:
    if isinstance(value, str) and value != "destructive":
        raise PydanticCustomError("expected", "{what}", {"what": 'names of tools or "destructive"'})
    return value


class ChatmdEntry(Model):
    """`[agents.chatmd.NAME]`: a document in ChatMD. `timeout` (seconds) is also in `limits["timeout_s"]`.

    `parameters` is the JSON Schema of what it is given, `returns` of its answer. `tools` narrows the list that it
    declares. It reads files below `roots`, besides its own folder, and addresses of `allow_hosts`.
    """

    path: FilePath
    description: Text | None = None
    title: Text | None = None
    model: Text | None = None
    parameters: dict[str, Any] | None = None
    returns: dict[str, Any] | None = None
    confirm: Annotated[
        Literal["destructive"] | Annotated[tuple[Text, ...], Field(strict=False)],
        BeforeValidator(_names_or_destructive),
    ] = ()
    strict: bool = False
    roots: Annotated[tuple[FilePath, ...], Field(strict=False)] = ()
    timeout: Seconds | None = None
    limits: LimitTable = Field(default_factory=dict)
    tools: Strings | None = None
    tenants: Strings | None = None
    expose: Exposure = ("prompt", "tool")
    allow_hosts: HostRules = ()

    @model_validator(mode="after")
    def _timeout_is_a_limit(self) -> "ChatmdEntry":
        _timeout_as_limit(self.timeout, self.limits)
        return self


class ChatmdAgents(Model):
    """`[agents.chatmd]`: documents by name, and a folder, each document of which is an agent of its file's name."""

    dir: FilePath | None = None
    entries: dict[Name, ChatmdEntry] = Field(default_factory=dict)


# Limits that can be enforced on code in the engine's own process: its time, its answer, its log.
PYTHON_LIMITS = ("timeout_s", "output_bytes", "log_bytes", "value_depth")


class PythonEntry(CodeEntry):
    """Python code of the operator: `[agents.python.NAME]`, `[tools.python.NAME]`. `path` is `module:Class`.

    It is not confined, so keys that only confinement could enforce (`allow_hosts`, `env`, most limits) are errors here.
    `config` is the class's own configuration, expanded, dates as ISO texts; `unset` and `from_environment` are as in
    a ScriptEntry. `tools` None means the list that the class declares. `sources` and `labels` are as in a ScriptEntry,
    for what it reads through its context.
    """

    own_keys = "config"

    path: Text
    timeout: Seconds | None = None
    limits: LimitTable = Field(default_factory=dict)
    tools: Strings | None = None
    tenants: Strings | None = None
    sources: Strings | None = None
    labels: Labels = ()
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
                "{name} cannot be enforced on Python code, which is not confined; these can: {possible}",
                {"name": beyond, "possible": ", ".join(PYTHON_LIMITS)},
            )
        return limits

    @model_validator(mode="after")
    def _timeout_is_a_limit(self) -> "PythonEntry":
        _timeout_as_limit(self.timeout, self.limits)
        return self


class InlineAgent(Model):
    """An agent that is a fixed text: `[agents.NAME]` or `[agents.inline.NAME]`."""

    path: ClassVar[None] = None
    description: str
    system_prompt: str
    tools: Strings = ()
    tenants: Strings | None = None
    expose: Exposure = ("prompt",)


class AccessRule(Model):
    """One of `access_rules`: the labels of the documents whose source_id matches a pattern."""

    glob: Text
    access: Labels

    @field_validator("glob")
    @classmethod
    def _a_pattern(cls, glob: str) -> str:
        try:
            Rule(glob, frozenset())
        except ValueError as error:
            raise PydanticCustomError("phrase", "{why}", {"why": str(error)}) from None
        return glob


class Labelled(Model):
    """What every connector has: the labels of its documents, and whether strangers can write them."""

    access: Labels = ()
    access_rules: Annotated[tuple[AccessRule, ...], Field(strict=False)] = ()
    untrusted: bool = False
    labels_own: ClassVar[bool] = False  # whether its items may have labels of their own

    def labels_given(self) -> Access:
        """The labels that it gives its documents."""
        rules = [(rule.glob, rule.access) for rule in self.access_rules]
        return Access.of(self.access, rules, own=self.labels_own, untrusted=self.untrusted)


class _Globs(Labelled):
    include_globs: Strings = ("**/*.md", "**/*.txt")
    exclude_globs: Strings = ()
    glob_style: Literal["gitignore", "ctx"] = "gitignore"
    tenants: Strings | None = None


class FilesystemConnector(_Globs):
    """`[connectors.filesystem.NAME]`: the files below `root`.

    With `url_prefix` a document's URL is the prefix and its path below the root; without, it has none. With `watch`, a
    server synchronises it when a file changes, and with `every` also in this period.
    """

    root: FilePath
    every: Period | None = None
    watch: bool = False
    follow_symlinks: bool = False
    max_extract_bytes: Count = 50_000_000
    url_prefix: Text | None = None


class GitConnector(_Globs):
    """`[connectors.git.NAME]`: the files below `root` of a repository's branch."""

    url: Text = Field(repr=False)  # may hold a password
    every: Period | None = None
    branch: Text = "main"
    root: Text = "."
    shallow: bool = True
    cache_dir: FilePath | None = None
    max_extract_bytes: Count = 50_000_000
    token: str | None = Field(default=None, repr=False)  # empty: none, for `${NAME:-}`
    username: Text = "x-access-token"
    ssh_key: FilePath | None = None


class ScriptConnector(ScriptEntry, Labelled):
    """`[connectors.script.NAME]`: the items that a Lua script finds."""

    every: Period | None = None
    max_extract_bytes: Count = 50_000_000
    labels_own: ClassVar[bool] = True


class S3Connector(_Globs):
    """`[connectors.s3.NAME]`: the objects of a bucket below `prefix`. An empty key is none, for `${NAME:-}`."""

    bucket: Text
    every: Period | None = None
    prefix: str = ""
    region: Text | None = None
    endpoint_url: Text | None = Field(default=None, repr=False)  # may hold a password, and is refused then
    path_style: bool | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = Field(default=None, repr=False)
    session_token: str | None = Field(default=None, repr=False)
    anonymous: bool = False
    max_extract_bytes: Count = 50_000_000
    url_prefix: Text | None = None


class WebConnector(Labelled):
    """`[connectors.web.NAME]`: the pages of `urls` and `sitemaps`, and with `follow` what the pages link to."""

    urls: Urls = Field(default=(), repr=False)  # may hold a secret in its query
    sitemaps: Urls = Field(default=(), repr=False)
    every: Period | None = None
    follow: bool = False
    max_depth: Count = 3
    max_pages: Count = 1_000
    max_total_bytes: Count = 500_000_000
    max_extract_bytes: Count = 50_000_000
    timeout_s: Seconds = 1_800.0
    delay_s: Annotated[float, Field(ge=0, le=60)] = 0.1
    user_agent: Text = "engine"
    include_globs: Strings = ("**",)
    exclude_globs: Strings = ()
    glob_style: Literal["gitignore", "ctx"] = "gitignore"
    tenants: Strings | None = None


class Connectors(Model):
    """`[connectors]`, by type and name.

    A type is one field here, its model above, and a file in `knowledge/connectors/`; of scripts `agents/scanning.py`.
    """

    filesystem: dict[Name, FilesystemConnector] = Field(default_factory=dict)
    git: dict[Name, GitConnector] = Field(default_factory=dict)
    s3: dict[Name, S3Connector] = Field(default_factory=dict)
    web: dict[Name, WebConnector] = Field(default_factory=dict)
    script: dict[Name, ScriptConnector] = Field(default_factory=dict)

    def labels(self, tenant: str = "default") -> tuple[str, ...]:
        """The tenant's connectors as `TYPE:NAME`, in the order of the file within each type."""
        return tuple(
            f"{kind}:{name}"
            for kind in type(self).model_fields
            for name, entry in getattr(self, kind).items()
            if {tenant, "*"} & set(entry.tenants or ("default",))
        )

    def all_labels(self) -> tuple[str, ...]:
        """The connectors of all tenants as `TYPE:NAME`."""
        return tuple(f"{kind}:{name}" for kind in type(self).model_fields for name in getattr(self, kind))

    def problems(self, tenant: str = "default") -> dict[str, str | None]:
        """The tenant's labels, each with why it cannot be used, or None. Its store lists them with its sources."""
        return {label: unsupported_connector(label.partition(":")[0]) for label in self.labels(tenant)}

    def access(self, tenant: str = "default") -> dict[str, Access]:
        """The labels that the tenant's connectors give their documents, by label of the connector."""
        found: dict[str, Access] = {}
        for label in self.labels(tenant):
            kind, _, name = label.partition(":")
            entry = getattr(self, kind)[name]
            found[label] = entry.labels_given() if isinstance(entry, Labelled) else PUBLIC
        return found

    def every(self, tenant: str = "default") -> dict[str, float]:
        """The tenant's labels that a server synchronises by itself, each with its period in seconds."""
        found = {label: getattr(self.entry(label), "every", None) for label in self.labels(tenant)}
        return {label: every for label, every in found.items() if every is not None}

    def entry(self, label: str) -> Any:
        """The entry of a configured label."""
        kind, _, name = label.partition(":")
        return getattr(self, kind)[name]

    def caches(self) -> tuple[Path, ...]:
        """The folders that entries name for what can be fetched again."""
        return tuple(entry.cache_dir for entry in self.git.values() if entry.cache_dir is not None)


def unsupported_connector(kind: str) -> str | None:
    """Why connectors of this type cannot be used, or None."""
    if (library := connectors.missing(kind)) is not None:
        return f"connector type {kind!r} needs {library}, which is not installed: pip install 'engine[{kind}]'"
    if kind in connectors.kinds() or kind == "script":  # scripts need an engine: `agents/sources.py`
        return None
    return f"connector type {kind!r} is configured but not supported by this version"


class Tools(Model):
    """`[tools]`, by kind and name. A kind is one field here, its model above, and a file in `agents/tools/`."""

    script: dict[Name, ScriptEntry] = Field(default_factory=dict)
    python: dict[Name, PythonEntry] = Field(default_factory=dict)
    _lines: dict[tuple[str, ...], int] = PrivateAttr(default_factory=dict)

    def in_order(self) -> tuple[tuple[str, str, Entry], ...]:
        """Every tool in the order of the file, so that of two with one name the first can win."""
        found = list(_entries(self))
        return tuple(sorted(found, key=lambda item: _line(self._lines, ("tools", item[0], item[1]))))


class Agents(Model):
    """`[agents]`, by kind and name. A kind is one field here, its model above, and a file in `agents/kinds/`."""

    inline: dict[Name, InlineAgent] = Field(default_factory=dict)
    script: dict[Name, ScriptEntry] = Field(default_factory=dict)
    python: dict[Name, PythonEntry] = Field(default_factory=dict)
    chatmd: ChatmdAgents = Field(default_factory=ChatmdAgents)
    _lines: dict[tuple[str, ...], int] = PrivateAttr(default_factory=dict)

    def in_order(self) -> tuple[tuple[str, str, Entry], ...]:
        """Every agent in the order of the file, so that of two with one name the first can win."""
        found = list(_entries(self))

        def line(item: tuple[str, str, Entry]) -> int:
            kind, name, _ = item
            found = _line(self._lines, ("agents", kind, name))
            return min(found, _line(self._lines, ("agents", name))) if kind == "inline" else found

        return tuple(sorted(found, key=line))


def _entries(section: Agents | Tools) -> Iterator[tuple[str, str, Entry]]:
    for kind in type(section).model_fields:
        found = getattr(section, kind)
        for name, entry in (found.entries if isinstance(found, ChatmdAgents) else found).items():
            yield kind, name, entry


def _line(lines: Mapping[tuple[str, ...], int], path: tuple[str, ...]) -> int:
    """The first line that opens the table at `path`, one below it, or else the one around it."""
    inside = [line for header, line in lines.items() if header[: len(path)] == path]
    around = lines.get(path[:-1], INT64) if len(path) > 2 else INT64
    return min(inside, default=around)

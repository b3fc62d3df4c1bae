"""The settings, with their defaults. Pure."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from engine.config.entries import Agents, Connectors, Tools
from engine.config.fields import (
    BUDGET_NUMBERS,
    INT64,
    QUOTA_NUMBERS,
    Bind,
    Count,
    FilePath,
    Layer,
    LimitTable,
    Model,
    Seconds,
    ServiceUrl,
    Strings,
    Text,
    expected,
)
from engine.config.language import ModelsConfig
from engine.config.mcp_servers import McpServers
from engine.config.oauth import OAuthConfig, looks_like_token
from engine.quota import QUOTAS
from knowledge.words import DEFAULT_LANGUAGE, LANGUAGES, NO_LANGUAGE
from sandbox.wire.limits import MIB, SPECS
from storage.teams.budgets import BUDGETS


class DbConfig(Model):
    """`[db]`: the file of the knowledge store."""

    path: FilePath = Field(default=Path("data/engine.sqlite"), validate_default=True)


class ChunkingConfig(Model):
    """`[chunking]`: how documents are cut into chunks. A token counts as four bytes."""

    max_tokens: Count = 700
    overlap_tokens: Annotated[int, Field(ge=0, le=INT64)] = 0

    @model_validator(mode="after")
    def _overlap_is_smaller(self) -> "ChunkingConfig":
        if self.overlap_tokens >= self.max_tokens:
            raise PydanticCustomError("phrase", "overlap_tokens must be smaller than max_tokens")
        return self


def _language(value: str) -> str:
    if value != NO_LANGUAGE and value not in LANGUAGES:
        raise PydanticCustomError("choice", f"expected none or one of {', '.join(LANGUAGES)}")
    return value


EMBEDDERS = ("auto", "static", "disabled", "local", "openai", "ollama", "path")


def _embedder(value: str) -> str:
    if value not in EMBEDDERS:
        raise PydanticCustomError("choice", f"expected one of {', '.join(EMBEDDERS)}")
    return value


# More than any model has; an answer of a service is read into memory.
_MAX_DIMS = 16_384
# What stands in a header (RFC 9110 section 5.5). The text is not shown: the key may be all right but for a line break.
_KEY = re.compile(r"[\x21-\x7e]{0,4096}")


def _check_key(value: str) -> str:
    if not _KEY.fullmatch(value):
        raise PydanticCustomError("phrase", "expected a key of at most 4,096 visible ASCII characters")
    return value


class RetrievalConfig(Model):
    """`[retrieval]`: how many documents a search returns, how it finds and groups them, from how many candidates."""

    # 100 is the bound of a search over REST and MCP, too.
    final_limit: Annotated[int, Field(ge=1, le=100)] = 12
    # Not the 0.6 of context-harness, which keeps one weight for all queries: ours falls where words cover the query.
    hybrid_alpha: Annotated[float, Field(ge=0, le=1)] = 0.95
    candidate_k_keyword: Count = 80
    candidate_k_vector: Count = 80
    default_mode: Literal["keyword", "semantic", "hybrid"] = "keyword"
    group_by: Literal["document", "chunk"] = "document"
    doc_agg: Literal["max", "avg"] = "max"
    max_chunks_per_doc: Count = 3
    language: Annotated[str, AfterValidator(_language)] = DEFAULT_LANGUAGE


class EmbeddingConfig(Model):
    """`[embedding]`: which embedder turns text into vectors; `disabled` means that search is by keyword."""

    provider: Annotated[str, AfterValidator(_embedder)] = "auto"
    model: Text | None = None
    dims: Annotated[int, Field(ge=1, le=_MAX_DIMS)] | None = None
    path: FilePath | None = None
    url: ServiceUrl | None = None
    api_key: Annotated[str, AfterValidator(_check_key)] | None = Field(default=None, repr=False)
    batch_size: Count = 64
    max_retries: Annotated[int, Field(ge=0, le=INT64)] = 5
    timeout_secs: Seconds = 30

    @model_validator(mode="after")
    def _services_need_a_model(self) -> "EmbeddingConfig":
        needed = {"model": "the name of a model", "dims": "the length of its vectors"}
        missing = [name for name in needed if getattr(self, name) is None]
        if self.provider in ("openai", "ollama") and missing:
            raise PydanticCustomError(
                "phrase",
                "{provider} needs {missing}: {meaning}",
                {
                    "provider": self.provider,
                    "missing": " and ".join(missing),
                    "meaning": " and ".join(needed[name] for name in missing),
                },
            )
        if self.provider == "path" and self.path is None:
            raise PydanticCustomError("phrase", "path needs path: the folder of a model")
        return self


class ServerConfig(Model):
    """`[server]`: where to listen, which requests to accept, and time-outs of bodies and of the shutdown."""

    bind: Bind = "127.0.0.1:7331"
    allowed_hosts: Strings = ()
    allowed_origins: Strings = ()
    allow_anonymous: bool = False
    max_body_bytes: Count = 4 * MIB
    body_timeout_s: Seconds = 15
    graceful_timeout_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 10
    max_connections: Count = 4096
    max_connections_per_address: Count = 1024
    envelope: Literal["flat", "wrapped"] = "flat"


class SandboxConfig(Model):
    """`[sandbox]`: the pool of workers. `workers` None means one per core; `require` None means the engine's choice.

    `disable` turns layers off, to find out what one of them costs or breaks. If a disabled layer is also required, the
    engine does not start.
    """

    workers: Count | None = None
    reserve: Annotated[int, Field(ge=0, le=INT64)] = 2
    isolation: Literal["tenant", "execution"] = "tenant"
    max_runs_per_worker: Count = 10_000
    require: Annotated[tuple[Layer, ...], Field(strict=False)] | None = None
    disable: Annotated[tuple[Layer, ...], Field(strict=False)] = ()

    @field_validator("disable")
    @classmethod
    def _process_stays(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if "process" in names:  # it also sets up the channel
            raise expected("layers other than 'process', without which there is no worker")
        return names


def _fill_defaults(given: dict[str, float]) -> dict[str, float]:
    return {name: given.get(name, spec.default) for name, spec in SPECS.items()}


def _fill_ceilings(given: dict[str, float]) -> dict[str, float]:
    return {name: given.get(name, spec.ceiling) for name, spec in SPECS.items()}


class LimitsConfig(Model):
    """`[limits]` and `[limits.max]`, complete: every name of SPECS is in both, in the unit of its spec."""

    defaults: Annotated[LimitTable, AfterValidator(_fill_defaults)] = Field(default_factory=lambda: _fill_defaults({}))
    max: Annotated[LimitTable, AfterValidator(_fill_ceilings)] = Field(default_factory=lambda: _fill_ceilings({}))
    queue_timeout_s: Seconds = 10


def _fill_quotas(given: dict[str, float]) -> dict[str, float | None]:
    return {name: given.get(name, spec.default) for name, spec in QUOTAS.items()}


class TotalConfig(Model):
    """`[tenants.total]`: what all tenants together may use, beside the quotas of each."""

    requests_per_second: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1000
    burst: Count = 2000
    queue_length: Count = 1000


class TenantsConfig(Model):
    """`[tenants]`: whether requests need keys, and where tenants, keys and secrets are stored.

    `quota` is `[tenants.quota]`, complete: every name of QUOTAS. `concurrent_runs` None: as many as there are workers.
    """

    enabled: bool = False
    store: FilePath | None = None
    operator_key: Text | None = Field(default=None, repr=False)
    secrets_key: Text | None = Field(default=None, repr=False)
    secrets_key_file: FilePath | None = None
    on_limit: Literal["queue", "reject"] = "queue"
    quota: Annotated[dict[str, float | None], QUOTA_NUMBERS, AfterValidator(_fill_quotas)] = Field(
        default_factory=lambda: _fill_quotas({})
    )
    total: TotalConfig = TotalConfig()
    oauth: OAuthConfig | None = None

    @model_validator(mode="after")
    def _tokens_need_tenants(self) -> "TenantsConfig":
        if self.oauth is not None and not self.enabled:
            raise PydanticCustomError("phrase", "oauth needs tenants.enabled = true")
        if self.oauth is not None and looks_like_token(self.operator_key or ""):
            raise PydanticCustomError("phrase", "operator_key has the form of a token")
        return self


def _fill_budget(given: dict[str, float]) -> dict[str, float]:
    return {name: given.get(name, spec.default) for name, spec in BUDGETS.items()}


class TeamsConfig(Model):
    """`[teams]`: whether there are any, and the most that a team may use.

    `limits` are all other keys of the table, complete: every name of BUDGETS. A lease of a client lasts `lease_s`; a
    team that was stopped is kept for `keep_days`.
    """

    enabled: bool = False
    a2a: bool = False
    lease_s: Seconds = 900
    keep_days: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30
    limits: Annotated[dict[str, float], BUDGET_NUMBERS, AfterValidator(_fill_budget)] = Field(
        default_factory=lambda: _fill_budget({})
    )

    @model_validator(mode="after")
    def _a2a_needs_teams(self) -> "TeamsConfig":
        if self.a2a and not self.enabled:
            raise PydanticCustomError("phrase", "a2a needs enabled = true")
        return self


class Config(Model):
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
    models: ModelsConfig = ModelsConfig()
    mcp_servers: McpServers = Field(default_factory=dict)
    tools: Tools = Tools()
    agents: Agents = Agents()
    tenants: TenantsConfig = TenantsConfig()
    teams: TeamsConfig = TeamsConfig()

"""The configuration file: where it is found, what it may contain, and one line for each error."""

from engine.config.entries import (
    PYTHON_LIMITS,
    Agents,
    ChatmdEntry,
    Entry,
    InlineAgent,
    PythonEntry,
    ScriptEntry,
    Tools,
    unsupported_connector,
)
from engine.config.errors import ConfigError
from engine.config.fields import QuotaTable, parse_bind
from engine.config.language import ModelEntry, ModelsConfig
from engine.config.mcp_servers import McpServerEntry, McpServers
from engine.config.models import Config, LimitsConfig, SandboxConfig, ServerConfig, TeamsConfig
from engine.config.oauth import IssuerConfig, OAuthConfig
from engine.config.reading import (
    TEMPLATE,
    LoadedConfig,
    check_tables,
    find_config,
    load_config,
    parse_config,
    read_tables,
    reload_config,
)
from engine.config.shape import UnsetVariable, expand

__all__ = [
    "PYTHON_LIMITS",
    "TEMPLATE",
    "Agents",
    "ChatmdEntry",
    "Config",
    "ConfigError",
    "Entry",
    "InlineAgent",
    "IssuerConfig",
    "LimitsConfig",
    "LoadedConfig",
    "McpServerEntry",
    "McpServers",
    "ModelEntry",
    "ModelsConfig",
    "OAuthConfig",
    "PythonEntry",
    "QuotaTable",
    "SandboxConfig",
    "ScriptEntry",
    "ServerConfig",
    "TeamsConfig",
    "Tools",
    "UnsetVariable",
    "check_tables",
    "expand",
    "find_config",
    "load_config",
    "parse_bind",
    "parse_config",
    "read_tables",
    "reload_config",
    "unsupported_connector",
]

"""Which of a script's log lines an MCP client receives. Pure.

Scripts log at four levels (`sandbox/prelude/log.lua`), MCP knows eight, those of RFC 5424. From 2026-07-28 on a request
names the least level that it wants in its `_meta`, and without it nothing may be sent. Before, a session has a level,
set by `logging/setLevel`; where there is no session, or none was set, the server chooses: `DEFAULT`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from mcp_types import LOG_LEVEL_META_KEY, LoggingLevel

from engine.run import LogLine

# What each level of a script is in MCP's words.
LEVELS: Mapping[str, LoggingLevel] = {"debug": "debug", "info": "info", "warn": "warning", "error": "error"}
# In the handshake revisions, where no level was set.
DEFAULT: LoggingLevel = "info"

# The least severe first, as mcp_types declares them.
_RANK = {level: rank for rank, level in enumerate(get_args(LoggingLevel))}


@dataclass(slots=True)
class SessionLevel:
    """The level of one session of a handshake revision. Without a session there is one for each request."""

    least: LoggingLevel = DEFAULT


def wanted(meta: Mapping[str, Any] | None, session: SessionLevel | None) -> LoggingLevel | None:
    """The least level that a request is sent; None for no line at all. `session` is None from 2026-07-28 on."""
    if session is not None:
        return session.least
    asked = (meta or {}).get(LOG_LEVEL_META_KEY)
    return asked if asked in _RANK else None


def passes(line: LogLine, least: LoggingLevel) -> bool:
    """Whether a line is at least this severe."""
    return _RANK[LEVELS.get(line.level, "info")] >= _RANK[least]

"""Which of a script's log lines an MCP client receives. Pure.

Scripts log at four levels (`sandbox/prelude/log.lua`); MCP has eight, those of RFC 5424. From 2026-07-28 on a request
names the least level in its `_meta`, and without it no line may be sent. In earlier revisions a session has a level,
set by `logging/setLevel`; without a session, or before it is set, the server chooses: `DEFAULT`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from mcp_types import LOG_LEVEL_META_KEY, LoggingLevel

from engine.run import LogLine

# Level of a script -> level of MCP.
LEVELS: Mapping[str, LoggingLevel] = {"debug": "debug", "info": "info", "warn": "warning", "error": "error"}
# In the handshake revisions, if no level is set.
DEFAULT: LoggingLevel = "info"

# mcp_types declares the least severe first.
_RANK = {level: rank for rank, level in enumerate(get_args(LoggingLevel))}


@dataclass(slots=True)
class SessionLevel:
    """The level of one session of a handshake revision. Without sessions, each request has one."""

    least: LoggingLevel = DEFAULT


def wanted(meta: Mapping[str, Any] | None, session: SessionLevel | None) -> LoggingLevel | None:
    """The least level of lines to send for a request; None to send none. `session` is None from 2026-07-28 on."""
    if session is not None:
        return session.least
    asked = (meta or {}).get(LOG_LEVEL_META_KEY)
    return asked if asked in _RANK else None


def passes(line: LogLine, least: LoggingLevel) -> bool:
    """Whether a line is at least this severe."""
    return _RANK[LEVELS.get(line.level, "info")] >= _RANK[least]

"""The names of agents, tools and connectors, and the closest known name to a wrong one. Pure."""

import difflib
import re

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def valid_name(name: str) -> bool:
    """Whether `name` may name an agent, tool or connector: 1 to 64 of letters, digits, `_`, `.`, `-`."""
    return _NAME.fullmatch(name) is not None


def nearest(name: str, known: list[str], cutoff: float = 0.6) -> str | None:
    """The known name closest to `name`, or None when none is similar, or `name` is long."""
    if len(name) > 128:  # comparing takes more than linear time, and the name may be hostile
        return None
    found = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return found[0] if found else None

"""When a call is sent again: which failures pass, and how long to wait. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

# The first pause; each later one is twice as long, up to the longest.
FIRST_S = 0.5
LONGEST_S = 8.0
# Statuses besides 5xx (529 among them, an overloaded server) that another try may not meet.
_PASSING = frozenset({408, 409, 425, 429})


def passes(status: int) -> bool:
    """Whether another try may succeed after an answer of this status."""
    return status in _PASSING or (status >= 500 and status not in (501, 505))


def pause_s(tries: int, retry_after_s: float | None, chance: float) -> float:
    """How long to wait after so many tries; `chance` of 0 to 1 spreads clients that failed together.

    A server that says when gets its wish.
    """
    own = min(LONGEST_S, FIRST_S * 2.0 ** (min(tries, 10) - 1)) * (0.75 + 0.5 * chance)
    return own if retry_after_s is None else max(retry_after_s, own if retry_after_s == 0 else 0.0)


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """The seconds that `Retry-After` asks for: a number or a date (RFC 9110 section 10.2.3). None for anything else."""
    text = headers.get("retry-after", "").strip()
    if not text or len(text) > 64:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            at = parsedate_to_datetime(text)
        except ValueError:
            return None
        seconds = ((at if at.tzinfo else at.replace(tzinfo=UTC)) - now).total_seconds()
    return min(max(seconds, 0.0), 86400.0) if seconds == seconds else None

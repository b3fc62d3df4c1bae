"""Points in time as the store keeps them: text `YYYY-MM-DDTHH:MM:SSZ`, in UTC, so that comparing text compares time."""

import re
from datetime import UTC, datetime

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_TIMESTAMP = re.compile(
    r"(?P<date>\d{4}-\d{2}-\d{2})[Tt ](?P<time>\d{2}:\d{2}:\d{2})(?:\.\d+)?(?P<zone>[Zz]|[+-]\d{2}:\d{2})?", re.ASCII
)


def canonical_time(text: str, *, end_of_day: bool = False) -> str:
    """A date or RFC 3339 timestamp as `YYYY-MM-DDTHH:MM:SSZ`; fractions of a second are dropped.

    A date means its first second, or its last one with `end_of_day`. A timestamp without an offset is taken as UTC.
    Raises ValueError when it is neither; its message is written for the author of `text`.
    """
    try:
        if _DATE.fullmatch(text):
            parsed = datetime.fromisoformat(f"{text}T{'23:59:59' if end_of_day else '00:00:00'}+00:00")
        elif match := _TIMESTAMP.fullmatch(text):
            zone = match["zone"] or "+00:00"
            offset = "+00:00" if zone in "Zz" else zone
            parsed = datetime.fromisoformat(f"{match['date']}T{match['time']}{offset}").astimezone(UTC)
        else:
            raise ValueError("neither form")
    except (ValueError, OverflowError):
        shown = text if len(text) <= 40 else text[:39] + "…"
        raise ValueError(f"{shown!r} is not a date (2026-01-31) or a time (2026-01-31T12:00:00Z)") from None
    return format_time(parsed)


def format_time(moment: datetime) -> str:
    """An aware datetime in the store's form."""
    return moment.astimezone(UTC).replace(tzinfo=None, microsecond=0).isoformat() + "Z"


def from_timestamp(seconds: float) -> str | None:
    """Seconds since the epoch in the store's form; None if `datetime` cannot hold them (file times can be anything)."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").removesuffix("+00:00") + "Z"
    except (ValueError, OverflowError, OSError):
        return None


def to_timestamp(text: str | None) -> int | None:
    """The reverse of `from_timestamp`, in whole seconds."""
    return None if text is None else int(datetime.fromisoformat(text).timestamp())

"""What an agent of a team may do: whom it reaches, what its role allows, which names, paths and amounts. Pure."""

from collections.abc import Iterable, Mapping

from engine.errors import Code, LimitUse, Problem
from engine.names import valid_name
from storage.teams.budgets import BUDGETS
from storage.teams.events import Role, Runner
from storage.teams.rows import Budget, Team

ROLES: tuple[Role, ...] = ("worker", "reviewer")
RUNNERS: tuple[Runner, ...] = ("lua", "model", "client")
# The name by which roots write to the people who own the team, and the people's own in messages.
USER_NAME = "USER"
# The sender's name of what the engine itself says.
ENGINE_NAME = "ENGINE"
_RESERVED = (USER_NAME, ENGINE_NAME)


# ---- budgets -----------------------------------------------------------------------------------------------------


# What an agent's own budget, which bounds it and all below it, may have.
OF_AGENTS = frozenset({"agents", "depth", "turns", "messages", "messages_per_minute", "model_tokens", "cost_usd"})

MICRO = 1_000_000


def checked_budget(given: object, defaults: Mapping[str, float] | None, what: str = "budget") -> dict[str, float]:
    """A budget as a client gives it, completed by `defaults`; without them the one of an agent.

    Nothing may be above the default that the operator set: a team is narrowed by its creator, never widened.
    Raises Problem bad_request, which names the key.
    """
    if not isinstance(given, Mapping):
        raise Problem(Code.BAD_REQUEST, f"{what}: expected an object of limits")
    found = dict(defaults or {})
    for key, value in given.items():
        name = str(key)[:64]
        if key not in BUDGETS or (defaults is None and key not in OF_AGENTS):
            known = ", ".join(name for name in BUDGETS if defaults is not None or name in OF_AGENTS)
            raise Problem(Code.BAD_REQUEST, f"{what}: unknown limit {name!r}; the limits are {known}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e15:
            raise Problem(Code.BAD_REQUEST, f"{what}.{name}: expected a number from 0 to 1e15")
        if BUDGETS[name].unit in ("count", "bytes") and value != int(value):
            raise Problem(Code.BAD_REQUEST, f"{what}.{name}: expected a whole number")
        if defaults is not None and value > defaults[name]:
            raise Problem(Code.BAD_REQUEST, f"{what}.{name}: {value:g} is above {defaults[name]:g}, the most here")
        found[name] = int(value) if BUDGETS[name].unit in ("count", "bytes") else float(value)
    return found


def exceeded(
    name: str, bound: float, used: float, *, whose: str = "this team", retry_after_s: float | None = None
) -> Problem:
    """The refusal of a budget."""
    spec = BUDGETS[name]
    code = Code.TOO_LARGE if name == "message_bytes" else Code.QUOTA_EXCEEDED
    said = f"{name} of {whose}: the limit is {_shown(bound)}, and {_shown(used)} would be used ({spec.reason})"
    limit = LimitUse(name, bound, used, spec.unit, "tenant")
    return Problem(code, said, limit=limit, retry_after_s=retry_after_s if spec.retry else None)


def _shown(value: float) -> str:
    return f"{value:.15g}"


def bounds(team: Team, budgets: Iterable[Budget], name: str) -> list[tuple[float, float, str]]:
    """The bounds that hold for an agent of the team, the nearest first: each with what was used, and whose it is."""
    column = {"model_tokens": "tokens", "cost_usd": "micro"}.get(name, name)
    scale = MICRO if name == "cost_usd" else 1
    found = [
        (each.budget[name], getattr(each, column) / scale, "this agent and those below it")
        for each in budgets
        if name in each.budget
    ]
    return [*found, (team.budget[name], getattr(team, column) / scale, "this team")]


def require(team: Team, budgets: Iterable[Budget], name: str, more: float) -> None:
    """Raise Problem if so much more would pass a sum's bound."""
    for bound, used, whose in bounds(team, budgets, name):
        if used + more > bound:
            raise exceeded(name, bound, used + more, whose=whose)


# ---- names, texts, paths -----------------------------------------------------------------------------------------


def check_name(name: str, taken: Iterable[str], parent: str | None) -> None:
    """Whether a new agent may have this name beside its siblings, below its parent. Raises Problem."""
    if not valid_name(name) or name in (".", ".."):
        raise Problem(Code.BAD_REQUEST, "name: 1 to 64 of letters, digits, '_', '.', '-'")
    folded = name.casefold()
    if folded in (reserved.casefold() for reserved in _RESERVED):
        raise Problem(Code.BAD_REQUEST, f"name: {name!r} is reserved")
    for other in taken:
        if other.casefold() == folded:
            differs = "" if other == name else f": it differs from {other!r} in case alone"
            raise Problem(Code.CONFLICT, f"name: there is an agent of the name {name!r}{differs}")
    if parent is not None and parent.casefold() == folded:
        raise Problem(Code.CONFLICT, f"name: {name!r} is the name of its parent")


def check_text(what: str, text: str, bound: float) -> int:
    """The size of a text in bytes of UTF-8. Raises Problem for one that is too large, or no text."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise Problem(Code.BAD_REQUEST, f"{what}: it has half of a character (a lone surrogate)") from None
    if size > bound:
        raise Problem(
            Code.TOO_LARGE, f"{what}: {size} bytes; the limit is {_shown(bound)} (message_bytes)",
            limit=LimitUse("message_bytes", bound, size, "bytes", "tenant"),
        )  # fmt: skip
    return size


MAX_PATH_BYTES = 512
_PARTS = 16


def inner_path(what: str, path: str) -> str:
    """A path relative to a workspace. Raises Problem for one that is none, or leads out.

    The rule of packages: parts of printable characters between single slashes, none of them `.` or `..`.
    """
    parts = path.split("/")
    plain = (
        path.isprintable() and "\\" not in path and not path.startswith("/") and len(path.encode()) <= MAX_PATH_BYTES
    )
    if not plain or len(parts) > _PARTS or any(part in ("", ".", "..") or part != part.strip() for part in parts):
        raise Problem(
            Code.BAD_REQUEST, f"{what}: expected a relative path of at most {_PARTS} names and {MAX_PATH_BYTES} bytes, "
            "with '/' between them, and without '.', '..' and backslashes",
        )  # fmt: skip
    return path


def joined(root: str, path: str) -> str:
    return f"{root}/{path}" if root else path


# ---- roles -------------------------------------------------------------------------------------------------------

# The tools of a turn that a reviewer does not have.
NOT_FOR_REVIEWERS = frozenset({"spawn_agent", "write_file", "terminate_agent"})

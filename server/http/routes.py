"""The table of routes: each row has a method, a path rule, the access that it needs and a handler; and how a path is
looked up.

A handler is called through `Route.answer` only, which checks the access of the same row: the route that was authorized
is the route that runs. Pure, apart from the handlers.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, unique
from typing import TYPE_CHECKING, NamedTuple

from control.identity import Identity
from control.records import SCOPES
from engine.errors import Code, Problem
from server.problems import Answer, problem_answer

if TYPE_CHECKING:
    from server.http.asgi import Exchange

Handler = Callable[..., Awaitable[Answer]]

# A row with this method matches every method: its application decides which ones it accepts.
ANY = "*"


class Open(Enum):
    """Which clients may use a route without keys (`tenants.enabled = false`)."""

    ALL = "all clients"
    MACHINE = "clients on this machine"
    NONE = "none"


class Rule(NamedTuple):
    """What a need requires: any of these scopes on a tenant's key (no scopes: the operator's key only), or
    `without_keys` when the server has no keys.

    `refusal` is the error text for a tenant's key, `closed` the one when there are no keys.
    """

    scopes: frozenset[str]
    without_keys: Open
    refusal: str = ""
    closed: str = ""


_ANY_KEY = frozenset(SCOPES)
_PUBLISHING = "without keys, publishing is for clients on this machine"


@unique
class Need(Enum):
    """The access that a route needs. The operator's key satisfies every need."""

    NOTHING = Rule(_ANY_KEY, Open.ALL)
    KEY = Rule(_ANY_KEY, Open.ALL, "this key has no scope")
    USE = Rule(frozenset({"use"}), Open.ALL, "this key has no scope 'use'")
    PUBLISH = Rule(frozenset({"publish"}), Open.MACHINE, "this key has no scope 'publish'", _PUBLISHING)
    VERSIONS = Rule(
        frozenset({"publish", "admin"}), Open.MACHINE, "this key has no scope 'publish' or 'admin'", _PUBLISHING
    )
    ADMIN = Rule(frozenset({"admin"}), Open.MACHINE, "this key has no scope 'admin'", _PUBLISHING)
    AUDIT = Rule(
        frozenset({"admin"}), Open.NONE, "this key has no scope 'admin'",
        "there are no tenants here: tenants.enabled is false",
    )  # fmt: skip
    METRICS = Rule(
        frozenset(), Open.MACHINE, "metrics are for the operator's key", "metrics are for clients on this machine"
    )
    OPERATOR = Rule(
        frozenset(), Open.NONE, "this is for the operator's key", "there are no tenants here: tenants.enabled is false"
    )

    def check(self, identity: Identity, keyed: bool) -> None:
        """Raise Problem unless this identity has the access. `keyed` says whether the server uses keys.

        unauthorized without a key; forbidden with insufficient scopes, or from another machine; not_found for routes
        that do not exist without keys.
        """
        rule = self.value
        if not keyed:
            if rule.without_keys is Open.NONE:
                raise Problem(Code.NOT_FOUND, rule.closed)
            if rule.without_keys is Open.MACHINE and not identity.operator:
                raise Problem(Code.FORBIDDEN, rule.closed)
        elif self is not Need.NOTHING and not identity.operator:
            if identity.key_id is None:
                raise no_key()
            if rule.scopes.isdisjoint(identity.scopes):
                raise Problem(Code.FORBIDDEN, rule.refusal)


def no_key() -> Problem:
    """The same text for a missing key and for any invalid one.

    A new object each time: an exception that is raised repeatedly keeps the frames of every raise, and their locals.
    """
    return Problem(Code.UNAUTHORIZED, "a valid API key is needed, as Authorization: Bearer KEY or as X-API-Key: KEY")


# The access for paths without a route: a tenant's key must not reveal which of the operator's paths exist.
_AREAS: tuple[tuple[re.Pattern[str], Need], ...] = (
    (re.compile(r"/\.well-known/.*"), Need.NOTHING),
    (re.compile(r"/admin(?:/.*)?"), Need.OPERATOR),
)


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One row: a method, a rule of literal parts and names (`/agents/<name>/prompt`), the access needed, the handler.

    Without a handler the path belongs to another application, which calls `check` itself.
    """

    method: str
    rule: str
    need: Need
    handler: Handler | None = None

    def check(self, exchange: "Exchange") -> None:
        """Raise Problem unless this request has the access that the row needs."""
        self.need.check(exchange.identity, exchange.keyed)

    async def answer(self, exchange: "Exchange", names: Mapping[str, str]) -> Answer:
        """Check the access, then call the handler. Raises Problem."""
        self.check(exchange)
        assert self.handler is not None
        return await self.handler(exchange, **names)


class Found(NamedTuple):
    """The result of a lookup: a route with the names from the path, or None, and the access that the request needs.

    `methods` are the sorted methods of the path if the request's is not one of them; empty if the path has no route.
    """

    route: Route | None
    names: Mapping[str, str]
    need: Need
    methods: tuple[str, ...] = ()


# The result for a request whose target is not parsed, or could not be.
UNREAD = Found(None, {}, Need.KEY)


# The start of a name, at the end of a rule, that matches all the rest of a path: the syntax of Quart's router.
_REST = "<path:"


class _Pattern:
    """The rows of one rule that contains names."""

    __slots__ = ("names", "parts", "rest", "rows")

    def __init__(self, parts: list[str]) -> None:
        self.rows: dict[str, Route] = {}
        # The index of the part that matches all the rest, and its name.
        self.rest = (len(parts) - 1, parts.pop()[len(_REST) : -1]) if parts[-1].startswith(_REST) else None
        # (index, text) of the literal parts after the first, and (index, name) of the others.
        self.parts = tuple((at, part) for at, part in enumerate(parts) if at > 1 and not part.startswith("<"))
        self.names = tuple((at, part[1:-1]) for at, part in enumerate(parts) if part.startswith("<"))

    def matches(self, parts: list[str]) -> bool:
        return all(parts[at] == text for at, text in self.parts)

    def names_of(self, parts: list[str]) -> dict[str, str]:
        found = {name: parts[at] for at, name in self.names}
        if self.rest is not None:
            found[self.rest[1]] = "/".join(parts[self.rest[0] :])
        return found


class Table:
    """All routes of a server. Rules begin with a literal part."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._literal: dict[str, dict[str, Route]] = {}
        # By first part and number of parts: few rules share both.
        self._patterns: dict[tuple[str, int], list[_Pattern]] = {}
        # Rules with a rest, by first part: they match paths of any greater length.
        self._rests: dict[str, list[_Pattern]] = {}
        by_rule: dict[str, dict[str, Route]] = {}
        for route in self.routes:
            rows = by_rule.get(route.rule)
            if rows is None:
                rows = by_rule[route.rule] = self._place(route.rule)
            if route.method in rows:
                raise ValueError(f"{route.method} {route.rule} is in the table twice")
            rows[route.method] = route

    def _place(self, rule: str) -> dict[str, Route]:
        """The rows of a rule by method; an empty dictionary for a new rule."""
        parts = rule.split("/")
        if "<" not in rule:
            return self._literal.setdefault(rule, {})
        if parts[1].startswith("<"):
            raise ValueError(f"{rule} has a name as its first part")
        pattern = _Pattern(parts)
        if pattern.rest is not None:
            self._rests.setdefault(parts[1], []).append(pattern)
        else:
            self._patterns.setdefault((parts[1], len(parts)), []).append(pattern)
        return pattern.rows

    def find(self, method: str, path: str) -> Found:
        """Look up a path that `target` has parsed. Literal parts take precedence over names; HEAD uses GET's row."""
        row_method = "GET" if method == "HEAD" else method
        literal = self._literal.get(path)
        if literal is not None and (route := literal.get(row_method) or literal.get(ANY)) is not None:
            return Found(route, {}, route.need)
        parts = path.split("/")
        here = [] if literal is None else [literal]
        for pattern in self._patterns.get((parts[1] if len(parts) > 1 else "", len(parts)), ()):
            if pattern.matches(parts):
                if (found := pattern.rows.get(row_method)) is not None:
                    return Found(found, pattern.names_of(parts), found.need)
                here.append(pattern.rows)
        for pattern in self._rests.get(parts[1] if len(parts) > 1 else "", ()):
            if pattern.rest is not None and len(parts) > pattern.rest[0] and pattern.matches(parts):
                if (found := pattern.rows.get(row_method)) is not None:
                    return Found(found, pattern.names_of(parts), found.need)
                here.append(pattern.rows)
        return self._missed(path, here)

    def _missed(self, path: str, here: list[dict[str, Route]]) -> Found:
        """The result when no row matches: with a key, the answer lists the methods of the path."""
        if path == "*":  # OPTIONS for the server as a whole (RFC 9110 section 9.3.7)
            every = {route.method for route in self.routes} - {ANY}
            return Found(None, {}, Need.KEY, _allowed(every))
        if not here:
            return Found(None, {}, next((need for area, need in _AREAS if area.fullmatch(path)), Need.KEY))
        # A path that is open to all, or the operator's alone, stays so for a method that it does not allow.
        needs = {route.need for rows in here for route in rows.values()}
        need = needs.pop() if len(needs) == 1 and needs & {Need.NOTHING, Need.OPERATOR} else Need.KEY
        return Found(None, {}, need, _allowed({method for rows in here for method in rows}))


def _allowed(methods: set[str]) -> tuple[str, ...]:
    more = {"OPTIONS", "HEAD"} if "GET" in methods else {"OPTIONS"}
    return tuple(sorted(methods | more))


def options(methods: Iterable[str]) -> Answer:
    """The answer to OPTIONS for a path with these methods."""
    return Answer(204, [(b"allow", ", ".join(sorted(methods)).encode())], b"")


def not_taken(path: str, methods: Iterable[str]) -> Answer:
    """The answer to a method that a path does not allow; `methods` are those that it allows."""
    named = ", ".join(sorted(methods))
    answer = problem_answer(
        Problem(Code.METHOD_NOT_ALLOWED, f"{path[:200]} does not take this method; it takes {named}")
    )
    answer.headers.append((b"allow", named.encode()))
    return answer

"""What a route is: a method, a path, what a request must bring for it, and what answers; and how a path is found.

A route's handler is reached through `Route.answer` alone, which checks the route's own row: what is decided upon is
what is routed. Pure, but for the handlers.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, unique
from typing import TYPE_CHECKING, NamedTuple

from engine.control.identity import Identity
from engine.control.records import SCOPES
from engine.errors import Code, Problem
from server.problems import Answer, problem_answer

if TYPE_CHECKING:
    from server.asgi import Exchange

Handler = Callable[..., Awaitable[Answer]]

# A row with this method has every one: its application says which of them it takes.
ANY = "*"


class Open(Enum):
    """To whom a route is open where there are no keys (`tenants.enabled = false`)."""

    ALL = "all clients"
    MACHINE = "clients on this machine"
    NONE = "none"


class Rule(NamedTuple):
    """What one need comes to: any of these scopes of a tenant's key (none: the operator's key alone), or without keys.

    `refusal` is what a tenant's key hears, `closed` what a client hears without keys.
    """

    scopes: frozenset[str]
    without_keys: Open
    refusal: str = ""
    closed: str = ""


_ANY_KEY = frozenset(SCOPES)
_PUBLISHING = "without keys, publishing is for clients on this machine"


@unique
class Need(Enum):
    """What a request must bring. The operator's key is good for everything."""

    NOTHING = Rule(_ANY_KEY, Open.ALL)
    KEY = Rule(_ANY_KEY, Open.ALL, "this key has no scope")
    USE = Rule(frozenset({"use"}), Open.ALL, "this key has no scope 'use'")
    PUBLISH = Rule(frozenset({"publish"}), Open.MACHINE, "this key has no scope 'publish'", _PUBLISHING)
    VERSIONS = Rule(
        frozenset({"publish", "admin"}), Open.MACHINE, "this key has no scope 'publish' or 'admin'", _PUBLISHING
    )
    ADMIN = Rule(frozenset({"admin"}), Open.MACHINE, "this key has no scope 'admin'", _PUBLISHING)
    METRICS = Rule(
        frozenset(), Open.MACHINE, "metrics are for the operator's key", "metrics are for clients on this machine"
    )
    OPERATOR = Rule(
        frozenset(), Open.NONE, "this is for the operator's key", "there are no tenants here: tenants.enabled is false"
    )

    def check(self, identity: Identity, keyed: bool) -> None:
        """Raises Problem unless this identity has what is needed. `keyed` says whether keys are asked for.

        Without a key: unauthorized; with too little of one, or from another machine: forbidden; not_found for what
        there is not without keys.
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
    """One text for whatever is wrong with a key, and for none.

    Each time another object: one that is raised again and again keeps the frames of every time, and what they hold.
    """
    return Problem(Code.UNAUTHORIZED, "a valid API key is needed, as Authorization: Bearer KEY or as X-API-Key: KEY")


# What a path needs at which there is nothing: with a tenant's key one learns nothing of what there is for the operator.
_AREAS: tuple[tuple[re.Pattern[str], Need], ...] = (
    (re.compile(r"/\.well-known/.*"), Need.NOTHING),
    (re.compile(r"/admin(?:/.*)?"), Need.OPERATOR),
)


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One row: a method, a rule of literal parts and names (`/agents/<name>/prompt`), what it needs, what answers.

    Without a handler the path belongs to another application, which asks `check` itself.
    """

    method: str
    rule: str
    need: Need
    handler: Handler | None = None

    def check(self, exchange: "Exchange") -> None:
        """Raises Problem unless this request may be answered here."""
        self.need.check(exchange.identity, exchange.keyed)

    async def answer(self, exchange: "Exchange", names: Mapping[str, str]) -> Answer:
        """What the handler answers, if the request may have it. Raises Problem."""
        self.check(exchange)
        assert self.handler is not None
        return await self.handler(exchange, **names)


class Found(NamedTuple):
    """What is at a path for a method: a route with the names in the path, or none, and what the request needs.

    `methods` are those that the path takes, sorted, where the method is not one of them; none where nothing is there.
    """

    route: Route | None
    names: Mapping[str, str]
    need: Need
    methods: tuple[str, ...] = ()


# What a request has found whose target was not read, or not yet.
UNREAD = Found(None, {}, Need.KEY)


class _Pattern:
    """The rows of one rule with names in it."""

    __slots__ = ("names", "parts", "rows")

    def __init__(self, parts: list[str]) -> None:
        self.rows: dict[str, Route] = {}
        # (place, text) of the literal parts behind the first, and (place, name) of the others.
        self.parts = tuple((at, part) for at, part in enumerate(parts) if at > 1 and not part.startswith("<"))
        self.names = tuple((at, part[1:-1]) for at, part in enumerate(parts) if part.startswith("<"))

    def matches(self, parts: list[str]) -> bool:
        return all(parts[at] == text for at, text in self.parts)


class Table:
    """Every route of a server. Rules begin with a literal part."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._literal: dict[str, dict[str, Route]] = {}
        # By first part and number of parts: few share both.
        self._patterns: dict[tuple[str, int], list[_Pattern]] = {}
        by_rule: dict[str, dict[str, Route]] = {}
        for route in self.routes:
            rows = by_rule.get(route.rule)
            if rows is None:
                rows = by_rule[route.rule] = self._place(route.rule)
            if route.method in rows:
                raise ValueError(f"{route.method} {route.rule} is there twice")
            rows[route.method] = route

    def _place(self, rule: str) -> dict[str, Route]:
        """A place for the rows of a rule."""
        parts = rule.split("/")
        if "<" not in rule:
            return self._literal.setdefault(rule, {})
        if parts[1].startswith("<"):
            raise ValueError(f"{rule} has a name as its first part")
        pattern = _Pattern(parts)
        self._patterns.setdefault((parts[1], len(parts)), []).append(pattern)
        return pattern.rows

    def find(self, method: str, path: str) -> Found:
        """What is at a path, which is as `server.target` read it. Literal parts go before names; HEAD is GET's row."""
        asked = "GET" if method == "HEAD" else method
        literal = self._literal.get(path)
        if literal is not None and (route := literal.get(asked) or literal.get(ANY)) is not None:
            return Found(route, {}, route.need)
        parts = path.split("/")
        here = [] if literal is None else [literal]
        for pattern in self._patterns.get((parts[1] if len(parts) > 1 else "", len(parts)), ()):
            if pattern.matches(parts):
                if (found := pattern.rows.get(asked)) is not None:
                    return Found(found, {name: parts[at] for at, name in pattern.names}, found.need)
                here.append(pattern.rows)
        return self._missed(path, here)

    def _missed(self, path: str, here: list[dict[str, Route]]) -> Found:
        """What the request has come to where no row is for it: with a key it hears which methods the path takes."""
        if path == "*":  # OPTIONS of the server as a whole (RFC 9110 section 9.3.7)
            every = {route.method for route in self.routes} - {ANY}
            return Found(None, {}, Need.KEY, _allowed(every))
        if not here:
            return Found(None, {}, next((need for area, need in _AREAS if area.fullmatch(path)), Need.KEY))
        needs = {route.need for rows in here for route in rows.values()}
        need = needs.pop() if len(needs) == 1 and needs & {Need.NOTHING, Need.OPERATOR} else Need.KEY
        return Found(None, {}, need, _allowed({method for rows in here for method in rows}))


def _allowed(methods: set[str]) -> tuple[str, ...]:
    more = {"OPTIONS", "HEAD"} if "GET" in methods else {"OPTIONS"}
    return tuple(sorted(methods | more))


def options(methods: Iterable[str]) -> Answer:
    """The answer to OPTIONS of a path that takes these methods."""
    return Answer(204, [(b"allow", ", ".join(sorted(methods)).encode())], b"")


def not_taken(path: str, methods: Iterable[str]) -> Answer:
    """The answer to a method that a path does not take: these it takes."""
    named = ", ".join(sorted(methods))
    answer = problem_answer(
        Problem(Code.METHOD_NOT_ALLOWED, f"{path[:200]} does not take this method; it takes {named}")
    )
    answer.headers.append((b"allow", named.encode()))
    return answer

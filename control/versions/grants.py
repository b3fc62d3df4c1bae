"""The grants that a published version requests, which of them are new, and who may approve them. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from control.records import check_secret_name, hint
from engine.egress.rules import HostRule, is_public, parse_rule
from engine.errors import Code, Problem
from engine.names import valid_name
from knowledge.access import MAX_LABELS, check_labels
from sandbox.wire.limits import SPECS

# More of one kind than anyone would read before approving them.
MAX_OF_A_KIND = 64

# Kinds that list names; beside them there are `limits`, `kv`, which is granted or not, and `sources`.
_NAMED = ("hosts", "secrets", "env", "tools", "labels", "models")
_KINDS = (*_NAMED, "sources", "kv", "limits")
# Kinds that are shown where they are requested only, so that digests made before there were any stay true.
_LATER = ("labels", "models")
# What `sources` lists for all of them.
ALL_SOURCES = "*"
_MAX_ENV_NAME = 128


@dataclass(frozen=True, slots=True)
class Grants:
    """What a version may use, by name: rules of `allow_hosts` in their canonical form, names of secrets, of
    environment variables, of tools and of models, and limits (the unit of each is that of its spec). `kv`: keys of its
    own.

    It may read documents without labels, and those with one of `labels`, of `sources` (None: of all).
    """

    hosts: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    sources: tuple[str, ...] | None = None
    kv: bool = False
    limits: Mapping[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any(getattr(self, kind) for kind in _KINDS)

    def as_json(self) -> dict[str, Any]:
        """Every kind, empty ones too; but the later ones only where they are requested."""
        named = {kind: list(getattr(self, kind)) for kind in _NAMED if kind not in _LATER or getattr(self, kind)}
        sources = {} if self.sources is None else {"sources": list(self.sources)}
        return {**named, **sources, **({"kv": True} if self.kv else {}), "limits": dict(self.limits)}

    def non_empty(self) -> dict[str, Any]:
        """The kinds that are not empty, as approvals show them."""
        return {kind: value for kind, value in self.as_json().items() if value}

    def __str__(self) -> str:
        said = [f"{kind} {', '.join(names)}" for kind in _NAMED if (names := getattr(self, kind))]
        if self.sources is not None:
            said.append(f"sources {', '.join(self.sources) or 'none'}")
        if self.kv:
            said.append("kv")
        if self.limits:
            said.append("limits " + ", ".join(f"{name} = {value:g}" for name, value in self.limits.items()))
        return "; ".join(said) or "nothing"


def parse_grants(given: Any) -> Grants:
    """The grants that a manifest requests. Raises Problem (400), naming the key."""
    if given is None:
        return Grants()
    if not isinstance(given, dict):
        raise _bad("grants must be an object")
    for key in given:
        if key not in _KINDS:
            raise _bad(f"grants has no {str(key)[:64]!r}; {hint(str(key), _KINDS)}")
    return Grants(
        hosts=_names(given, "hosts", _host),
        secrets=_names(given, "secrets", check_secret_name),
        env=_names(given, "env", _variable),
        tools=_names(given, "tools", _tool),
        labels=_names(given, "labels", _label, MAX_LABELS),
        models=_names(given, "models", _model),
        sources=_sources(given),
        kv=_kv(given.get("kv", False)),
        limits=_limits(given.get("limits", {})),
    )


def beyond(asked: Grants, approved: Grants) -> Grants:
    """The part of `asked` that is not in `approved`. A limit is covered up to its approved value."""
    return beyond_of(approved)(asked)


def beyond_of(approved: Grants) -> Callable[[Grants], Grants]:
    """`beyond` for many requests: a thousand versions may have had 64,000 names approved."""
    known = {kind: frozenset(getattr(approved, kind)) for kind in _NAMED}

    def less(asked: Grants) -> Grants:
        names = {
            kind: tuple(name for name in getattr(asked, kind) if name not in there) for kind, there in known.items()
        }
        limits = {name: value for name, value in asked.limits.items() if value > approved.limits.get(name, 0)}
        wider = _wider(asked, approved)
        return Grants(**names, sources=wider or None, kv=asked.kv and not approved.kv, limits=limits)

    return less


def _wider(asked: Grants, approved: Grants) -> tuple[str, ...]:
    """The sources that may not yet be read by a version of this name that can send what it reads to hosts.

    The first approval of hosts is one of all the sources that the version has.
    """
    if not asked.hosts or not approved.hosts or approved.sources is None:
        return ()
    if asked.sources is None:
        return (ALL_SOURCES,)
    return tuple(name for name in asked.sources if name not in approved.sources)


def joined(several: Iterable[Grants]) -> Grants:
    """The union of several; for a limit, the largest value. Sources are those of versions with hosts alone."""
    all_of_them = list(several)
    limits: dict[str, float] = {}
    for each in all_of_them:
        for name, value in each.limits.items():
            limits[name] = max(value, limits.get(name, value))
    names = {
        kind: tuple(dict.fromkeys(name for each in all_of_them for name in getattr(each, kind))) for kind in _NAMED
    }
    sending = [each.sources for each in all_of_them if each.hosts]
    found = tuple(dict.fromkeys(name for named in sending for name in named or ()))
    sources = None if None in sending else found
    return Grants(**names, sources=sources, kv=any(each.kv for each in all_of_them), limits=limits)


def meaning(grants: Grants) -> str | None:
    """What it means to approve these grants, where hosts and all sources together may be overlooked; else None."""
    if not grants.hosts or grants.sources is not None:
        return None
    labels = f" or with the labels {', '.join(grants.labels)}" if grants.labels else ""
    return (
        f"It may read every document without labels{labels}, from all sources, that its caller may read, and send what "
        f"it has read to {', '.join(grants.hosts)}. grants.sources narrows that."
    )


def for_the_operator(grants: Grants) -> Grants:
    """The part that a tenant may not grant itself (docs/publishing.md): private addresses, `*`, the environment.

    They reach into the operator's own network and process. Everything else belongs to the tenant, or is public.
    """
    return Grants(hosts=tuple(text for text in grants.hosts if _reaches_inside(parse_rule(text))), env=grants.env)


def require_power(asks: Grants, *, operator: bool) -> None:
    """Raises Problem `forbidden` for grants that a tenant may not give itself."""
    beyond = for_the_operator(asks)
    if beyond and not operator:
        raise Problem(
            Code.FORBIDDEN,
            f"only the operator may grant private addresses, '*' and env; this version asks for {beyond}; the operator "
            "has to approve it",
        )


def _reaches_inside(rule: HostRule) -> bool:
    return rule.kind == "any" or (rule.address is not None and not is_public(rule.address))


def _bad(message: str) -> Problem:
    return Problem(Code.BAD_REQUEST, message)


def _names(
    given: Mapping[str, Any], kind: str, check: Callable[[str], str], most: int = MAX_OF_A_KIND
) -> tuple[str, ...]:
    names = given.get(kind, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _bad(f"grants.{kind} must be a list of texts")
    if len(names) > most:
        raise _bad(f"grants.{kind} lists {len(names)} things; the most is {most}")
    return tuple(sorted({check(name) for name in names}))


def _host(text: str) -> str:
    """The rule in its canonical spelling, so that another spelling is not taken for a new grant."""
    try:
        rule = parse_rule(text)
    except ValueError as error:
        raise _bad(f"grants.hosts: {error}, got {text[:80]!r}") from None
    port = "" if rule.port is None else f":{rule.port}"
    if rule.address is not None:
        return (f"[{rule.address}]" if rule.address.version == 6 else str(rule.address)) + port
    return {"any": "*", "below": f"*{rule.host}"}.get(rule.kind, rule.host) + port


def _variable(name: str) -> str:
    if not 1 <= len(name) <= _MAX_ENV_NAME or not name.isascii() or not name.isprintable() or "=" in name:
        raise _bad(f"grants.env: {name[:80]!r} cannot name an environment variable")
    return name


def _tool(name: str) -> str:
    if not valid_name(name):
        raise _bad(f"grants.tools: {name[:80]!r} cannot name a tool; names are 1 to 64 letters, digits, '_', '.', '-'")
    return name


def _model(name: str) -> str:
    if not valid_name(name):
        raise _bad(
            f"grants.models: {name[:80]!r} cannot name a model; names are 1 to 64 letters, digits, '_', '.', '-'"
        )
    return name


def _label(name: str) -> str:
    try:
        (label,) = check_labels((name,))
    except ValueError as error:
        raise _bad(f"grants.labels: {error}") from None
    return label


def _sources(given: Mapping[str, Any]) -> tuple[str, ...] | None:
    if given.get("sources") is None:
        return None
    names = _names(given, "sources", _source)
    return None if ALL_SOURCES in names else names


def _source(name: str) -> str:
    kind, colon, own = name.partition(":")
    if name != ALL_SOURCES and not (valid_name(kind) and (valid_name(own) or not colon)):
        raise _bad(f"grants.sources: {name[:80]!r} cannot name a source; write TYPE:NAME, a name or a type")
    return name


def _kv(given: Any) -> bool:
    if not isinstance(given, bool):
        raise _bad("grants.kv must be true or false")
    return given


def _limits(given: Any) -> dict[str, float]:
    if not isinstance(given, dict):
        raise _bad("grants.limits must be an object of numbers")
    found: dict[str, float] = {}
    for name in given:
        if name not in SPECS:
            raise _bad(f"grants.limits has no {name[:64]!r}; {hint(name, SPECS)}")
    for name, value in sorted(given.items()):
        spec = SPECS[name]
        number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 2**63
        if not number or (spec.integral and value != int(value)):
            raise _bad(f"grants.limits.{name} must be {'a whole number' if spec.integral else 'a number'} above 0")
        found[name] = spec.kind(value)
    return found

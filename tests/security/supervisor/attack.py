"""What an attack is: requests to make ready, requests to measure, and how many bytes a stranger put into them."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sandbox.wire.limits import MIB

# What a server permits without being told: `server.max_body_bytes`, and the ceilings that a tenant's admin may approve.
BODY = 4 * MIB
ANSWER, LOG = 16 * MIB, 1 * MIB
LARGEST = {
    "timeout_s": 25,
    "output_bytes": ANSWER,
    "log_bytes": LOG,
    "memory_bytes": 512 * MIB,
    "cpu_s": 60,
    "host_calls": 10_000,
}


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of the attacker, with a key of all scopes; `operator`: one of the operator's on their behalf.

    In paths, `tenant=hostile` stands for the attacker's tenant.
    """

    method: str
    path: str
    body: bytes = b"{}"
    headers: tuple[tuple[str, str], ...] = ()
    operator: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """`before` in order, then `asks` all at once, which are measured. `size`: bytes of the input that is the attack."""

    asks: tuple[Ask, ...]
    size: int
    before: tuple[Ask, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where an attack happens: a number that no attack had before, and a port whose server never answers."""

    number: int
    silent_port: int

    @property
    def name(self) -> str:
        """A name that nothing was published under yet."""
        return f"a{self.number}"


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack. `work` names the rows of `engine.work.WORK` that it drives.

    `may_violate`: a worker with machine code sends it, so the sandbox may end the run.
    """

    name: str
    work: tuple[str, ...]
    plan: Callable[[Place], Plan]
    may_violate: bool = False


def text(value: Any) -> bytes:
    """A value as a body."""
    return json.dumps(value, separators=(",", ":")).encode()


def filled(before: bytes, unit: bytes, after: bytes, size: int = BODY, separator: bytes = b",") -> bytes:
    """As many units as fit between two texts, within the size."""
    count = (size - len(before) - len(after) + len(separator)) // (len(unit) + len(separator))
    return before + separator.join([unit] * count) + after


def post(path: str, body: bytes) -> Ask:
    return Ask("POST", path, body)


def message(method: str, params: bytes, number: bytes = b"1") -> Ask:
    """A message of MCP's handshake era; the params are JSON text."""
    body = b'{"jsonrpc":"2.0","id":%s,"method":"%s","params":%s}' % (number, method.encode(), params)
    headers = (("accept", "application/json, text/event-stream"), ("mcp-protocol-version", "2025-11-25"))
    return Ask("POST", "/mcp", body, headers)


def upload(
    name: str, source: str, root: str = "agents", grants: Mapping[str, Any] | None = None, **manifest: Any
) -> tuple[Ask, ...]:
    """A version of a Lua script, and the approval of what it asks for."""
    body = {"version": "1", "kind": "lua", "main": "m.lua", "files": {"m.lua": source}, **manifest}
    put = Ask("PUT", f"/{root}/{name}", text({**body, "grants": grants} if grants else body))
    if not grants:
        return (put,)
    approve = Ask("POST", f"/{root}/{name}/versions/1/approve?tenant=hostile", b"", operator=True)
    return put, approve


def declares(name: str, work: Iterable[str], source: str, size: int, root: str = "agents") -> Attack:
    """An upload whose script says `source` of itself when it is described; `size` bytes of it reach the supervisor."""
    return Attack(name, tuple(work), lambda place: Plan(upload(place.name, source, root), size))


def answers(name: str, work: Iterable[str], body: str, size: int, **how: Any) -> Attack:
    """A call of an agent whose `resolve` is this Lua; `size` bytes of what it sends reach the supervisor.

    `given` is the body of the call, `head` Lua before the agent, `limits` and `grants` what is approved for it.
    """
    source = f"{how.pop('head', '')}agent = agent or {{}}\nfunction agent.resolve(args, config, context)\n{body}\nend"
    may_violate, given_body = how.pop("may_violate", False), how.pop("given", b"{}")
    grants = {"limits": how.pop("limits", LARGEST), **how.pop("grants", {})}

    def plan(place: Place) -> Plan:
        given = {key: [each.format(port=place.silent_port) for each in value] if key == "hosts" else value
                 for key, value in grants.items()}  # fmt: skip
        said = source.replace("SILENT_PORT", str(place.silent_port))
        return Plan((post(f"/agents/{place.name}/prompt", given_body),), size, upload(place.name, said, grants=given))

    return Attack(name, tuple(work), plan, may_violate)

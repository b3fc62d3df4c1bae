"""Personas: agents of a tenant as members of a team take them, with their content at that moment.

What is kept is the text: a script, a system text. What the operator grants and configures (hosts, secrets, limits, the
script's own keys) is not: it holds as it is now, so that a grant that is withdrawn is withdrawn from every team.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from agents.persona import Capturable, Captured
from agents.registry import Registry
from agents.teams import wording
from agents.teams.rules import RUNNERS
from engine.errors import Code, Problem
from engine.tenant import Tenant
from storage.teams.events import Runner
from storage.teams.rows import Agent, Rows


@dataclass(frozen=True, slots=True)
class Persona:
    """What runs an agent's turns: the runner, and the content, which `kind` tells how to read. Empty without one."""

    runner: Runner
    kind: str = ""
    body: bytes = b""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Personas:
    """The personas of all tenants. `has_model` says whether a tenant has a model for agents without a persona."""

    registry: Registry
    has_model: Callable[[str], bool]

    def captured(self, tenant: Tenant, name: str | None, runner: str | None, parent: Agent | None) -> Persona:
        """The persona for a new agent. Raises Problem, which names the parameter."""
        if runner is not None and runner not in RUNNERS:
            raise Problem(Code.BAD_REQUEST, f"runner: expected one of {', '.join(RUNNERS)}, got {runner[:64]!r}")
        if name is None:
            return Persona(self._without(tenant, runner, parent))
        agent = self.registry.agent(tenant.id, name, tenant.key)
        if agent is None:
            raise Problem(Code.BAD_REQUEST, f"persona: there is no agent {name[:64]!r}")
        if not isinstance(agent, Capturable):
            raise Problem(Code.BAD_REQUEST, f"persona: an agent of kind {agent.info.source} cannot run turns")
        found = agent.captured()
        if runner is not None and runner != found.runner and (runner == "lua" or found.runner == "lua"):
            raise Problem(Code.BAD_REQUEST, f"runner: the persona {name!r} runs as {found.runner}, not as {runner}")
        body = msgspec.msgpack.encode(found)
        kind = agent.info.source
        digest = hashlib.sha256(kind.encode() + b"\0" + body).hexdigest()
        return Persona(_runner(runner) or found.runner, kind, body, digest)

    def _without(self, tenant: Tenant, runner: str | None, parent: Agent | None) -> Runner:
        if runner == "lua":
            raise Problem(Code.BAD_REQUEST, "runner: lua needs a persona, an agent with agent.on_messages")
        if (given := _runner(runner)) is not None:
            return given
        if parent is not None and parent.runner != "lua":
            return parent.runner
        return "model" if self.has_model(tenant.id) else "client"

    def system_of(self, rows: Rows, agent: Agent, instructions: str) -> str:
        """The system text of an agent's turns."""
        texts = [instructions] if instructions else []
        if agent.definition and (system := captured_of(rows, agent).system):
            texts.insert(0, system)
        return wording.system("\n\n".join(texts))


def captured_of(rows: Rows, agent: Agent) -> Captured:
    """The content of an agent's persona, as it was when the agent was created."""
    _, body = rows.definition(agent.definition)
    return msgspec.msgpack.decode(body, type=Captured)


def _runner(name: str | None) -> Runner | None:
    return next((each for each in RUNNERS if each == name), None)


def narrowed(parent: Sequence[str] | None, wanted: Sequence[str] | None) -> tuple[str, ...] | None:
    """The tools of a child: those of its parent, or some of them. None: no bound. Raises Problem."""
    if wanted is None:
        return None if parent is None else tuple(parent)
    if parent is not None and (beyond := next((each for each in wanted if each not in parent), None)) is not None:
        raise Problem(Code.BAD_REQUEST, f"tools: {beyond[:64]!r} is none of the parent's tools")
    return tuple(dict.fromkeys(wanted))

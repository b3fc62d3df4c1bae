"""Documents for tests of running: programs by hand, in a real service with scripted models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agents.agent import AgentInfo, Call
from agents.chatmd.program import Declared, Part, Program, Said, Unavailable, Words
from agents.service import Service
from agents.tools.chatmd import ChatmdTool
from engine.config import ChatmdEntry
from engine.run import Hearers
from engine.tenant import DEFAULT_TENANT


def entry(**keys: Any) -> ChatmdEntry:
    """An entry of the configuration with these keys."""
    return ChatmdEntry(path=Path("helper.chatmd"), **keys)


@dataclass(frozen=True)
class Document:
    info: AgentInfo
    program: Program
    parameters: Mapping[str, Any] | None = None


def program(
    *items: Said,
    tools: Sequence[Declared] = (),
    documents: Mapping[str, Program] | None = None,
    unavailable: Sequence[Unavailable] = (),
    model: str | None = None,
) -> Program:
    return Program(
        model, None, None, items, tuple(tools), tuple(unavailable), documents or {}, "Helps.", "", "", "", ()
    )  # fmt: skip


def said(role: Literal["system", "user", "assistant"], *parts: str | Part) -> Said:
    return Said(role, tuple(Words(part) if isinstance(part, str) else part for part in parts), role == "system")


def tool(service: Service, document: Program, of: ChatmdEntry | None = None, name: str = "helper") -> ChatmdTool:
    """The document as a tool of the service, in its registry."""
    info = AgentInfo(name=name, description=document.description, tools=(), source="chatmd", expose=("tool",))
    found = service.registry.tool
    made = ChatmdTool.from_agent(
        Document(info, document, of.parameters if of else None), of or entry(),
        service.engine, service.means, service.registry,
        tenants=(DEFAULT_TENANT.id,),
        known=lambda named: None if (each := found(DEFAULT_TENANT.id, named)) is None else each.tool.info,
    )  # fmt: skip
    service.registry.add_tool(made, (DEFAULT_TENANT.id,))
    return made


def heard() -> tuple[Call, list[tuple[float, str | None]]]:
    """A call whose progress is kept."""
    reports: list[tuple[float, str | None]] = []
    return Call(DEFAULT_TENANT, Hearers(progress=lambda value, text: reports.append((value, text)))), reports

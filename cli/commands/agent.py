"""`engine agent`: list, test, develop and create agents."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from agents.agent import AgentPrompt, Call
from agents.kinds.chatmd import ChatmdAgent
from agents.service import Service
from cli.control import tenant_of
from cli.options import AsJson, ConfigPath, TenantName, load, pairs, shown
from cli.output import DESCRIPTION_WIDTH, indented, say, say_json, shortened, table
from cli.scripts import documents, publish, versions
from cli.scripts.mocks import MockFile
from cli.scripts.run import Answered, Kind, call_once, script_path, service_for
from engine.config import ChatmdEntry, LoadedConfig
from engine.tenant import Tenant

app = App(name="agent", help="List, test, develop and create agents.")

Args = Annotated[list[str] | None, Parameter(help="An argument, as NAME=VALUE. Repeatable.", negative=())]

NameOrPath = Annotated[str, Parameter(help="An agent's name, or a document's path: it ends in .chatmd.")]
Starts = Literal["lua", "chatmd"]
KindOption = Parameter(help="lua: a script. chatmd: a document, prompts/NAME.chatmd.", negative=())


class _Agents(Kind):
    word = "agent"
    section = "agents"
    done = "Resolved"

    def names(self, service: Service, who: Tenant) -> list[str]:
        return [info.name for info in service.list_agents(who)]

    def source(self, service: Service, name: str, who: Tenant) -> str:
        source = next(info.source for info in service.list_agents(who) if info.name == name)
        path = script_path(service.loaded, self.section, name)
        agent = service.registry.agent(who.id, name, who.key)
        if path is None and isinstance(agent, ChatmdAgent):  # of a folder
            path = shown(agent.entry.path, service.loaded.root)
        return f"{source} ({path})" if path else source

    async def ask(self, service: Service, name: str, given: Mapping[str, str], call: Call) -> Answered:
        resolved = await service.resolve(name, given, call)
        return Answered(resolved.prompt.model_dump(mode="json"), _lines(resolved.prompt), resolved.run)


AGENTS = _Agents()


def _lines(prompt: AgentPrompt) -> list[str]:
    """A prompt as text: the system text in full, and the first line of every message."""
    lines = [
        f"Tools: {', '.join(prompt.tools) or 'none'}",
        "",
        f"System prompt ({len(prompt.system):,} chars):",
        indented(prompt.system),
        "",
        f"Messages ({len(prompt.messages)}):",
    ]
    for message in prompt.messages:
        first, more, _ = message.content.strip().partition("\n")
        lines.append(f"  [{message.role}] {first}" + (" ..." if more else ""))
    return lines


def _named(agent: str, loaded: LoadedConfig) -> tuple[str, LoadedConfig]:
    """An agent's name, and the configuration that has it: for a document's path, one with no other agent."""
    if not documents.is_document(agent):
        return agent, loaded
    path = Path(agent).absolute()
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", path.name)[-64:]  # for messages only
    entry = ChatmdEntry(path=path, expose=("prompt",))
    return name, replace(loaded, config=documents.only_document(loaded.config, name, entry))


@app.command(name="list")
async def list_agents(*, config: ConfigPath = None, as_json: AsJson = False, tenant: TenantName = "default") -> None:
    """List the agents, with their tools."""
    async with service_for(config) as (loaded, service):
        who = await tenant_of(tenant, loaded)
        async with service.published(who):
            agents = service.list_agents(who)
    if as_json:
        say_json({"agents": [agent.model_dump(mode="json") for agent in agents]})
    elif not agents:
        say("No agents.")
    else:
        table(
            (
                agent.name,
                shortened(agent.description, DESCRIPTION_WIDTH),
                f"(tools: {', '.join(agent.tools) or 'none'})",
                "" if agent.source == "toml" else f"[{agent.source}]",
            )
            for agent in agents
        )


@app.command(name="test")
async def resolve(
    agent: NameOrPath,
    /,
    *,
    arg: Args = None,
    mock: MockFile = None,
    config: ConfigPath = None,
    as_json: AsJson = False,
    tenant: TenantName = "default",
) -> int:
    """Resolve an agent's prompt and show it with its cost."""
    given = pairs(arg or [], "--arg")
    name, loaded = _named(agent, load(config))
    return await call_once(AGENTS, name, given, loaded, await tenant_of(tenant, loaded), as_json=as_json, mock=mock)


@app.command(name="dev")
async def develop(
    agent: NameOrPath,
    /,
    *,
    arg: Args = None,
    mock: MockFile = None,
    config: ConfigPath = None,
    tenant: TenantName = "default",
) -> int:
    """Resolve an agent's prompt again on every save of its script, until Ctrl-C."""
    from cli.scripts.dev import dev  # with a watcher of files, which no other command needs

    given = pairs(arg or [], "--arg")
    name, loaded = _named(agent, load(config))
    return await dev(AGENTS, name, given, loaded, await tenant_of(tenant, loaded), mock=mock)


@app.command
def init(name: str, /, *, kind: Annotated[Starts, KindOption] = "lua", config: ConfigPath = None) -> None:
    """Write agents/NAME.lua, a working script to start from, and its tests."""
    from cli.scripts.scaffold import begin, begin_document

    if kind == "chatmd":
        begin_document(AGENTS, name, load(config))
    else:
        begin(AGENTS, name, load(config))


publish.add_to(app, "agent")
versions.add_to(app, "agent")

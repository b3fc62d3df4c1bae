"""`engine agent`: list, test and begin agents."""

import time
from typing import Annotated, Any

from cyclopts import App, Parameter

from cli.options import AsJson, ConfigPath, TenantName, load, pairs, shown, tenant_of
from cli.output import OK, UNUSABLE, Exit, indented, say, say_json, shortened, table

app = App(name="agent", help="List, test and begin agents.")

# Longer descriptions are cut, so that the columns stay on one line of a terminal.
_DESCRIPTION_WIDTH = 80

TEMPLATE = """\
-- {name}: an agent. `engine agent test {name} --arg topic=deployment` shows what it answers.

agent = {{}}

agent.name = "{name}"
agent.description = "Answers questions about a topic from the knowledge base"

-- The tools that a client may use while this agent is active.
agent.tools = {{ "search", "get" }}

-- What a caller may say. A required argument is checked before this script runs.
agent.arguments = {{
    {{ name = "topic", description = "What to look up beforehand", required = false }},
}}

-- Makes the prompt of one conversation.
--   args     the caller's arguments, by name
--   config   the extra keys of this agent's table in the configuration
--   context  search, get, sources: the knowledge base
function agent.resolve(args, config, context)
    local messages = {{}}

    if args.topic then
        local found = context.search(args.topic, {{ limit = config.search_limit or 3 }})
        local parts = {{}}
        for _, hit in ipairs(found) do
            local document = context.get(hit.id)
            parts[#parts + 1] = "## " .. (document.title or "Untitled") .. "\\n" .. document.body
        end
        messages[1] = {{
            role = "assistant",
            content = string.format("I have read %d documents about %s.\\n\\n%s",
                #found, args.topic, table.concat(parts, "\\n\\n")),
        }}
    end

    return {{
        system = "You answer questions from this project's documents. Search before you answer; cite what you used.",
        messages = messages,
    }}
end

return agent
"""


@app.command(name="list")
async def list_agents(*, config: ConfigPath = None, as_json: AsJson = False, tenant: TenantName = "default") -> None:
    """List the agents, with their tools."""
    from cli.run import service_for

    who = tenant_of(tenant)
    async with service_for(config) as (_, service):
        agents = service.list_agents(who)
    if as_json:
        say_json({"agents": [agent.model_dump(mode="json") for agent in agents]})
    elif not agents:
        say("No agents.")
    else:
        table(
            (
                agent.name,
                shortened(agent.description, _DESCRIPTION_WIDTH),
                f"(tools: {', '.join(agent.tools) or 'none'})",
                "" if agent.source == "toml" else f"[{agent.source}]",
            )
            for agent in agents
        )


@app.command(name="test")
async def resolve(
    name: str,
    /,
    *,
    arg: Annotated[list[str] | None, Parameter(help="An argument, as NAME=VALUE. Repeatable.", negative=())] = None,
    config: ConfigPath = None,
    as_json: AsJson = False,
    tenant: TenantName = "default",
) -> int:
    """Resolve an agent's prompt and show it, with what it cost."""
    from agents.agent import Call
    from cli.run import run_fields, script_path, service_for, show_failure, show_logs, show_run, unknown
    from engine.errors import Problem

    who = tenant_of(tenant)
    arguments: dict[str, Any] = dict(pairs(arg or [], "--arg"))
    async with service_for(config) as (loaded, service):
        infos = {info.name: info for info in service.list_agents(who)}
        failed = [failure for failure in service.failures if failure.name == name and failure.kind.startswith("agent")]
        if name not in infos and failed:
            raise Exit(UNUSABLE, f"agent {name!r} did not load: {failed[0].message}")
        if name not in infos:
            raise unknown("agent", name, list(infos))
        started = time.monotonic()
        try:
            resolved = await service.resolve(name, arguments, Call(who))
        except Problem as problem:
            return show_failure(problem, as_json=as_json)
        wall_s = time.monotonic() - started
    show_logs(resolved.run)
    prompt = resolved.prompt
    if as_json:
        say_json({**prompt.model_dump(mode="json"), **run_fields(resolved.run, wall_s)})
        return OK
    path = script_path(loaded, "agents", name)
    say(f"Agent: {name}")
    say(f"Source: {infos[name].source}" + (f" ({path})" if path else ""))
    say(f"Tools: {', '.join(prompt.tools) or 'none'}")
    say()
    say(f"System prompt ({len(prompt.system):,} chars):")
    say(indented(prompt.system))
    say()
    say(f"Messages ({len(prompt.messages)}):")
    for message in prompt.messages:
        first, more, _ = message.content.strip().partition("\n")
        say(f"  [{message.role}] {first}" + (" ..." if more else ""))
    say()
    show_run("Resolved", resolved.run, wall_s)
    return OK


@app.command
def init(name: str, /, *, config: ConfigPath = None) -> None:
    """Write agents/NAME.lua, a working script to start from."""
    from engine.config import AGENT_KINDS, valid_name

    if not valid_name(name):
        raise Exit(UNUSABLE, f"{name!r} is not a name: 1 to 64 letters, digits, '_', '.' or '-'")
    if name in AGENT_KINDS:
        raise Exit(UNUSABLE, f"{name!r} is a reserved name")
    loaded = load(config)
    path = loaded.root / "agents" / f"{name}.lua"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(TEMPLATE.format(name=name))
    except FileExistsError:
        raise Exit(UNUSABLE, f"{shown(path)} exists and is left as it is") from None
    key = f'"{name}"' if "." in name else name
    say(f"Created: {shown(path)}")
    say("Add to config:")
    say()
    say(f'  [agents.script.{key}]\n  path = "agents/{name}.lua"\n  timeout = 30')

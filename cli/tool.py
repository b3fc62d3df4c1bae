"""`engine tool`: list and test tools."""

import json
import time
from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import App, Parameter

from cli.options import AsJson, ConfigPath, TenantName, pairs, tenant_of
from cli.output import FAILED, OK, UNUSABLE, Exit, say, say_json, shortened, table

app = App(name="tool", help="List and test tools.")

_DESCRIPTION_WIDTH = 80


def parse_params(given: Mapping[str, str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `--param` by their declared types: text stays text, the rest is JSON.

    A parameter without a declared type is JSON where it reads as JSON, else text. Raises Exit for a value that is not
    JSON where JSON is declared.
    """
    declared = schema.get("properties", {})
    values: dict[str, Any] = {}
    for name, text in given.items():
        kind = declared.get(name, {}).get("type")
        kinds = [kind] if isinstance(kind, str) else list(kind or ())
        if "string" in kinds:
            values[name] = text
            continue
        try:
            values[name] = json.loads(text)
        except ValueError:
            if kinds:
                expected = " or ".join(kinds)
                raise Exit(FAILED, f"--param {name}: expected {expected} as JSON, got {text!r}") from None
            values[name] = text
    return values


@app.command(name="list")
async def list_tools(*, config: ConfigPath = None, as_json: AsJson = False, tenant: TenantName = "default") -> None:
    """List the tools."""
    from cli.run import service_for

    who = tenant_of(tenant)
    async with service_for(config) as (loaded, service):
        tools = service.list_tools(who)
    if as_json:
        fields = {"name", "description", "builtin", "parameters"}
        say_json({"tools": [tool.model_dump(mode="json", include=fields) for tool in tools]})
        return
    kinds = {name: {"script": "lua"}.get(kind, kind) for kind, name, _ in reversed(loaded.config.tools.in_order())}
    table(
        (
            (
                tool.name,
                "built-in" if tool.builtin else kinds.get(tool.name, ""),
                shortened(tool.description, _DESCRIPTION_WIDTH),
            )
            for tool in tools
        ),
        heading=("TOOL", "TYPE", "DESCRIPTION"),
        indent="",
    )


@app.command(name="test")
async def call(
    name: str,
    /,
    *,
    param: Annotated[
        list[str] | None, Parameter(help="A parameter, as NAME=VALUE: text, or JSON. Repeatable.", negative=())
    ] = None,
    config: ConfigPath = None,
    as_json: AsJson = False,
    tenant: TenantName = "default",
) -> int:
    """Call a tool and show its answer, with what it cost."""
    from agents.agent import Call
    from cli.run import run_fields, script_path, service_for, show_failure, show_logs, show_run, show_value, unknown
    from engine.errors import Problem

    who = tenant_of(tenant)
    given = pairs(param or [], "--param")
    async with service_for(config) as (loaded, service):
        infos = {info.name: info for info in service.list_tools(who)}
        failed = [failure for failure in service.failures if failure.name == name and failure.kind.startswith("tool")]
        if name not in infos and failed:
            raise Exit(UNUSABLE, f"tool {name!r} did not load: {failed[0].message}")
        if name not in infos:
            raise unknown("tool", name, list(infos))
        params = parse_params(given, infos[name].parameters)
        started = time.monotonic()
        try:
            called = await service.call_tool(name, params, Call(who))
        except Problem as problem:
            return show_failure(problem, as_json=as_json)
        wall_s = time.monotonic() - started
    show_logs(called.run)
    if as_json:
        say_json({"result": called.value, **run_fields(called.run, wall_s)})
        return OK
    path = script_path(loaded, "tools", name)
    say(f"Tool: {name}")
    say("Source: " + (f"lua ({path})" if path and path.endswith(".lua") else path or "built-in"))
    say()
    say("Result:")
    show_value(called.value)
    say()
    show_run("Called", called.run, wall_s)
    return OK

"""`engine tool`: list, test, develop and create tools."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from agents.agent import Call
from agents.service import Service
from agents.tool import ToolInfo
from cli.control import tenant_of
from cli.options import AsJson, ConfigPath, TenantName, load, pairs, shown
from cli.output import DESCRIPTION_WIDTH, FAILED, UNUSABLE, Exit, indented, say_json, shortened, table
from cli.scripts import documents, publish, versions
from cli.scripts.mocks import MockFile
from cli.scripts.run import Answered, Kind, call_once, only, script_path, service_for, unknown
from engine.config import ChatmdEntry, LoadedConfig, ScriptEntry
from engine.tenant import Tenant

app = App(name="tool", help="List, test, develop and create tools.")

Params = Annotated[
    list[str] | None, Parameter(help="A parameter, as NAME=VALUE: text, or JSON. Repeatable.", negative=())
]
Source = Annotated[
    str | None,
    Parameter(help="With a path: the configured tool whose grants and configuration the script gets.", negative=()),
]
NameOrPath = Annotated[
    str, Parameter(help="A tool's name, or the path of a script or document: it has a / or ends in .lua or .chatmd.")
]
ModelName = Annotated[
    str | None, Parameter(name="--model", help="For a document: run it with this model of [models].", negative=())
]
DryRun = Annotated[
    bool, Parameter(help="For a document: show the first request that its model would get, and send none.", negative=())
]


class _Tools(Kind):
    word = "tool"
    section = "tools"
    done = "Called"

    def __init__(self, model: str | None = None, dry: bool = False) -> None:
        self.model, self.dry = model, dry

    def names(self, service: Service, who: Tenant) -> list[str]:
        return [info.name for info in service.list_tools(who)]

    def source(self, service: Service, name: str, who: Tenant) -> str:
        found = documents.document_tool(service, name, who)
        if found is not None:
            file = documents.path_of(found[1])
            return "chatmd" if file is None else f"chatmd ({shown(file, service.loaded.root)})"
        info = _info(service, name, who)
        source = _type(service, who, info) if info else ""
        path = script_path(service.loaded, self.section, name)
        return f"{source} ({path})" if path else source

    async def ask(self, service: Service, name: str, given: Mapping[str, str], call: Call) -> Answered:
        info = _info(service, name, call.tenant)
        params = parse_params(given, info.parameters if info else {})
        found = documents.document_tool(service, name, call.tenant)
        if found is not None:
            return await (documents.dry_run if self.dry else documents.run)(*found, params, call, self.model)
        if self.dry or self.model is not None:
            raise Exit(UNUSABLE, f"--model and --dry-run are for documents; {name!r} is none")
        called = await service.call_tool(name, params, call)
        text = json.dumps(called.value, ensure_ascii=False, indent=2)
        return Answered({"result": called.value}, ["", "Result:", indented(text)], called.run)


TOOLS = _Tools()


def _info(service: Service, name: str, who: Tenant) -> ToolInfo | None:
    return next((info for info in service.list_tools(who) if info.name == name), None)


def _type(service: Service, who: Tenant, info: ToolInfo) -> str:
    if info.builtin:
        return "built-in"
    if documents.document_tool(service, info.name, who) is not None:
        return "chatmd"
    if info.name not in service.registry.configured(who.id)[1]:
        return "lua"  # a published tool, which is always Lua
    # The first of two with one name. A tool that is not in the configuration is from an installed package: Python.
    kind = next((kind for kind, name, _ in service.loaded.config.tools.in_order() if name == info.name), "python")
    return "lua" if kind == "script" else kind


def parse_params(given: Mapping[str, str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `--param` by their declared types: text stays text, all others are parsed as JSON.

    A value without a declared type is parsed as JSON if it is valid JSON, else it is text. Raises Exit for a value that
    is not valid JSON although its type needs JSON.
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


def _named(tool: str, source: str | None, loaded: LoadedConfig) -> tuple[str, LoadedConfig]:
    """A tool's name, and the configuration that has it: for a path, one with only this script.

    The script has the grants and the configuration of the tool `source`, or none.
    """
    if "/" not in tool and not tool.endswith(".lua") and not documents.is_document(tool):
        if source is not None:
            raise Exit(UNUSABLE, "--source is for the path of a script; a configured tool has an entry of its own")
        return tool, loaded
    path = Path(tool).absolute()
    # A name for messages only. As it keeps the file's extension, it cannot be that of a builtin tool.
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", path.name)[-64:]
    if documents.is_document(tool):
        if source is not None:
            raise Exit(UNUSABLE, "--source is for the path of a script")
        document = ChatmdEntry(path=path, expose=("tool",))
        return name, replace(loaded, config=documents.only_document(loaded.config, name, document))
    entry = ScriptEntry(path=path)
    if source is not None:
        configured = loaded.config.tools.script
        if source not in configured:
            raise unknown("tool", source, list(configured))
        entry = configured[source].model_copy(update={"path": path})
    return name, replace(loaded, config=only(loaded.config, TOOLS, name, entry))


@app.command(name="list")
async def list_tools(*, config: ConfigPath = None, as_json: AsJson = False, tenant: TenantName = "default") -> None:
    """List the tools."""
    async with service_for(config) as (loaded, service):
        who = await tenant_of(tenant, loaded)
        async with service.published(who):
            tools = service.list_tools(who)
            types = [_type(service, who, tool) for tool in tools]
    if as_json:
        say_json({"tools": [tool.model_dump(mode="json") for tool in tools]})
        return
    table(
        (
            (tool.name, kind, shortened(tool.description, DESCRIPTION_WIDTH))
            for tool, kind in zip(tools, types, strict=True)
        ),
        heading=("TOOL", "TYPE", "DESCRIPTION"),
        indent="",
    )


@app.command(name="test")
async def call(
    tool: NameOrPath,
    /,
    *,
    param: Params = None,
    source: Source = None,
    model: ModelName = None,
    dry_run: DryRun = False,
    mock: MockFile = None,
    config: ConfigPath = None,
    as_json: AsJson = False,
    tenant: TenantName = "default",
) -> int:
    """Call a tool and show its answer and its cost."""
    given = pairs(param or [], "--param")
    name, loaded = _named(tool, source, load(config))
    tools = _Tools(model, dry_run)
    return await call_once(tools, name, given, loaded, await tenant_of(tenant, loaded), as_json=as_json, mock=mock)


@app.command(name="dev")
async def develop(
    tool: NameOrPath,
    /,
    *,
    param: Params = None,
    source: Source = None,
    model: ModelName = None,
    mock: MockFile = None,
    config: ConfigPath = None,
    tenant: TenantName = "default",
) -> int:
    """Call a tool again on every save of its script or document, until Ctrl-C."""
    from cli.scripts.dev import dev  # with a watcher of files, which no other command needs

    given = pairs(param or [], "--param")
    name, loaded = _named(tool, source, load(config))
    return await dev(_Tools(model), name, given, loaded, await tenant_of(tenant, loaded), mock=mock)


@app.command
def init(name: str, /, *, config: ConfigPath = None) -> None:
    """Write tools/NAME.lua, a working script to start from, and its tests."""
    from cli.scripts.scaffold import begin

    begin(TOOLS, name, load(config))


publish.add_to(app, "tool")
versions.add_to(app, "tool")

"""Documents in `engine tool test` and `dev`: their entry, their first request, and what their runs cost."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from agents.agent import Call
from agents.chatmd.run import AskModel, Failed
from agents.loading.folder import SUFFIX, documents_of
from agents.registry import OfferedTool
from agents.service import Service
from agents.tools.chatmd import ChatmdTool
from cli.output import UNUSABLE, Exit, indented
from cli.scripts.run import Answered
from engine.config import Agents, ChatmdEntry, Config, LoadedConfig
from engine.config.entries import ChatmdAgents
from engine.errors import Problem
from engine.tenant import Tenant


def is_document(path: str) -> bool:
    """Whether a path on the command line is that of a document."""
    return path.endswith(SUFFIX)


def only_document(config: Config, name: str, entry: ChatmdEntry) -> Config:
    """The configuration with this document and no other agent. Tools stay: the document may use them."""
    return config.model_copy(update={"agents": Agents(chatmd=ChatmdAgents(entries={name: entry}))})


async def entry_of(loaded: LoadedConfig, name: str) -> ChatmdEntry | None:
    """The entry of a configured document: a table of its own, or a file of `[agents.chatmd] dir`."""
    chatmd = loaded.config.agents.chatmd
    if name in chatmd.entries:
        return chatmd.entries[name]
    if chatmd.dir is None:
        return None
    found = await trio.to_thread.run_sync(documents_of, chatmd.dir, os.environ)
    return dict(found.entries).get(name)


def document_tool(service: Service, name: str, who: Tenant) -> tuple[OfferedTool, ChatmdTool] | None:
    """The tool of this name, if it is a document's."""
    offered = service.registry.tool(who.id, name, who.key)
    if offered is None or not isinstance(offered.tool, ChatmdTool):
        return None
    return offered, offered.tool


def path_of(tool: ChatmdTool) -> Path | None:
    """The file of a document from the configuration."""
    return tool.entry.path if isinstance(tool.entry, ChatmdEntry) else None


async def run(
    offered: OfferedTool, tool: ChatmdTool, params: Mapping[str, Any], call: Call, model: str | None
) -> Answered:
    """Run a document, with this model instead of its own. Raises Problem."""
    if model is not None:
        if not isinstance(tool.entry, ChatmdEntry):
            raise Exit(UNUSABLE, "--model is for documents from the configuration, and paths")
        tool = replace(tool, entry=tool.entry.model_copy(update={"model": model}))
    called = await replace(offered, tool=tool).call(params, call)
    text = called.value if isinstance(called.value, str) else json.dumps(called.value, ensure_ascii=False, indent=2)
    return Answered({"result": called.value}, ["", "Result:", indented(text)], None, model=called.model_run)


async def dry_run(
    offered: OfferedTool, tool: ChatmdTool, params: Mapping[str, Any], call: Call, model: str | None
) -> Answered:
    """The first request that its model would get. Raises Problem."""
    offered.parameters.check(params)
    asked = tool.model_for(call.tenant, model)
    step = await tool.first_step(params, call, model)
    if isinstance(step, Failed):
        raise Problem(step.code, step.message)
    assert isinstance(step, AskModel)  # a run begins with its model
    body = json.loads(asked.body(step.request))
    lines = ["", f"First request to the model {asked.name!r}:"]
    text = indented(json.dumps(body, ensure_ascii=False, indent=2))
    return Answered({"model": asked.name, "request": body}, [*lines, text], None, dry=True)

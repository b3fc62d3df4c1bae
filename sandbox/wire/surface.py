"""The one list of host calls: what a script may request of the supervisor, with its parameters.

Made from it: the functions that scripts call (`sandbox/stubs.py`) and the names that they see (`sandbox/allowlist.py`).
Tests compare it with the families in `engine/bridge/`, the definitions for editors, and the pages of docs.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal


@dataclass(frozen=True, slots=True)
class HostCall:
    """One host call. `name` is also its grant and the name in scripts; `parameters` are those of the Lua function.

    `stub` is the source of the Lua function. `made`: generated from this row, with each parameter as an argument of the
    same name. Else: written in that file of the prelude, as its parameters or results differ from those of the call.
    `kv` is loaded whole (`allowlist.LOADED_WHOLE`). `answers` is whether the function returns a value. `scripts` are
    those that have the call: all, agents and tools, or connectors.
    """

    name: str
    parameters: tuple[str, ...] = ()
    stub: Literal["made", "core", "http", "schema", "kv", "scan", "team"] = "made"
    answers: bool = True
    scripts: Literal["all", "callers", "connectors"] = "all"

    @property
    def library(self) -> str:
        """The table that the function is in; empty for a global function."""
        return self.name.rpartition(".")[0]

    @property
    def member(self) -> str:
        return self.name.rpartition(".")[2]


HOST_CALLS: dict[str, HostCall] = {
    call.name: call
    for call in (
        HostCall("context.search", ("query", "options"), "core", scripts="callers"),
        HostCall("context.get", ("id", "options"), "core", scripts="callers"),
        HostCall("context.sources", (), "core", scripts="callers"),
        HostCall("context.call_tool", ("name", "params"), "core", scripts="callers"),
        HostCall("context.emit", ("item", "checkpoint"), "scan", answers=False, scripts="connectors"),
        HostCall("context.deleted", ("source_id",), "scan", answers=False, scripts="connectors"),
        HostCall("http.get", ("url", "options"), "http"),
        HostCall("http.post", ("url", "body", "options"), "http"),
        HostCall("http.put", ("url", "body", "options"), "http"),
        HostCall("http.patch", ("url", "body", "options"), "http"),
        HostCall("http.delete", ("url", "options"), "http"),
        HostCall("env.get", ("name",)),
        HostCall("fs.read", ("path",)),
        HostCall("fs.list", ("path", "glob")),
        HostCall("sleep", ("seconds",), answers=False),
        HostCall("json.schema", ("value", "schema"), "schema"),
        HostCall("kv.get", ("key",), "kv"),
        HostCall("kv.set", ("key", "value", "options"), "kv"),
        HostCall("kv.delete", ("key", "options"), "kv"),
        HostCall("kv.list", ("prefix", "options"), "kv"),
        HostCall("kv.incr", ("key", "by"), "kv"),
        *(
            HostCall(f"context.team.{name}", ("given",), "team", scripts="callers")
            for name in (
                "send_message",
                "broadcast",
                "check_inbox",
                "spawn_agent",
                "inspect_agent",
                "list_children",
                "complete",
                "poke",
                "terminate_agent",
                "remind_me",
                "cancel_reminder",
                "read_file",
                "write_file",
                "list_files",
            )
        ),
    )
}


@lru_cache(maxsize=64)
def granted(root: str, names: frozenset[str]) -> frozenset[str]:
    """Those of these host calls that a script which declares `root` has."""
    refused = "callers" if root == "connector" else "connectors"
    return frozenset(name for name in names if name not in HOST_CALLS or HOST_CALLS[name].scripts != refused)

"""The one list of host calls: what a script may ask of the supervisor, and with which parameters it does.

Made of it: the functions that scripts call (`sandbox/stubs.py`) and the names that they see (`sandbox/allowlist.py`).
Held equal by tests: what the families of `engine/bridge/` answer, the definitions for editors, and the pages of docs.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class HostCall:
    """One host call. `name` is its grant, too, and what a script calls; `parameters` are as a script gives them.

    `stub` is where the function for scripts comes from. `made`: from this row, with each parameter as an argument of
    the same name. Else: from that file of the prelude, as there its parameters become other arguments, or its answer
    other values.
    `answers` is whether the function returns a value.
    """

    name: str
    parameters: tuple[str, ...] = ()
    stub: Literal["made", "core", "http", "schema"] = "made"
    answers: bool = True

    @property
    def library(self) -> str:
        """The table that the function is in; empty for a function that is a global."""
        return self.name.rpartition(".")[0]

    @property
    def member(self) -> str:
        return self.name.rpartition(".")[2]


HOST_CALLS: dict[str, HostCall] = {
    call.name: call
    for call in (
        HostCall("context.search", ("query", "options"), "core"),
        HostCall("context.get", ("id",), "core"),
        HostCall("context.sources", (), "core"),
        HostCall("context.call_tool", ("name", "params"), "core"),
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
    )
}

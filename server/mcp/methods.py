"""The one table of MCP's methods: the access that each needs, and the effect of `?agent=NAME` on it. Pure.

A method without a row does not exist for clients, even if the SDK's server has a handler for it.
"""

from dataclasses import dataclass

from server.http.routes import Need


@dataclass(frozen=True, slots=True)
class Method:
    """One row. `limited` is what a request limited to an agent gets, in the words of docs/http-api.md."""

    need: Need
    limited: str


_ALL = "the same"
_TOOLS = "the agent's tools; itself, if it is offered as one"
_TASKS = "the tasks of calls at the same address"
_PROMPT = "the agent alone"
_DOCUMENTS = "the same if the agent may use `get`, else nothing"

METHODS: dict[str, Method] = {
    "initialize": Method(Need.USE, _ALL),
    "server/discover": Method(Need.USE, _ALL),
    "ping": Method(Need.USE, _ALL),
    "tools/list": Method(Need.USE, _TOOLS),
    "tools/call": Method(Need.USE, _TOOLS),
    "tasks/get": Method(Need.USE, _TASKS),
    "tasks/update": Method(Need.USE, _TASKS),
    "tasks/cancel": Method(Need.USE, _TASKS),
    "prompts/list": Method(Need.USE, _PROMPT),
    "prompts/get": Method(Need.USE, _PROMPT),
    "resources/list": Method(Need.USE, _DOCUMENTS),
    "resources/templates/list": Method(Need.USE, _DOCUMENTS),
    "resources/read": Method(Need.USE, _DOCUMENTS),
    "completion/complete": Method(Need.USE, "the agent alone; of documents as `resources/read`"),
    "subscriptions/listen": Method(Need.USE, "that lists have changed; of documents as `resources/read`"),
    "logging/setLevel": Method(Need.USE, _ALL),
}

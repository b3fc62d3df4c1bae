"""What the tests of publishing share: packages, and who publishes them."""

from typing import Any

from control.identity import Identity
from control.records import Scope
from engine.tenant import DEFAULT_TENANT, Tenant

LUA = """
agent = { description = "Says %s", tools = {"search", "get"}, arguments = {{name = "who"}} }
function agent.resolve(args, config, context)
  return { system = "%s for " .. (args.who or "nobody") }
end
"""

TOOL = """
tool = { description = "Adds", parameters = {{name = "a", type = "integer", required = true}} }
function tool.execute(params, context) return { sum = params.a + 1 } end
"""


def package(says: str = "one", version: str = "1", **more: Any) -> dict[str, Any]:
    """An agent that says this; further keys of the manifest stand in place of its own."""
    return {
        "version": version,
        "kind": "lua",
        "main": "main.lua",
        "files": {"main.lua": LUA % (says, says)},
        **more,
    }


def tool(version: str = "1", source: str = TOOL, **more: Any) -> dict[str, Any]:
    return {"version": version, "kind": "lua", "main": "tool.lua", "files": {"tool.lua": source}, **more}


def key(*scopes: Scope, tenant: Tenant = DEFAULT_TENANT) -> Identity:
    """Who holds a key of the tenant's with these scopes."""
    return Identity(tenant, "key_1", frozenset(scopes), operator=False)


PUBLISHER = key("publish")
ADMIN = key("use", "publish", "admin")
OPERATOR = Identity(DEFAULT_TENANT, None, frozenset({"use", "publish", "admin"}), operator=True)

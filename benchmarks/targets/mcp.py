"""MCP over Streamable HTTP as a target, in both eras: agents are prompts, tools are tools.

The client is as light as for REST: it implements only the few messages that a load needs.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import orjson

from benchmarks.load.account import GARBAGE, Answer
from benchmarks.load.schedule import Request
from benchmarks.scenario import Ask
from benchmarks.targets.address import Address
from benchmarks.targets.client import Client, Failed, Response
from benchmarks.targets.rest import HttpTarget, outcome_of_code
from sandbox.wire.outcome import Outcome

Era = Literal["2026", "handshake"]

# The revisions used. 2026-07-28 is stateless: every request is self-contained. In earlier ones a session begins with
# `initialize`.
VERSIONS: dict[Era, str] = {"2026": "2026-07-28", "handshake": "2025-11-25"}
_META = {
    "io.modelcontextprotocol/protocolVersion": VERSIONS["2026"],
    "io.modelcontextprotocol/clientCapabilities": {},
}
# Bound on the pages of a list that are read.
_PAGES = 20

# The codes that JSON-RPC reserves (section 5.1): all other codes count as one, as a server could send any number of
# different ones.
_RPC_CODES = range(-32768, -31999)
_ACCEPT = ("accept", "application/json, text/event-stream")


class McpTarget:
    """A server over MCP. `keys` are the API keys by tenant. The handshake era needs `begin` first."""

    def __init__(self, address: Address, era: Era, keys: Mapping[str, str] | None = None) -> None:
        self._client = Client(address)
        self._rest = HttpTarget(rest_of(address), keys)
        self._path = f"?{address.query}" if address.query else ""
        self._era = era
        self._keys = {name: [("authorization", f"Bearer {key}")] for name, key in (keys or {}).items()}
        self._sessions: dict[str | None, str] = {}

    async def begin(self, tenant: str | None = None) -> str | None:
        """Begin a session, if the era has sessions, as a client does once. Returns how that failed, or None."""
        if self._era == "2026":
            return None
        try:
            return await self._initialize(tenant)
        except Failed as failed:
            return failed.outcome

    async def _initialize(self, tenant: str | None) -> str | None:
        params = {
            "protocolVersion": VERSIONS["handshake"],
            "capabilities": {},
            "clientInfo": {"name": "engine-bench", "version": "1"},
        }
        response = await self._post("initialize", params, 1, tenant)
        if response.status != 200 or "result" not in (message_in(response) or {}):
            return outcome_of(response)
        if session := response.headers.get(b"mcp-session-id"):
            self._sessions[tenant] = session.decode("latin-1")
        await self._post("notifications/initialized", {}, None, tenant)
        return None

    async def list(self, what: Literal["tools", "prompts"], tenant: str | None = None) -> list[str]:
        """The names of all tools or prompts. Raises Failed, also if the list has another form."""
        names: list[str] = []
        params: dict[str, Any] = {}
        for _ in range(_PAGES):
            response = await self._post(f"{what}/list", params, 1, tenant)
            result = (message_in(response) or {}).get("result")
            listed = result.get(what) if isinstance(result, dict) else None
            if not isinstance(result, dict) or not isinstance(listed, list):
                raise Failed(outcome_of(response))
            names += [str(each.get("name")) for each in listed if isinstance(each, dict)]
            if not isinstance(cursor := result.get("nextCursor"), str):
                break
            params = {"cursor": cursor}
        return names

    async def send(self, request: Request) -> Answer:
        """Send a request; returns its outcome. Publishing, which MCP lacks, goes to the same server over REST."""
        if request.ask.kind == "publish":
            return await self._rest.send(request)
        method, params = message_of(request.ask, request.number)
        try:
            response = await self._post(method, params, request.number + 1, request.tenant)
        except Failed as failed:
            return Answer(outcome=failed.outcome)
        return Answer(outcome=outcome_of(response))

    def close(self) -> None:
        self._client.close()
        self._rest.close()

    async def _post(self, method: str, params: dict[str, Any], number: int | None, tenant: str | None) -> Response:
        headers = [_ACCEPT, *self._keys.get(tenant or "", ())]
        if self._era == "2026":
            added, params = self_contained(method, params)
            headers += added
        elif method != "initialize":
            headers.append(("mcp-protocol-version", VERSIONS["handshake"]))
            if session := self._sessions.get(tenant) or self._sessions.get(None):
                headers.append(("mcp-session-id", session))
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
        if number is not None:
            message["id"] = number
        return await self._client.request("POST", self._path, json.dumps(message).encode(), headers)


def self_contained(method: str, params: dict[str, Any]) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """Headers and params of a request of 2026-07-28."""
    headers = [("mcp-protocol-version", VERSIONS["2026"]), ("mcp-method", method)]
    if "name" in params:
        headers.append(("mcp-name", params["name"]))
    return headers, {**params, "_meta": _META}


def call_of(method: str, name: str, arguments: Any) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    """Body and headers of a request of 2026-07-28 for one prompt or tool."""
    headers, params = self_contained(method, {"name": name, "arguments": arguments})
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return json.dumps(message).encode(), (_ACCEPT, *headers)


def rest_of(address: Address) -> Address:
    """The REST address of the server whose MCP is at this address."""
    return replace(address, path=address.path.removesuffix("/mcp"), query="")


def message_of(ask: Ask, number: int) -> tuple[str, dict[str, Any]]:
    """Method and params of a request. Arguments of a prompt are strings (MCP, prompts)."""
    arguments = ask.numbered(number)
    match ask.kind:
        case "agent":
            texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
            return "prompts/get", {"name": ask.what, "arguments": texts}
        case "tool":
            return "tools/call", {"name": ask.what, "arguments": arguments}
    return "tools/list", {}


def message_in(response: Response) -> dict[str, Any] | None:
    """The JSON-RPC message of an answer: its body, or the last event of its stream. None if there is none."""
    body = response.body
    if response.headers.get(b"content-type", b"").startswith(b"text/event-stream"):
        lines = [line[5:] for line in body.splitlines() if line.startswith(b"data:")]
        body = next((line for line in reversed(lines) if line.strip()), b"")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def outcome_of(response: Response) -> str:
    """`ok`, the code of the error, `rpc_CODE` or `http_STATUS` for one that is not the engine's, or garbage."""
    message = message_in(response)
    if message is None:
        return GARBAGE if response.status == 200 else f"http_{response.status}"
    match message:
        case {"result": {"isError": True, **rest}}:
            details = rest.get("_meta", {})
            told = details.get("engine/error", {}) if isinstance(details, dict) else {}
            return outcome_of_code(told.get("code") if isinstance(told, dict) else None, Outcome.SCRIPT_ERROR.value)
        case {"result": dict()}:
            return Outcome.OK.value
        case {"error": {"code": int() as number, **rest}}:
            data = rest.get("data")
            plain = f"rpc_{number}" if number in _RPC_CODES else "rpc_other"
            return outcome_of_code(data.get("code") if isinstance(data, dict) else None, plain)
        case {"error": {"code": str() as code}}:  # refused before MCP began: the envelope of REST
            return outcome_of_code(code, f"http_{response.status}")
    return GARBAGE if response.status == 200 else f"http_{response.status}"

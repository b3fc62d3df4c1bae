"""REST as a target: a scenario's requests over HTTP, and the outcomes of their answers."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import orjson

from benchmarks.load.account import GARBAGE, Answer
from benchmarks.load.schedule import Request
from benchmarks.scenario import Ask
from benchmarks.targets.address import Address
from benchmarks.targets.client import Client, Failed, Response
from engine.errors import Code
from sandbox.wire.outcome import Outcome

# A failure of the script has the same name on every target, as in the list of outcomes.
_SAME = {Code.AGENT_ERROR.value: Outcome.SCRIPT_ERROR.value, Code.TOOL_ERROR.value: Outcome.SCRIPT_ERROR.value}
_KNOWN = frozenset(code.value for code in Code) | {outcome.value for outcome in Outcome}


def outcome_of_code(code: Any, otherwise: str) -> str:
    """The outcome for an error code. `otherwise` replaces unknown codes: a server could send any number of different
    ones."""
    return _SAME.get(code, code) if isinstance(code, str) and code in _KNOWN else otherwise


class HttpTarget:
    """A server over REST. `keys` are the API keys by tenant; for a tenant without one, no key is sent."""

    def __init__(self, address: Address, keys: Mapping[str, str] | None = None) -> None:
        self._client = Client(address)
        self._keys = {name: [("authorization", f"Bearer {key}")] for name, key in (keys or {}).items()}
        # By the identity of the ask, which has no hash. Each is kept beside its message: the identity of one that is
        # gone may be another's.
        self._bodies: dict[int, tuple[Ask, tuple[str, str, bytes | None]]] = {}

    async def send(self, request: Request) -> Answer:
        """Send a request; returns its outcome."""
        method, path, body = self._message(request)
        try:
            response = await self._client.request(method, path, body, self._keys.get(request.tenant, ()))
        except Failed as failed:
            return Answer(outcome=failed.outcome)
        return Answer(outcome=outcome_of(response, request.ask))

    def close(self) -> None:
        self._client.close()

    def _message(self, request: Request) -> tuple[str, str, bytes | None]:
        ask = request.ask
        if (kept := self._bodies.get(id(ask))) is not None:
            return kept[1]
        message = message_of(ask, request.number)
        if not ask.varies:
            self._bodies[id(ask)] = ask, message
        return message


def message_of(ask: Ask, number: int) -> tuple[str, str, bytes | None]:
    """Method, path and body of a request."""
    match ask.kind:
        case "front_end":
            return "GET", "/health", None
        case "get":
            return "GET", ask.what, None
        case "agent":
            path = f"/agents/{quote(ask.what, safe='')}/prompt"
        case "tool":
            path = f"/tools/{quote(ask.what, safe='')}"
        case "publish":
            return "PUT", f"/agents/{quote(ask.what, safe='')}", json.dumps(ask.package(number)).encode()
    return "POST", path, json.dumps(ask.numbered(number)).encode()


def outcome_of(response: Response, ask: Ask) -> str:
    """`ok`, the code of the error, `http_STATUS` for an answer that is not the engine's, or garbage."""
    try:
        value = orjson.loads(response.body) if response.body else None
    except orjson.JSONDecodeError:
        value = None
        if 200 <= response.status < 300 and ask.kind != "get":
            return GARBAGE
    if 200 <= response.status < 300:
        return Outcome.OK.value if isinstance(value, dict) or ask.kind == "get" else GARBAGE
    error = value.get("error") if isinstance(value, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    return outcome_of_code(code, f"http_{response.status}")

"""MCP servers for tests: the fixtures as a real process, and servers on loopback that misbehave as they are told."""

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trio
import warm_start

from agents.chatmd.program import Declared
from agents.toolbox import McpTools
from agents.toolbox.servers import Servers, mcp_tools
from engine.config import parse_config
from engine.egress.secrets import NoSecrets, SecretSource

ROOT = Path(__file__).resolve().parents[3]


@contextmanager
def fixtures() -> Iterator[str]:
    """`make mcp-fixture` as a process; its address."""
    command = [sys.executable, str(ROOT / "tests/conformance/fixtures.py"), "--bind", "127.0.0.1:0"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "ENGINE_LOG": "error"}
    with warm_start.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"listening on (\S+)", process.stdout.readline())
            assert found, "the fixtures did not start"
            yield found[1]
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()


def servers(url: str, *lines: str, secrets: SecretSource | None = None) -> Servers:
    """The configured server `s` at this address; `lines` are more of its table."""
    text = "\n".join((f'[mcp_servers.s]\nurl = "{url}"', *lines))
    config, _ = parse_config(text, environ={}, cwd=Path("/nowhere"))
    return Servers(config, secrets or NoSecrets())


@asynccontextmanager
async def tools_of(
    url: str, *lines: str, include: tuple[str, ...] = (), secrets: SecretSource | None = None
) -> AsyncIterator[McpTools]:
    """What a document gets that declares the server, within the time of a test."""
    declared = Declared("mcp", "", "", url=url, include=include)
    with trio.fail_after(20):
        async with mcp_tools([declared], servers(url, *lines, secrets=secrets), "default") as found:
            yield found


# ---- servers that misbehave ----------------------------------------------------------------------------------------

Message = dict[str, Any]
# A result, or what is sent and whether the connection is closed then.
Answer = Message | bytes | Callable[[trio.SocketStream], Awaitable[None]]


def http(body: bytes, kind: str = "application/json", status: int = 200, *more: str) -> bytes:
    lines = "".join(f"{line}\r\n" for line in more)
    return f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{lines}\r\n".encode() + body


def tool(name: str, **more: Any) -> Message:
    return {"name": name, "description": f"Does {name}", "inputSchema": {"type": "object"}, **more}


def said(text: str) -> Message:
    return {"content": [{"type": "text", "text": text}], "isError": False}


@dataclass
class Mischief:
    """A server of the handshake revisions whose answers to lists and calls are made by functions of the parameters."""

    tools: Callable[[Message], Answer] = lambda params: {"tools": [tool("one")]}
    call: Callable[[Message], Answer] = lambda params: said("good")
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    open: int = 0

    def answer(self, message: Message) -> Answer | None:
        match message.get("method"):
            case "initialize":
                about = {"serverInfo": {"name": "mischief", "version": "1"}, "capabilities": {"tools": {}}}
                return {"protocolVersion": "2025-11-25", **about}
            case "tools/list":
                return self.tools(message.get("params", {}))
            case "tools/call":
                return self.call(message["params"])
        return None

    async def serve(self, stream: trio.SocketStream) -> None:
        self.open += 1
        buffer = b""
        try:
            while True:
                while b"\r\n\r\n" not in buffer:
                    buffer += await self._more(stream)
                head, _, buffer = buffer.partition(b"\r\n\r\n")
                first, *lines = head.decode().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                while len(buffer) < int(headers.get("content-length", 0)):
                    buffer += await self._more(stream)
                length = int(headers.get("content-length", 0))
                body, buffer = buffer[:length], buffer[length:]
                message = json.loads(body or b"{}")
                self.asked.append((message.get("method", first), headers))
                answer = self.answer(message)
                if "id" not in message:
                    await stream.send_all(http(b"", status=202))
                elif answer is None:
                    error = {"code": -32601, "message": "unknown method"}
                    await stream.send_all(
                        http(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode())
                    )
                elif isinstance(answer, dict):
                    whole = {"jsonrpc": "2.0", "id": message["id"], "result": answer}
                    await stream.send_all(
                        http(json.dumps(whole).encode(), "application/json", 200, "mcp-session-id: s")
                    )
                elif isinstance(answer, bytes):
                    await stream.send_all(answer)
                else:
                    await answer(stream)
                    return
        except (trio.BrokenResourceError, trio.ClosedResourceError, EOFError):
            pass
        finally:
            await trio.aclose_forcefully(stream)
            self.open -= 1

    async def _more(self, stream: trio.SocketStream) -> bytes:
        data = await stream.receive_some()
        if not data:
            raise EOFError
        return bytes(data)


@asynccontextmanager
async def mischief(**how: Any) -> AsyncIterator[tuple[Mischief, str]]:
    """Such a server, and its address."""
    server = Mischief(**how)
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, server.serve, 0, host="127.0.0.1"))
        yield server, f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/mcp"
        nursery.cancel_scope.cancel()

"""`make soak`, its second half: 20,000 requests of MCP's both eras, a twentieth of the clients leaving early.

The server is a process of its own (`mcp_soak_server.py`). Between slices of the load no client is connected, and then
nothing may be left of what clients began: no task, no descriptor, no worker; and its memory stays what it was.
"""

import argparse
import json
import os
import random
import socket
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import trio
from mcp_soak_server import EYE

from benchmarks.aims.harness import started
from benchmarks.targets.address import Address
from benchmarks.targets.client import Client
from benchmarks.targets.mcp import VERSIONS, message_in

LEAVING = 0.05
AT_ONCE = 6
# Requests before the memory is taken for what it should stay.
WARM_UP = 0.2
SLICES = 8
GROWTH = 1.10
# How long what a client left behind may take to go: a run that is killed, a worker that takes its place.
QUIET_S = 30.0
HOST_PROGRAM = Path(__file__).with_name("mcp_soak_server.py")

WORKERS = 2
RESERVE = 2
PROCESSES = WORKERS + RESERVE + 2  # and the launcher and the zygote

# Without an embedder, which opens the store once more. SQLite keeps the descriptors of a closed connection for the next
# one while another connection has a lock on the file: these few may come after the first count.
CONFIG = f"""
[db]
path = "knowledge.sqlite"
[embedding]
provider = "disabled"
[sandbox]
workers = {WORKERS}
reserve = {RESERVE}
[agents.script.guide]
path = "guide.lua"
expose = ["prompt", "tool"]
[tools.script.steps]
path = "steps.lua"
[tools.script.fails]
path = "fails.lua"
[tools.script.forever]
path = "forever.lua"
[tools.script.sleeper]
path = "sleeper.lua"
"""
SCRIPTS = {
    "guide.lua": """
agent = { description = "Guides", tools = { "search" }, arguments = { { name = "topic", required = true } } }
function agent.resolve(args) return { system = ("About %s. "):format(args.topic):rep(50) } end
function agent.complete(argument, value) return { value .. "-one", value .. "-two" } end
""",
    "steps.lua": """
tool = { description = "Tells how far it is" }
function tool.execute(params, context)
    for step = 1, 4 do context.progress(step / 4, "step " .. step) end
    return { done = true, echo = params.echo }
end
""",
    "fails.lua": 'tool = {}\nfunction tool.execute() error("it was meant to") end',
    "forever.lua": "tool = {}\nfunction tool.execute() while true do end end",
    "sleeper.lua": "tool = {}\nfunction tool.execute(params) sleep(params.seconds) return 1 end",
}

# Method, params, and what the answer must be: "result", "tool error" (a result that says so) or a JSON-RPC code.
Ask = tuple[str, dict[str, Any], str | int]
COMMON: tuple[Ask, ...] = (
    ("tools/list", {}, "result"),
    ("prompts/list", {}, "result"),
    ("resources/list", {}, "result"),
    ("resources/templates/list", {}, "result"),
    ("prompts/get", {"name": "guide", "arguments": {"topic": "tides"}}, "result"),
    ("prompts/get", {"name": "guide", "arguments": {"topic": "tides"}}, "result"),
    ("prompts/get", {"name": "nobody"}, -32602),
    ("tools/call", {"name": "guide", "arguments": {"topic": "tides"}}, "result"),
    ("tools/call", {"name": "steps", "arguments": {"echo": "x" * 200}}, "result"),
    ("tools/call", {"name": "steps", "arguments": {"echo": "p"}, "_meta": {"progressToken": "p1"}}, "result"),
    ("tools/call", {"name": "search", "arguments": {"query": "tides"}}, "result"),
    ("tools/call", {"name": "fails", "arguments": {}}, "tool error"),
    ("tools/call", {"name": "nothing", "arguments": {}}, -32602),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "guide"}, "argument": {"name": "topic", "value": "t"}},
        "result",
    ),
    ("no/such", {}, -32601),
)
INITIALIZE: Ask = (
    "initialize",
    {"protocolVersion": VERSIONS["handshake"], "capabilities": {}, "clientInfo": {"name": "soak", "version": "1"}},
    "result",
)
ASKS: Mapping[str, tuple[Ask, ...]] = {
    "2026": (*COMMON, ("server/discover", {}, "result")),
    "handshake": (*COMMON, INITIALIZE, ("ping", {}, "result")),
}
LISTEN = {"notifications": {"toolsListChanged": True, "resourcesListChanged": True}}
WAYS = (
    "half a head", "half a body", "nothing read", "reset", "endless run", "sleeping run", "listening", "silent stream"
)  # fmt: skip


@dataclass(slots=True)
class Figures:
    """What a soak saw. Each state is what the server said of itself while no client was connected."""

    answers: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    states: list[dict[str, int]] = field(default_factory=list)
    status: int | None = None
    processes_left: int = 0


def message_of(era: str, ask: Ask, number: int) -> tuple[bytes, list[tuple[str, str]]]:
    """Body and headers of a request, as a client of that era sends it."""
    method, params, _ = ask
    headers = [("accept", "application/json, text/event-stream")]
    if era == "2026":
        meta = {
            "io.modelcontextprotocol/protocolVersion": VERSIONS["2026"],
            "io.modelcontextprotocol/clientCapabilities": {},
            **params.get("_meta", {}),
        }
        params = {**params, "_meta": meta}
        headers += [("mcp-protocol-version", VERSIONS["2026"]), ("mcp-method", method)]
        if "name" in params:
            headers.append(("mcp-name", params["name"]))
    elif method != "initialize":
        headers.append(("mcp-protocol-version", VERSIONS["handshake"]))
    body = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()
    return body, headers


def answer_of(message: Mapping[str, Any] | None) -> str | int:
    """What an answer is, in the words of `Ask`."""
    match message:
        case {"result": {"isError": True}}:
            return "tool error"
        case {"result": dict()}:
            return "result"
        case {"error": {"code": int() as code}}:
            return code
    return "nothing"


class Eye:
    """What the server says of itself."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    async def look(self) -> dict[str, int]:
        await self._stream.send_all(b"?")
        data = b""
        while not data.endswith(b"\n"):
            part = await self._stream.receive_some(4096)
            if not part:
                raise RuntimeError("the server ended during the soak; its log says why")
            data += part
        return dict(json.loads(data))


LEFT_OVER = ("tasks", "descriptors", "processes")


def grown(before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """Of what there is more."""
    return [key for key in LEFT_OVER if after[key] > before[key]]


async def settled(address: Address, eye: Eye, before: Mapping[str, int] | None) -> dict[str, int]:
    """The state once nothing is left over that was not there before; the last one seen when that takes too long.

    With nothing before it: once it is the same twice. Every worker that there may be is there when it is taken, as
    each has descriptors: those that were killed come back when as many runs at once want them.
    """
    state: dict[str, int] = {}
    with trio.move_on_after(QUIET_S):
        while True:
            async with trio.open_nursery() as nursery:
                for _ in range(WORKERS):
                    nursery.start_soon(run_a_while, address)
            last, state = state, await eye.look()
            for _ in range(10):
                if state["processes"] == PROCESSES and not grown(before or last or dict.fromkeys(LEFT_OVER, 0), state):
                    return state
                await trio.sleep(0.1)
                last, state = state, await eye.look()
    return state


async def run_a_while(address: Address) -> None:
    """One run that takes long enough for another one to need another worker."""
    client = Client(address)
    body, headers = message_of("2026", ("tools/call", {"name": "sleeper", "arguments": {"seconds": 0.2}}, ""), 1)
    try:
        response = await client.request("POST", "/mcp", body, headers)
    finally:
        client.close()
    if answer_of(message_in(response)) != "result":
        raise RuntimeError(f"a run beside the load failed: {response.body[:300]!r}")


async def leave(address: Address, era: str, way: str) -> None:
    """Be a client that goes away in the middle."""
    if way == "endless run":
        ask: Ask = ("tools/call", {"name": "forever", "arguments": {}}, "")
    elif way == "sleeping run":
        ask = ("tools/call", {"name": "sleeper", "arguments": {"seconds": 25}, "_meta": {"progressToken": "s"}}, "")
    elif way == "listening":
        era, ask = "2026", ("subscriptions/listen", LISTEN, "")
    else:
        ask = ("tools/call", {"name": "steps", "arguments": {"echo": "left"}}, "")
    body, headers = message_of(era, ask, 1)
    first = f"POST /mcp HTTP/1.1\r\nhost: {address.authority}\r\n"
    fields = [*headers, ("content-type", "application/json"), ("content-length", str(len(body)))]
    if way == "silent stream":
        first, body = f"GET /mcp HTTP/1.1\r\nhost: {address.authority}\r\n", b""
        fields = [("accept", "text/event-stream"), ("mcp-protocol-version", VERSIONS["handshake"])]
    data = first.encode() + "".join(f"{name}: {value}\r\n" for name, value in fields).encode() + b"\r\n" + body
    match way:
        case "half a head":
            data = data[: len(first) + 10]
        case "half a body":
            data = data[: -len(body) // 2]
    stream = await trio.open_tcp_stream(address.host, address.port)
    try:
        await stream.send_all(data)
        if way in ("listening", "silent stream"):
            with trio.fail_after(QUIET_S):
                await stream.receive_some(65536)  # it is open: its head, and the first event with it
        elif way in ("endless run", "sleeping run"):
            await trio.sleep(0.05)  # most have begun by then, some wait for a worker: both must end
        elif way == "reset":
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    finally:
        stream.socket.close()


@asynccontextmanager
async def server(folder: Path) -> AsyncIterator[tuple[Address, trio.Process, Eye]]:
    """The server in a process of its own."""
    (folder / "engine.toml").write_text(CONFIG, encoding="utf-8")
    for name, source in SCRIPTS.items():
        (folder / name).write_text(source, encoding="utf-8")
    async with (
        started([sys.executable, str(HOST_PROGRAM), str(folder)]) as server,
        await trio.open_unix_socket(folder / EYE) as stream,
    ):
        yield server.address, server.process, Eye(stream)


async def load(address: Address, count: int, chance: random.Random, figures: Figures) -> None:
    """So many requests, some at once; no client is connected before and after."""
    client = Client(address)
    left = count

    async def one_client() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            number = left
            era = chance.choice(("2026", "handshake"))
            if chance.random() < LEAVING:
                way = chance.choice(WAYS)
                await leave(address, era, way)
                figures.left[way] += 1
                continue
            ask = chance.choice(ASKS[era])
            body, headers = message_of(era, ask, number)
            response = await client.request("POST", "/mcp", body, headers)
            message = message_in(response)
            seen = answer_of(message)
            figures.answers[f"{era} {seen}"] += 1
            if seen != ask[2] or (message or {}).get("id") != number:
                figures.wrong.append(f"{era} {ask[0]} {ask[1].get('name', '')}: {seen}: {response.body[:300]!r}")

    try:
        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(one_client)
    finally:
        client.close()


async def soak(requests: int, *, slices: int = SLICES, seed: int = 1) -> Figures:
    """The whole load, slice by slice, and the farewell."""
    figures = Figures()
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="mcp-soak-") as name:
        async with server(Path(name)) as (address, process, eye):
            await load(address, round(requests * WARM_UP), chance, figures)
            figures.states.append(await settled(address, eye, None))
            rest = requests - round(requests * WARM_UP)
            for number in range(slices):
                part = rest // slices + (number < rest % slices)
                await load(address, part, chance, figures)
                figures.states.append(await settled(address, eye, figures.states[0]))
            started_by_it = psutil.Process(process.pid).children(recursive=True)
            process.terminate()
            with trio.move_on_after(QUIET_S):
                figures.status = await process.wait()
            figures.processes_left = sum(each.is_running() for each in started_by_it)
    return figures


def problems(figures: Figures) -> list[str]:
    """What a soak must not show."""
    first, *later = figures.states
    found = [f"{len(figures.wrong)} wrong answers, such as {figures.wrong[0]}"] if figures.wrong else []
    for key in LEFT_OVER:
        if any(key in grown(first, state) for state in later):
            found.append(f"{key} left over: {' '.join(str(state[key]) for state in figures.states)}")
    if later[-1]["memory"] > GROWTH * first["memory"]:
        found.append(f"memory grew from {first['memory']} to {later[-1]['memory']} bytes")
    if figures.status != 0:
        found.append(f"the server ended with {figures.status}")
    if figures.processes_left:
        found.append(f"{figures.processes_left} processes left")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    figures = trio.run(lambda: soak(options.requests, seed=options.seed))
    print(f"{options.requests} requests on {os.cpu_count()} cores:", dict(sorted(figures.answers.items())))
    print(f"left early: {sum(figures.left.values())}:", dict(sorted(figures.left.items())))
    for key in LEFT_OVER:
        print(f"{key} while no client is connected: {' '.join(str(state[key]) for state in figures.states)}")
    print("memory, MiB:", " ".join(f"{state['memory'] / 2**20:.1f}" for state in figures.states))
    found = problems(figures)
    print("findings:", "; ".join(found) or "none")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

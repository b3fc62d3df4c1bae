"""Runs of documents over REST, on a scripted model: beside a bare stream of the same answer, beside openai-agents, and
many that wait.
"""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx2
import psutil
import trio

from benchmarks.aims import harness
from benchmarks.aims.chatmd import agents_sdk
from benchmarks.aims.chatmd.bare_streams import ASKED
from benchmarks.aims.harness import Figures, Server
from benchmarks.targets.client import Client
from engine.models.http import KEPT

_SCRIPT = """
[[reply]]
when = "please wait"
text = "never said whole"
fault = "stall"

[[reply]]
when = "in Oslo?"
tool_calls = [{ name = "weather", arguments = { city = "Oslo" } }]

[[reply]]
text = "It is 18 C in Oslo."
"""
_DOCUMENT = "<system>You know the weather.</system>\n"
_WITH_TOOL = f'<tool name="weather"/>\n{_DOCUMENT}'
_WEATHER = """
tool = { description = "The weather in a city", parameters = { { name = "city", type = "string", required = true } } }
function tool.execute(params) return { weather = params.city .. ": 18 C" } end
"""
_PROMPT = """
agent = { description = "A prompt" }
function agent.resolve() return { system = "You know the weather." } end
"""
_CONFIG = """
[db]
path = "engine.sqlite"
[models.scripted]
api = "openai"
url = "{url}/v1"
model = "scripted"
at_once = 10_000
timeout_s = 600
[agents.chatmd.plain]
path = "plain.chatmd"
[agents.chatmd.weather-expert]
path = "weather.chatmd"
[agents.script.prompt]
path = "prompt.lua"
[tools.script.weather]
path = "weather.lua"
[tenants.quota]
model_runs = 10_000
model_tokens_per_minute = 1_000_000_000
"""
_START_S = 60.0
_OPENED_S = 120.0


@dataclass(frozen=True, slots=True)
class Scene:
    """A stub and an engine with documents that use it."""

    stub: str
    stub_pid: int
    engine: Server

    async def run(self, name: str, question: str) -> None:
        """One run; its answer is checked."""
        client = Client(self.engine.address)
        try:
            await run(client, name, question)
        finally:
            client.close()


async def run(client: Client, name: str, question: str) -> None:
    """One run of a document, by an open client."""
    answer = await client.request("POST", f"/tools/{name}", json.dumps({"input": question}).encode())
    if answer.status != 200 or json.loads(answer.body)["result"] != agents_sdk.ANSWER:
        raise RuntimeError(f"{name}: {answer.status} {answer.body[:300]!r}")


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Scene]:
    """The stub and the engine, until the end of the block."""
    for name, text in (
        ("script.toml", _SCRIPT), ("plain.chatmd", _DOCUMENT), ("weather.chatmd", _WITH_TOOL),
        ("weather.lua", _WEATHER), ("prompt.lua", _PROMPT),
    ):  # fmt: skip
        (folder / name).write_text(text, encoding="utf-8")
    async with stub(folder / "script.toml", folder / "stub.log") as (url, pid):
        (folder / "engine.toml").write_text(_CONFIG.format(url=url), encoding="utf-8")
        async with harness.serving(folder / "engine.toml", subprocess.DEVNULL, folder) as engine:
            yield Scene(url, pid, engine)


@asynccontextmanager
async def stub(script: Path, log: Path) -> AsyncIterator[tuple[str, int]]:
    """`engine model stub` as a process: its address and process id."""
    command = harness.engine_command("model", "stub", str(script), "--bind", "127.0.0.1:0")
    with log.open("wb") as said:
        process = await trio.lowlevel.open_process(
            command, stdout=said, stderr=said, cwd=harness.ROOT, env=harness.environ()
        )
    try:
        with trio.fail_after(_START_S):
            while " at http" not in (text := log.read_text(encoding="utf-8")):  # noqa: ASYNC240 (a small file)
                if process.poll() is not None:
                    raise RuntimeError(f"the stub ended: {text[-500:]}")
                await trio.sleep(0.05)
        yield text.partition(" at ")[2].split()[0], process.pid
    finally:
        process.terminate()
        with trio.CancelScope(shield=True):  # safe to shield: it ends with SIGTERM
            await process.wait()


# ---- one turn ------------------------------------------------------------------------------------------------------


async def one_turn(folder: Path, count: int, rounds: int) -> Figures:
    """Microseconds of each run, by row and round: `ours` over REST, `bare` the stream of the same answer."""
    question = {"role": "user", "content": "Say it."}
    system = {"role": "system", "content": "You know the weather."}
    body = {**ASKED, "messages": [system, question]}
    async with scene(folder) as here, httpx2.AsyncClient(trust_env=False, timeout=60) as client:
        address = f"http://{here.engine.address.authority}/tools/plain"

        async def ours() -> None:
            answer = await client.post(address, json={"input": "Say it."})
            if answer.json()["result"] != agents_sdk.ANSWER:
                raise RuntimeError(answer.text[:300])

        async def bare() -> None:
            async with client.sse(f"{here.stub}/v1/chat/completions", method="POST", json=body) as events:
                said = "".join([_delta(event.data) async for event in events])
            if said != agents_sdk.ANSWER:
                raise RuntimeError(said)

        rows = {name: partial(harness.timed, each, count, 5) for name, each in (("ours", ours), ("bare", bare))}
        return dict(await harness.take_turns(rows, rounds))


def _delta(data: str) -> str:
    if data == "[DONE]":
        return ""
    choices = json.loads(data)["choices"]
    return (choices[0]["delta"].get("content") or "") if choices else ""


# ---- two turns and a tool ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Turn:
    """Microseconds of each run, and the CPU microseconds of a run in all processes but the stub's."""

    times_us: list[float]
    cpu_us: float


async def two_turns(folder: Path, python: Path, count: int, rounds: int) -> dict[str, list[Turn]]:
    """The turns of `ours` and of `openai-agents`."""
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(scene(folder))
        sdk = await stack.enter_async_context(_sdk(python, f"{here.stub}/v1"))
        client = Client(here.engine.address)
        stack.callback(client.close)

        async def ours() -> Turn:
            one = partial(run, client, "weather-expert", agents_sdk.QUESTION)
            return await turn(here.engine.pid, lambda count: harness.timed(one, count, 0))

        async def theirs() -> Turn:
            async def ask(count: int) -> list[float]:
                return list(json.loads(await _ask(sdk, count)))

            return await turn(sdk.pid, ask)

        async def turn(pid: int, run: Callable[[int], Awaitable[list[float]]]) -> Turn:
            await run(5)
            before = harness.tree_cpu_s(pid)
            times = await run(count)
            return Turn(times, (harness.tree_cpu_s(pid) - before) / count * 1e6)

        return await harness.take_turns({"ours": ours, "openai-agents": theirs}, rounds)


async def _ask(program: harness.Child, count: int) -> bytes:
    """The line that a program answers a number with."""
    await program.stdin.send_all(f"{count}\n".encode())
    return await program.line(_OPENED_S)


@asynccontextmanager
async def _program(*command: str) -> AsyncIterator[harness.Child]:
    """The program, once it says that it is ready. It is killed at the end of the block."""
    # A path to our packages would hide another one of the name `agents`.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    async with harness.child(*command, env=env) as program:
        await program.line(_OPENED_S)
        yield program


def has_sdk(python: Path) -> bool:
    """Whether openai-agents is installed there. Its package has the name of one of ours, so it is not imported."""
    command = [str(python), "-c", "from importlib.metadata import version; version('openai-agents')"]
    return python.exists() and subprocess.run(command, capture_output=True, check=False).returncode == 0


@asynccontextmanager
async def _sdk(python: Path, url: str) -> AsyncIterator[harness.Child]:
    async with _program(str(python), str(Path(agents_sdk.__file__)), url) as program:
        yield program


# ---- runs that wait ------------------------------------------------------------------------------------------------


async def waiting(folder: Path, many: int, count: int, rounds: int) -> Figures:
    """Bytes that so many waiting runs, and bare streams, add to their process; microseconds of a Lua agent's prompt,
    by round, `alone` and `beside` the runs.
    """
    found: Figures = {"ours_bytes": [], "bare_bytes": [], "alone": [], "beside": []}
    async with scene(folder) as here:
        await here.run("plain", "Say it.")
        client = Client(here.engine.address)
        path = f"{here.stub}/v1/chat/completions"

        async def prompt() -> None:
            answer = await client.request("POST", "/agents/prompt/prompt", b"{}")
            if answer.status != 200:
                raise RuntimeError(answer.body[:300])

        for _ in range(rounds):
            found["alone"].append(await harness.timed(prompt, count, count))
            before = _bytes(here.engine.pid)
            async with _runs(here, many):
                found["ours_bytes"].append(_bytes(here.engine.pid) - before)
                found["beside"].append(await harness.timed(prompt, count, count))
            command = [sys.executable, "-m", "benchmarks.aims.chatmd.bare_streams", path]
            async with _program(*command) as bare:
                before = _bytes(bare.pid)
                await _ask(bare, many)
                found["bare_bytes"].append(_bytes(bare.pid) - before)
            await _settled(here, 0)
        client.close()
    return found


@asynccontextmanager
async def _runs(here: Scene, many: int) -> AsyncIterator[None]:
    """So many runs that wait for the model, while the block lasts."""
    async with trio.open_nursery() as nursery:
        for _ in range(many):
            nursery.start_soon(here.run, "plain", "please wait")
        await _settled(here, many)
        yield
        nursery.cancel_scope.cancel()


async def _settled(here: Scene, many: int) -> None:
    """Wait until the stub has at least so many connections; of none, until only idle ones are left."""
    with trio.fail_after(_OPENED_S):
        while True:
            found = psutil.Process(here.stub_pid).net_connections("tcp")
            here_now = sum(each.status == psutil.CONN_ESTABLISHED for each in found)
            if here_now >= many if many else here_now <= KEPT:
                break
            await trio.sleep(0.1)
    await trio.sleep(1.0)


def _bytes(pid: int) -> int:
    """The memory of one process that it shares with no other."""
    return int(psutil.Process(pid).memory_full_info().uss)

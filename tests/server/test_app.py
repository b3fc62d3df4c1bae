"""The process: what it prints, when it refuses to start, how it ends."""

import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import httpx2
import pytest
import trio
import warm_start
from asking_support import able, call
from effort import part, whole
from mcp_support import message
from server_support import Failed, FakeService, Layer, assert_envelope, request

from server.about import listening, loaded_lines

# A process that serves a fake service: `setup` are lines that change it, `ask` the arguments of `run_server`.
PROGRAM = """
import sys
from contextlib import asynccontextmanager
sys.path[:0] = {path!r}
import trio
from engine.config import ServerConfig
from server.app import run_server
from server_support import Failed, FakeService

service = FakeService(ServerConfig({server}))
{setup}

@asynccontextmanager
async def opener(loaded):
    print("opened", file=sys.stderr)
    try:
        yield service
    finally:
        print("closed", file=sys.stderr)

sys.exit(trio.run(lambda: run_server(service.loaded, opener=opener, {ask})))
"""
ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def started(setup: str = "", server: str = "", ask: str = "bind='127.0.0.1:0'") -> Iterator["subprocess.Popen[str]"]:
    path = [str(ROOT), str(Path(__file__).parent)]
    program = PROGRAM.format(path=path, setup=textwrap.dedent(setup), server=server, ask=ask)
    with warm_start.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ENGINE_LOG": "warning"},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def url_of(process: "subprocess.Popen[str]") -> str:
    return found_in(process.stdout, r"listening on (http://\S+)")


def found_in(stream: IO[str] | None, pattern: str) -> str:
    assert stream is not None
    for line in stream:
        if found := re.search(pattern, line):
            return found[1]
    raise AssertionError(f"{pattern} was not printed")


def call_and_terminate(process: "subprocess.Popen[str]", url: str) -> httpx2.Response:
    """The answer to a slow call; the process is asked to end as soon as the call is under way."""

    async def terminate() -> None:
        await trio.to_thread.run_sync(found_in, process.stderr, "(entered)")
        process.terminate()

    async def call() -> httpx2.Response:
        async with httpx2.AsyncClient(timeout=30) as client, trio.open_nursery() as nursery:
            nursery.start_soon(terminate)
            return await client.post(f"{url}/tools/slow", json={})
        raise AssertionError

    return trio.run(call)


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_idle_server_with_0(number: signal.Signals) -> None:
    with started() as process:
        assert httpx2.get(url_of(process) + "/health").json()["status"] == "ok"
        process.send_signal(number)
        code, _, err = ended(process)
    assert code == 0
    assert err == "opened\nclosed\n"


def test_a_request_in_flight_is_answered_before_the_end() -> None:
    setup = """
    from server.http.guard import Guard
    drain, draining = Guard.drain, trio.Event()
    async def until_draining(self):
        print("entered", file=sys.stderr, flush=True)
        await draining.wait()
    def drain_and_tell(self):
        drain(self)
        draining.set()
    Guard.drain, FakeService._slowly = drain_and_tell, until_draining
    """
    with started(setup) as process:
        url = url_of(process)

        assert call_and_terminate(process, url).json() == {"result": "done"}
        code, _, err = ended(process)
    assert code == 0
    assert "closed" in err


def test_what_does_not_end_is_cancelled_and_told_when_the_graceful_time_is_over() -> None:
    setup = """
    async def forever(self):
        print("entered", file=sys.stderr, flush=True)
        await trio.sleep_forever()
    FakeService._slowly = forever
    """
    with started(setup, server="graceful_timeout_s=0.2") as process:
        url = url_of(process)

        assert_envelope(call_and_terminate(process, url), 503, "unavailable")
        code, _, _ = ended(process)
    assert code == 0


def test_a_signal_with_a_task_under_way_ends_within_the_graceful_time() -> None:
    setup = """
    from server.mcp import tasks
    tasks.LATE_S = 0.05
    async def forever(self):
        try:
            await trio.sleep_forever()
        finally:
            print("cancelled", file=sys.stderr, flush=True)
    FakeService._slowly = forever
    """
    with started(setup, server="graceful_timeout_s=0.3") as process:
        ask = able("tools/call", call("slow"))
        created = message(httpx2.post(url_of(process) + "/mcp", **ask))["result"]
        assert (created["resultType"], created["status"]) == ("task", "working")
        began = time.monotonic()
        process.terminate()
        code, _, err = ended(process)
    assert code == 0
    assert "cancelled\nclosed" in err
    assert time.monotonic() - began < 5


def test_a_signal_while_the_service_is_opened_ends_at_once_with_0() -> None:
    setup = """
    @asynccontextmanager
    async def never(loaded):
        print("opening", file=sys.stderr, flush=True)
        await trio.sleep_forever()
        yield service
    """
    with started(setup, ask="bind='127.0.0.1:0') if False else run_server(service.loaded, opener=never") as process:
        found_in(process.stderr, "(opening)")
        process.terminate()
        code, out, _ = ended(process)
    assert code == 0
    assert "listening" not in out


MORE = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


# The first four have every pair of a signal, a second request behind the first and a method.
SECOND_SIGNALS = (
    (signal.SIGTERM, b"", "POST"), (signal.SIGTERM, MORE, "HEAD"),
    (signal.SIGINT, b"", "HEAD"), (signal.SIGINT, MORE, "POST"),
    (signal.SIGTERM, b"", "HEAD"), (signal.SIGTERM, MORE, "POST"),
    (signal.SIGINT, b"", "POST"), (signal.SIGINT, MORE, "HEAD"),
)  # fmt: skip


@pytest.mark.whole
@pytest.mark.parametrize(("number", "more", "method"), SECOND_SIGNALS if whole() else SECOND_SIGNALS[:4])
def test_a_second_signal_ends_everything_at_once_and_is_told_to_those_who_wait(
    number: signal.Signals, more: bytes, method: str
) -> None:
    setup = """
    from server.http.guard import Guard
    drain = Guard.drain
    async def forever(self):
        print("entered", file=sys.stderr, flush=True)
        await trio.sleep_forever()
    def drain_and_tell(self):
        drain(self)
        print("draining", file=sys.stderr, flush=True)
    Guard.drain, FakeService._slowly = drain_and_tell, forever
    async def slow_for_all(guard, scope, *_):
        await service._slowly()
    if "HEAD" == %r:
        Guard._serve = slow_for_all
    """
    with started(setup % method, server="graceful_timeout_s=3600") as process:
        port = int(url_of(process).rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(request(method, "/tools/slow", b"{}" if method == "POST" else b"") + more)
            found_in(process.stderr, "(entered)")
            process.send_signal(number)
            found_in(process.stderr, "(draining)")
            process.send_signal(number)
            client.settimeout(30)
            answer = b"".join(iter(partial(client.recv, 65536), b""))
            code, _, err = ended(process)
    assert code == 128 + number
    assert "closed" in err
    assert "connection cut" not in err
    if method == "POST":
        assert_envelope(answer, 503, "unavailable")
    else:
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert answer.endswith(b"\r\n\r\n")


def test_a_crashed_background_task_ends_the_process_with_1() -> None:
    setup = """
    from server import app
    real = app.Mcp.run
    @asynccontextmanager
    async def crashing(self):
        async with real(self), trio.open_nursery() as nursery:
            async def crash():
                await trio.sleep(0.2)
                raise RuntimeError("background")
            nursery.start_soon(crash)
            yield
    app.Mcp.run = crashing
    """
    with started(setup) as process:
        code, out, err = ended(process)
    assert code == 1
    assert "listening" in out
    assert "background" in err
    assert "error: the server failed" in err


def test_what_cannot_be_opened_is_raised_as_it_is_for_the_command_line_to_tell() -> None:
    setup = """
    class StoreError(Exception): pass
    @asynccontextmanager
    async def failing(loaded):
        raise StoreError("the store is locked")
        yield
    """
    with started(setup, ask="bind='127.0.0.1:0') if False else run_server(service.loaded, opener=failing") as process:
        code, out, err = ended(process)
    assert code == 1
    assert err.splitlines()[-1].endswith("StoreError: the store is locked")
    assert "ExceptionGroup" not in err
    assert "listening" not in out


def test_a_port_in_use_is_one_line_and_2_and_nothing_is_opened() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with started(ask=f"bind='127.0.0.1:{port}'") as process:
            code, out, err = ended(process)
    assert code == 2
    assert err == f"error: cannot listen on 127.0.0.1:{port}: Address already in use\n"
    assert out == ""


@pytest.mark.parametrize(
    ("bind", "words"),
    [
        ("nonsense", "HOST:PORT"),
        ("127.0.0.1:99999", "HOST:PORT"),
        ("0.0.0.0:0", "allow_anonymous"),
        ("[::]:0", "allow"),
    ],
)
def test_a_bind_that_cannot_be_had_or_is_not_safe_is_one_line_and_2(bind: str, words: str) -> None:
    with started(ask=f"bind={bind!r}") as process:
        code, out, err = ended(process)
    assert code == 2
    assert words in err
    assert len(err.splitlines()) == 1
    assert out == ""


def test_a_public_bind_is_taken_when_it_was_asked_for() -> None:
    with started(server="allow_anonymous=True, bind='0.0.0.0:0'", ask="") as process:
        port = url_of(process).rpartition(":")[2]
        assert httpx2.get(f"http://127.0.0.1:{port}/health").is_success
        process.terminate()
        assert ended(process)[0] == 0


def test_strict_lists_what_failed_and_refuses() -> None:
    with started("service.failures = (Failed(),)", ask="bind='127.0.0.1:0', strict=True") as process:
        code, out, err = ended(process)
    assert code == 2
    assert "agent broken (agents/broken.lua:3): script_error: unexpected symbol near 'end'" in out
    assert "listening" not in out
    assert "--strict" in err
    assert "closed" in err


def test_without_strict_a_failure_is_told_and_the_rest_is_served() -> None:
    with started("service.failures = (Failed(),)") as process:
        url = url_of(process)
        assert httpx2.get(url + "/health").json()["scripts_failing"] == 1
        process.terminate()
        assert ended(process)[0] == 0


def test_the_banner_names_what_can_be_called_and_what_cannot() -> None:
    service = FakeService(failures=(Failed(), Failed(path=None, line=None, name="other")), warnings=("careful",))
    service.engine.layers = (Layer(), Layer("landlock", "unavailable", "the kernel has none"))
    text = "\n".join(loaded_lines(service))  # type: ignore[arg-type]
    assert "Loaded 4 agent(s):" in text
    assert "  POST /agents/helper/prompt [lua] — Helps" in text
    assert "  POST /tools/echo — Echo" in text
    assert "besides search, sources" in text
    assert "agent broken (agents/broken.lua:3): script_error" in text
    assert "agent other (in the configuration): script_error" in text
    assert "Warning: careful" in text
    assert "process active, landlock unavailable" in text
    assert "  landlock: the kernel has none" in text
    assert listening(service, "http://127.0.0.1:1")[0] == "MCP server listening on http://127.0.0.1:1"  # type: ignore[arg-type]
    assert listening(service, "http://127.0.0.1:1")[1] == "  MCP endpoint: http://127.0.0.1:1/mcp"  # type: ignore[arg-type]
    assert "curl" in listening(service, "http://127.0.0.1:1", demo=True)[-1]  # type: ignore[arg-type]


def test_the_command_line_loads_no_mcp_unless_it_serves() -> None:
    code = "import server.logs, server.problems, server.http.body, sys; sys.exit('mcp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


# ---- memory ------------------------------------------------------------------------------------------------------

BODY_BYTES = 4_000_000
# The fake service keeps nothing of what it is asked.
FORGETFUL = """
    import collections
    service.seen = collections.deque(maxlen=0)
"""
# Each costs what follows the parser in another way: characters of four bytes, many values, long texts, keys.
LARGE_BODIES = [
    b'{"a":"\xf0\x9f\x98\x80%s"}' % (b"x" * BODY_BYTES),
    b'{"a":[%s,"%s"]}' % (b",".join([b"[]"] * 22_000), b"x" * (BODY_BYTES - 150_000)),
    b'{"a":[%s]}' % b",".join([b'"%s"' % (b"x" * 90)] * (BODY_BYTES // 93)),
    b'{%s,"z":"%s"}' % (b",".join(b'"k%d":1' % i for i in range(45_000)), b"x" * (BODY_BYTES - 1_100_000)),
]


async def burst(url: str, count: int) -> list[httpx2.Response]:
    """The answers to so many large bodies at once."""
    answers: list[httpx2.Response] = []

    async def ask(client: httpx2.AsyncClient, body: bytes) -> None:
        answers.append(
            await client.post(f"{url}/tools/number", content=body, headers={"content-type": "application/json"})
        )

    limits = httpx2.Limits(max_connections=count)
    async with httpx2.AsyncClient(timeout=120, limits=limits) as client, trio.open_nursery() as nursery:
        for i in range(count):
            nursery.start_soon(ask, client, LARGE_BODIES[i % len(LARGE_BODIES)])
    return answers


# What the address space of the process may grow by once it has started, in MiB.
@pytest.mark.whole
@pytest.mark.parametrize("mib", part((50, 120, 300, 600), lambda _: None, one_in=2))
def test_many_large_bodies_are_answered_or_unavailable_where_there_is_little_memory(mib: int) -> None:
    setup = f"""{FORGETFUL}
    import resource
    size = int(open("/proc/self/statm").read().split()[0]) * 4096 + {mib} * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    """
    with started(setup, "body_timeout_s=120") as process:
        url = url_of(process)
        for answer in trio.run(burst, url, 60):
            if answer.status_code != 200:
                assert assert_envelope(answer, 503, "unavailable")["retry_after_s"] == 1
        assert httpx2.post(f"{url}/tools/echo", json={"a": 1}).json() == {"result": {"a": 1}}
        process.terminate()
        assert ended(process)[0] == 0


def test_the_memory_of_large_bodies_is_given_back() -> None:
    def resident(process: "subprocess.Popen[str]") -> int:
        return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * 4096

    with started(FORGETFUL, "body_timeout_s=120") as process:
        url = url_of(process)
        assert httpx2.post(f"{url}/tools/number", json={}).status_code == 200
        before = resident(process)
        for answer in trio.run(burst, url, 30):
            assert answer.status_code == 200
        assert httpx2.post(f"{url}/tools/number", json={}).status_code == 200
        assert resident(process) - before < 16 * BODY_BYTES
        process.terminate()
        assert ended(process)[0] == 0

"""Servers of every temper: what each of them does has a name in the outcomes, and the figures are right."""

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
from bench_support import ASK, JSON, Answering, Last, RawServer, Reset, Served, fine, serving
from trio.testing import wait_all_tasks_blocked

from agents.service import open_service
from benchmarks.bench import Plan, Watch, measure
from benchmarks.load.account import Answer, Recorder
from benchmarks.load.making import make_load
from benchmarks.load.schedule import Load, Request
from benchmarks.processes import Work, make_together
from benchmarks.scenario import Ask, ScenarioError, load, parse
from benchmarks.targets.address import Address, AddressError, choose, parse_url, resolve
from benchmarks.targets.client import Client
from benchmarks.targets.mcp import Era, McpTarget
from benchmarks.targets.rest import HttpTarget
from benchmarks.targets.server_figures import means
from benchmarks.targets.target import Unfit
from engine.config import LoadedConfig, parse_config
from server.app import listen, open_app, serve_app

TOOL = Ask(name="t", kind="tool", what="t", arguments={"n": "{n}"})


async def ask(server: RawServer, one: Ask = ASK, timeout_s: float = 20) -> Answer:
    """One request to the server."""
    target = HttpTarget(server.address)
    try:
        with trio.fail_after(timeout_s):
            return await target.send(Request(one, "default", 1))
    finally:
        target.close()


def answering(raw: bytes | None) -> Answering:
    async def answer(request: Served) -> bytes | None:
        await trio.lowlevel.checkpoint()
        return raw

    return answer


def http(status: int, body: bytes, more: str = "") -> bytes:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


@pytest.mark.parametrize(("raw", "outcome"), [
    (JSON, "ok"),
    (http(200, b'{"system":"x"}'), "ok"),
    (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "ok"),
    (b"HTTP/1.1 103 Early\r\n\r\n" + JSON, "ok"),
    (http(200, b"[]"), "garbage"),
    (http(200, b"<html>"), "garbage"),
    (http(200, b""), "garbage"),
    (b"\x16\x03\x01 not http at all\r\n\r\n", "garbage"),
    (b"HTTP/1.1 200 OK\r\ncontent-length: nine\r\n\r\n{}", "garbage"),
    (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 40_000, "garbage"),
    (None, "closed"),
    (Last(b"HTTP/1.1 200 OK\r\n\r\n{}"), "ok"),  # without a length, the end of the connection is that of the answer
    (http(500, b'{"error":{"code":"agent_error","message":"m"}}'), "script_error"),
    (http(500, b'{"error":{"code":"tool_error","message":"m"}}'), "script_error"),
    (http(429, b'{"error":{"code":"queue_full"}}'), "queue_full"),
    (http(408, b'{"error":{"code":"cpu_limit"}}'), "cpu_limit"),
    (http(500, b'{"error":{"code":"made_up"}}'), "http_500"),
    (http(500, b'{"error":{"code":["x"]}}'), "http_500"),
    (http(502, b"<html>"), "http_502"),
    (http(301, b"{}", "location: http://example.com/\r\n"), "http_301"),
])  # fmt: skip
async def test_every_answer_has_its_outcome(raw: bytes | None, outcome: str) -> None:
    async with serving(answering(raw)) as server:
        assert (await ask(server)).outcome == outcome


CHUNK = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\n{}"


async def test_a_connection_that_breaks_is_told_from_one_that_ends() -> None:
    async def breaks(request: Served) -> bytes | None:
        raise Reset

    async with serving(breaks) as server:
        assert (await ask(server)).outcome == "reset"
    for part in (b"", b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}", CHUNK):
        async with serving(answering(Last(part))) as server:
            assert (await ask(server)).outcome == "closed"


async def test_an_address_without_a_listener_is_refused() -> None:
    async with serving() as server:
        address = server.address
    target = HttpTarget(address)
    assert (await target.send(Request(ASK, "default", 0))).outcome == "refused"


async def test_connections_are_kept_and_one_that_the_server_closed_is_not_used_again() -> None:
    async def every_other_closes(request: Served) -> bytes | None:
        return http(200, b"{}", "connection: close\r\n" if request.number % 4 == 3 else "")

    async with serving(every_other_closes) as server:
        target = HttpTarget(server.address)
        for number in range(8):
            assert (await target.send(Request(TOOL, "default", number))).outcome == "ok"
        target.close()
    assert server.connections == 2
    assert [json.loads(each.body) for each in server.seen] == [{"n": str(number)} for number in range(8)]
    assert {(each.method, each.path) for each in server.seen} == {("POST", "/tools/t")}


async def test_a_connection_that_was_closed_while_it_was_free_costs_nothing() -> None:
    closed: list[int] = []

    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(JSON)
        await stream.aclose()  # without having said that it would
        closed.append(1)

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        client = Client(Address("127.0.0.1", port, f"127.0.0.1:{port}"))
        for _ in range(5):
            assert (await client.request("GET", "/")).status == 200
            await wait_all_tasks_blocked()
        client.close()
        nursery.cancel_scope.cancel()
    assert len(closed) == 5


async def test_names_are_quoted_in_paths_and_keys_are_sent_for_their_tenant() -> None:
    async with serving() as server:
        target = HttpTarget(server.address, {"acme": "key-1"})
        await target.send(Request(Ask(name="x", kind="agent", what="a b/../c"), "acme", 0))
        await target.send(Request(Ask(name="x", kind="get", what="/health"), "other", 0))
        target.close()
    first, second = server.seen
    assert first.path == "/agents/a%20b%2F..%2Fc/prompt"
    assert first.headers["authorization"] == "Bearer key-1"
    assert "authorization" not in second.headers


# ---- known behaviour, on the machine's own clock -------------------------------------------------------------------


def delaying(seconds: float) -> Answering:
    async def answer(request: Served) -> bytes | None:
        await trio.sleep(seconds)
        return JSON

    return answer


async def measured(server: RawServer, load: Load, *asks: Ask) -> Recorder:
    account, target = Recorder(load), HttpTarget(server.address)
    with trio.fail_after(60):
        await make_load(load, asks or (ASK,), ("default",), target, account)
    target.close()
    return account


async def test_counts_are_right_and_no_answer_is_quicker_than_the_server() -> None:
    async def one_percent(request: Served) -> bytes | None:
        await trio.sleep(0.01)
        return http(500, b"{}") if request.number % 100 == 75 else JSON

    async with serving(one_percent) as server:
        account = await measured(server, Load(rate=400, duration_s=0.5, warm_up_s=0.125))
    assert account.outcomes["ok"] + account.outcomes["http_500"] == 200
    assert account.outcomes["http_500"] == 2
    assert (account.warm_up, len(server.seen)) == (50, 250)
    assert account.latencies.percentiles_ms([0.0])[0.0] >= 10


async def test_a_stall_shows_in_the_open_model_and_not_in_the_closed_one() -> None:
    stall_s = 0.3

    def stalled_once() -> Answering:
        until: list[float] = []

        async def answer(request: Served) -> bytes | None:
            if request.number == 20:
                until.append(trio.current_time() + stall_s)
            if until:
                await trio.sleep_until(until[0])
            return JSON

        return answer

    async with serving(stalled_once()) as server:
        opened = await measured(server, Load(rate=100, duration_s=0.8, warm_up_s=0))
    async with serving(stalled_once()) as server:
        closed = await measured(server, Load(rate=None, concurrency=1, duration_s=0.8, warm_up_s=0))
    # 30 of 80 were meant to leave in the stall: those after its first tenth waited for most of it.
    waited = {percent: value / 1e3 for percent, value in opened.latencies.percentiles_ms([75.0, 99.0]).items()}
    assert opened.measured == 80
    assert waited[99.0] > 0.9 * stall_s
    assert waited[75.0] > 0.01
    # The closed one waited for one answer, and made no request meanwhile.
    assert sum(count for micros, count in closed.latencies.counts().items() if micros > 0.9e6 * stall_s) <= 2
    assert closed.latencies.percentiles_ms([75.0])[75.0] < 0.1 * stall_s * 1e3


async def test_a_server_that_restarts_in_the_middle_is_missed_and_found_again() -> None:
    async with serving() as server:
        port = server.address.port
    account = Recorder(Load(rate=100, duration_s=1.2, warm_up_s=0))
    target = HttpTarget(Address("127.0.0.1", port, f"127.0.0.1:{port}"))

    async def twice() -> None:
        for pause in (0.0, 0.4):
            await trio.sleep(pause)
            async with serving(fine, port):
                await trio.sleep(0.5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(twice)
        await make_load(account.load, (ASK,), ("default",), target, account)
    target.close()
    assert account.measured == 120
    assert account.outcomes["ok"] > 40
    assert account.outcomes["refused"] > 10
    assert set(account.outcomes) <= {"ok", "refused", "closed", "reset"}
    late = sum(block.latencies.count - block.errors for block in account.blocks[-8:])
    assert late > 10  # answered again at the end


async def test_several_processes_make_one_load_together() -> None:
    work = Work(load=Load(rate=101, duration_s=0.8, warm_up_s=0.2), asks=(TOOL,), tenants=("a", "b"))
    told = []
    async with serving() as server:
        with trio.fail_after(60):
            made = await make_together(
                replace(work, address=server.address), 3, trio.Event(), lambda progress, at_s: told.append(progress)
            )
    assert made.account.measured + made.account.warm_up == 101
    assert made.account.outcomes == {"ok": made.account.measured}
    assert len(made.cpu_shares) == 3
    assert not made.interrupted
    # Every request has a number of its own, with any sender.
    assert sorted(int(json.loads(each.body)["n"]) for each in server.seen) == list(range(101))


async def test_several_processes_stop_together_and_tell_what_they_have() -> None:
    work = Work(load=Load(rate=50, duration_s=60, warm_up_s=0), asks=(ASK,), tenants=("default",))
    stop = trio.Event()

    async def until_ten(request: Served) -> bytes | None:
        if request.number >= 10:
            stop.set()
        return JSON

    async with serving(until_ten) as server:
        with trio.fail_after(60):
            made = await make_together(replace(work, address=server.address), 2, stop, None)
    assert made.interrupted
    assert made.elapsed_s < 60
    assert 8 <= made.account.measured <= len(server.seen)


# ---- addresses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("url", "reason"), [
    ("", "not a URL"), ("127.0.0.1:7331", "not a URL"), ("ftp://localhost/", "not a URL"), ("http://", "not a URL"),
    ("http:///x", "not a URL"), ("http://localhost:0", "port 0"), ("http://localhost:99999", "not a URL"),
    ("http://localhost:x", "not a URL"), ("https://localhost", "https is not spoken"), ("http://[::1", "not a URL"),
    ("http://user:pass@localhost", "user or password"), ("http://local host/", "space or a control"),
    ("http://localhost/\r\nx: y", "space or a control"), ("http://localhost/ü", "not ASCII"),
])  # fmt: skip
def test_what_is_no_url_is_refused(url: str, reason: str) -> None:
    with pytest.raises(AddressError, match=reason):
        parse_url(url)


@pytest.mark.parametrize(("numeric", "allowed"), [
    (["127.0.0.1"], True), (["127.8.9.1", "::1"], True), (["::ffff:127.0.0.1"], True), (["192.0.2.1"], False),
    (["127.0.0.1", "192.0.2.1"], False), (["10.0.0.1"], False), (["::"], False), (["0.0.0.0"], False),
    (["169.254.169.254"], False), (["::ffff:192.0.2.1"], False), (["fe80::1%lo"], False),
])  # fmt: skip
def test_a_load_stays_on_this_machine_unless_it_is_told_otherwise(numeric: list[str], allowed: bool) -> None:
    assert choose(numeric, "name", allow_remote=True) == numeric
    if allowed:
        assert choose(numeric, "name", allow_remote=False) == numeric
    else:
        with pytest.raises(AddressError, match="--allow-remote"):
            choose(numeric, "name", allow_remote=False)


async def test_a_name_is_resolved_once_and_what_does_not_listen_is_said() -> None:
    async with serving() as server:
        address = await resolve(parse_url(f"http://localhost:{server.address.port}/base/"), allow_remote=False)
        assert address == Address("127.0.0.1", server.address.port, f"localhost:{server.address.port}", "/base")
        target = HttpTarget(address)
        await target.send(Request(ASK, "default", 0))
        target.close()
        assert (server.seen[0].path, server.seen[0].headers["host"]) == ("/base/agents/noop/prompt", address.authority)
    with pytest.raises(AddressError, match="nothing listens at"):
        await resolve(parse_url(server.url), allow_remote=False)
    with pytest.raises(AddressError, match="no such host"):
        await resolve(parse_url("http://does-not-exist.invalid"), allow_remote=False)


async def test_a_listener_on_ipv6_is_reached() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        (listener,) = await trio.open_tcp_listeners(0, host="::1")
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    port = listener.socket.getsockname()[1]
    server = RawServer(fine, Address("::1", port, f"[::1]:{port}"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, server.serve, [listener])
        address = await resolve(parse_url(f"http://[::1]:{port}"), allow_remote=False)
        assert (await HttpTarget(address).send(Request(ASK, "default", 0))).outcome == "ok"
        nursery.cancel_scope.cancel()


# ---- the engine itself ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def engine_serving(folder: Path) -> AsyncIterator[str]:
    """A real server with the scripts of `noop` and `hostile`."""
    text = f'[db]\npath = "{folder}/store.sqlite"\n[sandbox]\nworkers = 2\nreserve = 1\n'
    text += load("noop").server_config() + "\n" + load("hostile").server_config()
    loaded = LoadedConfig(parse_config(text, environ={}, cwd=folder)[0], None, folder)
    async with (
        open_service(loaded) as service,
        await listen("127.0.0.1", 0) as listener,
        open_app(service, loaded.config.server, "127.0.0.1") as app,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(partial(serve_app, app, listener, trio.Event(), graceful_timeout_s=0))
        yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


SHORT = Load(rate=80, duration_s=0.25, warm_up_s=0.05)


async def test_the_engine_is_asked_over_rest_and_both_eras_of_mcp(tmp_path: Path) -> None:
    async with engine_serving(tmp_path) as url:
        for target, era in (("http", "2026"), ("mcp", "2026"), ("mcp", "handshake")):
            plan = Plan(target=target, scenario=load("noop"), load=SHORT, url=url, era=era)  # type: ignore[arg-type]
            with trio.fail_after(60):
                result = await measure(plan, Watch())
            assert result["outcomes"] == {"ok": 20}
            assert result["requests"] == ["agent bench-noop"]
            assert result["notes"] == []
            if target == "http":
                assert result["server"]["runs"] >= 20
                assert result["server"]["run_mean_ms"] > 0
                assert "seccomp" in result["layers"]
                assert result["memory"]["workers_peak_bytes"] > 0


HOSTILE_WAYS = {"spin": "cpu_limit", "memory": "memory_limit", "output": "output_limit", "calls": "call_limit"}


async def test_hostile_scripts_have_the_same_outcomes_over_every_protocol(tmp_path: Path) -> None:
    async with engine_serving(tmp_path) as url:
        address = await resolve(parse_url(url), allow_remote=False)
        mcp = Address(address.host, address.port, address.authority, "/mcp")
        eras: tuple[Era, ...] = ("2026", "handshake")
        targets: list[HttpTarget | McpTarget] = [HttpTarget(address), *(McpTarget(mcp, era) for era in eras)]
        for target in targets:
            if isinstance(target, McpTarget):
                assert await target.begin() is None
            for way, outcome in HOSTILE_WAYS.items():
                one = Ask(name=way, kind="agent", what=f"bench-hostile-{way}")
                with trio.fail_after(20):
                    assert (await target.send(Request(one, "default", 0))).outcome == outcome
            missing = Ask(name="x", kind="tool", what="nobody")
            assert (await target.send(Request(missing, "default", 0))).outcome == "not_found"
            target.close()


async def test_a_scenario_is_fitted_to_what_the_server_has(tmp_path: Path) -> None:
    async with engine_serving(tmp_path) as url:
        for target in ("http", "mcp"):
            plan = Plan(target=target, scenario=load("tool"), load=SHORT, url=url)  # type: ignore[arg-type]
            with trio.fail_after(60):
                result = await measure(plan, Watch())
            assert result["requests"] == ["tool search"]
            assert result["notes"] == ["the server has no tool bench-tool: tool search is asked instead"]
            # Its name in the figures stays that of the scenario.
            assert set(result["by"]["request"]) == {"bench-tool"}
            with pytest.raises(Unfit, match=r"no agent 'bench-cpu'.*bench scenarios cpu"):
                await measure(Plan(target=target, scenario=load("cpu"), load=SHORT, url=url), Watch())  # type: ignore[arg-type]


async def test_a_server_that_is_no_engine_is_asked_all_the_same() -> None:
    async with serving(delaying(0.005)) as server:
        with trio.fail_after(60):
            result = await measure(Plan(target="http", scenario=load("cpu"), load=SHORT, url=server.url), Watch())
    assert result["outcomes"] == {"ok": 20}
    assert result["notes"] == [
        "the server did not say which agents and tools it has; the scenario's are asked for unseen"
    ]
    assert result["server"] is None
    # Nothing but a list was asked beside the load: its own polling must not change what is measured.
    assert sorted({each.path for each in server.seen}) == ["/agents/bench-cpu/prompt", "/agents/list"]


async def test_what_a_target_cannot_do_is_said_before_it_is_asked(tmp_path: Path) -> None:
    get = parse('[[requests]]\nget = "/health"\n', "mine", tmp_path)
    async with serving() as server:
        for plan, reason in (
            (Plan(target="http", scenario=load("cold"), load=SHORT, url=server.url), "engine bench run"),
            (Plan(target="http", scenario=load("noisy-neighbour"), load=SHORT, url=server.url), "several tenants"),
            (Plan(target="http", scenario=load("noop"), load=SHORT, url=server.url, tenants=3), "needs a key for each"),
            (
                Plan(target="http", scenario=load("noop"), load=SHORT, url=server.url, tenants=3, keys=("a",)),
                "3 tenants ask, .* --key-file has 1",
            ),
            (Plan(target="mcp", scenario=get, load=SHORT, url=server.url), "no form for"),
        ):
            with pytest.raises(ScenarioError, match=reason):
                await measure(plan, Watch())
        assert server.seen == []


def test_means_are_of_what_happened_in_between() -> None:
    before = {"engine_run_seconds_count": 10, "engine_run_seconds_sum": 1.0, "engine_cpu_seconds_total": 0.5}
    after = {"engine_run_seconds_count": 30, "engine_run_seconds_sum": 1.4, "engine_cpu_seconds_total": 0.6}
    assert means(before, after) == {"run_mean_ms": 20.0, "cpu_mean_ms": 5.0, "runs": 20}
    assert means(before, before) == {}
    assert means({}, {}) == {}


async def test_a_request_beyond_every_patience_is_given_up_by_the_client_alone() -> None:
    async def endless(request: Served) -> bytes | None:
        await trio.sleep_forever()
        return None

    async with serving(endless) as server:
        account = await measured(server, Load(rate=20, duration_s=0.3, warm_up_s=0, timeout_s=0.2))
        assert account.outcomes == {"no_answer": 6}


async def test_a_server_that_hangs_from_the_start_does_not_hold_the_tester(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("fitting", "publishing"):
        monkeypatch.setattr(f"benchmarks.{module}._TIMEOUT_S", 0.2)
    short = Load(rate=20, duration_s=0.3, warm_up_s=0, timeout_s=0.2)

    async def endless(request: Served) -> bytes | None:
        await trio.sleep_forever()
        return None

    async with serving(endless) as server:
        for target, era in (("http", "2026"), ("mcp", "2026"), ("mcp", "handshake")):
            plan = Plan(target=target, scenario=load("noop"), load=short, url=server.url, era=era)  # type: ignore[arg-type]
            with trio.fail_after(60):
                assert (await measure(plan, Watch()))["outcomes"] == {"no_answer": 6}
            with pytest.raises(Unfit, match=r"does not publish the agent .*: no_answer"), trio.fail_after(60):
                await measure(replace(plan, scenario=load("churn")), Watch())

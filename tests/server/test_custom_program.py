"""Programs that embed the engine: the documented example as a process, and the engine inside a trio loop that runs."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import httpx2
import pytest
import trio
import warm_start
from mcp import Client
from server_support import assert_envelope

import engine
from engine.config import ConfigError, LoadedConfig, parse_config
from server.app import Refused
from server.program import loaded_config

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/custom_program"


def small(folder: Path, **more: Any) -> dict[str, Any]:
    """A configuration of a program that is ready soon, with all that it keeps in this folder."""
    return {
        "root": str(folder),
        "db": {"path": "store.sqlite"},
        "server": {"bind": "127.0.0.1:0", "graceful_timeout_s": 5},
        "sandbox": {"workers": 1, "reserve": 0},
        **more,
    }


@contextmanager
def running(*words: str, cwd: Path) -> Iterator["subprocess.Popen[str]"]:
    """A Python process in this folder; killed when the block ends, if it has not ended."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("ENGINE_", "CTX_"))}
    with warm_start.Popen(
        [sys.executable, *words],
        cwd=cwd,
        env=environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), os.environ["PYTHONPATH"]))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def url_in(stream: IO[str] | None) -> str:
    assert stream is not None
    lines = []
    for line in stream:
        lines.append(line)
        if found := re.search(r"listening on (http://\S+)", line):
            return found[1]
    raise AssertionError("".join(lines))


# ---- the example ------------------------------------------------------------------------------------------------


async def test_the_example_serves_its_agent_and_tool_over_rest_and_mcp_and_ends_with_0(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "program")
    with running("program/serve.py", "127.0.0.1:0", cwd=tmp_path) as process:
        url = await trio.to_thread.run_sync(url_in, process.stdout)
        async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
            listed = (await client.get("/agents/list")).json()["agents"]
            assert [(agent["name"], agent["source"]) for agent in listed] == [
                ("shipment-expert", "python"),
                ("dispatcher", "toml"),
            ]
            prompt = (await client.post("/agents/shipment-expert/prompt", json={"lane": "HAM-OSL"})).json()
            assert prompt["tools"] == ["search", "get", "run_query"]
            assert "- in transit: 2" in prompt["system"]
            sql = "SELECT carrier, sum(kilograms) FROM shipments WHERE lane = 'HAM-OSL' GROUP BY carrier"
            answer = await client.post("/tools/run_query?agent=dispatcher", json={"sql": sql})
            assert answer.json() == {
                "result": {"columns": ["carrier", "sum(kilograms)"], "rows": [["Nordkai", 2040.5]]}
            }
            for wrong, status, code, text in (
                ({}, 400, "bad_request", "missing required parameter: sql"),
                ({"sql": "SELECT 1", "rows": 0}, 400, "bad_request", "'rows'"),
                ({"sql": "DROP TABLE shipments"}, 500, "tool_error", "the database says: not authorized"),
                ({"sql": "ATTACH '/etc/passwd' AS a"}, 500, "tool_error", "the database says: not authorized"),
                ({"sql": "SELECT * FROM shipmnts"}, 500, "tool_error", "no such table: shipmnts"),
            ):
                error = assert_envelope(await client.post("/tools/run_query", json=wrong), status, code)
                assert text in error["message"]
            assert (await client.post("/tools/run_query", json={"sql": "SELECT 1"})).json()["result"]["rows"] == [[1]]
        async with Client(f"{url}/mcp") as mcp:
            tools = {tool.name: tool for tool in (await mcp.list_tools()).tools}
            assert tools["run_query"].annotations.read_only_hint is True
            assert tools["run_query"].input_schema["required"] == ["sql"]
            called = await mcp.call_tool("run_query", {"sql": "SELECT count(*) AS n FROM shipments"})
            assert called.structured_content == {"columns": ["n"], "rows": [[5]]}
            assert "held at customs" in (await mcp.get_prompt("shipment-expert", {})).messages[0].content.text
        process.terminate()
        _, err = await trio.to_thread.run_sync(process.communicate)
    assert process.returncode == 0, err
    assert "Traceback" not in err


def test_the_modules_of_the_example_can_be_named_in_a_configuration_as_well(tmp_path: Path) -> None:
    for path in EXAMPLE.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    (tmp_path / "engine.toml").write_text(
        '[agents.python.expert]\npath = "shipments:ShipmentExpert"\n'
        '[tools.python.run_query]\npath = "shipments:RunQuery"\n'
        '[tools.python.broken]\npath = "shipments:RunQueries"\n'
        '[agents.python.failing]\npath = "failing:Failing"\n'
    )
    (tmp_path / "failing.py").write_text(
        "class Failing:\n"
        "    async def resolve(self, args, context):\n"
        "        context.log.info('about to fail')\n"
        "        return {}[args['key']]\n"
    )

    def command(*words: str) -> tuple[int, str, str]:
        with running("-m", "cli.main", *words, cwd=tmp_path) as process:
            out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    commands = (
        ("agent", "test", "expert", "--arg", "lane=HAM-OSL"),
        ("tool", "test", "run_query", "--param", "sql=SELECT 1 AS one", "--param", "rows=1"),
        ("agent", "list"),
        ("tool", "list"),
        ("doctor",),
        ("agent", "test", "failing", "--arg", "key=k"),
    )
    with ThreadPoolExecutor(3) as pool:
        answers = pool.map(lambda words: command(*words), commands)
    code, out, _ = next(answers)
    assert code == 0
    assert "Source: python (shipments:ShipmentExpert)" in out
    assert "- booked: 1" in out
    code, out, err = next(answers)
    assert code == 0
    assert "Source: python (shipments:RunQuery)" in out
    assert "[info] 1 rows" in err
    code, out, _ = next(answers)
    assert "[python]" in out
    code, out, _ = next(answers)
    assert re.search(r"^run_query +python +Runs a SELECT statement", out, re.MULTILINE)
    code, out, _ = next(answers)
    assert code == 1
    assert "broken: script_error: module 'shipments' has no 'RunQueries' (shipments:RunQueries)" in out
    code, out, err = next(answers)
    assert code == 1
    assert "[info] about to fail" in err
    assert "script_error: agent 'failing': its code failed" in err
    assert "KeyError: 'k'" in err  # the operator's own code, on the operator's own terminal


# ---- serve ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("engine.serve({}, agents=[object()])", "error: agents[0] (builtins:object): 'builtins:object' has no method"),
        ("engine.serve({'sandbox': {'disable': ['seccomp']}})", "error: a required layer of the sandbox is missing"),
    ],
)
def test_what_cannot_be_opened_is_one_line_and_exit_code_2(tmp_path: Path, program: str, message: str) -> None:
    with running("-c", f"import engine\n{program}\nprint('went on')", cwd=tmp_path) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "went on" not in out
    assert len(err.splitlines()) == 1, err
    assert err.startswith(message)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("missing.toml", "error: missing.toml: no such configuration file"),
        ({"server": {"bnid": 1}}, "error: the program's configuration: server.bnid: unknown key"),
        ({"agents": {"python": {"x": {}}}}, "error: the program's configuration: agents.python.x: required key 'path'"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_one_line_and_exit_code_2(
    config: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        engine.serve(config)
    assert raised.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(message)


async def test_serve_says_what_to_use_inside_a_running_loop() -> None:
    with pytest.raises(RuntimeError, match=r"use engine\.serve_async"):
        engine.serve({})


# ---- serve_async ------------------------------------------------------------------------------------------------


class Slow:
    """Takes as long as it is made to."""

    name = "slow"

    def __init__(self) -> None:
        self.entered, self.release, self.cancelled = trio.Event(), trio.Event(), trio.Event()

    async def execute(self, params: Any, context: engine.Context) -> str:
        self.entered.set()
        try:
            await self.release.wait()
        except trio.Cancelled:
            self.cancelled.set()
            raise
        return "done"


class Greeter:
    name = "greeter"

    async def resolve(self, args: dict[str, Any], context: engine.Context) -> engine.AgentPrompt:
        return engine.AgentPrompt(system=f"Hello {args.get('who')}", tools=())


async def test_a_server_inside_a_running_loop_answers_and_lets_requests_end_when_its_block_does(
    tmp_path: Path,
) -> None:
    slow, answers = Slow(), []
    inline = {"fixed": {"description": "", "system_prompt": "text"}}
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            config = small(tmp_path, agents=inline)
            async with engine.serve_async(config, agents=[Greeter], tools=[slow]) as serving:
                async with httpx2.AsyncClient(base_url=serving.url, timeout=30) as client:
                    prompt = (await client.post("/agents/greeter/prompt", json={"who": "you"})).json()
                    assert prompt == {"system": "Hello you", "tools": [], "messages": []}
                    assert (await client.post("/agents/fixed/prompt")).json()["system"] == "text"
                    assert (await client.post("/tools/search", json={"query": "x"})).json() == {"results": []}

                async def call() -> None:
                    async with httpx2.AsyncClient(base_url=serving.url, timeout=30) as client:
                        answers.append((await client.post("/tools/slow")).json())

                nursery.start_soon(call)
                await slow.entered.wait()
                nursery.start_soon(_release_when_closed, serving.url, slow)
    assert answers == [{"result": "done"}]
    assert not slow.cancelled.is_set()


async def _release_when_closed(url: str, slow: Slow) -> None:
    """Let the tool end once the server takes no more connections: the farewell has begun."""
    port = int(url.rpartition(":")[2])
    while True:
        try:
            await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
        except OSError:
            slow.release.set()
            return
        await trio.sleep(0.01)


async def test_a_client_that_leaves_cancels_the_tool_and_the_next_call_works(tmp_path: Path) -> None:
    slow = Slow()
    with trio.fail_after(60):
        async with engine.serve_async(small(tmp_path), tools=[slow], agents=[Greeter()]) as serving:
            client = httpx2.AsyncClient(base_url=serving.url, timeout=30)
            async with client, trio.open_nursery() as nursery:
                nursery.start_soon(client.post, "/tools/slow")
                await slow.entered.wait()
                nursery.cancel_scope.cancel()
            await slow.cancelled.wait()
            async with httpx2.AsyncClient(base_url=serving.url, timeout=30) as client:
                assert (await client.post("/agents/greeter/prompt")).json()["system"] == "Hello None"


async def test_what_the_block_raises_comes_out_as_it_is_and_everything_has_ended(tmp_path: Path) -> None:
    urls = []

    async def fail() -> None:
        async with engine.serve_async(small(tmp_path), tools=[Slow]) as serving:
            urls.append(serving.url)
            raise KeyError("of the block")

    with trio.fail_after(60), pytest.raises(KeyError):
        await fail()
    with pytest.raises(OSError, match="connect"):
        await trio.open_tcp_stream("127.0.0.1", int(urls[0].rpartition(":")[2]))


@pytest.mark.parametrize(
    ("config", "options", "error"),
    [
        ({"server": {"bind": "192.0.2.1:0"}}, {}, Refused),
        ({"server": {"bind": "0.0.0.0:0"}}, {}, Refused),
        ({"agnts": {}}, {}, ConfigError),
        ({}, {"tools": [Slow(), Slow()]}, ConfigError),
    ],
)
async def test_what_keeps_it_from_serving_is_raised_by_its_own_name(
    tmp_path: Path, config: dict[str, Any], options: dict[str, Any], error: type[Exception]
) -> None:
    with trio.fail_after(60), pytest.raises(error):
        async with engine.serve_async(small(tmp_path, **config), **options):
            raise AssertionError("served")


def test_a_configuration_is_a_path_tables_or_one_that_was_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("A_BIND", "127.0.0.1:1")
    text = '[server]\nbind = "${A_BIND}"\n[tools.python.b]\npath = "b:B"\n[tools.script.a]\npath = "a.lua"\n'
    (tmp_path / "some.toml").write_text(text)
    tables = {
        "server": {"bind": "${A_BIND}"},
        "tools": {"python": {"b": {"path": "b:B"}}, "script": {"a": {"path": "a.lua"}}},
    }
    expected, _ = parse_config(text, environ=os.environ, cwd=tmp_path)
    for given in ("some.toml", tmp_path / "some.toml", tables):
        found = loaded_config(given)
        assert found.config.model_dump() == expected.model_dump()
        assert found.root == tmp_path
    assert tables["server"] == {"bind": "${A_BIND}"}
    ready = LoadedConfig(expected, None, tmp_path)
    assert loaded_config(ready) is ready
    assert loaded_config(None).path is None


def test_the_door_has_what_it_says_and_nothing_else() -> None:
    assert all(getattr(engine, name) is not None for name in engine.__all__)
    with pytest.raises(AttributeError, match="no attribute 'served'"):
        engine.served  # noqa: B018
    quiet = "import sys, engine.config; assert not {'agents', 'server', 'mcp'} & set(sys.modules), sys.modules"
    subprocess.run([sys.executable, "-c", quiet], cwd=ROOT, check=True, timeout=60)

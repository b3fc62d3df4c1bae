"""What models cost is in the books after the server was killed."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import trio
import warm_start
from mcp_support import modern

from control.usage import FLUSH_S

OPERATOR = {"authorization": "Bearer the-operators-own-key"}
CONFIG = """
[db]
path = "data/engine.sqlite"
[embedding]
provider = "disabled"
[sandbox]
workers = 1
reserve = 0
[tenants]
enabled = true
operator_key = "the-operators-own-key"
[models.demo]
api = "script"
path = "demo.toml"
tenants = ["*"]
price = { input = 3, output = 15 }
[agents.chatmd.teller]
path = "teller.chatmd"
tenants = ["*"]
"""
REPLIES = """
[[reply]]
when = "wait"
delay_s = 60
[[reply]]
text = "Told."
usage = { input = 1234, cached = 200, output = 56 }
"""
FIGURES = ("input_tokens", "cached_tokens", "output_tokens", "cost_usd")


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple["subprocess.Popen[str]", httpx2.AsyncClient]]:
    """A server in a process of its own, and a client of it with the operator's key."""
    command = ["serve", "--bind", "127.0.0.1:0", "--config", str(folder / "engine.toml"), "--directory", str(folder)]
    with warm_start.Popen(
        [sys.executable, "-m", "cli.main", *command],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=folder,
        env={**os.environ, "ENGINE_LOG": "critical"},
    ) as process:  # fmt: skip

        def url() -> str:
            assert process.stdout is not None
            for line in process.stdout:
                if found := re.search(r"listening on (http://\S+)", line):
                    return found[1]
            raise AssertionError("the server did not start")

        try:
            address = await trio.to_thread.run_sync(url)
            async with httpx2.AsyncClient(base_url=address, timeout=30, headers=OPERATOR) as client:
                yield process, client
        finally:
            process.kill()


async def test_after_a_kill_the_sums_of_usage_are_the_ended_runs_own_figures(tmp_path: Path) -> None:
    files = {"engine.toml": CONFIG, "demo.toml": REPLIES, "teller.chatmd": "<system>You tell.</system>\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    async with served(tmp_path) as (process, client):
        assert (await client.post("/admin/tenants", json={"name": "acme"})).status_code == 201
        made = (await client.post("/admin/tenants/acme/keys", json={"scopes": ["use"]})).json()
        key = {"authorization": f"Bearer {made['key']}"}
        runs: list[dict[str, Any]] = []
        for _ in range(3):
            answer = await client.post("/tools/teller", json={"input": "tell"}, headers=key)
            assert answer.status_code == 200, answer.text
            runs.append(answer.json()["run"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_ask_in_vain, client, key)
            await trio.sleep(FLUSH_S + 1)
            process.send_signal(signal.SIGKILL)
    async with served(tmp_path) as (process, client):
        total = (await client.get("/usage", headers=key)).json()["total"]
        assert (total["model_calls"], total["runs"], total["outcomes"]) == (3, 3, {"ok": 3})
        for name in FIGURES:
            assert round(total[name] * 1e6) == round(sum(run[name] for run in runs) * 1e6), name
        answer = await client.post("/tools/teller", json={"input": "tell"}, headers=key)
        assert answer.json()["result"] == "Told."
        # The call that was under way may have been paid: it counts with the bound of its answer, 4,096 tokens at least.
        spent = round(total["cost_usd"] * 1e6) + round(answer.json()["run"]["cost_usd"] * 1e6)
        counted = round((await client.get("/limits", headers=key)).json()["quotas"]["cost_usd_per_day"]["used"] * 1e6)
        assert counted - spent > 4096 * 15
        process.terminate()
        assert await trio.to_thread.run_sync(process.wait) == 0


async def test_sigterm_gives_runs_their_graceful_time_and_a_typed_end_and_the_next_start_works(tmp_path: Path) -> None:
    for name, text in {**_without_tenants(), "teller.chatmd": "<system>You tell.</system>\n"}.items():
        (tmp_path / name).write_text(text)
    wait = {"name": "teller", "arguments": {"input": "wait"}}
    async with served(tmp_path) as (process, client):
        ended: dict[str, Any] = {}

        async def rest() -> None:
            ended["rest"] = await client.post("/tools/teller", json={"input": "wait"})

        async def mcp() -> None:
            ended["mcp"] = await client.post("/mcp", **modern("tools/call", wait))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(rest)
            nursery.start_soon(mcp)
            await trio.sleep(0.5)
            began = trio.current_time()
            process.terminate()
        assert 0.5 < trio.current_time() - began < 4
        assert ended["rest"].status_code == 503
        assert ended["rest"].json()["error"]["code"] == "unavailable"
        assert "unavailable" in ended["mcp"].text
        assert await trio.to_thread.run_sync(process.wait) == 0
    async with served(tmp_path) as (process, client):
        answer = await client.post("/tools/teller", json={"input": "tell"})
        assert answer.json()["result"] == "Told."
        total = (await client.get("/usage")).json()["total"]
        assert total["model_calls"] == 1


async def test_a_client_that_leaves_while_the_model_thinks_ends_its_run_within_a_quarter_of_a_second(
    tmp_path: Path,
) -> None:
    for name, text in {**_without_tenants(), "teller.chatmd": "<system>You tell.</system>\n"}.items():
        (tmp_path / name).write_text(text)
    requests: dict[str, dict[str, Any]] = {
        "/tools/teller": {"json": {"input": "wait"}},
        "/mcp": modern("tools/call", {"name": "teller", "arguments": {"input": "wait"}}),
    }
    async with served(tmp_path) as (_, client):
        gone = 0
        for path, request in requests.items():
            took = []
            for _ in range(3):  # the machine may be busy elsewhere
                async with httpx2.AsyncClient(base_url=client.base_url) as leaving:
                    with trio.move_on_after(0.3):
                        await leaving.post(path, **request)
                        raise AssertionError("it was answered")
                left, gone = trio.current_time(), gone + 1
                with trio.fail_after(5):
                    while await _outcomes(client) != {"cancelled": gone}:  # noqa: ASYNC110 - it is asked over HTTP
                        await trio.sleep(0.01)
                took.append(trio.current_time() - left)
            assert min(took) < 0.25, path
        assert (await client.post("/tools/teller", json={"input": "tell"})).json()["result"] == "Told."
        assert await _outcomes(client) == {"cancelled": gone, "ok": 1}


async def _outcomes(client: httpx2.AsyncClient) -> Any:
    return (await client.get("/usage")).json()["total"]["outcomes"]


def _without_tenants() -> dict[str, str]:
    config = CONFIG.replace("enabled = true", "enabled = false").replace('operator_key = "the-operators-own-key"\n', "")
    config = f"[server]\ngraceful_timeout_s = 1\n{config}".replace('tenants = ["*"]\n', "")
    return {"engine.toml": config, "demo.toml": REPLIES}


async def _ask_in_vain(client: httpx2.AsyncClient, key: dict[str, str]) -> None:
    try:
        await client.post("/tools/teller", json={"input": "wait"}, headers=key)
    except httpx2.TransportError:
        return
    raise AssertionError("a killed server answered")

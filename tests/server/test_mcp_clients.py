"""Clients in other languages against the real server: both lines of the TypeScript SDK, and the Inspector."""

import json
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from mcp_support import document, library, until
from node_packages import INSTALLED, SOURCE, node, program

from agents.changes import Change

CLIENTS = {"sdk": None, "client": "2025-11-25", "client-auto": "2026-07-28"}


@pytest.mark.parametrize("which", CLIENTS)
async def test_the_typescript_clients_list_call_resolve_complete_and_cancel(tmp_path: Path, which: str) -> None:
    script = (SOURCE / "client.mjs").read_text()
    async with library(tmp_path, document("a", "Restart it.", title="Runbook")) as server:
        service = server.service
        command = [node(), "--input-type=module", "-e", script, which, f"{server.url}/mcp"]
        start = partial(
            trio.run_process, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, check=False, cwd=INSTALLED
        )
        async with trio.open_nursery() as nursery:
            process = await nursery.start(start)
            printed = b""
            with trio.fail_after(90):
                async for part in process.stdout:
                    printed += part
                    if part.endswith(b"calling\n"):
                        await service.entered.wait()
                        await process.stdin.send_all(b"leave\n")
                        if which == "client-auto":  # in the older revisions only closing cancels: see test_mcp_listen
                            await service.cancelled.wait()
                    elif part.endswith(b"listening\n"):
                        await until(lambda: len(server.mcp.listeners) == 1)
                        service.changes.tell(Change(agents=False, tools=True))
                assert await process.wait() == 0, printed.decode()
        found: dict[str, Any] = json.loads(printed.decode().splitlines()[-1])
    assert found["server"] == "engine"
    assert "echo" in found["tools"]
    assert "helper" in found["prompts"]
    assert found["resources"] == ["Runbook"]
    assert found["called"] == {"a": [1, None, "é"]}
    assert found["number"] == (42 if which == "client-auto" else {"result": 42})
    assert found["failed"] is True
    assert found["prompt"] == ["user: You help with api.", "assistant: Ready.", "user: Mind the gap."]
    assert found["raw"] == "You help with api."
    assert found["read"] == "Restart it."
    assert found["completed"] == ["P1 outage", "not a P1"]
    assert found["missing"] == -32602
    assert found["steps"] == [0.25, 0.5, 1]
    assert found["aborted"] is True
    assert found.get("heard", False) is (which == "client-auto")
    assert found["revision"] == CLIENTS[which]


async def test_the_inspectors_command_line_lists_calls_and_gets_a_prompt(tmp_path: Path) -> None:
    async with library(tmp_path, document("a")) as server:

        async def inspect(*arguments: str) -> dict[str, Any]:
            command = [node(), program("mcp-inspector"), "--cli", f"{server.url}/mcp", "--transport", "http"]
            run = partial(trio.run_process, [*command, *arguments], capture_stdout=True, capture_stderr=True)
            with trio.fail_after(90):
                done = await run(check=False, env={"PATH": str(Path(node()).parent), "HOME": str(tmp_path)})
            assert done.returncode == 0, done.stderr.decode()[-2000:]
            return dict(json.loads(done.stdout))

        listed = await inspect("--method", "tools/list")
        assert "echo" in [tool["name"] for tool in listed["tools"]]
        called = await inspect("--method", "tools/call", "--tool-name", "echo", "--tool-arg", "a=2")
        assert called["structuredContent"] == {"a": 2}
        arguments = ("--prompt-name", "helper", "--prompt-args", "service=api")
        prompt = await inspect("--method", "prompts/get", *arguments)
        assert prompt["messages"][0]["content"]["text"] == "You help with api."

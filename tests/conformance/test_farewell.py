"""The end of the process, seen by MCP clients: calls are finished, streams get their final result, the status is 0."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
import warm_start
from mcp import Client

FIXTURES = Path(__file__).resolve().parent / "fixtures.py"
ROOT = FIXTURES.parents[2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_finishes_calls_and_ends_streams_with_a_result_and_the_process_with_0(
    number: signal.Signals,
) -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "ENGINE_LOG": "error"}
    command = [sys.executable, str(FIXTURES), "--bind", "127.0.0.1:0"]
    async with warm_start.running(command, stdout=subprocess.PIPE, env=environ) as process:
        with trio.fail_after(60):
            assert process.stdout is not None
            printed = await process.stdout.receive_some()
            url = printed.decode().split()[-1]
            async with (
                Client(url, mode="2026-07-28") as client,
                client.listen(tools_list_changed=True) as subscription,
                httpx2.AsyncClient() as http,
                http.stream("GET", url, headers={"accept": "text/event-stream"}) as silent,
                trio.open_nursery() as calls,
            ):
                await client.list_tools()  # or the client would ask for the tool's schema after the call
                said: list[Any] = []

                async def on_progress(value: float, total: float | None, text: str | None) -> None:
                    if not said:
                        process.send_signal(number)  # in the middle of the call
                    said.append(text)

                async def call() -> None:
                    result = await client.call_tool("test_tool_with_progress", {}, progress_callback=on_progress)
                    assert result.structured_content == "done"

                calls.start_soon(call)
                # A stream that is cut, not ended, raises SubscriptionLost here, and RemoteProtocolError below.
                assert [event async for event in subscription] == []
                assert await silent.aread() == b""
            assert await process.wait() == 0
    assert said == ["step 1", "step 2", "step 3"]

"""A host call is one file in `engine/bridge/` and one row of the list: here both are added on the fly."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from added import added_file
from agents_support import CALL, Project, agent

import engine.bridge
from agents.service import Service
from engine.workers import zygote

Open = Callable[..., AbstractAsyncContextManager[Service]]

FAMILY = """
import msgspec
import trio
from engine.bridge import CallRefused, HostFunction
from engine.bridge.families import Family


class ShoutArguments(msgspec.Struct):
    text: str
    times: int | float | None = None


async def shout(context, arguments):
    await trio.lowlevel.checkpoint()
    if not arguments.text:
        raise CallRefused("text must not be empty")
    return arguments.text.upper() * int(arguments.times or 1) + " for " + context.request.tenant.id


FAMILY = Family.plain(lambda host: (HostFunction("voice.shout", ShoutArguments, shout),))
"""

# In the zygote, a process of its own, which makes the functions that scripts call.
ROW = """
from sandbox.wire.surface import HOST_CALLS, HostCall
HOST_CALLS["voice.shout"] = HostCall("voice.shout", ("text", "times"))
"""


async def test_an_added_host_call_is_called_by_a_script_in_a_worker(
    project: Project, opened: Open, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = "from sandbox.zygote import main"
    assert entry in zygote._BOOT
    monkeypatch.setattr(zygote, "_BOOT", zygote._BOOT.replace(entry, ROW + entry))
    calls = "local ok, why = pcall(voice.shout, '') return {system = voice.shout('hi', 2) .. '; ' .. why}"
    project.configure(project.script("loud", agent(calls)))
    with added_file(engine.bridge, tmp_path_factory.mktemp("families"), "voice", FAMILY):
        async with opened() as service:
            assert service.failures == ()
            resolved = await service.resolve("loud", {}, CALL)
    said, _, refused = resolved.prompt.system.partition("; ")
    assert said == "HIHI for default"
    assert (
        refused == "loud.lua:2: voice.shout: text must not be empty" or refused == "voice.shout: text must not be empty"
    )
    assert resolved.run is not None
    assert resolved.run.usage.host_calls == {"voice.shout": 2}

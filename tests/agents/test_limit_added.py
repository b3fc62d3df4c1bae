"""A limit is one row of the list, one field and its check: here it is added on the fly, checked by a host call."""

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager

import msgspec
import pytest
from added import added_file, rebuild, rebuilt
from agents_support import CALL, Project, agent

import engine.bridge
from agents.service import Service
from engine.tenant import DEFAULT_TENANT
from engine.workers import zygote
from sandbox.wire import limits
from sandbox.wire.limits import SPECS, Limits, LimitSpec

Open = Callable[..., AbstractAsyncContextManager[Service]]

ECHOES = LimitSpec(
    "echoes", "count", 3, 5, "an echo that is heard more often is noise", "the host call", "an error that pcall catches"
)

FAMILY = """
import msgspec
from engine.bridge import CallRefused, HostFunction
from engine.bridge.families import Family


class EchoArguments(msgspec.Struct):
    text: str
    times: int


async def echo(context, arguments):
    bound = context.request.limits["echoes"]
    if arguments.times > bound:
        raise CallRefused(f"at most {bound} echoes")
    return arguments.text * arguments.times


FAMILY = Family.plain(lambda host: (HostFunction("echo", EchoArguments, echo),))
"""

ROW = """
from sandbox.wire.surface import HOST_CALLS, HostCall
HOST_CALLS["echo"] = HostCall("echo", ("text", "times"))
"""


@pytest.fixture
def echoes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    more = msgspec.defstruct("Limits", [("echoes", int)], bases=(Limits,), frozen=True, kw_only=True)
    entry = "from sandbox.zygote import main"
    folder = tmp_path_factory.mktemp("families")
    with rebuilt() as changed, added_file(engine.bridge, folder, "echo", FAMILY):
        changed.setitem(SPECS, "echoes", ECHOES)
        for module in (limits, engine.tenant):
            if hasattr(module, "Limits"):
                changed.setattr(module, "Limits", more)
        changed.setattr(zygote, "_BOOT", zygote._BOOT.replace(entry, ROW + entry))
        rebuild()
        yield


@pytest.mark.usefixtures("echoes")
async def test_an_added_limit_is_configured_bound_lowered_to_its_ceiling_and_held(
    project: Project, opened: Open
) -> None:
    try_both = "local _, why = pcall(echo, 'x', args.times + 1) return {system = echo('x', args.times) .. ': ' .. why}"
    project.configure(
        "[limits]\nechoes = 2\n"
        + project.script("few", agent(try_both))
        + project.script("many", agent(try_both), "limits = { echoes = 9 }")
    )
    async with opened() as service:
        assert service.failures == ()
        assert any("echoes = 9 is above the ceiling and was lowered to 5" in each for each in service.warnings)
        assert service.engine.limits_for({}, DEFAULT_TENANT)["echoes"] == 2
        for name, times in (("few", 2), ("many", 5)):
            said = (await service.resolve(name, {"times": times}, CALL)).prompt.system
            assert said.startswith("x" * times + ": ")
            assert said.endswith(f"echo: at most {times} echoes")

"""What one tenant's run held in memory is in no process that serves another tenant, nor in the zygote."""

import os
import re
import secrets
from collections.abc import Iterator

import psutil
import pytest
import trio

from engine.config import Config
from engine.engine import Engine, open_engine
from engine.run import RunRequest, Script
from engine.tenant import Tenant

pytestmark = pytest.mark.cold

KEEPS_ITS_SECRET = b"""
local kept = {}
agent = {}
function agent.resolve(args)
    for i = 1, 200 do kept[i] = args.secret .. i end
    return { length = #table.concat(kept) }
end
"""


def request(engine: Engine, tenant: str, secret: str) -> RunRequest:
    return RunRequest(
        tenant=Tenant(tenant),
        name="keeper",
        script=Script.from_source("keeper.lua", KEEPS_ITS_SECRET),
        root="agent",
        method="resolve",
        args=({"secret": secret}, {}),
        limits=engine.limits_for({}, Tenant(tenant)),
    )


def memory_of(pid: int) -> Iterator[bytes]:
    """Every readable mapping of a process. Needs the right to trace it."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
        for line in maps:
            match = re.match(r"([0-9a-f]+)-([0-9a-f]+) r", line)
            if match is None or "[v" in line:  # vvar and vsyscall cannot be read
                continue
            start, end = (int(group, 16) for group in match.groups())
            try:
                mem.seek(start)
                yield mem.read(end - start)
            except (OSError, ValueError, OverflowError):
                continue


def holders(secret: bytes) -> set[int]:
    """The processes below us whose memory holds this text."""
    children = psutil.Process().children(recursive=True)
    return {child.pid for child in children if any(secret in part for part in memory_of(child.pid))}


@pytest.mark.skipif(os.geteuid() != 0, reason="reads the memory of other processes")
async def test_a_canary_of_one_tenant_is_only_in_the_worker_that_served_it() -> None:
    canary = "canary-" + secrets.token_hex(16)
    async with open_engine(Config.model_validate({"sandbox": {"workers": 2, "reserve": 2}})) as engine:
        await engine.execute(request(engine, "a", canary))
        (served_a,) = engine.statistics().workers_that_are("idle")
        assert holders(canary.encode()) == {served_a.pid}, "the scan must find it where it is"
        for _ in range(3):
            await engine.execute(request(engine, "b", "nothing"))
        served_b = {worker.pid for worker in engine.statistics().workers_that_are("idle") if worker.tenant == "b"}
        assert served_b
        assert holders(canary.encode()) <= {served_a.pid}


@pytest.mark.skipif(os.geteuid() != 0, reason="reads the memory of other processes")
async def test_a_worker_that_is_retired_takes_the_canary_with_it() -> None:
    canary = "canary-" + secrets.token_hex(16)
    config = Config.model_validate({"sandbox": {"workers": 1, "reserve": 1, "isolation": "execution"}})
    async with open_engine(config) as engine:
        await engine.execute(request(engine, "a", canary))
        await engine.execute(request(engine, "b", "nothing"))
        while engine.statistics().workers_that_are("closing"):  # killed already; their memory goes when they are reaped
            await trio.lowlevel.checkpoint()
        assert holders(canary.encode()) == set()

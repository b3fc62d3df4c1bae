"""The alternatives to the engine, on the same job: the one list.

The job: a small function gets a document's id, requests the document from its host, and returns a text and a number.
Every peer is a program, `python -m benchmarks.aims.peers.MODULE`, that speaks the protocol of `turns.py` on standard
input and output; it runs in `.peers` (made by `make peers`), as peers are not dependencies of the project. The engine
and its floor are measured in the same way. FastMCP serves the job over HTTP, so `aims.mcp_rate` measures it instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass

_PEERS_PYTHON = "make peers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One contestant. `needs` maps a program, or `python:MODULE`, to how to install it."""

    name: str
    module: str
    argument: str = ""
    own: bool = False  # ours, or with the engine's dependencies only: runs in the project's environment
    needs: Mapping[str, str]
    host_call: str
    isolation: str


ENGINE = "engine"
ENGINE_EXECUTION = "engine, a process per run"
FLOOR = "floor: warm Lua, no isolation"
PROCESS_POOL = "ProcessPoolExecutor(2), lupa"
TRIO_PARALLEL = "trio-parallel, lupa"
MONTY = "pydantic-monty, fresh session"
MONTY_ASYNC = "pydantic-monty, asyncio"
SUBPROCESS = "lua5.4, a process per call"
BUBBLEWRAP = "bwrap --unshare-all lua5.4"
REDIS = "Redis EVAL"

_LUPA = {"python:lupa": _PEERS_PYTHON}
_MONTY = {"python:pydantic_monty": _PEERS_PYTHON}
_LUA = {"lua5.4": "apt install lua5.4"}

PEERS = (
    Peer(
        name=ENGINE, module="ours", argument="tenant", own=True, needs={}, host_call="checked, over a pipe",
        isolation="every layer of SECURITY.md, every limit; a process per tenant, a fresh Lua state per run",
    ),
    Peer(
        name=ENGINE_EXECUTION, module="ours", argument="execution", own=True, needs={},
        host_call="checked, over a pipe", isolation="the same, and a process that no other run has used",
    ),
    Peer(
        name=FLOOR, module="floor", own=True, needs={}, host_call="over a pipe",
        isolation="another process, nothing else: runs share one Lua state, the user's files and the network",
    ),
    Peer(
        name=PROCESS_POOL, module="process_pool", needs=_LUPA, host_call="none: the document is sent along",
        isolation="another process; the Lua state is fresh, but Python, files and the network are within reach",
    ),
    Peer(
        name=TRIO_PARALLEL, module="trio_pool", needs=_LUPA | {"python:trio_parallel": _PEERS_PYTHON},
        host_call="none: the document is sent along", isolation="as above; a run can be killed when it is cancelled",
    ),
    Peer(
        name=MONTY, module="monty", argument="threads", needs=_MONTY, host_call="over a pipe",
        isolation="an interpreter of its own (a part of Python) with limits, in another process; no kernel layer",
    ),
    Peer(
        name=MONTY_ASYNC, module="monty", argument="asyncio", needs=_MONTY, host_call="over a pipe",
        isolation="as above, by its asyncio interface",
    ),
    Peer(
        name=SUBPROCESS, module="process_per_call", argument="plain", needs=_LUA, host_call="over a pipe",
        isolation="a process that no other run has used; the user's files, programs and the network are within reach",
    ),
    Peer(
        name=BUBBLEWRAP, module="process_per_call", argument="bwrap",
        needs=_LUA | {"bwrap": "apt install bubblewrap"}, host_call="over a pipe",
        isolation="namespaces and a read-only view of /usr; no seccomp filter, no limit of CPU or memory",
    ),
    Peer(
        name=REDIS, module="redis_eval", needs={"redis-server": "apt install redis-server"},
        host_call="redis.call, in the same process",
        isolation="a reduced Lua 5.1 inside the server; one script at a time, and one that loops blocks all others",
    ),
)  # fmt: skip

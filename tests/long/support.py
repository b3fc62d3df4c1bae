"""An engine in a thread of its own, for callers that are not async (hypothesis), and the scripts of the corpus."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import structlog
import trio

from engine.bridge import HostFunction
from engine.config import Config
from engine.engine import Engine, open_engine
from engine.run import RunRequest, RunResult, Script
from engine.tenant import DEFAULT_TENANT, Tenant

CORPUS = Path(__file__).resolve().parents[1] / "security"
# Small, so that hostile scripts end soon.
LIMITS: Mapping[str, float] = {"timeout_s": 1.0, "cpu_s": 0.3, "memory_bytes": 16 << 20}


def quiet() -> None:
    """Let the engine's log tell of errors only: what thousands of scripts print is nobody's reading."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))


def request(
    engine: Engine,
    script: Script,
    tenant: Tenant = DEFAULT_TENANT,
    *,
    limits: Mapping[str, float] = LIMITS,
    grants: frozenset[str] = frozenset(),
) -> RunRequest:
    """One run of `agent.resolve`, by default under small limits and without grants."""
    return RunRequest(
        tenant=tenant,
        name=script.name,
        script=script,
        root="agent",
        method="resolve",
        args=({"topic": "x"}, {}),
        limits=engine.limits_for(dict(limits), tenant),
        grants=grants,
    )


def corpus(*folders: str) -> list[Script]:
    """The scripts of these folders of the corpus, in a fixed order, without those that require files."""
    files = sorted(file for folder in folders for file in (CORPUS / folder).glob("*.lua"))
    sources = {file.name: file.read_bytes() for file in files}
    return [Script.from_source(name, text) for name, text in sources.items() if b" files={" not in text]


@contextmanager
def engine_in_a_thread(
    config: Config,
    host_functions: Iterable[HostFunction] = (),
    *,
    limits: Mapping[str, float] = LIMITS,
) -> Iterator[Callable[[Script], RunResult]]:
    """A function that runs a script and waits, backed by one engine for the whole block.

    `host_functions` are the host calls that it has, and its scripts are granted.
    """
    functions = tuple(host_functions)
    grants = frozenset(function.name for function in functions)
    ready = threading.Event()
    state: list[tuple[Engine, trio.lowlevel.TrioToken, trio.CancelScope]] = []

    async def host() -> None:
        with trio.CancelScope() as scope:
            async with open_engine(config, functions) as engine:
                state.append((engine, trio.lowlevel.current_trio_token(), scope))
                ready.set()
                await trio.sleep_forever()

    def body() -> None:
        try:
            trio.run(host)
        finally:
            ready.set()

    thread = threading.Thread(target=body)
    thread.start()
    ready.wait()
    try:
        engine, token, _ = state[0]

        def run(script: Script) -> RunResult:
            asked = request(engine, script, limits=limits, grants=grants)
            return trio.from_thread.run(engine.execute, asked, trio_token=token)

        yield run
    finally:  # also where a program was a finding
        for _, token, scope in state:
            token.run_sync_soon(scope.cancel)
        thread.join()

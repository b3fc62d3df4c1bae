"""What a worker has loaded is what can be attacked in it; what the supervisor has loaded is not the worker's code."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from faults import faulty_script, hostile_boot

import engine.workers.zygote
from engine.config import parse_config
from engine.engine import open_engine
from engine.run import RunRequest, Script
from engine.tenant import DEFAULT_TENANT

# What scripts use by way of `sandbox.natives` (ADR 7).
LIBRARIES = {"re2", "selectolax", "yaml"}
# lupa is compiled by Cython, whose runtime shows as two modules without files.
ALLOWED = frozenset(sys.stdlib_module_names) | {"__main__", "sandbox", "lupa", "msgspec", "cython_runtime"} | LIBRARIES
# Loaded by nothing that computes: each would be a way out for who has broken out of the interpreter.
UNWANTED = {"asyncio", "ssl", "http", "email", "multiprocessing", "logging", "tomllib", "sqlite3"}


def roots(modules: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules if not name.startswith("_cython_")}


_TELL = "import json; print(json.dumps([name for name, module in sys.modules.items() if module]))"


def modules_after(code: str) -> list[str]:
    """What an isolated interpreter, started as the zygote is, has loaded after this code."""
    found = subprocess.run(
        [
            *(sys.executable, "-I", "-S", "-c"),
            f"{engine.workers.zygote._LEAN}\nsys.path.extend(sys.argv[1:])\n{code}\n{_TELL}",
            *engine.workers.zygote._import_paths(),
        ],
        env={},
        capture_output=True,
        check=True,
        timeout=60,
    )
    return list(json.loads(found.stdout))


def test_the_zygote_loads_only_the_standard_library_lupa_msgspec_and_the_libraries_for_scripts() -> None:
    loaded = modules_after("import sandbox.zygote as z\nz._warm_up(z.Prelude())")
    assert {"sandbox", "lupa", "msgspec"} | LIBRARIES <= roots(loaded) <= ALLOWED
    assert {name for name in loaded if name.startswith("lupa.lua")} == {"lupa.lua54"}


async def test_a_real_worker_has_loaded_only_that_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.workers.zygote, "_BOOT", hostile_boot(engine.workers.zygote._BOOT))
    config, _ = parse_config("[sandbox]\nworkers = 1\nreserve = 0", environ={}, cwd=Path("/nonexistent"))
    async with open_engine(config) as opened:
        result = await opened.execute(
            RunRequest(
                tenant=DEFAULT_TENANT,
                name="modules",
                script=Script.from_source("t.lua", faulty_script("modules")),
                root="agent",
                method="resolve",
                limits=opened.limits_for({}, DEFAULT_TENANT),
            )
        )
    assert result.value
    assert "sandbox.worker" in result.value
    assert roots(result.value) <= ALLOWED
    assert not roots(result.value) & UNWANTED


def test_the_supervisors_side_never_loads_what_runs_inside_a_worker() -> None:
    sides = ["engine.engine", "agents.service", "server.app", "cli.application"]  # each with what the one before loaded
    code = "import json, sys\n" + "\n".join(f"import {side}; print(json.dumps([*sys.modules]))" for side in sides)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    inside = {"sandbox.worker", "sandbox.vm", "sandbox.zygote", "sandbox.confine", "lupa.lua54"}
    for side, line in zip(sides, found.stdout.splitlines(), strict=True):
        loaded = set(json.loads(line))
        assert side in loaded
        assert not loaded & inside, side


def test_the_wire_loads_nothing_of_the_rest() -> None:
    wire = (
        "sandbox.wire.frame",
        "sandbox.wire.script_cache",
        "sandbox.wire.messages",
        "sandbox.wire.limits",
        "sandbox.wire.outcome",
        "sandbox.wire.layers",
        "sandbox.wire.surface",
    )
    loaded = modules_after(f"import {', '.join(wire)}")
    assert {name for name in loaded if name.startswith("sandbox.")} == {"sandbox.wire", *wire}

"""What becomes of every script of the corpus, and that the engine is afterwards what it was before."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from security.corpus import (
    DEFAULT_LIMITS,
    FOLDERS,
    ROOT,
    TOTAL,
    CorpusScript,
    HeaderError,
    parse_header,
    paths,
    read_script,
)
from security.corpus_host import Host, open_host

from engine.bridge import knowledge
from engine.run import LogLine, RunResult
from sandbox.wire.limits import MIB, SPECS
from sandbox.wire.outcome import Outcome

pytestmark = pytest.mark.cold

SCRIPTS = [path.relative_to(ROOT).as_posix() for path in paths()]
# Run once more with a process for every run: everything that must succeed, and everything that talks to the host.
ALSO_IN_EXECUTION = [name for name in SCRIPTS if name.startswith(("benign/", "protocol/"))]

# The promise of SECURITY.md, and what a shared machine of few cores may add to it. A breach is measured again.
DEADLINE_GRACE_S = 0.25
# The clock is read every 20 ms; the kill and the last reading add to that.
CPU_GRACE_S = 0.15
# What a worker has besides the script's memory: Python, Lua, the prelude, and an answer on its way out.
OVERHEAD_BYTES = 48 * MIB

MEMORY_CPU_S = 3.0
LIMIT_OF = {
    Outcome.TIMEOUT: "timeout_s",
    Outcome.CPU_LIMIT: "cpu_s",
    Outcome.MEMORY_LIMIT: "memory_bytes",
    Outcome.CALL_LIMIT: "host_calls",
    Outcome.OUTPUT_LIMIT: "output_bytes",
}
# What must never be seen from a script or in what is said about one: addresses, host paths, Python's own texts.
LEAK = re.compile(r"0x[0-9a-f]{7,}|/site-packages/|Traceback \(most recent|\.py\b|LuaError|" + re.escape(str(ROOT)))
BENIGN = b"return { resolve = function(args) return args.n * 2 end }"


@dataclass(frozen=True, slots=True)
class Ended:
    """One run of a script and what arrived on the way."""

    result: RunResult
    lines: list[LogLine]
    progress: list[tuple[float, str | None]]


@pytest.fixture(scope="module")
def tenant_host() -> Iterator[Host]:
    with open_host("tenant") as host:
        yield host


@pytest.fixture(scope="module")
def execution_host() -> Iterator[Host]:
    with open_host("execution") as host:
        yield host


@pytest.mark.rerun(reason="a machine whose cores are taken is late by more than is promised")
@pytest.mark.parametrize("path", SCRIPTS)
def test_script_ends_as_expected(path: str, tenant_host: Host) -> None:
    _check(read_script(ROOT / path), tenant_host)


@pytest.mark.rerun(reason="a machine whose cores are taken is late by more than is promised")
@pytest.mark.parametrize("path", ALSO_IN_EXECUTION)
def test_script_ends_the_same_in_a_process_of_its_own(path: str, execution_host: Host) -> None:
    _check(read_script(ROOT / path), execution_host)


def _check(script: CorpusScript, host: Host) -> None:
    _benign_run_works(host)  # so that every script finds the same: a full reserve and one worker that was used
    before = host.settled()
    for _ in range(script.expected.get("runs", 1)):
        ended = _run(script, host)
        _ended_as_expected(script, ended)
        _nothing_leaked(ended)
        breach = _breach(script, ended, host)
        if breach is not None:
            breach = _breach(script, _run(script, host), host)
        assert breach is None
    host.wait_for_ping()
    _benign_run_works(host)
    after = host.settled()
    assert after.processes == before.processes
    assert after.descriptors <= before.descriptors


def _limits(script: CorpusScript) -> dict[str, float]:
    # On a busy machine a script that fills its memory may need longer for it than others are given for everything.
    cpu = {"cpu_s": MEMORY_CPU_S} if Outcome.MEMORY_LIMIT in script.expected.outcomes else {}
    return DEFAULT_LIMITS | cpu | script.expected.limits


def _run(script: CorpusScript, host: Host) -> Ended:
    lines: list[LogLine] = []
    progress: list[tuple[float, str | None]] = []
    expected = script.expected
    result = host.run(
        script.source,
        name=expected.get("name", "corpus"),
        files=script.files,
        limits=_limits(script),
        method=None if expected.get("describe") else "resolve",
        args=expected.get("args"),
        config=expected.get("config"),
        grants=frozenset(expected.get("grants", knowledge.GRANTS)),
        on_progress=lambda fraction, text: progress.append((fraction, text)),
        on_log=lines.append,
    )
    return Ended(result, lines, progress)


def _ended_as_expected(script: CorpusScript, ended: Ended) -> None:
    expected, result = script.expected, ended.result
    assert result.outcome in expected.outcomes, result.failure
    if result.outcome is Outcome.OK:
        assert result.failure is None
        if "value" in expected.exact:
            assert _exact(result.value) == _exact(expected.exact["value"])
    else:
        assert result.value is None
        assert result.failure is not None
        limit = LIMIT_OF.get(result.outcome)
        if limit or len(expected.outcomes) == 1:  # of several outcomes, the named limit is of the one that has one
            limit = expected.get("limit", limit)
        assert (result.failure.limit.name if result.failure.limit else None) == limit
    message = result.failure.message if result.failure else ""
    if "message" in expected.exact:
        assert message == expected.exact["message"]
    texts = {
        "message": [message],
        "traceback": [(result.failure.traceback if result.failure else None) or ""],
        "log": [line.text for line in ended.lines],
    }
    for key, part in expected.parts:
        found = any(part in text for text in texts[key.removeprefix("no")])
        assert found is not key.startswith("no"), (key, part, texts[key.removeprefix("no")])
    assert list(result.logs) == ended.lines
    for key, seen in (
        ("logs", len(ended.lines)),
        ("progress", len(ended.progress)),
        ("calls", result.usage.host_call_count),
    ):
        assert expected.get(key, seen) == seen, key


def _exact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _nothing_leaked(ended: Ended) -> None:
    failure = ended.result.failure
    shown = [failure.message, failure.traceback or ""] if failure else []
    shown += [line.text for line in ended.lines] + [_exact(ended.result.value)]
    for text in shown:
        assert not LEAK.search(text), LEAK.findall(text)


def _breach(script: CorpusScript, ended: Ended, host: Host) -> str | None:
    """Which promise about time or memory this run broke, if it did."""
    limits, usage = _limits(script), ended.result.usage
    if usage.wall_s > limits["timeout_s"] + DEADLINE_GRACE_S:
        return f"took {usage.wall_s:.3f} s of {limits['timeout_s']} s"
    if usage.cpu_s > limits["cpu_s"] + CPU_GRACE_S:
        return f"used {usage.cpu_s:.3f} s of {limits['cpu_s']} s CPU time"
    if usage.peak_memory_bytes > host.largest_memory + OVERHEAD_BYTES:
        return f"used {usage.peak_memory_bytes} bytes of {limits['memory_bytes']}"
    return None


def _benign_run_works(host: Host) -> None:
    result = host.run(BENIGN, limits={}, args={"n": 21})
    assert (result.outcome, result.value) == (Outcome.OK, 42)


# ---- the corpus itself ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SCRIPTS)
def test_header_parses_and_names_known_limits(path: str) -> None:
    script = read_script(ROOT / path)
    assert set(script.expected.limits) <= set(SPECS)
    unexplained = {Outcome.WORKER_LOST, Outcome.CANCELLED, Outcome.REJECTED}
    assert not unexplained & set(script.expected.outcomes)


def test_every_folder_is_full() -> None:
    counts = Counter(name.partition("/")[0] for name in SCRIPTS)
    assert {folder: counts[folder] for folder in FOLDERS if counts[folder] < FOLDERS[folder]} == {}
    assert counts.total() >= TOTAL
    assert len(ALSO_IN_EXECUTION) >= 40


def test_no_script_is_outside_the_folders() -> None:
    assert sorted(ROOT.rglob("*.lua")) == paths()


def test_no_two_scripts_are_the_same() -> None:
    seen: dict[bytes, Path] = {}
    for path in paths():
        # The code alone: another first line does not make another script.
        code = path.read_bytes().split(b"\n", 2)[2]
        if b"fill=" not in path.read_bytes() and code.strip():
            assert code not in seen, (path, seen[code])
            seen[code] = path
        assert path.read_bytes() not in seen
        seen[path.read_bytes()] = path


def test_header_reads_every_form() -> None:
    expected = parse_header(
        '-- expect: cpu_limit|timeout value={"a": [1, "}"]} message~"x y" limits={timeout_s=0.5, cpu_s=1} '
        'log~"a" log~"b"'
    )
    assert expected.outcomes == (Outcome.CPU_LIMIT, Outcome.TIMEOUT)
    assert expected.exact == {"value": {"a": [1, "}"]}}
    assert expected.parts == [("message", "x y"), ("log", "a"), ("log", "b")]
    assert expected.limits == {"timeout_s": 0.5, "cpu_s": 1}


@pytest.mark.parametrize(
    "line",
    [
        "-- nothing",
        "-- expect: fine",
        "-- expect: ok value",
        "-- expect: ok value=",
        "-- expect: ok colour=1",
        '-- expect: ok value~"x"',
        "-- expect: ok limits=5",
        '-- expect: ok value=1message~"x"',
    ],
)
def test_header_refuses(line: str) -> None:
    with pytest.raises(HeaderError):
        parse_header(line)

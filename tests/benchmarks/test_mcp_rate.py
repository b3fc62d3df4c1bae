"""The benchmark of MCP runs, and judges what it measured as it says. No time is asserted: that is for people."""

import json
import os
import sys
from pathlib import Path

import pytest
import warm_start

from benchmarks.aims.mcp_peers import budget, incident
from benchmarks.aims.mcp_rate import ASKED, ROWS, SERVICE, Row, Turn, WrongJob, check_job, figures, report
from benchmarks.targets.client import Response

ROOT = Path(__file__).resolve().parents[2]
FASTMCP, OURS = (next(row for row in ROWS if row.server == name and row.method) for name in ("fastmcp", "engine"))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="it puts the front ends and the client on two cores")
def test_a_short_run_measures_every_row_but_fastmcps_and_says_that_these_are_left_out(tmp_path: Path) -> None:
    written = tmp_path / "rate.json"
    command = ["--requests", "20", "--rounds", "1", "--json", str(written)]
    done = warm_start.run(
        [sys.executable, "-m", "benchmarks.aims.mcp_rate", *command],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "FastMCP is left out" in done.stdout
    result = json.loads(written.read_text())
    rows = [row for row in ROWS if row.server != "fastmcp"]
    assert [row["row"] for row in result["rows"]] == [row.name for row in rows]
    for row in result["rows"]:
        assert row["requests"] == 20
        assert row["per_s"] > 0
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert (row["rate_ratio"], row["p99_ratio"], row["aims"]) == (None, None, {})
        assert row["cpu_ratio"] is None


def turn(rate: float, ms: float) -> Turn:
    return Turn(rate, [ms] * 10, 500.0)


@pytest.mark.parametrize(
    ("rate", "ms", "verdicts"), [(120, 1.0, [True, True]), (99, 2.0, [False, True]), (100, 2.1, [True, False])]
)
def test_aims_are_read_against_fastmcp_in_the_same_rounds(rate: float, ms: float, verdicts: list[bool]) -> None:
    assert (FASTMCP.method, OURS.method) == ("prompts/get", "prompts/get")
    rows = figures({FASTMCP: [turn(100, 10.0)] * 3, OURS: [turn(rate, ms)] * 3})
    assert rows[0]["aims"] == {}
    assert list(rows[1]["aims"].values()) == verdicts
    assert (rows[1]["rate_ratio"], rows[1]["cpu_ratio"]) == (rate / 100, 1.0)
    said = report({"machine": MACHINE, "fastmcp": "fastmcp 4", "requests": 30, "rounds": 3, "at_once": 1, "rows": rows})
    assert said.count("pass") == sum(verdicts)
    assert said.count("falls short") == 2 - sum(verdicts)


MACHINE = {"cores": 2, "processor": "p", "kernel": "k", "python": "3", "lupa": "2", "trio": "0", "load": 0}


@pytest.mark.parametrize("row", ROWS[:4])
def test_another_answer_than_the_jobs_is_no_figure(row: Row) -> None:
    right = {"messages": [{"role": "user", "content": {"type": "text", "text": incident(SERVICE)}}]}
    value = {"result": right} if row.method else budget(SERVICE, ASKED["availability"])
    check_job(row, Response(200, {}, json.dumps(value).encode()))
    for status, body in ((200, b"{}"), (200, b"?"), (200, json.dumps({"result": {}}).encode()), (500, b"")):
        with pytest.raises(WrongJob):
            check_job(row, Response(status, {}, body))

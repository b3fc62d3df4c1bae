"""The benchmark runs and says what it says it says. No time is asserted: that is for people to read."""

import json
import sys
from pathlib import Path

import pytest
import warm_start

from benchmarks.report.figures import percentile, table

ROOT = Path(__file__).resolve().parents[2]


def test_a_short_run_writes_every_figure_of_every_row(tmp_path: Path) -> None:
    written = tmp_path / "floor.json"
    done = warm_start.run(
        [sys.executable, "-m", "benchmarks.aims.floor", "--runs", "4", "--rounds", "2", "--json", str(written)],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(written.read_text())
    assert result["machine"].keys() >= {"cores", "kernel", "python", "lupa"}
    assert (result["runs"], result["rounds"], result["aim"]) == (4, 2, 1.5)
    assert result["placements"][0]["placement"] == "free"
    for placement in result["placements"]:
        assert [row["row"] for row in placement["rows"]] == ["floor, warm state", "floor, fresh state", "engine"]
        assert "seccomp" in placement["layers"]
        for row in placement["rows"]:
            assert row["runs"] == 4
            assert 0 < row["p50_min_us"] <= row["p50_us"] <= row["p50_max_us"]
            assert 0 < row["ratio_min"] <= row["ratio"] <= row["ratio_max"]
        assert placement["rows"][0]["ratio"] == 1
        assert placement["rows"][1]["fresh_ratio"] == 1
    for row in ("floor, warm state", "floor, fresh state", "engine"):
        assert row in done.stdout


def test_percentile_is_the_nearest_rank() -> None:
    samples = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert percentile(samples, 0.5) == 3.0
    assert percentile(samples, 0.99) == 5.0
    assert percentile([7.0], 0.5) == 7.0


@pytest.mark.parametrize("cell", ["1", "1000"])
def test_numbers_stand_under_their_heading_to_the_right(cell: str) -> None:
    head, rule, row = table(("row", "p50"), [("engine", cell)]).splitlines()
    assert len(head) == len(rule) == len(row)
    assert row.endswith(cell)

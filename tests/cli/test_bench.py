"""`engine bench` as its users have it: options, exit codes, files, Ctrl-C."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import warm_start
from cli_support import inherited

import benchmarks.bench
from cli.main import run as run_command

ROOT = Path(__file__).resolve().parents[2]


class Handler(BaseHTTPRequestHandler):
    """Answers everything with an empty object; every path under /fails with an error of the engine's form."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        failed = self.path.startswith("/fails/")
        body = b'{"error":{"code":"queue_full","message":"full"}}' if failed else b"{}"
        self.send_response(429 if failed else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server on loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in os.environ.keys() - inherited().keys():
        monkeypatch.delenv(name)


QUICK = ("--rate", "50", "--duration", "200ms", "--warm-up", "0s")


@pytest.fixture(autouse=True)
def _is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether this machine is quiet enough for its figures to be valid is not what is tested here."""
    monkeypatch.setattr("benchmarks.load.account.LAG_MATTERS_MS", 1e9)
    monkeypatch.setattr("benchmarks.load.account.LAG_MATTERS_SHARED_MS", 1e9)
    monkeypatch.setattr("benchmarks.load.account.BUSY_SHARE", 1e9)


def bench(*words: str) -> int:
    return run_command(["bench", *words])


def test_a_load_prints_a_table_and_keeps_json_and_page(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "server.toml").write_text(
        '[limits]\ntimeout_s = 7\n[tenants]\nenabled = true\noperator_key = "op-key"\n'
    )
    words = ("--config", "server.toml", "--json", "r.json", "--html", "r.html", "--fail-if", "errors>0")
    code = bench("http", url, *QUICK, *words)
    printed = capsys.readouterr()
    assert code == 0
    assert "open model: 50 requests a second" in printed.out
    assert "passed: errors>0: errors is 0" in printed.err
    result = json.loads((tmp_path / "r.json").read_text())
    assert result.keys() >= {
        "schema", "target", "scenario", "load", "latency", "rate", "outcomes", "late", "dropped", "valid", "machine",
    }  # fmt: skip
    assert (result["schema"], result["target"], result["scenario"]) == (1, "http", "tool")
    assert result["outcomes"] == {"ok": 10}
    assert result["load"]["duration_s"] == 0.2
    assert result["machine"].keys() >= {"cores", "kernel", "python", "versions", "commit"}
    assert result["config"]["limits"]["defaults"]["timeout_s"] == 7
    assert 'tool = "bench-tool"' in result["scenario_text"]
    assert "op-key" not in (tmp_path / "r.json").read_text()
    assert "<svg" in (tmp_path / "r.html").read_text()


def test_a_threshold_that_holds_is_exit_code_1_and_says_what_was_seen(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("http", url, *QUICK, "--fail-if", "p50>1s", "--fail-if", "outcome.ok>3") == 1
    printed = capsys.readouterr()
    assert "failed: outcome.ok>3: outcome.ok is 10" in printed.err
    assert "passed: p50>1s" in printed.err


def test_a_load_of_which_nothing_succeeds_is_exit_code_1(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("http", f"{url}/fails", *QUICK) == 1
    printed = capsys.readouterr()
    assert "queue_full" in printed.out
    assert "no request ended as the scenario expects" in printed.err


def test_a_load_of_which_nothing_is_sent_in_time_is_exit_code_1(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """That nothing failed is no success: here the first request is due long after the end."""
    words = ("--rate", "0.001", "--duration", "100ms", "--warm-up", "0s", "--arrivals", "poisson")
    assert bench("http", url, *words) == 1
    printed = capsys.readouterr()
    assert "no request ended in the measured time" in printed.out
    assert "no request ended as the scenario expects" in printed.err


def test_a_result_that_is_not_valid_is_exit_code_1_and_says_why(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.report.result.doubts", lambda account, tester: ["the tester was late"])
    assert bench("http", url, *QUICK, "--fail-if", "errors>0") == 1
    printed = capsys.readouterr()
    assert "NOT VALID" in printed.out
    assert printed.err.splitlines()[-1] == "error: the result is not valid: the tester was late"


def test_json_on_standard_output_is_all_that_is_there(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("http", url, *QUICK, "--json=-") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["outcomes"] == {"ok": 10}
    assert "open model" in printed.err


def test_a_closed_load_of_several_processes(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--concurrency", "2", "--duration", "300ms", "--processes", "2", "--json", "r.json")
    assert bench("mcp", url, "--scenario", "noop", *words) == 1  # `{}` is no answer of MCP
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["load"] | {"model": "closed", "concurrency": 2, "processes": 2} == result["load"]
    assert set(result["outcomes"]) == {"garbage"}
    assert len(result["tester"]["cpu_shares"]) == 2
    assert "closed model: 2 clients" in capsys.readouterr().out


def test_a_pool_is_loaded_with_the_layers_in_effect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("run", *QUICK, "--json", "r.json", "--tenants", "3") == 0
    printed = capsys.readouterr().out
    result = json.loads((tmp_path / "r.json").read_text())
    assert "a pool of this process" in printed
    assert "seccomp" in result["layers"]
    assert result["outcomes"] == {"ok": 10}
    assert set(result["parts"]) == {"queue", "run", "host_calls", "cpu"}
    assert result["memory"]["run_peak_bytes"] > 1 << 20
    assert result["memory"]["workers_peak_bytes"] > 1 << 20
    assert result["config"]["limits"]["defaults"]["timeout_s"] == 30
    assert set(result["by"]["tenant"]) <= {"tenant-1", "tenant-2", "tenant-3"}
    assert list(tmp_path.iterdir()) == [tmp_path / "r.json"]  # no store is left behind


def test_cold_tells_first_calls_from_later_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "quick.toml").write_text(
        'model = "cold"\nidle_s = 0.01\n[[requests]]\nagent = "bench-noop"\n'
        f'[config.agents.script.bench-noop]\npath = "{ROOT}/benchmarks/scenarios/noop.lua"\n'
    )
    assert bench("run", "--scenario", "quick.toml", "--duration", "100ms", "--json", "r.json") == 0
    result = json.loads((tmp_path / "r.json").read_text())
    counts = {name: each["count"] for name, each in result["by"]["request"].items()}
    assert set(counts) == {"start of the engine", "first call", "second call", "after 0.01 s idle"}
    assert len(set(counts.values())) == 1
    assert result["histogram"]["count"] == counts["first call"] >= 3
    assert result["load"]["model"] == "cold"
    assert "first call" in capsys.readouterr().out


def test_a_ramp_finds_a_rate_and_tells_every_step(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--duration", "100ms", "--warm-up", "0s", "--from", "20", "--to", "40", "--fail-if", "p50>10s")
    assert bench("ramp", "http", url, *words, "--json", "r.json", "--html", "r.html") == 0
    printed = capsys.readouterr()
    assert "40 a second hold, the highest rate" in printed.out
    assert "20 a second: holds" in printed.err
    answer = json.loads((tmp_path / "r.json").read_text())
    assert (answer["ramp"], answer["highest_rate"], answer["limited_by_to"]) == (True, 40, True)
    assert answer["thresholds"] == ["p50>10s", "errors>1%"]
    assert [step["rate"] for step in answer["steps"]] == [20, 40]
    assert "Latency by rate" in (tmp_path / "r.html").read_text()
    assert bench("ramp", "http", f"{url}/fails", *words) == 1
    assert "Not even the first rate holds. At 20 a second errors>1%: errors" in capsys.readouterr().out


def test_a_ramp_that_ends_with_the_testers_own_lateness_says_so(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(account: Any, tester: Any) -> list[str]:
        return ["the tester was late"] if account.load.rate > 30 else []

    monkeypatch.setattr("benchmarks.report.result.doubts", late)
    words = ("--duration", "100ms", "--warm-up", "0s", "--from", "20", "--to", "40", "--precision", "100%")
    assert bench("ramp", "http", url, *words, "--fail-if", "p50>10s") == 0
    said = capsys.readouterr().out
    assert "20 a second (to 100%).\nThe tester itself was the limit: at 40 a second the tester was" in said
    assert bench("ramp", "http", url, *words, "--fail-if", "outcome.ok>3", "--fail-if", "errors>99%") == 0
    said = capsys.readouterr().out
    assert "The tester itself" not in said
    assert said.splitlines()[-1].startswith("At 40 a second outcome.ok>3: outcome.ok is 4")


def test_a_ramp_whose_first_rate_the_tester_cannot_keep_blames_no_threshold(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.report.result.doubts", lambda account, tester: ["the tester was late by 34 ms"])
    words = ("--duration", "100ms", "--warm-up", "0s", "--from", "20", "--to", "40")
    assert bench("ramp", "http", url, *words, "--fail-if", "p50>10s") == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert "p50>10s" not in last
    assert "The tester itself was the limit: at 20 a second the tester was late by 34 ms." in last


def test_a_ramp_that_is_interrupted_at_once_does_not_say_that_no_rate_holds(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = benchmarks.bench.measure

    async def interrupted(plan: Any, watch: Any) -> dict[str, Any]:
        return await measured(plan, watch) | {"interrupted": True}

    monkeypatch.setattr("cli.commands.bench.measure", interrupted)
    assert bench("ramp", "http", url, "--duration", "100ms") == 130
    assert capsys.readouterr().out == "Interrupted before a rate held.\n"


def test_two_results_are_compared(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.json", "b.json"):
        assert bench("http", url, "--rate", "400", "--duration", "300ms", "--warm-up", "0s", "--json", name) == 0
    capsys.readouterr()
    assert bench("compare", "a.json", "a.json") == 0
    assert "The difference is noise" in capsys.readouterr().out
    assert bench("compare", "a.json", "b.json", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert [each["metric"] for each in answer["differences"]] == ["p50", "p90", "p99", "mean", "rate", "errors"]
    assert answer["summary"]


@pytest.mark.parametrize(("text", "reason"), [
    ("", "not JSON"), ("[]", "not a result of"), ('{"schema": 2, "series": 1}', "not a result of"),
    ('{"ramp": true}', "the result of a ramp"), ('{"schema": 1, "series": {}}', "not a result of"),
])  # fmt: skip
def test_what_is_no_result_cannot_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, reason: str
) -> None:
    (tmp_path / "x.json").write_text(text)
    assert bench("compare", "x.json", "x.json") == 2
    assert reason in capsys.readouterr().err


def test_scenarios_are_listed_printed_and_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("scenarios") == 0
    printed = capsys.readouterr()
    assert "noisy-neighbour" in printed.out
    assert printed.err == ""
    assert bench("scenarios", "cpu") == 0
    assert "[agents.script.bench-cpu]" in capsys.readouterr().out
    assert bench("scenarios", "cpu", "--copy", "mine") == 0
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["cpu.lua", "cpu.toml"]
    capsys.readouterr()
    assert bench("scenarios", "churn", "--copy", "mine") == 0
    assert (tmp_path / "mine/churn.lua").exists()
    assert bench("scenarios", "churn") == 0
    assert "needs no addition to a server's configuration" in capsys.readouterr().out
    assert bench("scenarios", "cpu", "--copy", "mine") == 2
    assert "exists and is left as it is" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "reason"), [
    (("http", "URL", "--rate", "0"), "--rate 0: expected a number from 0.001 to 1,000,000"),
    (("http", "URL", "--rate=-5"), "--rate -5: expected"), (("http", "URL", "--rate", "nan"), "--rate nan: expected"),
    (("http", "URL", "--rate", "inf"), "--rate inf: expected"), (("http", "URL", "--rate", "1e9"), "--rate 1e+09"),
    (("http", "URL", "--rate", "x"), "x"), (("http", "URL", "--concurrency", "0"), "--concurrency 0: expected"),
    (("http", "URL", "--rate", "1", "--concurrency", "1"), "exclude each other"),
    (("http", "URL", "--duration", "0s"), "--duration 0s: expected 0.1 s to 24 h"),
    (("http", "URL", "--duration", "-1s"), "--duration"), (("http", "URL", "--duration", "99h"), "--duration 99h"),
    (("http", "URL", "--duration", "soon"), "expected a time such as 10s"),
    (("http", "URL", "--warm-up", "x"), "--warm-up 'x'"), (("http", "URL", "--timeout", "0s"), "--timeout 0s"),
    (("http", "URL", "--tenants", "0"), "--tenants 0"), (("http", "URL", "--hostile", "101"), "--hostile 101"),
    (("http", "URL", "--hostile", "many"), "expected percent"),
    (("http", "URL", "--processes", "65"), "--processes 65"),
    (("http", "URL", "--max-in-flight", "0"), "--max-in-flight 0"), (("http", "URL", "--tenants", "2"), "--key-file"),
    (("http", "URL", "--fail-if", "p98>1"), "--fail-if 'p98>1': unknown metric"),
    (("http", "URL", "--json", "/nowhere/x.json"), "there is no folder"),
    (("http", "URL", "--json", "."), "is a folder"),
    (("http", "URL", "--html=-"), "--html: a file is needed"), (("http", "URL", "--key-file", "none"), "none"),
    (("http", "URL", "--scenario", "nop"), "did you mean 'noop'"),
    (("run", "--scenario", "churn", "--concurrency", "2"), "publishes at a rate"),
    (("run", "--scenario", "cold", "--rate", "5"), "--rate does not go with it"),
    (("run", "--scenario", "cold", "--tenants", "5"), "--tenants does not go with it"),
    (("run", "--scenario", "cold", "--timeout", "5s"), "--timeout does not go with it"),
    (("http", "URL", "--concurrency", "2", "--arrivals", "poisson"), "--arrivals (open model) and --concurrency"),
    (("http", "URL", "--concurrency", "2", "--max-in-flight", "5"), "--max-in-flight (open model) and"),
    (("http", "http://192.0.2.1", "--rate", "1"), "192.0.2.1 is not this machine; a load there needs --allow-remote"),
    (("http", "http://127.0.0.1:1"), "nothing listens at 127.0.0.1:1"), (("http", "nonsense"), "not a URL"),
    (("http",), "URL"), (("ramp", "http"), "a URL is needed"), (("ramp", "run", "URL"), "a pool has no URL"),
    (("ramp", "run", "--scenario", "cold"), "the scenario 'cold' is not a load and has no rate"),
    (("ramp", "http", "URL", "--concurrency", "3"), "--concurrency does not go with it"),
    (("ramp", "http", "URL", "--from", "9", "--to", "3"), "--to 3: expected a number from 9"),
    (("ramp", "http", "URL", "--precision", "0"), "--precision 0"),
    (("http", "URL", "--config", "x.toml"), "x.toml"), (("ramp", "mcp", "URL", "--config", "x.toml"), "x.toml"),
    (("ramp", "run", "--processes", "2"), "are for servers"), (("compare", "no.json", "no.json"), "no.json"),
])  # fmt: skip
def test_absurd_options_are_refused_with_a_reason(
    url: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], reason: str
) -> None:
    assert bench(*(url if word == "URL" else word for word in words)) == 2
    printed = capsys.readouterr()
    assert reason in printed.err
    assert len(printed.err.strip().splitlines()) == 1
    assert printed.out == ""


@pytest.mark.parametrize("keys", ["", "# nothing\n\n", "two words\n", "ü\n"])
def test_a_file_without_keys_is_refused(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], keys: str
) -> None:
    (tmp_path / "keys").write_text(keys, encoding="utf-8")
    assert bench("http", url, "--key-file", "keys") == 2
    assert "one a line" in capsys.readouterr().err


def test_ctrl_c_prints_and_keeps_what_there_is(url: str, tmp_path: Path) -> None:
    process = warm_start.Popen(
        [sys.executable, "-c", INTERRUPTED, "bench", "http", url, "--rate", "100", "--duration", "10m", "--warm-up",
         "0s", "--json", "r.json", "--html", "r.html"],
        cwd=tmp_path, env=inherited() | {"PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "INTERRUPTED after" in out
    assert "Traceback" not in err
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["interrupted"]
    assert 0 < result["measured"] < 6000
    assert (tmp_path / "r.html").exists()


# Ctrl-C when twenty requests have been answered: not before there is something to keep, whatever the machine does.
INTERRUPTED = """
import os, signal, sys
import benchmarks.load.account as account

ended = account.Recorder.ended
def counting(self, *given):
    ended(self, *given)
    if self.measured == 20:
        os.kill(os.getpid(), signal.SIGINT)
account.Recorder.ended = counting

from cli.main import run
sys.exit(run(sys.argv[1:]))
"""

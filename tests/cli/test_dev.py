"""`agent dev` and `tool dev`: what is said of runs, how saves are noticed, and the command as its users have it."""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import trio
import trio.testing
import warm_start
from cli_support import inherited

from agents.code.failure import RunFailed
from agents.loading.loader import LoadFailure
from cli.scripts.dev import Line, Saves, Session, Stamp, on_every_save, stamp
from cli.scripts.run import Answered
from engine.config.signatures import signature
from engine.errors import Code, LimitUse, Problem
from engine.run import CallRecord, Failure, LogLine, RunResult, Usage
from sandbox.wire.outcome import Outcome

# Long enough for any machine: only a test that fails waits for it.
PATIENCE_S = 30.0

# ---- what is said -----------------------------------------------------------------------------------------------


USAGE = Usage(wall_s=0.0123, cpu_s=0.0045, peak_memory_bytes=16 << 20, host_calls={"context.search": 1, "http.get": 2})
ENDED_WELL = RunResult(run_id="1", outcome=Outcome.OK, usage=USAGE)
GOOD = Answered({}, ["Result:", "", "  one", "  two", "  three", "  four"], ENDED_WELL)


def failed(outcome: Outcome, message: str, *, limit: LimitUse | None = None, traceback: str | None = None) -> Problem:
    failure = Failure(message, limit, traceback)
    return RunFailed(RunResult(run_id="2", outcome=outcome, failure=failure, usage=USAGE), Code.TOOL_ERROR, "tool 't'")


def texts(lines: list[Line]) -> list[str]:
    return [text for _, text in lines]


def test_a_good_run_shows_its_answer_and_what_it_cost() -> None:
    session = Session()
    assert texts(session.begins("14:03:22")) == ["", "── run 1 · 14:03:22 ──"]
    *answer, last = session.answered(GOOD, 99)
    assert texts(answer) == GOOD.lines
    assert last == ("good", "ok · 12.3 ms · CPU 4.5 ms · memory 16.0 MiB · 3 host calls")


def test_an_answer_is_compared_with_the_last_good_one() -> None:
    session = Session()
    session.begins("14:03:22")
    session.answered(GOOD, 0)
    session.begins("14:03:23")
    assert texts(session.answered(GOOD, 0))[-1].endswith(" · the same answer as run 1")
    session.begins("14:03:24")
    assert "same" not in texts(session.answered(Answered({}, ["another"], None), 0))[-1]


def test_a_host_call_is_shown_with_its_time_and_why_it_failed() -> None:
    assert Session().called(CallRecord("context.search", 0.00123)) == [("dim", "→ context.search  1.2 ms")]
    refused = CallRecord("context.get", 0.0004, "context.get: document not found: x")
    assert Session().called(refused) == [("warn", "→ context.get  0.4 ms  failed: document not found: x")]


def test_log_lines_are_told_by_their_level_and_progress_by_its_share() -> None:
    styles = {level: Session().logged(LogLine(level, "text")) for level in ("debug", "info", "warn", "error")}
    assert styles == {
        "debug": [("dim", "[debug] text")],
        "info": [("plain", "[info] text")],
        "warn": [("warn", "[warn] text")],
        "error": [("bad", "[error] text")],
    }
    assert Session().progressed(0.5, "half of it") == [("dim", "… 50%  half of it")]
    assert Session().progressed(1, None) == [("dim", "… 100%")]


def test_dropped_log_lines_are_not_kept_quiet() -> None:
    run = RunResult(run_id="1", outcome=Outcome.OK, usage=USAGE, logs_truncated=True)
    said = texts(Session().answered(Answered({}, [], run), 0))
    assert "[warn] further log lines were dropped (limit log_bytes)" in said


def test_an_error_shows_the_scripts_message_and_traceback_and_does_not_lose_the_last_good_run() -> None:
    session = Session()
    session.begins("14:03:22")
    session.answered(GOOD, 0)
    session.begins("14:03:40")
    assert texts(
        session.failed(failed(Outcome.SCRIPT_ERROR, "t.lua:7: no", traceback="t.lua:7: in tool.execute"), 0)
    ) == [
        "script_error: tool 't': t.lua:7: no",
        "  t.lua:7: in tool.execute",
        "script_error · 12.3 ms · CPU 4.5 ms · memory 16.0 MiB · 3 host calls",
        "The last good run was run 1 at 14:03:22:",
        "  Result:",
        "  one",
        "  two",
        "  … 2 more lines",
    ]
    assert session.good == (1, "14:03:22", GOOD.lines)


def test_a_limit_that_was_passed_is_named() -> None:
    limit = LimitUse("cpu_s", 0.2, 0.21, "s", "script")
    lines = texts(Session().failed(failed(Outcome.CPU_LIMIT, "too much", limit=limit), 0))
    assert lines[:2] == ["cpu_limit: tool 't': too much", "limit: cpu_s = 0.2 s (set by the script), used 0.21 s"]


def test_a_call_that_was_refused_before_it_ran_says_so() -> None:
    lines = texts(Session().failed(Problem(Code.BAD_REQUEST, "missing required parameter: left"), 0.0005))
    assert lines == ["rejected: missing required parameter: left", "rejected · 0.5 ms · no script was run"]


def test_a_wrong_answer_does_not_say_that_nothing_ran() -> None:
    problem = Problem(Code.AGENT_ERROR, "agent 'a': the answer of agent.resolve: system is missing", run_id="3")
    assert texts(Session().failed(problem, 0.0012))[-1] == "script_error · 1.2 ms"


def test_a_script_that_does_not_load_says_where_and_why() -> None:
    failure = LoadFailure("agent.script", "a", Path("/some/a.lua"), 3, Outcome.SCRIPT_ERROR, "a.lua:3: '}' expected")
    said = "did not load: script_error: a.lua:3: '}' expected (/some/a.lua:3)"
    assert Session().not_loaded(failure) == [("bad", said)]


def test_the_farewell_counts_and_names_the_last_good_run() -> None:
    session = Session()
    assert texts(session.farewell()) == ["", "0 runs, 0 good"]
    session.begins("14:03:22")
    session.answered(GOOD, 0)
    session.begins("14:03:40")
    session.refused("--param n: expected integer as JSON, got 'x'")
    assert texts(session.farewell())[-1] == "2 runs, 1 good; the last good one was run 1 at 14:03:22"


# ---- how saves are noticed --------------------------------------------------------------------------------------


def write(path: Path, text: str) -> None:
    path.write_text(text)


def read(path: Path) -> str:
    return path.read_text()


def rename_over(path: Path, text: str) -> None:
    """How most editors save."""
    temporary = path.with_name(f".{path.name}.swp")
    temporary.write_text(text)
    temporary.rename(path)


def leave_as_it_is(path: Path, text: str) -> None:
    path.write_text(path.read_text())


def delete(path: Path, text: str) -> None:
    path.unlink()


def delete_the_folder(path: Path, text: str) -> None:
    path.unlink()
    path.parent.rmdir()


SAVES: dict[str, Callable[[Path, str], object]] = {
    "in place": write,
    "by a rename": rename_over,
    "of the same bytes": leave_as_it_is,
    "as a deletion": delete,
    "as a deletion of its folder": delete_the_folder,
}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "agents/a.lua"
    path.parent.mkdir()
    path.write_text("one")
    os.utime(path, (1, 1))  # a save of the same bytes may come within one tick of the clock
    return path


async def next_change(saves: Saves, seen: Stamp | None) -> Stamp | None:
    with trio.fail_after(PATIENCE_S):
        await saves.change(seen)
        return await saves.now()


@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES.keys())
async def test_every_kind_of_save_is_noticed_and_so_is_the_next_one(
    script: Path, nursery: trio.Nursery, save: Callable[[Path, str], object]
) -> None:
    saves = Saves(script)
    nursery.start_soon(saves.watch)
    seen = await saves.now()
    save(script, "two")
    after = await next_change(saves, seen)
    assert after != seen
    script.parent.mkdir(exist_ok=True)
    write(script, "three")
    assert await next_change(saves, after) == stamp(script)
    assert stamp(script) is not None


async def test_a_save_of_what_a_link_points_to_is_noticed(script: Path, tmp_path: Path, nursery: trio.Nursery) -> None:
    link = tmp_path / "links/b.lua"
    link.parent.mkdir()
    link.symlink_to(script)
    saves = Saves(link)
    nursery.start_soon(saves.watch)
    seen = await saves.now()
    write(script, "two")
    assert await next_change(saves, seen) == stamp(script)


async def test_a_file_is_noticed_whose_folder_was_not_there(tmp_path: Path, nursery: trio.Nursery) -> None:
    path = tmp_path / "later/a.lua"
    saves = Saves(path)
    nursery.start_soon(saves.watch)
    assert await saves.now() is None
    path.parent.mkdir()
    write(path, "one")
    assert await next_change(saves, None) == stamp(path)


def test_what_cannot_be_read_has_no_stamp_and_nothing_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.lua")
    (tmp_path / "folder.lua").mkdir()
    (tmp_path / "broken.lua").symlink_to("nowhere")
    assert [stamp(tmp_path / f"{name}.lua") for name in ("fifo", "folder", "broken", "missing")] == [None] * 4


async def test_a_burst_of_saves_is_one_run_of_the_last_of_them(script: Path, nursery: trio.Nursery) -> None:
    saves = Saves(script)
    send, ran = trio.open_memory_channel[str](100)

    async def run(seen: Stamp | None) -> None:
        await send.send(read(script))

    nursery.start_soon(on_every_save, saves, run)
    with trio.fail_after(PATIENCE_S):
        assert await ran.receive() == "one"
        for number in range(20):
            write(script, f"save {number}")
        saves.look()
        assert await ran.receive() == "save 19"
        saves.look()  # of which nothing comes: the file is as it was
        await trio.testing.wait_all_tasks_blocked(0.05)
    assert ran.statistics().current_buffer_used == 0


async def test_a_save_while_the_script_runs_stops_that_run_first(script: Path, nursery: trio.Nursery) -> None:
    saves = Saves(script)
    send, said = trio.open_memory_channel[str](100)

    async def run(seen: Stamp | None) -> None:
        text = read(script)
        send.send_nowait(f"{text} begins")
        try:
            await trio.sleep_forever()
        finally:
            send.send_nowait(f"{text} was stopped")

    nursery.start_soon(on_every_save, saves, run)
    with trio.fail_after(PATIENCE_S):
        assert await said.receive() == "one begins"
        write(script, "two")
        saves.look()
        assert [await said.receive(), await said.receive()] == ["one was stopped", "two begins"]


# ---- the command ------------------------------------------------------------------------------------------------


AGENT = """
agent = { arguments = { { name = "topic", required = true } } }
function agent.resolve(args, config, context)
    log.info("looking for " .. args.topic)
    context.progress(0.5, "half of it")
    local hits = context.search(args.topic)
    local read = pcall(context.get, "no such id")
    -- here
    return { system = "VERSION " .. #hits .. " hits" }
end
"""
CONFIG = """
[agents.inline.text]
description = "A text"
system_prompt = "p"

[agents.script.finder]
path = "agents/finder.lua"
limits = { cpu_s = 0.3 }
"""


class Live:
    """A `dev` command under way, in a process group of its own as a shell would start it."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = warm_start.Popen(
            [sys.executable, "-m", "cli.main", *arguments],
            cwd=folder, env=inherited(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
            start_new_session=True,
        )  # fmt: skip
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))

    def until(self, pattern: str) -> list[str]:
        """The lines up to the first that matches."""
        seen: list[str] = []
        while not seen or not re.search(pattern, seen[-1]):
            try:
                seen.append(self._lines.get(timeout=PATIENCE_S))
            except queue.Empty:
                raise AssertionError(f"no line like {pattern!r} in {seen}") from None
        return seen

    def interrupt(self) -> int:
        """Ctrl-C, which a terminal sends to the whole group. Returns the exit code; nothing is left then."""
        begun = psutil.Process(self.process.pid).children(recursive=True)
        assert begun  # the workers
        os.killpg(self.process.pid, signal.SIGINT)
        code = self.process.wait(PATIENCE_S)
        _, left = psutil.wait_procs(begun, PATIENCE_S)
        assert left == []
        return code

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def finder(filled, tmp_path):
    """A project with one script to develop."""
    with (tmp_path / "engine.toml").open("a") as file:
        file.write(CONFIG)
    path = tmp_path / "agents/finder.lua"
    path.parent.mkdir()
    path.write_text(AGENT)
    return path


def test_agent_dev_runs_on_every_save_and_survives_every_mistake(finder, tmp_path):
    with Live(tmp_path, "agent", "dev", "finder", "--arg", "topic=deployments") as dev:
        first = dev.until(r"^ok · ")
        assert first[:2] == ["Watching agents/finder.lua; Ctrl-C ends.", ""]
        assert re.fullmatch(r"── run 1 · \d\d:\d\d:\d\d ──", first[2])
        assert first[3:5] == ["[info] looking for deployments", "… 50%  half of it"]
        assert re.fullmatch(r"→ context\.search  [\d.]+ ms", first[5])
        assert re.fullmatch(r"→ context\.get  [\d.]+ ms  failed: document not found: no such id", first[6])
        assert first[7:11] == ["Tools: none", "", "System prompt (14 chars):", "  VERSION 2 hits"]
        assert re.fullmatch(r"ok · [\d.]+ ms · CPU [\d.]+ ms · memory [\d.]+ MiB · 2 host calls", first[-1])

        rename_over(finder, AGENT.replace("VERSION", "SECOND"))
        assert "  SECOND 2 hits" in dev.until(r"^ok · ")

        finder.write_text("agent = {")
        broken = dev.until(r"more line")
        where = re.compile(r"did not load: script_error: finder\.lua:1: .*\(agents/finder\.lua:1\)")
        assert any(map(where.match, broken))
        assert any(line.startswith("The last good run was run 2 at ") for line in broken)

        rename_over(finder, AGENT.replace("-- here", "error('the pier is closed')"))
        raised = dev.until(r"^The last good run was run 2 at ")
        assert "script_error: agent 'finder': finder.lua:8: the pier is closed" in raised
        assert "  finder.lua:8: in agent.resolve" in raised

        finder.unlink()
        dev.until(r"^agents/finder\.lua is gone or cannot be read; waiting for it$")

        finder.write_text(AGENT.replace("-- here", "while true do end"))
        limited = dev.until(r"^cpu_limit · ")
        assert any(line.startswith("limit: cpu_s = 0.3 s (set by the script)") for line in limited)

        finder.write_text(AGENT.replace("-- here", "sleep(20)"))  # stopped by the save that follows
        dev.until(r"^→ context\.get")
        finder.write_text(AGENT)
        assert "run 6 was stopped before it ended" in dev.until(r"^ok · ")

        assert dev.interrupt() == 0
        assert re.fullmatch(r"7 runs, 3 good; the last good one was run 7 at .*", dev.until(r" runs, ")[-1])


def test_agent_dev_shows_a_document_again_on_every_save_of_it_and_of_what_it_reads(filled, tmp_path):
    with (tmp_path / "engine.toml").open("a") as file:
        file.write('[agents.chatmd.teller]\npath = "prompts/teller.chatmd"\n')
    path, facts = tmp_path / "prompts/teller.chatmd", tmp_path / "prompts/facts.md"
    path.parent.mkdir()
    source = '<system>You tell.</system>\n<user>Read <doc src="facts.md" local/></user>\n'
    path.write_text(source)
    facts.write_text("It rains.")
    with Live(tmp_path, "agent", "dev", "teller") as dev:
        shown = dev.until(r"Read ")
        assert shown[0] == "Watching prompts/teller.chatmd; Ctrl-C ends."
        assert "  You tell." in shown
        assert shown[-1].endswith("Read It rains.")
        rename_over(path, source.replace("You tell", "You shout"))
        assert "  You shout." in dev.until(r"Read It rains")
        rename_over(facts, "It snows.")
        dev.until(r"Read It snows")
        path.write_text("<user>")
        assert any("unclosed: prompts/teller.chatmd:1:1" in line for line in dev.until(r"The last good run was run 3"))
        path.write_text(source)
        dev.until(r"Read It snows")
        os.killpg(dev.process.pid, signal.SIGINT)
        assert dev.process.wait(PATIENCE_S) == 0


def test_agent_dev_runs_again_when_a_required_file_changes_or_appears(finder, tmp_path):
    finder.write_text("local word = require('./lib/word')\n" + AGENT.replace('"VERSION "', "word"))
    word = finder.parent / "lib/word.lua"
    with Live(tmp_path, "agent", "dev", "finder", "--arg", "topic=deployments") as dev:
        missing = dev.until(r"^did not load: ")
        assert missing[-1].startswith(
            "did not load: script_error: finder.lua:1: require(\"./lib/word\"): 'lib': no such"
        )
        word.parent.mkdir()
        word.write_text("return 'first '")
        assert "  first 2 hits" in dev.until(r"^ok · ")
        rename_over(word, "return 'second '")
        assert "  second 2 hits" in dev.until(r"^ok · ")
        word.unlink()
        assert "'lib/word.lua': no such file or directory" in dev.until(r"^did not load: ")[-1]
        assert dev.interrupt() == 0


async def test_a_change_of_a_required_file_is_noticed_until_the_script_is_loaded_without_it(
    script: Path, nursery: trio.Nursery
) -> None:
    other = script.parent / "lib/other.lua"
    saves = Saves(script)
    nursery.start_soon(saves.watch)
    seen = await saves.now()
    saves.require({other: signature(other)})
    other.parent.mkdir()
    write(other, "one")
    assert await next_change(saves, seen) == seen
    saves.require({other: signature(other)})
    os.utime(other, (5, 5))
    assert await next_change(saves, seen) == seen
    with trio.move_on_after(0.1) as waited:  # nothing is required until the next load
        os.utime(other, (6, 6))
        saves.look()
        await saves.change(seen)
    assert waited.cancelled_caught


def test_agent_dev_ends_with_0_on_ctrl_c_while_the_script_runs(finder, tmp_path):
    finder.write_text(AGENT.replace("-- here", "sleep(20)"))
    with Live(tmp_path, "agent", "dev", "finder", "--arg", "topic=deployments") as dev:
        dev.until(r"^→ context\.get")
        assert dev.interrupt() == 0
        assert dev.until(r" runs?, ")[-3:] == ["run 1 was stopped before it ended", "", "1 run, 0 good"]


def test_tool_dev_takes_a_path_and_reads_the_parameters_as_they_are_declared_now(filled, tmp_path):
    path = tmp_path / "double.lua"
    text = """
    tool = { parameters = { { name = "n", type = "TYPE" } } }
    function tool.execute(params) return params.n + params.n end
    """
    path.write_text(text.replace("TYPE", "integer"))
    with Live(tmp_path, "tool", "dev", "./double.lua", "--param", "n=2.5") as dev:
        dev.until(r"^rejected: parameter 'n' must be of type 'integer', got number$")
        path.write_text(text.replace("TYPE", "number"))
        assert "  5.0" in dev.until(r"^ok · ")
        path.write_text(text.replace("TYPE", "boolean"))
        dev.until(r"^rejected: parameter 'n' must be of type 'boolean'")
        dev.until(r"^The last good run was run 2 at ")
        assert dev.interrupt() == 0


def test_a_script_that_is_developed_may_call_what_its_tenant_has_published(finder, tmp_path, engine):
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "manifest.toml").write_text('name = "adder"\nversion = "1"\nmain = "t.lua"\n')
    (package / "t.lua").write_text("tool = {} function tool.execute() return { sum = 42 } end")
    assert engine("tool", "publish", "pkg").code == 0
    finder.write_text(
        "agent = { tools = { 'adder' } }\n"
        "function agent.resolve(args, config, context)\n"
        "    return { system = 'sum ' .. context.tools.adder({}).sum }\n"
        "end\n"
    )
    with Live(tmp_path, "agent", "dev", "finder") as dev:
        assert "  sum 42" in dev.until(r"^(ok|script_error) · ")
        assert dev.interrupt() == 0


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("agent", "dev", "findr"), "error: unknown agent 'findr'; did you mean 'finder'?"),
        (
            ("agent", "dev", "text"),
            "error: agent 'text' is no Lua script or document (inline): there is no file to watch",
        ),
        (("tool", "dev", "search"), "error: unknown tool 'search'"),
    ],
)
def test_dev_is_exit_2_where_there_is_no_script_to_watch(finder, tmp_path, engine, words, why):
    ended = engine(*words)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(why)

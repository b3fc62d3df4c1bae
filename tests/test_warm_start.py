"""A process that begins with the program imported is otherwise what `subprocess` starts."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trio
import warm_start
import warm_zygote

from engine.workers import zygote

ITSELF = """
import json, os, signal, sys
print(json.dumps([
    sys.argv, [os.path.abspath(each) for each in sys.path], os.getcwd(), dict(os.environ), sys.stdin.read(), __name__,
    os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid(), sorted(os.listdir("/proc/self/fd"))[:-1],
    [str(signal.getsignal(each)) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)],
    [sys.stdout.line_buffering, sys.stderr.line_buffering, sys.stderr.errors],
]))
"""
# What a zygote is before its layers and its warm-up: the last line of its errors is the reason that it is lost.
ZYGOTE = """
import json, os, signal
print(json.dumps([
    sys.argv[2:4], sys.argv[5:], sys.path, os.getcwd(), dict(os.environ), __name__, gc.isenabled(),
    sorted(name for name, module in sys.modules.items() if module),
    os.getsid(0) == os.getpid(), [os.readlink(f"/proc/self/fd/{number}").partition(":")[0] for number in (0, 1, 2)],
    len(os.listdir("/proc/self/fd")), os.readlink(f"/proc/self/fd/{sys.argv[1]}").partition(":")[0],
    {each: str(signal.getsignal(each)) for each in signal.valid_signals()},
    sys.flags.isolated, sys.flags.no_site, open("/proc/self/oom_score_adj").read(), os.nice(0),
]), file=sys.stderr)
os._exit(1)
"""
# What it does, and what becomes of it.
ENDS = [
    "import sys; sys.exit(3)",
    "import sys; sys.exit('a message')",
    "raise RuntimeError('oh')",
    "def f(): 1 / 0\nf()",
    "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "import signal; signal.raise_signal(signal.SIGINT)",
    "import os; os._exit(4)",
    "import atexit; atexit.register(print, 'at exit'); print('first')",
    "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()",
    "import sys; sys.stdout.write('x'); sys.stdout.close(); import os; os.close(2)",
]


def both(words: list[str], **options: Any) -> tuple["subprocess.CompletedProcess[str]", ...]:
    command = [sys.executable, *words]
    options = {"capture_output": True, "text": True, "timeout": 60, "check": False} | options
    return subprocess.run(command, **options), warm_start.run(command, **options)


@pytest.mark.parametrize("kind", ["-c", "a script", "-m"])
@pytest.mark.parametrize("session", [False, True])
def test_it_has_the_same_arguments_path_folder_environment_input_and_descriptors(
    kind: str, session: bool, tmp_path: Path
) -> None:
    (tmp_path / "itself.py").write_text(ITSELF)
    words = {"-c": ["-c", ITSELF], "a script": ["itself.py"], "-m": ["-m", "itself"]}[kind]
    environ = {"A": "ü", "LC_ALL": "C.UTF-8", "PYTHONPATH": f"{tmp_path}/x:{tmp_path}/y", "PATH": os.environ["PATH"]}
    real, warm = both([*words, "one", "two"], cwd=tmp_path, env=environ, input="given", start_new_session=session)
    assert real.stdout
    assert (warm.stderr, warm.returncode) == (real.stderr, 0)
    for there, expected in zip(json.loads(warm.stdout), json.loads(real.stdout), strict=True):
        assert there == expected


@pytest.mark.parametrize("code", ENDS)
def test_it_ends_in_the_same_way(code: str) -> None:
    real, warm = both(["-c", code])
    assert (warm.returncode, warm.stdout, warm.stderr) == (real.returncode, real.stdout, real.stderr)


def test_it_is_a_child_that_can_be_signalled_and_waited_for() -> None:
    code = "import sys, time, cli.application, server.app; print('begun', flush=True); time.sleep(60)"
    reading, writing = os.pipe()
    with warm_start.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, pass_fds=[writing]) as process:
        os.close(writing)
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        assert process.poll() is None
        assert (Path("/proc") / str(process.pid) / "stat").read_text().rpartition(")")[2].split()[1] == str(os.getpid())
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
        assert os.read(reading, 1) == b""  # it held the other end
        os.close(reading)
    with pytest.raises(ChildProcessError):
        os.waitpid(process.pid, 0)


async def test_trio_talks_to_one_and_waits_for_it_and_the_template_is_no_child_that_was_left() -> None:
    code = "import sys; print(sys.stdin.readline(), end='', flush=True); sys.stdin.read(); sys.exit(5)"
    before = warm_start.children()
    process = await warm_start.open_process([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    async with process.stdout:
        async with process.stdin:
            await process.stdin.send_all(b"said\n")
            assert await process.stdout.receive_some() == b"said\n"
            assert process.pid in [each.pid for each in warm_start.children()]
        with trio.fail_after(60):
            assert await process.wait() == 5
    assert warm_start.children() == before


def test_threads_start_processes_side_by_side() -> None:
    with ThreadPoolExecutor(4) as pool:
        codes = pool.map(lambda code: warm_start.run([sys.executable, "-c", f"exit({code})"]).returncode, range(12))
        assert list(codes) == list(range(12))


def test_the_modules_of_the_program_are_there_before_it_begins_but_for_the_one_where_it_begins() -> None:
    code = "import sys; print([name in sys.modules for name in ('cli.main', 'cli.application', 'server.app')])"
    real, warm = both(["-c", code])
    assert real.stdout == "[False, False, False]\n"
    assert warm.stdout == "[False, True, True]\n"


async def test_a_zygote_that_begins_warm_is_one_that_was_started_but_for_the_time_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zygote, "_BOOT", f"{zygote._BOOT.rpartition('main(')[0]}{ZYGOTE}")
    found = []
    for real in (True, False):
        monkeypatch.setattr(warm_zygote, "boot", None if real else zygote._BOOT)
        with pytest.raises(zygote.ZygoteLost) as lost:
            async with zygote.open_zygote(memory_bytes=1 << 30, processes=8):
                pass
        found.append(json.loads(str(lost.value).partition(": ")[2]))
    assert found[0] == found[1]


@pytest.mark.parametrize("warm", [True, False])
async def test_zygotes_begin_warm_but_for_tests_that_are_cold(monkeypatch: pytest.MonkeyPatch, warm: bool) -> None:
    started: list[Sequence[str]] = []

    async def start(command: Sequence[str], **options: Any) -> trio.Process:
        started.append(command)
        return await real(command, **options)

    real = warm_zygote._open_for_real
    monkeypatch.setattr(warm_zygote, "_open_for_real", start)
    monkeypatch.setattr(warm_zygote, "allowed", warm)
    async with zygote.open_zygote(memory_bytes=1 << 30, processes=8) as opened:
        child = await opened.fork(cpu_s=1, memory_bytes=1 << 28)
        child.signal(signal.SIGKILL)
        with trio.fail_after(10):
            await child.ended.wait()
        assert child.status == signal.SIGKILL
        child.close()
    assert len(started) == (not warm)

"""Ctrl-C at whatever moment ends a command with 130 and without a word."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_support import inherited
from effort import effort, part

# The program says when its first line has run: what comes before it is the interpreter's own beginning.
BEGUN = "import cli.main, sys; sys.argv[0] = 'engine'; print('begun', flush=True); cli.main.main()"

COMMANDS = (("search", "deployments"), ("doctor",), ("sync", "all"), ("agent", "list"), ("--help",), ("tenant", "list"))
TRIES = part(range(effort(5)), lambda _: None, one_in=2)


def interrupted(words: tuple[str, ...], delay: float, cwd: Path) -> tuple[int, str]:
    """How a command ends that gets SIGINT so long after its beginning, and what it says then."""
    while True:
        code, err = _interrupted(words, delay, cwd)
        # In BEGUN itself, before the program's first line: only the frame of `-c` is there.
        if not (err.endswith("KeyboardInterrupt\n") and err.count("File ") == err.count('File "<string>"') == 1):
            return code, err


def _interrupted(words: tuple[str, ...], delay: float, cwd: Path) -> tuple[int, str]:
    with subprocess.Popen(
        [sys.executable, "-c", BEGUN, *words], cwd=cwd, env=inherited(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    return process.returncode, err


@pytest.mark.whole
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_ctrl_c_at_any_moment_is_130_and_quiet(tmp_path: Path, docs: Path, words: tuple[str, ...]) -> None:
    started = time.monotonic()
    whole = subprocess.run([sys.executable, "-m", "cli.main", *words], cwd=tmp_path, capture_output=True, check=False)
    lasts = time.monotonic() - started
    # Early moments are many: the imports, in which nothing of the command's own is there to catch anything.
    moments = [0.0, *(random.uniform(0, 1.1) ** 2 * lasts for _ in TRIES)]
    for moment in moments:
        code, err = interrupted(words, moment, tmp_path)
        assert code in (130, whole.returncode), (moment, err)
        assert "Traceback" not in err, moment
        assert "Exception ignored" not in err, moment
        if code == 130 and whole.returncode == 0:
            assert err == "", moment
    again = subprocess.run([sys.executable, "-m", "cli.main", *words], cwd=tmp_path, capture_output=True, check=False)
    assert again.returncode == whole.returncode


def test_a_command_that_was_started_with_interrupts_ignored_goes_on_ignoring_them(tmp_path: Path) -> None:
    """As in `nohup` or the background of a script."""
    with subprocess.Popen(
        ["sh", "-c", f'trap "" INT; exec "{sys.executable}" -c "{BEGUN}" sources --help'],
        cwd=tmp_path, env=inherited(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "--config" in out


def test_an_interrupt_in_a_callback_that_cannot_raise_is_not_lost(tmp_path: Path) -> None:
    code = (
        "import cli.commands.doctor, signal, sys, weakref\n"
        "class Thing: pass\n"
        "def doctor():\n"
        "    thing = Thing()\n"
        "    watching = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))\n"
        "    del thing\n"
        "    while True: pass\n"
        "cli.commands.doctor.doctor = doctor\n"
        "from cli.main import main\n"
        "sys.argv = ['engine', 'doctor']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (130, "")

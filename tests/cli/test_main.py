"""What holds for every command: help, exit codes, one line on standard error, quiet ends."""

import importlib
import inspect
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cyclopts import App

from cli.application import COMMANDS as COMMANDS_TABLE

COMMANDS = [
    ("serve",), ("init",), ("doctor",), ("agent", "list"), ("agent", "test"), ("agent", "init"), ("tool", "list"),
    ("tool", "test"), ("sync",), ("search",), ("get",), ("sources",), ("stats",), ("export",), ("mcp-config",),
]  # fmt: skip

PRINT_DATA = [
    ("doctor",), ("agent", "list"), ("agent", "test"), ("tool", "list"), ("tool", "test"), ("sync",), ("search",),
    ("get",), ("sources",), ("stats",),
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_and_takes_a_configuration(engine, command):
    ended = engine(*command, "--help")
    assert (ended.code, ended.err) == (0, "")
    assert "--config" in ended.out
    assert ("--json" in ended.out) == (command in PRINT_DATA)


def test_the_program_lists_its_commands_and_exit_codes(process):
    ended = process("--help")
    assert ended.code == 0
    for command in ("serve", "init", "doctor", "agent", "tool", "sync", "search", "completions"):
        assert command in ended.out
    assert "Exit codes: 0 fine" in ended.out


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from cli.main import run; run(['--help']);"
        "print(sorted({'trio', 'pydantic', 'apsw', 'quart', 'mcp', 'structlog', 'lupa'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_and_a_command_import_no_other_command():
    code = (
        "import sys; from cli.main import run; run([*sys.argv[1:], '--help']);"
        "print(sorted(name for name in sys.modules if name.startswith('cli.commands.')))"
    )

    def imported(*command: str) -> str:
        run = [sys.executable, "-c", code, *command]
        return subprocess.run(run, capture_output=True, text=True, check=True).stdout.splitlines()[-1]

    assert imported() == "[]"
    assert imported("agent") == "['cli.commands.agent']"
    assert imported("key", "create") == "['cli.commands.key']"


# Libraries and modules that no command but those for them needs; each costs a command 10 to 500 ms.
NOT_FOR_COMMANDS = {
    "quart", "hypercorn", "mcp", "httpx2", "httpcore2", "h2", "h11", "anyio", "prometheus_client", "http.server",
    "watchfiles", "pygments", "lupa", "onnxruntime", "tokenizers", "botocore", "server.app", "engine.egress.outbound",
    "cli.scripts.dev", "cli.scripts.scaffold",
}  # fmt: skip
FOR_SYNC = {"markdown_it", "pathspec", "numpy"}
# Modules after `agent list` in an empty folder: 680 of 907 that it was, 510 of them libraries' and Python's.
MOST_MODULES = 720


def loaded_by(folder: Path, *commands: str) -> tuple[list[str], dict[str, set[str]]]:
    """What commands print that run one after the other in one process, and the modules loaded after each."""
    code = (
        "import sys; from cli.main import run\n"
        "for command in sys.argv[1:]:\n"
        "    assert run(command.split()) == 0, command\n"
        "    print('loaded:', command, '=', *sys.modules)"
    )
    run = [sys.executable, "-c", code, *commands]
    lines = subprocess.run(run, capture_output=True, text=True, check=True, cwd=folder).stdout.splitlines()
    loaded = [line.removeprefix("loaded: ").partition(" = ") for line in lines if line.startswith("loaded: ")]
    printed = [line for line in lines if not line.startswith("loaded: ")]
    return printed, {command: set(names.split()) for command, _, names in loaded}


def test_a_list_of_agents_loads_no_server_and_nothing_of_other_commands(tmp_path):
    printed, loaded = loaded_by(tmp_path, "agent list")
    assert printed == ["No agents."]
    assert not (NOT_FOR_COMMANDS | FOR_SYNC | {"rich", "agents.syncing"}) & loaded["agent list"]
    assert len(loaded["agent list"]) <= MOST_MODULES


def test_a_search_a_sync_and_the_doctor_load_no_server_and_a_search_nothing_that_reads_files(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# Words\n\nof a document\n")
    (tmp_path / "engine.toml").write_text('[connectors.filesystem.docs]\nroot = "docs"\n')
    printed, loaded = loaded_by(tmp_path, "init", "search document", "sync all", "doctor")
    assert "  upserted documents: 1" in printed
    assert not (NOT_FOR_COMMANDS | FOR_SYNC | {"agents.service", "engine.engine"}) & loaded["search document"]
    assert not (NOT_FOR_COMMANDS | {"agents.service", "engine.engine"}) & loaded["sync all"]
    assert not NOT_FOR_COMMANDS & loaded["doctor"]


def test_the_help_of_the_program_says_of_each_command_what_the_command_says_of_itself():
    for name, (where, text) in COMMANDS_TABLE.items():
        module, _, attribute = where.partition(":")
        command = getattr(importlib.import_module(f"cli.commands.{module}"), attribute)
        own = command.help if isinstance(command, App) else inspect.getdoc(command)
        assert " ".join(own.split()) == " ".join(text.split()), name


def test_the_version_is_that_of_the_package(engine):
    from importlib.metadata import version

    assert engine("--version").out.strip() == version("engine")


MISUSE = {
    ("serach", "x"): 'error: Unknown command "serach". Did you mean "search"?',
    ("search",): "requires an argument",
    ("search", "x", "--mode", "fuzzy"): 'Choose from: "keyword", "semantic", "hybrid"',
    ("connector", "test", "x"): "error: unknown connector 'x'; configured: none",
    ("connector", "test", "x.lua", "--source", "x"): "error: unknown connector 'x'; configured: none",
    ("embed", "pending"): "error: there is no store at ",
    ("vector-index", "status"): "error: 'vector-index' is a command of ctx, not supported here: ",
    ("--config", "engine.toml", "registry", "list"): "error: 'registry' is a command of ctx, not supported here: ",
    ("tool", "test", "search", "--source", "x"): "error: --source is for the path of a script",
    ("tool", "test", "x.lua", "--source", "x"): "error: unknown tool 'x'; known: none",
    ("search", "x", "--since", "yesterday"): "error: --since: 'yesterday' is not a date",
    ("stats", "--nope"): "Unknown option: --nope",
    ("stats", "--tenant", "acme"): "error: unknown tenant 'acme'",
    ("stats", "--config", "gone.toml"): "error: gone.toml: no such configuration file",
    ("serve", "--bind", "here"): "error: --bind: expected HOST:PORT, got 'here'",
    ("agent", "init", "a b"): "error: 'a b' is not a name",
    ("agent", "init", "script"): "error: 'script' is a reserved name",
    ("completions", "tcsh"): 'Choose from: "bash", "zsh", "fish", "powershell"',
}


@pytest.mark.parametrize(("arguments", "message"), MISUSE.items(), ids=[" ".join(key) for key in MISUSE])
def test_misuse_is_one_line_on_standard_error_and_exit_2(engine, arguments, message):
    ended = engine(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert len(ended.err.splitlines()) == 1
    assert message in ended.err


@pytest.mark.parametrize("command", [("stats",), ("agent", "list"), ("sync", "all"), ("serve",), ("init",)])
def test_a_wrong_configuration_is_one_line_naming_file_and_key(engine, tmp_path, command):
    (tmp_path / "engine.toml").write_text("[retrieval]\nfinal_limt = 3\n")
    ended = engine(*command)
    assert ended.code == 2
    assert ended.err == "error: engine.toml: retrieval.final_limt: unknown key; did you mean 'final_limit'?\n"


def test_the_configuration_may_be_named_before_the_command_and_by_the_environment(engine, tmp_path):
    (tmp_path / "mine.toml").write_text('[db]\npath = "mine.sqlite"\n')
    for ended in (
        engine("--config", "mine.toml", "stats"),
        engine("--config=mine.toml", "stats"),
        engine("stats", "--config", "mine.toml"),
        engine("stats", ENGINE_CONFIG="mine.toml"),
        engine("stats", CTX_CONFIG="mine.toml"),
    ):
        assert ended.code == 2
        assert "mine.sqlite" in ended.err


def test_warnings_of_the_configuration_are_told_once_on_standard_error(engine, tmp_path):
    (tmp_path / "engine.toml").write_text("[vector_index]\n")
    assert "warning: engine.toml: vector_index has no effect here\n" in engine("init").err


def test_a_dash_dash_ends_the_options(engine, docs):
    assert engine("sync", "all").code == 0
    assert engine("search", "--", "--json").out == "No results.\n"


def test_completions_are_a_script_for_the_shell(engine):
    for shell in ("bash", "zsh", "fish"):
        ended = engine("completions", shell)
        assert ended.code == 0
        assert "engine" in ended.out


def test_a_reader_that_goes_away_ends_the_command_quietly(engine, docs):
    for number in range(200):
        (docs / f"{number}.md").write_text("word " * 200)
    assert engine("sync", "all").code == 0
    command = [sys.executable, "-m", "cli.main", "export"]
    with subprocess.Popen(command, cwd=docs.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 0


def test_ctrl_c_ends_a_command_quietly_with_130(tmp_path: Path):
    code = (
        "import cli.commands.doctor, sys, trio\n"
        "async def doctor():\n"
        "    async with trio.open_nursery() as nursery:\n"
        "        nursery.start_soon(trio.sleep_forever)\n"
        "        print('up', flush=True)\n"
        "        await trio.sleep_forever()\n"
        "cli.commands.doctor.doctor = doctor\n"
        "from cli.main import main\n"
        "sys.argv = ['engine', 'doctor']\n"
        "main()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        try:
            _, err = process.communicate(timeout=30)
        finally:
            process.kill()  # else the end of the block waits for one that goes on
    assert (process.returncode, err) == (130, b"")


def test_a_fault_of_ours_is_one_line_and_exit_2_and_a_traceback_only_when_asked_for(tmp_path: Path):
    code = (
        "import cli.commands.doctor, sys\n"
        "def doctor(): raise RuntimeError('two\\nlines')\n"
        "cli.commands.doctor.doctor = doctor\n"
        "from cli.main import run\n"
        "sys.exit(run(['doctor']))\n"
    )

    def run(**environ: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-c", code], env=os.environ | environ, capture_output=True, text=True, check=False
        )

    ended = run()
    assert ended.returncode == 2
    assert ended.stderr == "error: internal error: RuntimeError: two lines (ENGINE_DEBUG=1 shows where)\n"
    assert "Traceback" in run(ENGINE_DEBUG="1").stderr

"""A command is one file and one row of the table: here both are added on the fly."""

from pathlib import Path

import pytest
from added import added_file
from cli_support import Engine

import cli.commands
from cli.application import COMMANDS

GREET = """
from typing import Annotated

from cyclopts import Parameter

from cli.output import FAILED, OK, say


async def greet(name: str, /, *, loudly: Annotated[bool, Parameter(help="Louder.", negative=())] = False) -> int:
    "Greet a name."
    say(f"Hello, {name.upper() if loudly else name}")
    return OK if name else FAILED
"""


def test_an_added_command_is_in_the_help_and_runs_with_its_exit_code(
    engine: Engine, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder: Path = tmp_path_factory.mktemp("commands")
    monkeypatch.setitem(COMMANDS, "greet", ("greet:greet", "Greet a name."))
    with added_file(cli.commands, folder, "greet", GREET):
        assert "Greet a name." in engine("--help").out
        assert engine("greet", "you", "--loudly").out == "Hello, YOU\n"
        ended = engine("greet", "")
        assert (ended.code, ended.out) == (1, "Hello, \n")
        assert "--loudly" in engine("greet", "--help").out

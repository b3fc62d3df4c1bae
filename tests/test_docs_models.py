"""docs/models.md: its script has the keys of the code. Its commands, and those of authoring.md, print what is shown."""

import re
from pathlib import Path

import pytest
from cli_support import in_this_process
from pages import blocks, first_quoted, sections
from test_docs_testing import differences

from engine.models.scripted import Reply, parse_script

PAGE = "docs/models.md"


def test_every_key_of_a_reply_is_in_the_table_with_its_default() -> None:
    (found,) = (each for each in sections(PAGE) if each.title == "Scripted models")
    assert first_quoted(found.rows()) == list(Reply.model_fields)
    for row in found.rows():
        default = Reply.model_fields[first_quoted([row])[0]].default
        assert row[1].strip("`") == {None: "—", "": '""', (): "[]"}.get(default, str(default))


@pytest.mark.parametrize(("page", "replies"), [(PAGE, 4), ("docs/authoring.md", 1)])
def test_every_command_prints_what_the_page_shows(
    page: str, replies: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = in_this_process(tmp_path, monkeypatch, capsys)
    for block in blocks(page):
        if found := re.fullmatch(r"toml file (\S+)", block.info):
            (tmp_path / found[1]).write_text(block.text)
    assert len(parse_script((tmp_path / "answers.toml").read_text())) == replies
    commands = [block for block in blocks(page) if block.info == "console testing"]
    assert commands
    assert [line for block in commands for line in differences(engine, block)] == []

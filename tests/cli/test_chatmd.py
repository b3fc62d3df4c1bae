"""`engine chatmd`: documents are checked, formatted and parsed."""

import json
import os
from pathlib import Path

import pytest
from cli_support import Engine
from pages import CLI, followed

SOUND = "<system>Be polite.</system>\n<user>Hello</user>\n"
ODD = "<!-- about -->\n<config show model='m'>\n\n\n\n<user>see <doc src=d.md local> -> there</user> <!-- end -->\n"
MENDED = """<!-- about -->
<config show_tool_call model="m"/>

<user>see <doc src="d.md" local/> -> there</user> <!-- end -->
"""


def put(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.chatmd").write_text(text)


def test_a_sound_document_has_no_findings(engine: Engine, tmp_path: Path) -> None:
    put(tmp_path, a=SOUND)
    ended = engine("chatmd", "check", "a.chatmd", "--strict")
    assert (ended.code, ended.out) == (0, "0 errors, 0 warnings\n")


def test_findings_are_shown_with_their_places_and_errors_end_with_1(engine: Engine, tmp_path: Path) -> None:
    put(tmp_path, a=ODD)
    (tmp_path / "d.md").write_text("d")
    ended = engine("chatmd", "check", "a.chatmd")
    assert ended.code == 0
    assert ended.out.splitlines()[-1] == "0 errors, 3 warnings"
    assert "a.chatmd:6:11: warning: <doc> is not closed; write <doc .../> [void-unclosed]" in ended.out.splitlines()
    ended = engine("chatmd", "check", "a.chatmd", "--strict")
    assert (ended.code, ended.out.splitlines()[-1]) == (1, "3 errors, 0 warnings")


def test_json_has_one_list_for_all_files_and_what_they_import(engine: Engine, tmp_path: Path) -> None:
    put(tmp_path, a='<import src="b.chatmd"/>', b="<user>", c="</user>")
    ended = engine("chatmd", "check", "a.chatmd", "c.chatmd", "b.chatmd", "--format", "json")
    assert ended.code == 1
    found = ended.json["diagnostics"]
    assert [(each["file"], each["line"], each["column"], each["code"], each["severity"]) for each in found] == [
        ("b.chatmd", 1, 1, "unclosed", "error"),
        ("c.chatmd", 1, 1, "stray-close", "error"),
    ]
    assert set(found[0]) == {"code", "severity", "message", "file", "line", "column"}


def test_sarif_has_a_rule_for_every_result(engine: Engine, tmp_path: Path) -> None:
    put(tmp_path, **{"a b": ODD + "</user>"})
    ended = engine("chatmd", "check", "a b.chatmd", "--format", "sarif")
    assert (ended.code, ended.json["version"]) == (1, "2.1.0")
    (run,) = ended.json["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert {result["level"] for result in run["results"]} == {"error", "warning"}
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        (place,) = result["locations"]
        assert place["physicalLocation"]["artifactLocation"]["uri"] == "a%20b.chatmd"
        assert place["physicalLocation"]["region"]["startLine"] >= 1


def test_documents_of_agents_are_checked_once_and_below_the_first_ones_folder(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    put(
        tmp_path,
        a='<tool name="b" agent="sub/b.chatmd" local/>',
        **{"sub/b": '<tool name="a" agent="../a.chatmd" local/><user><doc src="../../x" local/>'},
    )
    ended = engine("chatmd", "check", "a.chatmd", "--format", "json")
    assert [(each["file"], each["column"], each["code"]) for each in ended.json["diagnostics"]] == [
        ("sub/b.chatmd", 43, "unclosed"),
        ("sub/b.chatmd", 49, "file-outside"),
    ]


def test_formatting_writes_the_file_and_then_has_nothing_to_do(engine: Engine, tmp_path: Path) -> None:
    put(tmp_path, a=ODD)
    path = tmp_path / "a.chatmd"
    path.chmod(0o640)
    ended = engine("chatmd", "fmt", "a.chatmd", "--check")
    assert (ended.code, ended.out, path.read_text()) == (1, "Would write: a.chatmd\n", ODD)
    ended = engine("chatmd", "fmt", "a.chatmd")
    assert (ended.code, ended.out, path.read_text()) == (0, "Wrote: a.chatmd\n", MENDED)
    assert path.stat().st_mode & 0o777 == 0o640
    ended = engine("chatmd", "fmt", "a.chatmd", "--check")
    assert (ended.code, ended.out) == (0, "Unchanged: a.chatmd\n")
    assert os.listdir(tmp_path) == ["a.chatmd"]


def test_formatting_goes_through_a_link_and_leaves_it(engine: Engine, tmp_path: Path) -> None:
    put(tmp_path, a=ODD)
    (tmp_path / "link.chatmd").symlink_to("a.chatmd")
    assert engine("chatmd", "fmt", "link.chatmd").code == 0
    assert (tmp_path / "link.chatmd").is_symlink()
    assert (tmp_path / "a.chatmd").read_text() == MENDED


def test_a_document_with_errors_is_not_formatted_and_the_next_one_is(engine: Engine, tmp_path: Path) -> None:
    put(tmp_path, a="<user>", b=ODD)
    ended = engine("chatmd", "fmt", "a.chatmd", "b.chatmd")
    assert (ended.code, ended.out) == (1, "Wrote: b.chatmd\n")
    assert ended.err == "a.chatmd:1:1: error: <user> is not closed: </user> is missing [unclosed]\n"
    assert (tmp_path / "a.chatmd").read_text() == "<user>"


def test_parsing_prints_the_tree_of_that_file_alone(engine: Engine, tmp_path: Path) -> None:
    put(tmp_path, a='<import src="no.chatmd"/>\n<user>hi</user>')
    ended = engine("chatmd", "parse", "a.chatmd")
    assert ended.code == 0
    assert ended.json == {
        "document": [
            {"element": "import", "attributes": {"src": "no.chatmd"}, "children": [], "at": [1, 1]},
            {"element": "user", "attributes": {}, "children": [{"text": "hi", "at": [2, 7]}], "at": [2, 1]},
        ],
        "diagnostics": [],
    }
    put(tmp_path, a="<user>hi")
    ended = engine("chatmd", "parse", "a.chatmd")
    assert (ended.code, [each["code"] for each in ended.json["diagnostics"]]) == (1, ["unclosed"])


@pytest.mark.parametrize("command", ["check", "fmt", "parse"])
def test_a_file_that_cannot_be_read_is_misuse(engine: Engine, tmp_path: Path, command: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name, why in (("no.chatmd", "No such file"), ("fifo", "not a regular file"), (".", "not a regular file")):
        ended = engine("chatmd", command, name)
        assert (ended.code, ended.out) == (2, "")
        assert why in ended.err
    assert engine("chatmd", command).code == 2


@pytest.mark.parametrize("command", ["check", "parse"])
def test_50_mb_and_bytes_that_are_no_text_are_findings(engine: Engine, tmp_path: Path, command: str) -> None:
    with (tmp_path / "big.chatmd").open("wb") as file:
        file.truncate(50 << 20)
    (tmp_path / "bytes.chatmd").write_bytes(b"<user>\n\xff</user>")
    for name, place in (("big", (1, 1, "too-large")), ("bytes", (2, 1, "not-utf8"))):
        more = ["--format", "json"] if command == "check" else []
        ended = engine("chatmd", command, f"{name}.chatmd", *more)
        (found,) = json.loads(ended.out)["diagnostics"]
        assert (ended.code, (found["line"], found["column"], found["code"])) == (1, place)


def test_what_a_document_says_does_not_reach_the_terminal_as_it_is(engine: Engine, tmp_path: Path) -> None:
    put(tmp_path, a='<user><doc src="\x1b[2J\nx" local/></user>')
    ended = engine("chatmd", "check", "a.chatmd")
    assert ended.code == 1
    assert "\x1b" not in ended.out
    assert len(ended.out.splitlines()) == 2


def test_the_page_shows_what_is_printed(engine: Engine, tmp_path: Path) -> None:
    ((document, shown),) = followed("chatmd", "", page=CLI)
    put(tmp_path, ask=document.text)
    ended = engine("chatmd", "check", "ask.chatmd")
    assert (ended.code, ended.out) == (1, shown.text)

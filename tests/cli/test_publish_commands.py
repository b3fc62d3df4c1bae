"""`engine agent publish` and what becomes of versions, as its users have it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from cli_support import Engine

from cli.output import Exit
from cli.scripts.package import read_package

CONFIG = """
[db]
path = "data/engine.sqlite"
[sandbox]
workers = 1
reserve = 0
"""
LUA = "agent = { description = 'D' }\nfunction agent.resolve() return { system = 'v%s ' .. fs.read('data/x.md') } end\n"


def write(folder: Path, version: str, grants: str = "", **files: str) -> Path:
    """A package in a folder."""
    package = folder / "pkg"
    (package / "data").mkdir(parents=True, exist_ok=True)
    (package / "manifest.toml").write_text(f'name = "helper"\nversion = "{version}"\nmain = "main.lua"\n{grants}')
    (package / "main.lua").write_text(LUA % version)
    (package / "data/x.md").write_text("x")
    (package / ".git").mkdir(exist_ok=True)
    (package / ".git/config").write_bytes(b"\xff")
    for name, text in files.items():
        (package / name).write_text(text)
    return package


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "engine.toml").write_text(CONFIG)
    return tmp_path


@pytest.fixture
def engine(project: Path, engine: Engine) -> Engine:
    """The command line in the project."""
    return engine


def system(engine: Engine, *more: str) -> Any:
    ended = engine("agent", "test", "helper", "--json", *more)
    assert ended.code == 0, ended.err
    return ended.json["system"]


def test_a_folder_is_published_approved_and_taken_back(project: Path, engine: Engine) -> None:
    write(project, "1")
    first = engine("agent", "publish", "pkg")
    assert first.code == 0, first.err
    assert "Agent helper 1 (" in first.out
    assert ": active" in first.out
    assert system(engine) == "v1 x"

    write(project, "2", '[grants]\nhosts = ["10.0.0.5"]\n')
    second = engine("agent", "publish", "pkg", "--json")
    assert (second.json["active"], second.json["asks"]) == (False, {"hosts": ["10.0.0.5"]})
    refused = engine("agent", "activate", "helper", "2")
    assert refused.code == 1
    assert "hosts 10.0.0.5" in refused.err
    assert engine("agent", "approve", "helper", "2").code == 0
    assert system(engine) == "v2 x"

    assert engine("agent", "activate", "helper", "1").code == 0
    listed = engine("agent", "versions", "helper", "--json").json["versions"]
    assert [(each["version"], each["active"], each["published_by"]) for each in listed] == [
        ("2", False, "cli"), ("1", True, "cli"),
    ]  # fmt: skip
    assert "waits" not in engine("agent", "versions", "helper").out
    assert engine("agent", "deprecate", "helper", "1").code == 0
    gone = engine("agent", "test", "helper")
    assert (gone.code, "unknown agent" in gone.err) == (2, True)


def test_a_version_is_served_to_a_share_of_the_callers_until_one_is_activated(project: Path, engine: Engine) -> None:
    for version in ("1", "2"):
        write(project, version)
        assert engine("agent", "publish", "pkg").code == 0
    shared = engine("agent", "activate", "helper", "1", "--percent", "25")
    assert (shared.code, shared.out.split("): ")[1]) == (0, "canary for 25 %\n")
    listed = engine("agent", "versions", "helper").out
    assert [" ".join(line.split()[:4]) for line in listed.splitlines()[1:]] == [
        "2 active for 75", "1 canary for 25",
    ]  # fmt: skip
    assert [each["percent"] for each in engine("agent", "versions", "helper", "--json").json["versions"]] == [75, 25]
    for wrong in ("0", "101", "-1", "1.5"):
        refused = engine("agent", "activate", "helper", "1", f"--percent={wrong}")
        assert (refused.code, refused.err) == (
            1, f"error: percent must be a whole number from 1 to 100, which is every caller; got {wrong}\n",
        ), wrong  # fmt: skip
    for wrong in ("true", "half", ""):
        assert engine("agent", "activate", "helper", "1", f"--percent={wrong}").code == 2, wrong
    assert engine("agent", "deprecate", "helper", "1", "--percent", "5").code == 2, "it takes no share"
    assert ": active\n" in engine("agent", "activate", "helper", "2").out
    write(project, "3")
    assert engine("agent", "publish", "pkg", "--percent", "10", "--json").json["percent"] == 10
    write(project, "4", '[grants]\nhosts = ["10.0.0.5"]\n')
    assert engine("agent", "publish", "pkg", "--percent", "10", "--json").json["percent"] == 0
    assert "canary for 20 %" in engine("agent", "approve", "helper", "4", "--percent", "20").out
    audited = [line.split() for line in engine("audit").out.splitlines()]
    assert ["agent.approve", "helper", "4", "20%"] in [[*line[2:6]] for line in audited], audited


def test_what_a_version_changes_is_shown_before_it_is_approved(project: Path, engine: Engine) -> None:
    write(project, "1")
    assert engine("agent", "publish", "pkg").code == 0
    write(project, "2", '[grants]\nhosts = ["10.0.0.5"]\n', **{"new.md": "n\u202e\n", "data/x.md": "y"})
    waiting = engine("agent", "publish", "pkg")
    assert "To see it, with what it changes: engine agent show helper 2" in waiting.out
    shown = engine("agent", "show", "helper", "2")
    assert (shown.code, shown.err) == (0, "To approve what it asks for: engine agent approve helper 2\n")
    for line in (
        "Agent helper 2 (", "waits for approval", "Published: ", "  main.lua (", "  new.md (5 bytes)", "--- 1/manifest",
        '+      "10.0.0.5"', "-x", "+y", "--- /dev/null", "+++ 2/new.md", "+n\\u202e",
    ):  # fmt: skip
        assert line in shown.out, line
    diff = engine("agent", "diff", "helper", "1", "2")
    assert diff.code == 0
    assert diff.out in shown.out
    assert engine("agent", "diff", "helper", "1", "1").out == ""
    assert engine("agent", "show", "helper", "1", "--file", "data/x.md").out == "x\n"
    whole = engine("agent", "show", "helper", "2", "--json").json
    assert whole["changes"] == {
        "against": "1", "added": ["new.md"], "removed": [], "changed": ["data/x.md", "main.lua"],
    }  # fmt: skip
    first = engine("agent", "show", "helper", "1")
    assert "---" not in first.out, "nothing was before it"
    for words in (("show", "helper", "3"), ("diff", "helper", "1", "3"), ("show", "helper", "1", "--file", "none")):
        missing = engine("agent", *words)
        assert (missing.code, missing.err.count("\n")) == (2, 1), words


def test_a_tenants_agent_is_published_for_that_tenant(project: Path, engine: Engine) -> None:
    write(project, "1")
    assert engine("tenant", "create", "acme").code == 0
    assert engine("agent", "publish", "pkg", "--tenant", "acme").code == 0
    assert system(engine, "--tenant", "acme") == "v1 x"
    assert engine("agent", "list", "--json").json == {"agents": []}
    assert [each["name"] for each in engine("agent", "list", "--json", "--tenant", "acme").json["agents"]] == ["helper"]
    nobody = engine("agent", "publish", "pkg", "--tenant", "nobody")
    assert (nobody.code, "nobody" in nobody.err) == (2, True)


def test_what_is_wrong_with_a_folder_is_said(project: Path) -> None:
    package = project / "pkg"

    def refused(code: int, said: str) -> None:
        with pytest.raises(Exit) as raised:
            read_package(package)
        assert raised.value.code == code
        assert said in raised.value.message

    refused(2, "there is no such folder")
    write(project, "1")
    (package / "manifest.toml").rename(project / "kept.toml")
    refused(2, "no manifest.toml or manifest.json")
    (project / "kept.toml").rename(package / "manifest.toml")
    (package / "link").symlink_to("/etc/passwd")
    refused(1, "a symbolic link")
    (package / "link").unlink()
    (package / "sub").symlink_to("data", target_is_directory=True)
    refused(1, "a symbolic link")
    (package / "sub").unlink()
    os.mkfifo(package / "pipe")
    refused(1, "not a regular file")
    (package / "pipe").unlink()
    (package / "x.bin").write_bytes(b"\xff\xfe")
    refused(1, "not UTF-8")
    (package / "x.bin").unlink()
    for manifest, said in (("version = ", "cannot be read"), ("files = 1", "names no files")):
        (package / "manifest.toml").write_text(manifest)
        refused(1, said)
    write(project, "1")
    body = read_package(package)
    assert sorted(body["files"]) == ["data/x.md", "main.lua"]
    assert body["name"] == "helper"


def test_a_package_that_is_refused_is_told_in_one_line(project: Path, engine: Engine) -> None:
    for grants, main, said in (
        ("", "agent = {", "the script does not load: main.lua:1"),
        ("grant = 1\n", LUA % 1, "did you mean 'grants'?"),
    ):
        write(project, "1", grants, **{"main.lua": main})
        ended = engine("agent", "publish", "pkg")
        assert (ended.code, ended.err.count("\n")) == (1, 1)
        assert said in ended.err
    (project / "pkg/manifest.toml").write_text("version = '1'\n")
    assert "the manifest has no name" in engine("agent", "publish", "pkg").err
    assert engine("agent", "versions", "other").code == 2


def test_a_tool_is_published_from_a_manifest_in_json(project: Path, engine: Engine) -> None:
    (project / "adder").mkdir()
    (project / "adder/manifest.json").write_text(json.dumps({"name": "adder", "version": "1", "main": "t.lua"}))
    (project / "adder/t.lua").write_text(
        "tool = { parameters = {{name = 'a', type = 'integer'}} } function tool.execute(p) return p.a + 1 end"
    )
    published = engine("tool", "publish", "adder")
    assert published.code == 0, published.err
    (listed,) = [line.split() for line in engine("tool", "list").out.splitlines() if line.startswith("adder")]
    assert listed[:2] == ["adder", "lua"]
    called = engine("tool", "test", "adder", "--param", "a=41", "--json")
    assert called.json["result"] == 42
    inline = '[agents.clerk]\ndescription = "D"\nsystem_prompt = "S"\ntools = ["adder"]\n'
    (project / "engine.toml").write_text(CONFIG + inline)
    assert engine("doctor", "--json").json["warnings"] == []
    assert engine("tool", "deprecate", "adder", "1").code == 0
    assert engine("doctor", "--json").json["warnings"] == ["agent clerk: its tool 'adder' does not exist"]
    assert engine("tool", "versions", "adder", "--json").json["versions"][0]["deprecated"] is True

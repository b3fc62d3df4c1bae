"""Labels on the command line: a sync that gives them, `--as-labels`, and keys."""

from pathlib import Path
from typing import Any

import pytest
from cli_support import Engine

CONFIG = """
[connectors.filesystem.handbook]
root = "docs"
access_rules = [{ glob = "hr/**", access = ["hr"] }]
"""
SCRIPT = """
connector = {}
function connector.scan(config, context)
    return {
        { source_id = "1", title = "Pay", body = "Pay of all.", access = { "hr" } },
        { source_id = "2", title = "Menu", body = "Lunch.", access = {} },
        { source_id = "3", title = "One", body = "One label.", access = "legal" },
        { source_id = "4", title = "Wrong", body = "Not stored.", access = { "a b" } },
        { source_id = "5", title = "Wrong", body = "Not stored.", access = 5 },
    }
end
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in {"hr/pay.md": "# Pay\n\nPay of all.\n", "menu.md": "# Menu\n\nLunch of all.\n"}.items():
        (tmp_path / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "docs" / name).write_text(text)
    (tmp_path / "engine.toml").write_text(CONFIG)
    return tmp_path


def found(engine: Engine, *options: str) -> list[str]:
    results: list[dict[str, Any]] = engine("search", "all", "--json", *options).json["results"]
    return sorted(hit["source_id"] for hit in results)


def test_each_command_answers_as_a_reader_would_be_answered(engine: Engine, project: Path) -> None:
    assert engine("sync", "all").code == 0
    assert found(engine) == found(engine, "--as-labels", "hr,legal") == ["hr/pay.md", "menu.md"]
    assert found(engine, "--as-labels", "") == found(engine, "--as-labels", "legal") == ["menu.md"]
    hidden = next(hit["id"] for hit in engine("search", "pay", "--json").json["results"])
    for as_labels, code in (("hr", 0), ("", 1), ("legal", 1)):
        ended = engine("get", hidden, "--as-labels", as_labels)
        assert ended.code == code
        assert ("Pay" in ended.out + ended.err) is (code == 0)
    absent = engine("get", "nothing", "--as-labels", "")
    assert absent.err.replace("nothing", hidden) == engine("get", hidden, "--as-labels", "").err
    (source,) = engine("sources", "--json", "--as-labels", "").json["sources"]
    assert source["document_count"] == engine("stats", "--json", "--as-labels", "").json["documents"] == 1
    (project / "out.json").unlink(missing_ok=True)
    assert engine("export", "-o", "out.json", "--as-labels", "").code == 0
    assert "Pay" not in (project / "out.json").read_text()
    wrong = engine("search", "all", "--as-labels", "a b")
    assert (wrong.code, wrong.err) == (2, wrong.err)
    assert wrong.err.startswith("error: --as-labels: 'a b' is no label; ")


def test_labels_that_change_in_the_configuration_count_at_once_and_are_given_by_the_next_sync(
    engine: Engine, project: Path
) -> None:
    assert engine("sync", "all").code == 0
    (project / "engine.toml").write_text(CONFIG.replace('access = ["hr"]', 'access = ["legal"]'))
    assert found(engine, "--as-labels", "hr") == found(engine, "--as-labels", "") == []
    assert found(engine, "--as-labels", "legal") == ["menu.md"]
    ended = engine("sync", "all", "--json")
    assert (ended.code, ended.json["sources"][0]["upserted"]) == (0, 0)  # nothing was read again
    assert found(engine, "--as-labels", "hr") == found(engine, "--as-labels", "") == ["menu.md"]
    assert found(engine, "--as-labels", "legal") == ["hr/pay.md", "menu.md"]
    (project / "engine.toml").write_text(CONFIG.replace("access_rules", 'access = ["staff"]\naccess_rules'))
    assert found(engine, "--as-labels", "legal") == found(engine, "--as-labels", "") == []
    assert engine("sync", "all").code == 0
    assert found(engine, "--as-labels", "staff") == ["menu.md"]
    assert found(engine, "--as-labels", "staff,hr") == ["hr/pay.md", "menu.md"]


def test_items_of_a_script_have_their_own_labels_before_those_of_the_configuration(
    engine: Engine, project: Path
) -> None:
    (project / "scan.lua").write_text(SCRIPT)
    (project / "engine.toml").write_text('[connectors.script.items]\npath = "scan.lua"\naccess = ["staff"]\n')
    ended = engine("sync", "all", "--json")
    (row,) = ended.json["sources"]
    reasons = {each["source_id"]: each["reason"] for each in row["skipped"]}
    assert set(reasons) == {"4", "5"}
    assert reasons["4"].startswith("access: 'a b' is no label")
    assert reasons["5"] == "access must be a list of labels, got a number"

    def titles(as_labels: str) -> set[str]:
        exported = engine("export", "--as-labels", as_labels).json
        return {each["title"] for each in exported["documents"]}

    assert [titles(each) for each in ("", "hr", "staff", "legal")] == [set(), {"Pay"}, {"Menu"}, {"One"}]
    (source,) = engine("sources", "--json", "--as-labels", "staff").json["sources"]
    assert (source["document_count"], source["skipped"], source["skipped_more"]) == (1, [], 0)


def test_keys_are_made_listed_exported_and_imported_with_their_labels(engine: Engine, project: Path) -> None:
    (project / "engine.toml").write_text(CONFIG + "[tenants]\nenabled = true\n")
    assert engine("tenant", "create", "acme").code == 0
    made = engine("key", "create", "acme", "--labels", "legal, hr", "--json").json
    assert made["labels"] == ["hr", "legal"]
    assert engine("key", "create", "acme", "--json").json["labels"] == []
    wrong = engine("key", "create", "acme", "--labels", "a b")
    assert wrong.code == 2
    assert "labels: 'a b' is no label" in wrong.err
    assert "hr,legal" in engine("key", "list", "acme").out
    assert engine("tenant", "export", "acme", "-o", "acme.tar").code == 0
    assert engine("tenant", "delete", "acme", "--yes").code == 0
    assert engine("tenant", "import", "acme.tar").code == 0
    listed = engine("key", "list", "acme", "--json").json["keys"]
    assert sorted(each["labels"] for each in listed) == [[], ["hr", "legal"]]


def test_what_strangers_can_write_is_shown_as_such(engine: Engine, project: Path) -> None:
    (project / "engine.toml").write_text(CONFIG.replace("access_rules", "untrusted = true\naccess_rules"))
    assert engine("sync", "all").code == 0
    (hit, *_) = engine("search", "pay", "--json").json["results"]
    assert hit["untrusted"] is True
    assert "    untrusted: strangers can write it\n" in engine("search", "pay").out
    assert engine("get", hit["id"], "--json").json["untrusted"] is True
    assert "\nuntrusted: True\n" in engine("get", hit["id"]).out
    assert engine("sources", "--json").json["sources"][0]["untrusted"] is True
    assert "untrusted: strangers can write its documents" in engine("sources").out

"""The knowledge store from the command line: init, sync, search, get, sources, stats, export."""

import fcntl
import hashlib
import json
import re
import tomllib

import pytest
from added import added_table

from engine.config.entries import Connectors
from engine.config.fields import Model, Strings

# ---- init -------------------------------------------------------------------------------------------------------


def test_init_writes_a_configuration_and_an_empty_store_and_says_so(engine, tmp_path):
    ended = engine("init")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "Created: engine.toml\nCreated: data/engine.sqlite (an empty store)\n"
    assert tomllib.loads((tmp_path / "engine.toml").read_text())["db"] == {"path": "data/engine.sqlite"}
    assert engine("stats", "--json").json["documents"] == 0


def test_init_never_overwrites(engine, tmp_path):
    (tmp_path / "engine.toml").write_text('[db]\npath = "mine.sqlite"\n')
    assert engine("init").code == 0
    ended = engine("init")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "Exists, left as it is: engine.toml\nExists, left as it is: mine.sqlite\n"
    assert (tmp_path / "engine.toml").read_text() == '[db]\npath = "mine.sqlite"\n'


def test_init_does_not_hide_a_configuration_of_another_name(engine, tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config/ctx.toml").write_text("")
    assert "Exists, left as it is: config/ctx.toml" in engine("init").out
    assert not (tmp_path / "engine.toml").exists()


# ---- sync -------------------------------------------------------------------------------------------------------


def test_sync_tells_what_it_did(engine, docs):
    (docs / "bad.md").write_bytes(b"caf\xe9")
    ended = engine("sync", "filesystem:docs")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == (
        "sync filesystem:docs\n"
        "  fetched: 4 items\n"
        "  upserted documents: 3\n"
        "  chunks written: 3\n"
        "  unchanged: 0\n"
        "  deleted: 0\n"
        "  extraction skipped: 1\n"
        "    bad.md: not UTF-8 (byte 3)\n"
        "ok\n"
    )


def test_a_second_sync_writes_only_what_changed_and_deletes_what_is_gone(filled, tmp_path):
    docs = tmp_path / "docs"
    assert filled("sync", "all", "--json").json["sources"][0]["unchanged"] == 3
    (docs / "alpha.md").write_text("# Alpha\n\nGo programming.\n")
    (docs / "beta.md").unlink()
    report = filled("sync", "filesystem", "--json").json["sources"][0]
    assert (report["upserted"], report["unchanged"], report["deleted"]) == (1, 1, 1)
    report = filled("sync", "filesystem", "--full", "--json").json["sources"][0]
    assert (report["upserted"], report["unchanged"]) == (2, 0)


def test_a_dry_run_changes_nothing_and_makes_nothing(engine, docs, tmp_path):
    ended = engine("sync", "all", "--dry-run")
    assert ended.code == 0
    assert "sync filesystem:docs (dry-run)\n  items found: 3\n" in ended.out
    assert not (tmp_path / "data").exists()


def test_limit_and_since_narrow_a_sync(engine, docs):
    assert engine("sync", "all", "--limit", "1", "--json").json["sources"][0]["upserted"] == 1
    assert engine("sync", "all", "--since", "2999-01-01", "--json").json["sources"][0]["fetched"] == 0
    ended = engine("sync", "all", "--until", "soon")
    assert ended.code == 2
    assert "'soon' is not a date" in ended.err


def test_progress_as_json_is_on_standard_error(engine, docs):
    ended = engine("sync", "all", "--progress", "json")
    assert [json.loads(line) for line in ended.err.splitlines()] == [
        {"event": "progress", "connector": "filesystem:docs", "phase": "discovering"},
        {"event": "progress", "connector": "filesystem:docs", "phase": "ingesting", "n": 0, "total": 3},
        {"event": "progress", "connector": "filesystem:docs", "phase": "ingesting", "n": 3, "total": 3},
        {"event": "embedding", "n": 3, "total": 3},
    ]
    assert engine("sync", "all", "--progress", "json", "--no-progress").err == ""
    assert "sync filesystem:docs  ingesting  3 / 3 items" in engine("sync", "all", "--progress", "human").err


class FtpEntry(Model):
    """`[connectors.ftp.NAME]`."""

    tenants: Strings | None = None


@pytest.fixture
def ftp():
    """A kind of source that has a table, and no file."""
    with added_table(Connectors, "ftp", FtpEntry):
        yield


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("nosuch", "unknown connector 'nosuch'; use all, filesystem, git, s3, web, script, ftp or TYPE:NAME; "
                   "configured: filesystem:docs, ftp:repo"),
        ("filesystem:nosuch", "unknown connector 'filesystem:nosuch'; configured: filesystem:docs, ftp:repo"),
        ("git", "no git connectors are configured; configured: filesystem:docs, ftp:repo"),
        ("ftp", "connector type 'ftp' is configured but not supported by this version"),
        ("ftp:repo", "connector type 'ftp' is configured but not supported by this version"),
    ],
)  # fmt: skip
def test_a_connector_that_is_not_there_is_exit_2(engine, docs, tmp_path, ftp, asked, message):
    with (tmp_path / "engine.toml").open("a") as file:
        file.write("[connectors.ftp.repo]\n")
    ended = engine("sync", asked)
    assert (ended.code, ended.out, ended.err) == (2, "", f"error: {message}\n")


def test_sync_all_does_what_it_can_before_it_tells_of_the_rest(engine, docs, tmp_path, ftp):
    with (tmp_path / "engine.toml").open("a") as file:
        file.write("[connectors.ftp.repo]\n")
    ended = engine("sync", "all")
    assert ended.code == 2
    assert "upserted documents: 3" in ended.out
    assert ended.err == "error: connector type 'ftp' is configured but not supported by this version\n"


def test_sync_without_connectors_says_what_to_add(engine):
    ended = engine("sync", "all")
    assert (ended.code, ended.out) == (2, "")
    assert "[connectors.filesystem.docs]" in ended.err


def test_a_source_that_cannot_be_read_is_exit_1_and_the_others_are_synchronised(engine, docs, tmp_path):
    with (tmp_path / "engine.toml").open("a") as file:
        file.write('[connectors.filesystem.gone]\nroot = "gone"\n')
    ended = engine("sync", "all")
    assert ended.code == 1
    assert "Syncing 2 connector instances...\n" in ended.out
    assert "upserted documents: 3" in ended.out
    assert ended.err.startswith("error: filesystem:gone: ")
    assert len(ended.err.splitlines()) == 1


def test_a_source_that_another_sync_holds_is_exit_2_and_the_others_are_synchronised(engine, docs, tmp_path):
    with (tmp_path / "engine.toml").open("a") as file:
        file.write('[connectors.filesystem.more]\nroot = "docs"\n')
    assert engine("sync", "all").code == 0
    digest = hashlib.sha256(b"filesystem:docs").hexdigest()[:12]
    with (tmp_path / "data" / f"engine.sqlite.{digest}.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended = engine("sync", "all", "--json")
    message = "another sync of filesystem:docs is running; wait for it to end"
    assert (ended.code, ended.err) == (2, f"error: {message}\n")
    held, other = ended.json["sources"]
    assert (held["source"], held["error"]) == ("filesystem:docs", message)
    assert (other["source"], other["unchanged"], other["error"]) == ("filesystem:more", 3, None)
    assert engine("sync", "all").code == 0


def test_what_was_skipped_is_in_the_report_and_with_the_source(engine, docs, tmp_path):
    (tmp_path / "docs" / "bad.md").write_bytes(b"\xff\xfe\x00bad")
    report = engine("sync", "all", "--json").json["sources"][0]
    (skipped,) = report["skipped"]
    assert (skipped["source_id"], report["skipped_more"], report["embedded"]) == ("bad.md", 0, 3)
    (source,) = engine("sources", "--json").json["sources"]
    assert (source["skipped"], source["skipped_more"], source["last_error"]) == ([skipped], 0, None)
    assert (source["embedded"], source["embedding_model"], source["next_sync"]) == (3, "static-minilm-256", None)
    assert "Embedded:  3 / 3 (100%), by static-minilm-256\n" in engine("stats").out
    (tmp_path / "docs" / "bad.md").unlink()
    engine("sync", "all")
    assert engine("sources", "--json").json["sources"][0]["skipped"] == []


def test_a_time_that_is_none_is_exit_2_and_its_option_is_named(engine, docs):
    for option in ("--since", "--until"):
        ended = engine("sync", "all", option, "yesterday")
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.startswith(f"error: {option}: 'yesterday' is not a date")


def test_a_sync_that_makes_vectors_for_long_says_so_off_a_terminal(engine, docs, monkeypatch):
    monkeypatch.setattr("cli.commands.sync._SILENT_S", 0)
    assert engine("sync", "all", "--full", "--no-progress").err == ""
    (docs / "new.md").write_text("a new document")
    assert engine("sync", "all").err == "embedding  1 / 1 documents\n"


def test_a_glob_that_is_none_is_exit_2(engine, tmp_path):
    (tmp_path / "engine.toml").write_text('[connectors.filesystem.docs]\nroot = "."\ninclude_globs = ["!"]\n')
    ended = engine("sync", "all")
    assert ended.code == 2
    assert ended.err.startswith("error: filesystem:docs: a glob is not valid")


# ---- search and get ---------------------------------------------------------------------------------------------


def test_search_prints_what_it_found_best_first(filled):
    ended = filled("search", "rust programming")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == "1. [1.00] filesystem:docs / Alpha"
    assert [line.strip().partition(":")[0] for line in lines[1:7]] == [
        "updated", "source", "heading", "lines", "excerpt", "id",
    ]  # fmt: skip
    assert (lines[3], lines[4]) == ("    heading: Alpha", "    lines: 1-3")
    assert "Rust programming is a craft." in lines[5]


def test_search_as_json_is_the_rest_body(filled):
    results = filled("search", "deployments", "--json").json["results"]
    assert {hit["source_id"] for hit in results} == {"beta.md", "gamma.txt"}
    assert set(results[0]) == {
        "id", "source", "source_id", "title", "score", "snippet", "source_url", "updated_at", "heading",
        "lines", "page", "digest", "uri",
    }  # fmt: skip


def test_search_can_be_narrowed(filled):
    assert len(filled("search", "deployments", "--limit", "1", "--json").json["results"]) == 1
    assert len(filled("search", "deployments", "--source", "docs", "--json").json["results"]) == 2
    assert filled("search", "deployments", "--source", "git", "--json").json["results"] == []
    assert filled("search", "deployments", "--since", "2999-01-01").out == "No results.\n"


@pytest.mark.parametrize("query", ["", "   ", "nowhere-to-be-found", '"', "NOT", "*", "🦀"])
def test_a_query_that_finds_nothing_is_no_failure(filled, query):
    ended = filled("search", query)
    assert (ended.code, ended.out, ended.err) == (0, "No results.\n", "")


def test_a_limit_beyond_its_bounds_is_brought_to_them_with_a_warning(filled):
    ended = filled("search", "rust", "--limit", "0", "--json")
    assert (ended.code, len(ended.json["results"])) == (0, 1)
    assert ended.err == "warning: --limit: 0 is not from 1 to 100: 1 was used\n"


@pytest.fixture
def without_embedder(filled, tmp_path):
    with (tmp_path / "engine.toml").open("a") as file:
        file.write('[embedding]\nprovider = "disabled"\n')
    return filled


def test_hybrid_search_without_an_embedder_is_answered_by_keyword_with_a_warning(without_embedder):
    filled = without_embedder
    ended = filled("search", "rust", "--mode", "hybrid")
    assert ended.code == 0
    assert "Alpha" in ended.out
    assert ended.err.startswith("warning: ")
    assert filled("search", "rust", "--mode", "hybrid", "--json").json["warnings"]


def test_what_a_sync_wrote_is_found_by_meaning(filled):
    ended = filled("search", "when do releases happen", "--mode", "semantic", "--json")
    assert (ended.code, ended.err, "warnings" in ended.json) == (0, "", False)
    assert ended.json["results"]
    stats = filled("stats", "--json").json
    assert stats["embedded"] == stats["chunks"] > 0
    assert filled("embed", "pending", "--json").json == {"embedded": 0, "failed": 0, "pending": 0}
    assert filled("embed", "rebuild").out == f"embedded: {stats['documents']} documents, 0 pending\n"


def test_embedding_without_an_embedder_is_exit_2(without_embedder):
    ended = without_embedder("embed", "pending")
    assert (ended.code, ended.err) == (2, "error: no embedder is configured ([embedding] provider is 'disabled')\n")


def test_semantic_search_without_an_embedder_is_exit_2(without_embedder):
    ended = without_embedder("search", "rust", "--mode", "semantic")
    assert (ended.code, ended.out) == (2, "")
    assert "requires embeddings" in ended.err


def test_explain_says_how_results_were_scored(filled):
    lines = filled("search", "rust", "--explain", "--source", "docs", "--as-labels", "").out.splitlines()
    assert lines[:2] == ["Search: mode=keyword, candidates: 1 by words", "Searched: 3 of 3 documents; source leaves 3"]
    assert lines[3].strip() == "scoring: keyword=1.000, all words → 1.000"
    assert lines[4].strip().startswith("raw: bm25=")
    assert lines[5].strip().startswith("word: rust df=1 weight=")
    body = filled("search", "rust", "--explain", "--json").json
    assert body["explain"]["candidates"] == {"keyword": 1, "vector": None}
    assert [word["df"] for word in body["results"][0]["explain"]["words"]] == [1]


def test_explain_says_nothing_of_words_where_meaning_answered(filled):
    filled("embed", "pending")
    shown = filled("search", "software development", "--mode", "semantic", "--explain").out
    assert shown.startswith("Search: mode=semantic, ")
    assert "keyword" not in shown


def test_get_prints_a_document(filled):
    (hit,) = filled("search", "rust", "--json").json["results"]
    ended = filled("get", hit["id"])
    assert ended.code == 0
    assert f"--- Document ---\nid: {hit['id']}\nsource: filesystem:docs\nsource_id: alpha.md\n" in ended.out
    assert "--- Body ---\n# Alpha\n\nRust programming is a craft.\n" in ended.out
    assert "--- Chunks (1) ---\n[0] # Alpha" in ended.out
    assert set(filled("get", hit["id"], "--json").json) == {
        "id", "source", "source_id", "source_url", "title", "author", "created_at", "updated_at", "content_type",
        "body", "metadata", "chunks", "lines",
    }  # fmt: skip


def test_get_can_be_narrowed_to_lines(filled):
    (hit,) = filled("search", "rust", "--json").json["results"]
    part = filled("get", hit["id"], "--lines", "3", "--json").json
    assert (part["body"], part["lines"]) == ("Rust programming is a craft.", [3, 3])
    assert "--- Body ---\nRust programming is a craft.\n" in filled("get", hit["id"], "--lines", "3-9").out
    for lines, error in {
        "9": "there is no line 9: the document has 4",
        "3-1": "lines 3-1 end before they begin",
        "x": "lines must be as 12-40, 12- or 12, counted from 1, got 'x'",
    }.items():
        ended = filled("get", hit["id"], "--lines", lines)
        assert (ended.code, ended.err) == (2, f"error: --lines: {error}\n")


def test_search_shows_passages(filled):
    ended = filled("search", "rust programming", "--passages", "2", "--max-tokens", "9")
    assert "    passage (Alpha, 1-3):\n    | # Alpha\n    | \n    | Rust programming is a craft\n" in ended.out
    (hit,) = filled("search", "rust programming", "--passages", "1", "--json").json["results"]
    assert hit["passages"][0]["lines"] == hit["lines"]
    for option, value, error in (
        ("--passages", "11", "--passages must be a whole number from 0 to 10, got 11"),
        ("--max-tokens", "0", "--max-tokens must be a whole number from 1 to 100000, got 0"),
        ("--path", "[", "--path: '[' has a '[' without its counterpart"),
        ("--until", "x", "--until: 'x' is not a date"),
    ):
        ended = filled("search", "rust", option, value)
        assert ended.code == 2
        assert error in ended.err


def test_get_of_a_missing_document_is_exit_1(filled):
    ended = filled("get", "no-such-id")
    assert (ended.code, ended.out, ended.err) == (1, "", "error: document not found: no-such-id\n")


def test_a_document_cannot_steer_the_terminal(engine, docs):
    (docs / "evil.md").write_text("# Evil \x1b[31m\n\nescape \x9b31m sequence\n")
    assert engine("sync", "all").code == 0
    (hit,) = engine("search", "escape sequence", "--limit", "1", "--json").json["results"]
    for ended in (
        engine("search", "escape"), engine("get", hit["id"]), engine("get", hit["id"], "--json"), engine("export"),
    ):  # fmt: skip
        assert ended.code == 0
        assert "\x1b" not in ended.out
        assert "\x9b" not in ended.out


# ---- the rest ---------------------------------------------------------------------------------------------------


def test_sources_lists_what_is_configured_and_what_is_stored(filled, tmp_path, ftp):
    (tmp_path / "engine.toml").write_text("[connectors.ftp.repo]\n")
    found = {source["source"]: source for source in filled("sources", "--json").json["sources"]}
    assert (found["filesystem:docs"]["configured"], found["filesystem:docs"]["document_count"]) == (False, 3)
    assert (found["ftp:repo"]["configured"], found["ftp:repo"]["healthy"]) == (True, False)
    assert "not supported by this version" in found["ftp:repo"]["notes"]
    lines = filled("sources").out.splitlines()
    assert lines[0].split() == ["CONNECTOR", "STATUS", "HEALTHY", "DOCS", "CHUNKS", "SKIPPED", "LAST", "SYNC"]
    assert lines[2].split()[:3] == ["ftp:repo", "FAILED", "false"]


def test_stats_are_for_people_and_for_programs(filled):
    ended = filled("stats")
    assert "Database:  data/engine.sqlite\n" in ended.out
    assert "Documents: 3\n" in ended.out
    assert re.search(r"\nfilesystem:docs  3     3       (just now|\d+ minutes? ago)\n", ended.out)
    stats = filled("stats", "--json").json
    assert (stats["documents"], stats["chunks"], stats["sources"][0]["source"]) == (3, 3, "filesystem:docs")


def test_export_is_json_on_standard_output_or_in_a_file(filled, tmp_path):
    everything = filled("export").json
    assert [document["source_id"] for document in everything["documents"]] == ["alpha.md", "beta.md", "gamma.txt"]
    assert {chunk["document_id"] for chunk in everything["chunks"]} == {doc["id"] for doc in everything["documents"]}
    ended = filled("export", "-o", "all.json")
    assert (ended.code, ended.out, ended.err) == (0, "", "exported 3 documents and 3 chunks to all.json\n")
    assert json.loads((tmp_path / "all.json").read_text()) == everything
    ended = filled("export", "-o", "no/such/folder.json")
    assert (ended.code, ended.err) == (2, "error: no/such/folder.json: No such file or directory\n")


@pytest.mark.parametrize("command", [("search", "x"), ("get", "x"), ("sources",), ("stats",), ("export",)])
def test_reading_where_there_is_no_store_is_exit_2_and_makes_none(engine, tmp_path, command):
    ended = engine(*command)
    assert (ended.code, ended.out) == (2, "")
    assert "there is no store" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_store_is_exit_2(engine, tmp_path):
    (tmp_path / "engine.toml").write_text('[db]\npath = "notes.txt"\n')
    (tmp_path / "notes.txt").write_text("not a database, and longer than a header of one hundred bytes" * 10)
    for command in (("stats",), ("sync", "all"), ("init",)):
        ended = engine(*command)
        assert ended.code == 2
        assert len(ended.err.splitlines()) == 1
    assert (tmp_path / "notes.txt").read_text().startswith("not a database")

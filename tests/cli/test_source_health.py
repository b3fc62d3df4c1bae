"""What is wrong with a source, a store and the files beside it is told before anything is synchronised or searched."""

import socket
from pathlib import Path

import apsw
import pytest
from cli_support import Engine

from knowledge.sqlite import postings, sidecar

UNUSABLE = {
    "filesystem:gone": ('root = "away"', "its root folder cannot be reached: No such file or directory"),
    "filesystem:file": ('root = "engine.toml"', "its root is not a folder"),
    "filesystem:glob": ('root = "docs"\ninclude_globs = ["[z-a]"]', "a glob is not valid"),
    "git:gone": ('url = "file:///nowhere/repository"', "there is no repository at its address"),
    "git:key": ('url = "ssh://git@example.com/a/b"\nssh_key = "no-such-key"', "its ssh_key cannot be read"),
    "git:url": ('url = "ext::sh -c true"', "url holds a space"),
    "s3:url": ('bucket = "papers"\nendpoint_url = "nonsense"', "endpoint_url"),
    "script:gone": ('path = "away.lua"', "cannot read the script: No such file or directory"),
    "script:unset": ('path = "scan.lua"\nkey = "${NOT_SET}"', "NOT_SET"),
}
OK = {
    "filesystem:docs": 'root = "docs"',
    "script:scan": 'path = "scan.lua"',
    "web:site": 'urls = ["http://127.0.0.1:9/"]',
    "git:far": 'url = "https://example.com/a/b.git"',
}


def configure(folder: Path, tables: dict[str, str]) -> None:
    text = "".join(f"[connectors.{label.replace(':', '.')}]\n{keys}\n" for label, keys in tables.items())
    (folder / "engine.toml").write_text(text)


def test_a_source_that_cannot_be_read_is_told_by_every_list_before_its_first_sync(
    filled: Engine, tmp_path: Path
) -> None:
    (tmp_path / "scan.lua").write_text("connector = {}\nfunction connector.scan() return {} end\n")
    configure(tmp_path, OK | {label: keys for label, (keys, _) in UNUSABLE.items()})
    found = {each["source"]: each for each in filled("sources", "--json").json["sources"]}
    listed = {each["source"]: each["problem"] for each in filled("connector", "list", "--json").json["connectors"]}
    ended = filled("doctor", "--json")
    for label, (_, told) in UNUSABLE.items():
        assert (found[label]["healthy"], told in found[label]["notes"]) == (False, True), found[label]
        assert str(tmp_path) not in found[label]["notes"]
        assert told in listed[label]
        assert any(each.startswith(f"{label}: ") and told in each for each in ended.json["warnings"])
    for label in OK:
        assert (found[label]["healthy"], found[label]["notes"], listed[label]) == (True, None, None)
        assert not any(each.startswith(label) for each in ended.json["warnings"])
    (tmp_path / "away").mkdir()
    found = {each["source"]: each for each in filled("sources", "--json").json["sources"]}
    assert found["filesystem:gone"]["healthy"]


def test_the_table_of_sources_says_what_a_person_needs_in_a_hundred_columns(engine: Engine, tmp_path: Path) -> None:
    configure(tmp_path, {"filesystem:docs": 'root = "docs"', "filesystem:a-source-with-a-long-name": 'root = "away"'})
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text("alpha")
    for n in range(5):
        (tmp_path / f"docs/bad{n}.md").write_bytes(b"\xff\xfe")
    assert engine("sync", "all").code == 1
    lines = engine("sources").out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:3]}
    assert rows["filesystem:docs"] == ["OK", "true", "1", "1", "5", "just", "now"]
    assert rows["filesystem:a-source-with-a-long-name"] == ["FAILED", "false", "0", "0", "0", "never"]
    assert max(map(len, lines)) <= 100
    told = " ".join(" ".join(lines[3:]).split())
    warnings = engine("doctor", "--json").json["warnings"]
    assert [each for each in warnings if each.startswith("filesystem:a-source")] == [
        "filesystem:a-source-with-a-long-name: its root folder cannot be reached: No such file or directory"
    ]
    assert "filesystem:a-source-with-a-long-name: its root folder cannot be reached" in told
    assert "filesystem:docs: skipped bad0.md: not UTF-8 (byte 0)" in told
    assert "filesystem:docs: skipped 2 more" in told


def test_a_site_that_cannot_be_reached_is_told_once(engine: Engine, tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and nothing listens
        port = held.getsockname()[1]
        configure(tmp_path, {"web:site": f'urls = ["http://127.0.0.1:{port}/"]'})
        assert engine("sync", "all").code == 1
        tried = engine("connector", "test", "web:site")
    told = " ".join(engine("sources").out.split())
    assert told.count(f"does not accept connections at port {port}") == 1
    assert "web:site: the last sync failed: its robots.txt cannot be read" in told
    assert (tried.code, "; a failed scan; nothing was written\n" in tried.out) == (1, True)


def test_a_test_of_a_connector_counts_unread_files_as_skipped_and_not_as_more(engine: Engine, tmp_path: Path) -> None:
    configure(tmp_path, {"filesystem:docs": 'root = "docs"'})
    (tmp_path / "docs").mkdir()
    for name in ("a.md", "z.md"):
        (tmp_path / "docs" / name).write_text("alpha")
    (tmp_path / "docs/bad.md").write_bytes(b"\xff\xfe")
    tried = engine("connector", "test", "filesystem:docs").out
    assert "more item" not in tried
    assert tried.endswith("3 items, 1 skipped, 0 deleted; the whole source; nothing was written\n")
    assert "and 2 more items\n" in engine("connector", "test", "filesystem:docs", "--limit", "1").out
    assert "unread" not in engine("connector", "test", "filesystem:docs", "--json").json


def test_doctor_tells_of_each_source_when_it_was_synchronised_and_which_are_late(
    filled: Engine, tmp_path: Path
) -> None:
    docs, new = ('root = "docs"\nevery = "1m"', 'root = "docs"\nevery = "1h"')
    configure(tmp_path, {"filesystem:docs": docs, "filesystem:new": new})
    with apsw.Connection(str(tmp_path / "data/engine.sqlite")) as db:
        db.execute("UPDATE sources SET last_sync = '2026-01-01T00:00:00Z'")
    ended = filled("doctor", "--json")
    first, second = ended.json["sources"]
    assert (first["source"], first["documents"], first["stale"], first["ok"]) == ("filesystem:docs", 3, True, False)
    assert (second["last_sync"], second["stale"]) == (None, True)
    assert any(each.startswith("filesystem:docs is out of date") for each in ended.json["warnings"])
    out = filled("doctor").out
    assert "✗ source       filesystem:docs: 3 documents, last sync " in out
    assert "✗ source       filesystem:new: 0 documents, last sync never" in out


def test_doctor_finds_damaged_words_that_nothing_depends_on(
    filled: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert filled("doctor", "--json").json["words"] is None
    store = tmp_path / "data/engine.sqlite"
    postings.update(store, None, lambda seconds: None)
    ended = filled("doctor", "--json")
    assert ended.json["words"]["message"].endswith("checksum right")
    assert "✓ words" in filled("doctor").out
    words = postings.path_of(store)
    data = bytearray(words.read_bytes())
    data[-64] ^= 1  # whether the first chunk is true
    words.unlink()
    words.write_bytes(data)
    ended = filled("doctor", "--json")
    assert (ended.code, ended.json["words"]["ok"]) == (0, False)
    assert any("searches make it anew" in each for each in ended.json["warnings"])
    search = filled("search", "release", "--json").json
    words.unlink()
    assert filled("search", "release", "--json").json == search


def test_doctor_finds_a_damaged_store_and_a_damaged_file_of_vectors_that_nothing_depends_on(
    filled: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar, "MIN_ROWS", 1)
    search = ("search", "when are things released", "--mode", "semantic", "--json")
    before = filled(*search).json
    store = tmp_path / "data/engine.sqlite"
    vectors = store.with_name(store.name + ".vectors")
    data = bytearray(vectors.read_bytes())
    data[-1] ^= 1
    vectors.write_bytes(data)
    ended = filled("doctor", "--json")
    assert (ended.code, ended.json["sidecar"]["ok"]) == (0, False)
    assert any("the next search by meaning makes it anew" in each for each in ended.json["warnings"])
    assert filled(*search).json == before
    (tmp_path / "data/tenants").mkdir()
    (tmp_path / "data/tenants/acme.sqlite").write_bytes(store.read_bytes())
    ended = filled("doctor", "--json")
    assert (ended.code, ended.json["sidecar"]["ok"]) == (0, True)
    assert ended.json["sidecar"]["message"].endswith("checksum right")
    assert ended.json["tenants"] == [{"tenant": "acme", "ok": True, "message": None}]
    data = bytearray(store.read_bytes())
    for place in range(4096 * 3, len(data), 4096):  # the head of every page but the first ones
        data[place : place + 8] = b"\x00" * 8
    store.write_bytes(data)
    ended = filled("doctor", "--json")
    assert (ended.code, ended.json["store"]["ok"]) == (2, False)


def test_the_size_of_the_store_is_not_told_to_a_reader_with_labels(filled: Engine) -> None:
    assert filled("stats", "--json").json["size_bytes"] > 4096
    assert filled("stats", "--json", "--as-labels", "hr").json["size_bytes"] is None
    assert "Size:      not shown to this reader\n" in filled("stats", "--as-labels", "").out

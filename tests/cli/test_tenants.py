"""Tenants, keys, secrets and the audit log from the command line; moving a tenant, and a back-up."""

import base64
import io
import json
import sqlite3
import stat
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio
from cli_support import Engine

from control.store import open_configured
from engine.config import parse_config

SECRETS_KEY = base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
CONFIG = f'[tenants]\nenabled = true\nsecrets_key = "{SECRETS_KEY}"\n'


@pytest.fixture
def engine(tmp_path: Path, engine: Engine) -> Engine:
    """The command line in a project where tenants are on."""
    (tmp_path / "engine.toml").write_text(CONFIG)
    return engine


def identity_of(folder: Path, key: str) -> str | None:
    """Whom a key stands for, as a server in this folder would see it."""

    async def ask() -> str | None:
        config, _ = parse_config((folder / "engine.toml").read_text(), environ={}, cwd=folder)
        async with open_configured(config) as control:
            identity = await control.keys.authenticate(key)
            return None if identity is None else identity.tenant.id

    return trio.run(ask)


# ---- tenants and keys -------------------------------------------------------------------------------------------


def test_a_tenant_is_created_listed_changed_suspended_resumed_and_deleted(engine: Engine, tmp_path: Path) -> None:
    assert engine("tenant", "create", "acme", "--quota", "burst=5", "--ceiling", "timeout_s=2.5").code == 0
    listed = engine("tenant", "list", "--json").json["tenants"]
    assert [(each["name"], each["state"], each["quotas"]) for each in listed] == [
        ("acme", "active", {"burst": 5}), ("default", "active", {}),
    ]  # fmt: skip
    changed = engine("tenant", "change", "acme", "--quota", "requests_per_second=0.5", "--weight", "2", "--json").json
    assert (changed["quotas"], changed["weight"]) == ({"burst": 5, "requests_per_second": 0.5}, 2.0)
    assert "Ceilings: timeout_s=2.5" in engine("tenant", "show", "acme").out
    assert engine("tenant", "suspend", "acme").out == "acme: suspended\n"
    assert engine("tenant", "resume", "acme", "--json").json["state"] == "active"
    refused = engine("tenant", "delete", "acme")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    engine("key", "create", "acme")
    proof = engine("tenant", "delete", "acme", "--yes", "--json").json
    assert proof["removed"]["keys"] == 1
    assert set(proof["left"].values()) == {0}
    assert "acme" not in engine("tenant", "list").out


def test_a_key_is_printed_once_and_works_until_it_is_revoked(engine: Engine, tmp_path: Path) -> None:
    made = engine("key", "create", "default", "--scopes", "use,publish", "--expires", "30d", "--json").json
    assert {"id", "key", "tenant", "scopes", "expires_at"} <= set(made)
    assert made["scopes"] == ["use", "publish"]
    assert identity_of(tmp_path, made["key"]) == "default"
    listed = engine("key", "list", "default", "--json")
    assert [each["id"] for each in listed.json["keys"]] == [made["id"]]
    assert made["key"] not in listed.out
    assert engine("key", "revoke", made["id"]).code == 0
    assert identity_of(tmp_path, made["key"]) is None
    assert "revoked" in engine("key", "list", "default").out


def test_without_json_a_key_is_all_of_standard_output_so_that_it_can_be_piped(engine: Engine, tmp_path: Path) -> None:
    ended = engine("key", "create", "default")
    assert identity_of(tmp_path, ended.out.strip()) == "default"
    assert ended.out.count("\n") == 1
    assert "it is not shown again" in ended.err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("tenant create -- -x", "cannot name a tenant"),
        ("tenant create default", "'default' exists"),
        ("tenant create acme --quota brst=1", "did you mean 'burst'?"),
        ("tenant create acme --quota burst", "expected NAME=VALUE"),
        ("tenant create acme --quota burst=many", "expected a number"),
        ("tenant show ghost", "there is no tenant 'ghost'"),
        ("tenant delete ghost --yes", "there is no tenant 'ghost'"),
        ("tenant delete default --yes", "it stays"),
        ("tenant usage ghost", "there is no tenant 'ghost'"),
        ("key create ghost", "there is no tenant 'ghost'"),
        ("key create default --scopes use,root", "unknown scope 'root'"),
        ("key create default --scopes ,", "at least one scope"),
        ("key create default --expires never", "expires: expected a period"),
        ("key create default --expires 2001-01-01", "is not in the future"),
        ("key revoke key_none", "there is no key with the id 'key_none'"),
        ("secret list ghost", "there is no tenant 'ghost'"),
        ("secret delete default NONE", "has no secret 'NONE'"),
        ("audit --since yesterday", "since: expected a period"),
        ("tenant import engine.toml", "not an export of a tenant"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(engine: Engine, command: str, said: str) -> None:
    ended = engine(*command.split())
    assert ended.code == 2
    assert said in ended.err
    assert ended.err.count("\n") == 1
    assert ended.out == ""


def test_looking_makes_no_file_and_where_tenants_are_off_making_keys_warns(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "engine.toml").write_text("")
    assert engine("tenant", "list", "--json").json["tenants"][0]["name"] == "default"
    assert not (tmp_path / "data").exists()
    ended = engine("key", "create", "default")
    assert "warning: tenants.enabled is false" in ended.err
    assert (tmp_path / "data" / "engine.control.sqlite").exists()


# ---- secrets and audit ------------------------------------------------------------------------------------------


def test_a_secret_comes_by_standard_input_and_its_value_is_never_shown(engine: Engine, tmp_path: Path) -> None:
    given = ("secret", "set", "default", "TOKEN", "--host", "api.example.com", "--host", "*.example.org")
    ended = engine(*given, stdin=b"s3ntinel\n")
    assert (ended.code, ended.out) == (0, "Set: TOKEN of tenant default\n")
    listed = engine("secret", "list", "default", "--json")
    assert listed.json["secrets"][0]["hosts"] == ["api.example.com", "*.example.org"]
    assert "TOKEN" in engine("secret", "list", "default").out
    everything = listed.out + engine("audit").out + engine("audit", "--json").out
    assert "s3ntinel" not in everything
    assert engine("secret", "delete", "default", "TOKEN").code == 0
    assert engine("secret", "list", "default", "--json").json == {"secrets": []}


@pytest.mark.parametrize(("stdin", "said"), [(b"", "1 to 65536 bytes"), (b"\xff", "not text in UTF-8")])
def test_a_value_that_is_none_is_refused(engine: Engine, stdin: bytes, said: str) -> None:
    ended = engine("secret", "set", "default", "TOKEN", "--host", "a.example", stdin=stdin)
    assert ended.code == 2
    assert said in ended.err


def test_a_secrets_key_that_is_none_is_told_without_showing_it(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "engine.toml").write_text('[tenants]\nsecrets_key = "hunter2"\n')
    ended = engine("tenant", "list")
    assert ended.code == 2
    assert "tenants.secrets_key: expected 32 bytes in base64" in ended.err
    assert "hunter2" not in ended.err


def test_the_audit_log_tells_what_was_done_here(engine: Engine) -> None:
    engine("tenant", "create", "acme")
    engine("tenant", "create", "acme")
    engine("key", "create", "acme")
    found = engine("audit", "--tenant", "acme", "--since", "1h", "--json").json["audit"]
    assert [(row["actor"], row["action"], row["outcome"]) for row in found] == [
        ("cli", "tenant.create", "ok"), ("cli", "tenant.create", "conflict"), ("cli", "key.create", "ok"),
    ]  # fmt: skip
    assert engine("audit", "--tenant", "other", "--json").json == {"audit": []}
    assert "tenant.create" in engine("audit").out


def test_usage_of_tenants_that_used_nothing_is_empty_in_every_form(engine: Engine) -> None:
    assert engine("tenant", "usage", "--json").json == {"usage": []}
    assert engine("tenant", "usage", "default", "--csv").out.startswith("tenant,agent,key,day,runs,")
    assert engine("tenant", "usage").out.split()[:3] == ["TENANT", "DAY", "AGENT"]


# ---- moving -----------------------------------------------------------------------------------------------------


@pytest.fixture
def moved(engine: Engine, tmp_path: Path) -> tuple[str, Path, Path]:
    """A key of the tenant `acme`, an export of it, and a folder that is another machine with the same secrets key."""
    engine("tenant", "create", "acme", "--quota", "burst=5")
    key = engine("key", "create", "acme").out.strip()
    engine("secret", "set", "acme", "TOKEN", "--host", "a.example", stdin=b"s3ntinel")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# Alpha\n\nOf the tenant alone.\n")
    (tmp_path / "engine.toml").write_text(CONFIG + '[connectors.filesystem.docs]\nroot = "docs"\n')
    assert engine("sync", "all").code == 0
    (tmp_path / "data" / "tenants").mkdir()
    (tmp_path / "data" / "engine.sqlite").rename(tmp_path / "data" / "tenants" / "acme.sqlite")
    export = tmp_path / "acme.tar"
    ended = engine("tenant", "export", "acme", "-o", "acme.tar")
    assert ended.code == 0, ended.err
    other = tmp_path / "other"
    other.mkdir()
    (other / "engine.toml").write_text(CONFIG)
    return key, export, other


def test_an_exported_tenant_is_the_same_on_another_machine(
    engine: Engine, moved: tuple[str, Path, Path], tmp_path: Path
) -> None:
    key, export, other = moved
    assert stat.S_IMODE(export.stat().st_mode) == 0o600
    assert b"s3ntinel" not in export.read_bytes()
    assert key.encode() not in export.read_bytes()
    ended = engine("tenant", "import", str(export), cwd=other)
    assert (ended.code, ended.out) == (0, "Imported: acme\n"), ended.err
    assert identity_of(other, key) == "acme"
    assert engine("tenant", "show", "acme", "--json", cwd=other).json["quotas"] == {"burst": 5}
    assert engine("secret", "list", "acme", "--json", cwd=other).json["secrets"][0]["name"] == "TOKEN"
    with closing(sqlite3.connect(other / "data" / "tenants" / "acme.sqlite")) as db:
        assert db.execute("SELECT title FROM documents").fetchall() == [("Alpha",)]
    assert sorted(path.name for path in (other / "data" / "tenants").iterdir()) == ["acme.sqlite"]
    again = engine("tenant", "import", str(export), cwd=other)
    assert (again.code, "exists already" in again.err) == (2, True)
    assert identity_of(other, key) == "acme"
    over = engine("tenant", "export", "acme", "-o", str(export))
    assert (over.code, "never overwrites" in over.err) == (2, True)


def test_an_import_whose_secrets_do_not_open_here_leaves_nothing(engine: Engine, moved: tuple[str, Path, Path]) -> None:
    key, export, other = moved
    (other / "engine.toml").write_text(CONFIG.replace(SECRETS_KEY, base64.b64encode(b"x" * 32).decode()))
    ended = engine("tenant", "import", str(export), cwd=other)
    assert ended.code == 2
    assert "another secrets_key" in ended.err
    assert engine("tenant", "list", "--json", cwd=other).json["tenants"][0]["name"] == "default"
    assert list((other / "data" / "tenants").iterdir()) == []
    assert identity_of(other, key) is None


def forged(export: Path, change: Callable[[Any], None]) -> bytes:
    """The tar with other rows."""
    with tarfile.open(export) as tar:
        content = tar.extractfile("tenant.json")
        assert content is not None
        everything = json.load(content)
    change(everything)
    text = json.dumps(everything).encode()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        member = tarfile.TarInfo("tenant.json")
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text))
    return out.getvalue()


def _swap(table: str, column: str, value: Any) -> Callable[[Any], None]:
    def change(everything: Any) -> None:
        found = everything["tables"][table]
        found["rows"][0][found["columns"].index(column)] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda e: e.update(format=2), "not of format 1"),
        (lambda e: e.update(tenant="../x"), "cannot name a tenant"),
        (lambda e: e["tables"].update(audit={"columns": [], "rows": []}), "has no table 'audit'"),
        (lambda e: e["tables"]["keys"]["columns"].append("id) --"), "keys has other columns"),
        (lambda e: e["tables"]["keys"]["rows"][0].append(1), "a row of keys is not the tenant's"),
        (_swap("keys", "tenant", "default"), "a row of keys is not the tenant's"),
        (_swap("tenants", "name", "default"), "a row of tenants is not the tenant's"),
        (_swap("keys", "digest", {"base64": "?"}), "a value of keys is not valid"),
        (_swap("keys", "digest", [1]), "a value of keys is not valid"),
        (lambda e: e.update(tables=[]), "names no tenant"),
    ],
)
def test_a_forged_export_is_refused_and_leaves_nothing(
    engine: Engine, moved: tuple[str, Path, Path], change: Callable[[Any], None], said: str
) -> None:
    _, export, other = moved
    (other / "forged.tar").write_bytes(forged(export, change))
    ended = engine("tenant", "import", "forged.tar", cwd=other)
    assert (ended.code, said in ended.err) == (2, True), ended.err
    assert [each["name"] for each in engine("tenant", "list", "--json", cwd=other).json["tenants"]] == ["default"]


def test_a_tar_with_a_link_a_path_or_a_strange_database_in_it_is_refused(engine: Engine, tmp_path: Path) -> None:
    for name, kind, content in (
        ("tenant.json", tarfile.SYMTYPE, b""),
        ("../../etc/x", tarfile.REGTYPE, b"x"),
        ("knowledge.sqlite", tarfile.REGTYPE, b"no database"),
    ):
        with tarfile.open(tmp_path / "bad.tar", "w") as tar:
            text = json.dumps({"format": 1, "tenant": "acme", "tables": {"tenants": {}}}).encode()
            first = tarfile.TarInfo("tenant.json")
            first.size = len(text)
            tar.addfile(first, io.BytesIO(text))
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, len(content), "/etc/passwd"
            tar.addfile(member, io.BytesIO(content))
        ended = engine("tenant", "import", "bad.tar")
        assert (ended.code, "not an export of a tenant" in ended.err) == (2, True), ended.err
        assert list((tmp_path / "data" / "tenants").iterdir()) == []


def test_a_back_up_made_while_others_write_is_the_engine_of_one_moment(
    engine: Engine, moved: tuple[str, Path, Path], tmp_path: Path
) -> None:
    key, _, other = moved
    ended = engine("tenant", "backup", "copy")
    assert ended.code == 0, ended.err
    assert ended.out.splitlines() == ["engine.control.sqlite", "tenants/acme.sqlite"]
    (tmp_path / "copy").rename(other / "data")
    assert identity_of(other, key) == "acme"
    assert engine("stats", "--json", "--tenant", "acme", cwd=other).json["documents"] == 1
    assert engine("tenant", "backup", "copy").code == 0
    again = engine("tenant", "backup", "copy")
    assert (again.code, "never overwrites" in again.err) == (2, True)


def test_doctor_looks_at_tenants_without_making_their_store(engine: Engine, tmp_path: Path) -> None:
    assert engine("init").code == 0
    before = {path.name for path in (tmp_path / "data").iterdir() if "control" in path.name}
    assert before == set()
    assert engine("doctor").code == 0
    assert {path.name for path in (tmp_path / "data").iterdir() if "control" in path.name} == set()
    (tmp_path / "data" / "engine.control.sqlite").write_text("notes, notes, notes" * 100)
    ended = engine("doctor")
    assert ended.code == 2
    assert "engine.control.sqlite is not a SQLite database" in ended.out

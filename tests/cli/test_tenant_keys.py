"""The keys of a tenant's scripts: exported, imported, in the back-up, and deleted with it."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from cli_support import Engine

from control.files import kv_path
from storage.kv import count_keys, open_kv
from storage.kv_rows import Place

CONFIG = "[tenants]\nenabled = true\n"
VALUES: dict[str, Any] = {"a": {"x": [1, 1.0, None, "é"]}, "b": 2**63 - 1, "é\0": "x" * 60_000, "gone": 1}
LINE = {"space": "agent:helper", "key": "a", "value": 1, "expires_at": None}


@pytest.fixture
def engine(tmp_path: Path, engine: Engine) -> Engine:
    """The command line in a project with a tenant `acme` whose agent keeps keys."""
    (tmp_path / "engine.toml").write_text(CONFIG)
    assert engine("tenant", "create", "acme").code == 0

    async def fill() -> None:
        async with open_kv(file_in(tmp_path)) as kv:
            for key, value in VALUES.items():
                place = Place("acme", "agent:helper", key.encode())
                ttl_s = 0.001 if key == "gone" else None
                await kv.set(place, msgspec.msgpack.encode(value), ttl_s=ttl_s, max_bytes=1 << 30)
            await kv.set(Place("other", "tool:t", b"a"), msgspec.msgpack.encode(1), max_bytes=1 << 30)

    trio.run(fill)
    return engine


def file_in(folder: Path) -> Path:
    return kv_path(folder / "data" / "engine.sqlite")


def values_in(folder: Path) -> dict[str, Any]:
    async def read() -> dict[str, Any]:
        async with open_kv(file_in(folder)) as kv:
            found, _ = await kv.listed("acme", "agent:helper", b"", limit=100)
            entries = {each.key: await kv.get("acme", "agent:helper", each.key) for each in found}
            return {k.decode(): msgspec.msgpack.decode(e.value) for k, e in entries.items() if e is not None}

    return trio.run(read)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    other = tmp_path / "other"
    other.mkdir()
    (other / "engine.toml").write_text(CONFIG)
    return other


def test_an_export_has_them_and_an_import_brings_them_back(engine: Engine, tmp_path: Path, elsewhere: Path) -> None:
    assert engine("tenant", "export", "acme", "-o", "acme.tar").code == 0
    ended = engine("tenant", "import", str(tmp_path / "acme.tar"), cwd=elsewhere)
    assert ended.code == 0, ended.err
    expected = {key: value for key, value in VALUES.items() if key != "gone"}
    assert repr(values_in(elsewhere)) == repr(values_in(tmp_path)) == repr(dict(sorted(expected.items())))
    assert count_keys(file_in(elsewhere), "other") == 0
    assert [path.name for path in (elsewhere / "data" / "tenants").iterdir()] == []
    # Where the tenant was before: deleted, and imported again at once.
    assert engine("tenant", "delete", "acme", "--yes").code == 0
    assert engine("tenant", "import", "acme.tar").code == 0
    assert values_in(tmp_path).keys() == expected.keys()


def test_the_command_line_lists_prints_sets_and_deletes_keys(engine: Engine) -> None:
    whose = ("agent:helper", "--tenant", "acme")
    listed = engine("kv", "list", *whose, "--json").json["keys"]
    assert [(each["key"], each["expires_at"]) for each in listed] == [(key, None) for key in ("a", "b", "é\0")]
    assert engine("kv", "list", *whose, "--prefix", "b").out.split()[:5] == ["KEY", "BYTES", "VERSION", "EXPIRES", "b"]
    assert "é\\x00" in engine("kv", "list", *whose).out
    assert engine("kv", "get", "agent:helper", "a", "--tenant", "acme").json == VALUES["a"]
    assert engine("kv", "set", "agent:helper", "new", '{"x": 1}', "--ttl", "60", "--tenant", "acme").code == 0
    assert engine("kv", "get", "agent:helper", "new", "--tenant", "acme").json == {"x": 1}
    assert engine("kv", "list", *whose, "--prefix", "new", "--json").json["keys"][0]["expires_at"] is not None
    assert engine("kv", "delete", "agent:helper", "new", "--tenant", "acme").out == "Deleted: new of agent:helper\n"
    assert engine("kv", "list", "tool:helper", "--tenant", "acme", "--json").json == {"keys": []}


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("get agent:helper none --tenant acme", 1, "agent:helper has no key 'none'"),
        ("delete agent:helper none --tenant acme", 1, "agent:helper has no key 'none'"),
        ("get helper a", 2, "expected agent:NAME or tool:NAME"),
        ("list agent:../x", 2, "expected agent:NAME or tool:NAME"),
        ("list agent:helper --tenant ghost", 2, "unknown tenant 'ghost'"),
        (f"get agent:helper {'k' * 513}", 2, "a key has 1 to 512 bytes, this one 513"),
        ("set agent:helper a text", 2, "the value is not JSON"),
        ("set agent:helper a null", 2, "a value is JSON data but null"),
        ("set agent:helper a NaN", 2, "a value is JSON data but null"),
        ("set agent:helper a 1 --ttl 0", 2, "--ttl: expected seconds above 0, got 0"),
    ],
)
def test_what_the_command_line_cannot_do_is_one_line(engine: Engine, command: str, code: int, said: str) -> None:
    ended = engine("kv", *command.split())
    assert (ended.code, ended.err.count("\n")) == (code, 1)
    assert said in ended.err


def test_doctor_warns_of_a_store_of_keys_that_cannot_be_used(engine: Engine, tmp_path: Path) -> None:
    assert engine("init").code == 0
    assert engine("doctor", "--json").json["warnings"] == []
    for each in (tmp_path / "data").glob("engine.kv.*"):
        each.unlink()
    file_in(tmp_path).write_text("no database " * 100)
    (warning,) = engine("doctor", "--json").json["warnings"]
    assert warning.startswith("data/engine.kv.sqlite: the key-value store is damaged; restore it from a back-up, or")


def test_a_back_up_is_a_store_with_all_keys(engine: Engine, tmp_path: Path) -> None:
    assert "engine.kv.sqlite" in engine("tenant", "backup", "copies").out
    copy = tmp_path / "copies" / "engine.kv.sqlite"
    assert count_keys(copy, "acme") == len(VALUES)
    assert count_keys(copy, "other") == 1


def test_a_deleted_tenant_leaves_none(engine: Engine, tmp_path: Path) -> None:
    proof = engine("tenant", "delete", "acme", "--yes", "--json").json
    assert proof["removed"]["kv"] == len(VALUES)
    assert proof["left"]["kv"] == 0
    assert count_keys(file_in(tmp_path), "acme") == 0
    assert count_keys(file_in(tmp_path), "other") == 1
    content = b"".join(each.read_bytes() for each in (tmp_path / "data").glob("engine.kv.*"))
    assert b"xxxxxxxx" not in content


def test_a_tenant_whose_keys_cannot_be_deleted_stays_suspended(engine: Engine, tmp_path: Path) -> None:
    for each in (tmp_path / "data").glob("engine.kv.*"):
        each.unlink()
    file_in(tmp_path).write_text("no database " * 100)
    ended = engine("tenant", "delete", "acme", "--yes")
    assert ended.code != 0
    assert "the keys of tenant 'acme' cannot be deleted" in ended.err
    assert engine("tenant", "show", "acme", "--json").json["state"] == "suspended"
    file_in(tmp_path).unlink()
    assert engine("tenant", "delete", "acme", "--yes").code == 0


@pytest.mark.parametrize(
    "line",
    [
        b"not json", b"[]", b"{}", b'{"space":"agent:a"}', b"\xff",
        *(json.dumps({**LINE, **wrong}).encode() for wrong in (
            {"space": "agent"}, {"space": "other:a"}, {"space": "agent:../x"}, {"space": 1},
            {"key": ""}, {"key": "k" * 513}, {"key": 1}, {"value": None}, {"value": "x" * 70_000},
            {"value": [[]] * 70_000}, {"expires_at": "soon"}, {"tenant": "other"}, {"value": "x" * 2_000_000},
        )),
        b'{"space":"agent:a","key":"a","value":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"space":"agent:a","key":"\\ud800","value":1}',
    ],
)  # fmt: skip
def test_an_import_with_lines_that_no_export_has_written_leaves_nothing(
    engine: Engine, tmp_path: Path, elsewhere: Path, line: bytes
) -> None:
    assert engine("tenant", "export", "acme", "-o", "acme.tar").code == 0
    with tarfile.open(tmp_path / "acme.tar") as tar:
        rows = tar.extractfile("tenant.json")
        assert rows is not None
        members = {"tenant.json": rows.read(), "kv.jsonl": json.dumps(LINE).encode() + b"\n" + line + b"\n"}
    with tarfile.open(tmp_path / "forged.tar", "w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    ended = engine("tenant", "import", str(tmp_path / "forged.tar"), cwd=elsewhere)
    assert ended.code == 2, ended.out
    assert "line 2 of kv.jsonl is not a key with its value" in ended.err
    listed = engine("tenant", "list", "--json", cwd=elsewhere).json["tenants"]
    assert [each["name"] for each in listed] == ["default"]
    assert not file_in(elsewhere).exists()

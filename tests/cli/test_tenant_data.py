"""Whose data: `--tenant NAME` of the commands that fill, search and show a store; the quota that a sync stops at."""

from pathlib import Path

import pytest
import trio
from cli_support import Engine

from control.store import open_configured
from engine.config import load_config

CONFIG = """
[tenants]
enabled = true
[connectors.filesystem.house]
root = "house"
[connectors.filesystem.theirs]
root = "theirs"
tenants = ["acme"]
[connectors.filesystem.common]
root = "common"
tenants = ["*"]
[agents.reviewer]
description = "Reviews"
system_prompt = "Review."
tenants = ["acme"]
"""


@pytest.fixture
def engine(tmp_path: Path, engine: Engine) -> Engine:
    """The command line in a project with two tenants, one of which may store little."""
    (tmp_path / "engine.toml").write_text(CONFIG)
    for name in ("house", "theirs", "common"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.md").write_text(f"# {name}\n\nWords of {name}.\n")
    loaded = load_config(None, environ={}, cwd=tmp_path)

    async def create() -> None:
        async with open_configured(loaded.config) as control:
            await control.tenants.create("acme", actor="cli")
            await control.tenants.create("small", actor="cli", quotas={"stored_bytes": 200_000})

    trio.run(create)
    return engine


def found(engine: Engine, *tenant: str) -> list[str]:
    return sorted(hit["source_id"] for hit in engine("search", "words", "--json", *tenant).json["results"])


def test_a_sync_fills_the_store_of_its_tenant_from_that_tenants_connectors_alone(
    engine: Engine, tmp_path: Path
) -> None:
    synced = {report["source"] for report in engine("sync", "all", "--json", "--tenant", "acme").json["sources"]}
    assert synced == {"filesystem:theirs", "filesystem:common"}
    assert found(engine, "--tenant", "acme") == ["common.md", "theirs.md"]
    assert (tmp_path / "data/tenants/acme.sqlite").exists()
    synced = {report["source"] for report in engine("sync", "all", "--json").json["sources"]}
    assert synced == {"filesystem:house", "filesystem:common"}
    assert found(engine) == ["common.md", "house.md"]
    assert found(engine, "--tenant", "acme") == ["common.md", "theirs.md"]


def test_a_connector_of_another_tenant_is_as_unknown_as_none(engine: Engine) -> None:
    for label in ("filesystem:house", "filesystem:none"):
        ended = engine("sync", label, "--tenant", "acme")
        assert ended.code == 2
        assert ended.err.strip() == (
            f"error: unknown connector '{label}'; configured for tenant 'acme': filesystem:theirs, filesystem:common"
        )


def test_documents_sources_and_totals_are_the_tenants_own(engine: Engine) -> None:
    engine("sync", "all", "--tenant", "acme")
    engine("sync", "all")
    (theirs,) = [
        hit
        for hit in engine("search", "theirs", "--json", "--tenant", "acme").json["results"]
        if hit["source_id"] == "theirs.md"
    ]
    assert engine("get", theirs["id"], "--json", "--tenant", "acme").json["body"].endswith("Words of theirs.\n")
    unknown = engine("get", theirs["id"])
    assert (unknown.code, unknown.err.strip()) == (1, f"error: document not found: {theirs['id']}")
    sources = {
        each["source"]: each["document_count"]
        for each in engine("sources", "--json", "--tenant", "acme").json["sources"]
    }
    assert sources == {"filesystem:common": 1, "filesystem:theirs": 1}
    stats = engine("stats", "--json", "--tenant", "acme").json
    assert (stats["database"], stats["documents"]) == ("data/tenants/acme.sqlite", 2)
    exported = engine("export", "--tenant", "acme").json
    assert {each["source_id"] for each in exported["documents"]} == {"common.md", "theirs.md"}


def test_lists_and_calls_are_made_for_the_tenant(engine: Engine) -> None:
    assert [each["name"] for each in engine("agent", "list", "--json", "--tenant", "acme").json["agents"]] == [
        "reviewer"
    ]
    assert engine("agent", "list", "--json").json["agents"] == []
    engine("sync", "all", "--tenant", "acme")
    called = engine("tool", "test", "search", "--param", "query=words", "--json", "--tenant", "acme").json
    assert sorted(hit["source_id"] for hit in called["result"]["results"]) == ["common.md", "theirs.md"]
    assert engine("agent", "test", "reviewer", "--tenant", "acme").code == 0
    assert engine("agent", "test", "reviewer").code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("stats",), ("search", "x"), ("get", "x"), ("sources",), ("export",), ("sync", "all"), ("agent", "list"),
        ("agent", "test", "reviewer"), ("tool", "list"), ("tool", "test", "search", "--param", "query=x"),
    ],
)  # fmt: skip
def test_every_command_refuses_a_tenant_that_there_is_not(engine: Engine, arguments: tuple[str, ...]) -> None:
    ended = engine(*arguments, "--tenant", "nobody")
    assert (ended.code, ended.out, ended.err.strip()) == (2, "", "error: unknown tenant 'nobody'")


def test_a_sync_stops_at_what_its_tenant_may_store_and_keeps_what_came_before(engine: Engine, tmp_path: Path) -> None:
    assert engine("sync", "all", "--tenant", "small").code == 0
    (tmp_path / "common" / "large.md").write_text("many words " * 50_000)
    ended = engine("sync", "all", "--tenant", "small")
    assert ended.code == 2
    assert "its limit is 200000 (quota stored_bytes)" in ended.err
    assert found(engine, "--tenant", "small") == ["common.md"]
    # The others have room, and with less to store the tenant goes on.
    assert engine("sync", "all", "--tenant", "acme").code == 0
    (tmp_path / "common" / "large.md").unlink()
    assert engine("sync", "all", "--tenant", "small").code == 0

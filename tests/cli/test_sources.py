"""A kind of source is one file and its model: here one is added on the fly and synchronised from the command line."""

import inspect
from importlib import import_module
from pathlib import Path

import pytest
from added import added_file, added_table
from cli_support import Engine
from git_support import Repository

from agents.sources import connector
from engine.config import ConfigError, load_config
from engine.config.entries import Connectors
from engine.config.fields import Model, Strings
from knowledge import connectors

NOTES = """
from knowledge.connectors import Found, Item


class Notes:
    def __init__(self, *, words):
        if not words:
            raise ValueError("there are no words")
        self.words = words

    async def scan(self):
        for word in self.words:
            yield Found(source_id=word)

    async def read(self, found):
        return Item(body=f"A note of {found.source_id}.", title=found.source_id)


CONNECTOR = Notes
"""


class NotesEntry(Model):
    """`[connectors.notes.NAME]`."""

    words: Strings
    tenants: Strings | None = None


def test_a_source_of_an_added_kind_is_synchronised_beside_one_of_another_kind(
    engine: Engine, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text("# A page\n")
    (tmp_path / "engine.toml").write_text(
        '[connectors.filesystem.docs]\nroot = "docs"\n'
        '[connectors.notes.mine]\nwords = ["alpha", "beta"]\n[connectors.notes.empty]\nwords = []\n'
    )
    folder = tmp_path_factory.mktemp("kinds")
    with added_file(connectors, folder, "notes", NOTES), added_table(Connectors, "notes", NotesEntry):
        ended = engine("sync", "notes:mine", "--json")
        assert (ended.code, ended.err) == (0, "")
        assert ended.json["sources"][0]["upserted"] == 2
        assert engine("sync", "filesystem", "--json").json["sources"][0]["upserted"] == 1
        assert engine("stats", "--json").json["documents"] == 3
        refused = engine("sync", "notes:empty")
        assert (refused.code, refused.err) == (2, "error: notes:empty: there are no words\n")
    ended = engine("sync", "filesystem")
    assert "connectors.notes: unknown key" in ended.err


def test_a_kind_without_a_file_is_told_as_not_supported(tmp_path: Path) -> None:
    (tmp_path / "engine.toml").write_text('[connectors.s3.repo]\nbucket = "b"\n')
    config = load_config(tmp_path / "engine.toml", environ={}, cwd=tmp_path).config
    with pytest.raises(ConfigError, match="connector type 's3' is configured but not supported by this version"):
        connector(config, "s3:repo")


def test_every_kind_has_a_table_whose_keys_are_what_its_connector_takes() -> None:
    assert connectors.kinds() <= set(Connectors.model_fields)
    for kind in connectors.kinds():
        takes = set(inspect.signature(import_module(f"knowledge.connectors.{kind}").CONNECTOR).parameters)
        entry = Connectors.model_fields[kind].annotation.__args__[1]
        assert takes == set(entry.model_fields) - {"tenants"}, kind


def test_a_git_repository_is_synchronised_into_a_cache_beside_the_store(engine: Engine, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repo")
    repository.commit(a_md="# Alpha\n", docs__b_md="# Beta\n")
    (tmp_path / "engine.toml").write_text(
        f'[connectors.git.all]\nurl = "{repository.url}"\n'
        f'[connectors.git.docs]\nurl = "{repository.url}"\nroot = "docs"\n'
        '[connectors.git.bad]\nurl = "git://example.com/r"\n'
    )
    ended = engine("sync", "git:all", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert ended.json["sources"][0]["upserted"] == 2
    assert engine("sync", "git:docs", "--json").json["sources"][0]["upserted"] == 1
    assert len(list(tmp_path.rglob(".git-cache/*/clone"))) == 1
    assert engine("search", "alpha", "--json").json["results"][0]["source"] == "git:all"
    refused = engine("sync", "git:bad")
    assert refused.code == 2
    assert "git:bad: url begins with git://, which is refused" in refused.err


def test_a_git_repository_that_cannot_be_fetched_fails_its_source_alone(engine: Engine, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repo")
    repository.commit(a_md="# Alpha\n")
    (tmp_path / "engine.toml").write_text(
        f'[connectors.git.gone]\nurl = "file://{tmp_path}/nosuch"\n[connectors.git.here]\nurl = "{repository.url}"\n'
    )
    ended = engine("sync", "all", "--json")
    assert ended.code == 1
    assert {row["source"]: (row["upserted"], row["error"]) for row in ended.json["sources"]} == {
        "git:gone": (0, "there is no repository at its address"),
        "git:here": (1, None),
    }

"""A kind of source is one file and its model: here one is added on the fly and synchronised from the command line."""

import inspect
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from added import added_file, added_table
from cli_support import Engine
from git_support import Repository
from s3_support import KEYS, failure, served
from web_support import markdown, page, site, sitemap

from agents.sources import _NOT_ITS_OWN, connector
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


def test_a_kind_without_a_file_is_told_as_not_supported(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "engine.toml").write_text('[connectors.notes.mine]\nwords = ["alpha"]\n')
    why = "connector type 'notes' is configured but not supported by this version"
    with added_table(Connectors, "notes", NotesEntry):
        config = load_config(tmp_path / "engine.toml", environ={}, cwd=tmp_path).config
        with pytest.raises(ConfigError, match=why):
            connector(config, "notes:mine")
        assert f"! notes:mine: {why}\n" in engine("doctor").out


def test_a_kind_whose_library_is_not_installed_names_it_and_its_extra(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "engine.toml").write_text('[connectors.s3.b]\nbucket = "b"\n')
    missing = connectors.missing.__wrapped__
    monkeypatch.setattr(connectors, "find_spec", lambda name: None)
    monkeypatch.setattr(connectors, "missing", missing)
    why = "connector type 's3' needs botocore, which is not installed: pip install 'engine[s3]'"
    ended = engine("sync", "all")
    assert (ended.code, ended.err) == (2, f"error: {why}\n")
    assert f"! s3:b: {why}\n" in engine("doctor").out


def test_every_kind_with_a_library_of_its_own_is_an_extra() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for kind, library in connectors._LIBRARIES.items():
        assert kind in connectors.kinds()
        assert any(each.startswith(library) for each in project["optional-dependencies"][kind])


def test_a_bucket_is_synchronised_and_its_keys_are_in_no_output(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUCKET_KEY", KEYS["secret_access_key"])
    with served() as server:
        table = f'endpoint_url = "{server.url}"\naccess_key_id = "test-id"\nsecret_access_key = "${{BUCKET_KEY}}"\n'
        (tmp_path / "engine.toml").write_text(
            f'[connectors.s3.all]\nbucket = "docs"\n{table}[connectors.s3.gone]\nbucket = "gone"\n{table}'
        )
        server.object_ = lambda key: b"# Alpha\n"
        listing, server.listing = server.listing, lambda token: failure(403, "SignatureDoesNotMatch")
        outputs = [engine("sync", "all", "--json"), engine("sources", "--json")]
        assert outputs[0].code == 1
        assert [row["error"] for row in outputs[0].json["sources"]] == [
            "its keys are refused; check `access_key_id`, `secret_access_key`, and what they may read"
        ] * 2
        server.listing = listing
        outputs += [engine("sync", "s3:all", "--json"), engine("search", "alpha", "--json"), engine("doctor", "--json")]
    assert outputs[2].json["sources"][0]["upserted"] == 2
    assert {hit["source_url"] for hit in outputs[3].json["results"]} == {"s3://docs/a.md", "s3://docs/b.md"}
    assert not any(KEYS["secret_access_key"] in each.out + each.err for each in outputs)


def test_every_kind_has_a_table_whose_keys_are_what_its_connector_takes() -> None:
    assert connectors.kinds() <= set(Connectors.model_fields)
    for kind in connectors.kinds():
        takes = set(inspect.signature(import_module(f"knowledge.connectors.{kind}").CONNECTOR).parameters)
        entry = Connectors.model_fields[kind].annotation.__args__[1]
        parts = {"extractor", "fetching"}  # given by the engine
        assert takes - parts == set(entry.model_fields) - set(_NOT_ITS_OWN), kind


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


def test_a_site_is_synchronised_and_the_second_time_nothing_is_sent(engine: Engine, tmp_path: Path) -> None:
    with site() as server:
        server.pages = {
            "/docs/": page("Alpha", "b.md", text="The first page."),
            "/docs/b.md": markdown("# Beta\n\nThe second page.\n"),
            "/map.xml": sitemap("/docs/b.md", "/docs/gone"),
        }
        (tmp_path / "engine.toml").write_text(
            f'[connectors.web.all]\nurls = ["{server.url}/docs/"]\nfollow = true\nmax_depth = 1\ndelay_s = 0.0\n'
            f'[connectors.web.map]\nsitemaps = ["{server.url}/map.xml"]\n'
        )
        ended = engine("sync", "web", "--json")
        assert (ended.code, ended.err) == (0, "")
        assert [(row["source"], row["upserted"], row["error"]) for row in ended.json["sources"]] == [
            ("web:all", 2, None), ("web:map", 1, None),
        ]  # fmt: skip
        assert ended.json["sources"][1]["skipped"] == [
            {"source_id": f"{server.url}/docs/gone", "reason": "not found (HTTP 404)"}
        ]
        (hit,) = engine("search", "first", "--source", "web:all", "--json").json["results"]
        assert (hit["title"], hit["heading"], hit["source_url"]) == ("Alpha", "Alpha", f"{server.url}/docs/")
        again = engine("sync", "web:map", "--json").json["sources"][0]
        assert (again["upserted"], again["unchanged"]) == (0, 1)
        assert ("/docs/b.md", 304) in server.asked
    assert engine("sync", "web:map").code == 1
    row = next(row for row in engine("sources", "--json").json["sources"] if row["source"] == "web:map")
    assert "does not accept connections" in row["last_error"]
    assert row["document_count"] == 1


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            'urls = ["docs.example.com"]',
            "connectors.web.x.urls[0]: expected the address of a page: the URL must be",
        ),
        ('urls = ["https://u:pa55@h/"]', "the address of a page: the URL must not hold a user or password"),
        ("", "web:x: there are no urls and no sitemaps"),
        ('urls = ["https://h/"]\ndelay_s = -1.0', "connectors.web.x.delay_s: expected"),
    ],
)
def test_a_mistake_in_the_table_of_a_site_is_named(engine: Engine, tmp_path: Path, table: str, message: str) -> None:
    (tmp_path / "engine.toml").write_text(f"[connectors.web.x]\n{table}\n")
    ended = engine("sync", "all")
    assert ended.code == 2
    assert message in ended.err
    assert "pa55" not in ended.err


def test_a_source_that_cannot_be_used_stops_no_other(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# Alpha")
    good = '[connectors.filesystem.docs]\nroot = "docs"\n'
    (tmp_path / "engine.toml").write_text(f'[connectors.git.gone]\nurl = "git://h/x"\n{good}')
    ended = engine("sync", "all")
    assert ended.code == 2
    assert "git:gone: url begins with git://, which is refused" in ended.err
    assert "upserted documents: 1" in ended.out
    (tmp_path / "engine.toml").write_text(good)
    assert engine("sync", "all").code == 0


def test_the_list_of_connectors_shows_the_addresses_of_a_site_without_their_queries(
    engine: Engine, tmp_path: Path
) -> None:
    (tmp_path / "engine.toml").write_text('[connectors.web.x]\nurls = ["https://h/a?key=s3cret", "https://h/b"]\n')
    (row,) = engine("connector", "list", "--json").json["connectors"]
    assert row["from"] == "https://h/a https://h/b"

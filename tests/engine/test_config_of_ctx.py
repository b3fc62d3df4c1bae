"""Configurations of ctx: where they are found, how they are merged, and what is forgiven in them."""

from pathlib import Path

import pytest

from engine.config import ConfigError, load_config, parse_config, reload_config
from engine.config.ctx import is_of_ctx, merged
from engine.config.signatures import signature


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_dot_folder_comes_before_the_older_place_and_a_warning_says_so(tmp_path: Path) -> None:
    write(tmp_path / "config/ctx.toml", "[retrieval]\nfinal_limit = 1")
    write(tmp_path / ".ctx/config.toml", "[retrieval]\nfinal_limit = 2")
    loaded = load_config(None, environ={}, cwd=tmp_path)
    assert (loaded.path, loaded.config.retrieval.final_limit) == (tmp_path / ".ctx/config.toml", 2)
    assert loaded.warnings == ("config/ctx.toml is not read: .ctx/config.toml comes first",)


GLOBAL = {
    "the variable of ctx": {"CTX_CONFIG_DIR": "own", "XDG_CONFIG_HOME": "xdg", "HOME": "home"},
    "the variable of XDG": {"CTX_CONFIG_DIR": "", "XDG_CONFIG_HOME": "xdg", "HOME": "home"},
    "the home directory": {"HOME": "home"},
}
PLACES = {
    "the variable of ctx": "own/config.toml",
    "the variable of XDG": "xdg/ctx/config.toml",
    "the home directory": "home/.config/ctx/config.toml",
}


@pytest.mark.parametrize("by", GLOBAL)
def test_the_users_own_configuration_is_found_where_ctx_has_it(tmp_path: Path, by: str) -> None:
    for number, place in enumerate(PLACES.values(), 1):
        write(tmp_path / place, f"[retrieval]\nfinal_limit = {number}")
    environ = {name: value and str(tmp_path / value) for name, value in GLOBAL[by].items()}
    cwd = tmp_path / "work"
    cwd.mkdir()
    loaded = load_config(None, environ=environ, cwd=cwd)
    assert loaded.path == tmp_path / PLACES[by]
    assert loaded.config.retrieval.final_limit == list(PLACES).index(by) + 1
    assert loaded.root == cwd


@pytest.mark.parametrize("place", [".ctx/config.toml", "config/ctx.toml"])
def test_a_workspace_replaces_keys_of_the_users_own_configuration(tmp_path: Path, place: str) -> None:
    write(
        tmp_path / "own/config.toml",
        "[retrieval]\nfinal_limit = 5\nhybrid_alpha = 0.1\n[connectors.filesystem.a]\nroot = 'a'\n"
        "include_globs = ['x']",
    )
    write(
        tmp_path / "work" / place,
        '[retrieval]\nfinal_limit = 7\n[connectors.filesystem.a]\ninclude_globs = ["y", "z"]\n'
        '[connectors.filesystem.b]\nroot = "b"',
    )
    loaded = load_config(None, environ={"CTX_CONFIG_DIR": str(tmp_path / "own")}, cwd=tmp_path / "work")
    assert (loaded.path, loaded.below) == (tmp_path / "work" / place, tmp_path / "own/config.toml")
    retrieval, sources = loaded.config.retrieval, loaded.config.connectors.filesystem
    assert (retrieval.final_limit, retrieval.hybrid_alpha) == (7, 0.1)
    assert list(sources) == ["a", "b"]
    assert (sources["a"].root, sources["a"].include_globs) == (tmp_path / "work/a", ("y", "z"))


def test_both_files_are_read_again_and_are_still_merged(tmp_path: Path) -> None:
    own, work = tmp_path / "own/config.toml", tmp_path / ".ctx/config.toml"
    write(own, "[retrieval]\nhybrid_alpha = 0.1")
    write(work, "[retrieval]\nfinal_limit = 7")
    loaded = load_config(None, environ={"CTX_CONFIG_DIR": str(own.parent)}, cwd=tmp_path)
    assert set(loaded.files) == {own, work}
    write(own, "[retrieval]\nhybrid_alpha = 0.25")
    again = reload_config(loaded, environ={}, cwd=tmp_path)
    retrieval = again.config.retrieval
    assert (retrieval.final_limit, retrieval.hybrid_alpha, again.below) == (7, 0.25, own)
    assert (again.files[own], again.files[work]) == (signature(own), loaded.files[work])
    assert again.files[own] != loaded.files[own]


@pytest.mark.parametrize("named", ["--config", "ENGINE_CONFIG", "CTX_CONFIG", "engine.toml"])
def test_a_file_that_is_named_and_ours_are_not_merged_with_anything(tmp_path: Path, named: str) -> None:
    write(tmp_path / "own/config.toml", "[retrieval]\nhybrid_alpha = 0.1")
    write(tmp_path / "engine.toml", "[retrieval]\nfinal_limit = 7")
    environ = {"CTX_CONFIG_DIR": str(tmp_path / "own")}
    if named.isupper():
        environ[named] = "engine.toml"
    loaded = load_config(Path("engine.toml") if named == "--config" else None, environ=environ, cwd=tmp_path)
    assert (loaded.config.retrieval.final_limit, loaded.config.retrieval.hybrid_alpha) == (7, 0.95)
    assert loaded.below is None


def test_a_relative_folder_is_ignored_with_a_warning(tmp_path: Path) -> None:
    write(tmp_path / "own/config.toml", "[retrieval]\nfinal_limit = 5")
    loaded = load_config(None, environ={"CTX_CONFIG_DIR": "own"}, cwd=tmp_path)
    assert (loaded.path, loaded.config.retrieval.final_limit) == (None, 12)
    assert loaded.warnings == ("CTX_CONFIG_DIR = 'own' is ignored: it is not an absolute path",)


def test_a_mistake_in_the_users_own_file_names_it(tmp_path: Path) -> None:
    write(tmp_path / "own/config.toml", "[retrieval")
    write(tmp_path / ".ctx/config.toml", "")
    with pytest.raises(ConfigError, match=r"below it.: not valid TOML"):
        load_config(None, environ={"CTX_CONFIG_DIR": str(tmp_path / "own")}, cwd=tmp_path)


def test_agents_of_the_workspace_come_before_those_of_the_user(tmp_path: Path) -> None:
    entry = "[agents.inline.{}]\ndescription = ''\nsystem_prompt = ''\ntools = []\n"
    config, _ = parse_config(
        entry.format("mine"), environ={}, cwd=tmp_path, of_ctx=True, below=entry.format("b") + entry.format("a")
    )
    assert [name for _, name, _ in config.agents.in_order()] == ["mine", "b", "a"]


OF_CTX = {".ctx/config.toml": True, "config/ctx.toml": True, "ctx.example.toml": True, "a/ctx/config.toml": True,
          "engine.toml": False, "config.toml": False, "config/config.toml": False, "myctx.toml": False}  # fmt: skip


@pytest.mark.parametrize("path", OF_CTX)
def test_a_file_is_known_to_be_ctxs_by_its_name(path: str) -> None:
    assert is_of_ctx(Path("/work") / path) == OF_CTX[path]


# Unknown keys at every level -> what the warning says.
UNKNOWN = {
    "foo = 1": "foo: unknown key, ignored as in ctx",
    "[db]\npth = 'x'": "db.pth: unknown key, ignored as in ctx; did you mean 'path'?",
    "[connectors.filesystem.d]\nroot = '.'\nglobs = ['x']": "connectors.filesystem.d.globs: unknown key, ignored",
    "[connectors.s3.r]\nbucket = 'b'\nrole = '${NOT_SET}'": "connectors.s3.r.role: unknown key",
    "[connectors.rss.x]\nurl = 'u'": "connectors.rss: unknown key, ignored as in ctx",
    "[telemetry]\nenabled = true": "telemetry: unknown key, ignored as in ctx",
}


@pytest.mark.parametrize("text", UNKNOWN)
def test_an_unknown_key_is_a_warning_in_a_file_of_ctx_and_an_error_in_ours(tmp_path: Path, text: str) -> None:
    _, warnings = parse_config(text, environ={}, cwd=tmp_path, shown_as="ctx.toml", of_ctx=True)
    assert any(warning.startswith(f"ctx.toml: {UNKNOWN[text]}") for warning in warnings), warnings
    with pytest.raises(ConfigError, match=r"unknown key|is not set"):
        parse_config(text, environ={}, cwd=tmp_path)


def test_a_wrong_value_is_an_error_in_a_file_of_ctx_too(tmp_path: Path) -> None:
    for text in ("[db]\npath = 1", "db = 1", "connectors = 1", "[connectors]\nfilesystem = 1",
                 "[connectors.filesystem]\nx = 1", "agents = []"):  # fmt: skip
        with pytest.raises(ConfigError, match="expected"):
            parse_config(text, environ={}, cwd=tmp_path, of_ctx=True)


def test_a_scripts_own_keys_stay_as_they_are(tmp_path: Path) -> None:
    text = "[tools.script.t]\npath = 't.lua'\nurl = '${U:-x}'\n[tools.script.t.deep]\nfoo = 1"
    config, warnings = parse_config(text, environ={}, cwd=tmp_path, of_ctx=True)
    assert config.tools.script["t"].extra == {"url": "x", "deep": {"foo": 1}}
    assert warnings == ()


def test_patterns_of_a_file_of_ctx_mean_what_they_mean_there(tmp_path: Path) -> None:
    text = "[connectors.filesystem.a]\nroot = '.'\ninclude_globs = ['README.md']\n[connectors.filesystem.b]\nroot = '.'"
    config, _ = parse_config(text, environ={}, cwd=tmp_path, of_ctx=True)
    assert {name: entry.glob_style for name, entry in config.connectors.filesystem.items()} == {
        "a": "ctx", "b": "gitignore",
    }  # fmt: skip
    ours, _ = parse_config(text, environ={}, cwd=tmp_path)
    assert ours.connectors.filesystem["a"].glob_style == "gitignore"


def test_the_tables_that_are_given_are_not_changed() -> None:
    base, over = {"a": {"b": 1}, "c": [1]}, {"a": {"d": 2}, "c": [2]}
    assert merged(base, over) == {"a": {"b": 1, "d": 2}, "c": [2]}
    assert (base, over) == ({"a": {"b": 1}, "c": [1]}, {"a": {"d": 2}, "c": [2]})

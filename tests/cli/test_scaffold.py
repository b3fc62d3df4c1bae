"""`agent init` and `tool init`: what they write works as it is, and nothing is overwritten."""

import re
from pathlib import Path

import pytest
from lupa.lua54 import LuaRuntime

from cli.commands.agent import AGENTS
from cli.commands.tool import TOOLS
from cli.output import Exit
from cli.scripts.run import Kind
from cli.scripts.scaffold import EDITOR, begin, source
from engine.config import Config, LoadedConfig, parse_config

KINDS = pytest.mark.parametrize("kind", [AGENTS, TOOLS], ids=["agent", "tool"])


def add(project: Path, printed: str) -> None:
    """Do what the command says: add its lines to the configuration."""
    with (project / "engine.toml").open("a") as file:
        file.write(printed.partition("Add to config:")[2])


def test_agent_init_writes_an_agent_that_works_as_it_is(filled, tmp_path):
    ended = filled("agent", "init", "sre-helper")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == (
        "Created: agents/sre-helper.lua\n"
        "Created: agents/sre-helper_test.lua\n"
        f'For completion in your editor, set in lua-language-server: "workspace.library": ["{EDITOR}"]\n'
        "Add to config:\n"
        "\n"
        "  [agents.script.sre-helper]\n"
        '  path = "agents/sre-helper.lua"\n'
        "  timeout = 30\n"
    )
    add(tmp_path, ended.out)
    tested = filled("agent", "test", "sre-helper", "--arg", "topic=deployments", "--json")
    assert (tested.code, tested.err) == (0, "[info] read 2 documents about deployments\n")
    assert tested.json["outcome"] == "ok"
    assert tested.json["tools"] == ["search", "get"]
    assert tested.json["messages"][0]["content"].startswith("I have read 2 documents about deployments.")
    assert filled("agent", "test", "sre-helper", "--json").json["messages"] == []


def test_a_document_that_init_writes_works_as_it_is_by_its_name_and_by_its_path(filled, tmp_path):
    ended = filled("agent", "init", "helper", "--kind", "chatmd")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == (
        'Created: prompts/helper.chatmd\nAdd to config:\n\n  [agents.chatmd.helper]\n  path = "prompts/helper.chatmd"\n'
    )
    by_path = filled("agent", "test", "prompts/helper.chatmd", "--arg", "input=Hi", "--json")
    assert (by_path.code, by_path.err) == (0, "")
    assert by_path.json["messages"] == [{"role": "user", "content": "Hi"}]
    add(tmp_path, ended.out)
    tested = filled("agent", "test", "helper")
    assert (tested.code, tested.err) == (0, "")
    assert "Source: chatmd (prompts/helper.chatmd)\nTools: search, get\n" in tested.out
    again = filled("agent", "init", "helper", "--kind", "chatmd")
    assert (again.code, again.err) == (2, "error: prompts/helper.chatmd exists and is left as it is\n")
    (tmp_path / "prompts/helper.chatmd").write_text("\n<user>")
    broken = filled("agent", "test", "helper")
    assert broken.code == 2
    assert "did not load: unclosed: prompts/helper.chatmd:2:1: <user> is not closed" in broken.err
    (told,) = [row for row in filled("doctor", "--json").json["scripts"] if row["name"] == "helper"]
    assert (told["message"].split(":")[0], told["line"]) == ("unclosed", 2)


def test_connector_init_writes_a_connector_that_works_as_it_is(engine, tmp_path):
    (tmp_path / "engine.toml").write_text("")
    ended = engine("connector", "init", "notes.of")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("Created: connectors/notes.of.lua\n")
    add(tmp_path, ended.out)
    tried = engine("connector", "test", "notes.of", "--limit", "2")
    assert (tried.code, tried.err) == (0, "[info] up to note\t3\n")
    assert "note-1: Note 1\n    " in tried.out
    assert tried.out.endswith(
        "and 1 more item\ncheckpoint: 3\n3 items, 0 skipped, 0 deleted; a part of the source; nothing was written\n"
    )
    assert not (tmp_path / "data").exists()
    assert engine("connector", "test", "notes.of", "--checkpoint", "2", "--json").json["found"] == 1
    assert engine("sync", "all", "--json").json["sources"][0]["upserted"] == 3
    assert engine("sync", "all", "--json").json["sources"][0]["fetched"] == 0
    again = engine("connector", "init", "notes.of")
    assert (again.code, again.err) == (2, "error: connectors/notes.of.lua exists and is left as it is\n")
    assert engine("connector", "init", "../x").code == 2


def test_tool_init_writes_a_tool_that_works_as_it_is(filled, tmp_path):
    ended = filled("tool", "init", "look-up")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("Created: tools/look-up.lua\nCreated: tools/look-up_test.lua\n")
    assert ended.out.endswith('\n  [tools.script.look-up]\n  path = "tools/look-up.lua"\n  timeout = 30\n')
    add(tmp_path, ended.out)
    tested = filled("tool", "test", "look-up", "--json")
    assert (tested.code, tested.err) == (0, "[info] found 2 documents about deployment\n")
    assert tested.json["result"]["count"] == 2
    answer = filled("tool", "test", "look-up", "--param", "topic=deployments", "--param", "limit=1", "--json").json
    assert (answer["outcome"], answer["result"]["count"]) == ("ok", 1)
    assert set(answer["result"]["documents"][0]) == {"id", "title", "score"}
    refused = filled("tool", "test", "look-up", "--param", "limit=21")
    assert refused.code == 1
    assert "parameter 'limit'" in refused.err


@KINDS
def test_init_writes_below_the_root_of_the_configuration(tmp_path, kind):
    begin(kind, "first", LoadedConfig(Config(), None, tmp_path / "elsewhere"))
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.lua")}
    assert written == {f"elsewhere/{kind.section}/first{suffix}.lua" for suffix in ("", "_test")}


@KINDS
def test_init_never_overwrites(tmp_path, kind):
    script = tmp_path / kind.section / "mine.lua"
    script.parent.mkdir()
    script.write_text("-- mine\n")
    test = script.with_name("yours_test.lua")
    test.write_text("-- yours\n")
    begin(kind, "yours", LoadedConfig(Config(), None, tmp_path))
    assert test.read_text() == "-- yours\n"
    with pytest.raises(Exit, match=r"mine\.lua exists and is left as it is") as refused:
        begin(kind, "mine", LoadedConfig(Config(), None, tmp_path))
    assert refused.value.code == 2
    assert script.read_text() == "-- mine\n"


@pytest.mark.parametrize(
    ("kind", "name", "why"),
    [
        (AGENTS, "a/b", "'a/b' is not a name"),
        (TOOLS, "../evil", "'../evil' is not a name"),
        (TOOLS, "", "'' is not a name"),
        (AGENTS, "inline", "'inline' is a reserved name"),
        (TOOLS, "search", "'search' is the name of a builtin tool"),
    ],
)
def test_init_refuses_a_name_that_could_not_be_configured(tmp_path, kind, name, why):
    with pytest.raises(Exit, match=why) as refused:
        begin(kind, name, LoadedConfig(Config(), None, tmp_path))
    assert refused.value.code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_name_with_a_dot_is_a_quoted_key(tmp_path, capsys):
    begin(TOOLS, "jira.v2", LoadedConfig(Config(), None, tmp_path))
    text = capsys.readouterr().out.partition("Add to config:")[2]
    config, warnings = parse_config(text, environ={}, cwd=tmp_path)
    assert [entry.path for entry in config.tools.script.values()] == [tmp_path / "tools/jira.v2.lua"]
    assert list(config.tools.script) == ["jira.v2"]
    assert warnings == ()


def test_the_tests_that_init_writes_pass_and_cover_the_script(filled, tmp_path):
    for kind, name in (("agent", "sre.helper-1"), ("tool", "look-up")):
        filled(kind, "init", name)
    ended = filled("test", "agents", "tools", "--coverage")
    assert (ended.code, ended.err) == (0, "")
    assert re.search(r"^4 passed in ", ended.out, re.MULTILINE)
    assert re.search(r"^total .* 100\.0%$", ended.out, re.MULTILINE)


@KINDS
def test_every_line_of_a_template_is_filled_in_and_valid_lua(kind: Kind):
    text = source(kind, "some.name-1")
    assert re.findall(r"<[A-Z]+>", text) == []
    assert text.count("some.name-1") >= 3
    LuaRuntime().compile(text, name="template", mode="t")
    assert max(map(len, text.splitlines())) <= 120


def test_a_tool_that_is_not_in_the_configuration_is_tested_by_its_path(filled, tmp_path):
    (tmp_path / "my tools").mkdir()
    (tmp_path / "my tools/Jira (new).lua").write_text(
        """
        tool = { parameters = { { name = "n", type = "integer", default = 2, maximum = 9 } } }
        function tool.execute(params, context)
            return { n = params.n, hits = #context.search("deployments"), config = context.config }
        end
        """
    )
    tested = filled("tool", "test", "my tools/Jira (new).lua", "--json")
    assert (tested.code, tested.err) == (0, "")
    assert tested.json["result"] == {"n": 2, "hits": 2, "config": {}}
    shown = filled("tool", "test", "my tools/Jira (new).lua", "--param", "n=3").out
    assert shown.startswith("Tool: Jira--new-.lua\nSource: lua (my tools/Jira (new).lua)\n\nResult:\n")
    refused = filled("tool", "test", "my tools/Jira (new).lua", "--param", "n=10")
    assert (refused.code, refused.out) == (1, "")
    assert "parameter 'n'" in refused.err


def test_a_tool_by_path_has_no_grants_even_where_the_configuration_has_some_for_it(filled, tmp_path):
    (tmp_path / "peek.lua").write_text(
        "tool = {}\nfunction tool.execute() return { home = env.get('HOME') or json.null } end\n"
    )
    with (tmp_path / "engine.toml").open("a") as file:
        file.write('[tools.script.peek]\npath = "peek.lua"\nenv = ["HOME"]\n')
    granted = filled("tool", "test", "peek", "--json")
    assert granted.json["result"]["home"]
    alone = filled("tool", "test", "./peek.lua", "--json")
    assert alone.json["result"] == {"home": None}
    assert "HOME" in alone.err


def test_a_tool_by_path_is_limited_as_in_serving(filled, tmp_path):
    (tmp_path / "endless.lua").write_text("tool = {}\nfunction tool.execute() while true do end end\n")
    with (tmp_path / "engine.toml").open("a") as file:
        file.write("[limits]\ncpu_s = 0.2\n")
    ended = filled("tool", "test", "endless.lua", "--json")
    assert ended.code == 1
    assert ended.json["outcome"] == "cpu_limit"
    assert ended.json["error"]["limit"]["bound"] == 0.2


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (None, "no such file"),
        ("tool = {", "none.lua:1:"),
        ("agent = { resolve = print }", "neither sets the global 'tool'"),
    ],
)
def test_a_path_that_is_no_tool_is_exit_2_and_told_once(filled, tmp_path, written, why):
    if written is not None:
        (tmp_path / "none.lua").write_text(written)
    ended = filled("tool", "test", "none.lua")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: tool 'none.lua' did not load: ")
    assert why in ended.err
    assert len(ended.err.splitlines()) == 1

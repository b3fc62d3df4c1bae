"""Agents and tools from the command line: list, test, init, doctor, serve. These run scripts in real workers."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest
import warm_start

from agents.tools.builtin import SEARCH

pytestmark = pytest.mark.skipif(find_spec("agents.service") is None, reason="needs agents.service")

CONFIG = """
[connectors.filesystem.docs]
root = "docs"

[agents.code-reviewer]
description = "Reviews code changes against project conventions"
tools = ["search", "get"]
system_prompt = "You are a senior code reviewer.\\nBe kind."

[agents.script.greeter]
path = "agents/greeter.lua"
greeting = "Good day"

[agents.script.faulty]
path = "agents/faulty.lua"

[agents.script.endless]
path = "agents/endless.lua"
limits = {cpu_s = 0.2}
"""

GREETER = """
agent = {
    name = "greeter",
    description = "Greets a user who may deploy",
    tools = { "search", "get" },
    arguments = { { name = "who", description = "Whom to greet", required = true } },
}

function agent.resolve(args, config, context)
    log.info("greeting " .. args.who)
    local hits = context.search("deployments", { limit = 2 })
    local body = context.get(hits[1].id).body
    return {
        system = config.greeting .. ", " .. args.who .. ".\\nYou may deploy.",
        messages = {
            { role = "assistant", content = "I have read " .. #hits .. " documents.\\nAsk me." },
        },
    }
end

return agent
"""

FAULTY = """
agent = { description = "Fails", tools = {} }

function agent.resolve(args)
    error("the pier is closed")
end
"""

ENDLESS = """
agent = { description = "Never ends", tools = {} }

function agent.resolve(args)
    while true do end
end
"""


@pytest.fixture
def project(filled, tmp_path):
    """A project with agents of several kinds and a filled store."""
    (tmp_path / "agents").mkdir()
    (tmp_path / "engine.toml").write_text(CONFIG)
    (tmp_path / "agents/greeter.lua").write_text(GREETER)
    (tmp_path / "agents/faulty.lua").write_text(FAULTY)
    (tmp_path / "agents/endless.lua").write_text(ENDLESS)
    return filled


# ---- agents -----------------------------------------------------------------------------------------------------


def test_agent_list_is_in_aligned_columns_and_marks_scripts(project):
    ended = project("agent", "list")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert len({line.index("(tools: ") for line in lines}) == 1
    reviewer = next(line for line in lines if "code-reviewer" in line)
    assert re.fullmatch(
        r"  code-reviewer +Reviews code changes against project conventions +\(tools: search, get\)", reviewer
    )
    assert any(re.fullmatch(r"  greeter +Greets .* \(tools: search, get\) +\[lua\]", line) for line in lines)


def test_agent_list_as_json_is_the_rest_body(project):
    agents = {agent["name"]: agent for agent in project("agent", "list", "--json").json["agents"]}
    assert agents["greeter"] == {
        "name": "greeter",
        "description": "Greets a user who may deploy",
        "tools": ["search", "get"],
        "source": "lua",
        "arguments": [{"name": "who", "description": "Whom to greet", "required": True, "enum": None}],
        "title": None,
        "expose": ["prompt"],
    }
    assert agents["code-reviewer"]["source"] == "toml"


def test_agent_test_prints_the_prompt_and_what_it_cost(project):
    ended = project("agent", "test", "greeter", "--arg", "who=Ada")
    assert ended.code == 0
    assert ended.err == "[info] greeting Ada\n"
    head, _, tail = ended.out.partition("Resolved in ")
    assert head == (
        "Agent: greeter\n"
        "Source: lua (agents/greeter.lua)\n"
        "Tools: search, get\n"
        "\n"
        "System prompt (30 chars):\n"
        "  Good day, Ada.\n"
        "  You may deploy.\n"
        "\n"
        "Messages (1):\n"
        "  [assistant] I have read 2 documents. ...\n"
        "\n"
    )
    assert re.fullmatch(
        r"\d+ms \(1 search query, 1 document fetch\)\nOutcome: ok · CPU \d+\.\d ms · memory \d+\.\d MiB\n", tail
    )


def test_agent_test_as_json_is_the_answer_and_the_run(project):
    answer = project("agent", "test", "greeter", "--arg", "who=Ada", "--json").json
    assert answer["system"] == "Good day, Ada.\nYou may deploy."
    assert answer["tools"] == ["search", "get"]
    assert answer["messages"] == [{"role": "assistant", "content": "I have read 2 documents.\nAsk me."}]
    assert (answer["outcome"], answer["host_calls"]) == ("ok", 2)
    assert answer["run_id"]
    assert answer["wall_ms"] > 0
    assert answer["cpu_ms"] >= 0
    assert answer["memory_bytes"] > 0


def test_agent_test_works_for_an_inline_agent(project):
    ended = project("agent", "test", "code-reviewer")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("Agent: code-reviewer\nSource: toml\nTools: search, get\n")
    assert "  You are a senior code reviewer.\n  Be kind.\n" in ended.out
    answer = project("agent", "test", "code-reviewer", "--json").json
    assert (answer["outcome"], answer["run_id"], answer["host_calls"]) == ("ok", None, 0)


def test_a_failing_agent_is_exit_1_with_outcome_message_and_its_own_traceback(project):
    ended = project("agent", "test", "faulty")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("error: script_error: ")
    assert "the pier is closed" in ended.err
    assert "faulty.lua:5: in agent.resolve" in ended.err
    assert "Outcome: script_error · CPU " in ended.err
    ended = project("agent", "test", "faulty", "--json")
    assert ended.code == 1
    assert ended.json["outcome"] == "script_error"
    assert ended.json["error"]["code"] == "agent_error"


def test_an_agent_that_passes_a_limit_is_exit_1_and_the_limit_is_named(project):
    ended = project("agent", "test", "endless")
    assert ended.code == 1
    assert ended.err.startswith("error: cpu_limit: ")
    assert "limit: cpu_s = 0.2 s (set by the script)" in ended.err


def test_a_missing_argument_is_exit_1_and_named(project):
    ended = project("agent", "test", "greeter")
    assert ended.code == 1
    assert "who" in ended.err


@pytest.mark.parametrize("given", ["who", "=Ada", ""])
def test_an_argument_that_is_no_pair_is_exit_1(project, given):
    ended = project("agent", "test", "greeter", "--arg", given)
    assert (ended.code, ended.out) == (1, "")
    assert "expected NAME=VALUE" in ended.err


def test_an_argument_value_may_hold_anything(project):
    ended = project("agent", "test", "greeter", "--arg", "who=a=b c", "--json")
    assert ended.json["system"].startswith("Good day, a=b c.")


def test_an_unknown_agent_is_exit_2_with_the_nearest_name(project):
    ended = project("agent", "test", "greter")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.endswith("error: unknown agent 'greter'; did you mean 'greeter'?\n")


@pytest.mark.parametrize("name", ["draft", "agents/draft.lua"])
def test_a_script_without_an_entry_is_exit_2_with_the_entry(project, tmp_path, name):
    (tmp_path / "agents/draft.lua").write_text("agent = {}\n")
    ended = project("agent", "test", name)
    entry = '[agents.script.draft] with path = "agents/draft.lua"'
    assert (ended.code, ended.out) == (2, "")
    assert f"unknown agent {name!r}; agents/draft.lua is there: its entry in the configuration is {entry}" in ended.err


def test_an_agent_that_did_not_load_is_exit_2_and_says_why(project, tmp_path):
    (tmp_path / "agents/faulty.lua").write_text("agent = {\n")
    ended = project("agent", "test", "faulty")
    assert ended.code == 2
    assert "error: agent 'faulty' did not load: " in ended.err
    assert "agents/faulty.lua" in project("agent", "list").err


# ---- tools ------------------------------------------------------------------------------------------------------


def test_tool_list_shows_what_there_is(project):
    ended = project("tool", "list")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0].split() == ["TOOL", "TYPE", "DESCRIPTION"]
    assert any(re.fullmatch(r"search +built-in +\S.*", line) for line in lines)


def test_tool_list_as_json_is_the_rest_body(project):
    tools = {tool["name"]: tool for tool in project("tool", "list", "--json").json["tools"]}
    assert set(tools) == {"search", "get", "sources"}
    assert tools["search"] == SEARCH.model_dump()
    assert tools["search"]["builtin"] is True
    assert tools["search"]["parameters"]["required"] == ["query"]


def test_tool_test_shows_the_answer(project):
    ended = project("tool", "test", "search", "--param", "query=rust", "--param", "limit=1")
    assert (ended.code, ended.err) == (0, "")
    head, _, tail = ended.out.partition("Called in ")
    assert head.startswith("Tool: search\nSource: built-in\n\nResult:\n  {\n")
    assert json.loads(head.partition("Result:\n")[2])["results"][0]["title"] == "Alpha"
    assert re.fullmatch(r"\d+ms\nOutcome: ok · no script was run\n", tail)


def test_tool_test_as_json_is_the_answer_and_the_run(project):
    answer = project("tool", "test", "search", "--param", "query=rust", "--json").json
    assert answer["result"]["results"][0]["title"] == "Alpha"
    assert (answer["outcome"], answer["run_id"], answer["host_calls"]) == ("ok", None, 0)


def test_a_text_parameter_stays_text_whatever_it_looks_like(project):
    assert project("tool", "test", "search", "--param", "query=5", "--json").json["result"]["results"] == []


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (["query=x", "limit=two"], "--param limit: expected integer as JSON, got 'two'"),
        (["query=x", "query=y"], "--param query: given twice"),
        (["limit=2"], "query"),
        (["query=x", "limit=2.5"], "limit"),
        (["query=x", "mode=fuzzy"], "mode"),
        (["query=x", "mode=4"], "mode"),
    ],
)
def test_a_bad_parameter_is_exit_1(project, params, message):
    options = [option for param in params for option in ("--param", param)]
    ended = project("tool", "test", "search", *options)
    assert (ended.code, ended.out) == (1, "")
    assert message in ended.err


def test_an_unknown_tool_is_exit_2_with_the_nearest_name(project):
    ended = project("tool", "test", "serch")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.endswith("error: unknown tool 'serch'; did you mean 'search'?\n")


# ---- doctor -----------------------------------------------------------------------------------------------------


def test_doctor_says_that_everything_is_in_order(project):
    ended = project("doctor")
    assert (ended.code, ended.err) == (0, "")
    assert "✓ config       engine.toml\n" in ended.out
    assert "✓ store        data/engine.sqlite: 3 documents, 3 chunks" in ended.out
    assert "✓ seccomp" in ended.out
    report = project("doctor", "--json").json
    assert {"ok", "config", "store", "embedder", "extractor", "layers", "scripts"} <= set(report)
    assert (report["ok"], report["scripts"]) == (True, [])
    assert {layer["name"] for layer in report["layers"]} >= {"process", "seccomp", "rlimits"}
    assert all(set(layer) == {"name", "state", "detail", "required"} for layer in report["layers"])
    extractor = report["extractor"]
    assert extractor["ok"]
    assert extractor["message"].startswith("reads pdf, docx, pptx, xlsx, html; ")
    states = {layer["name"]: layer["state"] for layer in extractor["layers"]}
    assert states["seccomp"] == states["rlimits"] == states["process"] == "active"


def test_doctor_lists_every_script_that_did_not_load_and_is_exit_1(project, tmp_path):
    (tmp_path / "agents/faulty.lua").write_text("agent = {\n")
    (tmp_path / "agents/endless.lua").unlink()
    ended = project("doctor", "--json")
    assert ended.code == 1
    assert ended.json["ok"] is False
    scripts = {script["name"]: script for script in ended.json["scripts"]}
    assert set(scripts) == {"faulty", "endless"}
    assert scripts["faulty"]["path"] == "agents/faulty.lua"
    assert all(set(script) == {"kind", "name", "path", "line", "outcome", "message"} for script in scripts.values())
    assert {script["outcome"] for script in scripts.values()} == {"script_error"}
    assert project("agent", "test", "code-reviewer").code == 0  # the rest works
    assert "✗ " in project("doctor").out


def test_doctor_tells_of_an_unset_variable_by_key_and_name(project, tmp_path):
    with (tmp_path / "engine.toml").open("a") as file:
        file.write('[agents.script.x]\npath = "agents/greeter.lua"\ntoken = "${NO_SUCH_TOKEN}"\n')
    ended = project("doctor", "--json")
    assert ended.code == 1
    (script,) = ended.json["scripts"]
    assert script["name"] == "x"
    assert "agents.script.x.token" in script["message"]
    assert "NO_SUCH_TOKEN" in script["message"]


def test_doctor_warns_of_a_tool_that_does_not_exist(project, tmp_path):
    with (tmp_path / "engine.toml").open("a") as file:
        file.write('[agents.dreamer]\ndescription = ""\ntools = ["fly"]\nsystem_prompt = "p"\n')
    ended = project("doctor")
    assert ended.code == 0
    assert "! agent dreamer: its tool 'fly' does not exist\n" in ended.out


@pytest.mark.parametrize(
    ("configured", "warning"),
    [
        (
            "[embedding]\nprovider = 'openai'\nurl = 'http://127.0.0.1:1'\nmodel = 'm'\ndims = 3",
            "! embedding.provider: no answer of the service of embeddings: 127.0.0.1 does not accept connections",
        ),
        ("[agents.script.x]\npath = 'agents/greeter.lua'\nallow_host = []", "did you mean 'allow_hosts'?"),
    ],
)
def test_doctor_does_not_say_that_all_is_in_order_where_something_does_not_work(project, tmp_path, configured, warning):
    with (tmp_path / "engine.toml").open("a") as file:
        file.write(configured + "\n")
    ended = project("doctor")
    assert ended.code == 0
    assert warning in ended.out
    assert "Everything is in order." not in ended.out
    assert ended.out.endswith("The engine works; see the warnings (!) above.\n")


def test_a_script_by_its_path_gets_the_grants_and_configuration_of_the_tool_that_is_named(project, tmp_path):
    (tmp_path / "new.lua").write_text(
        "return { description = 'd', execute = function(params, context)"
        " return { context.config.url, env.get('LANG') ~= nil } end }"
    )
    with (tmp_path / "engine.toml").open("a") as file:
        file.write("[tools.script.old]\npath = 'gone.lua'\nurl = 'https://a.example'\nenv = ['LANG']\n")
    ended = project("tool", "test", "./new.lua", "--source", "old", "--json", LANG="C.UTF-8")
    assert (ended.code, ended.json["result"]) == (0, ["https://a.example", True])
    ended = project("tool", "test", "./new.lua", "--json", LANG="C.UTF-8")
    assert (ended.code, ended.json["result"]) == (0, [None, False])
    ended = project("tool", "test", "./new.lua", "--source", "odl")
    assert (ended.code, ended.err) == (2, "error: unknown tool 'odl'; did you mean 'old'?\n")


def test_text_that_was_cut_is_a_warning_of_the_run_and_counted(project, tmp_path):
    (tmp_path / "cut.lua").write_text("return { description = 'd', execute = function() return ('é'):sub(1, 1) end }")
    ended = project("tool", "test", "./cut.lua", "--json")
    assert (ended.code, ended.json["result"], ended.json["replaced"]) == (0, "\N{REPLACEMENT CHARACTER}", 1)
    assert "[warn] the answer of tool.execute: value is not UTF-8: one broken part became U+FFFD" in ended.err


def test_doctor_reports_another_embedder(project, tmp_path):
    with (tmp_path / "engine.toml").open("a") as file:
        file.write('[embedding]\nprovider = "ollama"\nurl = "http://127.0.0.1:1/"\nmodel = "m"\ndims = 3\n')
    report = project("doctor", "--json").json
    found = {key: report["embedder"][key] for key in ("ok", "provider", "model", "dims", "place")}
    assert found == {
        "ok": False, "provider": "ollama", "model": "ollama:m", "dims": 3, "place": "at http://127.0.0.1:1",
    }  # fmt: skip
    assert "does not accept connections" in report["embedder"]["message"]


def test_doctor_is_exit_2_and_still_json_where_the_configuration_or_the_store_cannot_be_used(engine, tmp_path):
    (tmp_path / "engine.toml").write_text("[db]\npth = 1\n")
    ended = engine("doctor", "--json")
    assert ended.code == 2
    assert (ended.json["ok"], ended.json["config"]["ok"]) == (False, False)
    assert "did you mean 'path'?" in ended.json["config"]["message"]
    (tmp_path / "engine.toml").write_text('[db]\npath = "engine.toml"\n')
    ended = engine("doctor", "--json")
    assert ended.code == 2
    assert (ended.json["ok"], ended.json["config"]["ok"], ended.json["store"]["ok"]) == (False, True, False)


def test_doctor_makes_nothing_where_there_is_nothing(engine, tmp_path):
    ended = engine("doctor")
    assert ended.code == 0
    assert "built-in defaults" in ended.out
    assert "does not exist yet" in ended.out
    assert list(tmp_path.iterdir()) == []


# ---- serve ------------------------------------------------------------------------------------------------------


def start(tmp_path: Path, *options: str) -> "subprocess.Popen[str]":
    return warm_start.Popen(
        [sys.executable, "-m", "cli.main", "serve", "--bind", "127.0.0.1:0", *options],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def url_of(process: "subprocess.Popen[str]") -> tuple[str, list[str]]:
    """The address that the server prints, and the lines before it."""
    assert process.stdout is not None
    before: list[str] = []
    for line in process.stdout:
        if found := re.search(r"listening on (http://\S+)", line):
            return found[1], before
        before.append(line)
    raise AssertionError("the server ended before it listened")


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_serve_answers_and_ends_with_0_on_a_signal(project, tmp_path, ending):
    with start(tmp_path, "mcp") as process:
        try:
            url, _ = url_of(process)
            with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
                assert json.load(answer)["status"] == "ok"
            process.send_signal(ending)
            _, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "Traceback" not in err


def test_serve_with_demo_fills_an_empty_store_first(engine, docs, tmp_path):
    for said in (["Filled filesystem:docs: 3 documents, 3 chunks\n"], []):  # only once
        with start(tmp_path, "--demo") as process:
            try:
                _, before = url_of(process)
                process.terminate()
                process.communicate(timeout=30)
            finally:
                process.kill()
        assert [line for line in before if line.startswith("Filled")] == said
        assert process.returncode == 0


def test_serve_strict_refuses_when_a_script_did_not_load(project, process, tmp_path):
    (tmp_path / "agents/faulty.lua").write_text("agent = {\n")
    ended = process("serve", "--bind", "127.0.0.1:0", "--strict")
    assert ended.code == 2


def test_serve_where_the_store_cannot_be_used_is_exit_2(process, tmp_path):
    (tmp_path / "engine.toml").write_text('[db]\npath = "engine.toml"\n')
    ended = process("serve", "--bind", "127.0.0.1:0")
    assert ended.code == 2

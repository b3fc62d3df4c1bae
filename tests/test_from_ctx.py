"""Everything of ctx runs: each difference that the page names is as it says; shapes of scripts as they are written for
ctx; and, where `CTXH_DIR` is a checkout of ctx's repository, its own agents, tools and configurations.
"""

import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pages import ROOT, read, section

from agents.agent import Call
from agents.service import Service, open_service
from engine.config import ConfigError, load_config, parse_config
from engine.errors import Code, Problem
from engine.tenant import DEFAULT_TENANT
from knowledge.connectors.filesystem import FilesystemConnector
from knowledge.sqlite.store import open_store
from knowledge.sync import sync

PAGE = "docs/scripting/coming-from-ctx.md"
CALL = Call(DEFAULT_TENANT)
DOCUMENT = "# Payments\n\nRunbook of the payments service — “naïve” retries → card declines.\n"


@dataclass(frozen=True)
class Shape:
    """One script: the rest of its entry, what it is called with, and its answer or a part of its error."""

    body: str
    given: dict[str, Any] | None = None
    expected: Any = None
    error: tuple[Code, str] | None = None
    entry: str = ""
    log: str = ""


def tool(body: str, parameters: str = "", **how: Any) -> Shape:
    declared = f"tool = {{ description = 'd', parameters = {{ {parameters} }} }}\n"
    return Shape(f"{declared}function tool.execute(params, context)\n{body}\nend", **how)


def agent(body: str, declared: str = "", **how: Any) -> Shape:
    head = f"agent = {{ description = 'd', tools = {{ 'search', 'get' }}, {declared} }}\n"
    return Shape(f"{head}function agent.resolve(args, config, context)\n{body}\nend", **how)


def prompt(system: str = "S", tools: tuple[str, ...] = ("search", "get"), messages: Any = ()) -> dict[str, Any]:
    return {"system": system, "tools": list(tools), "messages": list(messages)}


SHOUTS = '[tools.script.quiet]\npath = "quiet.lua"\n'
# What a row of the page says of ctx -> a script that shows what is so here.
ROWS: dict[str, Shape] = {
    "the table must be a global": Shape(
        "return { description = 'd', execute = function(params) return { v = params.v } end }", {"v": 1}, {"v": 1}
    ),
    "an agent that returns no `tools` has none": agent("return { system = 'S' }", expected=prompt()),
    "missing arguments of agents are not detected": agent(
        "return { system = 'S' }",
        "arguments = { { name = 'topic', required = true } }",
        error=(Code.BAD_REQUEST, "topic"),
    ),
    "parameters are checked over REST only; no defaults over MCP": tool(
        "return { n = params.n }", "{ name = 'n', type = 'integer', default = 7 }", expected={"n": 7}
    ),
    "a parameter takes `type`, `enum`, `default`": tool(
        "return { n = params.n }",
        "{ name = 'n', type = 'integer', minimum = 1 }",
        given={"n": 5.0},
        expected={"n": 5.0},
    ),
    "roles of messages are not checked": agent(
        "return { system = 'S', messages = { { role = 'bot', content = 'c' } } }", error=(Code.AGENT_ERROR, "role")
    ),
    "a text that is cut inside a character is lost with all of its message": agent(
        "local r = context.search('payments')[1] return { system = ('né'):sub(1, 2) }",
        expected=prompt("n\N{REPLACEMENT CHARACTER}"),
        log="is not UTF-8",
    ),
    "`context.search` has `mode`, `limit`, `source`": tool(
        "return #context.search({ query = 'payments', since = '2020-01-01', filters = { source = 'docs' } })",
        expected=1,
    ),
    "a `limit` of 0 finds nothing, one of 500 is accepted": tool(
        "return { #context.search('payments', { limit = 0 }), #context.search('payments', { limit = 500 }) }",
        expected=[1, 1],
        log="limit 500 is not from 1 to 100: 100 was used",
    ),
    "`hybrid` without an embedder is an error": tool(
        "return #context.search('payments', { mode = 'hybrid' })", expected=1, log="keyword"
    ),
    "a query finds documents with all words; some words are operators": tool(
        "return { #context.search('NOT payments'), #context.search('payments AND') }", expected=[1, 1]
    ),
    "matching words are marked `>>>` and `<<<`": tool(
        "return context.search('payments')[1].snippet:find('>>>', 1, true) == nil", expected=True
    ),
    "`context.get` has no `metadata`": tool(
        "return type(context.get(context.search('payments')[1].id).metadata)", expected="table"
    ),
    "agents have no `context.config`": agent(
        "return { system = context.config.who .. config.who }", entry="who = 'W'", expected=prompt("WW")
    ),
    "`json.encode` drops members beside list items, and writes null for NaN and functions": tool(
        "return { pcall(json.encode, { 1, a = 2 }), (pcall(json.encode, 0/0)), (pcall(json.encode, print)) }",
        expected=[False, False, False],
    ),
    "an empty list becomes `{}`": tool(
        "return { params.given, json.array({}), {} }", given={"given": []}, expected=[[], [], {}]
    ),
    "integers beyond 64 bits are errors": tool("return math.type(params.n)", given={"n": 1 << 70}, expected="float"),
    "`http`: a body is a string": tool("return { type(http.patch), type(http.delete) }", expected=["function"] * 2),
    "`base64.decode`, `crypto` and `fs.read` accept and return only text": tool(
        "return { #base64.decode(base64.encode('\\xff\\0')), #crypto.sha256('\\xff') }", expected=[2, 64]
    ),
    "`fs.list` returns absolute paths": tool(
        "for _, entry in ipairs(fs.list('.')) do if entry.path:sub(1, 1) == '/' then return false end end"
        " return #fs.read('beside.txt')",
        expected=6,
    ),
    "`sleep` of a negative number ends the process": tool("sleep(-1)", error=(Code.TOOL_ERROR, "from 0 to 86400")),
    "`sleep` and `http` continue after the timeout": tool(
        "sleep(60)", entry="timeout = 0.2", error=(Code.TIMEOUT, "0.2 s")
    ),
    "dates in the configuration are nil": tool(
        "return context.config.day", entry="day = 2026-01-31", expected="2026-01-31"
    ),
    "host functions do not exist while a file is loaded": Shape(
        "local loaded = json.encode({ 1 }) .. base64.encode('a')\n"
        "tool = { description = 'd', execute = function() return loaded end }",
        expected="[1]YQ==",
    ),
    "`load`, `package`, `string.dump`, most of `collectgarbage`": tool(
        "return { load == nil, package == nil, string.dump == nil, collectgarbage('count') > 0 }", expected=[True] * 4
    ),
    "`require` runs any file of the host that Lua's path finds": tool(
        "local ok, e = pcall(require, 'lib.x') return { ok, e:find('own package') ~= nil, require('./beside') }",
        expected=[False, True, "beside"],
    ),
    "a timeout": tool("while true do end", entry="limits = { cpu_s = 0.1 }", error=(Code.CPU_LIMIT, "0.1 s of CPU")),
    "the error code depends on words in the message (`not found` is 404)": tool(
        "error('user not found')", error=(Code.TOOL_ERROR, "user not found")
    ),
    "messages contain paths of the host": tool("error('x')", error=(Code.TOOL_ERROR, ".lua:3: x")),
}
# Rows that another test of this file holds, or of another.
ELSEWHERE = {
    "a tool outside the agent's list can be called": "test_a_tool_outside_of_the_agents_list_is_refused",
    "`http`: proxies of the environment, any size, redirects to any host":
        "tests/engine/test_http_calls.py",
    "`${VAR}` that is unset is `\"\"`": "test_a_variable_that_is_not_set_keeps_its_script_alone_from_loading",
    "unknown keys are ignored": "tests/engine/test_config_of_ctx.py",
    "a pattern matches the whole path: `README.md` is the one at the root": "tests/knowledge/test_globs.py",
    "12 hits by default": "test_twelve_hits_are_the_default",
    'every tool answers `{"result": ...}`': "tests/server/test_rest.py",
    "`tool test PATH --source NAME` gives a script a configuration": "tests/cli/test_scripts.py",
    "`registry`, `vector-index`": "tests/cli/test_main.py",
    "no embedder unless one is configured": "tests/cli/test_store.py",
    "`hybrid_alpha` is one weight for all queries, 0.6 by default": "tests/knowledge/test_fusion.py",
    "`shallow` of a git connector gives every file the newest commit's time": "tests/knowledge/test_git.py",
    "connectors in Lua: any host, every variable": "tests/cli/test_scanning.py",
    "S3 over HTTPS only, keys from `AWS_*` only": "tests/knowledge/test_s3.py",
}  # fmt: skip

# Scripts as people write them for ctx: each runs as it is.
OURS: dict[str, Shape] = {
    "a fixed prompt": agent("return { system = 'Review code.' }", expected=prompt("Review code.")),
    "an argument with a default of its own": agent(
        "return { system = 'About ' .. (args.topic or 'everything') }", expected=prompt("About everything")
    ),
    "a number from the configuration as text": agent(
        "return { system = tostring(tonumber(config.search_limit) or 8) }", entry='search_limit = "5"',
        expected=prompt("5"),
    ),
    "context in a message": agent(
        "local found = context.search(args.q, { mode = 'keyword', limit = 3 })\nlocal lines = {}\n"
        "for i, r in ipairs(found) do lines[i] = string.format('%d. %s', i, r.title or 'untitled') end\n"
        "return { system = 'S', messages = { { role = 'assistant', content = table.concat(lines, '\\n') } } }",
        given={"q": "payments"}, expected=prompt(messages=[{"role": "assistant", "content": "1. Payments"}]),
    ),
    "snippets cut at a number of bytes": agent(
        "local r = context.search('payments')[1]\nlocal parts = {}\n"
        "for n = 1, #r.snippet do parts[#parts + 1] = '> ' .. r.snippet:sub(1, n) end\n"
        "return { system = table.concat(parts, '\\n'):sub(1, 2) }", expected=prompt("> "),
    ),
    "several queries, each document once": agent(
        "local seen, all = {}, {}\nfor _, q in ipairs({ 'payments', 'card', 'runbook' }) do\n"
        "for _, r in ipairs(context.search(q, { mode = 'hybrid', limit = 8 })) do\n"
        "if not seen[r.id] then seen[r.id] = true table.insert(all, r) end end end\nreturn { system = '' .. #all }",
        expected=prompt("1"),
    ),
    "the body of the best hit": agent(
        "local r = context.search('payments')[1]\nlocal doc = context.get(r.id)\n"
        "return { system = doc.title .. ' ' .. #doc.chunks }", expected=prompt("Payments 1"),
    ),
    "a document that is gone": agent(
        "local ok, e = pcall(context.get, 'none')\nreturn { system = tostring(ok) }", expected=prompt("false")
    ),
    "fewer tools than declared": agent(
        "return { system = 'S', tools = { 'search' } }", expected=prompt(tools=("search",))
    ),
    "the sources": agent(
        "local names = {}\nfor _, s in ipairs(context.sources()) do names[#names + 1] = s.name end\n"
        "return { system = table.concat(names, ',') }", expected=prompt("filesystem:docs"),
    ),
    "messages in a local list": agent(
        "local messages = {}\ntable.insert(messages, { role = 'user', content = 'a' })\n"
        "return { system = 'S', tools = {}, messages = messages }",
        expected=prompt(tools=(), messages=[{"role": "user", "content": "a"}]),
    ),
    "an echo": tool(
        "return { message = params.message, repeated = params.message:rep(2) }",
        "{ name = 'message', type = 'string', required = true, description = 'm' }",
        given={"message": "hi"}, expected={"message": "hi", "repeated": "hihi"},
    ),
    "an enumeration with a default": tool(
        "return params.priority", "{ name = 'priority', type = 'string', enum = { 'Low', 'High' }, default = 'Low' }",
        expected="Low",
    ),
    "a value beside the enumeration": tool(
        "return 1", "{ name = 'p', type = 'string', enum = { 'a' } }", given={"p": "b"},
        error=(Code.BAD_REQUEST, "parameter 'p' must be one of [\"a\"], got \"b\""),
    ),
    "a missing parameter": tool(
        "return 1", "{ name = 'p', type = 'string', required = true }",
        error=(Code.BAD_REQUEST, "missing required parameter: p"),
    ),
    "settings of the entry": tool(
        "local c = context.config return { c.url, c.deep.list[2], c.flag }",
        entry='url = "${URL:-https://a.example}"\nflag = true\ndeep = { list = [1, 2] }',
        expected=["https://a.example", 2, True],
    ),
    "an error object": tool("return { error = 'no such ticket' }", expected={"error": "no such ticket"}),
    "nothing": tool("log.info('nothing to do')", expected=None, log="nothing to do"),
    "related documents": tool(
        "local related = {}\nfor _, r in ipairs(context.search(params.title, { limit = 3 })) do\n"
        "table.insert(related, { title = r.title, id = r.id ~= nil }) end\nreturn related",
        given={"title": "payments"}, expected=[{"title": "Payments", "id": True}],
    ),
    "JSON there and back": tool(
        "local v = json.parse('{\"a\": [1, 2.5, \"x\", true]}')\nreturn json.encode(v)",
        expected='{"a":[1,2.5,"x",true]}',
    ),
    "a host that was not granted": tool(
        "local ok, e = pcall(http.get, 'https://api.example.com/') return { ok, e:match('allow_hosts') }",
        expected=[False, "allow_hosts"],
    ),
    "a variable that was not granted": tool("return env.get('HOME') or 'none'", expected="none", log="env"),
    "a hash as ctx has it": tool(
        "return crypto.hmac_sha256('key', 'text')",
        expected="6afa9046a9579cad143a384c1b564b9a250d27d6f6a63f9f20bf3a7594c9e2c6",
    ),
}  # fmt: skip


def kind_of(shape: Shape) -> str:
    return "agents" if "agent.resolve" in shape.body else "tools"


@asynccontextmanager
async def opened(folder: Path, text: str = "", name: str = "ctx.toml") -> AsyncIterator[Service]:
    """The service of a folder whose configuration is ctx's, with one document in its store."""
    (folder / "docs").mkdir(exist_ok=True)
    (folder / "docs/payments.md").write_text(DOCUMENT)
    head = '[db]\npath = "store.sqlite"\n[connectors.filesystem.docs]\nroot = "docs"\n'
    (folder / name).write_text(head + text)
    loaded = load_config(folder / name, environ={}, cwd=folder)
    async with open_store(loaded.config.db.path, create=True) as store:
        await sync(store, "filesystem:docs", FilesystemConnector(folder / "docs"))
    async with open_service(loaded) as service:
        yield service


async def outcome(shape: Shape, service: Service, name: str) -> tuple[Any, list[str]]:
    """The answer, or the error's code and message; and the log."""
    given = shape.given or {}
    try:
        if kind_of(shape) == "agents":
            resolved = await service.resolve(name, given, CALL)
            answer, run = resolved.prompt.model_dump(), resolved.run
        else:
            called = await service.call_tool(name, given, CALL)
            answer, run = called.value, called.run
    except Problem as problem:
        return (problem.code, problem.message), []
    assert run is not None
    return answer, [line.text for line in run.logs]


async def test_scripts_of_ctx_do_here_what_the_page_says(tmp_path: Path) -> None:
    shapes = {f"row{number}": (what, shape) for number, (what, shape) in enumerate({**ROWS, **OURS}.items())}
    (tmp_path / "beside.txt").write_text("beside")
    (tmp_path / "beside.lua").write_text("return 'beside'")
    text = ""
    for name, (_, shape) in shapes.items():
        (tmp_path / f"{name}.lua").write_text(shape.body)
        text += f'[{kind_of(shape)}.script.{name}]\npath = "{name}.lua"\n{shape.entry}\n'
    wrong = []
    async with opened(tmp_path, text) as service:
        assert [failure.message for failure in service.failures] == []
        for name, (what, shape) in shapes.items():
            answer, lines = await outcome(shape, service, name)
            if shape.error is not None:
                right = isinstance(answer, tuple) and answer[0] is shape.error[0] and shape.error[1] in answer[1]
            else:
                right = json.dumps(answer, sort_keys=True) == json.dumps(shape.expected, sort_keys=True)
            if not right or (shape.log and not any(shape.log in line for line in lines)):
                wrong.append((what, answer, lines))
    assert not wrong, "; ".join(map(str, wrong))


def test_every_difference_of_the_page_is_held_by_a_test() -> None:
    rows = [
        row[0] for heading in ("What differs", "Configuration and commands") for row in section(PAGE, heading).rows()
    ]
    assert sorted(rows) == sorted([*ROWS, *ELSEWHERE])
    for held_by in ELSEWHERE.values():
        assert held_by in globals() or (ROOT / held_by).is_file(), held_by
    assert len(OURS) >= 20
    assert "held by a test" in read(PAGE)


async def test_a_tool_outside_of_the_agents_list_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.lua").write_text(agent("return { system = 'S' }").body)
    async with opened(tmp_path, '[agents.script.a]\npath = "a.lua"\n') as service:
        with pytest.raises(Problem) as refused:
            await service.call_tool("sources", {}, CALL, agent="a")
    assert refused.value.code is Code.TOOL_NOT_ALLOWED


async def test_a_variable_that_is_not_set_keeps_its_script_alone_from_loading(tmp_path: Path) -> None:
    (tmp_path / "t.lua").write_text(tool("return 1").body)
    text = '[tools.script.{0}]\npath = "t.lua"\nurl = "{1}"\n'
    async with opened(tmp_path, text.format("a", "${NOT_SET}") + text.format("b", "${NOT_SET:-}")) as service:
        assert [failure.name for failure in service.failures] == ["a"]
        assert (await service.call_tool("b", {}, CALL)).value == 1


def test_twelve_hits_are_the_default() -> None:
    assert parse_config("", environ={}, cwd=ROOT)[0].retrieval.final_limit == 12


# ---- ctx's own ----------------------------------------------------------------------------------------------------

CHECKOUT = os.environ.get("CTXH_DIR")
needs_checkout = pytest.mark.skipif(not CHECKOUT, reason="CTXH_DIR is not set: the path of a checkout of ctx")
TOPICS = (
    "sqlite", "search", "agents", "embeddings", "vector index", "lua", "chunking", "deploy", "registry", "sync",
    "configuration", "MCP", "release", "retrieval quality", "store abstraction",
)  # fmt: skip
# Keys of tables in ctx's documents that its configuration has, to tell a configuration from other TOML.
_TABLE = re.compile(r"^\[(db|chunking|retrieval|embedding|server|connectors|tools|agents|vector_index)\b", re.MULTILINE)


def checkout(below: str) -> list[Path]:
    return sorted(Path(CHECKOUT or "/nowhere").glob(below))


@needs_checkout
async def test_every_agent_of_ctx_answers_about_every_topic(tmp_path: Path) -> None:
    scripts = checkout("agents/*.lua")
    assert len(scripts) >= 6
    text = "".join(f'[agents.script.{path.stem}]\npath = "{path}"\n' for path in scripts)
    async with opened(tmp_path, text) as service:
        assert not service.failures
        async with open_store(tmp_path / "store.sqlite") as store:
            connector = FilesystemConnector(Path(CHECKOUT or "") / "docs", include_globs=["**/*.md"])
            await sync(store, "filesystem:ctx", connector)
        wrong, answered = [], 0
        for path in scripts:
            declared = next(info for info in service.list_agents(DEFAULT_TENANT) if info.name == path.stem)
            for topic in TOPICS:
                given = {argument.name: topic for argument in declared.arguments if argument.required}
                try:
                    resolved = await service.resolve(path.stem, given or {"topic": topic}, CALL)
                except Problem as problem:
                    wrong.append(f"{path.stem} {topic}: {problem.message}")
                    continue
                answered += 1
                assert resolved.prompt.system
                hybrid = [line for line in (resolved.run.logs if resolved.run else ()) if "hybrid" in line.text]
                assert len(hybrid) <= 1
    assert not wrong, "; ".join(map(str, wrong))
    assert answered == len(scripts) * len(TOPICS)


@needs_checkout
async def test_every_tool_of_ctx_loads_and_its_echo_answers(tmp_path: Path) -> None:
    scripts = checkout("crates/*/examples/tools/*.lua") + checkout("crates/*/tests/fixtures/*tool*.lua")
    assert len(scripts) >= 3
    text = "".join(f'[tools.script.{path.stem}]\npath = "{path}"\n' for path in scripts)
    async with opened(tmp_path, text) as service:
        assert not service.failures
        assert (await service.call_tool("echo", {"message": "hi"}, CALL)).value


@needs_checkout
def test_every_configuration_of_ctx_is_read() -> None:
    files = checkout("config/*.toml") + checkout("demo/config/*.toml")
    assert len(files) >= 3
    for path in files:
        config, _ = parse_config(path.read_text(), environ={}, cwd=path.parent, shown_as=path.name, of_ctx=True)
        assert config.connectors.labels()


@needs_checkout
def test_every_snippet_of_a_configuration_in_the_documents_of_ctx_is_read() -> None:
    read_count, fragments, wrong = 0, 0, []
    for path in checkout("docs/**/*.md") + checkout("site/content/**/*.md"):
        for snippet in re.findall(r"^```toml\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE):
            if not _TABLE.search(snippet):
                continue
            read_count += 1
            # Of a key that ctx ignores, the variable need not be set.
            given = [] if "access_key_id" in snippet else re.findall(r"\$\{(\w+)\}", snippet)
            try:
                parse_config(snippet, environ=dict.fromkeys(given, "x"), cwd=ROOT, of_ctx=True)
            except ConfigError as error:
                if "required key" in str(error) or "not valid TOML" in str(error):
                    fragments += 1
                else:
                    wrong.append(f"{path.name}: {error}")
    assert not wrong, "; ".join(wrong)
    assert read_count > 50
    assert fragments <= 3

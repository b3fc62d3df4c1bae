"""What the pages say to authors of scripts holds: every name has its page, every example runs, every error is as shown.

A script in `docs/scripting/*.md` runs under the entry of the configuration that stands above it on its page, and under
nothing else. `api.example.com` of the examples is a server on loopback here, by that address.
"""

import json
import os
import re
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pages import (
    PAGES,
    ROOT,
    SCRIPT_PAGES,
    SCRIPTING,
    Block,
    blocks,
    first_quoted,
    followed,
    quoted,
    read,
    section,
    sections,
)
from standin import Asked, Said, stand_in

from agents.agent import AgentArgument, AgentPrompt, Call
from agents.code import calls
from agents.code.describing import DESCRIBE_TIMEOUT_S
from agents.kinds.lua import COMPLETE_S
from agents.scanning import MAX_CHECKPOINT, MAX_ITEMS, MAX_SCAN_BYTES
from agents.service import Service, open_service
from agents.shapes.schema import MAX_SCHEMA_NODES
from agents.shapes.shape import AgentDeclaration, ToolAnnotations, ToolDeclaration
from cli.commands.sync import fill_if_empty
from engine.bridge import env, fs, http, knowledge, kv, scan, sleep
from engine.config import ScriptEntry, load_config
from engine.engine import MAX_DEPTH
from engine.errors import Code, Problem, amount
from engine.run import Hearers, LogLine
from engine.tenant import DEFAULT_TENANT
from engine.workers.protocol import MAX_PROGRESS, MAX_SIDE_BY_SIDE
from knowledge.store import Document, Hit, SourceInfo
from sandbox import allowlist
from sandbox.wire.limits import KIB, LINE_BYTES, MIB, SPECS
from sandbox.wire.outcome import Outcome
from sandbox.wire.surface import HOST_CALLS
from server.problems import STATUS
from storage.kv_rows import ENTRY_BYTES

STANDARD_LIBRARY = "docs/scripting/standard-library.md"
# About all of the others; not the page of one thing.
COMING_FROM_CTX = "docs/scripting/coming-from-ctx.md"
HOST = "api.example.com"
# What only connectors have; the scripts of these tests are agents and tools.
OF_CONNECTORS = {"context.emit", "context.deleted", "context.checkpoint"}
OF_TURNS = {name for name in HOST_CALLS if name.startswith("context.team.")}


def page_of(name: str) -> str:
    return f"docs/scripting/{name}.md"


# ---- lists ------------------------------------------------------------------------------------------------------


def test_every_limit_is_in_the_table_with_its_unit_default_ceiling_and_what_the_script_sees() -> None:
    expected = [
        [f"`{s.name}`", s.unit, amount(s.default, s.unit), amount(s.ceiling, s.unit), s.script_sees]
        for s in SPECS.values()
    ]
    assert section(SCRIPTING, "Limits").rows() == expected


def test_every_outcome_is_in_the_table_with_what_a_caller_is_told() -> None:
    rows = {quoted(row[0])[0]: row[2] for row in section(SCRIPTING, "Outcomes").rows()}
    assert list(rows) == [outcome.value for outcome in Outcome]
    told = {Outcome.OK: "200", Outcome.SCRIPT_ERROR: f"`agent_error` {STATUS[Code.AGENT_ERROR]}"}
    for code in set(Code) & {*Outcome}:
        told[Outcome(code)] = f"`{code}` {STATUS[Code(code)]}"
    assert {outcome: rows[outcome] for outcome in told} == told


def kept() -> set[str]:
    return {
        name if library == "basic" else f"{library}.{name}"
        for library_cell, names in section(STANDARD_LIBRARY, "As in Lua 5.4").rows()
        for library in [library_cell.strip("`")]
        for name in quoted(names)
    }


def wrapped() -> set[str]:
    return set(first_quoted(section(STANDARD_LIBRARY, "With a difference").rows()))


def base(shown: str) -> str:
    """The name in what a page shows of a call: `http.get` of `http.get(url, options)`, `context.tools` of its NAME."""
    name = shown.partition("(")[0]
    return name if name.startswith("context.team.") else ".".join(name.split(".")[:2])


@cache
def names_of(page: str) -> frozenset[str]:
    """What a page is about, by its headings."""
    code = {base(shown) for found in sections(page) for shown in found.code}
    return frozenset(name for name in code if "." in name or name in allowlist.ADDED or name == "print")


@cache
def documented() -> frozenset[str]:
    """Everything that has a heading on a page of its own."""
    return frozenset(name for page in SCRIPT_PAGES for name in names_of(page))


def test_every_name_of_lua_is_listed_as_the_allow_list_has_it() -> None:
    assert kept() == {name.path for name in allowlist.NAMES if name.action == "keep"}
    assert wrapped() == {name.path for name in allowlist.NAMES if name.action == "wrap"}
    removed = {name: why for names, why in section(STANDARD_LIBRARY, "Removed").rows() for name in quoted(names)}
    assert removed == {name.path: name.reason for name in allowlist.NAMES if name.action == "remove"}


def test_every_added_name_is_in_the_list_and_has_its_heading_on_a_page() -> None:
    listed = {base(shown): row for row in section(SCRIPTING, "Added").rows() for shown in quoted(row[0])}
    assert set(listed) == set(allowlist.ADDED)
    assert {name for name in documented() if not name.startswith("context.")} == {*allowlist.ADDED, "print"}


def test_every_name_in_the_lists_leads_to_its_page() -> None:
    for title in ("The context", "Added"):
        for row in section(SCRIPTING, title).rows():
            (link,) = re.findall(r"\]\((scripting/[\w-]+\.md)\)", row[0])
            assert {base(shown) for shown in quoted(row[0])} <= names_of(f"docs/{link}")


def test_every_page_says_what_grants_it_what_it_counts_as_and_which_limits_hold() -> None:
    for page in set(SCRIPT_PAGES) - {COMING_FROM_CTX}:
        said = dict(sections(page)[0].rows())
        assert list(said) == ["Granted by", "Host calls", "Limits", "In callbacks of `table.sort`, `string.gsub`"], page
        grants = [token.partition(" = ")[0] for token in quoted(said["Granted by"]) if " = " in token]
        assert set(grants) <= set(ScriptEntry.model_fields), page
        limits = [name for name in quoted(said["Limits"]) if "_" in name and name != "math.random"]
        assert set(limits) <= set(SPECS), page
        assert said["Host calls"].startswith("one each") == bool(names_of(page) & set(HOST_CALLS)), page
        assert ("host_calls" in limits) == bool(
            names_of(page) & set(HOST_CALLS) or page == page_of("context-parallel")
        ), page


def test_every_field_of_the_two_tables_and_of_an_agents_answer_is_in_a_table() -> None:
    declared = set(first_quoted(section(SCRIPTING, "The agent table").rows()))
    fields_of = {"resolve", "complete", "on_messages", *AgentDeclaration.model_fields} - {
        "functions"
    }  # that one is the engine's own
    assert {name for name in declared if "[" not in name} == fields_of
    assert {name.partition(".")[2] for name in declared if "[" in name} == set(AgentArgument.model_fields)
    answer = set(first_quoted(section(SCRIPTING, "resolve(args, config, context)").rows(1)))
    assert {name for name in answer if "[" not in name} == set(AgentPrompt.model_fields)
    tool = {quoted(row[0])[0]: row[3] for row in section(SCRIPTING, "Tools").rows()}
    assert set(tool) == {"execute", *ToolDeclaration.model_fields} - {"functions"}
    assert quoted(tool["annotations"]) == [field.alias for field in ToolAnnotations.model_fields.values()]


def test_every_field_that_loading_reads_is_named() -> None:
    source = (ROOT / "sandbox/prelude/describe.lua").read_text()
    described = re.search(r"local DESCRIBED = \{(.*?)\}", source, re.DOTALL)
    assert described is not None
    names = set(re.findall(r'"(\w+)"', described[1]))
    assert names <= set(quoted(section(SCRIPTING, "The agent table").text))


@pytest.mark.parametrize(
    ("page", "title", "names"),
    [
        ("context-search", "Arguments", knowledge.SearchArguments.__struct_fields__),
        ("context-search", "Answer", [field.name for field in fields(Hit)]),
        ("context-get", "Arguments", knowledge.GetArguments.__struct_fields__),
        ("context-get", "Answer", [field.name for field in fields(Document)]),
        ("context-sources", "Answer", ["name", *(field.name for field in fields(SourceInfo))]),
        ("context-tools", "Arguments", calls.CallToolArguments.__struct_fields__),
        ("context-emit", "Arguments", ["item", "checkpoint"]),
        ("context-emit", "context.deleted(source_id)", scan.DeletedArguments.__struct_fields__),
        ("env", "Arguments", env.GetArguments.__struct_fields__),
        ("sleep", "Arguments", sleep.SleepArguments.__struct_fields__),
        ("kv", "kv.get(key)", kv.GetArguments.__struct_fields__),
        ("kv", "kv.set(key, value, options)", kv.SetArguments.__struct_fields__),
        ("kv", "kv.delete(key, options)", kv.DeleteArguments.__struct_fields__),
        ("kv", "kv.list(prefix, options)", kv.ListArguments.__struct_fields__),
        ("kv", "kv.incr(key, by)", kv.IncrArguments.__struct_fields__),
        ("fs", "fs.read(path)", fs.ReadArguments.__struct_fields__),
        ("fs", "fs.list(path, glob)", fs.ListArguments.__struct_fields__),
        (
            "http",
            "http.post(url, body, options), http.put(url, body, options), http.patch(url, body, options)",
            http.HttpArguments.__struct_fields__,
        ),
    ],
)
def test_every_argument_and_field_of_a_host_call_is_in_its_table(page: str, title: str, names: list[str]) -> None:
    listed = [name.removeprefix("options.") for name in first_quoted(section(page_of(page), title).rows())]
    assert sorted(listed) == sorted(names)


def test_every_field_of_an_entry_of_a_folder_is_in_its_table(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (entry,) = fs.list_folder(tmp_path, (), None)
    assert first_quoted(section(page_of("fs"), "fs.list(path, glob)").rows(1)) == list(entry)


def default(limit: str) -> str:
    return amount(SPECS[limit].default, SPECS[limit].unit)


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("context-emit", f"at most {MAX_CHECKPOINT // KIB} KiB as JSON"),
        ("context-emit", f"at most {MAX_ITEMS:,} items and {MAX_SCAN_BYTES // MIB} MiB"),
        ("context-parallel", f"up to {MAX_SIDE_BY_SIDE} calls of a run are in flight at once"),
        ("context-parallel", f"{http.AT_ONCE} `http` and {fs.AT_ONCE} `fs` calls of one tenant"),
        ("context-progress", f"the first {MAX_PROGRESS:,} reports"),
        ("context-search", f"1 to {knowledge.MAX_HITS}"),
        ("context-tools", f"call tools, {MAX_DEPTH} deep"),
        ("fs", f"{fs.AT_ONCE} calls of one tenant"),
        ("fs", f"A path has at most {fs.MAX_PATH_BYTES:,} bytes, a name {fs.MAX_NAME_BYTES}"),
        ("fs", f"more than {fs.MAX_ENTRIES:,} entries"),
        ("fs", f"At most {fs.MAX_GLOB_CHARACTERS} characters"),
        ("fs", f"`fs_bytes` ({default('fs_bytes')} by default)"),
        ("http", f"{http.AT_ONCE} calls of one tenant"),
        ("http", f"at most {http.MAX_REQUEST_HEADERS}, of {http.MAX_REQUEST_HEADER_BYTES // KIB} KiB in all"),
        ("http", f"| `{http.DEFAULT_TIMEOUT_S:g}` | seconds for the whole call"),
        ("http", f"{http.MAX_JSON_VALUES:,} values"),
        ("http", f"Up to {http.MAX_REDIRECTS} are followed"),
        ("http", f"`http_bytes` each ({default('http_bytes')} by default)"),
        ("log", f"`log_bytes` ({default('log_bytes')} by default)"),
        ("log", f"counts {LINE_BYTES} bytes more than its text"),
        ("sleep", f"0 to {sleep.MAX_SECONDS:,}"),
        ("kv", f"texts of 1 to {kv.MAX_KEY_BYTES} bytes"),
        ("kv", f"at most {kv.MAX_VALUE_BYTES // KIB} KiB, encoded as MessagePack"),
        ("kv", f"those of its value, and {ENTRY_BYTES} more"),
        ("kv", f"after so many seconds, at most {kv.MAX_TTL_S:,}"),
        ("kv", f"| `{kv.LISTED}` | at most so many, 1 to {kv.MAX_LISTED:,}"),
        (SCRIPTING, f"of at most {MAX_SCHEMA_NODES:,} values"),
        (SCRIPTING, f"but for {COMPLETE_S:g} seconds at most"),
        (SCRIPTING, f"to read the table (at most {DESCRIBE_TIMEOUT_S:g} seconds)"),
    ],
)
def test_every_figure_is_the_one_in_the_code(page: str, sentence: str) -> None:
    path = page if page == SCRIPTING else page_of(page)
    assert sentence in " ".join(read(path).split())


def test_the_headers_that_cross_hosts_are_those_that_are_listed() -> None:
    listed = quoted(section(page_of("http"), "Redirects").text.partition("a redirect carries only these headers:")[2])
    assert {name.lower() for name in listed[: len(http._HARMLESS)]} == http._HARMLESS


# ---- scripts that run -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Script:
    """A script as it is configured. `section` is `agents` or `tools`; `keys` are the lines of its entry but `path`."""

    name: str
    section: str
    source: str
    keys: str = ""


@dataclass(frozen=True)
class Entry:
    """An entry of the configuration as a page shows it."""

    section: str = ""
    name: str = ""
    keys: str = ""


def entry_of(block: Block) -> Entry | None:
    """The one script that a TOML block configures, if it does nothing else."""
    match = re.fullmatch(r"\[(agents|tools)\.script\.([\w-]+)\]\n(.*)", block.text, re.DOTALL)
    if match is None or re.search(r"^\[", match[3], re.MULTILINE):
        return None
    return Entry(match[1], match[2], re.sub(r"^path = .*\n", "", match[3], flags=re.MULTILINE))


def with_entries(page: str) -> Iterator[tuple[Entry, Block, tuple[Block, ...]]]:
    """Every block of the page with the entry above it, and what follows it."""
    entry, found = Entry(), blocks(page)
    for i, block in enumerate(found):
        if block.info == "toml":
            entry = entry_of(block) or entry
        yield entry, block, found[i + 1 :]


def wrap(fragment: str, tools: tuple[str, ...] = ()) -> str:
    """A fragment as the body of `resolve`; its lines keep their numbers plus one."""
    listed = ", ".join(json.dumps(name) for name in tools)
    head = f"agent = {{ tools = {{ {listed} }} }} function agent.resolve(args, config, context) do\n"
    return head + fragment + 'end return { system = "it ran" } end\n'


def tools_of(page: str) -> tuple[str, ...]:
    """The tools that the fragments of a page may call: its own and one of the engine's."""
    return (
        *(entry.name for entry, block, _ in with_entries(page) if block.info == "lua tool" and entry.name),
        "search",
    )


@dataclass(frozen=True)
class Example:
    """A script of a page, and what the page says comes of it."""

    where: str
    script: Script
    params: dict[str, Any] | None = None
    result: Any = None
    logged: list[str] | None = None


def examples() -> Iterator[Example]:
    number = 0
    for page in PAGES:
        for entry, block, following in with_entries(page):
            if block.text.startswith(
                "connector ="
            ):  # no agent and no tool; tests/cli/test_scanning.py runs such scripts
                continue
            number += 1
            name = f"example-{number}"
            if block.info == "lua tool":
                params, result = following[:2]
                assert (params.info, result.info) == ("json params", "json result"), block.where
                called = entry.name if entry.section == "tools" else name
                script = Script(called, "tools", block.text, entry.keys)
                yield Example(block.where, script, json.loads(params.text), json.loads(result.text))
            elif block.info in ("lua", "lua fragment"):
                source = block.text if block.info == "lua" else wrap(block.text, tools_of(page))
                keys = entry.keys if block.info == "lua fragment" or entry.section == "agents" else ""
                shown = following[0].text.splitlines() if following and following[0].info == "text log" else None
                yield Example(block.where, Script(name, "agents", source, keys), logged=shown)


TICKETS = [{"key": "T-1", "title": "Card payments fail"}, {"key": "T-2", "title": "Slow search"}]


def api(asked: Asked) -> Said | None:
    """The server of the examples: a small system of tickets."""
    tickets = {f"/tickets/{ticket['key']}": ticket for ticket in TICKETS}
    json_type = {"content-type": "application/json"}
    match asked.method, asked.target:
        case "GET", "/tickets?limit=2&state=open":
            assert asked.headers["accept"] == "application/json"
            return Said(200, json.dumps(TICKETS).encode(), json_type)
        case "GET", target if target in tickets:
            return Said(200, json.dumps(tickets[target]).encode(), json_type)
        case "POST", "/tickets":
            assert asked.headers["content-type"] == "application/json"
            assert asked.headers["authorization"].startswith("Basic ")
            assert json.loads(asked.body) == {"title": "Disk is full", "labels": ["ops"]}
            return Said(201, json.dumps({"key": "T-3"}).encode(), json_type)
        case "GET", "/moved":
            return Said(302, headers={"location": "https://other.example.com/"})
        case "GET", "/export":
            return Said(200, b"x" * 100_001)
        case "GET", "/slow":
            return None
    return Said(404, b"no such page", {"content-type": "text/plain"})


FILES = {"templates/incident.md": "# Incident of {service}\n", "templates/deploy.md": "# Deploy\n"} | {
    block.info.removeprefix("lua file "): block.text
    for page in PAGES
    for block in blocks(page)
    if block.info.startswith("lua file ")
}


def place(script: Script, folder: Path, address: str) -> str:
    """Write the script into a folder of its own, with the files of the examples beside it; its entry."""
    own = folder / script.name
    for name, text in FILES.items():
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_text(text, encoding="utf-8")
    (own / "link.md").symlink_to("templates/incident.md")
    (own / "large.bin").touch()
    os.truncate(own / "large.bin", MIB + 1)
    path = own / f"{script.name}.lua"
    path.write_text(here(script.source, address), encoding="utf-8")
    return f'[{script.section}.script.{script.name}]\npath = "{path}"\n{here(script.keys, address)}\n'


def here(text: str, address: str) -> str:
    """The text with the examples' server where it really is."""
    return text.replace(f"https://{HOST}", f"http://{address}").replace(HOST, address)


def there(text: str, address: str) -> str:
    """What a script said, as the page has it."""
    return text.replace(address, HOST).replace("127.0.0.1", HOST)


@dataclass(frozen=True)
class Running:
    """A service with these scripts, and the address of the examples' server."""

    service: Service
    address: str


@asynccontextmanager
async def running(folder: Path, *scripts: Script) -> AsyncIterator[Running]:
    """A real service over two documents. What does not load fails the test."""
    names = [(script.section, script.name) for script in scripts]
    assert len(names) == len(set(names))
    documents = folder / "runbooks"
    documents.mkdir()
    (documents / "deploying.md").write_text("# Deploying\n\nDeploy on Tuesdays, tell payments-api first.\n" * 200)
    (documents / "incident.md").write_text("An incident: roll back the deploy.\n")
    text = '[db]\npath = "store.sqlite"\n[embedding]\nprovider = "disabled"\n[sandbox]\nworkers = 2\nreserve = 1\n'
    text += '[connectors.filesystem.runbooks]\nroot = "runbooks"\n'
    async with stand_in(api) as server:
        (folder / "engine.toml").write_text(text + "".join(place(each, folder, server.address) for each in scripts))
        loaded = load_config(folder / "engine.toml", environ={}, cwd=folder)
        await fill_if_empty(loaded)
        async with open_service(loaded) as service:
            assert [(failure.name, failure.message) for failure in service.failures] == []
            yield Running(service, server.address)


async def outcome_of(example: Example, on: Running) -> str | None:
    """Run an example; what differs from its page."""
    logged: list[LogLine] = []
    call = Call(DEFAULT_TENANT, Hearers(log=logged.append))
    name = example.script.name
    try:
        if example.params is not None:
            value = (await on.service.call_tool(name, example.params, call)).value
            if value != example.result:
                return f"{example.where}: answered {value}"
        else:
            (info,) = [info for info in on.service.list_agents(DEFAULT_TENANT) if info.name == name]
            arguments = {argument.name: "payments-api" for argument in info.arguments if argument.required}
            assert (await on.service.resolve(name, arguments, call)).prompt.system
    except Problem as problem:
        return f"{example.where}: {problem.message}"
    lines = [f"[{line.level}] {there(line.text, on.address)}".replace(name, "NAME") for line in logged]
    if example.logged is not None and lines != example.logged:
        return f"{example.where}: logged {lines}"
    return None


async def test_every_example_runs_and_answers_and_logs_what_its_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOY_REGION", "eu-central-1")
    found = list(examples())
    assert len(found) > 20
    async with running(tmp_path, *(example.script for example in found)) as on:
        wrong = [await outcome_of(example, on) for example in found]
    assert [each for each in wrong if each is not None] == []


async def test_the_example_of_completion_suggests_what_the_page_promises(tmp_path: Path) -> None:
    (found,) = (example for example in examples() if "function agent.complete" in example.script.source)
    async with running(tmp_path, found.script) as on:
        for typed, values in (("file", ("filesystem:runbooks",)), ("git", ())):
            call = Call(DEFAULT_TENANT)
            assert await on.service.complete(found.script.name, "source", typed, {}, call) == values


def test_every_page_of_a_thing_has_an_example_that_runs() -> None:
    pages = {example.where.partition(":")[0] for example in examples()}
    assert set(SCRIPT_PAGES) <= pages


def errors_of(page: str) -> list[tuple[str, str]]:
    """The calls in the table of errors, each with its message."""
    return [(quoted(call)[0], quoted(message)[0]) for call, message in section(page, "Errors").rows()]


def failing(page: str, number: int) -> Script:
    """An agent whose prompt is the list of the errors that the page's calls raise, in JSON."""
    tries = "".join(f"try(function() return {call} end)\n" for call, _ in errors_of(page))
    source = (
        "local said = json.array({}) local function try(f) local ok, problem = pcall(f)\n"
        "said[#said + 1] = ok and 'no error' or problem end\n"
    )
    entry = [entry for entry, _, _ in with_entries(page)][-1]
    return Script(
        f"errors-{number}",
        "agents",
        wrap(source + tries + "do return { system = json.encode(said) } end\n", tools_of(page)),
        entry.keys,
    )


async def test_every_error_in_a_table_of_errors_has_exactly_the_text_that_is_shown(tmp_path: Path) -> None:
    pages = [page for page in SCRIPT_PAGES if page != COMING_FROM_CTX]
    scripts = {page: failing(page, number) for number, page in enumerate(pages)}
    tools = [example.script for example in examples() if example.params is not None]
    wrong = []
    async with running(tmp_path, *scripts.values(), *tools) as on:
        for page, script in scripts.items():
            said = json.loads((await on.service.resolve(script.name, {}, Call(DEFAULT_TENANT))).prompt.system)
            for (call, message), text in zip(errors_of(page), said, strict=True):
                seen = there(re.sub(r"^[\w.-]+\.lua:\d+: ", "", text), on.address)
                if seen != message:
                    wrong.append(f"{page}: {call}: {seen}")
    assert wrong == []


async def test_the_example_of_an_error_fails_with_the_message_and_traceback_that_the_page_shows(tmp_path: Path) -> None:
    ((script, shown),) = followed("lua raises", "", page=SCRIPTING)
    async with running(tmp_path, Script("runbook", "agents", script.text)) as on:
        with pytest.raises(Problem) as caught:
            await on.service.resolve("runbook", {}, Call(DEFAULT_TENANT))
    assert f"{caught.value.message}\n{caught.value.traceback}\n" == shown.text


SEEN = """
    local seen = {}
    for name, value in pairs(_G) do
        if type(value) == "table" and value ~= _G and pairs(value)(value) then
            for inner in pairs(value) do seen[#seen + 1] = name .. "." .. inner end
        else
            seen[#seen + 1] = name
        end
    end
    for name in pairs(context) do seen[#seen + 1] = "context." .. name end     -- as well as caller, by this word
    do return { system = table.concat(seen, " ") } end
"""

# Each is called in the comparison of a sort. None of them gets an argument: the refusal of the place comes first.
IN_CALLBACKS = """
    local refused = {}
    for name in ("NAMES"):gmatch("%S+") do
        local value = setmetatable({ context = context }, { __index = _G })
        for part in name:gmatch("[^.]+") do value = value[part] end
        if type(value) == "function" then
            local _, problem = pcall(table.sort, { 2, 1 }, function() value({}) end)
            if tostring(problem):find("cannot be called here") then refused[#refused + 1] = name end
        end
    end
    do return { system = table.concat(refused, " ") } end
"""

ANSWERED = """
    local names = {}
    for name in pairs(http.get("https://api.example.com/tickets/T-1")) do names[#names + 1] = name end
    do return { system = table.concat(names, " ") } end
"""


async def test_a_running_script_sees_and_may_call_exactly_what_the_pages_say(tmp_path: Path) -> None:
    names = " ".join(sorted(documented() - OF_TURNS - {"context.tools"}))
    scripts = (
        Script("seen", "agents", wrap(SEEN)),
        Script("callbacks", "agents", wrap(IN_CALLBACKS.replace("NAMES", names))),
        Script("answered", "agents", wrap(ANSWERED), f'allow_hosts = ["{HOST}"]'),
    )
    async with running(tmp_path, *scripts) as on:
        said = {
            script.name: set((await on.service.resolve(script.name, {}, Call(DEFAULT_TENANT))).prompt.system.split())
            for script in scripts
        }
    assert (
        said["seen"] - {"agent.resolve", "agent.tools", "context.team"}
        == kept() | wrapped() | documented() - OF_CONNECTORS - OF_TURNS
    )
    not_there = {
        name
        for page in set(SCRIPT_PAGES) - {COMING_FROM_CTX}
        for name in names_of(page) - OF_CONNECTORS - OF_TURNS
        if sections(page)[0].rows()[3][1] == "no"
    }
    assert said["callbacks"] | {"context.tools", "http.basic_auth"} == not_there
    assert said["answered"] == set(first_quoted(section(page_of("http"), "Answer").rows()))


def test_the_entries_of_the_pages_are_those_that_are_shown() -> None:
    block = Block("here", "toml", '[tools.script.a]\npath = "a.lua"\nenv = ["X"]\n')
    assert entry_of(block) == Entry("tools", "a", 'env = ["X"]\n')
    assert entry_of(replace(block, text=block.text + "[limits]\n")) is None
    assert tomllib.loads(block.text)["tools"]["script"]["a"]["env"] == ["X"]

"""Undocumented means red, and so does documented but not there. The examples in the pages are run.

The pages are `docs/*.md` and the README. What they list is read from their tables and headings and compared, both ways,
with the one list in the code; their Lua runs in a real engine, their requests are asked of a real server, their
command lines are run.
"""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_origin

import httpx2
import pytest
import trio
from pydantic import BaseModel

from agents.agent import Agent, AgentInfo, AgentPrompt, Call
from agents.loader import load
from agents.registry import Registry
from agents.service import Service, open_service
from agents.shape import AgentDeclaration
from agents.tool import ToolInfo
from agents.tools.builtin import GET, SEARCH, SOURCES
from cli.main import run as run_command
from cli.sync import fill_if_empty
from engine import config as configuration
from engine.bridge import knowledge
from engine.config import Config, ConfigError, LoadedConfig, ScriptEntry, parse_config
from engine.engine import open_engine
from engine.errors import Code, LimitUse, Problem
from engine.metrics import Metrics
from engine.tenant import DEFAULT_TENANT
from engine.verdict import amount
from knowledge.store import Chunk, Document, EmbeddingsDisabled, Hit, SearchAnswer, SearchQuery, SourceInfo
from sandbox import allowlist
from sandbox.layers import LAYERS
from sandbox.limits import SPECS
from sandbox.outcome import Outcome
from server import rest
from server.app import listen, open_app, serve_app
from server.banner import listening, loaded_lines
from server.mcp import Handlers
from server.problems import STATUS

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
SCRIPTING, CONFIGURATION, HTTP, CLI = (f"docs/{name}.md" for name in ("scripting", "configuration", "http-api", "cli"))


# ---- reading the pages ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """One fenced block: where it is, its info string, its text."""

    where: str
    info: str
    text: str


@dataclass(frozen=True)
class Section:
    """One heading and what stands under it, up to the next heading of any level."""

    title: str
    level: int
    text: str

    @property
    def code(self) -> list[str]:
        """What the heading has in backticks."""
        return re.findall(r"`([^`]+)`", self.title)

    def rows(self, table: int = 0) -> list[list[str]]:
        """The cells of a table's rows, without its heading."""
        found: list[list[list[str]]] = []
        inside = False
        for line in self.text.splitlines():
            if not line.startswith("|"):
                inside = False
                continue
            if not inside:
                found.append([])
                inside = True
            found[-1].append([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]])
        return found[table][2:]


@cache
def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@cache
def blocks(page: str) -> tuple[Block, ...]:
    found = re.finditer(r"^```([^\n`]*)\n(.*?)^```$", read(page), re.MULTILINE | re.DOTALL)
    return tuple(Block(f"{page}:{read(page)[: m.start()].count(chr(10)) + 1}", m[1].strip(), m[2]) for m in found)


@cache
def sections(page: str) -> tuple[Section, ...]:
    prose = re.sub(r"^```.*?^```$", "", read(page), flags=re.MULTILINE | re.DOTALL)
    parts = re.split(r"^(#+) (.*)$", prose, flags=re.MULTILINE)
    return tuple(Section(parts[i + 1], len(parts[i]), parts[i + 2]) for i in range(1, len(parts), 3))


def section(page: str, title: str) -> Section:
    return next(found for found in sections(page) if found.title.replace("`", "") == title)


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def first_quoted(rows: list[list[str]]) -> list[str]:
    return [name for row in rows for name in quoted(row[0])]


def slug(title: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


# ---- scripting --------------------------------------------------------------------------------------------------


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
        for library_cell, names in section(SCRIPTING, "As in Lua 5.4").rows()
        for library in [library_cell.strip("`")]
        for name in quoted(names)
    }


def wrapped() -> set[str]:
    return set(first_quoted(section(SCRIPTING, "With a difference").rows()))


def added() -> set[str]:
    return {name.partition("(")[0] for name in first_quoted(section(SCRIPTING, "Added").rows())}


def test_every_name_of_lua_is_listed_as_the_allow_list_has_it() -> None:
    assert kept() == {name.path for name in allowlist.NAMES if name.action == "keep"}
    assert wrapped() == {name.path for name in allowlist.NAMES if name.action == "wrap"}
    removed = {name: why for names, why in section(SCRIPTING, "Removed").rows() for name in quoted(names)}
    assert removed == {name.path: name.reason for name in allowlist.NAMES if name.action == "remove"}
    assert added() == set(allowlist.ADDED)


def test_every_field_of_the_agent_table_and_of_its_answer_is_in_a_table() -> None:
    declared = set(first_quoted(section(SCRIPTING, "The agent table").rows()))
    fields_of = {"resolve", *AgentDeclaration.model_fields} - {"functions"}  # that one is the engine's own
    assert {name for name in declared if "[" not in name} == fields_of
    assert {name.partition(".")[2] for name in declared if "[" in name} == {"name", "description", "required"}
    answer = set(first_quoted(section(SCRIPTING, "resolve(args, config, context)").rows(1)))
    assert {name for name in answer if "[" not in name} == set(AgentPrompt.model_fields)


def test_every_field_that_loading_reads_is_named() -> None:
    core = (ROOT / "sandbox/prelude/core.lua").read_text()
    described = re.search(r"local DESCRIBED = \{(.*?)\}", core, re.DOTALL)
    assert described is not None
    names = set(re.findall(r'"(\w+)"', described[1]))
    assert names <= set(quoted(section(SCRIPTING, "The agent table").text))


def test_every_argument_and_answer_of_the_context_calls_is_named() -> None:
    search = section(SCRIPTING, "context.search")
    assert first_quoted(search.rows()) == list(knowledge.SearchArguments.__struct_fields__)
    shown = (("context.search", Hit), ("context.get", Document), ("context.sources", SourceInfo))
    for title, shape in shown:
        assert {field.name for field in fields(shape)} <= set(quoted(section(SCRIPTING, title).text)), title


class Store:
    """Two documents in memory; the query finds what has any of its words."""

    documents = tuple(
        Document(
            id=f"00000000-0000-4000-8000-00000000000{number}",
            source="git:runbooks",
            source_id=f"{number}.md",
            source_url=None,
            title=title,
            author=None,
            created_at=None,
            updated_at="2026-01-31T12:00:00Z",
            content_type="text/markdown",
            body=body,
            chunks=(Chunk(0, body),),
        )
        for number, title, body in (
            (1, "Deploying", "Deploy on Tuesdays, tell payments-api first. " * 200),
            (2, None, "An incident: roll back the deploy."),
        )
    )

    async def search(self, query: SearchQuery) -> SearchAnswer:
        if query.mode == "semantic":
            raise EmbeddingsDisabled("no embedder")
        words = query.query.lower().split()
        found = [document for document in self.documents if any(word in document.body.lower() for word in words)]
        shown = {field.name for field in fields(Hit)} - {"score", "snippet"}
        hits = [
            Hit(**{name: getattr(document, name) for name in shown}, score=0.5, snippet=document.body[:40])
            for document in found
        ]
        return SearchAnswer(tuple(hits[: query.limit]))

    async def get(self, document_id: str) -> Document | None:
        return next((document for document in self.documents if document.id == document_id), None)

    async def sources(self) -> tuple[SourceInfo, ...]:
        return (
            SourceInfo(
                source="git:runbooks", document_count=2, chunk_count=2, configured=True, healthy=True, notes=None,
                last_sync=None,
            ),
        )  # fmt: skip


@asynccontextmanager
async def agents_of(scripts: dict[str, str], folder: Path) -> AsyncIterator[dict[str, Agent]]:
    """These scripts as agents of a real engine. What does not load fails the test."""
    text = ""
    for name, source in scripts.items():
        (folder / f"{name}.lua").write_text(source, encoding="utf-8")
        text += f'[agents.script.{name}]\npath = "{name}.lua"\n'
    config, _ = parse_config(text, environ={}, cwd=folder)
    async with open_engine(config, knowledge.functions(Store(), default_limit=12)) as engine:
        loaded = await load(config, engine, Registry())
        assert [(failure.name, failure.message) for failure in loaded.failures] == []
        found = {name: loaded.registry.agent(DEFAULT_TENANT.id, name) for name in scripts}
        yield {name: agent for name, agent in found.items() if agent is not None}


def wrap(fragment: str) -> str:
    """A fragment as the body of `resolve`; its lines keep their numbers plus one."""
    head = "agent = {} function agent.resolve(args, config, context) do\n"
    return head + fragment + 'end return { system = "it ran" } end\n'


async def test_every_lua_example_runs(tmp_path: Path) -> None:
    found = {f"example-{n}": block for n, block in enumerate(every_block("lua", "lua fragment"))}
    scripts = {name: block.text if block.info == "lua" else wrap(block.text) for name, block in found.items()}
    assert len(scripts) > 5
    failed = []
    async with agents_of(scripts, tmp_path) as agents:
        for name, agent in agents.items():
            arguments = {argument.name: "payments-api" for argument in agent.info.arguments if argument.required}
            try:
                resolved = await agent.resolve(arguments, Call(DEFAULT_TENANT))
            except Problem as problem:
                failed.append(f"{found[name].where}: {problem.message}")
            else:
                assert resolved.prompt.system
    assert failed == []


async def test_every_example_of_a_tool_can_be_called(tmp_path: Path) -> None:
    found = every_block("lua tool")
    assert found
    text = ""
    for n, block in enumerate(found):
        (tmp_path / f"tool-{n}.lua").write_text(block.text, encoding="utf-8")
        text += f'[tools.script.tool-{n}]\npath = "tool-{n}.lua"\n'
    config, _ = parse_config(text, environ={}, cwd=tmp_path)
    async with open_engine(config, knowledge.functions(Store(), default_limit=12)) as engine:
        loaded = await load(config, engine, Registry())
        assert [(failure.name, failure.message) for failure in loaded.failures] == []
        for tool in loaded.registry.tools(DEFAULT_TENANT.id):
            called = await tool.execute({"left": 10}, Call(DEFAULT_TENANT))
            assert called.value == {"days": 5.0}


async def test_the_example_of_an_error_fails_with_the_message_and_traceback_that_the_page_shows(tmp_path: Path) -> None:
    ((script, shown),) = followed("lua raises", "", page=SCRIPTING)
    async with agents_of({"runbook": script.text}, tmp_path) as agents:
        with pytest.raises(Problem) as caught:
            await agents["runbook"].resolve({}, Call(DEFAULT_TENANT))
    assert f"{caught.value.message}\n{caught.value.traceback}\n" == shown.text


async def test_a_running_script_sees_exactly_the_names_that_are_listed(tmp_path: Path) -> None:
    source = """
        local seen = {}
        for name, value in pairs(_G) do
            if type(value) == "table" and value ~= _G then
                for inner in pairs(value) do seen[#seen + 1] = name .. "." .. inner end
            else
                seen[#seen + 1] = name
            end
        end
        for name in pairs(context) do seen[#seen + 1] = "context." .. name end
        return { system = table.concat(seen, " ") }
    """
    async with agents_of({"looker": wrap(source)}, tmp_path) as agents:
        resolved = await agents["looker"].resolve({}, Call(DEFAULT_TENANT))
    documented = {name for found in sections(SCRIPTING) for name in found.code if name.startswith("context.")}
    assert set(resolved.prompt.system.split()) - {"agent.resolve"} == kept() | wrapped() | added() | documented


# ---- configuration ----------------------------------------------------------------------------------------------

_NOT_KEYS = frozenset({"extra", "unset", "from_environment"})
REQUIRED = object()


def config_keys() -> dict[str, dict[str, Any]]:
    """Every section of the file with its keys and their defaults, from the models."""
    found: dict[str, dict[str, Any]] = {"Top level": {}}

    def walk(model: type[BaseModel], name: str) -> None:
        keys = found.setdefault(name, {})
        for key, field in model.model_fields.items():
            inner = f"{name}.{key}" if name != "Top level" else key
            kind: Any = field.annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                if model is Config and all(get_origin(f.annotation) is dict for f in kind.model_fields.values()):
                    for entry, table in kind.model_fields.items():  # [connectors], [tools], [agents]: by kind and name
                        walk(get_args(table.annotation)[1], f"{inner}.{entry}.NAME")
                elif kind is configuration.LimitsConfig:
                    found[inner] = {s.name: s.default for s in SPECS.values()}
                    found[inner]["queue_timeout_s"] = kind.model_fields["queue_timeout_s"].default
                    found[f"{inner}.max"] = {s.name: s.ceiling for s in SPECS.values()}
                else:
                    walk(kind, inner)
            elif key not in _NOT_KEYS:
                default = field.get_default(call_default_factory=True)
                keys[key] = REQUIRED if field.is_required() else default

    walk(Config, "Top level")
    return found


def config_sections() -> dict[str, Section]:
    """Sections of the page by the table that they describe; a heading may name several."""
    described = {"Top level": section(CONFIGURATION, "Top level")}
    for found in sections(CONFIGURATION):
        described |= {name.strip("[]"): found for name in found.code if name.startswith("[")}
    return described


def test_every_table_of_the_configuration_has_its_heading() -> None:
    # [agents.NAME] is the short form of [agents.inline.NAME].
    assert set(config_sections()) - {"agents.NAME"} == set(config_keys())


@pytest.mark.parametrize("name", config_keys())
def test_every_key_of_the_configuration_is_in_its_table_with_its_default(name: str) -> None:
    expected, found = config_keys()[name], config_sections()[name]
    if set(expected) == set(config_keys()["agents.script.NAME"]) and name != "agents.script.NAME":
        assert "`[agents.script.NAME]`" in found.text  # the other kinds of scripts refer to that table
        return
    assert {quoted(row[0])[0]: _default(row[2]) for row in found.rows()} == {
        key: _plain(value) for key, value in expected.items()
    }


def _default(cell: str) -> Any:
    if cell in ("required", "—"):
        return cell
    return tomllib.loads(f"x = {cell.strip('`')}")["x"]


def _plain(value: Any) -> Any:
    if value is REQUIRED:
        return "required"
    if value is None:
        return "—"
    return list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value


def test_a_key_that_is_said_to_have_no_effect_is_read_by_nobody() -> None:
    effect: dict[str, set[bool]] = {}
    for name, found in config_sections().items():
        for row in found.rows() if "|---" in found.text and name != "agents.NAME" else ():
            effect.setdefault(quoted(row[0])[0], set()).add("*no effect*" not in row[3])
    idle = [
        key for key, effects in effect.items() if effects == {False} and "_" in key
    ]  # `url` is a name of many things
    assert len(idle) > 10
    readers = [
        f"{path.relative_to(ROOT)} reads {key}"
        for package in ("agents", "cli", "engine", "knowledge", "server")
        for path in (ROOT / package).rglob("*.py")
        for key in idle
        if path.name != "config.py"
        and re.search(rf"config\S*\.{key}\b|entry\.{key}\b", path.read_text(encoding="utf-8"))
    ]
    assert readers == []


def test_every_reason_of_a_limit_is_told() -> None:
    told = {quoted(row[0])[0]: row[3] for row in config_sections()["limits"].rows()}
    assert {spec.name: spec.reason for spec in SPECS.values()}.items() <= told.items()


def test_every_layer_is_in_the_table() -> None:
    expected = [[f"`{each.name}`", "yes" if each.required else "no", each.stops, each.without_it] for each in LAYERS]
    assert config_sections()["sandbox"].rows(1) == expected


def test_the_keys_of_scripts_are_those_that_are_not_handed_to_the_script() -> None:
    documented = first_quoted(config_sections()["agents.script.NAME"].rows())
    text = "".join(f"{key} = 1\n" for key in ScriptEntry.model_fields if key not in documented)
    config, _ = parse_config(f"[agents.script.x]\npath = 'x.lua'\n{text}", environ={}, cwd=ROOT)
    assert set(config.agents.script["x"].extra) == set(_NOT_KEYS)


def test_the_keys_that_are_said_to_be_accepted_for_ctx_are_warned_of() -> None:
    names = [name for name in quoted(section(CONFIGURATION, "Mistakes").text) if name != "ctx"]
    text = "[vector_index]\n[registries]\n[retrieval]\n" + "".join(
        f"{name.partition('.')[2]} = 1\n" for name in names if "." in name
    )
    _, warnings = parse_config(text, environ={}, cwd=ROOT)
    assert sorted(warning.split()[2] for warning in warnings) == sorted(names)


def test_the_places_where_a_configuration_is_looked_up_are_listed_in_their_order() -> None:
    text = section(CONFIGURATION, "Where it is looked up").text
    places = ["--config", *configuration.ENVIRONMENT, *configuration.LOOKED_UP]
    assert sorted(places, key=lambda place: text.index(f"`{place}")) == places


def test_every_environment_variable_is_in_the_table() -> None:
    read_by = {
        name
        for package in ("cli", "engine", "server")
        for path in (ROOT / package).rglob("*.py")
        for name in re.findall(r'"((?:ENGINE|CTX)_[A-Z_]+)"', path.read_text(encoding="utf-8"))
    }
    assert set(first_quoted(section(CONFIGURATION, "Environment variables").rows())) == read_by


def test_every_toml_example_loads_without_a_warning() -> None:
    for block in every_block("toml", "toml complete"):
        config, warnings = parse_config(block.text, environ={}, cwd=ROOT, shown_as=block.where)
        assert warnings == ()
        assert all(entry.unset is None for entry in config.agents.script.values())


def test_the_complete_example_has_every_section_that_has_an_effect() -> None:
    (block,) = every_block("toml complete")
    given = tomllib.loads(block.text)
    assert set(Config.model_fields) - set(given) == {"embedding", "tools", "tenants"}


def test_every_mistake_is_told_as_the_page_shows_it() -> None:
    shown = list(followed("toml wrong", "", page=CONFIGURATION))
    assert len(shown) >= 2
    for block, message in shown:
        with pytest.raises(ConfigError) as caught:
            parse_config(block.text, environ={}, cwd=ROOT, shown_as="engine.toml")
        assert f"{caught.value}\n" == message.text


# ---- HTTP -------------------------------------------------------------------------------------------------------


def rest_routes() -> set[str]:
    app = rest.create(SimpleNamespace(engine=None))  # type: ignore[arg-type]
    return {
        f"{method} {re.sub('<[^>]+>', 'NAME', rule.rule)}"
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }


def test_every_route_has_its_heading_and_every_heading_its_route() -> None:
    documented = [name for found in sections(HTTP) if found.level == 3 for name in found.code]
    assert len(documented) == len(set(documented))
    assert set(documented) == rest_routes()


def produced_codes() -> set[Code]:
    """Every code that agents, engine or server hand to a call or keep in a table, and those of outcomes."""
    found = {Code(outcome) for outcome in set(Outcome) & set(Code)}
    for package in ("agents", "engine", "server"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                values = node.args if isinstance(node, ast.Call) else node.values if isinstance(node, ast.Dict) else ()
                for given in values:
                    if isinstance(given, ast.Attribute) and ast.unparse(given.value) == "Code":
                        found.add(Code[given.attr])
    return found


def test_every_code_that_can_be_answered_is_in_the_table_with_its_status() -> None:
    rows = section(HTTP, "Errors").rows(1)
    documented = {quoted(row[0])[0]: int(row[1]) for row in rows}
    assert len(rows) == len(documented)
    assert documented == {code.value: STATUS[code] for code in produced_codes()}
    assert list(documented.values()) == sorted(documented.values())


def test_every_key_of_the_error_envelope_is_in_the_table() -> None:
    use = LimitUse("timeout_s", 1, None, "s", "script")
    problem = Problem(Code.TIMEOUT, "", run_id="", limit=use, retry_after_s=1, traceback="")
    error = problem.envelope()["error"]
    rows = {quoted(row[0])[0]: row for row in section(HTTP, "Errors").rows(0)}
    assert set(rows) == set(error)
    assert set(error["limit"]) <= set(quoted(rows["limit"][2]))


@pytest.mark.parametrize("tool", [SEARCH, GET, SOURCES], ids=lambda tool: tool.name)
def test_every_parameter_and_answer_of_the_builtin_tools_is_named(tool: ToolInfo) -> None:
    found = section(HTTP, tool.name)
    if tool.parameters["properties"]:
        assert first_quoted(found.rows()) == list(tool.parameters["properties"])
    shape = {"search": Hit, "get": Document, "sources": SourceInfo}[tool.name]
    assert {field.name for field in fields(shape)} <= set(quoted(found.text))
    assert tool.returns is not None
    assert set(tool.returns["properties"]) <= set(quoted(found.text))


def test_every_metric_is_in_the_table_with_its_type() -> None:
    expected = {
        family.name + ("_total" if family.type == "counter" else ""): family.type
        for family in Metrics().registry.collect()
    }
    rows = section(HTTP, "GET /metrics").rows()
    assert {quoted(row[0])[0].partition("{")[0]: row[1] for row in rows} == expected


def test_every_mcp_method_is_in_the_table() -> None:
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

    ours = {
        f"{words[1].rstrip('s')}s/{words[0]}"
        for name, method in vars(Handlers).items()
        if not name.startswith("_") and getattr(method, "__code__", None) and method.__code__.co_flags & 0x80
        for words in [name.split("_")]
    }
    text = section(HTTP, "MCP")
    assert set(first_quoted(text.rows())) == ours | {"initialize", "server/discover", "ping"}
    assert all(version in text.text for version in HANDSHAKE_PROTOCOL_VERSIONS)


@dataclass(frozen=True)
class Request:
    """A curl command line."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    expected: int


def request_of(command: str) -> Request:
    expected = re.search(r"#\s*(\d{3})\s*$", command)
    words = iter(shlex.split(command.replace("\\\n", " "), comments=True)[1:])
    method, target, body, headers = "", "", "", []
    for word in words:
        match word:
            case "-s":
                pass
            case "-X":
                method = next(words)
            case "-H":
                name, _, value = next(words).partition(":")
                headers.append((name.strip().lower(), value.strip()))
            case "-d":
                body = next(words)
            case _:
                assert word.startswith("localhost:7331/"), word
                target = word.removeprefix("localhost:7331")
    json.loads(body or "{}")
    method = method or ("POST" if body else "GET")
    return Request(method, target, tuple(headers), body.encode(), int(expected[1]) if expected else 200)


@asynccontextmanager
async def served(service: Service) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a real server, on any free port of loopback."""
    settings = service.loaded.config.server
    async with (
        await listen("127.0.0.1", 0) as listener,
        open_app(service, settings, "127.0.0.1") as app,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(partial(serve_app, app, listener, trio.Event(), graceful_timeout_s=0))
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
            yield client
        nursery.cancel_scope.cancel()


async def ask(client: httpx2.AsyncClient, request: Request) -> tuple[int, Any]:
    """Status and JSON of the answer; of an event stream, the message in its first event."""
    answer = await client.request(
        request.method, request.target, headers=dict(request.headers), content=request.body or None
    )
    content = answer.text
    if "text/event-stream" in answer.headers["content-type"]:
        content = next(line for line in content.splitlines() if line.startswith("data: ")).removeprefix("data: ")
    return answer.status_code, json.loads(content)


# What depends on the machine or the moment.
_VOLATILE = frozenset({"pristine", "idle", "leased", "closing", "queued", "version", "state", "detail"})
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def differences(shown: Any, answered: Any, path: str = "") -> Iterator[str]:
    """Where an answer is not what a page shows. A text that is cut with `…` shows its beginning, a list some items."""
    match shown, answered:
        case {"…": _}, dict():
            return
        case dict(), dict():
            if set(shown) != set(answered):
                yield f"{path}: keys {sorted(shown)}, not {sorted(answered)}"
            for key in set(shown) & set(answered) - _VOLATILE:
                yield from differences(shown[key], answered[key], f"{path}.{key}")
        case list(), list():
            if bool(shown) != bool(answered):
                yield f"{path}: {len(shown)} items, not {len(answered)}"
            named = {item["name"]: item for item in answered if isinstance(item, dict) and "name" in item}
            for item, first in zip(shown, answered, strict=False):
                counterpart = named.get(item["name"], first) if isinstance(item, dict) and "name" in item else first
                yield from differences(item, counterpart, f"{path}[]")
        case str(), str():
            same = _MOMENT.sub("", shown) == _MOMENT.sub("", answered)
            start = " ".join(shown.partition("…")[0].split())
            if not same and not ("…" in shown and " ".join(answered.split()).startswith(start)):
                yield f"{path}: {shown!r}, not {answered[:200]!r}"
        case _ if shown != answered or type(shown) is not type(answered):
            yield f"{path}: {shown!r}, not {answered!r}"


def demo(folder: Path) -> LoadedConfig:
    """The demo's configuration, with its store in a folder of the test."""
    path = ROOT / "examples/engine.toml"
    text = path.read_text(encoding="utf-8").replace("examples/.data/knowledge.sqlite", str(folder / "demo.sqlite"))
    config, warnings = parse_config(text, environ={}, cwd=ROOT, shown_as="examples/engine.toml")
    return LoadedConfig(config, path, ROOT, warnings)


async def test_every_request_is_answered_as_the_pages_show_and_the_banner_is_as_shown(tmp_path: Path) -> None:
    loaded = demo(tmp_path)
    await fill_if_empty(loaded)
    wrong, asked = [], 0
    async with open_service(loaded) as service, served(service) as client:
        for page in PAGES:
            following = [*blocks(page), Block("", "", "")][1:]
            for block, after in zip(blocks(page), following, strict=True):
                commands = re.findall(r"^curl .*?(?=^curl |\Z)", block.text, re.MULTILINE | re.DOTALL)
                for command in commands if block.info == "sh" else ():
                    request = request_of(command)
                    status, answer = await ask(client, request)
                    asked += 1
                    if status != request.expected:
                        wrong.append(f"{block.where}: status {status}: {answer}")
                    elif len(commands) == 1 and after.info == "json":
                        wrong += [f"{after.where}{each}" for each in differences(json.loads(after.text), answer)]
        banner = [*loaded_lines(service), *listening(service, "http://127.0.0.1:7331")]
    assert wrong == []
    assert asked > 10
    (shown,) = (block for block in blocks(CLI) if block.info == "text banner")
    assert matches(shown.text.splitlines(), banner)


# ---- command line -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Help:
    """What `--help` shows of a command: its summary, its commands and its options."""

    summary: str
    commands: tuple[str, ...]
    options: frozenset[str]


@pytest.fixture
def help_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """`--help` of the command with these words."""
    monkeypatch.setenv("COLUMNS", "200")

    def show(*words: str) -> Help:
        assert run_command([*words, "--help"]) == 0
        text = capsys.readouterr().out
        panels = dict(re.findall(r"╭─ (\w+) .*?\n(.*?)╰", text, re.DOTALL))
        commands = re.findall(r"^│ ([a-z]\S*) ", panels.get("Commands", ""), re.MULTILINE)
        flags = re.findall(r"^│ (-.*?)(?:  |$)", panels.get("Parameters", ""), re.MULTILINE)
        options = {word for flag in flags for word in flag.split() if word.startswith("-")}
        return Help(text.split("\n\n")[1].strip(), tuple(commands), frozenset(options))

    return show


def all_commands(help_of: Any) -> dict[str, Help]:
    found: dict[str, Help] = {}

    def walk(*words: str) -> None:
        shown = help_of(*words)
        if words:
            found[" ".join(words)] = shown
        for name in shown.commands:
            walk(*words, name)

    walk()
    return found


def documented_commands() -> dict[str, Section]:
    return {
        name.removeprefix("engine "): found
        for found in sections(CLI)
        for name in found.code
        if name.startswith("engine ")
    }


def test_every_command_has_its_heading_with_its_summary_and_options(help_of: Any) -> None:
    commands, documented = all_commands(help_of), documented_commands()
    assert set(documented) == set(commands)
    for name, shown in commands.items():
        text = documented[name].text
        assert shown.summary.split("\n")[0] in text.replace("`", ""), name
        table = "\n".join(row[0] for row in documented[name].rows()) if "|---" in text else ""
        assert set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", table)) == shown.options, name


def test_every_exit_code_is_in_the_table() -> None:
    from cli import output

    documented = {int(row[0]) for row in section(CLI, "Exit codes").rows()}
    assert documented == {output.OK, output.FAILED, output.UNUSABLE, output.INTERRUPTED}


def test_the_commands_in_the_pages_exist(help_of: Any) -> None:
    commands = all_commands(help_of)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for block in blocks(page):
            for words in re.findall(r"^(?:\$ )?(?:\.venv/bin/)?engine ((?:[a-z]+ ?)+)", block.text, re.MULTILINE):
                first, *more = words.split()
                name = f"{first} {more[0]}" if more and commands[first].commands else first
                assert name in commands, block.where
            if block.info == "sh":
                assert set(re.findall(r"^make (\S+)", block.text, re.MULTILINE)) <= targets, block.where
        assert set(re.findall(r"`make ([a-z-]+)`", read(page))) <= targets, page


_CHANGING = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "TIME"),
    (re.compile(r"(in|CPU) [\d.]+ ?ms"), r"\1 TIME"),
    (re.compile(r"[\d.]+ MiB"), "SIZE"),
    (re.compile(r"just now|\d+ \w+ ago"), "AGE"),
)


def steady(line: str) -> str:
    """The line without what another run on another machine would change."""
    for pattern, name in _CHANGING:
        line = pattern.sub(name, line)
    return line.rstrip()


def matches(shown: list[str], printed: list[str]) -> bool:
    """Whether the lines are those that are shown, where `...` on a line of its own stands for any lines."""
    if not shown:
        return not printed
    if shown[0] == "...":
        return any(matches(shown[1:], printed[start:]) for start in range(len(printed) + 1))
    return bool(printed) and steady(shown[0]) == steady(printed[0]) and matches(shown[1:], printed[1:])


def engine(words: list[str], folder: Path) -> tuple[int, list[str]]:
    """Exit code and printed lines of a command line, those of standard error first."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("ENGINE_", "CTX_"))}
    if (folder / "examples").exists():
        environ["ENGINE_CONFIG"] = "examples/engine.toml"
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", *words],
        cwd=folder, env=environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, encoding="utf-8", timeout=60,
        check=False,
    )  # fmt: skip
    return done.returncode, (done.stderr + done.stdout).splitlines()


def run_block(block: Block, folder: Path) -> list[str]:
    """Run the commands of a console block; what differs from what it shows."""
    wrong, code = [], 0
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        words = shlex.split(command)
        if words == ["echo", "$?"]:
            printed = [str(code)]
        else:
            code, printed = engine(words[1:], folder)
        if not matches(shown, printed):
            wrong.append(f"{block.where}: {command}\n" + "\n".join(printed[:40]))
    return wrong


def test_every_command_prints_what_the_page_shows(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples", project / "examples", ignore=shutil.ignore_patterns(".data"))
    code, printed = engine(["sync", "all"], project)
    assert code == 0, printed
    jobs = []
    for number, block in enumerate(every_block("console", "console fresh")):
        folder = project if block.info == "console" else tmp_path / str(number)
        folder.mkdir(exist_ok=True)
        jobs.append((block, folder))
    assert len(jobs) > 10
    with ThreadPoolExecutor(4) as pool:
        wrong = [each for found in pool.map(lambda job: run_block(*job), jobs) for each in found]
    assert wrong == []


# ---- all pages --------------------------------------------------------------------------------------------------


def every_block(*infos: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.info in infos]


def followed(info: str, then: str, *, page: str) -> Iterator[tuple[Block, Block]]:
    """Blocks of one kind, each with the block after it, which is of the other kind."""
    for block, after in zip(blocks(page), blocks(page)[1:], strict=False):
        if block.info == info:
            assert after.info == then, after.where
            yield block, after


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    kinds = {
        "", "sh", "json", "json error", "console", "console fresh", "text banner", "toml", "toml complete",
        "toml wrong", "lua", "lua fragment", "lua raises", "lua tool",
    }  # fmt: skip
    assert [block.where for page in PAGES for block in blocks(page) if block.info not in kinds] == []


def test_every_json_example_is_json() -> None:
    for block in every_block("json", "json error"):
        json.loads(block.text)
    (error,) = every_block("json error")
    rows = {quoted(row[0])[0] for row in section(HTTP, "Errors").rows(0)}
    assert set(json.loads(error.text)["error"]) <= rows


@pytest.mark.parametrize("page", PAGES)
def test_every_internal_link_leads_somewhere(page: str) -> None:
    missing = []
    prose = re.sub(r"^```.*?^```$", "", read(page), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        if not file.exists():
            missing.append(target)
        elif anchor:
            there = sections(str(file.resolve().relative_to(ROOT)))
            if anchor not in {slug(found.title) for found in there}:
                missing.append(target)
    assert missing == []


def test_the_checks_find_what_is_wrong() -> None:
    assert list(differences({"a": 1}, {"a": 1, "b": 2})) == [": keys ['a'], not ['a', 'b']"]
    assert list(differences({"a": [{"b": "x …"}]}, {"a": [{"b": "x y"}, {}]})) == []
    assert list(differences({"a": [1]}, {"a": []})) == [".a: 1 items, not 0"]
    assert matches(["a", "...", "c"], ["a", "b", "b", "c"])
    assert not matches(["a", "..."], ["b"])
    assert slug("`GET /tools/sources`") == "get-toolssources"
    assert set(AgentInfo.model_fields) == {"name", "description", "tools", "source", "arguments"}

"""Undocumented means red, and so does documented but not there. The examples in the pages are run.

The pages are `docs/*.md`, `docs/scripting/*.md` and the README. What they list is read from their tables and headings
and compared, both ways, with the one list in the code; their requests are asked of a real server, their command lines
are run. What they say to the authors of scripts is checked in `test_docs_scripting.py`.
"""

import ast
import json
import re
import shlex
import shutil
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_origin

import httpx2
import pytest
import trio
from cli_support import Engine, in_this_process
from pages import (
    CLI,
    CONFIGURATION,
    HTTP,
    PAGES,
    ROOT,
    Block,
    Section,
    blocks,
    every_block,
    first_quoted,
    followed,
    quoted,
    read,
    section,
    sections,
    slug,
)
from pydantic import BaseModel

from agents.agent import AgentInfo
from agents.service import Service, open_service
from agents.tool import ToolInfo
from agents.tools.builtin import GET, SEARCH, SOURCES
from cli.commands.sync import fill_if_empty
from cli.main import run as run_command
from control.records import SCOPES
from engine import config as configuration
from engine.config import Config, ConfigError, LoadedConfig, ScriptEntry, parse_config
from engine.config.reading import ENVIRONMENT, LOOKED_UP
from engine.errors import Code, LimitUse, Problem
from engine.metrics import Metrics
from engine.quota import QUOTAS
from knowledge.store import Document, Hit, SourceInfo
from sandbox.wire.layers import LAYERS
from sandbox.wire.limits import SPECS
from sandbox.wire.outcome import Outcome
from server.about import listening, loaded_lines
from server.app import listen, open_app, serve_app
from server.http.routes import Need, Route
from server.mcp.handlers import Handlers
from server.mcp.listen import Listeners
from server.mcp.methods import METHODS
from server.rest import routes as rest
from storage.teams.budgets import BUDGETS

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
                if model is Config and "script" in kind.model_fields:
                    for entry, table in kind.model_fields.items():  # [connectors], [tools], [agents]: by kind and name
                        if get_origin(table.annotation) is dict:
                            walk(get_args(table.annotation)[1], f"{inner}.{entry}.NAME")
                        else:
                            walk(table.annotation, f"{inner}.{entry}")
                elif kind is configuration.LimitsConfig:
                    found[inner] = {s.name: s.default for s in SPECS.values()}
                    found[inner]["queue_timeout_s"] = kind.model_fields["queue_timeout_s"].default
                    found[f"{inner}.max"] = {s.name: s.ceiling for s in SPECS.values()}
                else:
                    walk(kind, inner)
            elif inner == "tenants.oauth":  # OAuthConfig or None
                walk(configuration.OAuthConfig, inner)
            elif inner == "tenants.oauth.issuers":
                walk(configuration.IssuerConfig, f"{inner}.NAME")
            elif inner in ("models.entries", "agents.chatmd.entries"):
                walk(get_args(kind)[1], f"{name}.NAME")
            elif inner == "mcp_servers":
                walk(configuration.McpServerEntry, "mcp_servers.NAME")
            elif inner == "teams.limits":  # beside the keys of the table itself
                keys |= {spec.name: spec.default for spec in BUDGETS.values()}
            elif inner == "tenants.quota":
                found[inner] = {spec.name: spec.default for spec in QUOTAS.values()}
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


def test_every_key_has_an_effect_in_some_table() -> None:
    effect: dict[str, set[bool]] = {}
    for name, found in config_sections().items():
        for row in found.rows() if "|---" in found.text and name != "agents.NAME" else ():
            effect.setdefault(quoted(row[0])[0], set()).add("*no effect*" not in row[3])
    assert [key for key, effects in effect.items() if effects == {False}] == []


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
    places = ["--config", *ENVIRONMENT, *LOOKED_UP]
    assert sorted(places, key=lambda place: text.index(f"`{place}")) == places


def test_every_environment_variable_is_in_the_table() -> None:
    read_by = {
        name
        for package in ("cli", "engine", "server")
        for path in (ROOT / package).rglob("*.py")
        for name in re.findall(r'"((?:ENGINE|CTX|OPENAI)_[A-Z_]+)"', path.read_text(encoding="utf-8"))
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
    assert set(Config.model_fields) - set(given) == {"embedding", "teams", "tools", "tenants"}


def test_every_mistake_is_told_as_the_page_shows_it() -> None:
    shown = list(followed("toml wrong", "", page=CONFIGURATION))
    assert len(shown) >= 2
    for block, message in shown:
        with pytest.raises(ConfigError) as caught:
            parse_config(block.text, environ={}, cwd=ROOT, shown_as="engine.toml")
        assert f"{caught.value}\n" == message.text


# ---- HTTP -------------------------------------------------------------------------------------------------------


def rest_routes() -> set[str]:
    routes = rest.Routes(SimpleNamespace(engine=None)).all()  # type: ignore[arg-type]
    return {_documented(route) for route in routes}


def _documented(route: Route) -> str:
    return f"{route.method} {re.sub('<[^>]+>', 'NAME', route.rule)}".removeprefix("* ")


def test_the_table_of_who_may_ask_is_the_table_of_routes() -> None:
    table = rest.Rest(rest.Routes(SimpleNamespace(engine=None)).all()).table  # type: ignore[arg-type]
    expected: dict[tuple[frozenset[str], bool, str], set[str]] = {}
    for route in table.routes:
        rule = route.need.value
        key = (rule.scopes, route.need is Need.NOTHING, rule.without_keys.value)
        expected.setdefault(key, set()).add(_documented(route))
    found: dict[tuple[frozenset[str], bool, str], set[str]] = {}
    for routes, keys, without in section(HTTP, "Who may ask").rows():
        open_to_all = keys == "no key"
        scopes = frozenset(SCOPES) if open_to_all else frozenset(quoted(keys))
        found[scopes, open_to_all, without] = set(quoted(routes))
    below = found.pop((frozenset(), False, "none"))
    assert below == {"/admin"}
    operators = expected.pop((frozenset(), False, "none"))
    assert all(each.split(" ")[1].startswith("/admin/") for each in operators)
    assert found == expected


def test_every_route_has_its_heading_and_every_heading_its_route() -> None:
    documented = [name for found in sections(HTTP) if found.level == 3 for name in found.code]
    assert len(documented) == len(set(documented))
    assert set(documented) == rest_routes()


def produced_codes() -> set[Code]:
    """Every code that agents, control, engine or server hand to a call or keep in a table, and those of outcomes."""
    found = {Code(outcome) for outcome in set(Outcome) & set(Code)}
    for package in ("agents", "control", "engine", "server"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "CodeSpec":  # a row, which answers nothing
                    continue
                match node:
                    case ast.Call():
                        values: list[ast.expr] = node.args
                    case ast.Dict():
                        values = node.values
                    case ast.IfExp():
                        values = [node.body, node.orelse]
                    case _:
                        continue
                for given in values:
                    if isinstance(given, ast.Attribute) and ast.unparse(given.value) == "Code":
                        found.add(Code[given.attr])
    return found


def test_every_code_that_can_be_answered_is_in_the_table_with_status_fault_and_retry() -> None:
    rows = section(HTTP, "Errors").rows(1)
    documented = {quoted(row[0])[0]: (int(row[1]), row[2], row[3]) for row in rows}
    assert len(rows) == len(documented)
    assert documented == {
        code.value: (code.spec.status, code.spec.fault, "yes" if code.spec.retry else "no") for code in produced_codes()
    }
    assert [row[0] for row in documented.values()] == sorted(row[0] for row in documented.values())


def test_every_key_of_the_error_envelope_is_in_the_table() -> None:
    use = LimitUse("timeout_s", 1, None, "s", "script")
    problem = Problem(Code.TIMEOUT, "", run_id="", limit=use, retry_after_s=1, traceback="", run={})
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
        family.name + ("_total" if family.type == "counter" else ""): family.type for family in Metrics().collect()
    }
    rows = section(HTTP, "GET /metrics").rows()
    assert {quoted(row[0])[0].partition("{")[0]: row[1] for row in rows} == expected


def test_every_mcp_method_is_in_the_table() -> None:
    from mcp_types.methods import SPEC_CLIENT_METHODS
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

    server = Handlers(SimpleNamespace(), Listeners()).server(lambda name: None)  # type: ignore[arg-type]
    ours = {method for method in {*SPEC_CLIENT_METHODS, *METHODS} if server.get_request_handler(method) is not None}
    text = section(HTTP, "MCP")
    assert set(first_quoted(text.rows())) == ours | {"initialize"}  # which the SDK answers without a handler
    assert all(version in text.text for version in HANDSHAKE_PROTOCOL_VERSIONS)
    assert {quoted(row[0])[0]: row[2] for row in text.rows()} == {name: row.limited for name, row in METHODS.items()}


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
        service.syncs.serving(),
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
_VOLATILE = frozenset(
    {"pristine", "idle", "leased", "closing", "queued", "version", "state", "detail", "longest", "longest_cpu"}
)
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


async def test_the_commands_of_the_page_on_teams_lead_from_a_team_to_its_first_answer(tmp_path: Path) -> None:
    text = f'[db]\npath = "{tmp_path}/engine.sqlite"\n[teams]\nenabled = true\n'
    config, _ = parse_config(text, environ={}, cwd=tmp_path, shown_as="engine.toml")
    lease, answers = "", []
    async with open_service(LoadedConfig(config, None, tmp_path, ())) as service, served(service) as client:
        for block in blocks("docs/teams.md"):
            for command in re.findall(r"^curl .*?(?=^curl |\Z)", block.text, re.MULTILINE | re.DOTALL):
                request = request_of(command.replace("TOKEN", lease))
                status, answer = await ask(client, request)
                assert status in (200, 201), answer
                lease = answer.get("lease", lease)
                answers.append(answer)
    turn, ended, inbox = answers[-3:]
    assert turn["prompt"] == "Message from USER:\nVersion 2.1 is out."
    assert ended == {"status": "committed"}
    assert inbox["messages"][0]["text"] == "Done: notes-2.1.md"


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
            for words in re.findall(r"^(?:\$ )?(?:\.venv/bin/)?engine ((?:[a-z][a-z-]* ?)+)", block.text, re.MULTILINE):
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


def printed_by(engine: Engine, words: list[str], folder: Path) -> tuple[int, list[str]]:
    """Exit code and printed lines of a command line, those of standard error first."""
    environ = {"ENGINE_CONFIG": "examples/engine.toml"} if (folder / "examples").exists() else {}
    ended = engine(*words, cwd=folder, **environ)
    return ended.code, (ended.err + ended.out).splitlines()


def run_block(engine: Engine, block: Block, folder: Path) -> list[str]:
    """Run the commands of a console block; what differs from what it shows."""
    wrong, code = [], 0
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        words = shlex.split(command)
        if words == ["echo", "$?"]:
            printed = [str(code)]
        else:
            code, printed = printed_by(engine, words[1:], folder)
        if not matches(shown, printed):
            wrong.append(f"{block.where}: {command}\n" + "\n".join(printed[:40]))
    return wrong


def test_every_command_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = in_this_process(tmp_path, monkeypatch, capsys)
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples", project / "examples", ignore=shutil.ignore_patterns(".data"))
    code, printed = printed_by(engine, ["sync", "all"], project)
    assert code == 0, printed
    wrong, found = [], list(every_block("console", "console fresh"))
    assert len(found) > 10
    for number, block in enumerate(found):
        folder = project if block.info == "console" else tmp_path / str(number)
        folder.mkdir(exist_ok=True)
        wrong += run_block(engine, block, folder)
    assert wrong == []


# ---- all pages --------------------------------------------------------------------------------------------------


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    kinds = {
        "", "sh", "sh teams", "json", "json error", "console", "console fresh", "console testing", "text banner",
        "toml", "toml complete", "toml wrong", "lua", "lua fragment", "lua raises", "lua tool", "json params",
        "json result", "text log", "python agent", "python tool", "python program", "python async program",
        "toml package", "chatmd",
    }  # fmt: skip
    # Files are written beside what reads them; the commands of docs/testing.md run in test_docs_testing.py.
    found = [block for page in PAGES for block in blocks(page) if not re.match(r"(lua|toml) file ", block.info)]
    assert [block.where for block in found if block.info not in kinds] == []


def test_every_json_example_is_json() -> None:
    for block in every_block("json", "json error", "json params", "json result"):
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
    assert set(AgentInfo.model_fields) == {"name", "description", "tools", "source", "arguments", "title", "expose"}

"""The demo that is shipped: every script loads, every agent answers from the demo's own documents."""

import tomllib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from agents_support import CALL, problem

from agents.service import Service, open_service
from engine.config import LoadedConfig, parse_config
from engine.errors import Code
from engine.tenant import DEFAULT_TENANT
from knowledge.connectors.filesystem import FilesystemConnector as Files
from knowledge.sqlite.store import open_store
from knowledge.sync import sync

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "examples" / "engine.toml"
DOCUMENTS = {path.stem for path in (ROOT / "examples/prompts").glob("*.chatmd")}
SCRIPTS = tomllib.loads(CONFIG.read_text(encoding="utf-8"))["agents"]["script"]


def demo(folder: Path) -> LoadedConfig:
    """The demo's configuration over a store of our own: the tree stays clean."""
    text = CONFIG.read_text(encoding="utf-8").replace('"examples/.data/', f'"{folder}/')
    config, warnings = parse_config(text, environ={}, cwd=ROOT)
    assert warnings == ()
    return LoadedConfig(config, CONFIG, ROOT)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's documents, synchronised once."""
    folder = tmp_path_factory.mktemp("demo")
    config = demo(folder).config

    async def fill() -> None:
        async with open_store(config.db.path, create=True) as opened:
            for name, connector in config.connectors.filesystem.items():
                files = Files(
                    connector.root, include_globs=connector.include_globs, exclude_globs=connector.exclude_globs
                )
                await sync(opened, f"filesystem:{name}", files)

    trio.run(fill)
    return folder


@pytest.fixture
async def service(store: Path) -> AsyncIterator[Service]:
    async with open_service(demo(store)) as opened:
        yield opened


async def test_everything_in_the_demo_loads_without_a_word(service: Service) -> None:
    assert service.failures == ()
    assert service.warnings == ()
    assert {info.name for info in service.list_agents(DEFAULT_TENANT)} >= set(SCRIPTS)
    sources = (await service.call_tool("sources", {}, CALL)).value["sources"]
    assert all(source["healthy"] and source["document_count"] > 0 for source in sources)


@pytest.mark.parametrize("arguments", [{}, {"service": "payments-api"}, {"role": "backend engineer", "language": "go"}])
async def test_every_agent_of_the_demo_resolves_or_names_the_argument_it_needs(
    service: Service, arguments: dict[str, str]
) -> None:
    for info in service.list_agents(DEFAULT_TENANT):
        missing = [argument.name for argument in info.arguments if argument.required and argument.name not in arguments]
        if missing:
            async with problem(Code.BAD_REQUEST, f"missing required argument: {missing[0]}"):
                await service.resolve(info.name, arguments, CALL)
            continue
        prompt = (await service.resolve(info.name, arguments, CALL)).prompt
        assert prompt.system.strip()
        assert set(prompt.tools) <= set(info.tools)


async def test_every_agent_of_the_demo_answers_with_all_its_arguments(service: Service) -> None:
    for info in service.list_agents(DEFAULT_TENANT):
        for value in ("payments-api", "", "%d %s %%", 5, True, ["a"], {"a": 1}):
            arguments = {argument.name: value for argument in info.arguments}
            if info.name == "incident-responder" and type(value) not in (str, int):
                continue  # this script concatenates its arguments
            if info.name in DOCUMENTS and not isinstance(value, str):
                continue  # refused: a message is a text
            prompt = (await service.resolve(info.name, arguments, CALL)).prompt
            assert prompt.system.strip()


async def test_the_incident_responder_is_the_one_of_the_specification(service: Service) -> None:
    (info,) = [info for info in service.list_agents(DEFAULT_TENANT) if info.name == "incident-responder"]
    assert info.description == "Helps triage production incidents with relevant runbooks"
    assert info.tools == ("search", "get", "create_jira_ticket")
    assert [(a.name, a.description, a.required) for a in info.arguments] == [
        ("service", "The service experiencing the incident", False),
        ("severity", "Incident severity (P1, P2, P3)", False),
    ]
    resolved = await service.resolve("incident-responder", {"service": "payments-api", "severity": "P1"}, CALL)
    prompt = resolved.prompt
    lines = prompt.system.splitlines()
    assert lines[0] == "You are an incident responder for the payments-api service (P1 severity)."
    assert lines[2:4] == [
        "Your job is to help triage and resolve the incident. You have access to",
        "the following runbooks and documentation:",
    ]
    assert lines[-5:] == [
        "",
        "Use the `search` tool to find additional relevant documentation.",
        "Use `create_jira_ticket` to create tracking tickets when needed.",
        "Be methodical: gather context, identify the issue, recommend actions.",
        "        ",
    ]
    assert prompt.system.count("\n\n---\n## ") == 5
    assert prompt.tools == ("search", "get", "create_jira_ticket")
    (message,) = prompt.messages
    assert message.role == "assistant"
    assert message.content == (
        "I'm ready to help with the P1 payments-api incident. I've loaded 5 relevant runbooks. "
        "What's the current situation?"
    )
    assert resolved.run is not None
    assert resolved.run.usage.host_calls == {"context.search": 1, "context.get": 5}


async def test_the_incident_responder_falls_back_where_nothing_is_said(service: Service) -> None:
    prompt = (await service.resolve("incident-responder", {}, CALL)).prompt
    assert prompt.system.startswith("You are an incident responder for the unknown service (P2 severity).")


async def test_the_tool_that_creates_tickets_is_offered_and_says_what_it_lacks(service: Service) -> None:
    listed = service.list_tools(DEFAULT_TENANT, "incident-responder")
    assert [info.name for info in listed] == ["search", "get", "create_jira_ticket"]
    async with problem(Code.TOOL_ERROR, "not set up: the configuration of this tool needs url, email and api_token"):
        await service.call_tool("create_jira_ticket", {"title": "Disk is full"}, CALL, agent="incident-responder")


async def test_what_the_demo_finds_can_be_read(service: Service) -> None:
    hits = (await service.call_tool("search", {"query": "payments", "source": "runbooks", "limit": 2}, CALL)).value[
        "results"
    ]
    assert hits
    for hit in hits:
        document = (await service.call_tool("get", {"id": hit["id"]}, CALL)).value
        assert document["source"] == hit["source"] == "filesystem:runbooks"
        assert document["body"]
        assert document["chunks"]


async def test_every_document_of_the_demo_runs_with_its_scripted_model(service: Service) -> None:
    assert set(DOCUMENTS) == {"hello_world", "on-call", "weekly-report"}
    hello = await service.call_tool("hello_world", {"input": "What is the weather?"}, CALL)
    assert hello.value.startswith("I'm afraid I don't have real-time weather data")
    on_call = await service.call_tool("on-call", {"input": "What do I do about card declines?"}, CALL)
    assert on_call.value.startswith("Follow the runbook of payments-api for card declines")
    assert on_call.model_run is not None
    assert (on_call.model_run.turns, on_call.model_run.tool_calls) == (2, 1)
    report = await service.call_tool("weekly-report", {"service": "payments-api", "week": "2026-W20"}, CALL)
    assert report.value["incidents"] == ["card declines"]
    assert report.model_run is not None
    assert report.model_run.tool_calls == 2
    other = await service.call_tool("hello_world", {"input": "Who are you?"}, CALL)
    assert "I am the scripted model of the demo" in other.value

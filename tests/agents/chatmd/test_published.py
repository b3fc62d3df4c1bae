"""Documents that tenants publish: read from their package alone, under the grants that were approved."""

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from agents_support import CALL, Project, problem
from publish_support import ADMIN, PUBLISHER, TOOL, package

from agents.package import Package
from agents.publishing.manifest import parse_package
from agents.publishing.publish import Published
from agents.service import Service
from engine.errors import Code, Problem
from engine.tenant import DEFAULT_TENANT
from engine.usage import report

Open = Callable[..., AbstractAsyncContextManager[Service]]

MODELS = """
[models.small]
api = "script"
path = "small.toml"
[models.large]
api = "script"
path = "large.toml"
"""
HELLO = '<import src="parts/tone.chatmd" local/>\n<user>Read <doc src="data/facts.md" local/></user>\n'
FILES = {
    "main.chatmd": HELLO,
    "parts/tone.chatmd": "<system>Be %s.</system>",
    "data/facts.md": "It rains.",
}


def document(version: str = "1", says: str = "brief", **more: Any) -> dict[str, Any]:
    files = {**FILES, "parts/tone.chatmd": FILES["parts/tone.chatmd"] % says}
    return package(version=version, kind="chatmd", main="main.chatmd", **{"files": files, **more})


async def publish(service: Service, body: dict[str, Any], name: str = "rain") -> Published:
    return await service.publishing.publish(DEFAULT_TENANT, PUBLISHER, "agent", name, body)


async def approve(service: Service, version: str = "1") -> Any:
    return await service.publishing.change(DEFAULT_TENANT, ADMIN, "agent", "rain", version, "approve")


async def prompt(service: Service) -> tuple[str, str]:
    async with service.published(DEFAULT_TENANT):
        found = (await service.resolve("rain", {}, CALL)).prompt
    return found.system, found.messages[0].content


async def asked(service: Service) -> Any:
    async with service.published(DEFAULT_TENANT):
        return (await service.call_tool("rain", {"input": "Well?"}, CALL)).value


@pytest.fixture
def configured(project: Project) -> Project:
    for name in ("small", "large"):
        (project.folder / f"{name}.toml").write_text(f'[[reply]]\ntext = "says {name}"\n')
    project.configure(MODELS)
    return project


async def test_a_published_document_is_a_prompt_and_a_tool_with_the_model_that_was_approved(
    configured: Project, opened: Open
) -> None:
    async with opened() as service:
        assert not (await publish(service, document())).waits
        assert await prompt(service) == ("Be brief.", "Read It rains.")
        async with problem(Code.UNAVAILABLE, "it was granted no model of yours (grants.models)"):
            await asked(service)
        added = await publish(service, document("2", "kind", grants={"models": ["large"]}))
        assert added.version["asks"] == {"models": ["large"]}
        assert await prompt(service) == ("Be brief.", "Read It rains."), "it waits"
        shown = await service.publishing.show(DEFAULT_TENANT, ADMIN, "agent", "rain", "2")
        assert shown["grants"]["models"] == ["large"]
        assert (await approve(service, "2"))["active"]
        assert await prompt(service) == ("Be kind.", "Read It rains.")
        assert await asked(service) == "says large", "and not the tenant's default"
        assert not (await publish(service, document("3", "calm", grants={"models": ["large"]}))).waits
        async with problem(Code.UNAVAILABLE, "its model 'small' is not one of yours"):
            await publish(service, document("4", config={"model": "small"}, grants={"models": ["large"]}))
            await asked(service)
        booked = {row["version"] for row in report(await service.usage.sums_of("default"))["by_version"]}
        assert "agent:rain@2" in booked
    async with opened() as service:  # made anew from what is stored
        assert await prompt(service) == ("Be brief.", "Read It rains.")


async def test_whether_a_published_document_can_run_follows_the_models(configured: Project, opened: Open) -> None:
    async with opened() as service:
        await publish(service, document())
        await publish(service, document("2", grants={"models": ["large"]}))
        await approve(service, "2")

        async def described() -> str:
            async with service.published(DEFAULT_TENANT):
                tools = {tool.name: tool.description for tool in service.list_tools(DEFAULT_TENANT)}
            return tools["rain"]

        config = service.loaded.config
        without = config.model_copy(update={"models": type(config.models)()})
        assert "It cannot run" not in await described()
        service.means.models.use(without)
        assert "It cannot run: it was granted no model of yours (grants.models)." in await described()
        async with problem(Code.UNAVAILABLE, "cannot run"):
            await asked(service)
        service.means.models.use(config)
        assert "It cannot run" not in await described()
        assert await asked(service) == "says large"


# main, more files, key of config -> what the refusal says
REFUSED: dict[str, tuple[str, dict[str, str], dict[str, Any], str]] = {
    "unclosed": ("<user>a</user>\n  <system>b", {}, {}, "unclosed: main.chatmd:2:3: "),
    "import": ('<import src="a.chatmd" local/>', {"a.chatmd": "<user>x</user>\n<user>"}, {}, "a.chatmd:2:1: "),
    "missing": ('<import src="gone.chatmd" local/>', {}, {}, "file-missing: main.chatmd:1:1: "),
    "outside": ('<user><doc src="../../etc/passwd" local/></user>', {}, {}, "file-outside: main.chatmd:1:7: "),
    "address": ('<user><doc src="http://127.0.0.1/x"/></user>', {}, {}, "a package takes no texts from addresses"),
    "image": ('<user><img src="http://127.0.0.1/x.png"/></user>', {}, {}, "file-outside: main.chatmd:1:7: "),
    "cycle": ('<import src="main.chatmd" local/>', {}, {}, "import-cycle: main.chatmd:1:1: "),
    "key": ("<user>a</user>", {}, {"path": "/etc/passwd"}, "config: a document has no key 'path'"),
    "schema": ("<user>a</user>", {}, {"parameters": {"type": "what"}}, "parameters"),
    "roots": ("<user>a</user>", {}, {"roots": ["/"]}, "config: a document has no key 'roots'"),
}


async def test_what_cannot_be_read_is_refused_with_its_place_and_nothing_is_stored(
    configured: Project, opened: Open
) -> None:
    tool = configured.script("taken", TOOL).replace("agents.script", "tools.script")
    configured.configure(MODELS + tool)
    async with opened() as service:
        for case, (main, more, config, says) in REFUSED.items():
            with pytest.raises(Problem) as refused:
                await publish(service, document(files={"main.chatmd": main, **more}, config=config), case)
            assert refused.value.code is Code.BAD_REQUEST, case
            assert says in refused.value.message, case
        async with service.published(DEFAULT_TENANT):
            assert service.list_agents(DEFAULT_TENANT) == []
        async with problem(Code.CONFLICT, "builtin tool"):
            await publish(service, document(), "search")
        async with problem(Code.CONFLICT, "has a tool of this name"):
            await publish(service, document(), "taken")
        await publish(service, document())
        assert await prompt(service) == ("Be brief.", "Read It rains.")


MIB = "x" * 1_000_000


async def test_what_is_small_as_files_and_large_when_it_is_made_is_refused_in_little_time(
    configured: Project, opened: Open
) -> None:
    many = '<doc src="a.md" local/>' * 3_000
    deep = {f"d{n}.chatmd": '<import src="values.chatmd" local/>' for n in range(12)}
    agents = "".join(f'<agent src="{name}" local/>' for name in deep)
    bombs = {
        "shown": {"main.chatmd": f"<user>{many}</user>", "a.md": MIB},
        "inside": {"main.chatmd": f"<user>{agents}</user>", "values.chatmd": "<user>a</user>" * 20_000, **deep},
        "messages": {"main.chatmd": "<user>a</user>" * 1_025},
        "values": {"main.chatmd": f"<user>{many}{many}</user>", "a.md": "x"},
        "imports": {"main.chatmd": '<import src="a.chatmd" local/>' * 3_000, "a.chatmd": "<user>a</user>" * 1000},
    }
    async with opened() as service:
        for case, files in bombs.items():
            began_s = time.process_time()
            async with problem(Code.BAD_REQUEST, "too-large"):
                await publish(service, document(files=files), case)
            assert time.process_time() - began_s < 3
        await publish(service, document())
        assert await prompt(service) == ("Be brief.", "Read It rains.")


async def test_tools_need_grants_and_servers_are_none_of_a_tenants(configured: Project, opened: Open) -> None:
    main = (
        '<tool name="search"/><tool name="drop"/><tool mcp_server="http://127.0.0.1:1/mcp"/>'
        '<tool name="read_file"/><tool name="read_dir"/><user>a</user>'
    )
    async with opened() as service:
        added = await publish(service, document(files={"main.chatmd": main}))
        assert any("'drop' is declared, but not among grants.tools" in text for text in added.version["warnings"])
        async with service.published(DEFAULT_TENANT):
            (info,) = service.list_agents(DEFAULT_TENANT)
            resolved = await service.resolve("rain", {}, CALL)
        assert info.tools == ("search",)
        reasons = {each["name"]: each["reason"] for each in resolved.about["engine/chatmd"]["unavailable"]}
        assert reasons["http://127.0.0.1:1/mcp"] == "a published document has no MCP servers"
        assert reasons["read_file"] == reasons["read_dir"] == "a package of one file has no folder to read"


def test_models_are_for_documents_alone_and_all_files_of_one_are_read_with_it() -> None:
    with pytest.raises(Problem, match=r"grants\.models is for packages of kind 'chatmd'"):
        parse_package("agent", "a", package(grants={"models": ["m"]}))
    with pytest.raises(Problem, match=r"grants\.models: 'a b' cannot name a model"):
        parse_package("agent", "a", document(grants={"models": ["a b"]}))
    made: Package = parse_package("agent", "a", document())
    assert made.head is None

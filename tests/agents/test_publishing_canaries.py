"""Canaries through the service: one caller gets one version, in lists and calls, in this process and every other."""

import json
import tarfile
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from agents_support import Project
from publish_support import ADMIN, PUBLISHER, package, tool
from structlog.testing import capture_logs
from test_publishing import ACME, change, publish
from test_publishing_moved import _changed

from agents.agent import Call
from agents.changes import Change
from agents.service import Service
from control.files import packages_path
from control.moving import export_tenant, import_tenant
from control.versions.share import is_served
from engine.errors import Problem
from engine.run import Hearers
from engine.tenant import DEFAULT_TENANT, Tenant
from engine.usage import report

Open = Callable[..., AbstractAsyncContextManager[Service]]

KEYS = [f"key_{number}" for number in range(40)]


async def share(service: Service, version: str, percent: object, name: str = "helper", root: Any = "agent") -> Any:
    return await service.publishing.change(DEFAULT_TENANT, ADMIN, root, name, version, "activate", percent)


def caller(key: str, tenant: Tenant = DEFAULT_TENANT) -> Call:
    return Call(replace(tenant, key=key))


async def says(service: Service, key: str, tenant: Tenant = DEFAULT_TENANT) -> str:
    call = caller(key, tenant)
    async with service.published(call.tenant):
        return (await service.resolve("helper", {"who": "you"}, call)).prompt.system


async def split(service: Service, tenant: Tenant = DEFAULT_TENANT) -> dict[str, str]:
    return {key: (await says(service, key, tenant)).removesuffix(" for you") for key in KEYS}


def expected(percent: int, version: str = "2", tenant: str = "default") -> dict[str, str]:
    """What each caller gets: version 1 says one, version 2 says two."""
    return {key: "two" if is_served(tenant, "helper", version, key, percent) else "one" for key in KEYS}


async def two(service: Service, tenant: Tenant = DEFAULT_TENANT) -> None:
    """Version 1 is active, version 2 is not."""
    await publish(service, package("two", "2"), tenant=tenant)
    await publish(service, package("one", "1"), tenant=tenant)


async def test_a_share_of_the_callers_gets_the_canary_until_it_ends(project: Project, opened: Open) -> None:
    project.configure()
    async with opened() as service:
        await two(service)
        shown = await share(service, "2", 50)
        assert (shown["active"], shown["percent"]) == (False, 50)
        half = await split(service)
        assert half == expected(50)
        assert set(half.values()) == {"one", "two"}
        assert half == await split(service), "each caller keeps its version"
        await share(service, "2", 90)
        more = await split(service)
        assert {key for key in KEYS if half[key] == "two"} < {key for key in KEYS if more[key] == "two"}
        listed = await service.publishing.history(DEFAULT_TENANT, PUBLISHER, "agent", "helper")
        assert {each["version"]: (each["active"], each["percent"]) for each in listed} == {
            "2": (False, 90), "1": (True, 10),
        }  # fmt: skip
        await share(service, "1", 100)
        assert set((await split(service)).values()) == {"one"}
        await share(service, "2", 10)
        await change(service, "activate", "2")
        assert set((await split(service)).values()) == {"two"}


async def test_callers_without_a_key_are_one_caller(project: Project, opened: Open) -> None:
    project.configure()
    async with opened() as service:
        await two(service)
        for percent in (1, 50, 99):
            await share(service, "2", percent)
            async with service.published(DEFAULT_TENANT):
                got = (await service.resolve("helper", {}, Call(DEFAULT_TENANT))).prompt.system
            assert got == f"{'two' if is_served('default', 'helper', '2', '', percent) else 'one'} for nobody"


LISTED = """
agent = { title = "T%s", tools = {%s}, arguments = {{name = "a%s"}} }
function agent.resolve(args) return { system = "%s", tools = agent.tools } end
function agent.complete(argument, value) return { "%s" } end
"""


def listed(version: str, *tools: str) -> dict[str, Any]:
    names = ", ".join(f"'{name}'" for name in tools)
    return package(version=version, files={"main.lua": LISTED % (version, names, version, version, version)})


async def test_lists_completions_and_the_tools_of_an_agent_are_of_the_version_that_the_caller_gets(
    project: Project, opened: Open
) -> None:
    project.configure()
    async with opened() as service:
        await publish(service, listed("2", "get"))
        await publish(service, listed("1", "search"))
        await share(service, "2", 50)
        seen = set()
        for key in KEYS:
            call = caller(key)
            version = "2" if is_served("default", "helper", "2", key, 50) else "1"
            seen.add(version)
            async with service.published(call.tenant):
                (info,) = service.list_agents(call.tenant)
                assert info == service.agent_info(call.tenant, "helper")
                assert (info.title, info.arguments[0].name) == (f"T{version}", f"a{version}")
                tools = [each.name for each in service.list_tools(call.tenant, "helper")]
                assert tools == [{"1": "search", "2": "get"}[version]]
                assert await service.complete("helper", "a", "", {}, call) == (version,)
                assert (await service.resolve("helper", {}, call)).prompt.system == version
                with pytest.raises(Problem, match="may not use the tool"):
                    await service.call_tool({"1": "get", "2": "search"}[version], {}, call, agent="helper")
        assert seen == {"1", "2"}


ADDS = "tool = { description = 'v%s', parameters = {{name = 'a%s'}} } function tool.execute() return '%s' end"
CALLS = """
agent = { tools = {"adder"} }
function agent.resolve(args, config, context) return { system = context.call_tool("adder", {}) } end
"""


async def test_a_tool_that_a_script_calls_is_of_the_version_that_the_caller_gets(
    project: Project, opened: Open
) -> None:
    project.configure()
    async with opened() as service:
        for version in ("2", "1"):
            source = ADDS % (version, version, version)
            await publish(service, tool(version, source), "adder", root="tool")
        await publish(service, package(files={"main.lua": CALLS}, grants={"tools": ["adder"]}), who=ADMIN)
        await change(service, "approve", "1", ADMIN)
        await share(service, "2", 50, "adder", "tool")
        seen = set()
        for key in KEYS[:16]:
            call = caller(key)
            version = "2" if is_served("default", "adder", "2", key, 50) else "1"
            seen.add(version)
            async with service.published(call.tenant):
                info = service.tool_info(call.tenant, "adder")
                assert info is not None
                assert info.description == f"v{version}"
                assert info in service.list_tools(call.tenant)
                assert (await service.call_tool("adder", {}, call)).value == version
                assert (await service.resolve("helper", {}, call)).prompt.system == version
        assert seen == {"1", "2"}


async def test_a_canary_is_the_same_after_a_restart_and_in_another_process(project: Project, opened: Open) -> None:
    project.configure()
    async with opened() as service, opened() as other:
        await two(service)
        await share(service, "2", 30)
        assert await split(service) == await split(other) == expected(30)
        await share(other, "2", 60)
        assert await split(service) == expected(60)
    async with opened() as service:
        assert await split(service) == expected(60)
        await change(service, "activate", "1")
    async with opened() as service:
        assert set((await split(service)).values()) == {"one"}


async def test_a_store_from_before_there_were_canaries_takes_them(project: Project, opened: Open) -> None:
    project.configure()
    async with opened() as service:
        await two(service)
        await service.control._database.write(lambda db: db.execute("DROP TABLE canaries"))
    async with opened() as service:
        assert set((await split(service)).values()) == {"one"}
        await share(service, "2", 50)
        assert await split(service) == expected(50)


async def test_both_versions_have_their_own_files(project: Project, opened: Open) -> None:
    project.configure()
    reads = "agent = {}\nfunction agent.resolve() return {system = fs.read('x.md')} end"
    async with opened() as service:
        for version, text in (("2", "two"), ("1", "one")):
            await publish(service, package(version=version, files={"main.lua": reads, "x.md": text}))
        await share(service, "2", 50)
        folder = packages_path(service.loaded.config.db.path, "default")
        assert len(list(folder.iterdir())) == 2
    async with opened() as service:  # copies that no version needs are removed then
        assert await split(service) == expected(50)
        assert len(list(folder.iterdir())) == 2


async def test_changes_at_once_leave_one_state_and_no_call_without_an_answer(project: Project, opened: Open) -> None:
    project.configure()
    async with opened() as service, opened() as other:
        await two(service)
        seen: set[str] = set()

        async def calls(engine: Service) -> None:
            for key in KEYS[:12]:
                seen.add(await says(engine, key))

        async def shares(engine: Service) -> None:
            for percent in (10, 90, 100, 50):
                with suppress(Problem):  # the other one may have made it the active version meanwhile
                    await share(engine, "2", percent)
                await change(engine, "activate", "1")

        async with trio.open_nursery() as nursery:
            for engine in (service, other):
                nursery.start_soon(calls, engine)
                nursery.start_soon(shares, engine)
        assert seen <= {"one for you", "two for you"}
        await share(service, "2", 50)
        assert await split(service) == await split(other) == expected(50)


async def test_a_call_in_progress_ends_with_the_version_that_it_began_with(project: Project, opened: Open) -> None:
    project.configure()
    waits = (
        "agent = { tools = {'search'} }\nfunction agent.resolve(a, c, context) log.info('in') "
        "sleep(0.4) return {system = 'two'} end"
    )
    async with opened() as service:
        await publish(service, package(version="2", files={"main.lua": waits}))
        await publish(service, package("one", "1"))
        await share(service, "2", 50)
        key = next(key for key in KEYS if is_served("default", "helper", "2", key, 50))
        began, got = trio.Event(), []

        async def call() -> None:
            tenant = replace(DEFAULT_TENANT, key=key)
            async with service.published(tenant):
                heard = Call(tenant, Hearers(log=lambda line: began.set()))
                got.append((await service.resolve("helper", {}, heard)).prompt.system)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await began.wait()
            await change(service, "activate", "1")
            assert await says(service, key) == "one for you"
        assert got == ["two"]


async def test_runs_are_metered_by_version(project: Project, opened: Open) -> None:
    project.configure()
    async with opened() as service:
        await two(service)
        await share(service, "2", 50)
        await split(service)
        usage = report(await service.usage.sums_of("default"))
    ran = {row["version"]: row["runs"] for row in usage["by_version"]}
    counts = list(expected(50).values())
    assert ran == {"agent:helper@1": counts.count("one"), "agent:helper@2": counts.count("two")}
    (row,) = usage["by_agent"]
    assert (row["agent"], row["runs"]) == ("agent:helper", len(KEYS) + 2), "with the two that described the scripts"


async def test_the_log_of_a_run_names_the_version(project: Project, opened: Open) -> None:
    project.configure()
    logs = "agent = {}\nfunction agent.resolve() log.info('here') return {system = 'x'} end"
    async with opened() as service:
        for version in ("2", "1"):
            await publish(service, package(version=version, files={"main.lua": logs + f" -- {version}"}))
        await share(service, "2", 50)
        with capture_logs() as records:
            for key in KEYS[:8]:
                await says(service, key)
    ran = [record["script"] for record in records if record["event"] == "script log"]
    assert ran == [f"helper@{2 if is_served('default', 'helper', '2', key, 50) else 1}" for key in KEYS[:8]]
    assert len(set(ran)) == 2


async def test_lists_are_said_to_change_when_a_canary_is_listed_otherwise(project: Project, opened: Open) -> None:
    project.configure()
    heard: list[Change] = []
    async with opened() as service, service.published(DEFAULT_TENANT):
        await publish(service, package("two", "2"))
        await publish(service, package("one", "1"))
        same = {**package("one", "3"), "config": {"other": True}}
        await publish(service, same, who=ADMIN)
        await change(service, "activate", "1")
        with service.changes.heard_by(heard.append):
            await share(service, "3", 50)
            assert heard == [], "it is listed like the active one"
            for percent in (50, 60, 100):
                await share(service, "2", percent)
                assert heard == [Change(agents=True, tools=False, tenant="default")], percent
                heard.clear()


@pytest.mark.parametrize("forged", ["nothing", "percent", "version", "no active one", "text"])
async def test_a_canary_moves_with_its_tenant_and_goes_with_it(
    project: Project, opened: Open, tmp_path: Path, forged: str
) -> None:
    def forge(tables: Any) -> None:
        (row,) = tables["canaries"]["rows"]
        at = tables["canaries"]["columns"].index
        match forged:
            case "percent":
                row[at("percent")] = 100
            case "text":
                row[at("percent")] = "many"
            case "version":
                row[at("version")] = "9"
            case "no active one":
                columns = tables["versions"]["columns"]
                for version in tables["versions"]["rows"]:
                    version[columns.index("active")] = 0

    project.configure("[tenants]\nenabled = true\n")
    file = tmp_path / "acme.tar"
    async with opened() as service:
        db = service.loaded.config.db.path
        await service.control.tenants.create("acme", actor="cli")
        await two(service, ACME)
        await service.publishing.change(ACME, ADMIN, "agent", "helper", "2", "activate", 50)
        await export_tenant(service.control, db, "acme", file, actor="cli")
        removed = await service.control.tenants.delete("acme", actor="cli")
        assert (removed["removed"]["canaries"], removed["left"]["canaries"]) == (1, 0)
        _changed(file, forge)
        if forged in ("percent", "text"):
            with pytest.raises(Problem):
                await import_tenant(service.control, db, file, actor="cli")
            return
        await import_tenant(service.control, db, file, actor="cli")
        listed = await service.publishing.history(ACME, ADMIN, "agent", "helper")
        assert {each["version"]: each["percent"] for each in listed} == {
            "nothing": {"1": 50, "2": 50}, "version": {"1": 100, "2": 0}, "no active one": {"1": 0, "2": 0},
        }[forged], "lists show what is called"  # fmt: skip
        if forged == "nothing":
            assert await split(service, ACME) == expected(50, tenant="acme")
        elif forged == "version":
            assert set((await split(service, ACME)).values()) == {"one"}
        else:
            with pytest.raises(Problem, match="no agent registered"):
                await says(service, KEYS[0], ACME)


async def test_an_export_from_before_there_were_canaries_is_imported(
    project: Project, opened: Open, tmp_path: Path
) -> None:
    project.configure("[tenants]\nenabled = true\n")
    file = tmp_path / "acme.tar"
    async with opened() as service:
        db = service.loaded.config.db.path
        await service.control.tenants.create("acme", actor="cli")
        await two(service, ACME)
        await export_tenant(service.control, db, "acme", file, actor="cli")
        await service.control.tenants.delete("acme", actor="cli")
        _changed(file, lambda tables: tables.pop("canaries"))
        with tarfile.open(file) as tar:
            assert "canaries" not in json.load(tar.extractfile("tenant.json") or pytest.fail("no rows"))["tables"]
        await import_tenant(service.control, db, file, actor="cli")
        assert set((await split(service, ACME)).values()) == {"one"}

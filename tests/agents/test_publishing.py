"""Publishing through the service: what is kept, what is called, and what is refused."""

import errno
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import trio
from agents_support import CALL, Project, problem
from publish_support import ADMIN, OPERATOR, PUBLISHER, key, package, tool

import agents.publishing.active
from agents.agent import Call
from agents.changes import Change
from agents.package import Root
from agents.publishing.publish import Published
from agents.service import Service
from control.files import packages_path
from control.identity import ANONYMOUS, Identity
from control.store import open_configured
from control.versions import rows
from control.versions.grants import Grants
from engine.errors import Code, Problem
from engine.run import Hearers
from engine.tenant import DEFAULT_TENANT, Tenant

Open = Callable[..., AbstractAsyncContextManager[Service]]

ACME = Tenant("acme")


async def publish(
    service: Service,
    body: Mapping[str, Any],
    name: str = "helper",
    who: Identity = PUBLISHER,
    root: Root = "agent",
    tenant: Tenant = DEFAULT_TENANT,
) -> Published:
    return await service.publishing.publish(tenant, who, root, name, body)


async def change(service: Service, action: Any, version: str, who: Identity = PUBLISHER, name: str = "helper") -> Any:
    return await service.publishing.change(DEFAULT_TENANT, who, "agent", name, version, action)


async def system(service: Service, name: str = "helper", tenant: Tenant = DEFAULT_TENANT, **args: str) -> str:
    """What the agent says now."""
    async with service.published(tenant):
        return (await service.resolve(name, args or {"who": "you"}, Call(tenant))).prompt.system


async def names(service: Service, tenant: Tenant = DEFAULT_TENANT) -> list[str]:
    async with service.published(tenant):
        return [info.name for info in service.list_agents(tenant)]


# ---- what is called -----------------------------------------------------------------------------------------------


async def test_a_published_agent_is_listed_and_called_at_once(project: Project, opened: Open) -> None:
    project.configure()
    async with opened() as service:
        published = await publish(service, package())
        assert published.created
        assert not published.waits
        assert published.version["active"] is True
        assert await system(service) == "one for you"
        async with service.published(DEFAULT_TENANT):
            (info,) = service.list_agents(DEFAULT_TENANT)
        assert (info.name, info.description, info.tools) == ("helper", "Says one", ("search", "get"))
        assert [argument.name for argument in info.arguments] == ["who"]


async def test_a_published_tool_checks_its_parameters_and_answers(project: Project, opened: Open) -> None:
    project.configure()
    async with opened() as service:
        await publish(service, tool(), "adder", root="tool")
        async with service.published(DEFAULT_TENANT):
            assert (await service.call_tool("adder", {"a": 41}, CALL)).value == {"sum": 42}
            async with problem(Code.BAD_REQUEST, "a"):
                await service.call_tool("adder", {"a": "x"}, CALL)


async def test_an_inline_agent_can_be_published(project: Project, opened: Open) -> None:
    project.configure()
    text = 'description = "Reads"\nsystem_prompt = "Read ${HOME}."\ntools = ["search", "other"]'
    body = package(kind="toml", main="a.toml", files={"a.toml": text}, arguments=[{"name": "who", "required": True}])
    async with opened() as service:
        published = await publish(service, body)
        assert published.version["warnings"] == [
            "the tool 'other' is declared, but not among grants.tools, so it is left out"
        ]
        assert await system(service) == "Read ${HOME}."
        async with service.published(DEFAULT_TENANT):
            (info,) = service.list_agents(DEFAULT_TENANT)
            assert (info.source, info.tools) == ("toml", ("search",))
            async with problem(Code.BAD_REQUEST, "who"):
                await service.resolve("helper", {}, CALL)


async def test_a_script_reads_the_files_that_were_published_with_it_and_no_others(
    project: Project, opened: Open
) -> None:
    project.configure()
    reads = (
        "agent = {}\nfunction agent.resolve() local ok, err = pcall(fs.read, '../../engine.toml') "
        "return {system = fs.read('data/ä.md') .. tostring(ok)} end"
    )
    body = package(main="lua/main.lua", files={"lua/main.lua": reads, "data/ä.md": "Größe "})
    async with opened() as service:
        await publish(service, body)
        assert await system(service) == "Größe false"


async def test_everything_is_there_after_a_restart_and_no_worker_is_asked_again(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.configure()
    async with opened() as service:
        await publish(service, package(files={**package()["files"], "x.md": "x"}))
        await publish(service, tool(), "adder", root="tool")
    async with opened() as service:
        assert await names(service) == ["helper"]
        async with service.published(DEFAULT_TENANT):
            assert service.tool_info(DEFAULT_TENANT, "adder") is not None
        assert b'engine_runs_total{outcome="ok"} 0.0' in service.engine.render_metrics()
        assert await system(service) == "one for you"
        assert b'engine_runs_total{outcome="ok"} 1.0' in service.engine.render_metrics()


async def test_a_copy_of_published_files_that_was_removed_is_made_again(project: Project, opened: Open) -> None:
    project.configure()
    reads = "agent = {}\nfunction agent.resolve() return {system = fs.read('x.md')} end"
    async with opened() as service:
        await publish(service, package(files={"main.lua": reads, "x.md": "first"}))
        folder = packages_path(service.loaded.config.db.path, "default")
    (copy,) = folder.iterdir()
    for path in copy.iterdir():
        path.unlink()
    copy.rmdir()
    (folder / "of-nobody").mkdir()
    async with opened() as service:
        assert await system(service) == "first"
        assert [path.name for path in folder.iterdir()] == [copy.name]


async def test_a_published_script_gets_its_config_and_only_what_it_was_granted(project: Project, opened: Open) -> None:
    project.configure()
    asks = (
        "agent = {}\nfunction agent.resolve(args, config, context) "
        "local ok, err = pcall(http.get, 'http://127.0.0.1:9/') "
        "return {system = config.greeting .. ' ' .. tostring(env.get('HOME')) .. ' ' .. tostring(err)} end"
    )
    async with opened(HOME="/root") as service:
        await publish(service, package(files={"main.lua": asks}, config={"greeting": "Hi"}))
        said = await system(service)
        assert said.startswith("Hi nil ")
        assert "allow_hosts" in said or "not" in said


async def test_a_call_under_way_ends_on_the_version_that_it_began_with(project: Project, opened: Open) -> None:
    project.configure()
    waits = (
        "agent = {}\nfunction agent.resolve(args, config, context) log.info('begun') sleep(0.4) "
        "return {system = fs.read('x.md')} end"
    )
    async with opened() as service:
        await publish(service, package(files={"main.lua": waits, "x.md": "old"}))
        begun = trio.Event()
        said: list[str] = []

        async def call() -> None:
            async with service.published(DEFAULT_TENANT):
                resolved = await service.resolve(
                    "helper", {}, Call(DEFAULT_TENANT, Hearers(log=lambda line: begun.set()))
                )
            said.append(resolved.prompt.system)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await begun.wait()
            await publish(service, package("new", "2"))
            assert await system(service) == "new for you"
            assert said == []
        assert said == ["old"]


async def test_what_a_tenant_publishes_is_its_own(project: Project, opened: Open) -> None:
    project.configure()
    async with opened() as service:
        await service.control.tenants.create("acme", actor="cli")
        await publish(service, package("acme's"), tenant=ACME, who=key("publish", tenant=ACME))
        assert await names(service) == []
        assert await system(service, tenant=ACME) == "acme's for you"
        async with service.published(DEFAULT_TENANT):
            async with problem(Code.NOT_FOUND, "no agent registered with name: helper"):
                await service.resolve("helper", {}, CALL)
            async with problem(Code.NOT_FOUND, "no agent registered with name: nobody"):
                await service.resolve("nobody", {}, CALL)
        async with problem(Code.NOT_FOUND):
            await service.publishing.history(DEFAULT_TENANT, PUBLISHER, "agent", "helper")
        await publish(service, package("default's"))
        assert await system(service) == "default's for you"
        assert await system(service, tenant=ACME) == "acme's for you"


async def test_those_who_listen_hear_of_what_their_tenant_publishes(project: Project, opened: Open) -> None:
    project.configure()
    heard: list[Change] = []
    async with opened() as service, service.published(DEFAULT_TENANT):
        with service.changes.heard_by(heard.append):
            await publish(service, package())
            await publish(service, package("one", "2"))  # the same to see, so there is nothing to tell
            await publish(service, tool(), "adder", root="tool")
        assert heard == [
            Change(agents=True, tools=False, tenant="default"),
            Change(agents=False, tools=True, tenant="default"),
        ]


async def test_what_another_process_publishes_is_called_with_the_next_request_and_told_of(
    project: Project, opened: Open
) -> None:
    project.configure()
    heard: list[Change] = []
    async with opened() as service, opened() as other, trio.open_nursery() as nursery:
        nursery.start_soon(service.active.watch)
        async with service.published(DEFAULT_TENANT):
            told = trio.Event()

            def hear(change: Change) -> None:
                heard.append(change)
                told.set()

            with service.changes.heard_by(hear):
                await publish(other, package())
                with trio.fail_after(30):
                    await told.wait()
            assert [info.name for info in service.list_agents(DEFAULT_TENANT)] == ["helper"]
        await publish(other, package("two", "2"))
        assert await system(service) == "two for you"
        nursery.cancel_scope.cancel()
    assert heard == [Change(agents=True, tools=False, tenant="default")]


# ---- versions -----------------------------------------------------------------------------------------------------


async def test_the_same_content_again_changes_nothing_and_another_one_is_a_conflict(
    project: Project, opened: Open
) -> None:
    project.configure()
    async with opened() as service:
        first = await publish(service, package("one", "1"))
        await publish(service, package("two", "2"))
        again = await publish(service, package("one", "1"))
        assert not again.created
        assert again.version["digest"] == first.version["digest"]
        assert again.version["active"] is False
        assert await system(service) == "two for you"
        async with problem(Code.CONFLICT, "version 1", "versions never change"):
            await publish(service, package("other", "1"))
        assert await system(service) == "two for you"


async def test_a_tenant_rolls_back_and_forth(project: Project, opened: Open) -> None:
    project.configure()
    async with opened() as service:
        for version, says in (("1", "one"), ("2", "two")):
            await publish(service, package(says, version))
        assert (await change(service, "activate", "1"))["active"] is True
        assert await system(service) == "one for you"
        await change(service, "activate", "2")
        assert await system(service) == "two for you"
        found = await service.publishing.history(DEFAULT_TENANT, PUBLISHER, "agent", "helper")
        assert [(each["version"], each["active"]) for each in found] == [("2", True), ("1", False)]
        async with problem(Code.NOT_FOUND, "no version '3'"):
            await change(service, "activate", "3")


async def test_a_deprecated_version_is_out_of_service_for_good(project: Project, opened: Open) -> None:
    project.configure()
    async with opened() as service:
        await publish(service, package())
        gone = await change(service, "deprecate", "1")
        assert (gone["active"], gone["deprecated"]) == (False, True)
        assert await names(service) == []
        for action, who in (("activate", PUBLISHER), ("approve", ADMIN)):
            async with problem(Code.CONFLICT, "deprecated"):
                await change(service, action, "1", who)
        await publish(service, package("one", "2"))
        assert await system(service) == "one for you"


# ---- approval -----------------------------------------------------------------------------------------------------


async def test_a_version_that_asks_for_more_waits_and_the_one_before_goes_on(project: Project, opened: Open) -> None:
    project.configure()
    async with opened() as service:
        await publish(service, package("one", "1"))
        waits = await publish(service, package("two", "2", grants={"hosts": ["API.example.com"]}))
        assert waits.created
        assert waits.waits
        assert waits.version["active"] is False
        assert waits.version["asks"] == {"hosts": ["api.example.com"]}
        assert await system(service) == "one for you"
        async with problem(Code.CONFLICT, "hosts api.example.com", "approve it"):
            await change(service, "activate", "2")
        async with problem(Code.FORBIDDEN, "'admin'"):
            await change(service, "approve", "2", PUBLISHER)
        approved = await change(service, "approve", "2", ADMIN)
        assert (approved["active"], approved["asks"], approved["approved_by"]) == (True, {}, "key:key_1")
        assert await system(service) == "two for you"
        third = await publish(service, package("three", "3", grants={"hosts": ["api.example.com"]}))
        assert third.version["active"] is True
        fourth = await publish(
            service, package("four", "4", grants={"hosts": ["api.example.com", "b.example.com"], "secrets": ["TOKEN"]})
        )
        assert fourth.version["asks"] == {"hosts": ["b.example.com"], "secrets": ["TOKEN"]}
        assert await system(service) == "three for you"


async def test_what_was_approved_ends_with_the_versions_that_were_deprecated(project: Project, opened: Open) -> None:
    project.configure()
    asks = {"hosts": ["api.example.com"]}
    async with opened() as service:
        await publish(service, package("one", "1", grants=asks))
        await change(service, "approve", "1", ADMIN)
        await change(service, "deprecate", "1")
        again = await publish(service, package("two", "2", grants=asks))
        assert again.version["asks"] == asks
        assert again.version["active"] is False


async def test_private_addresses_and_the_environment_need_the_operator(project: Project, opened: Open) -> None:
    project.configure()
    grants = {"hosts": ["127.0.0.1:8080", "api.example.com"], "env": ["HOME"]}
    async with opened() as service:
        await publish(service, package(grants=grants))
        async with problem(Code.FORBIDDEN, "127.0.0.1:8080", "env HOME", "operator"):
            await change(service, "approve", "1", ADMIN)
        assert await names(service) == []
        assert (await change(service, "approve", "1", OPERATOR))["active"] is True
        assert await names(service) == ["helper"]


async def test_limits_and_tools_that_all_tenants_have_need_no_approval(project: Project, opened: Open) -> None:
    project.configure("[limits]\ntimeout_s = 30\n[limits.max]\ntimeout_s = 120\n")
    async with opened() as service:
        free = await publish(service, package(grants={"limits": {"timeout_s": 5}, "tools": ["search"]}))
        assert free.version["active"] is True
        more = await publish(service, package("two", "2", grants={"limits": {"timeout_s": 600}}))
        assert more.version["asks"] == {"limits": {"timeout_s": 600.0}}
        assert more.version["warnings"] == [
            "timeout_s = 600 is above the ceiling and will be 120, as set by the engine"
        ]


async def test_tools_are_those_declared_narrowed_by_the_manifest_and_by_what_was_approved(
    project: Project, opened: Open
) -> None:
    project.configure()
    source = "agent = { tools = {'search', 'get', 'adder', 'other'} }\nfunction agent.resolve() return {system='S'} end"
    body: dict[str, Any] = {"files": {"main.lua": source}}

    async with opened() as service:
        await publish(service, tool(), "adder", root="tool")

        async def tools() -> tuple[str, ...]:
            async with service.published(DEFAULT_TENANT):
                info = service.agent_info(DEFAULT_TENANT, "helper")
            assert info is not None
            return info.tools

        await publish(service, package(version="1", **body))
        assert await tools() == ("search", "get")
        await publish(service, package(version="2", tools=["get", "adder"], **body))
        assert await tools() == ("get",)
        await publish(service, package(version="3", tools=["get", "adder"], grants={"tools": ["adder"]}, **body))
        await change(service, "approve", "3", ADMIN)
        assert await tools() == ("get", "adder")


# ---- refusals -----------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a syntax error": ({"files": {"main.lua": "agent = {"}}, "main.lua:1"),
    "no agent": ({"files": {"main.lua": "x = 1"}}, "agent"),
    "no resolve": ({"files": {"main.lua": "agent = {}"}}, "agent.resolve is missing"),
    "a wrong shape": (
        {"files": {"main.lua": "agent = {tools = 3} function agent.resolve() end"}}, "tools must be a list",
    ),
    "an endless loop": ({"files": {"main.lua": "while true do end"}}, "does not load ("),
    "a memory bomb": ({"files": {"main.lua": "x = string.rep('x', 1 << 30)"}}, "does not load"),
    "a path trick": ({"files": {**package()["files"], "../x": ""}}, "'..'"),
    "not TOML": ({"kind": "toml", "files": {"main.lua": "x = "}}, "not valid TOML"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
async def test_a_bad_package_is_refused_with_the_reason_and_leaves_only_an_audit_row(
    case: str, project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.code.describing.DESCRIBE_TIMEOUT_S", 0.7)
    project.configure()
    keys, said = BAD[case]
    async with opened() as service:
        async with problem(Code.BAD_REQUEST, said):
            await publish(service, package(**keys))
        async with problem(Code.NOT_FOUND):
            await service.publishing.history(DEFAULT_TENANT, PUBLISHER, "agent", "helper")
        (row,) = await service.control.audit.last()
        assert (row.action, row.target, row.outcome, row.actor) == (
            "agent.publish", "helper 1", "bad_request", "key:key_1",
        )  # fmt: skip
        await publish(service, package())
        assert await system(service) == "one for you"


async def test_a_name_that_the_configuration_offers_is_a_conflict_that_names_it(project: Project, opened: Open) -> None:
    script = project.script("theirs", "agent = {} function agent.resolve() return {system = 'config'} end")
    everybody = '[agents.shared]\ndescription = "D"\nsystem_prompt = "S"\ntenants = ["*"]\n'
    project.configure(script + everybody)
    async with opened() as service:
        await service.control.tenants.create("acme", actor="cli")
        acme = key("publish", tenant=ACME)
        for name in ("theirs", "Theirs", "shared"):
            async with problem(Code.CONFLICT, "configuration has"):
                await publish(service, package(), name)
        async with problem(Code.CONFLICT, "shared"):
            await publish(service, package(), "shared", acme, tenant=ACME)
        await publish(service, package(), "theirs", acme, tenant=ACME)
        assert await names(service, ACME) == ["shared", "theirs"]


async def test_a_name_that_differs_in_case_alone_is_a_conflict(project: Project, opened: Open) -> None:
    project.configure()
    async with opened() as service:
        await publish(service, package())
        async with problem(Code.CONFLICT, "differs only in letter case"):
            await publish(service, package(), "Helper")


async def test_a_tool_cannot_take_the_name_of_a_builtin_one(project: Project, opened: Open) -> None:
    project.configure()
    async with opened() as service, problem(Code.CONFLICT, "builtin"):
        await publish(service, tool(), "search", root="tool")


async def test_publishing_takes_the_scope_or_the_machine(project: Project, opened: Open) -> None:
    project.configure()
    async with opened() as service:
        for who in (key("use"), key("admin")):
            async with problem(Code.FORBIDDEN, "'publish'"):
                await publish(service, package(), who=who)
        async with problem(Code.FORBIDDEN, "this machine"):
            await publish(service, package(), who=ANONYMOUS)
        async with problem(Code.FORBIDDEN):
            await service.publishing.history(DEFAULT_TENANT, key("use"), "agent", "helper")
        await publish(service, package(), who=OPERATOR)
        assert await names(service) == ["helper"]


async def test_stored_bytes_bound_what_a_tenant_can_publish(project: Project, opened: Open) -> None:
    project.configure("[tenants]\nenabled = true\n")
    async with opened() as service:
        await service.control.tenants.create("acme", actor="cli", quotas={"stored_bytes": 20_000})
        tenant = await service.control.tenants.for_runs("acme")
        acme = key("publish", tenant=tenant)
        small, large = package(), package("two", "2", files={**package("two")["files"], "x.md": "x" * 20_000})
        await publish(service, small, who=acme, tenant=tenant)
        async with problem(Code.QUOTA_EXCEEDED, "quota.stored_bytes"):
            await publish(service, large, who=acme, tenant=tenant)
        assert not packages_path(service.loaded.config.db.path, "acme").exists()
        assert await system(service, tenant=tenant) == "one for you"


async def test_a_flood_of_versions_ends_at_a_bound(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rows.MAX_VERSIONS == 1_000
    monkeypatch.setattr(rows, "MAX_VERSIONS", 2)
    project.configure()
    async with opened() as service:
        for version in ("1", "2"):
            await publish(service, package("one", version))
        async with problem(Code.QUOTA_EXCEEDED, "2 versions of 'helper'"):
            await publish(service, package("one", "3"))
        await publish(service, package("other"), "other")
        assert await names(service) == ["helper", "other"]


async def test_a_tenant_that_is_deleted_meanwhile_gets_nothing(project: Project, opened: Open) -> None:
    project.configure()
    with_file = package(files={**package()["files"], "x.md": "x"})
    async with opened() as service:
        async with problem(Code.NOT_FOUND, "no longer exists"):
            await publish(service, with_file, who=key("publish", tenant=ACME), tenant=ACME)
        assert not packages_path(service.loaded.config.db.path, "acme").exists()


# ---- races, and disks ---------------------------------------------------------------------------------------------


async def test_of_two_contents_for_one_version_one_is_kept_and_the_other_refused(
    project: Project, opened: Open
) -> None:
    project.configure()
    async with opened() as service:
        ended: list[str] = []

        async def one(says: str) -> None:
            try:
                await publish(service, package(says))
                ended.append(says)
            except Problem as refused:
                ended.append(refused.code.value)

        async with trio.open_nursery() as nursery:
            for says in ("a", "b", "c", "d"):
                nursery.start_soon(one, says)
        assert ended.count("conflict") == 3
        (kept,) = [each for each in ended if each != "conflict"]
        assert await system(service) == f"{kept} for you"


async def test_publishing_activating_and_calling_at_once_never_finds_nothing_or_something_mixed(
    project: Project, opened: Open
) -> None:
    project.configure()
    # The script and its file are of one version, or they differ.
    reads = "agent = {}\nfunction agent.resolve() return {system = '%s' .. fs.read('x.md')} end"
    async with opened() as service:
        bodies = {
            version: package(version=version, files={"main.lua": reads % version, "x.md": version})
            for version in ("1", "2", "3")
        }
        await publish(service, bodies["1"])
        seen: set[str] = set()

        async def calls() -> None:
            for _ in range(15):
                seen.add(await system(service))

        async def switches() -> None:
            for version in ("2", "3"):
                await publish(service, bodies[version])
                for back in ("1", version):
                    await change(service, "activate", back)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(calls)
            nursery.start_soon(calls)
            nursery.start_soon(switches)
        assert seen <= {"11", "22", "33"}
        assert await system(service) == "33"


async def test_a_disk_that_is_full_refuses_the_upload_and_nothing_is_half_done(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.configure()
    with_file = package("two", "2", files={**package("two")["files"], "x.md": "x"})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with opened() as service:
        await publish(service, package())
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            async with problem(Code.UNAVAILABLE, "No space left", "nothing was changed"):
                await publish(service, with_file)
        folder = packages_path(service.loaded.config.db.path, "default")
        assert list(folder.iterdir()) == []
        found = await service.publishing.history(DEFAULT_TENANT, PUBLISHER, "agent", "helper")
        assert [each["version"] for each in found] == ["1"]
        assert await system(service) == "one for you"
        await publish(service, with_file)
        assert await system(service) == "two for you"


async def test_a_store_that_is_full_refuses_the_upload_and_nothing_is_half_done(project: Project, opened: Open) -> None:
    project.configure()
    large = package("two", "2", files={**package("two")["files"], "x.md": "x" * 300_000})
    async with opened() as service:
        await publish(service, package())

        def no_growth(db: Any) -> int:
            return int(db.pragma("max_page_count", db.pragma("page_count")))

        await service.control._database.write(no_growth)
        async with problem(Code.UNAVAILABLE, "full", "nothing was changed"):
            await publish(service, large)
        assert await system(service) == "one for you"
        await service.control._database.write(lambda db: int(db.pragma("max_page_count", 2**30)))
        await publish(service, large)
        assert await system(service) == "two for you"


async def test_idle_tenants_are_evicted_and_come_back(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents.publishing.active, "KEPT_TENANTS", 1)
    project.configure()
    async with opened() as service:
        await publish(service, package())
        for number in range(3):
            async with service.published(Tenant(f"t{number}")):
                pass
        assert service.registry.agents("default") == []
        assert await system(service) == "one for you"
        async with service.published(DEFAULT_TENANT):
            for number in range(3):
                async with service.published(Tenant(f"t{number}")):
                    assert [agent.info.name for agent in service.registry.agents("default")] == ["helper"]


async def test_a_control_store_appears_with_the_first_publication_and_not_before(
    project: Project, opened: Open
) -> None:
    project.configure()
    async with opened() as service:
        assert await names(service) == []
        assert not service.control.path.exists()
        await publish(service, package())
        assert service.control.path.exists()
        store: Path = service.control.path
    async with opened() as service, open_configured(service.loaded.config) as control:
        assert control.path == store


async def test_what_was_approved_is_read_once_for_a_history(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.configure()
    async with opened() as service:
        for n in range(5):
            await publish(service, package(version=str(n), grants={"hosts": [f"{n}.example"]}), who=ADMIN)
        await change(service, "approve", "2", ADMIN)
        read: list[str] = []
        monkeypatch.setattr(
            rows, "approved", lambda db, tenant, root, name: read.append(name) or Grants(hosts=("2.example",))
        )
        found = await service.publishing.history(DEFAULT_TENANT, PUBLISHER, "agent", "helper")
        assert read == ["helper"]
        asked = {each["version"]: each["asks"] for each in found}
        assert asked == {str(n): {} if n == 2 else {"hosts": [f"{n}.example"]} for n in range(5)}

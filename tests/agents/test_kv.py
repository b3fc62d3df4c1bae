"""`kv` of configured and of published scripts: who is granted it, whose keys they are, and how long they last."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from agents_support import CALL, Project, agent, problem
from publish_support import ADMIN, PUBLISHER, package

from agents.agent import Call
from agents.publishing.publish import Published
from agents.service import Service
from control.versions.grants import beyond, for_the_operator, joined, parse_grants
from engine.config import ConfigError, load_config
from engine.errors import Code, Problem
from engine.tenant import DEFAULT_TENANT, Tenant

Open = Callable[..., AbstractAsyncContextManager[Service]]

COUNTS = agent("return {system = tostring(kv.incr('n'))}")
TOOL = "tool = { tools = {} } function tool.execute() return { n = (kv.incr('n')) } end"


async def says(service: Service, name: str, tenant: Tenant = DEFAULT_TENANT) -> str:
    return (await service.resolve(name, {}, Call(tenant))).prompt.system


async def test_keys_are_the_entrys_own_and_outlive_runs_and_restarts(project: Project, opened: Open) -> None:
    (project.folder / "t.lua").write_text(TOOL)
    entries = [project.script(name, COUNTS, "kv = true\ntenants = ['default', 'acme']") for name in ("a", "b")]
    project.configure("".join(entries) + '[tools.script.a]\npath = "t.lua"\nkv = true\n')
    async with opened() as service:
        assert [await says(service, "a") for _ in range(3)] == ["1", "2", "3"]
        assert await says(service, "b") == "1"
        assert (await service.call_tool("a", {}, CALL)).value == {"n": 1}
        assert await says(service, "a", Tenant("acme")) == "1"
    async with opened() as service:
        assert await says(service, "a") == "4"
        assert await says(service, "a", Tenant("acme")) == "2"
        # An edited script finds the keys of the one before.
        project.script("a", agent("return {system = 'now ' .. kv.get('n')}"))
        await service.load_again(service.loaded)
        assert await says(service, "a") == "now 4"


async def test_what_is_used_of_the_quota_is_shown_unless_the_file_is_damaged(project: Project, opened: Open) -> None:
    project.configure(project.script("a", COUNTS, "kv = true"))
    async with opened() as service:
        assert await service.stored(DEFAULT_TENANT) == {"kv_bytes": 0}
        await says(service, "a")
        used = await service.stored(DEFAULT_TENANT)
        shown = service.engine.show_quotas(DEFAULT_TENANT, used)["kv_bytes"]
        assert shown == {"value": 64 << 20, "unit": "bytes", "source": "engine", "used": 130}
    for each in (project.folder / "data").glob("store.kv.*"):
        each.unlink()
    (project.folder / "data" / "store.kv.sqlite").write_text("no database " * 100)
    async with opened() as service:
        assert await service.stored(DEFAULT_TENANT) == {}
        async with problem(Code.AGENT_ERROR, "kv.incr: the key-value store cannot be opened"):
            await says(service, "a")


async def test_without_the_grant_the_error_says_what_grants_it(project: Project, opened: Open) -> None:
    project.configure(project.script("a", COUNTS) + project.script("b", COUNTS, "kv = false"))
    async with opened() as service:
        for name in ("a", "b"):
            async with problem(Code.AGENT_ERROR, f"kv.incr: '{name}' is not granted keys; kv = true in its entry"):
                await says(service, name)
    assert not (project.folder / "data" / "store.kv.sqlite").exists()


@pytest.mark.parametrize("value", ["'mine'", "1", "['a']"])
def test_the_grant_is_true_or_false(project: Project, value: str) -> None:
    project.configure(project.script("a", COUNTS, f"kv = {value}"))
    with pytest.raises(ConfigError, match=r"agents\.script\.a\.kv"):
        load_config(project.folder / "engine.toml", environ={}, cwd=project.folder)


async def test_a_call_while_a_script_is_loaded_says_where_it_belongs(project: Project, opened: Open) -> None:
    project.configure(project.script("a", "kv.get('a')\n" + COUNTS, "kv = true"))
    async with opened() as service:
        (failure,) = service.failures
    assert "kv.get cannot be called while a script is loaded" in failure.message


async def test_a_script_with_keys_has_side_effects(project: Project, opened: Open) -> None:
    (project.folder / "t.lua").write_text(TOOL)
    project.configure('[tools.script.keeps]\npath = "t.lua"\nkv = true\n[tools.script.pure]\npath = "t.lua"\n')
    async with opened() as service:
        tools = {tool.name: tool.read_only for tool in service.list_tools(DEFAULT_TENANT)}
    assert (tools["keeps"], tools["pure"]) == (False, True)


async def test_a_script_cannot_read_the_file_of_the_keys(project: Project, opened: Open) -> None:
    reads = agent("kv.set('a', 1) local ok, why = pcall(fs.read, args.path) return {system = tostring(why)}")
    project.configure(project.script("a", reads, "kv = true"))
    file = project.folder / "engine.toml"
    file.write_text(file.read_text().replace("data/store.sqlite", "store.sqlite"))
    async with opened() as service:
        for name in ("store.kv.sqlite", "store.kv.sqlite-wal", "store.kv.sqlite-shm"):
            said = (await service.resolve("a", {"path": name}, CALL)).prompt.system
            assert name in {each.name for each in project.folder.iterdir()}
            assert "fs.read: " in said, said


async def test_a_published_script_keeps_keys_once_that_is_approved(project: Project, opened: Open) -> None:
    project.configure()

    async def publish(service: Service, version: str, source: str = COUNTS) -> Published:
        body = package(version=version, files={"main.lua": source}, grants={"kv": True})
        return await service.publishing.publish(DEFAULT_TENANT, PUBLISHER, "agent", "counts", body)

    async with opened() as service:
        waits = await publish(service, "1")
        assert waits.version["asks"] == {"kv": True}
        await service.publishing.change(DEFAULT_TENANT, ADMIN, "agent", "counts", "1", "approve")
        async with service.published(DEFAULT_TENANT):
            assert [await says(service, "counts") for _ in range(2)] == ["1", "2"]
        # The approval and the keys are the name's: the next version has both.
        assert not (await publish(service, "2", COUNTS + " -- again")).waits
        async with service.published(DEFAULT_TENANT):
            assert await says(service, "counts") == "3"


@pytest.mark.parametrize("given", [1, "true", [], None, {}])
def test_the_grant_of_a_manifest_is_true_or_false(given: object) -> None:
    with pytest.raises(Problem, match=r"grants\.kv must be true or false"):
        parse_grants({"kv": given})


def test_the_grant_is_beyond_what_was_approved_unless_it_was() -> None:
    asked, nothing = parse_grants({"kv": True, "env": []}), parse_grants({})
    assert asked
    assert str(asked) == "kv"
    assert asked.as_json()["kv"] is True
    assert asked.non_empty() == {"kv": True}
    assert beyond(asked, nothing).kv
    assert not beyond(asked, asked)
    assert not beyond(nothing, asked)
    assert joined((nothing, asked)).kv
    assert not for_the_operator(asked)

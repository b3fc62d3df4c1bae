"""A tenant's secrets in its scripts, with everything real but the host: which may use them, and that none sees them."""

import base64
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import structlog
import trio
from agents_support import Project, problem
from standin import Asked, Said, StandIn, stand_in

from agents.agent import Call
from agents.service import Service, open_service
from control.store import open_configured
from engine.config import load_config
from engine.egress.redaction import MASK
from engine.errors import Code, Problem
from engine.run import CallRecord, Hearers, LogLine, RunResult
from engine.tenant import DEFAULT_TENANT, Tenant

KEY = base64.b64encode(bytes(range(32))).decode()
SENTINEL = 'sentinel-7d1f/+é"x\\y'
ACME, ZETA = Tenant("acme"), Tenant("zeta")

SCRIPT = """
tool = { name = 't', parameters = { type = 'object', properties = { way = { type = 'string' } } } }
local top = secrets.TOKEN
function tool.execute(params, context)
    assert(top == secrets.TOKEN)
    log.info('secret', secrets.TOKEN, context.config.auth)
    local url = context.config.base .. '/echo'
    local headers = { ['X-Key'] = secrets.TOKEN, Authorization = http.basic_auth('me', context.config.auth) }
    local response = http.post(url .. '?k=' .. secrets.TOKEN, { token = secrets.TOKEN }, { headers = headers })
    log.info(response.body)
    context.progress(0.5, response.body)
    if params.way == 'fail' then error(response.body) end
    if params.way == 'elsewhere' then
        http.get(context.config.other .. '/', { headers = { ['X-Key'] = secrets.TOKEN } })
    end
    return { body = response.body, headers = response.headers, url = response.url, seen = secrets.TOKEN }
end
"""


def echo(asked: Asked) -> Said:
    said = {"target": asked.target, "headers": dict(asked.headers), "body": asked.body.decode()}
    return Said(200, json.dumps(said).encode(), {"X-Echo": asked.headers.get("x-key", "").encode().hex()})


@dataclass
class Place:
    """A service with the tool, a host that echoes, another one, and all that anybody could read of what happened."""

    service: Service
    host: StandIn
    other: StandIn
    lines: list[LogLine] = field(default_factory=list)
    steps: list[Any] = field(default_factory=list)
    calls: list[CallRecord] = field(default_factory=list)

    async def call(self, tenant: Tenant = DEFAULT_TENANT, **params: Any) -> tuple[Any, RunResult | None]:
        call = Call(
            tenant,
            Hearers(log=self.lines.append, progress=lambda *step: self.steps.append(step), call=self.calls.append),
        )
        with trio.fail_after(30):
            called = await self.service.call_tool("t", params, call)
        return called.value, called.run

    async def set(self, tenant: str, value: str, host: str, name: str = "TOKEN") -> None:
        await self.service.control.secrets.set(tenant, name, value, [host], actor="cli")


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    """Every event of every logger, ours and of libraries, at every level."""
    records: list[Any] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record.getMessage())

    handler, root = Keep(), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    with structlog.testing.capture_logs() as events:
        records.append(events)
        yield records
    root.removeHandler(handler)
    root.setLevel(before)


@asynccontextmanager
async def placed(project: Project, script: str = SCRIPT, keys: str = "", **environ: str) -> AsyncIterator[Place]:
    async with stand_in(echo) as host, stand_in(echo) as other:
        (project.folder / "t.lua").write_text(script)
        project.configure(
            f"""
            [tenants]
            enabled = true
            operator_key = "operator-key-of-the-test"
            secrets_key = "{KEY}"
            [tools.script.t]
            path = "t.lua"
            tenants = ["*"]
            allow_hosts = ["{host.address}", "{other.address}"]
            base = "http://{host.address}"
            other = "http://{other.address}"
            auth = "secret:TOKEN"
            {keys}
            """
        )
        loaded = load_config(project.folder / "engine.toml", environ=environ, cwd=project.folder)
        async with open_service(loaded) as service:
            assert service.failures == ()
            for tenant in ("acme", "zeta"):
                await service.control.tenants.create(tenant, actor="cli")
            yield Place(service, host, other)


@pytest.fixture
async def place(project: Project) -> AsyncIterator[Place]:
    async with placed(project) as place:
        yield place


def forms(value: str) -> set[str]:
    """The value, and how it looks in JSON, in Python's repr and in hexadecimal."""
    plain = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], value.encode().hex()}
    return plain | {repr(each)[1:-1] for each in plain}


def assert_unseen(shown: object) -> None:
    text = repr(shown)
    for form in forms(SENTINEL):
        assert form not in text


async def test_a_secret_reaches_its_host_and_is_in_nothing_that_anybody_reads(
    place: Place, project: Project, logged: list[Any]
) -> None:
    await place.set("default", SENTINEL, place.host.address)
    answer, result = await place.call()
    (asked,) = place.host.asked
    assert json.loads(asked.body) == {"token": SENTINEL}
    assert base64.b64decode(asked.headers["authorization"].split()[1]).decode() == f"me:{SENTINEL}"
    assert MASK in answer["body"]
    assert answer["headers"]["x-echo"] == MASK
    with pytest.raises(Problem) as failed:
        await place.call(way="fail")
    with pytest.raises(Problem) as refused:
        await place.call(way="elsewhere")
    assert "the secret TOKEN is bound to" in refused.value.message
    assert place.other.asked == []
    audit = await place.service.control.audit.last()
    metrics = place.service.engine.render_metrics().decode()
    kept = await place.service.control.secrets.all("default")
    raised = [(each.value.message, each.value.traceback) for each in (failed, refused)]
    shown = (answer, result, place.lines, place.steps, place.calls, raised, logged, metrics, audit, kept)
    for each in (*shown, place.service.registry):
        assert_unseen(each)
    for file in project.folder.rglob("*"):
        if file.is_file():
            assert SENTINEL.encode() not in file.read_bytes(), file


async def test_every_tenant_uses_its_own_secret_of_the_same_name(place: Place) -> None:
    await place.set("acme", "the-token-of-acme", place.host.address)
    await place.set("zeta", "the-token-of-zeta", place.host.address)
    for tenant in (ACME, ZETA):
        answer, _ = await place.call(tenant)
        assert place.host.asked[-1].headers["x-key"] == f"the-token-of-{tenant.id}"
        assert "the-token" not in repr(answer)


async def test_a_secret_that_is_changed_or_deleted_is_so_from_the_next_call_on(place: Place) -> None:
    await place.set("acme", "the-first-value", place.host.address)
    await place.call(ACME)
    await place.set("acme", "the-second-value", place.host.address)
    await place.call(ACME)
    assert [asked.headers["x-key"] for asked in place.host.asked] == ["the-first-value", "the-second-value"]
    # As the command line does it, in another process with a connection of its own.
    async with open_configured(place.service.loaded.config) as elsewhere:
        await elsewhere.secrets.delete("acme", "TOKEN", actor="cli")
    async with problem(Code.TOOL_ERROR, "tool 't': its key auth names the secret 'TOKEN'", "tenant 'acme' has none"):
        await place.call(ACME)
    await place.set("acme", "the-third-value", place.host.address)
    await place.call(ACME)
    assert place.host.asked[-1].headers["x-key"] == "the-third-value"


async def test_a_caller_cannot_name_a_secret_by_what_it_passes(project: Project) -> None:
    script = """
        tool = { parameters = { type = 'object', properties = { text = { type = 'string' } } } }
        function tool.execute(params, context)
            return http.post(context.config.base, params.text).body .. ' ' .. tostring(#secrets.TOKEN)
        end
    """
    async with placed(project, script) as place:
        await place.set("default", "the-real-value", place.host.address)
        for text in ("secret:TOKEN", "secret_TOKEN_" + "0" * 32, "secrets.TOKEN"):
            await place.call(text=text)
            assert place.host.asked[-1].body.decode() == text


async def test_a_secret_that_there_is_not_is_nil_and_the_log_says_so(project: Project) -> None:
    script = """
        tool = {}
        function tool.execute() return { none = secrets.NONE == nil, names = (function()
            local names = {} for name in pairs(secrets) do names[#names + 1] = name end return names end)() }
        end
    """
    async with placed(project, script) as place:
        await place.set("default", "the-real-value", place.host.address)
        answer, _ = await place.call()
        assert answer == {"none": True, "names": ["TOKEN"]}
        (line,) = place.lines
        assert (line.level, line.text) == (
            "warn",
            "secrets.NONE: there is no such secret for this script, so it is nil",
        )


async def test_a_script_uses_the_secrets_that_it_was_granted_and_no_others(place: Place) -> None:
    await place.set("default", "the-real-value", place.host.address)
    await place.set("default", "the-other-value", place.host.address, "OTHER")
    offered = place.service.registry.tool("default", "t")
    assert offered is not None
    tool: Any = offered.tool
    granted = replace(tool.authority, secrets=frozenset({"OTHER"}))
    script = replace(tool.script, entry=tool.script.entry.model_copy(update={"extra": {}}))
    with pytest.raises(Problem, match="attempt to concatenate a nil value"):
        await script.run("execute", ({},), Call(DEFAULT_TENANT), granted)
    with pytest.raises(Problem, match="its key auth names the secret 'TOKEN'"):
        await tool.script.run("execute", ({},), Call(DEFAULT_TENANT), granted)
    assert place.host.asked == []


async def test_a_wrong_secrets_key_stops_what_needs_a_secret_and_nothing_else(project: Project) -> None:
    plain = "tool = {} function tool.execute() return {fine = true, none = secrets.TOKEN == nil} end"
    async with placed(project, plain) as place:
        await place.set("acme", "the-real-value", place.host.address)
    text = (project.folder / "engine.toml").read_text()
    other_key = base64.b64encode(bytes(32)).decode()
    for keys, code in (("", None), ('auth = "secret:TOKEN"', Code.TOOL_ERROR)):
        changed = text.replace(KEY, other_key).replace('auth = "secret:TOKEN"', keys)
        (project.folder / "engine.toml").write_text(changed)
        loaded = load_config(project.folder / "engine.toml", environ={}, cwd=project.folder)
        async with open_service(loaded) as service:
            if code is None:
                called = await service.call_tool("t", {}, Call(ACME))
                assert called.value == {"fine": True, "none": True}
                continue
            async with problem(code, "its key auth names the secret 'TOKEN'", "cannot be opened"):
                await service.call_tool("t", {}, Call(ACME))
            assert (await service.call_tool("sources", {}, Call(ACME))).value == {"sources": []}


async def test_without_tenants_the_default_one_may_have_secrets_and_no_file_is_made_for_asking(
    project: Project,
) -> None:
    script = "tool = {} function tool.execute() return {none = secrets.TOKEN == nil} end"
    (project.folder / "t.lua").write_text(script)
    project.configure(f'[tenants]\nsecrets_key = "{KEY}"\n[tools.script.t]\npath = "t.lua"\n')
    loaded = load_config(project.folder / "engine.toml", environ={}, cwd=project.folder)
    async with open_service(loaded) as service:
        assert (await service.call_tool("t", {}, Call(DEFAULT_TENANT))).value == {"none": True}
        assert not await trio.Path(service.control.path).exists()
        # The command line makes it, and the server that runs sees it.
        async with open_configured(loaded.config) as elsewhere:
            await elsewhere.secrets.set("default", "TOKEN", "the-real-value", ["api.example.com"], actor="cli")
        assert (await service.call_tool("t", {}, Call(DEFAULT_TENANT))).value == {"none": False}


async def test_a_tenant_has_a_bounded_number_of_secrets_and_can_change_those_that_it_has(place: Place) -> None:
    for number in range(64):
        await place.set("acme", "some-value", place.host.address, f"S{number}")
    async with problem(Code.CONFLICT, "tenant 'acme' has 64 secrets; the most is 64"):
        await place.set("acme", "some-value", place.host.address)
    await place.service.control.secrets.delete("acme", "S1", actor="cli")
    await place.set("acme", "the-real-value", place.host.address)
    await place.set("acme", "the-new-value", place.host.address)
    await place.call(ACME)
    assert place.host.asked[-1].headers["x-key"] == "the-new-value"

"""Teams over HTTP, with a whole engine behind them: real workers, real files, keys and tenants."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from server_support import assert_envelope

from agents.service import Service, open_service
from engine.config import LoadedConfig, parse_config
from server.app import listen, open_app, serve_app

KEYS = """
[tenants]
enabled = true
operator_key = "the-operator"
secrets_key = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU="
"""
CONFIG = """
[teams]
enabled = true
messages_per_minute = 1000
[agents.script.router]
path = "router.lua"
tenants = ["*"]
[agents.script.upper]
path = "upper.lua"
tenants = ["*"]
"""
ROUTER = """
agent = { description = "Hands each message to a child, and its answer back" }
function agent.on_messages(messages, state, context)
    state = state or { asked = {} }
    for _, message in ipairs(messages) do
        if message.kind == "response" then
            local to = state.asked[message.reply_to]
            context.team.send_message{ recipient = "USER", text = message.text, reply_to = to, sync = false }
        elseif message.from == "USER" then
            if #context.team.list_children().children == 0 then
                context.team.spawn_agent{ name = "kid", instructions = "shout", persona = "upper" }
            end
            local sent = context.team.send_message{ recipient = "kid", text = message.text }
            state.asked[sent.message_id] = message.message_id
        end
    end
    return { state = state }
end
"""
UPPER = """
agent = { description = "Shouts" }
function agent.on_messages(messages)
    if #messages == 0 then return {} end
    if messages[1].text == "fail" then error("no") end
    return { output = messages[1].text:upper() }
end
"""


@asynccontextmanager
async def served(folder: Path, config: str = CONFIG) -> AsyncIterator[tuple[Service, str]]:
    """A server that runs turns."""
    (folder / "router.lua").write_text(ROUTER)
    (folder / "upper.lua").write_text(UPPER)
    loaded, _ = parse_config(config, environ={}, cwd=folder)
    async with (
        open_service(LoadedConfig(loaded, None, folder)) as service,
        await listen("127.0.0.1", 0) as listener,
        service.serving(),
        open_app(service, loaded.server, "127.0.0.1") as app,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(partial(serve_app, app, listener, trio.Event(), graceful_timeout_s=0))
        yield service, f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


class Team:
    """USER of one team."""

    def __init__(self, client: httpx2.AsyncClient, name: str = "t") -> None:
        self.client, self.name = client, name

    async def create(self, **budget: Any) -> None:
        made = await self.client.post("/teams", json={"name": self.name, "budget": budget})
        assert made.status_code == 201, made.text

    async def ask(self, tool: str, _lease: str | None = None, **given: Any) -> httpx2.Response:
        address = f"team={self.name}" if _lease is None else f"lease={_lease}"
        return await self.client.post(f"/tools/{tool}?{address}", json=given)

    async def call(self, tool: str, _lease: str | None = None, **given: Any) -> Any:
        answer = await self.ask(tool, _lease, **given)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def inbox(self) -> list[dict[str, Any]]:
        """The next messages for USER."""
        with trio.fail_after(20):
            while not (found := (await self.call("check_inbox"))["messages"]):  # noqa: ASYNC110  (the answer of a server)
                await trio.sleep(0.02)
        return list(found)

    async def events(self, kind: str) -> list[dict[str, Any]]:
        found = (await self.client.get(f"/teams/{self.name}/events?limit=1000")).json()["events"]
        return [each for each in found if each["type"] == kind]


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with served(tmp_path) as (_, found):
        yield found


async def test_an_answer_of_a_grandchild_reaches_the_people_who_asked(url: str) -> None:
    async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
        team = Team(client)
        await team.create()
        await team.call("spawn_agent", name="lead", instructions="route", persona="router")
        sent = await team.call("send_message", recipient="lead", text="hello")
        assert sent["waiting_for_reply"]
        (answer,) = await team.inbox()
        assert (answer["from"], answer["text"], answer["reply_to"]) == ("lead", "HELLO", sent["message_id"])
        assert {each["agent"] for each in await team.events("turn.committed")} == {"lead", "lead/kid"}
        status = (await client.get("/teams/t")).json()
        assert [(each["path"], each["state"]) for each in status["agents"]] == [("lead", "idle"), ("lead/kid", "idle")]


async def test_a_failed_turn_is_tried_again_and_its_asker_is_told_when_it_is_given_up(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.teams.turns.RETRY_S", (0.01, 0.01, 0.01))
    async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
        team = Team(client)
        await team.create()
        await team.call("spawn_agent", name="kid", instructions="", persona="upper")
        sent = await team.call("send_message", recipient="kid", text="fail")
        told = await team.inbox()
        assert {(each["kind"], each.get("reply_to")) for each in told} >= {("error", sent["message_id"])}
        assert len(await team.events("turn.failed")) == 4
        assert (await client.get("/teams/t")).json()["waiting"] == [{"agent": "kid", "why": "quarantined"}]
        await team.call("terminate_agent", name="kid")
        await team.call("spawn_agent", name="kid", instructions="", persona="upper")
        await team.call("send_message", recipient="kid", text="again")
        texts = [each["text"] for each in await team.inbox()]
        assert "AGAIN" in texts or "AGAIN" in [each["text"] for each in await team.inbox()]


async def test_the_turn_of_a_client_has_its_effects_when_it_ends_and_its_lease_is_used_once(url: str) -> None:
    async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
        team = Team(client)
        await team.create()
        await team.call("spawn_agent", name="cli", instructions="Do.", runner="client")
        await team.call("send_message", recipient="cli", text="work")
        turn = await team.call("team_next_turn")
        assert turn["prompt"] == "Message from USER:\nwork"
        assert (await team.call("team_next_turn"))["lease"] is None
        lease = turn["lease"]
        wrote = await team.call("write_file", lease, path="notes.md", text="done")
        assert wrote == {"status": "written", "path": "notes.md", "version": 1}
        assert_envelope(await team.ask("read_file", path="notes.md"), 404, "not_found")
        assert (await team.call("team_finish_turn", lease, output="ready")) == {"status": "committed"}
        assert (await team.call("read_file", path="notes.md"))["text"] == "done"
        assert [each["text"] for each in await team.inbox()] == ["ready"]
        for name, given in (
            ("team_finish_turn", {}),
            ("check_inbox", {}),
            ("send_message", {"recipient": "x", "text": ""}),
        ):
            used = assert_envelope(await team.ask(name, lease, **given), 409, "conflict")
            forged = assert_envelope(await team.ask(name, "x" * 43, **given), 409, "conflict")
            assert used["message"] == forged["message"]


async def test_without_an_address_the_tools_say_what_is_missing(url: str) -> None:
    async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
        refused = await client.post("/tools/send_message", json={"recipient": "a", "text": "b"})
        assert "?team=NAME" in assert_envelope(refused, 400, "bad_request")["message"]


async def test_another_tenants_team_and_lease_are_like_none_at_all(tmp_path: Path) -> None:
    async with (
        served(tmp_path, KEYS + CONFIG) as (_, url),
        httpx2.AsyncClient(base_url=url, timeout=30, headers={"x-api-key": "the-operator"}) as operator,
    ):
        keys = []
        for name in ("acme", "other"):
            assert (await operator.post("/admin/tenants", json={"name": name})).status_code == 201
            keys.append((await operator.post(f"/admin/tenants/{name}/keys", json={})).json()["key"])
        async with (
            httpx2.AsyncClient(base_url=url, timeout=30, headers={"x-api-key": keys[0]}) as mine,
            httpx2.AsyncClient(base_url=url, timeout=30, headers={"x-api-key": keys[1]}) as theirs,
        ):
            team, foreign = Team(mine), Team(theirs)
            await team.create()
            await team.call("spawn_agent", name="cli", instructions="Do.", runner="client")
            lease = (await team.call("team_next_turn"))["lease"]
            assert_envelope(await foreign.ask("team_status"), 404, "not_found")
            assert_envelope(await theirs.get("/teams/t"), 404, "not_found")
            assert (await theirs.get("/teams")).json() == {"teams": []}
            assert_envelope(await foreign.ask("check_inbox", lease), 409, "conflict")
            assert (await team.call("team_finish_turn", lease, output="mine"))["status"] == "committed"
            assert (await mine.delete("/teams/t")).status_code == 200
            assert_envelope(await mine.get("/teams/t"), 404, "not_found")


async def test_a_server_that_ended_in_the_middle_of_turns_runs_them_again_after_its_start(tmp_path: Path) -> None:
    slow = UPPER.replace("return { output", "sleep(0.2) return { output")
    async with served(tmp_path) as (_, url), httpx2.AsyncClient(base_url=url, timeout=30) as client:
        (tmp_path / "upper.lua").write_text(slow)
        team = Team(client)
        await team.create()
        await team.call("spawn_agent", name="kid", instructions="", persona="upper")
        await team.call("send_message", recipient="kid", text="hello")
        with trio.fail_after(10):
            while not await team.events("turn.leased"):  # noqa: ASYNC110  (the answer of a server)
                await trio.sleep(0.01)
    async with served(tmp_path) as (_, url), httpx2.AsyncClient(base_url=url, timeout=30) as client:
        assert [each["text"] for each in await Team(client).inbox()] == ["HELLO"]


async def test_without_teams_in_the_configuration_there_are_no_tools_and_no_routes_of_theirs(tmp_path: Path) -> None:
    plain = CONFIG.replace("[teams]\nenabled = true\nmessages_per_minute = 1000\n", "")
    async with served(tmp_path, plain) as (_, url), httpx2.AsyncClient(base_url=url, timeout=30) as client:
        names = {each["name"] for each in (await client.get("/tools/list")).json()["tools"]}
        assert names == {"search", "get", "sources"}
        assert_envelope(await client.get("/teams"), 404, "not_found")

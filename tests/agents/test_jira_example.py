"""The Jira example: a ticket is created with what the knowledge base has on it, and its credentials show nowhere."""

import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from standin import Asked, Said, StandIn, stand_in

from agents.agent import Call
from agents.service import Service, open_service
from engine.config import LoadedConfig, parse_config
from engine.errors import Code, Problem
from engine.run import Hearers, LogLine
from engine.tenant import DEFAULT_TENANT
from knowledge.connectors.filesystem import FilesystemConnector
from knowledge.sqlite.store import open_store
from knowledge.sync import sync

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "examples" / "engine.toml"
NAME = "create_jira_ticket"
EMAIL, TOKEN = "bot@ferrowharf.example", "ATATT3xFfGF0-Jira_token/of+the=Bot"
HEADER = "Basic " + base64.b64encode(f"{EMAIL}:{TOKEN}".encode()).decode()
TITLE = "Card declines of payments-api"
TICKET = {"title": TITLE, "description": "Since 10:40 every fifth card is declined.", "priority": "High"}
CREATED = Said(201, json.dumps({"id": "1", "key": "ENG-1234"}).encode(), {"content-type": "application/json"})


def demo(folder: Path, api: str = "") -> LoadedConfig:
    """The demo without its agents, with its store in the folder and its Jira at this address."""
    text = CONFIG.read_text(encoding="utf-8").replace('"examples/.data/', f'"{folder}/')
    start, end = text.index("# ── Agents, inline"), text.index("# ── Tools (Lua)")
    text = text[:start] + text[end:]
    environ = {"JIRA_URL": f"http://{api}", "JIRA_HOST": api, "JIRA_EMAIL": EMAIL, "JIRA_API_TOKEN": TOKEN}
    config, warnings = parse_config(text, environ=environ if api else {}, cwd=ROOT)
    assert warnings == ()
    return LoadedConfig(config, CONFIG, ROOT)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's runbooks, synchronised once."""
    folder = tmp_path_factory.mktemp("jira")
    config = demo(folder).config

    async def fill() -> None:
        async with open_store(config.db.path, create=True) as opened:
            runbooks = config.connectors.filesystem["runbooks"]
            files = FilesystemConnector(
                runbooks.root, include_globs=runbooks.include_globs, exclude_globs=runbooks.exclude_globs
            )
            await sync(opened, "filesystem:runbooks", files)

    trio.run(fill)
    return folder


@dataclass
class Jira:
    """The stand-in, the service that talks to it, and everything that anybody could read of what happened."""

    api: StandIn
    service: Service
    lines: list[LogLine] = field(default_factory=list)

    async def create(self, **params: Any) -> Any:
        """What the tool answers. Raises Problem."""
        call = Call(DEFAULT_TENANT, Hearers(log=self.lines.append))
        with trio.fail_after(30):
            return (await self.service.call_tool(NAME, params, call)).value


Start = Callable[[Callable[[Asked], Said]], Any]


@pytest.fixture
def jira(store: Path) -> Start:
    """A Jira that answers as the function says, and the service of the demo."""

    @asynccontextmanager
    async def start(answer: Callable[[Asked], Said]) -> AsyncIterator[Jira]:
        answers = [answer]
        async with stand_in(lambda asked: answers[-1](asked)) as api, open_service(demo(store, api.address)) as service:
            assert service.failures == ()
            opened = Jira(api, service)
            yield opened
            # Whatever it was, the next ticket is created.
            answers.append(lambda asked: CREATED)
            assert (await opened.create(title=TITLE))["key"] == "ENG-1234"

    return start


async def test_a_ticket_is_created_and_carries_what_the_runbooks_have_on_its_subject(jira: Start) -> None:
    async with jira(lambda asked: CREATED) as opened:
        created = await opened.create(**TICKET)
        (asked,) = opened.api.asked
    assert created == {
        "key": "ENG-1234",
        "url": f"http://{opened.api.address}/browse/ENG-1234",
        "related_docs": 3,
    }
    assert (asked.method, asked.target) == ("POST", "/rest/api/2/issue")
    assert asked.headers["authorization"] == HEADER
    assert asked.headers["content-type"] == "application/json"
    fields = json.loads(asked.body)["fields"]
    description = fields.pop("description")
    assert fields == {
        "project": {"key": "ENG"},
        "issuetype": {"name": "Task"},
        "summary": TITLE,
        "priority": {"name": "High"},
    }
    text, _, related = description.partition("\n\nRelated documents:\n")
    assert text == TICKET["description"]
    assert related.count("\n  ") == related.count("* ") == 3
    assert "payments-api-card-declines.md" in related
    assert [line.text for line in opened.lines][:1] == ["created\tENG-1234\twith\t3\trelated documents"]


async def test_a_ticket_on_an_unknown_subject_is_created_without_related_documents(jira: Start) -> None:
    async with jira(lambda asked: CREATED) as opened:
        created = await opened.create(title="Zyzzyva\n  zyzzyva")
        fields = json.loads(opened.api.asked[0].body)["fields"]
    assert created["related_docs"] == 0
    assert (fields["summary"], fields["description"]) == ("Zyzzyva zyzzyva", "")
    assert "priority" not in fields


@pytest.mark.parametrize("params", [{}, {"title": ""}, {"title": TITLE, "priority": "Urgent"}, {"title": "x" * 256}])
async def test_a_call_that_does_not_fit_is_refused_before_jira_hears_of_it(jira: Start, params: dict[str, Any]) -> None:
    async with jira(lambda asked: CREATED) as opened:
        with pytest.raises(Problem) as refused:
            await opened.create(**params)
        assert refused.value.code is Code.BAD_REQUEST
        assert opened.api.asked == []


def always(said: Said, _asked: Asked) -> Said:
    return said


def as_json(value: Any, status: int) -> Said:
    return Said(status, json.dumps(value).encode(), {"content-type": "application/json"})


def headers_echoed(asked: Asked) -> dict[str, Any]:
    return {"errorMessages": ["not authorised", f"got {asked.headers['authorization']}"], "token": TOKEN}


HOSTILE: dict[str, tuple[Callable[[Asked], Said], str]] = {
    "401 with the header": (
        lambda asked: as_json(headers_echoed(asked), 401),
        "Jira refuses the credentials of this tool (401), or they may not create tickets",
    ),
    "403 with the header in a header": (
        lambda asked: Said(403, b"", {"x-seen": asked.headers["authorization"]}),
        "Jira refuses the credentials of this tool (403)",
    ),
    "400 with the header": (
        lambda asked: as_json(headers_echoed(asked), 400),
        "Jira answered 400: got Basic [redacted]",
    ),
    "400 with the token": (
        lambda asked: as_json({"errors": {"project": f"{TOKEN} may not", "summary": f"{EMAIL} neither"}}, 400),
        "Jira answered 400: project: [redacted] may not; summary: [redacted] neither",
    ),
    "400 with the token in a long text": (
        lambda asked: as_json({"errorMessages": ["x" * 190 + TOKEN]}, 400),
        "Jira answered 400: no reason given",
    ),
    "400 with another shape": (
        lambda asked: as_json({"errorMessages": TOKEN, "errors": [[TOKEN]]}, 400),
        "Jira answered 400: 1: table",
    ),
    "500 with a page": (
        lambda asked: Said(500, f"<html>{asked.headers}</html>".encode(), {"content-type": "text/html"}),
        "Jira answered 500: no reason given",
    ),
    "201 with broken JSON": (
        lambda asked: Said(201, f'{{"key": "{TOKEN}'.encode(), {"content-type": "application/json"}),
        "Jira answered 201 without the key of a ticket; look there before trying again",
    ),
    "201 with the token as the key": (
        lambda asked: as_json({"key": TOKEN}, 201),
        "Jira answered 201 without the key of a ticket",
    ),
    "201 with a list": (
        lambda asked: as_json([asked.headers["authorization"]], 201),
        "Jira answered 201 without the key of a ticket",
    ),
}


@pytest.mark.parametrize("how", HOSTILE)
async def test_the_credentials_show_in_no_error_log_line_or_answer_whatever_jira_says(jira: Start, how: str) -> None:
    answer, part = HOSTILE[how]
    with structlog.testing.capture_logs() as logs:
        async with jira(answer) as opened:
            with pytest.raises(Problem) as failed:
                await opened.create(**TICKET)
            assert failed.value.code is Code.TOOL_ERROR
            assert part in failed.value.message
            assert opened.api.asked[0].headers["authorization"] == HEADER
    assert {"egress", "script log"} <= {entry["event"] for entry in logs}
    nothing_shows(failed.value, opened, logs)


async def test_a_redirect_to_another_host_is_an_error_and_is_not_followed(jira: Start) -> None:
    async with stand_in(lambda asked: CREATED) as elsewhere:
        location = {"location": f"http://{elsewhere.address}/rest/api/2/issue?seen={TOKEN}"}
        for status in (302, 307, 308):
            redirect = Said(status, b"", location)
            with structlog.testing.capture_logs() as logs:
                async with jira(partial(always, redirect)) as opened:
                    with pytest.raises(Problem) as failed:
                        await opened.create(**TICKET)
            assert failed.value.code is Code.TOOL_ERROR
            assert "http.post: the answer redirects" in failed.value.message
            nothing_shows(failed.value, opened, logs)
        assert elsewhere.asked == []


async def test_without_credentials_the_tool_loads_and_says_what_it_lacks(store: Path) -> None:
    async with open_service(demo(store)) as service:
        assert (service.failures, service.warnings) == ((), ())
        with pytest.raises(Problem) as failed:
            await service.call_tool(NAME, TICKET, Call(DEFAULT_TENANT))
    assert failed.value.message == (
        f"tool '{NAME}': not set up: the configuration of this tool needs url, email and api_token"
    )


def nothing_shows(problem: Problem, opened: Jira, logs: list[Any]) -> None:
    """Neither token nor header, in any part, are in what callers and operators can read."""
    read = json.dumps(problem.envelope()) + repr(opened.lines) + repr(logs)
    assert "created" in read  # the ticket after it: the log is there
    for secret in (TOKEN, TOKEN[:12], TOKEN[-12:], HEADER, HEADER.removeprefix("Basic "), EMAIL):
        assert secret not in read

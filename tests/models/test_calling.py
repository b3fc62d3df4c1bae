"""Calls of models over real HTTP: retries, bounds, keys, faults of servers; after each, the next call works."""

import json
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
import trio.testing
from models_support import (
    HELLO,
    answered,
    configured,
    http,
    in_pieces,
    model_at,
    recorded,
    serving,
    stubbed,
)

from engine.config import parse_config
from engine.egress.secrets import BoundSecret, Vault
from engine.errors import Code, Problem
from engine.models.calling import CalledModel, LateAnswer
from engine.models.http import Http, Reply
from engine.models.retrying import pause_s, retry_after
from engine.models.shapes import Answer, Request, Stopped, Text, TextDelta, Tool, Usage, User, collected

KEY = "sk-0123456789abcdef"
GOOD = {"openai": recorded("openai"), "anthropic": recorded("anthropic")}
# Nothing is left to the garbage collector.
pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")
BOTH = pytest.mark.parametrize("api", ["openai", "anthropic"])


@contextmanager
def logged() -> Iterator[list[dict[str, Any]]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


async def failed(model: CalledModel, request: Request = HELLO) -> Problem:
    """The problem that a call ends with: one, with one line in the log, without the key or a text of the request."""
    with logged() as lines, pytest.raises(Problem) as caught:
        await answered(model, request)
    assert [line["event"] for line in lines] == ["model called"]
    for text in (str(caught.value), json.dumps(lines)):
        assert KEY not in text
        assert "are you there" not in text
    return caught.value


# ---- calls that work -------------------------------------------------------------------------------------------


@BOTH
async def test_a_call_sends_key_and_request_and_writes_one_line(api: str) -> None:
    async with serving(GOOD[api]) as (server, url), model_at(url, api, f'key = "{KEY}"') as model:
        with logged() as lines:
            answer = await answered(model)
    assert (answer.text, answer.reason) == ("Héllo 🎉", "stop")
    (asked,) = server.asked
    if api == "openai":
        assert (asked.path, asked.headers["authorization"]) == ("/v1/chat/completions", f"Bearer {KEY}")
    else:
        assert (asked.path, asked.headers["x-api-key"]) == ("/v1/messages", KEY)
        assert asked.headers["anthropic-version"] == "2023-06-01"
    assert asked.body["model"] == "some-model"
    (line,) = lines
    usage = answer.usage
    assert line.pop("seconds") >= 0
    assert line == {
        "event": "model called", "log_level": "info", "model": "m", "tenant": "default", "outcome": "ok", "tries": 1,
        "input_tokens": usage.input, "cached_tokens": usage.cached, "output_tokens": usage.output,
    }  # fmt: skip


@BOTH
async def test_tools_come_back_and_connections_are_used_again(api: str) -> None:
    script = '[[reply]]\ntext = "Look: "\ntool_calls = [{ name = "my_tool", arguments = { q = "ü" } }]'
    request = Request([User((Text("x"),))], [Tool("my.tool", "", {"type": "object"})])
    async with stubbed(script) as (stub, url), model_at(url, api) as model:
        for _ in range(3):
            answer = await answered(model, request)
            assert (answer.text, answer.reason) == ("Look: ", "tool_calls")
            assert [(call.name, call.arguments) for call in answer.calls] == [("my.tool", {"q": "ü"})]
        assert (stub.answered, stub.open) == (3, 1)


async def test_a_server_that_does_not_stream_is_understood() -> None:
    message = {"role": "assistant", "content": "whole"}
    whole = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}
    async with serving(http(json.dumps(whole), kind="application/json")) as (_, url), model_at(url) as model:
        answer = await answered(model)
    assert (answer.text, answer.usage.input, answer.reason) == ("whole", 3, "stop")
    block = {"type": "message", "content": [{"type": "text", "text": "whole"}], "stop_reason": "end_turn"}
    async with (
        serving(http(json.dumps(block), kind="application/json")) as (_, url),
        model_at(url, "anthropic") as model,
    ):
        assert (await answered(model)).text == "whole"


async def test_no_proxy_and_no_netrc_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("default login me password hidden\n")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with serving(GOOD["openai"]) as (server, url), model_at(url) as model:
        await answered(model)
    assert "authorization" not in server.asked[0].headers


async def test_what_a_server_refuses_of_a_request_is_left_out_from_then_on() -> None:
    refusal = {"error": {"message": "Unsupported parameter: 'max_completion_tokens'", "type": "invalid_request_error"}}
    no_usage = {"detail": [{"loc": ["body", "stream_options"], "msg": "extra fields not permitted"}]}
    answers = (
        http(json.dumps(refusal), 400, "application/json"),
        http(json.dumps(no_usage), 422, "application/json"),
        GOOD["openai"],
    )
    async with serving(*answers) as (server, url), model_at(url, "openai", "retries = 0") as model:
        await answered(model)
        await answered(model)
    assert len(server.asked) == 4
    for asked in server.asked[2:]:
        assert asked.body["max_tokens"] == 4096
        assert not {"max_completion_tokens", "stream_options"} & set(asked.body)


# ---- retries ---------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("status", [429, 500, 503, 529])
async def test_what_may_pass_is_tried_again(api: str, status: int) -> None:
    bad = http("{}", status, "application/json", retry_after="0")
    async with serving(bad, GOOD[api]) as (server, url), model_at(url, api) as model:
        assert (await answered(model)).text == "Héllo 🎉"
    assert len(server.asked) == 2
    assert server.asked[0].body == server.asked[1].body


@BOTH
async def test_an_error_inside_a_stream_is_tried_again_while_nothing_was_used(api: str) -> None:
    bad = recorded("openai-error-inside" if api == "openai" else "anthropic-overloaded")
    async with serving(bad, GOOD[api]) as (server, url), model_at(url, api) as model:
        assert (await answered(model)).text == "Héllo 🎉"
        assert len(server.asked) == 2


async def test_what_a_server_reported_of_an_answer_that_was_cut_is_counted_with_that_of_the_next_try() -> None:
    cut = recorded("anthropic-half")
    async with serving(cut, cut, GOOD["anthropic"]) as (server, url), model_at(url, "anthropic") as model:
        heard: list[Usage] = []
        with logged() as lines:
            async with model.ask(HELLO, heard.append) as events:
                usage = collected([event async for event in events]).usage
        assert (len(server.asked), heard) == (3, [Usage(226, 200, 2)])
        assert lines[0]["input_tokens"] == usage.input + 226
    async with serving(cut) as (server, url), model_at(url, "anthropic", "retries = 0") as model:
        heard.clear()
        with pytest.raises(Problem, match="in the middle"):
            async with model.ask(HELLO, heard.append):
                raise AssertionError("an answer that was cut gave something")
        assert heard == [Usage(113, 100, 1)]


async def test_an_answer_of_which_something_was_used_is_not_asked_for_again() -> None:
    half = http(b'data: {"choices":[{"delta":{"content":"Once"}}]}\n\n')
    async with serving(half, GOOD["openai"]) as (server, url), model_at(url) as model:
        assert "its answer ends in the middle" in str(await failed(model))
        assert len(server.asked) == 1
        assert (await answered(model)).text == "Héllo 🎉"


async def test_retry_after_is_waited_for_and_one_beyond_the_time_is_handed_on() -> None:
    soon = http("{}", 429, "application/json", retry_after="1")
    async with serving(soon, GOOD["openai"]) as (server, url), model_at(url) as model:
        await answered(model)
        assert server.at[1] - server.at[0] >= 1
    late = http("{}", 429, "application/json", retry_after="3600")
    async with serving(late, GOOD["openai"]) as (server, url), model_at(url, "openai", "timeout_s = 5") as model:
        problem = await failed(model)
        assert (problem.retry_after_s, len(server.asked)) == (3600, 1)
        assert (await answered(model)).text == "Héllo 🎉"


async def test_retries_are_as_many_as_configured() -> None:
    bad = http("{}", 500, "application/json", retry_after="0")
    async with serving(bad) as (server, url), model_at(url, "openai", "retries = 1") as model:
        problem = await failed(model)
    assert len(server.asked) == 2
    assert str(problem) == "model 'm': its server answers with status 500"
    assert problem.code is Code.MODEL_ERROR


def test_pauses_grow_to_a_bound_and_a_server_gets_the_pause_that_it_wants() -> None:
    assert [pause_s(tries, None, 0.5) for tries in range(1, 7)] == [0.5, 1, 2, 4, 8, 8]
    assert pause_s(1, None, 0.0) < pause_s(1, None, 1.0)
    assert pause_s(1, 7.0, 0.5) == 7.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("2", 2), ("0.5", 0.5), ("-3", 0), ("Sun, 22 Nov 2026 12:00:10 GMT", 10), ("Sun, 22 Nov 2026 11:00:00 GMT", 0),
     ("soon", None), ("", None), ("nan", None), ("inf", 86400), ("9" * 70, None)],
)  # fmt: skip
def test_retry_after_is_a_number_or_a_date(value: str, seconds: float | None) -> None:
    assert retry_after({"retry-after": value}, datetime(2026, 11, 22, 12, tzinfo=UTC)) == seconds


# ---- servers that do wrong -------------------------------------------------------------------------------------


async def _cut(stream: trio.abc.Stream) -> None:
    await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    text = b'data: {"choices":[{"delta":{"content":"Once"}}]}\n\n'
    await stream.send_all(b"%x\r\n%s\r\n" % (len(text), text))


async def _flood(stream: trio.abc.Stream) -> None:
    await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    while True:
        await stream.send_all(b": nothing but comments\n\n" * 4096)


async def _head(stream: trio.abc.Stream) -> None:
    await stream.send_all(b"HTTP/1.1 200 OK\r\n")
    while True:
        await stream.send_all(b"x-y: " + b"z" * 60_000 + b"\r\n")


def _error(status: int, **error: str) -> bytes:
    return http(json.dumps({"error": error}), status, "application/json")


WRONG = {
    "nothing": (http(), "its answer is empty"),
    "closed": (_cut, "the connection to 127.0.0.1 ended in the middle of the answer"),
    "garbage": (recorded("openai-garbage"), "its answer is not JSON"),
    "a page": (http("<html>", kind="text/html"), "neither a stream of events nor JSON"),
    "other JSON": (http('{"hello": "world"}', kind="application/json"), "JSON of another wire"),
    "a list": (http("[]", kind="application/json"), "JSON of another wire"),
    "compressed": (http(b"\x1f\x8b", content_encoding="gzip"), "a coding that was not asked for"),
    "no HTTP": (b"220 mail ready\r\n\r\n", "ended in the middle"),
    "a long event": (http(b"data: " + b"x" * 10_000_000 + b"\n\n"), "event of its answer is larger than"),
    "a long JSON": (http(b'"' + b"x" * 2_000_000 + b'"', kind="application/json"), "is larger than 1048576 bytes"),
    "an endless one": (_flood, "larger than 11534336 bytes on the wire"),
    "an endless head": (_head, "ended in the middle"),
    "refused": (
        _error(401, message=f"wrong key {KEY}: are you there?", code="invalid_api_key"),
        "its server answers with status 401: it refuses the key; invalid_api_key",
    ),
    "an echo": (
        _error(418, message=KEY, type=KEY, code="a b"),
        "its server answers with status 418",
    ),
    "no such model": (http("no", 404, "text/plain"), "status 404: it does not know the address or the model"),
    "elsewhere": (http("", 307, location="http://127.0.0.1:1/v1"), "redirects to another address"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
async def test_a_server_that_does_wrong_is_a_model_error_and_the_next_call_works(name: str) -> None:
    wrong, said = WRONG[name]
    async with (
        serving(wrong, GOOD["openai"]) as (server, url),
        model_at(url, "openai", f'key = "{KEY}"', "retries = 0", "timeout_s = 10") as model,
    ):
        problem = await failed(model)
        assert problem.code is Code.MODEL_ERROR
        assert said in problem.message
        assert len(server.asked) == 1
        assert (await answered(model)).text == "Héllo 🎉"


@BOTH
@pytest.mark.parametrize(
    ("fault", "said"),
    [("cut", "in the middle"), ("garbage", "not JSON"), ("huge", "is larger than"), ("stall", "longer than 0.5 s")],
)
async def test_the_faults_of_the_stub_are_model_errors_within_the_time(api: str, fault: str, said: str) -> None:
    script = f"""
    [[reply]]
    when = "Hello"
    text = "a text that is long enough to be cut in the middle"
    fault = "{fault}"
    [[reply]]
    text = "fine"
    """
    async with stubbed(script) as (_, url), model_at(url, api, "timeout_s = 0.5", "retries = 1") as model:
        with trio.fail_after(5):
            problem = await failed(model)
        assert problem.code is Code.MODEL_ERROR
        assert said in problem.message
        assert isinstance(problem, LateAnswer) is (fault == "stall")
    async with stubbed(script) as (_, url), model_at(url, api) as model:
        assert (await answered(model, Request([User((Text("next"),))]))).text == "fine"


async def test_an_answer_beyond_output_bytes_is_that_limit() -> None:
    async with stubbed(f'[[reply]]\ntext = "{"x" * 5000}"') as (_, url), model_at(url) as model:
        problem = await failed(model, Request(HELLO.messages, output_bytes=1000))
        assert problem.code is Code.OUTPUT_LIMIT
        assert len((await answered(model)).text) == 5000


async def test_no_server_is_a_model_error() -> None:
    async with model_at("http://127.0.0.1:1", "openai", "retries = 1") as model:
        assert "127.0.0.1 does not accept connections" in str(await failed(model))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
         str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return key, cert


async def test_a_certificate_that_is_not_valid_gets_no_key(certificate: tuple[Path, Path]) -> None:
    key, cert = certificate
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(cert, key)
    async with serving(GOOD["openai"], tls=tls) as (server, url):
        async with model_at(url, "openai", f'key = "{KEY}"') as model:
            problem = await failed(model)
        assert "the certificate of 127.0.0.1 is not valid" in problem.message
        assert server.asked == []
        trusted = Http(ssl.create_default_context(cafile=str(cert)))
        async with model_at(url, "openai", f'key = "{KEY}"', http=trusted) as model:
            assert (await answered(model)).text == "Héllo 🎉"


STALLS = '[[reply]]\ntext = "a text that is long enough to stall in the middle of it"\nfault = "stall"\n'


async def test_a_request_goes_out_in_one_piece() -> None:
    pieces: list[bytes] = []

    async def answer(stream: trio.abc.Stream) -> None:
        pieces.append(bytes(await stream.receive_some()))
        await stream.send_all(GOOD["openai"])

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        async with model_at(url) as model:
            assert (await answered(model)).text == "Héllo 🎉"
        nursery.cancel_scope.cancel()
    head, _, body = pieces[0].partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head.lower()
    assert json.loads(body)["stream"] is True


# ---- leaving ---------------------------------------------------------------------------------------------------


@BOTH
async def test_a_caller_that_is_cancelled_drops_the_connection(api: str) -> None:
    async with stubbed(STALLS) as (stub, url), model_at(url, api) as model:
        left = trio.Event()
        stub.heard = lambda line: left.set()
        with logged() as lines, trio.CancelScope() as scope:
            async with model.ask(HELLO) as events:
                while not isinstance(await anext(events), TextDelta):
                    pass
                assert (stub.open, stub.left) == (1, 0)
                scope.cancel()
                await anext(events)
        with trio.fail_after(2):
            await left.wait()
        assert (stub.left, stub.answered) == (1, 0)
        assert [line["outcome"] for line in lines] == ["cancelled"]


async def test_a_caller_that_leaves_the_block_drops_the_connection_and_errors_of_its_own_pass() -> None:
    async with stubbed(STALLS) as (stub, url), model_at(url) as model:
        left = trio.Event()
        stub.heard = lambda line: left.set()

        async def leave() -> None:
            async with model.ask(HELLO) as events:
                await anext(events)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await leave()
        with trio.fail_after(2):
            await left.wait()


# ---- turns -----------------------------------------------------------------------------------------------------


async def test_more_calls_than_at_once_wait_and_not_for_ever() -> None:
    script = STALLS + '[[reply]]\nwhen = "next"\ntext = "fine"'
    async with stubbed(script) as (stub, url):
        text = (
            f'[limits]\nqueue_timeout_s = 0.3\n[models.m]\napi = "openai"\nmodel = "x"\nurl = "{url}/v1"\nat_once = 1'
        )
        async with configured(text) as models:
            model = models.model("m", "default")
            async with model.ask(HELLO) as events:
                await anext(events)
                problem = await failed(model)
                assert problem.code is Code.QUEUE_TIMEOUT
                assert stub.requests == 1
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(answered, model, Request([User((Text("next"),))]))
                    await trio.testing.wait_all_tasks_blocked(0.01)
                    assert stub.requests == 1
                    nursery.cancel_scope.cancel()
            assert (await answered(model, Request([User((Text("next"),))]))).text == "fine"


async def test_a_tenant_that_waits_for_slow_answers_keeps_half_of_the_places_for_others() -> None:
    fine = Request([User((Text("next"),))])
    async with stubbed(STALLS + '[[reply]]\nwhen = "next"\ntext = "fine"') as (stub, url):
        text = (
            f'[limits]\nqueue_timeout_s = 5\n[tenants]\nenabled = true\n[models.m]\napi = "openai"\nmodel = "x"\n'
            f'url = "{url}/v1"\nat_once = 4\ntenants = ["*"]\n[models.own]\napi = "openai"\nmodel = "x"\n'
            f'url = "{url}/v1"\nat_once = 4\ntenants = ["heavy"]\n'
        )
        async with configured(text) as models, trio.open_nursery() as nursery:
            for name, begun in (("m", 2), ("own", 6)):
                for _ in range(5):
                    nursery.start_soon(answered, models.model(name, "heavy"), HELLO)
                with trio.fail_after(5):
                    while stub.requests < begun:  # noqa: ASYNC110
                        await trio.sleep(0.01)
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert stub.requests == begun
            for tenant in ("light", "other"):
                assert (await answered(models.model("m", tenant), fine)).text == "fine"
            nursery.cancel_scope.cancel()
        async with configured(text) as models:
            assert (await answered(models.model("m", "heavy"), fine)).text == "fine"


async def test_clients_that_do_not_answer_keep_no_turn_of_another_tenants_clients() -> None:
    async def sleeps(request: Request) -> Answer:
        await trio.sleep_forever()
        raise AssertionError

    async def answers(request: Request) -> Answer:
        return Answer("fine", (), Usage(1, 0, 1), "stop")

    text = '[limits]\nqueue_timeout_s = 0.2\n[models.m]\napi = "client"\nat_once = 1\ntenants = ["a", "b"]'
    async with configured(text) as models, trio.open_nursery() as nursery:
        nursery.start_soon(answered, models.model("m", "a").answered_by(sleeps), HELLO)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert (await failed(models.model("m", "a").answered_by(answers))).code is Code.QUEUE_TIMEOUT
        assert (await answered(models.model("m", "b").answered_by(answers), HELLO)).text == "fine"
        nursery.cancel_scope.cancel()
    async with configured(text) as models:
        assert (await answered(models.model("m", "a").answered_by(answers), HELLO)).text == "fine"


async def test_requests_of_a_minute_are_bounded() -> None:
    async with stubbed('[[reply]]\ntext = "fine"') as (stub, url):
        text = (
            f'[limits]\nqueue_timeout_s = 0.2\n[models.m]\napi = "openai"\nmodel = "x"\nurl = "{url}/v1"\n'
            "requests_per_minute = 3"
        )
        async with configured(text) as models:
            model = models.model("m", "default")
            for _ in range(3):
                await answered(model)
            problem = await failed(model)
            assert problem.code is Code.QUEUE_TIMEOUT
            assert stub.requests == 3


# ---- keys and tenants ------------------------------------------------------------------------------------------


class Secrets:
    """The secrets of a tenant."""

    def __init__(self, *found: BoundSecret, trouble: str | None = None) -> None:
        self._vault = Vault(found, trouble)

    async def vault(self, tenant: str) -> Vault:
        assert tenant == "default"
        return self._vault


async def test_a_secret_goes_to_the_host_that_it_is_bound_to_and_to_no_other() -> None:
    async with serving(GOOD["openai"]) as (server, url):
        port = url.rpartition(":")[2]
        cases = [
            (Secrets(BoundSecret.from_rules("MINE", KEY, [f"127.0.0.1:{port}"])), None),
            (Secrets(BoundSecret.from_rules("MINE", KEY, ["api.example.com"])), "is bound to api.example.com"),
            (Secrets(BoundSecret.from_rules("OTHER", KEY, [f"127.0.0.1:{port}"])), "names the secret 'MINE'"),
            (
                Secrets(BoundSecret.from_rules("MINE", "two\nlines", [f"127.0.0.1:{port}"])),
                "is not a key (models.m.key)",
            ),
            (Secrets(trouble="no secrets key is configured"), "no secrets key is configured"),
        ]
        for secrets, said in cases:
            async with model_at(url, "openai", 'key = "secret:MINE"', secrets=secrets) as model:
                before = len(server.asked)
                if said is None:
                    await answered(model)
                    assert server.asked[-1].headers["authorization"] == f"Bearer {KEY}"
                    continue
                problem = await failed(model)
                assert problem.code is Code.UNAVAILABLE
                assert said in problem.message
                assert len(server.asked) == before


async def test_a_tenant_has_its_models_and_no_others() -> None:
    text = """
    [models]
    default = "shared"
    [models.mine]
    api = "openai"
    model = "a"
    tenants = ["acme"]
    [models.shared]
    api = "openai"
    model = "b"
    tenants = ["*"]
    [models.plain]
    api = "anthropic"
    model = "c"
    """
    async with configured(text) as models:
        assert list(models.of("acme")) == ["mine", "shared"]
        assert list(models.of("default")) == ["shared", "plain"]
        assert (models.default_of("acme"), models.default_of("default")) == ("shared", "shared")
        with pytest.raises(Problem, match="unknown model 'mne'; did you mean 'mine'") as caught:
            models.model("mne", "acme")
        assert caught.value.code is Code.NOT_FOUND
        with pytest.raises(Problem):
            models.model("mine", "default")


async def test_another_configuration_takes_effect_and_unchanged_models_stay() -> None:
    first = '[models.a]\napi = "openai"\nmodel = "x"\n[models.b]\napi = "openai"\nmodel = "y"\n'
    async with configured(first) as models:
        a, b = models.model("a", "default").served, models.model("b", "default").served
        second, _ = parse_config(first.replace('"y"', '"z"'), environ={}, cwd=Path("/nowhere"))
        models.use(second)
        assert models.model("a", "default").served is a
        assert models.model("b", "default").served is not b
        assert models.model("b", "default").entry.model == "z"


# ---- the wire `script` -----------------------------------------------------------------------------------------


async def test_a_script_answers_offline_and_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "answers.toml"
    path.write_text(
        '[[reply]]\ntext = "one"\ntool_calls = [{ name = "my_tool" }]\nusage = { input = 9, cached = 3, output = 2 }\n'
    )
    request = Request(HELLO.messages, [Tool("my.tool", "", {})])
    async with configured(f'[models.m]\napi = "script"\npath = "{path}"\nretries = 1\n') as models:
        model = models.model("m", "default")
        assert model.request_bytes(request) > 100
        answer = await answered(model, request)
        assert (answer.text, answer.reason, answer.usage.cached) == ("one", "tool_calls", 3)
        assert [call.name for call in answer.calls] == ["my.tool"]
        path.write_text('[[reply]]\nstatus = 503\n[[reply]]\ntext = "changed"\n')
        assert (await answered(model)).text == "changed"
        for fault, said in (("garbage", "not JSON"), ("cut", "in the middle"), ("huge", "larger than")):
            path.write_text(f'[[reply]]\ntext = "long enough to cut"\nfault = "{fault}"\n# {fault}')
            assert said in str(await failed(model))
        path.write_text("[[reply")
        assert "its script: not valid TOML" in str(await failed(model))
        path.unlink()
        assert "its script cannot be read: No such file" in str(await failed(model))


async def test_a_script_that_stalls_ends_in_time(tmp_path: Path) -> None:
    path = tmp_path / "answers.toml"
    path.write_text('[[reply]]\nfault = "stall"\n')
    async with configured(f'[models.m]\napi = "script"\npath = "{path}"\ntimeout_s = 0.2\n') as models:
        assert "longer than 0.2 s" in str(await failed(models.model("m", "default")))


async def test_the_last_event_says_why_the_answer_stopped() -> None:
    async with serving(GOOD["openai"]) as (_, url), model_at(url) as model:
        async with model.ask(HELLO) as events:
            found = [event async for event in events]
        assert isinstance(found[-1], Stopped)


async def test_pieces_of_one_byte_that_have_arrived_let_other_tasks_run() -> None:
    """httpcore2 makes no checkpoint between chunks of one read: 10,000 of them held the event loop for 600 ms."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    pieces = [b"x"] * 10_000
    reply = Reply(200, {}, in_pieces(pieces), len(pieces), "model.test")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        assert len(await reply.read(len(pieces) + 1)) == len(pieces)
        nursery.cancel_scope.cancel()
    assert turns > 100


async def test_calls_side_by_side_all_learn_what_a_server_refuses() -> None:
    """Each was sent before the first refusal: that another call has learnt it meanwhile made the others fail."""
    refusal = http(json.dumps({"error": {"message": "unknown field max_completion_tokens"}}), 400, "application/json")
    both = trio.Event()
    waiting = 0

    async def refuse(stream: trio.abc.Stream) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 2:
            both.set()
        await both.wait()
        await stream.send_all(refusal)

    async with serving(refuse, refuse, GOOD["openai"]) as (_, url), model_at(url, "openai", "retries = 0") as model:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answered, model)
            nursery.start_soon(answered, model)
        await answered(model)


async def test_a_refusal_that_quotes_a_request_changes_no_other_request() -> None:
    """A tenant's text in the error took `stream_options` from all calls, and with it the usage that servers report."""
    words = "bad text: 'stream_options max_completion_tokens response_format'"
    refusal = http(json.dumps({"error": {"message": words}}), 400, "application/json")
    answers = (refusal,) * 4 + (GOOD["openai"],)
    async with serving(*answers) as (server, url), model_at(url, "openai", "retries = 0") as model:
        await failed(model)
        await answered(model)
    assert len(server.asked) == 5
    assert server.asked[-1].body["stream_options"] == {"include_usage": True}
    assert "max_completion_tokens" in server.asked[-1].body

"""The table of host calls: grant, then arguments, then the answer; nothing a script sends makes it raise."""

from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from engine.bridge import Bridge, CallRefused, HostContext, HostFunction
from engine.run import RunRequest, Script
from engine.tenant import DEFAULT_TENANT, bind_limits
from sandbox.wire.messages import HostReply


class Arguments(msgspec.Struct):
    text: str
    count: int = 1
    inner: dict[str, list[int]] | None = None


async def answer(context: HostContext, arguments: Arguments) -> Any:
    await trio.lowlevel.checkpoint()
    match arguments.text:
        case "refuse":
            raise CallRefused("not today")
        case "bug":
            raise RuntimeError("/etc/passwd")
        case "large integer":
            return {"n": 1 << 70}
        case "no text":
            return "\ud800"
        case "no data":
            return object()
        case "log":
            context.log("warn", "noted")
    return {"text": arguments.text, "count": arguments.count, "tenant": context.request.tenant.id}


BRIDGE = Bridge([HostFunction("test.echo", Arguments, answer), HostFunction("test.other", Arguments, answer)])
GRANTED = frozenset({"test.echo"})


def context(grants: frozenset[str] = GRANTED, lines: list[tuple[str, str]] | None = None) -> HostContext:
    request = RunRequest(
        tenant=DEFAULT_TENANT,
        name="mine",
        script=Script.from_source("t.lua", b""),
        root="agent",
        method="resolve",
        limits=bind_limits({}, DEFAULT_TENANT, {}, {}),
        grants=grants,
    )
    kept = lines if lines is not None else []
    return HostContext(request, "run-1", lambda level, text: kept.append((level, text)), dict, lambda usage: None)


async def call(name: str, arguments: Any, *, raw: bytes | None = None, **how: Any) -> HostReply:
    return await BRIDGE.call(context(**how), name, msgspec.msgpack.encode(arguments) if raw is None else raw)


async def refusal(name: str, arguments: Any, **how: Any) -> str:
    reply = await call(name, arguments, **how)
    assert not reply.ok
    return reply.value.decode()


async def test_a_granted_call_is_answered_on_behalf_of_its_run() -> None:
    reply = await call("test.echo", {"text": "hello", "count": 2})
    assert reply.ok
    assert msgspec.msgpack.decode(reply.value) == {"text": "hello", "count": 2, "tenant": "default"}


async def test_nothing_is_granted_by_default() -> None:
    assert await refusal("test.echo", {"text": "x"}, grants=frozenset()) == "test.echo is not granted to 'mine'"
    assert await refusal("test.other", {"text": "x"}) == "test.other is not granted to 'mine'"


async def test_the_grant_is_checked_before_the_arguments() -> None:
    assert "not granted" in await refusal("test.other", None, raw=b"\xc1")


async def test_a_name_that_is_no_host_call_is_told_in_part() -> None:
    assert await refusal("os.execute", {}) == "there is no host call 'os.execute'"
    assert len(await refusal("x" * 10_000, {})) < 200


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "test.echo: text is nil: it is required"),
        ({"text": 5}, "test.echo: text: expected string, got number"),
        ({"text": "x", "count": "many"}, "test.echo: count: expected number, got string"),
        ({"text": "x", "inner": {"k": [1, "two"]}}, "test.echo: inner[...][1]: expected number, got string"),
        ([], "test.echo: expected table, got list"),
        ("text", "test.echo: expected table, got string"),
        (7, "test.echo: expected table, got number"),
    ],
)
async def test_a_wrong_argument_is_named_by_its_path(arguments: Any, text: str) -> None:
    assert await refusal("test.echo", arguments) == text


async def test_unknown_arguments_are_ignored() -> None:
    assert (await call("test.echo", {"text": "x", "unknown": [1]})).ok


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\x81\xa4text\xa1\xff", b"\x81" * 100, b"\xdf\xff\xff\xff\xff"])
async def test_bytes_that_are_no_arguments_are_refused(raw: bytes) -> None:
    assert (await refusal("test.echo", None, raw=raw)).startswith("test.echo: ")


async def test_arguments_without_end_are_refused() -> None:
    assert (await refusal("test.echo", None, raw=b"\x81\xa5inner" + b"\x81\xa1k\x91" * 50_000)).startswith(
        "test.echo: "
    )


@given(st.sampled_from(["test.echo", "test.other", "none"]), st.binary(max_size=60))
async def test_whatever_a_script_sends_is_answered(name: str, raw: bytes) -> None:
    reply = await call(name, None, raw=raw)
    if reply.ok:
        msgspec.msgpack.decode(reply.value)
    else:
        reply.value.decode()


async def test_a_refusal_of_the_handler_is_told_with_the_name_of_the_call() -> None:
    assert await refusal("test.echo", {"text": "refuse"}) == "test.echo: not today"


@pytest.mark.parametrize("text", ["bug", "no text", "no data"])
async def test_a_bug_of_the_engine_is_logged_for_the_operator_and_hidden_from_scripts(text: str) -> None:
    with capture_logs() as logged:
        told = await refusal("test.echo", {"text": text})
    assert told == "test.echo: internal error of the engine; see its log"
    (entry,) = logged
    assert (entry["log_level"], entry["call"], entry["tenant"], entry["script"]) == (
        "error",
        "test.echo",
        "default",
        "mine",
    )
    assert (await call("test.echo", {"text": "next"})).ok


async def test_a_handler_may_log_on_behalf_of_its_run() -> None:
    lines: list[tuple[str, str]] = []
    assert (await call("test.echo", {"text": "log"}, lines=lines)).ok
    assert lines == [("warn", "noted")]


async def test_large_integers_of_an_answer_become_floats() -> None:
    reply = await call("test.echo", {"text": "large integer"})
    assert msgspec.msgpack.decode(reply.value) == {"n": float(1 << 70)}


async def test_cancelling_reaches_the_handler() -> None:
    async def wait(context: HostContext, arguments: Arguments) -> None:
        await trio.sleep_forever()

    bridge = Bridge([HostFunction("test.echo", Arguments, wait)])
    with trio.move_on_after(0.01) as scope:
        await bridge.call(context(), "test.echo", msgspec.msgpack.encode({"text": "x"}))
    assert scope.cancelled_caught


def test_the_bridge_tells_its_names() -> None:
    assert BRIDGE.names == {"test.echo", "test.other"}

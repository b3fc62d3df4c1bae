"""Tools of MCP servers in a document: a real server, and servers that misbehave; after each, the next call works."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from toolbox_support import Answer, Message, fixtures, http, mischief, said, servers, tool, tools_of

from agents.agent import Call
from agents.chatmd.program import Declared
from agents.toolbox import McpTools, Offered
from agents.toolbox.servers import MAX_SERVERS, mcp_tools
from engine.egress.secrets import BoundSecret, Vault
from engine.errors import Code, Problem
from engine.tenant import DEFAULT_TENANT

CALL = Call(DEFAULT_TENANT)
# Nothing is left to the garbage collector.
pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")


@pytest.fixture(scope="module")
def real() -> Iterator[str]:
    with fixtures() as url:
        yield url


def named(tools: McpTools, name: str) -> Offered:
    return next(each for each in tools.offered if each.name == name)


async def refused(offered: Offered, **arguments: Any) -> Problem:
    with pytest.raises(Problem) as caught:
        await offered.call(arguments, CALL)
    return caught.value


# ---- a real server -------------------------------------------------------------------------------------------------


async def test_tools_of_a_real_server_are_called_and_answer_with_text(real: str) -> None:
    async with tools_of(real) as found:
        assert found.unavailable == []
        assert {"search", "test_simple_text", "json_schema_2020_12_tool"} <= {each.name for each in found.offered}
        search = named(found, "search")
        assert (search.read_only, search.parameters["required"]) == (True, ["query"])
        assert named(found, "json_schema_2020_12_tool").parameters["properties"]["address"] == {
            "$ref": "#/$defs/address"
        }
        assert "simple text" in await named(found, "test_simple_text").call({}, CALL)
        assert await named(found, "test_multiple_content_types").call({}, CALL) == "\n".join(
            ("Multiple content types test:", "[image image/png, 70 bytes, left out]", '{"test": "data", "value": 123}')
        )
        assert await named(found, "test_tool_with_logging").call({}, CALL) == "logged"
        wrong = await refused(named(found, "test_error_handling"))
        assert wrong.code is Code.TOOL_ERROR
        asked = await refused(named(found, "test_input_required_result_elicitation"))
        assert "asks the user a question" in asked.message
        assert "query" in (await refused(search)).message
        assert await named(found, "json_schema_2020_12_tool").call({"name": "ü"}, CALL) == '{"name": "\\u00fc"}'


async def test_a_document_takes_the_tools_that_it_includes(real: str) -> None:
    async with tools_of(real, include=("serach", "get", "search")) as found:
        assert [each.name for each in found.offered] == ["get", "search"]
        (missing,) = found.unavailable
        assert (missing.name, missing.reason) == (
            "serach", "the MCP server 's' has no such tool; did you mean 'search'?",
        )  # fmt: skip


async def test_calls_run_side_by_side_and_one_that_is_cancelled_leaves_the_others(real: str) -> None:
    async with tools_of(real, include=("test_tool_with_progress", "test_simple_text")) as found:
        slow, quick = named(found, "test_tool_with_progress"), named(found, "test_simple_text")
        with trio.move_on_after(0.05) as scope:
            await slow.call({}, CALL)
        assert scope.cancelled_caught
        answers: list[str] = []

        async def one() -> None:
            answers.append(await quick.call({}, CALL))

        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(one)
        assert len(answers) == 12


# ---- which servers, and what goes along ----------------------------------------------------------------------------


async def test_only_configured_addresses_of_the_tenant_are_connected_to() -> None:
    async with mischief() as (server, url):
        for lines, asked_for in (((), url + "/other"), (('tenants = ["acme"]',), url), ((), "no address")):
            declared = Declared("mcp", "", "", url=asked_for, include=("a", "b"))
            async with mcp_tools([declared], servers(url, *lines), "default") as found:
                assert found.offered == []
                assert [each.name for each in found.unavailable] == ["a", "b"]
                assert "is not the url of an [mcp_servers.NAME] that the tenant has" in found.unavailable[0].reason
        assert server.asked == []
        async with tools_of(url) as found:
            assert await named(found, "one").call({}, CALL) == "good"
        assert server.open == 0


class Secrets:
    """The tenant's secret K, bound to one host."""

    def __init__(self, host: str) -> None:
        self.host = host

    async def vault(self, tenant: str) -> Vault:
        return Vault([BoundSecret.from_rules("K", "value-of-the-secret", [self.host])])


async def test_keys_go_to_their_server_and_never_come_back_from_it() -> None:
    def echoed(params: Message) -> Answer:
        return said(f"you sent {headers['authorization'].split()[1]} and {headers['x-key']}")

    headers: dict[str, str] = {}
    lines = ('key = "secret:K"', 'headers = { X-Key = "plain-value-0123", X-None = "" }')
    async with mischief(call=echoed) as (server, url):
        host = url.split("/")[2]
        async with tools_of(url, *lines, secrets=Secrets(host)) as found:
            headers |= server.asked[-1][1]
            assert headers["authorization"] == "Bearer value-of-the-secret"
            assert headers["x-key"] == "plain-value-0123"
            assert "x-none" not in headers
            assert await named(found, "one").call({}, CALL) == "you sent [redacted] and [redacted]"
        count = len(server.asked)
        async with tools_of(url, *lines, secrets=Secrets("example.com")) as found:
            assert "the secret K is bound to example.com, and is not sent to 127.0.0.1" in found.unavailable[0].reason
        async with tools_of(url, *lines) as found:
            assert "names the secret 'K', which the tenant does not have" in found.unavailable[0].reason
        assert len(server.asked) == count


async def test_no_proxy_is_used_and_no_cookie_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    def listed(params: Message) -> Answer:
        body = {"jsonrpc": "2.0", "id": 0, "result": {"tools": [tool("one")]}}
        return http(json.dumps(body).encode(), "application/json", 200, "set-cookie: a=b")

    async with mischief(tools=listed) as (server, url), tools_of(url) as found:
        assert await named(found, "one").call({}, CALL) == "good"
        assert all("cookie" not in headers for _, headers in server.asked)


async def test_more_servers_than_a_document_may_use_are_named() -> None:
    declared = [Declared("mcp", "", "", url=f"http://127.0.0.1:9/{number}") for number in range(MAX_SERVERS + 1)]
    async with mcp_tools(declared, servers("http://127.0.0.1:9/"), "default") as found:
        assert len(found.unavailable) == MAX_SERVERS + 1
        assert found.unavailable[-1].reason == f"a document uses {MAX_SERVERS} MCP servers at most"


# ---- servers that misbehave when they list -------------------------------------------------------------------------


async def never(stream: trio.SocketStream) -> None:
    while await stream.receive_some():
        pass


async def close(stream: trio.SocketStream) -> None:
    pass


async def half(stream: trio.SocketStream) -> None:
    await stream.send_all(b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")


async def endless(stream: trio.SocketStream) -> None:
    await stream.send_all(b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    event = b'data: {"jsonrpc":"2.0","method":"notifications/progress","params":{}}\n\n' * 100
    while True:
        await stream.send_all(f"{len(event):x}\r\n".encode() + event + b"\r\n")


async def tiny(stream: trio.SocketStream) -> None:
    """One byte at a time, for ever."""
    await stream.send_all(b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        await stream.send_all(b"1\r\n \r\n")
        await trio.sleep(0.01)


BAD: dict[str, tuple[Answer, str]] = {
    "nothing": (never, "within 1 s (timeout_s)"),
    "closes": (close, "the connection to 127.0.0.1 ended in the middle of the answer"),
    "half": (half, "the connection to 127.0.0.1 ended in the middle of the answer"),
    "endless": (endless, "events before its answer"),
    "tiny": (tiny, "within 1 s (timeout_s)"),
    "redirect": (http(b"", "text/plain", 307, "location: http://127.0.0.1:9/"), "redirects to another address"),
    "refused": (http(b"", "text/plain", 401), "answers with status 401: it refuses the key"),
    "failing": (http(b'{"detail": "x"}', "application/json", 503), "answers with status 503"),
    "html": (http(b"<p>", "text/html"), "its answer is neither JSON nor a stream of events"),
    "coded": (http(b"x", "application/json", 200, "content-encoding: gzip"), "in a coding that was not asked for"),
    "garbage": (http(b"{]"), "its answer is not JSON"),
    "list": (http(b"[]"), "its answer is not one of JSON-RPC"),
    "empty": (http(b"{}"), "its answer is not one of JSON-RPC"),
    "huge": (http(b" " * (1024 * 1024 + 1)), "its answer is larger than 1,048,576 bytes"),
    "many": (http(b"[" + b"{}," * 20_000 + b"{}]"), "its answer holds more than 10,000 values"),
    "deep": (http(b'{"result": {"tools": ' + b"[" * 5_000), "its answer is not JSON"),
    "nested": (http(b'{"result": {"a": ' + b"[" * 400 + b"]" * 400 + b"}}"), "its answer is nested more than 250 deep"),
    "long": ({"tools": [tool("x")] * 513, "content": [{}] * 513}, "its answer has a list of more than 512 items"),
    "no stream": (http(b"data: x\n", "text/event-stream"), "its answer"),
    "event": (http(b"data: " + b"x" * 1_200_000 + b"\n\n", "text/event-stream"), "is larger than 1048576 bytes"),
    "schema": ({"tools": [tool("one", inputSchema={"type": "string"})]}, "it does not speak MCP as this client does"),
    "result": ({"tools": 5}, "it does not speak MCP as this client does"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_server_that_cannot_be_understood_is_unavailable_with_a_reason(name: str) -> None:
    answer, reason = BAD[name]
    async with mischief(tools=lambda params: answer) as (server, url):
        async with tools_of(url, "timeout_s = 1") as found:
            assert found.offered == []
            (missing,) = found.unavailable
            assert (missing.name, reason in missing.reason) == (url, True), missing.reason
        server.tools = lambda params: {"tools": [tool("one")]}
        async with tools_of(url) as found:
            assert await named(found, "one").call({}, CALL) == "good"


@pytest.mark.parametrize("name", [name for name in BAD if name not in ("schema", "result")])
async def test_a_call_that_is_not_answered_well_is_an_error_and_the_next_one_works(name: str) -> None:
    answer, reason = BAD[name]
    async with mischief() as (server, url), tools_of(url, "timeout_s = 1") as found:
        server.call = lambda params: answer
        problem = await refused(named(found, "one"))
        assert problem.code in (Code.TOOL_ERROR, Code.UNAVAILABLE)
        assert reason in problem.message
        server.call = lambda params: said("good")
        assert await named(found, "one").call({}, CALL) == "good"


async def test_an_address_where_nothing_listens_and_one_that_is_no_mcp_server_are_told_apart() -> None:
    async with mischief() as (_, url):
        pass
    async with tools_of(url) as found:
        assert "127.0.0.1 does not accept connections" in found.unavailable[0].reason


async def test_pages_without_end_and_more_tools_than_a_model_can_use_are_cut() -> None:
    pages = []

    def page(params: Message) -> Answer:
        pages.append(params.get("cursor"))
        return {"tools": [tool(f"t{len(pages)}")], "nextCursor": str(len(pages))}

    async with mischief(tools=page) as (_, url):
        async with tools_of(url) as found:
            assert (len(pages), len(found.offered)) == (16, 16)
            assert [each.reason for each in found.unavailable] == [
                "MCP server 's': its list of tools has more than 16 pages"
            ]
            assert await named(found, "t3").call({}, CALL) == "good"
        pages.clear()
        async with tools_of(url, include=("t2",)) as found:  # it is read only as far as it must be
            assert (len(pages), [each.name for each in found.offered]) == (2, ["t2"])
    many = {"tools": [tool(f"t{number}") for number in range(200)]}
    async with mischief(tools=lambda params: many) as (_, url), tools_of(url) as found:
        assert len(found.offered) == 128
        assert [each.reason for each in found.unavailable] == ["the MCP server 's' has more than 128 tools"]


async def test_tools_with_schemas_out_of_bounds_are_left_out_by_name() -> None:
    deep: Any = {"type": "object"}
    for _ in range(300):
        deep = {"type": "object", "properties": {"a": deep}}
    listed = [
        tool("one", annotations={"readOnlyHint": True, "destructiveHint": False}),
        tool("one", description="again"),
        tool("large", inputSchema={"type": "object", "title": "x" * 70_000}),
        tool("x" * 200),
        tool("wide", description="y" * 10_000, annotations={"destructiveHint": True}),
    ]
    async with mischief(tools=lambda params: {"tools": listed}) as (_, url), tools_of(url) as found:
        one, wide = found.offered
        assert (one.name, one.description, one.read_only, one.destructive) == ("one", "Does one", True, False)
        assert (wide.name, len(wide.description), wide.read_only, wide.destructive) == ("wide", 4096, False, True)
        assert one.parameters == {"type": "object", "properties": {}}
        reasons = {each.name: each.reason for each in found.unavailable}
        assert "a schema of 70,0" in reasons["large"]
        assert "a name of more than 128 characters" in reasons["x" * 128]
    deepest = {"tools": [tool("deep", inputSchema=deep)]}
    async with mischief(tools=lambda params: deepest) as (_, url), tools_of(url) as found:
        assert found.offered == []
    sixty = [tool(f"t{number}", inputSchema={"type": "object", "title": "x" * 60_000}) for number in range(6)]
    async with mischief(tools=lambda params: {"tools": sixty}) as (_, url), tools_of(url) as found:
        assert len(found.offered) == 4


async def test_a_session_is_ended_with_the_run_and_a_server_that_keeps_it_waiting_is_left() -> None:
    async with mischief() as (server, url):
        async with tools_of(url) as found:
            await named(found, "one").call({}, CALL)
        assert server.asked[-1][0].startswith("DELETE /mcp")
        assert not any(method.startswith("GET") for method, _ in server.asked)
        began = trio.current_time()
        async with tools_of(url):
            server.answer = lambda message: never  # type: ignore[method-assign]
        assert trio.current_time() - began < 3


async def test_a_run_that_is_cancelled_frees_its_connections_at_once() -> None:
    async with mischief(call=lambda params: never) as (server, url):
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                async with tools_of(url) as found:
                    await named(found, "one").call({}, CALL)

            nursery.start_soon(run)
            while not any(method == "tools/call" for method, _ in server.asked):  # noqa: ASYNC110
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
            began = trio.current_time()
        assert trio.current_time() - began < 0.25
        with trio.fail_after(2):
            while server.open:  # noqa: ASYNC110
                await trio.sleep(0.01)


async def test_an_error_of_the_run_itself_leaves_the_block_as_it_is() -> None:
    async with mischief() as (_, url):
        with pytest.raises(KeyError) as caught:
            async with tools_of(url):
                raise KeyError("mine")
        assert caught.value.args == ("mine",)

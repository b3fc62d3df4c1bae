"""A server for the MCP conformance suite: the real one, and the things that the suite wants by name.

Run as `make mcp-fixture`. What a Lua script can answer is in `engine.toml` and goes through workers; what only the
protocol has (images, sampling, questions to the user) is answered here. Nothing of this is part of the product.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import mcp_types as t
import trio
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from agents.service import open_service
from engine.config import LoadedConfig, load_config, parse_bind
from knowledge.store import Batch, NewDocument
from server.app import listen, open_app, run_process, serve_app
from server.http.routes import Need
from server.mcp.caller import Context
from server.mcp.endpoint import Mcp
from server.mcp.handlers import Handlers
from server.mcp.listen import PROMPTS_CHANGED, TOOLS_CHANGED, Listeners
from server.mcp.methods import METHODS, Method

FOLDER = Path(__file__).resolve().parent
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
SILENCE = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
MISSING_CAPABILITY = -32021

ANYTHING: dict[str, Any] = {"type": "object", "properties": {}}
# The keywords of JSON Schema 2020-12 that must reach the client untouched.
SCHEMA_2020: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}

ToolAnswer = t.CallToolResult | t.InputRequiredResult
PromptAnswer = t.GetPromptResult | t.InputRequiredResult


def text(words: str) -> t.TextContent:
    return t.TextContent(type="text", text=words)


def embedded(uri: str, mime_type: str, words: str) -> t.EmbeddedResource:
    return t.EmbeddedResource(
        type="resource", resource=t.TextResourceContents(uri=uri, mime_type=mime_type, text=words)
    )


def result(*content: Any) -> t.CallToolResult:
    return t.CallToolResult(content=list(content))


def capabilities(ctx: Context) -> Mapping[str, Any]:
    """What the client of a request of 2026-07-28 said that it can do."""
    return dict(((ctx.params or {}).get("_meta") or {}).get(CAPABILITIES) or {})


# ---- questions to the client ---------------------------------------------------------------------------------------


def ask_user(words: str, field: str, kind: str = "string") -> t.ElicitRequest:
    schema = {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}
    return t.ElicitRequest(params=t.ElicitRequestFormParams(message=words, requested_schema=schema))


def ask_model(words: str, max_tokens: int) -> t.CreateMessageRequest:
    said = t.SamplingMessage(role="user", content=text(words))
    return t.CreateMessageRequest(params=t.CreateMessageRequestParams(messages=[said], max_tokens=max_tokens))


def ask(state: str | None = None, **requests: Any) -> t.InputRequiredResult:
    return t.InputRequiredResult(input_requests=requests, request_state=state)


def accepted(params: t.CallToolRequestParams | t.GetPromptRequestParams, key: str) -> dict[str, Any] | None:
    """What the user filled in, if that was asked and answered."""
    answer = (params.input_responses or {}).get(key)
    return dict(answer.content or {}) if isinstance(answer, t.ElicitResult) and answer.action == "accept" else None


async def elicitation(ctx: Context, params: t.CallToolRequestParams) -> ToolAnswer:
    answer = accepted(params, "user_name")
    return (
        ask(user_name=ask_user("What is your name?", "name"))
        if not answer
        else result(text(f"Hello, {answer['name']}!"))
    )


async def sampling(ctx: Context, params: t.CallToolRequestParams) -> ToolAnswer:
    answer = (params.input_responses or {}).get("capital_question")
    if isinstance(answer, t.CreateMessageResult) and isinstance(answer.content, t.TextContent):
        return result(text(answer.content.text))
    return ask(capital_question=ask_model("What is the capital of France?", 100))


async def list_roots(ctx: Context, params: t.CallToolRequestParams) -> ToolAnswer:
    answer = (params.input_responses or {}).get("client_roots")
    if isinstance(answer, t.ListRootsResult):
        return result(text(", ".join(str(root.uri) for root in answer.roots)))
    return ask(client_roots=t.ListRootsRequest())


async def request_state(ctx: Context, params: t.CallToolRequestParams) -> ToolAnswer:
    if params.request_state == "confirming" and accepted(params, "confirm") is not None:
        return result(text("state-ok"))
    return ask("confirming", confirm=ask_user("Please confirm", "ok", "boolean"))


async def multiple_inputs(ctx: Context, params: t.CallToolRequestParams) -> ToolAnswer:
    if params.request_state == "three" and len(params.input_responses or {}) == 3:
        return result(text("All three are here"))
    return ask(
        "three",
        user_name=ask_user("What is your name?", "name"),
        greeting=ask_model("Generate a greeting", 50),
        client_roots=t.ListRootsRequest(),
    )


async def multi_round(ctx: Context, params: t.CallToolRequestParams) -> ToolAnswer:
    if params.request_state == "colour" and (answer := accepted(params, "step2")) is not None:
        return result(text(f"Your favourite colour is {answer['color']}"))
    if params.request_state == "name" and accepted(params, "step1") is not None:
        return ask("colour", step2=ask_user("Step 2: What is your favorite color?", "color"))
    return ask("name", step1=ask_user("Step 1: What is your name?", "name"))


async def by_capability(ctx: Context, params: t.CallToolRequestParams) -> ToolAnswer:
    can = capabilities(ctx)
    if "elicitation" in can:
        return ask(who=ask_user("Who?", "name"))
    if "sampling" in can:
        return ask(what=ask_model("What?", 10))
    return result(text("The client can do neither"))


async def streaming_elicitation(ctx: Context, params: t.CallToolRequestParams) -> ToolAnswer:
    return ask(more=ask_user("More?", "more")) if "elicitation" in capabilities(ctx) else result(text("done"))


async def missing_capability(ctx: Context, params: t.CallToolRequestParams) -> ToolAnswer:
    if "sampling" not in capabilities(ctx):
        needs = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(MISSING_CAPABILITY, "this tool asks the client's model", needs)
    return result(text("The client can sample"))


# ---- content, log, changes ---------------------------------------------------------------------------------------


async def image(ctx: Context, params: t.CallToolRequestParams) -> ToolAnswer:
    return result(t.ImageContent(type="image", data=PIXEL, mime_type="image/png"))


async def audio(ctx: Context, params: t.CallToolRequestParams) -> ToolAnswer:
    return result(t.AudioContent(type="audio", data=SILENCE, mime_type="audio/wav"))


async def embedded_resource(ctx: Context, params: t.CallToolRequestParams) -> ToolAnswer:
    return result(embedded("test://embedded-resource", "text/plain", "This is an embedded resource content."))


async def mixed(ctx: Context, params: t.CallToolRequestParams) -> ToolAnswer:
    return result(
        text("Multiple content types test:"),
        t.ImageContent(type="image", data=PIXEL, mime_type="image/png"),
        embedded("test://mixed-content-resource", "application/json", '{"test": "data", "value": 123}'),
    )


async def schema_2020(ctx: Context, params: t.CallToolRequestParams) -> ToolAnswer:
    return result(text(json.dumps(params.arguments or {})))


async def logging(ctx: Context, params: t.CallToolRequestParams) -> ToolAnswer:
    for words in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.session.send_log_message("info", words, related_request_id=ctx.request_id)
        await trio.sleep(0.05)
    return result(text("logged"))


Tool = Callable[[Context, t.CallToolRequestParams], Awaitable[ToolAnswer]]
TOOLS: dict[str, Tool] = {
    "json_schema_2020_12_tool": schema_2020,
    "test_audio_content": audio,
    "test_embedded_resource": embedded_resource,
    "test_image_content": image,
    "test_input_required_result_capabilities": by_capability,
    "test_input_required_result_elicitation": elicitation,
    "test_input_required_result_list_roots": list_roots,
    "test_input_required_result_multi_round": multi_round,
    "test_input_required_result_multiple_inputs": multiple_inputs,
    "test_input_required_result_request_state": request_state,
    "test_input_required_result_sampling": sampling,
    "test_input_required_result_tampered_state": request_state,
    "test_logging_tool": logging,
    "test_missing_capability": missing_capability,
    "test_multiple_content_types": mixed,
    "test_streaming_elicitation": streaming_elicitation,
    "test_tool_with_logging": logging,
}
CHANGES = {"test_trigger_tool_change": TOOLS_CHANGED, "test_trigger_prompt_change": PROMPTS_CHANGED}

PROMPTS = (
    t.Prompt(
        name="test_prompt_with_embedded_resource",
        description="A prompt with a resource in it",
        arguments=[t.PromptArgument(name="resourceUri", required=True)],
    ),
    t.Prompt(name="test_prompt_with_image", description="A prompt with an image in it"),
    t.Prompt(name="test_input_required_result_prompt", description="A prompt that asks the user first"),
)
RESOURCES = (
    t.Resource(uri="test://static-text", name="static-text", description="A text", mime_type="text/plain"),
    t.Resource(uri="test://static-binary", name="static-binary", description="An image", mime_type="image/png"),
    t.Resource(uri="test://watched-resource", name="watched", description="A text", mime_type="text/plain"),
)
TEMPLATE = t.ResourceTemplate(uri_template="test://template/{id}/data", name="template", mime_type="application/json")


class Fixtures(Handlers):
    """The server's own handlers, and in front of them what the suite asks for."""

    methods = METHODS | dict.fromkeys(("resources/subscribe", "resources/unsubscribe"), Method(Need.USE, "the same"))

    def __init__(self, service: Any, listeners: Listeners) -> None:
        super().__init__(service, listeners)
        self.listeners = listeners

    def server(self, input_schema: Callable[[str], Mapping[str, Any] | None]) -> Server[Any]:
        server = super().server(lambda name: ANYTHING if name in TOOLS else input_schema(name))

        async def nothing(ctx: Context, params: Any) -> t.EmptyResult:
            return t.EmptyResult()

        # Of the handshake revisions. A server without sessions has nothing to remember, but may be asked.
        server.add_request_handler("resources/subscribe", t.SubscribeRequestParams, nothing)
        server.add_request_handler("resources/unsubscribe", t.UnsubscribeRequestParams, nothing)
        return server

    async def list_tools(self, ctx: Context, params: t.PaginatedRequestParams | None) -> t.ListToolsResult:
        found = await super().list_tools(ctx, params)
        schemas = dict.fromkeys([*TOOLS, *CHANGES], ANYTHING) | {"json_schema_2020_12_tool": SCHEMA_2020}
        found.tools += [t.Tool(name=name, description=name, input_schema=schema) for name, schema in schemas.items()]
        return found

    async def call_tool(self, ctx: Context, params: t.CallToolRequestParams) -> ToolAnswer:
        if params.name in CHANGES:
            self.listeners.tell(CHANGES[params.name])
            return result(text("changed"))
        fixture = TOOLS.get(params.name)
        return await (super().call_tool(ctx, params) if fixture is None else fixture(ctx, params))

    async def list_prompts(self, ctx: Context, params: t.PaginatedRequestParams | None) -> t.ListPromptsResult:
        found = await super().list_prompts(ctx, params)
        found.prompts += PROMPTS
        return found

    async def get_prompt(self, ctx: Context, params: t.GetPromptRequestParams) -> PromptAnswer:
        match params.name:
            case "test_prompt_with_embedded_resource":
                uri = (params.arguments or {}).get("resourceUri", "")
                content: list[Any] = [
                    embedded(uri, "text/plain", "Embedded resource content for testing."),
                    text("Please process the embedded resource above."),
                ]
            case "test_prompt_with_image":
                picture = t.ImageContent(type="image", data=PIXEL, mime_type="image/png")
                content = [picture, text("Please analyze the image above.")]
            case "test_input_required_result_prompt":
                answer = accepted(params, "user_context")
                if answer is None:
                    return ask(user_context=ask_user("What context should the prompt use?", "context"))
                content = [text(f"Use this context: {answer['context']}")]
            case _:
                return await super().get_prompt(ctx, params)
        return t.GetPromptResult(messages=[t.PromptMessage(role="user", content=each) for each in content])

    async def list_resources(self, ctx: Context, params: t.PaginatedRequestParams | None) -> t.ListResourcesResult:
        found = await super().list_resources(ctx, params)
        found.resources += RESOURCES
        return found

    async def list_resource_templates(
        self, ctx: Context, params: t.PaginatedRequestParams | None
    ) -> t.ListResourceTemplatesResult:
        found = await super().list_resource_templates(ctx, params)
        found.resource_templates.append(TEMPLATE)
        return found

    async def read_resource(
        self, ctx: Context, params: t.ReadResourceRequestParams
    ) -> t.ReadResourceResult | t.InputRequiredResult:
        uri = params.uri
        if uri == "test://static-binary":
            blob = t.BlobResourceContents(uri=uri, mime_type="image/png", blob=PIXEL)
            return t.ReadResourceResult(contents=[blob])
        if uri.startswith("test://template/") and uri.endswith("/data"):
            identifier = uri.split("/")[3]
            told = {"id": identifier, "templateTest": True, "data": f"Data for ID: {identifier}"}
            words, mime_type = json.dumps(told), "application/json"
        elif uri == "test://static-text":
            words, mime_type = "This is the content of the static text resource.", "text/plain"
        elif uri == "test://watched-resource":
            words, mime_type = "Watched resource content", "text/plain"
        else:
            return await super().read_resource(ctx, params)
        return t.ReadResourceResult(contents=[t.TextResourceContents(uri=uri, mime_type=mime_type, text=words)])


# ---- the process ---------------------------------------------------------------------------------------------------


async def run(loaded: LoadedConfig, bind: str, stop: trio.Event, serving: trio.Event) -> int:
    settings = loaded.config.server
    host, port = parse_bind(bind)
    listener = await listen(host, port)
    async with listener, open_service(loaded) as service:
        if service.failures:
            raise RuntimeError(f"the fixtures did not load: {service.failures}")
        words = "A document for the suite."
        document = NewDocument(source_id="a.md", title="A", body=words, chunks=(words,), digest="a")
        await service.store.apply(Batch(source="filesystem:fixtures", upserts=[document]))  # type: ignore[attr-defined]
        mcp = Mcp(service, max_body_bytes=settings.max_body_bytes, handlers=Fixtures)
        async with open_app(service, settings, host, mcp) as guard:
            print(f"listening on http://{host}:{listener.socket.getsockname()[1]}/mcp", flush=True)
            serving.set()
            await serve_app(guard, listener, stop, graceful_timeout_s=settings.graceful_timeout_s)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Serve the fixtures of the MCP conformance suite")
    parser.add_argument("--bind", default="127.0.0.1:7331", help="HOST:PORT; port 0 takes any free one")
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "CONFORMANCE_STORE": str(Path(folder) / "store.sqlite")}
        loaded = load_config(FOLDER / "engine.toml", environ=environ, cwd=FOLDER)
        return trio.run(run_process, partial(run, loaded, parser.parse_args().bind))


if __name__ == "__main__":
    sys.exit(main())

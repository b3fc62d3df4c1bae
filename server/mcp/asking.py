"""Questions to a client in the forms of MCP: form elicitation and sampling, and what their answers mean. Pure.

`server.mcp.tasks` sends them: during a call as `InputRequiredResult`, in a task as its `inputRequests`.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import mcp_types as t

from agents.asking import CannotAsk, Capability
from engine.models.reserving import BYTES_A_TOKEN
from engine.models.shapes import (
    Answer,
    Assistant,
    Image,
    Message,
    ModelFailed,
    Reason,
    Request,
    Room,
    System,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    User,
    arguments_of,
    one_more,
)
from server.mcp.task_states import EXTENSION

# A person is shown arguments whole or not at all.
SHOWN = 16_384
# The bound on an answer of the client's model where the request has none: the field is required.
OUTPUT_TOKENS = 4096
# Bounds on a conversation for the client's model, which is sent whole with each question: the SDK copies it four times,
# 20 ms of work for the most that fits.
SAMPLE_BYTES = 256 * 1024
SAMPLE_MESSAGES = 200

Given = TypeVar("Given", covariant=True)


@dataclass(frozen=True, slots=True)
class Able:
    """What the client of a request of 2026-07-28 declares that it can do."""

    tasks: bool
    elicitation: bool
    sampling: bool
    sampling_tools: bool

    def __bool__(self) -> bool:
        """Whether a call of this client may need to outlive its request."""
        return self.tasks or self.elicitation or self.sampling


def able(capabilities: t.ClientCapabilities | None) -> Able:
    """What these capabilities say. An elicitation capability without modes means forms (2026-07-28, elicitation)."""
    if capabilities is None:
        return Able(tasks=False, elicitation=False, sampling=False, sampling_tools=False)
    elicitation, sampling = capabilities.elicitation, capabilities.sampling
    return Able(
        tasks=EXTENSION in (capabilities.extensions or {}),
        elicitation=elicitation is not None and (elicitation.form is not None or elicitation.url is None),
        sampling=sampling is not None,
        sampling_tools=sampling is not None and sampling.tools is not None,
    )


def cannot(capability: Capability) -> CannotAsk:
    """Why a client without a capability is not asked."""
    return CannotAsk(f"the client that called cannot be asked: it does not declare {capability!r}", missing=capability)


class Form(Protocol[Given]):
    """One question."""

    @property
    def size(self) -> int:
        """About how many bytes it has."""
        ...

    def request(self) -> t.InputRequest:
        """The request to the client."""
        ...

    def fits(self, response: t.InputResponse) -> bool:
        """Whether a response is of the kind that was asked for."""
        ...

    def read(self, response: t.InputResponse) -> Given:
        """What a response of that kind means. Raises ModelFailed."""
        ...


def _visible(arguments: str) -> str:
    """The JSON with its invisible characters escaped: marks of direction would show a person another text."""
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in arguments)


@dataclass(frozen=True, slots=True)
class Confirm:
    """May this tool be called with these arguments? A form without fields: to accept it is a yes."""

    tool: str
    arguments: str

    @property
    def size(self) -> int:
        return 12 * len(self.arguments)

    def request(self) -> t.InputRequest:
        message = f"Allow the call of the tool {self.tool!r} with these arguments?\n\n{_visible(self.arguments)}"
        schema: dict[str, Any] = {"type": "object", "properties": {}}
        return t.ElicitRequest(params=t.ElicitRequestFormParams(message=message, requested_schema=schema))

    def fits(self, response: t.InputResponse) -> bool:
        return isinstance(response, t.ElicitResult)

    def read(self, response: t.InputResponse) -> bool:
        return isinstance(response, t.ElicitResult) and response.action == "accept"


@dataclass(frozen=True, slots=True)
class Sample:
    """An answer of the client's model."""

    asked: Request
    # Made once: its size is needed before it is sent, and it is sent until it is answered.
    params: t.CreateMessageRequestParams
    size: int

    @classmethod
    def of(cls, asked: Request) -> "Sample":
        """Raises CannotAsk for a conversation beyond the bounds."""
        if len(asked.messages) > SAMPLE_MESSAGES:
            raise CannotAsk(f"the conversation has more than {SAMPLE_MESSAGES} messages, the most for a client's model")
        size = 0
        if sum(map(_characters, asked.messages)) <= SAMPLE_BYTES:
            params = _params(asked)
            size = len(params.model_dump_json(by_alias=True, exclude_none=True))
            if size <= SAMPLE_BYTES:
                return cls(asked, params, size)
        raise CannotAsk(f"the conversation is larger than {SAMPLE_BYTES} bytes, the most for a client's model")

    def request(self) -> t.InputRequest:
        return t.CreateMessageRequest(params=self.params)

    def fits(self, response: t.InputResponse) -> bool:
        return isinstance(response, t.CreateMessageResult | t.CreateMessageResultWithTools)

    def read(self, response: t.InputResponse) -> Answer:
        assert isinstance(response, t.CreateMessageResult | t.CreateMessageResultWithTools)
        if response.role != "assistant":
            raise ModelFailed("its answer has another role than 'assistant'")
        room = Room(self.asked.output_bytes)
        texts: list[str] = []
        calls: list[ToolCall] = []
        content = response.content if isinstance(response.content, list) else [response.content]
        for block in content:
            if isinstance(block, t.TextContent):
                texts.append(room.take(block.text))
            elif isinstance(block, t.ToolUseContent):
                one_more(calls)
                room.take(block.id + block.name)
                raw = room.take(json.dumps(block.input))
                calls.append(ToolCall(block.id or f"call_{len(calls)}", block.name, arguments_of(raw, room), raw))
        if not texts and not calls:
            raise ModelFailed("its answer holds neither text nor a tool call")
        usage = Usage(_tokens(self.size), 0, _tokens(room.used), estimated=True)
        return Answer("".join(texts), tuple(calls), usage, _reason(response.stop_reason, bool(calls)))


def _reason(stop: str | None, calls: bool) -> Reason:
    if calls:
        return "tool_calls"
    return "length" if stop == "maxTokens" else "stop"


def _tokens(size: int) -> int:
    return -(-size // BYTES_A_TOKEN)


# ---- requests to the client's model ------------------------------------------------------------------------------


def _characters(message: Message) -> int:
    match message:
        case System() | ToolResult():
            return len(message.text)
        case User():
            return sum(len(part.text) if isinstance(part, Text) else len(part.data) + 1 for part in message.parts)
        case Assistant():
            return len(message.text) + sum(len(call.raw) for call in message.calls)


def _params(asked: Request) -> t.CreateMessageRequestParams:
    """MCP has no place for `schema`, and one system text: the texts before the first other message."""
    messages = list(asked.messages)
    systems: list[str] = []
    while messages and isinstance(messages[0], System):
        first = messages.pop(0)
        assert isinstance(first, System)
        systems.append(first.text)
    tools = [
        t.Tool(name=tool.name, description=tool.description, input_schema={"type": "object", **tool.parameters})
        for tool in asked.tools
    ]
    choice = t.ToolChoice(mode="none") if asked.tools_off else None
    return t.CreateMessageRequestParams(
        messages=list(_messages(messages)),
        system_prompt="\n\n".join(systems) or None,
        temperature=asked.temperature,
        max_tokens=asked.max_output_tokens or OUTPUT_TOKENS,
        tools=tools or None,
        tool_choice=choice if tools else None,
    )


def _messages(messages: list[Message]) -> Iterator[t.SamplingMessage]:
    """Results of tools that follow each other are one message, as MCP wants them."""
    results: list[t.SamplingMessageContentBlock] = []
    for message in messages:
        if isinstance(message, ToolResult):
            content: list[t.ContentBlock] = [t.TextContent(type="text", text=message.text)]
            results.append(
                t.ToolResultContent(tool_use_id=message.id, content=content, is_error=message.failed or None)
            )
            continue
        if results:
            yield t.SamplingMessage(role="user", content=results)
            results = []
        if isinstance(message, Assistant):
            if blocks := _said(message):
                yield t.SamplingMessage(role="assistant", content=blocks)
        else:
            yield t.SamplingMessage(role="user", content=_parts(message))
    if results:
        yield t.SamplingMessage(role="user", content=results)


def _said(message: Assistant) -> list[t.SamplingMessageContentBlock]:
    blocks: list[t.SamplingMessageContentBlock] = []
    if message.text:
        blocks.append(t.TextContent(type="text", text=message.text))
    for call in message.calls:
        given: Mapping[str, Any] = call.arguments or {}
        blocks.append(t.ToolUseContent(id=call.id, name=call.name, input=dict(given)))
    return blocks


def _parts(message: System | User | Assistant | ToolResult) -> list[t.SamplingMessageContentBlock]:
    if isinstance(message, System):
        return [t.TextContent(type="text", text=message.text)]
    assert isinstance(message, User)
    return [_part(part) for part in message.parts]


def _part(part: Text | Image) -> t.SamplingMessageContentBlock:
    if isinstance(part, Text):
        return t.TextContent(type="text", text=part.text)
    if part.data:
        return t.ImageContent(type="image", data=part.data, mime_type=part.media_type)
    return t.TextContent(type="text", text=f"(an image: {part.url})")  # sampling has no images by address

"""The prompt of a document in ChatMD: its messages as texts and blocks. Pure."""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from agents.agent import (
    AgentPrompt,
    Block,
    BlockMessage,
    ImageBlock,
    LinkBlock,
    PromptMessage,
    Resolved,
    ResourceBlock,
    TextBlock,
)
from agents.chatmd.program import Doc, Nested, Part, Picture, Program, Said, StoredCall, StoredResult, Words

Role = Literal["user", "assistant", "system"]
_SHOWN = (ImageBlock, LinkBlock)


class LeftOut(NamedTuple):
    """How many things of the document are not in its prompt."""

    tool_calls: int
    tool_responses: int
    reasoning: int
    agents: int


def left_out(program: Program) -> LeftOut:
    """What the prompt of a document leaves out."""
    said = [item for item in program.items if isinstance(item, Said)]
    return LeftOut(
        sum(isinstance(item, StoredCall) for item in program.items),
        sum(isinstance(item, StoredResult) for item in program.items),
        program.reasoning,
        sum(_nested(item.parts) for item in said),
    )


def _nested(parts: Sequence[Part]) -> int:
    return sum(1 + _nested(part.parts) for part in parts if isinstance(part, Nested))


def images_of(program: Program) -> dict[bytes, str]:
    """The images of a document in base64, which takes 1 ms a megabyte."""
    parts = [part for item in program.items if isinstance(item, Said) for part in item.parts]
    return {
        part.data: base64.b64encode(part.data).decode()
        for part in parts
        if isinstance(part, Picture) and part.data is not None
    }


def prompt_of(program: Program, last: str, tools: tuple[str, ...], images: Mapping[bytes, str]) -> Resolved:
    """The prompt: leading system texts as its system text, all else in its place, and `last` as a last message.

    An image of a leading text stands in a first message of the user. `images` are those of the document, as
    `images_of` has them.
    """
    said = [item for item in program.items if isinstance(item, Said)]
    leading = [_blocks(item.parts, images) for item in said if item.leading]
    shown = [block for blocks in leading for block in blocks if isinstance(block, _SHOWN)]
    spoken: list[tuple[Role, Sequence[Block]]] = [
        (item.role, _blocks(item.parts, images)) for item in said if not item.leading
    ]
    if shown:
        spoken.insert(0, ("user", shown))
    if last:
        spoken.append(("user", (TextBlock(text=last),)))
    spoken = [(role, blocks) for role, blocks in spoken if blocks]
    texts = [blocks for each in leading if (blocks := [one for one in each if not isinstance(one, _SHOWN)])]
    prompt = AgentPrompt(
        system="\n\n".join(_text(blocks) for blocks in texts),
        tools=tools,
        messages=tuple(_message(role, blocks) for role, blocks in spoken),
    )
    system: list[tuple[Role, Block]] = [("user", block) for blocks in texts for block in blocks]
    if not any(isinstance(block, ResourceBlock) for _, block in system):  # as other prompts have it: one text
        system = [("user", TextBlock(text=prompt.system))] if prompt.system else []
    return Resolved(prompt, blocks=(*system, *((role, block) for role, blocks in spoken for block in blocks)))


def _message(role: Role, blocks: Sequence[Block]) -> PromptMessage:
    content = _text(blocks)
    if not any(isinstance(block, _SHOWN) for block in blocks):
        return PromptMessage(role=role, content=content)
    return BlockMessage(role=role, content=content, blocks=tuple(_merged(blocks)))


def _merged(blocks: Iterable[Block]) -> Iterator[TextBlock | ImageBlock | LinkBlock]:
    """Blocks for REST: texts in their places, adjacent ones as one."""
    text = ""
    for block in blocks:
        if isinstance(block, TextBlock | ResourceBlock):
            text += block.text
            continue
        if text:
            yield TextBlock(text=text)
        text = ""
        yield block
    if text:
        yield TextBlock(text=text)


def _text(blocks: Iterable[Block]) -> str:
    return "".join(block.text for block in blocks if isinstance(block, TextBlock | ResourceBlock))


def _blocks(parts: Iterable[Part], images: Mapping[bytes, str]) -> list[Block]:
    blocks = [block for part in parts if (block := _block(part, images)) is not None]
    blank = all(isinstance(block, TextBlock) and not block.text.strip() for block in blocks)
    return [] if blank else blocks


def _block(part: Part, images: Mapping[bytes, str]) -> Block | None:
    match part:
        case Words():
            return TextBlock(text=part.text) if part.text else None
        case Doc():
            return ResourceBlock(part.uri, part.text, part.media_type)
        case Picture(data=None):
            return LinkBlock(uri=part.url, name=part.src, mime_type=part.media_type or None)
        case Picture(data=bytes() as data):
            return ImageBlock(data=images[data], mime_type=part.media_type)
    return None

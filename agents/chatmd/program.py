"""A document as it runs: its settings, its conversation and its tools. `agents/chatmd/building.py` makes it. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from engine.errors import Code, Problem


@dataclass(frozen=True, slots=True)
class Words:
    """Text of a message."""

    text: str


@dataclass(frozen=True, slots=True)
class Doc:
    """`<doc>`: text in its place. `uri` is for clients that take it as a resource."""

    src: str
    text: str = field(repr=False)
    uri: str = ""
    media_type: str = "text/plain"


@dataclass(frozen=True, slots=True)
class Picture:
    """`<img>`: the bytes of a local file, or an address, whose `data` is None."""

    src: str
    data: bytes | None = field(repr=False)
    media_type: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True)
class Nested:
    """`<agent>`: another document, by its key in `Program.documents`, and what it is given."""

    src: str
    path: str
    parts: "tuple[Part, ...]" = ()


Part = Words | Doc | Picture | Nested


@dataclass(frozen=True, slots=True)
class Said:
    """A message. `leading` are the system and developer texts before the first other message."""

    role: Literal["system", "user", "assistant"]
    parts: tuple[Part, ...]
    leading: bool = False


@dataclass(frozen=True, slots=True)
class StoredCall:
    """A call of a stored conversation."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class StoredResult:
    """The result of a stored call."""

    id: str
    text: str


Item = Said | StoredCall | StoredResult


@dataclass(frozen=True, slots=True)
class Declared:
    """A tool of the document.

    `tenant`: a tool of the tenant by its name. `document`: another document, by its key in `Program.documents`. `file`:
    reads below `roots`, each an id, an absolute folder and a description. `mcp`: the tools of the server at `url`, or
    those of them in `include`.
    """

    kind: Literal["tenant", "document", "file", "mcp"]
    name: str
    description: str = ""
    path: str = ""
    roots: tuple[tuple[str, str, str], ...] = ()
    url: str = ""
    include: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A tool that the engine does not run, or what else it does not do, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Program:
    """A document with all that it names. `folder` is empty for a document from an address, which has no files.

    `imports` are the files that it imports, from its folder. `reasoning` counts the items of stored reasoning, which
    are in no conversation.
    """

    model: str | None
    temperature: float | None
    max_output_tokens: int | None
    items: tuple[Item, ...]
    tools: tuple[Declared, ...]
    unavailable: tuple[Unavailable, ...]
    documents: "Mapping[str, Program]"
    description: str
    folder: str
    source: str = field(repr=False)
    sha256: str
    imports: tuple[str, ...]
    reasoning: int = 0
    # What it asks for beside tools and does not get.
    ignored: tuple[Unavailable, ...] = ()


# Not made of the names, which a caller chooses: to compile 40,000 of them takes 1.5 s.
_PLACE = re.compile("{{([^{}]+)}}")
# The characters that a caller's values may put into the texts: more than a model of a million tokens reads. A document
# may name a value often.
MAX_FILLED = 4 * 1024 * 1024


def filled(program: Program, values: Mapping[str, str]) -> tuple[Program, tuple[str, ...]]:
    """The program with each `{{NAME}}` of `values` replaced, once, in the texts of its messages, and nowhere else: not
    in what was put in, not in files. Also the names that no text has, and those with a brace.

    Raises Problem bad_request for more than `MAX_FILLED`.
    """
    if not values:
        return program, ()
    found: set[str] = set()
    size = 0

    def value(match: re.Match[str]) -> str:
        nonlocal size
        name = match[1]
        if name not in values:
            return match[0]
        found.add(name)
        size += len(values[name])
        if size > MAX_FILLED:
            said = f"the document names its values so often that they would be more than {MAX_FILLED:,} characters"
            raise Problem(Code.BAD_REQUEST, said)
        return values[name]

    def part_of(part: Part) -> Part:
        if isinstance(part, Words):
            return Words(_PLACE.sub(value, part.text)) if "{{" in part.text else part
        return replace(part, parts=parts_of(part.parts)) if isinstance(part, Nested) else part

    def parts_of(parts: Sequence[Part]) -> tuple[Part, ...]:
        return tuple(part_of(part) for part in parts)

    items = tuple(
        replace(item, parts=parts_of(item.parts)) if isinstance(item, Said) else item for item in program.items
    )
    return replace(program, items=items), tuple(name for name in values if name not in found)

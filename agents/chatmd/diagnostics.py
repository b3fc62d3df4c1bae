"""What is wrong with a document, and where: the one list of codes."""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Literal

import msgspec

Severity = Literal["error", "warning"]


class Position(msgspec.Struct, frozen=True, gc=False):
    """A place in a file. Lines and columns begin at 1; columns count characters."""

    file: str
    line: int
    column: int


class Kind(Enum):
    """How much a code weighs."""

    ERROR = "error"
    TOLERATED = "warning; an error in strict mode"
    WARNING = "warning"


# Code -> its weight, and what it means.
CODES: Mapping[str, tuple[Kind, str]] = {
    "not-utf8": (Kind.ERROR, "the file is not UTF-8"),
    "too-large": (Kind.ERROR, "more bytes, elements and attributes, or levels than are read"),
    "top-level-text": (Kind.ERROR, "text outside of elements"),
    "unclosed": (Kind.ERROR, "an element without the tag that ends it; told at the tag that begins it"),
    "mismatched": (Kind.ERROR, "a tag that ends another element than the innermost open one"),
    "stray-close": (Kind.ERROR, "a tag that ends an element, where none is open"),
    "raw-unterminated": (Kind.ERROR, "`RAW|` without `|RAW`"),
    "comment-unterminated": (Kind.ERROR, "`<!--` without `-->`"),
    "attribute-unterminated": (Kind.ERROR, "the value of an attribute without the quotation mark that ends it"),
    "missing-attribute": (Kind.ERROR, "an attribute that the element needs is missing or empty"),
    "unknown-attribute": (Kind.ERROR, "an attribute that `import` does not have; those of other elements are ignored"),
    "status-without-id": (Kind.ERROR, "an `assistant` with `status` and without `id`"),
    "tool-kinds": (Kind.ERROR, "a tool with more than one of `command`, `agent`, `mcp_server`"),
    "file-missing": (Kind.ERROR, "a file or address that the document reads does not exist or cannot be read"),
    "file-outside": (
        Kind.ERROR,
        "what the document reads is outside of its folder, a link, or at a host that is not allowed",
    ),
    "file-kind": (Kind.ERROR, "what the document reads is no regular file, or no image"),
    "import-cycle": (Kind.ERROR, "a file that imports itself, or a document inside itself, also by way of others"),
    "import-depth": (Kind.ERROR, "imports, or documents inside documents, nested too deep"),
    "import-namespace": (Kind.ERROR, "a namespace that is no name, or that two imports side by side share"),
    "void-unclosed": (Kind.TOLERATED, "`doc`, `img`, `import` or `config` without its end is read as `<doc/>`"),
    "import-spelling": (Kind.TOLERATED, "`import` with `local`, which is ignored, or with `file` for `src`"),
    "config-spelling": (Kind.TOLERATED, "`config` with `show` for `show_tool_call`"),
    "angle-in-attribute": (Kind.TOLERATED, "`<` or `>` where a strict reader takes another tag than is meant"),
    "markup-in-record": (Kind.TOLERATED, "markup in what a model or tool said is read as text"),
    "not-supported": (Kind.TOLERATED, "an element that is ignored; nothing of it is executed"),
    "unknown-model": (Kind.WARNING, "the configuration has no such model"),
    "tool-unavailable": (Kind.WARNING, "a tool that this engine does not run"),
    "duplicate-attribute": (Kind.WARNING, "an attribute that is there twice; the last one counts"),
    "second-config": (Kind.WARNING, "a second `config`; the first one counts"),
}


class Diagnostic(msgspec.Struct, frozen=True, gc=False):
    """One finding."""

    code: str
    severity: Severity
    message: str
    at: Position

    def as_json(self) -> dict[str, Any]:
        """The form that outside tools read."""
        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "file": self.at.file,
            "line": self.at.line,
            "column": self.at.column,
        }

    def __str__(self) -> str:
        return f"{self.at.file}:{self.at.line}:{self.at.column}: {self.severity}: {self.message} [{self.code}]"


# Characters of a message. What a document says (`src`) stands in the middle of it, and is cut there.
MAX_MESSAGE = 500
_END = 200


def diagnostic(code: str, message: str, at: Position, *, strict: bool = False) -> Diagnostic:
    """A finding of a code in `CODES`, as severe as the mode makes it."""
    kind, _ = CODES[code]
    is_error = kind is Kind.ERROR or (strict and kind is Kind.TOLERATED)
    if len(message) > MAX_MESSAGE:
        message = f"{message[: MAX_MESSAGE - _END - 1]}…{message[-_END:]}"
    return Diagnostic(code, "error" if is_error else "warning", message, at)


def errors(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Those that are errors."""
    return [each for each in diagnostics if each.severity == "error"]

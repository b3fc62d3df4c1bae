"""`engine chatmd`: check, format and parse documents in ChatMD."""

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from agents.chatmd.diagnostics import Diagnostic, errors
from agents.chatmd.files import MAX_VALUES, Sizes, load, source_of
from agents.chatmd.formatting import NotFormatted, formatted
from agents.chatmd.reader import Bounds, read
from cli.commands.chatmd.reports import WRITERS, Format
from cli.output import FAILED, OK, UNUSABLE, Exit, note, plural, say, say_json
from sandbox.wire.limits import DEFAULTS

app = App(name="chatmd", help="Check, format and parse documents in ChatMD.")

_SIZES = Sizes(DEFAULTS.source_bytes, DEFAULTS.fs_bytes, MAX_VALUES)
_BOUNDS = Bounds(_SIZES.source_bytes, _SIZES.values)

Files = Annotated[Path, Parameter(help="A document.")]


@app.command
def check(
    *files: Files,
    strict: Annotated[bool, Parameter(help="What is tolerated is an error.", negative=())] = False,
    format: Annotated[Format, Parameter(help="The format of the report.")] = "text",
) -> int:
    """Report what is wrong with documents and the files that they read. Exit code 1 for errors."""
    _require(files)
    found = _checked(files, strict=strict)
    if format != "text" or found:
        say(WRITERS[format](found))
    (say if format == "text" else note)(_summary(found))
    return FAILED if errors(found) else OK


def _require(files: tuple[Path, ...]) -> None:
    if not files:
        raise Exit(UNUSABLE, "no file is given")


def _checked(files: Iterable[Path], *, strict: bool) -> list[Diagnostic]:
    """The findings in documents, and in those that they name as agents, each once."""
    found: dict[Diagnostic, None] = {}
    left = [(path, path.parent) for path in files]
    seen = set()
    for path, root in left:  # it grows
        if (own := Path(os.path.abspath(path))) in seen:
            continue
        seen.add(own)
        loaded = load(path, _SIZES, shown=str(path), roots=[root], strict=strict)
        found.update(dict.fromkeys(loaded.diagnostics))
        left += [(path.parent / os.path.relpath(agent, own.parent), root) for agent in loaded.agents]
    order = {each.at.file: index for index, each in reversed(list(enumerate(found)))}
    return sorted(found, key=lambda each: (order[each.at.file], each.at.line, each.at.column))


def _summary(found: list[Diagnostic]) -> str:
    wrong = len(errors(found))
    return f"{plural(wrong, 'error')}, {plural(len(found) - wrong, 'warning')}"


@app.command
def fmt(
    *files: Files,
    check: Annotated[
        bool, Parameter(help="Write nothing; exit code 1 if a file would be written.", negative=())
    ] = False,
) -> int:
    """Write documents in one layout. Their meaning, text and comments stay as they are."""
    _require(files)
    code = OK
    for path in files:
        source = source_of(path, _BOUNDS.size)
        try:
            after = formatted(source, _BOUNDS, file=str(path)).encode()
        except NotFormatted as refused:
            note(str(refused))
            code = FAILED
            continue
        if after == source:
            say(f"Unchanged: {path}")
        elif check:
            say(f"Would write: {path}")
            code = FAILED
        else:
            _replace(path, after)
            say(f"Wrote: {path}")
    return code


def _replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all. Where its path is a link, what it leads to is written."""
    path = path.resolve()
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(content)
            file.close()
            shutil.copymode(path, file.name)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


@app.command
def parse(file: Files, /) -> int:
    """Print the tree of a document as JSON, with what is wrong with its text. Exit code 1 for errors."""
    reading = read(source_of(file, _BOUNDS.size), _BOUNDS, file=str(file))
    diagnostics = [each.as_json() for each in reading.diagnostics]
    say_json({"document": reading.document.as_json(), "diagnostics": diagnostics})
    return FAILED if reading.errors else OK

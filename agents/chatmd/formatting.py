"""The source of a document in one layout: tags and what is between elements. Text and comments stay as they are."""

from collections.abc import Iterator

from agents.chatmd.reader import Bounds, Mark, read
from agents.chatmd.tree import meaning
from agents.chatmd.writer import raw, tag


class NotFormatted(Exception):
    """The source cannot be formatted: it has errors, or its meaning would change."""


def formatted(source: bytes | str, bounds: Bounds, *, file: str = "") -> str:
    """The source in the layout of `engine chatmd fmt`; `file` is its name in places. Raises NotFormatted."""
    reading = read(source, bounds, file=file, marks=True)
    if reading.errors:
        raise NotFormatted(str(reading.errors[0]))
    after = "".join(_pieces(reading.text, reading.marks))
    # It may be a little larger than what was read: markup in records gets RAW blocks.
    again = read(after, Bounds(2 * bounds.size + 64, bounds.values))
    if again.errors or meaning(again.document.nodes) != meaning(reading.document.nodes):
        raise NotFormatted(f"{file}: it cannot be formatted without a change of its meaning")
    return after


def _pieces(source: str, marks: tuple[Mark, ...]) -> Iterator[str]:
    at = 0
    for mark in marks:
        between = source[at : mark.start]
        yield _gap(between, mark, first=at == 0) if mark.depth == 0 and mark.kind != "close" else between
        yield _written(source, mark)
        at = mark.end
    yield "\n" if marks else ""


def _gap(between: str, mark: Mark, *, first: bool) -> str:
    """What stands before an element or comment at the top: one empty line at most."""
    if first:
        return ""
    if mark.kind == "comment" and "\n" not in between:
        return " " if between else ""
    return "\n\n" if between.count("\n") > 1 else "\n"


def _written(source: str, mark: Mark) -> str:
    shown = source[mark.start : mark.end]
    if mark.kind == "open":
        lines = "\n" in shown and len(mark.attributes) > 1 and _is_laid_out(shown)
        return tag(mark.name, mark.attributes, closed=mark.closed, between="\n  " if lines else " ")
    return raw(shown) if mark.kind == "piece" else shown


def _is_laid_out(shown: str) -> bool:
    """Whether a tag has its attributes on lines of their own."""
    return any(line.strip() and "=" in line for line in shown.splitlines()[1:])

"""The text of a file while it is read: bounded, without control characters, with the places where pages begin."""

import re

from sandbox.wire.extraction import MAX_PAGES, MAX_TEXT_BYTES, MAX_TITLE_BYTES, Reason

# What no text needs, and NUL, which stores cut at. U+FFFE and U+0002 are PDFium's hyphens at the ends of lines.
_HYPHEN = re.compile("[\x02\ufffe]\r?\n?")
_UNWANTED = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_LINE_END = re.compile("\r\n?|\x0b|\x0c|\u2028|\u2029")
# What programs write as a title that has none.
_NO_TITLES = frozenset({"powerpoint presentation", "word document", "untitled", "document"})
_OF_PROGRAM = re.compile(r"Microsoft (Word|PowerPoint|Excel) - ")
# What Markdown would take for a heading or a fence.
_MARK = re.compile(r"^( {0,3})(#{1,6}(?=\s|$)|`{3}|~{3})", re.MULTILINE)


class Refused(Exception):
    """The file has no text for us."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.name)
        self.reason = reason


def clean(text: str) -> str:
    """The text with `\n` at the ends of lines, and without control characters."""
    return _UNWANTED.sub("", _LINE_END.sub("\n", _HYPHEN.sub("", text)))


def plain(text: str) -> str:
    """The text as Markdown that has no heading and no fence."""
    return _MARK.sub(r"\1\\\2", clean(text))


def line(text: str) -> str:
    """The text in one line."""
    return " ".join(clean(text).split())


def row_of(cells: list[str]) -> str:
    """A row of a table."""
    return "| " + " | ".join(line(cell).replace("|", "\\|") for cell in cells) + " |"


class Text:
    """What `read` returns. Blocks have an empty line between them."""

    def __init__(self) -> None:
        self.title = ""
        self.pages: list[int] = []
        self._blocks: list[bytes] = []
        self._characters = 0
        self._bytes = 0

    def set_title(self, text: str | None) -> None:
        """Take a title that is one, unless there is one already."""
        shown = _OF_PROGRAM.sub("", line(text or ""))
        if self.title or shown.lower() in _NO_TITLES:
            return
        while len(shown.encode()) > MAX_TITLE_BYTES:
            shown = shown[: MAX_TITLE_BYTES // 4]
        self.title = shown

    def page(self) -> None:
        """A page begins here. Raises Refused when there are too many."""
        if len(self.pages) == MAX_PAGES:
            raise Refused(Reason.TOO_MANY_PAGES)
        self.pages.append(self._characters)

    def add(self, block: str) -> None:
        """Append a block, which is clean. Raises Refused when the text is too long."""
        block = block.strip("\n")
        if not block.strip():
            return
        data = (block + "\n\n").encode()
        self._bytes += len(data)
        if self._bytes > MAX_TEXT_BYTES:
            raise Refused(Reason.TOO_MUCH_TEXT)
        self._blocks.append(data)
        self._characters += len(block) + 2

    def heading(self, level: int, text: str) -> None:
        """Append a heading, if it is not empty."""
        if shown := line(text):
            self.add("#" * min(max(level, 1), 6) + " " + shown)

    def table(self, rows: list[list[str]]) -> None:
        """Append a table, whose first row is its head."""
        lines = [row_of(row) for row in rows]
        if rows:
            lines.insert(1, "|" + " --- |" * len(rows[0]))
        self.add("\n".join(lines))

    def body(self) -> bytes:
        """The whole text, in UTF-8. Raises Refused when there is none."""
        if not self._blocks:
            raise Refused(Reason.NO_TEXT)
        return b"".join(self._blocks)[:-1]

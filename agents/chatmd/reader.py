"""From the text of a document to its tree and diagnostics, in one pass.

Lenient reading takes what people and programs really write (docs/chatmd.md has the list); strict reading is the same,
and reports these places as errors.
"""

from typing import Literal, NamedTuple

import msgspec

from agents.chatmd.checks import CHECKED, check, namespaces, second_configs
from agents.chatmd.diagnostics import Diagnostic, Position, diagnostic, errors
from agents.chatmd.lexer import (
    ANY_TAG,
    BEFORE_RAW,
    BLANK,
    BLANKS,
    COMMENT_CLOSE,
    INSIDE,
    MARKUP,
    PART,
    PART_END,
    RAW_CLOSE,
    RAW_OPEN,
    TOKEN,
    NotATag,
    Tag,
    Tags,
)
from agents.chatmd.tree import MAX_DEPTH, Comment, Document, Element, Node, Text, height
from agents.chatmd.vocabulary import IGNORED, LITERAL, READ_TOOLS, VOIDS, Attributes

_BOM = "\ufeff"
# Elements with attributes that have an old or short name.
_RESPELLED = ("import", "config")
# What a record begins with that holds nothing but documents.
_BEFORE_PART = frozenset(f"<{BLANK}")


class Bounds(NamedTuple):
    """How much is read: bytes of UTF-8; and elements, texts, comments, attributes and diagnostics together."""

    size: int
    values: int


class Mark(msgspec.Struct):
    """Where something stands in the source that `fmt` writes again. `depth` is the number of elements around it."""

    kind: Literal["open", "close", "comment", "piece"]
    start: int
    end: int
    depth: int
    name: str = ""
    attributes: Attributes = {}
    closed: bool = False


class Reading(msgspec.Struct, frozen=True):
    """What was read. With errors, the tree is what could be made out."""

    document: Document
    diagnostics: tuple[Diagnostic, ...]
    text: str = ""
    marks: tuple[Mark, ...] = ()

    @property
    def errors(self) -> list[Diagnostic]:
        return errors(self.diagnostics)


def read(source: bytes | str, bounds: Bounds, *, file: str = "", strict: bool = False, marks: bool = False) -> Reading:
    """Read one document. Raises nothing: what is wrong with the source is in the diagnostics.

    `file` is the name in places; `marks` are for `fmt`. Takes time in proportion to the source's size, some nanoseconds
    a byte, and to its values, some microseconds each.
    """
    try:
        # No character is less than a byte: a text of more characters is not encoded to count them.
        raw = source.encode() if isinstance(source, str) and len(source) <= bounds.size else source
        if len(raw) > bounds.size:
            return _refused("too-large", f"more than {bounds.size:,} bytes", Position(file, 1, 1))
        text = source if isinstance(source, str) else source.decode()
    except UnicodeError as error:
        wrong = error.start if isinstance(error, UnicodeDecodeError | UnicodeEncodeError) else 0
        before = source[:wrong]
        shown = before if isinstance(before, str) else before.decode()
        at = Position(file, shown.count("\n") + 1, len(shown) - shown.rfind("\n"))
        return _refused("not-utf8", "this is no UTF-8", at)
    return _Reader(text, file, bounds.values, strict, marks).reading()


def _refused(code: str, message: str, at: Position) -> Reading:
    return Reading(Document(), (diagnostic(code, message, at),))


class _Cursor:
    """The place of each offset, asked for from left to right."""

    def __init__(self, text: str, file: str) -> None:
        self._text, self._file = text, file
        # A byte order mark is no column.
        self._first = self._line_start = 1 if text.startswith(_BOM) else 0
        self._at, self._line = 0, 1

    def place(self, offset: int) -> Position:
        text = self._text
        if offset < self._at:  # not in order: right, and slow
            self._at, self._line, self._line_start = 0, 1, self._first
        if lines := text.count("\n", self._at, offset):
            self._line += lines
            self._line_start = text.rfind("\n", self._at, offset) + 1
        self._at = offset
        return Position(self._file, self._line, offset - self._line_start + 1)


class _Stop(Exception):
    """The rest of the text cannot be read."""


class _Frame(msgspec.Struct):
    """An open element, or the top of the document. `voids` are open ones among its nodes, each with its mark."""

    name: str
    attributes: Attributes
    at: Position
    nodes: list[Node]
    # Made when they are needed: most frames have no void, and one piece of text.
    voids: list[tuple[int, Mark | None]] | None = None
    text: str = ""
    text_at: Position | None = None
    more: list[str] | None = None


class _Reader:
    """One reading. `_at` is where the text begins that was not taken yet."""

    def __init__(self, text: str, file: str, values: int, strict: bool, marks: bool) -> None:
        self._text, self._file, self._most, self._strict = text, file, values, strict
        self._tags = Tags(text)
        self._values = 0
        self._diagnostics: list[Diagnostic] = []
        self._comments: list[Comment] = []
        self._marks: list[Mark] | None = [] if marks else None
        self._at = 1 if text.startswith(_BOM) else 0
        # Two, as the place of a finding inside a text is asked for before that of the text.
        self._place, self._place_of = _Cursor(text, file).place, _Cursor(text, file).place
        # Up to where a strict reader would be inside a tag that is text here; reported once.
        self._swallowed = 0
        # After tags that do not fit together, more of that kind would be consequences.
        self._derailed = False
        self._next_comment_end = self._next_block = -1
        self._ended = False
        # What the checks look at; walking all of the tree would take them a tenth of the time.
        self._to_check: list[Element] = []
        self._has_namespaces = False
        self._top = _Frame("", {}, Position(file, 1, 1), [])
        self._frames = [self._top]

    def reading(self) -> Reading:
        try:
            self._run()
            self._end()
        except _Stop:
            pass
        self._ended = True
        while len(self._frames) > 1:
            self._leave()
        self._flush(self._top)
        nodes = []
        for node in self._top.nodes:
            if isinstance(node, Element):
                nodes.append(node)
            else:
                self._structural("top-level-text", "text outside of elements", node.at)
        self._unclosed_voids(self._top)
        document = Document(tuple(nodes), tuple(self._comments))
        found = sorted([*self._diagnostics, *self._checked(document)], key=_order)
        return Reading(document, tuple(found), self._text, tuple(self._marks or ()))

    def _checked(self, document: Document) -> list[Diagnostic]:
        wrong = [*second_configs(document.nodes), *(namespaces(document.nodes) if self._has_namespaces else ())]
        for element in self._to_check:
            wrong += check(element)
        return [diagnostic(code, message, at, strict=self._strict) for code, message, at in wrong]

    # ---- tokens ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        text, search, start, size = self._text, TOKEN.search, self._at, len(self._text)
        while True:
            block = self._next_block if self._next_block >= start else self._block(start)
            found = search(text, start, block)
            if found is None:
                if block == size:
                    return
                self._take_text(block, raw=True)
                self._raw(block)
                start = self._at
                continue
            begin, end = found.span()
            name, ended, _ = found.groups()
            if (name or ended) == "read" and not self._in_read_tool():
                start = end
                continue
            if name is not None:
                # Most tags have no attributes.
                tag = Tag({}, end + 1, False, (), False) if text[end] == ">" else self._tag(name, end)
                if isinstance(tag, NotATag):
                    start = self._no_tag(begin, end, name, tag)
                    continue
                if self._at != begin:
                    self._take_text(begin)
                self._open(name, tag, begin)
            elif ended is not None:
                if self._at != begin:
                    self._take_text(begin)
                self._close(ended, begin, end)
                self._at = end
            else:
                self._take_text(begin)
                self._comment(begin)
            start = self._at

    def _block(self, at: int) -> int:
        """Where the next RAW block begins, or the end of the text."""
        if self._next_block < at:
            found = self._text.find(RAW_OPEN, at)
            self._next_block = len(self._text) if found < 0 else found
        return self._next_block

    def _end(self) -> None:
        """The end of the text."""
        self._take_text(len(self._text), last=True)
        for frame in self._frames[1:]:
            self._structural("unclosed", f"<{frame.name}> is not closed: </{frame.name}> is missing", frame.at)

    def _tag(self, name: str, at: int) -> Tag | NotATag:
        tag = self._tags.read(at, self._most - self._values)
        if self._tags.values > self._most - self._values:
            self._too_many(at)
        return tag

    def _no_tag(self, start: int, name_end: int, name: str, tag: NotATag) -> int:
        """A tag that is none: where to go on. It counts as a value, as it takes as long."""
        self._count()
        angle = self._tags.angle_after(start)
        if tag.open_value:
            self._take_text(start)
            at = self._place(start)
            self._report("attribute-unterminated", f"<{name}>: the value of an attribute has no end", at)
            if angle < 0:
                raise _Stop
            self._open(name, Tag(tag.attributes, angle + 1, self._text[angle - 1] == "/", (), False), start)
            return self._at
        if angle >= 0 and start >= self._swallowed:
            message = f"<{name} is text here: what follows are no attributes; write it in RAW|...|RAW"
            self._report("angle-in-attribute", message, self._place_of(start))
            self._swallowed = angle + 1
        return name_end

    def _comment(self, start: int) -> None:
        at = self._place(start)
        end = self._comment_end(start + 4)
        if end < 0:
            self._report("comment-unterminated", "<!-- without -->", at)
            raise _Stop
        self._add_comment(start, end, at)

    def _comment_end(self, at: int) -> int:
        if self._next_comment_end < at:
            found = self._text.find(COMMENT_CLOSE, at)
            self._next_comment_end = len(self._text) if found < 0 else found
        return -1 if self._next_comment_end == len(self._text) else self._next_comment_end

    def _add_comment(self, start: int, end: int, at: Position) -> None:
        self._count()
        self._comments.append(Comment(self._text[start + 4 : end], at))
        self._at = end + len(COMMENT_CLOSE)
        self._mark("comment", start, self._at)

    def _raw(self, start: int) -> None:
        at = self._place(start)
        self._count()
        begin = start + len(RAW_CLOSE)
        end = self._text.find(RAW_CLOSE, begin)
        if end < 0:
            self._report("raw-unterminated", "RAW| without |RAW", at)
            raise _Stop
        self._add_text(self._text[begin:end], at)
        self._at = end + len(RAW_CLOSE)

    # ---- elements -------------------------------------------------------------------------------------------------

    def _open(self, name: str, tag: Tag, start: int) -> None:
        """An element begins at `start`. `_at` is behind its tag afterwards, or behind the whole of a record."""
        at = self._place(start)
        if tag.repeated or tag.has_angle:
            self._tell_tag(name, tag, at)
        attributes = self._spelled(name, tag.attributes, at) if name in _RESPELLED else tag.attributes
        self._values += 1
        if self._values + self._tags.values > self._most:
            self._too_many(start)
        self._at = tag.end
        mark = self._mark("open", start, tag.end, name, attributes, tag.closed) if self._marks is not None else None
        if tag.closed or name in VOIDS:
            frame = self._frames[-1]
            if frame.text_at is not None:
                self._flush(frame)
            element = Element(name, attributes, (), at)
            frame.nodes.append(element)
            if name in CHECKED:
                self._to_check.append(element)
            if not tag.closed:
                if frame.voids is None:
                    frame.voids = []
                frame.voids.append((len(frame.nodes) - 1, mark))
            return
        if len(self._frames) > MAX_DEPTH:
            self._report("too-large", f"elements are nested more than {MAX_DEPTH} deep", at)
            raise _Stop
        self._frames.append(_Frame(name, attributes, at, []))
        if name in LITERAL:
            self._record()

    def _tell_tag(self, name: str, tag: Tag, at: Position) -> None:
        for each in tag.repeated:
            self._report("duplicate-attribute", f"<{name}>: {each} is there twice; the last one counts", at)
        if tag.has_angle:
            message = f"<{name}>: > in a value ends the tag for a strict reader; write &gt;"
            self._report("angle-in-attribute", message, at)

    def _spelled(self, name: str, attributes: Attributes, at: Position) -> Attributes:
        """The attributes by their right names."""
        self._has_namespaces = self._has_namespaces or "namespace" in attributes
        if name == "import" and ("local" in attributes or "file" in attributes):
            attributes = {("src" if key == "file" else key): value for key, value in attributes.items()}
            local = attributes.pop("local", None)
            wrong = "local has no effect" if local is not None else "file is an old spelling of src"
            self._report("import-spelling", f"<import>: {wrong}", at)
        if name == "config" and "show" in attributes:
            attributes = {("show_tool_call" if key == "show" else key): value for key, value in attributes.items()}
            self._report("config-spelling", "<config>: show is written show_tool_call", at)
        return attributes

    def _close(self, name: str, start: int, end: int) -> None:
        frame = self._frames[-1]
        if frame.name == name:
            self._leave()
        elif name in VOIDS and self._close_void(frame, name):
            pass
        elif len(self._frames) == 1:
            at = self._place(start)
            self._structural("stray-close", f"</{name}>: no <{name}> is open", at)
        else:
            at = self._place(start)
            self._structural("mismatched", f"</{name}> does not end <{frame.name}>, which is open", at)
            self._derailed = True
            if name not in VOIDS:
                names = [each.name for each in self._frames]
                while name in names and self._frames[-1].name != name:
                    self._leave()
                self._leave()
        if self._marks is not None:
            self._mark("close", start, end, name)

    def _close_void(self, frame: _Frame, name: str) -> bool:
        """End the innermost open void element of this name: what follows it in its frame is inside it."""
        voids = frame.voids or []
        for place in range(len(voids) - 1, -1, -1):
            index, _ = voids[place]
            node = frame.nodes[index]
            if isinstance(node, Element) and node.name == name:
                self._flush(frame)
                inner = frame.nodes[index + 1 :]
                if height(inner) + len(self._frames) >= MAX_DEPTH:
                    self._report("too-large", f"elements are nested more than {MAX_DEPTH} deep", node.at)
                    raise _Stop
                self._unclosed_voids(frame, place + 1)
                del frame.nodes[index:], voids[place:]
                frame.nodes.append(msgspec.structs.replace(node, children=tuple(inner)))
                return True
            if place < len(voids) - MAX_DEPTH:
                break
        return False

    def _unclosed_voids(self, frame: _Frame, first: int = 0) -> None:
        for index, mark in (frame.voids or [])[first:]:
            node = frame.nodes[index]
            _self_close(mark)
            if isinstance(node, Element):
                self._report("void-unclosed", f"<{node.name}> is not closed; write <{node.name} .../>", node.at)

    def _leave(self) -> None:
        """The innermost element is complete."""
        frame = self._frames.pop()
        if frame.text_at is not None:
            self._flush(frame)
        if frame.voids:
            self._unclosed_voids(frame)
        outer = self._frames[-1]
        if outer.text_at is not None:
            self._flush(outer)
        element = Element(frame.name, frame.attributes, tuple(frame.nodes), frame.at)
        outer.nodes.append(element)
        if frame.name in CHECKED:
            self._to_check.append(element)

    def _in_read_tool(self) -> bool:
        frame = self._frames[-1]
        return frame.name == "tool" and frame.attributes.get("name") in READ_TOOLS

    # ---- records --------------------------------------------------------------------------------------------------

    def _record(self) -> None:
        """The inside of the innermost element, up to the literal tag that ends it."""
        frame = self._frames[-1]
        if self._text[self._at : self._at + 1] in _BEFORE_PART and frame.name not in IGNORED and self._parts(frame):
            return
        text, search, end_tag = self._text, INSIDE[frame.name].search, f"</{frame.name}>"
        told = frame.name in IGNORED
        start, close = self._at, -1
        while True:
            block = self._next_block if self._next_block >= start else self._block(start)
            found = search(text, start, block)
            if found is None:
                if self._at != block:
                    told = self._piece(block, told, raw=block < len(text))
                if block == len(text):
                    return
                self._raw(block)
                start = self._at
                continue
            kind = found.lastgroup
            begin, end = found.span()
            if kind == "comment":
                comment = self._comment_end(end)
                if close < begin:
                    close = text.find(end_tag, begin)
                    close = len(text) if close < 0 else close
                if comment < 0 or close < comment:  # no comment, but a text about one
                    start = end
                    continue
            if self._at != begin:
                told = self._piece(begin, told)
            if kind == "close":
                self._close(frame.name, begin, end)
                self._at = end
                return
            if kind == "comment":
                self._add_comment(begin, self._comment_end(end), self._place(begin))
            else:
                tag = self._tag("summary", end)
                if isinstance(tag, NotATag):
                    start = self._no_tag(begin, end, "summary", tag)
                    continue
                self._open("summary", tag, begin)
            start = self._at

    def _piece(self, end: int, told: bool, *, raw: bool = False) -> bool:
        """Text of a record, up to `end`. Whether the markup in it was reported, here or before."""
        start, frame = self._at, self._frames[-1]
        found = MARKUP.search(self._text, start, end)
        first = -1 if found is None else found.start()
        if first < 0 and end < len(self._text):
            first = self._open_tag(start, end)
        if first >= 0 and not told:
            message = f"<{frame.name}> holds markup, read as text; write RAW|...|RAW"
            self._report("markup-in-record", message, self._place_of(first))
            told = True
        if first >= 0 and frame.name not in IGNORED:
            self._mark("piece", start, end)
        self._take_text(end, raw=raw, checked=True)
        return told

    def _parts(self, frame: _Frame) -> bool:
        """Whether the record holds a document and nothing else; then it was read. A tool's answer may be several, and
        images.
        """
        several = frame.name == "tool_response"
        found = []
        at = self._at
        while (part := PART.match(self._text, at)) is not None:
            if part["open"] == "img" and not several:
                return False
            tag = self._tag(part["open"], part.end())
            if isinstance(tag, NotATag):
                return False
            ended = None
            at = tag.end
            if not tag.closed:
                ended = PART_END[part["open"]].match(self._text, at)
                at = at if ended is None else ended.end()
            found.append((part, tag, ended))
        after = BLANKS.match(self._text, at)
        at = at if after is None else after.end()
        if not found or (len(found) > 1 and not several) or not self._text.startswith(f"</{frame.name}>", at):
            return False
        for part, tag, ended in found:
            begin = part.start("open") - 1
            self._take_text(begin)
            self._open(part["open"], tag, begin)
            if ended is not None:
                begin = ended.end() - len(f"</{part['open']}>")
                self._take_text(begin)
                self._close(part["open"], begin, ended.end())
                self._at = ended.end()
        self._take_text(at)
        self._at = at + len(f"</{frame.name}>")
        self._close(frame.name, at, self._at)
        return True

    # ---- text -----------------------------------------------------------------------------------------------------

    def _take_text(self, end: int, *, raw: bool = False, last: bool = False, checked: bool = False) -> None:
        """The text from `_at` to `end`, where something else begins: a RAW block, with `raw`."""
        start = self._at
        self._at = end
        if start == end:
            return
        if checked or last or self._text.find("<", start, end) < 0:
            pass
        elif (tag := self._open_tag(start, end)) >= self._swallowed:
            message = "< is text here; for a strict reader it begins a tag, with what follows; write RAW|...|RAW"
            self._report("angle-in-attribute", message, self._place_of(tag))
            self._swallowed = self._tags.angle_after(end) + 1
        if raw:
            end = self._before_raw(start, end)
        if start < end:
            self._add_text(self._text[start:end], None, start)

    def _open_tag(self, start: int, end: int) -> int:
        """Where, before `end`, a strict reader begins a tag that has no end before it; or -1."""
        found = ANY_TAG.search(self._text, self._text.rfind(">", start, end) + 1 or start, end)
        return -1 if found is None or self._tags.angle_after(end) < 0 else found.start()

    def _before_raw(self, start: int, end: int) -> int:
        """Where the text before a RAW block ends: white space that is all there is since another token is lost."""
        text = self._text
        begin = start + len(text[start:end].rstrip(BEFORE_RAW))
        if begin in (start, end):
            return begin
        before = text[begin - 1]
        if before in "<|":
            return begin
        if before == ">":  # of a tag that is text?
            found = ANY_TAG.search(text, text.rfind(">", start, begin - 1) + 1 or start, begin)
            return end if found is None else begin
        return end

    def _add_text(self, piece: str, at: Position | None, start: int = 0) -> None:
        frame = self._frames[-1]
        if frame.text_at is None:
            if frame is self._top:
                stripped = piece.lstrip(BLANK)
                if not stripped:
                    return
                if at is None:
                    start += len(piece) - len(stripped)
                piece = stripped
            if not piece:
                return
            frame.text_at = at or self._place(start)
            frame.text = piece
        elif frame.more is None:
            frame.more = [frame.text, piece]
        else:
            frame.more.append(piece)

    def _flush(self, frame: _Frame) -> None:
        """The text that was taken becomes a node."""
        if frame.text_at is not None:
            self._values += 1
            text = frame.text if frame.more is None else "".join(frame.more)
            frame.nodes.append(Text(text, frame.text_at))
            frame.text_at = frame.more = None

    # ---- helpers --------------------------------------------------------------------------------------------------

    def _mark(
        self,
        kind: Literal["open", "close", "comment", "piece"],
        start: int,
        end: int,
        name: str = "",
        attributes: Attributes | None = None,
        closed: bool = False,
    ) -> Mark | None:
        if self._marks is None:
            return None
        mark = Mark(kind, start, end, len(self._frames) - 1, name, attributes or {}, closed)
        self._marks.append(mark)
        return mark

    def _count(self) -> None:
        self._values += 1
        if self._values + self._tags.values > self._most:
            self._too_many(self._at)

    def _too_many(self, at: int) -> None:
        message = f"more than {self._most:,} elements, texts, comments and attributes"
        self._diagnostics.append(diagnostic("too-large", message, self._place_of(at)))
        raise _Stop

    def _report(self, code: str, message: str, at: Position) -> None:
        self._diagnostics.append(diagnostic(code, message, at, strict=self._strict))
        if not self._ended:
            self._count()

    def _structural(self, code: str, message: str, at: Position) -> None:
        if not self._derailed:
            self._report(code, message, at)


def _self_close(mark: Mark | None) -> None:
    if mark is not None:
        mark.closed = True


def _order(found: Diagnostic) -> tuple[int, int]:
    return (found.at.line, found.at.column)

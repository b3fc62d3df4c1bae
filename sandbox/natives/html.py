"""HTML, parsed by lexbor as browsers do; its text, and its elements by CSS selectors."""

import re
import sys
from types import ModuleType
from typing import Any

import msgspec

from sandbox.natives.refused import Refused


class _NoLogging(ModuleType):
    """Stands for `logging` while selectolax is imported, which logs in `unwrap_tags` alone: no worker needs a module
    that opens files.
    """

    @staticmethod
    def getLogger(name: str) -> None:
        pass


_logging = sys.modules.setdefault("logging", _NoLogging("logging"))
from selectolax.lexbor import LexborHTMLParser, SelectolaxError  # noqa: E402

if isinstance(_logging, _NoLogging):
    del sys.modules["logging"]

MAX_BYTES = 16 * 1024 * 1024
# The parser looks through all open elements for each tag: 100,000 of them take minutes, 1,000 take 20 ms.
MAX_DEPTH = 1_000
MAX_ELEMENTS = 10_000
MAX_SELECTOR_BYTES = 4 * 1024

_TAG = re.compile(rb"<(/?)([a-zA-Z][a-zA-Z0-9-]*)")
# Where an end tag may be no end tag: comments, elements of raw text, attributes; also without their ends.
_OPAQUE = re.compile(
    rb"(?i:<!--.*?(?:-->|\Z)|=\s*(?:\"[^\"]*(?:\"|\Z)|'[^']*(?:'|\Z))"
    rb"|<(script|style|textarea|title|xmp|iframe|noembed|noframes|noscript|plaintext)\b.*?(?:(?=</\1)|\Z))",
    re.DOTALL,
)
# The parser compares each attribute with those before it in its tag: 60,000 take seconds, 1,000 take a millisecond.
MAX_ATTRIBUTES = 1_000
_MANY_ATTRIBUTES = re.compile(
    rb"""<[a-zA-Z][^\s<>/"']*+(?:[\s/]++[^\s<>/"'=]++(?:\s*+=\s*+(?:"[^"]*"|'[^']*'|[^\s<>"']++))?+){%d}"""
    % MAX_ATTRIBUTES
)
# Elements without an end, and those whose end may be left out: they do not nest in one another.
_UNNESTED = frozenset(
    (
        b"area base br col embed hr img input link meta param source track wbr p li dt dd option optgroup tr td "
        b"th thead tbody tfoot colgroup rt rp html head body"
    ).split()
)
_BLOCKS = frozenset((
    "address", "article", "aside", "blockquote", "body", "br", "dd", "details", "dialog", "div", "dl", "dt",
    "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hgroup",
    "hr", "html", "legend", "li", "main", "nav", "ol", "option", "p", "pre", "search", "section", "summary",
    "table", "tbody", "td", "tfoot", "th", "thead", "title", "tr", "ul",
))  # fmt: skip
# End tags of blocks close what is open inside them, but nothing outside of these (HTML, 13.2.4.2: scopes).
_SCOPES = frozenset(
    (b"applet", b"caption", b"foreignobject", b"marquee", b"math", b"object", b"svg", b"table", b"template")
)
# So many open elements are looked through for the one that an end tag closes.
_LOOKED_THROUGH = 32
_SILENT = frozenset({"script", "style", "noscript", "template", "head"})
_SPACE = re.compile(r"[ \t\n\r\f]+")


def text(source: bytes) -> bytes:
    """What a person reads: a line for each block, without scripts and styles."""
    root = _parsed(source).root
    lines: list[str] = []
    line: list[str] = []

    def end_line() -> None:
        said = _SPACE.sub(" ", "".join(line)).strip()
        if said:
            lines.append(said)
        line.clear()

    # Not recursive: down to the first child, else on to the next, else up; `None` is the way up.
    node = root
    while node is not None:
        tag = node.tag
        if tag == "-text":
            line.append(node.text_content or "")
        elif tag in _BLOCKS:
            end_line()
        child = None if tag in _SILENT else node.child
        if child is not None:
            node = child
            continue
        while node is not None:
            if node.tag in _BLOCKS:
                end_line()
            following = node.next
            if following is not None:
                node = following
                break
            node = node.parent
    end_line()
    return "\n".join(lines).encode("utf-8", "replace")


def select(arguments: bytes) -> bytes:
    """The elements that a selector matches, as msgpack: the selector's length (32 bits), the selector, the source."""
    end = 4 + int.from_bytes(arguments[:4], "big")
    if end - 4 > MAX_SELECTOR_BYTES:
        raise Refused(f"the selector has {end - 4} bytes; the most is {MAX_SELECTOR_BYTES}")
    selector = arguments[4:end].decode("utf-8", "replace")
    parser = _parsed(arguments[end:])
    try:
        nodes = parser.css(selector)
    except SelectolaxError:
        raise Refused(f"the selector is not valid: {selector[:64]}") from None
    if len(nodes) > MAX_ELEMENTS:
        raise Refused(f"the selector matches {len(nodes)} elements; the most is {MAX_ELEMENTS}")
    found: list[dict[str, Any]] = []
    size = 0
    for node in nodes:
        inside, whole = _SPACE.sub(" ", node.text(deep=True)).strip(), node.html or ""
        size += len(inside) + len(whole)
        if size > MAX_BYTES:
            raise Refused(f"the elements hold more than {MAX_BYTES} bytes; select those that do not contain each other")
        attributes = {name: value or "" for name, value in node.attributes.items()}
        found.append({"tag": node.tag, "attributes": attributes, "text": inside, "html": whole})
    return msgspec.msgpack.encode(found)


def warm_up() -> None:
    """First use, ahead of confinement."""
    text(b"<p>a<b>b</b></p><script>c</script>")
    select(b"\0\0\0\1b<p>a<b>b</b></p>")


def _parsed(source: bytes) -> LexborHTMLParser:
    if len(source) > MAX_BYTES:
        raise Refused(f"the source has {len(source)} bytes; the most is {MAX_BYTES}")
    _check_depth(source)
    if _MANY_ATTRIBUTES.search(source) is not None:
        raise Refused(f"an element has more than {MAX_ATTRIBUTES} attributes")
    return LexborHTMLParser(source.decode("utf-8", "replace"))


def _check_depth(source: bytes) -> None:
    """Raises Refused where elements may nest deeper than MAX_DEPTH.

    Never fewer are counted as open than the parser has: start tags count wherever they are, an end tag only where it is
    one for sure, and closes only what the parser closes for sure.
    """
    stack: list[bytes] = []
    floor = 0  # elements below it stay open: they were before the opaque part that is read now
    opaque = _OPAQUE.finditer(source)
    part, entered = next(opaque, None), False
    for tag in _TAG.finditer(source):
        at = tag.start()
        while part is not None and part.end() <= at:
            part, entered, floor = next(opaque, None), False, 0
        if part is not None and not entered and part.start() < at:
            entered, floor = True, len(stack)
        name = tag[2].lower()
        if name in _UNNESTED:
            continue
        if not tag[1]:
            stack.append(name)
            if len(stack) > MAX_DEPTH:
                raise Refused(f"the source is nested deeper than {MAX_DEPTH} elements")
        elif len(stack) > floor:
            del stack[_closed_from(stack, name, floor) :]


def _closed_from(stack: list[bytes], name: bytes, floor: int) -> int:
    """The place of the outermost element that an end tag closes; the stack's length if none for sure."""
    if stack[-1] == name:
        return len(stack) - 1
    if name.decode() in _BLOCKS:
        for place in range(len(stack) - 1, max(floor, len(stack) - _LOOKED_THROUGH) - 1, -1):
            if stack[place] == name:
                return place
            if stack[place] in _SCOPES:
                break
    return len(stack)

"""From the trees of a document and of those inside it to what runs. Pure."""

import hashlib
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import quote

from agents.chatmd.checks import unavailable
from agents.chatmd.diagnostics import Diagnostic, diagnostic
from agents.chatmd.files import Loaded
from agents.chatmd.program import (
    Declared,
    Doc,
    Item,
    Nested,
    Part,
    Picture,
    Program,
    Said,
    StoredCall,
    StoredResult,
    Unavailable,
    Words,
)
from agents.chatmd.tree import Comment, Element, Node, Text, walk
from agents.chatmd.vocabulary import READ_TOOLS
from agents.chatmd.writer import write

# Documents inside documents.
MAX_NESTED = 3
DESCRIPTION = "ChatMD agent prompt"
MAX_DESCRIPTION_CHARS = 1_024
# Tools that read the document's folder.
FILE_TOOLS = (*READ_TOOLS, "read_dir", "read_directory")
# A comment with this text is an instruction to another program.
_MARKER = "META_REFINE"
_ROLES: Mapping[str, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_TEXT_TYPES = {
    ".md": "text/markdown", ".markdown": "text/markdown", ".html": "text/html", ".htm": "text/html",
    ".json": "application/json", ".csv": "text/csv", ".xml": "application/xml",
}  # fmt: skip
_IMAGE_TYPES = {
    ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp",
    ".svg": "image/svg+xml", ".bmp": "image/bmp", ".avif": "image/avif",
}  # fmt: skip
_IMAGE_BEGINS = ((b"\x89PNG", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))


class Content(NamedTuple):
    """What an address answered."""

    data: bytes
    media_type: str = ""
    charset: str = "utf-8"


@dataclass(frozen=True, slots=True)
class Opened:
    """A document and those inside it, by key: the path of a file, or an address. `top` is the document's own key.
    `fetched` are the contents of addresses, `pages` the texts of HTML pages, each by its path or address and whether it
    is Markdown; of one that was not converted, the reason.
    """

    top: str
    documents: Mapping[str, Loaded]
    fetched: Mapping[str, Content] = field(default_factory=dict)
    pages: "Mapping[Page, str | NotConverted]" = field(default_factory=dict)


# A file or an address, and whether its text is to be Markdown (`markdown`) or without marks (`strip`).
Page = tuple[str, bool]


class NotConverted(NamedTuple):
    """Why a page stays as it is."""

    reason: str


def page_of(loaded: Loaded, element: Element) -> Page | None:
    """The page that a `doc` wants converted; None where it asks for nothing. Of both flags, `strip` counts."""
    if element.name != "doc" or not {"strip", "markdown"} & element.attributes.keys():
        return None
    source = element.value("src")
    key = str(loaded.path_of(source)) if "local" in element.attributes else source
    return key, "strip" not in element.attributes


def pages_in(opened: Opened) -> dict[Page, tuple[Element, bytes]]:
    """The HTML pages that the documents want converted: where each is named first, and its content."""
    found: dict[Page, tuple[Element, bytes]] = {}
    for loaded in opened.documents.values():
        for element in walk(loaded.document.nodes):
            if (page := page_of(loaded, element)) is None or page in found:
                continue
            local = loaded.files.get(Path(page[0])) if "local" in element.attributes else None
            content = Content(local) if local is not None else opened.fetched.get(page[0])
            if content is not None and is_html(page[0], content.data, content.media_type):
                found[page] = (element, content.data)
    return found


def is_html(name: str, data: bytes, media_type: str = "") -> bool:
    """Whether a file is an HTML page: by its type, its name, or its beginning."""
    if media_type in ("text/html", "application/xhtml+xml"):
        return True
    if posixpath.splitext(name)[1].lower() in (".html", ".htm", ".xhtml"):
        return True
    return data[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith((b"<!doctype html", b"<html"))


@dataclass(frozen=True, slots=True)
class Built:
    """A program. `warnings` are sentences about what has no effect; with errors, what could be made out."""

    program: Program
    errors: tuple[Diagnostic, ...] = ()
    warnings: tuple[str, ...] = ()


def documents_in(loaded: Loaded) -> dict[str, Element]:
    """The documents inside a document, by key, each with the first element that names it."""
    found: dict[str, Element] = {}
    for element in _naming(loaded.document.nodes):
        if key := _key(loaded, element):
            found.setdefault(key, element)
    return found


def _naming(nodes: Iterable[Node]) -> Iterator[Element]:
    """Tools and elements that name documents, where they count."""
    for node in nodes:
        if not isinstance(node, Element):
            continue
        if node.name == "tool":
            if node.value("agent") and not unavailable(node):
                yield node
        elif node.name == "agent" or _role(node) is not None:
            if node.name == "agent":
                yield node
            yield from _naming(each for each in node.children if isinstance(each, Element) and each.name == "agent")


def _key(loaded: Loaded, element: Element) -> str:
    source = element.value("agent" if element.name == "tool" else "src")
    return str(loaded.path_of(source)) if source and "local" in element.attributes else source


def nesting(documents: Mapping[str, Loaded], top: str) -> list[Diagnostic]:
    """Cycles among documents inside documents, and those that are too deep."""
    wrong: dict[Diagnostic, None] = {}
    inside = {key: documents_in(loaded) for key, loaded in documents.items()}

    def follow(chain: tuple[str, ...]) -> None:
        for key, element in inside.get(chain[-1], {}).items():
            named = f'<{element.name} {"agent" if element.name == "tool" else "src"}="{_source(element)}">'
            if key in chain:
                shown = " -> ".join(_shown(each) for each in (*chain[chain.index(key) :], key))
                wrong[diagnostic("import-cycle", f"{named}: a cycle of documents: {shown}", element.at)] = None
            elif len(chain) > MAX_NESTED:
                message = f"{named}: documents are nested more than {MAX_NESTED} deep"
                wrong[diagnostic("import-depth", message, element.at)] = None
            else:
                follow((*chain, key))

    follow((top,))
    return list(wrong)


def _source(element: Element) -> str:
    return element.value("agent") if element.name == "tool" else element.value("src")


def _shown(key: str) -> str:
    return key if "://" in key else posixpath.basename(key)


def build(opened: Opened, description: str | None = None) -> Built:
    """The program of a document. Takes time in proportion to its texts; in a thread for a large one."""
    building = _Building(opened)
    program = building.program(opened.top, description)
    return Built(program, tuple(building.errors), tuple(building.warnings))


class _Building:
    """One building. Each document is built once, however often it is named."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._built: dict[str, Program] = {}
        self.errors: dict[Diagnostic, None] = {}
        self.warnings: dict[str, None] = {}

    def program(self, key: str, description: str | None = None) -> Program:
        if key in self._built:
            return self._built[key]
        loaded = self._opened.documents[key]
        one = _Document(loaded, self._opened, self.errors, self.warnings)
        one.take(loaded.document.nodes)
        documents = {inner: self.program(inner) for inner in documents_in(loaded) if inner in self._opened.documents}
        model, temperature, max_tokens = one.settings()
        folder = "" if loaded.folder is None else str(loaded.folder)
        self._built[key] = program = Program(
            model=model,
            temperature=temperature,
            max_output_tokens=max_tokens,
            items=tuple(one.items),
            tools=tuple(one.tools.values()),
            unavailable=tuple(one.unavailable),
            documents=documents,
            description=description or described(loaded.document.comments, one.items),
            folder=folder,
            source=loaded.source.decode(errors="replace"),
            sha256=hashlib.sha256(loaded.source).hexdigest(),
            imports=tuple(_beside(path, folder) for path in loaded.imported),
            reasoning=one.reasoning,
            ignored=tuple(one.ignored),
        )
        return program


def described(comments: Iterable[Comment], items: Iterable[Item]) -> str:
    """A document's own description: its first comment, or the first line of its system text."""
    for comment in comments:
        text = " ".join(comment.text.split())
        if text and text != _MARKER:
            return _cut(text)
    for item in items:
        if isinstance(item, Said) and item.role == "system":
            text = "".join(part.text for part in item.parts if isinstance(part, Words))
            if line := next((line.strip() for line in text.splitlines() if line.strip()), ""):
                return _cut(line)
    return DESCRIPTION


def _cut(text: str) -> str:
    return text if len(text) <= MAX_DESCRIPTION_CHARS else f"{text[: MAX_DESCRIPTION_CHARS - 1].rstrip()}…"


def _beside(path: Path, folder: str) -> str:
    return posixpath.relpath(path, folder) if folder else str(path)


def _role(element: Element) -> Literal["system", "user", "assistant"] | None:
    return _ROLES.get(element.value("role") if element.name == "msg" else element.name)


class _Document:
    """The items and tools of one document."""

    def __init__(
        self,
        loaded: Loaded,
        opened: Opened,
        errors: dict[Diagnostic, None],
        warnings: dict[str, None],
    ) -> None:
        self._loaded, self._opened, self._errors, self._warnings = loaded, opened, errors, warnings
        self._config: Element | None = None
        self._leading = True
        self.items: list[Item] = []
        self.tools: dict[str, Declared] = {}
        self.unavailable: list[Unavailable] = []
        self.ignored: dict[Unavailable, None] = {}
        self.reasoning = 0

    def take(self, nodes: Iterable[Element]) -> None:
        for element in nodes:
            if element.name == "config":
                self._config = self._config or element
            elif element.name == "tool":
                self._tool(element)
            elif element.name == "tool_call":
                called = element.value("tool_call_id"), element.value("function_name")
                self.items.append(StoredCall(*called, self._text(element)))
            elif element.name == "tool_response":
                self.items.append(StoredResult(element.value("tool_call_id"), self._text(element)))
            elif element.name == "reasoning":
                self.reasoning += 1
            elif element.name == "agent":
                self._warn(element, "<agent> outside of messages has no effect")
            elif element.name == "msg" and self._stored(element):
                pass
            elif (role := _role(element)) is not None:
                self._said(role, element)
            elif element.name == "msg":
                self._warn(element, f'there is no role "{element.value("role")[:64]}": the message is left out')

    def _stored(self, element: Element) -> bool:
        """Whether this is a stored call or result in the old form."""
        role, name = element.value("role"), element.value("function_name")
        if role == "tool":
            self.items.append(StoredResult(element.value("tool_call_id"), self._text(element)))
        elif role == "assistant" and name and {"tool_call", "function_call"} & element.attributes.keys():
            self.items.append(StoredCall(element.value("tool_call_id"), name, self._text(element)))
        else:
            return False
        return True

    def _said(self, role: Literal["system", "user", "assistant"], element: Element) -> None:
        parts = self._parts(element.children)
        if all(isinstance(part, Words) and not part.text.strip() for part in parts):
            return
        self._leading = self._leading and role == "system"
        self.items.append(Said(role, parts, leading=self._leading))

    # ---- what messages have ---------------------------------------------------------------------------------------

    def _parts(self, nodes: Iterable[Node]) -> tuple[Part, ...]:
        parts: list[Part] = []
        for node in nodes:
            part = self._part(node)
            last = parts[-1] if parts else None
            if isinstance(part, Words) and isinstance(last, Words):
                parts[-1] = Words(last.text + part.text)
            elif part is not None:
                parts.append(part)
        return tuple(parts)

    def _part(self, node: Node) -> Part | None:
        if isinstance(node, Text):
            return Words(node.text)
        if node.name == "doc":
            return self._doc(node)
        if node.name == "img":
            return self._picture(node)
        if node.name == "agent":
            return Nested(node.value("src"), _key(self._loaded, node), self._parts(node.children))
        # Another element of the language has no meaning inside a message: it is text.
        return Words(write((node,)).removesuffix("\n"))

    def _text(self, element: Element) -> str:
        """The text of a stored call or result."""
        texts = []
        for part in self._parts(element.children):
            match part:
                case Words() | Doc():
                    texts.append(part.text)
                case Picture():
                    texts.append(f"[image: {part.src}]")
        return "".join(texts)

    def _doc(self, element: Element) -> Doc | None:
        src = element.value("src")
        uri = uri_of(src) if "local" in element.attributes else src
        if (page := page_of(self._loaded, element)) is not None and (text := self._opened.pages.get(page)) is not None:
            if isinstance(text, str):
                return Doc(src, text, uri, "text/markdown" if page[1] else "text/plain")
            why = f"{'markdown' if page[1] else 'strip'} has no effect, HTML stays as it is: {text.reason}"
            self.ignored[Unavailable(f"doc {src}", why)] = None
            self._warn(element, f'<doc src="{src}">: {why}')
        if "local" not in element.attributes:
            content = self._opened.fetched.get(src)
            if content is None:
                return None
            return Doc(src, _decoded(content), uri, content.media_type or "text/plain")
        data = self._loaded.files.get(self._loaded.path_of(src))
        if data is None:
            return None
        media_type = _TEXT_TYPES.get(posixpath.splitext(src)[1].lower(), "text/plain")
        try:
            return Doc(src, data.decode("utf-8-sig"), uri, media_type)
        except UnicodeDecodeError as wrong:
            message = f'<doc src="{src}">: byte {wrong.start + 1} of it is no UTF-8'
            self._errors[diagnostic("not-utf8", message, element.at)] = None
            return None

    def _picture(self, element: Element) -> Picture | None:
        src = element.value("src")
        by_suffix = _IMAGE_TYPES.get(posixpath.splitext(src.partition("?")[0])[1].lower(), "")
        if "local" not in element.attributes:
            return Picture(src, None, by_suffix, src)
        data = self._loaded.files.get(self._loaded.path_of(src))
        if data is None:
            return None
        if not (media_type := image_type(data) or by_suffix):
            self._errors[diagnostic("file-kind", f'<img src="{src}">: of no format of images', element.at)] = None
        return Picture(src, data, media_type)

    # ---- tools ----------------------------------------------------------------------------------------------------

    def _tool(self, element: Element) -> None:
        name, server = element.value("name"), element.value("mcp_server")
        if why := unavailable(element):
            self.unavailable.append(Unavailable(name or server, why))
            return
        declared = self._declared(element, name, server)
        if declared is None:
            self.unavailable.append(Unavailable(name, "a document from an address has no folder to read"))
            return
        key = f"{server} {declared.include}" if server else name
        if (before := self.tools.setdefault(key, declared)) != declared:
            self.unavailable.append(Unavailable(name, f"another tool of this name comes first: of kind {before.kind}"))

    def _declared(self, element: Element, name: str, server: str) -> Declared | None:
        about = element.value("description")
        if server:
            several = element.value("include") or element.value("includes")
            include = (name,) if name else tuple(each.strip() for each in several.split(",") if each.strip())
            return Declared("mcp", name, about, url=server, include=include)
        if element.value("agent"):
            return Declared("document", name, about, path=_key(self._loaded, element))
        if name not in FILE_TOOLS:
            return Declared("tenant", name, about)
        if self._loaded.folder is None:
            return None
        roots = []
        for child in element.children:
            if isinstance(child, Element) and child.name == "read":
                folder = self._loaded.roots.get((child.value("path"), child.at.file))
                if folder is not None:
                    roots.append((child.value("id"), str(folder), child.value("description")))
        return Declared("file", name, about, roots=tuple(roots))

    # ---- settings -------------------------------------------------------------------------------------------------

    def settings(self) -> tuple[str | None, float | None, int | None]:
        """Model, temperature, and the most tokens of an answer."""
        config = self._config
        if config is None:
            return None, None, None
        temperature = self._number(config, "temperature", 0.0)
        tokens = self._number(config, "max_tokens", 1.0)
        return config.value("model") or None, temperature, None if tokens is None else int(tokens)

    def _number(self, config: Element, name: str, least: float) -> float | None:
        given = config.value(name)
        if not given:
            return None
        try:
            number = float(given)
        except ValueError:
            number = -1.0
        if not least <= number <= 1e9 or (least and not number.is_integer()):
            self._warn(
                config, f"{name} is {given[:64]!r}, which has no effect: no {'whole ' * bool(least)}number for it"
            )
            return None
        return number

    def _warn(self, element: Element, message: str) -> None:
        at = element.at
        self._warnings[f"{at.file}:{at.line}:{at.column}: {message}"] = None


def uri_of(src: str) -> str:
    """The address of a local file for clients: it says which file it is, and not where on the machine."""
    plain = posixpath.normpath(posixpath.join("/", src))
    return f"chatmd://{quote(plain)}"


def image_type(data: bytes) -> str:
    """The type of an image by its first bytes, or nothing."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for begin, kind in _IMAGE_BEGINS if data.startswith(begin)), "")


def _decoded(content: Content) -> str:
    try:
        return content.data.decode(content.charset, errors="replace").removeprefix("\ufeff")
    except LookupError:
        return content.data.decode(errors="replace").removeprefix("\ufeff")

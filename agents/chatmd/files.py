"""The files of a document: itself, what it imports, and what it names. Everything here blocks: call it in a thread.

A path is taken from its own folder, made plain as text, and opened below a folder that may be read, as `fs.read` opens
files: component by component, never through a symbolic link.
"""

import errno
import posixpath
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from agents.chatmd.checks import second_configs
from agents.chatmd.diagnostics import Diagnostic, Position, diagnostic, errors
from agents.chatmd.reader import Bounds, Reading, read
from agents.chatmd.tree import MAX_DEPTH, Document, Element, Node, height, walk
from agents.chatmd.vocabulary import READ_TOOLS, may_import
from engine.bridge import CallRefused
from engine.bridge.fs import FileRefused, parse_path, read_file

# Bound on elements, texts, comments and attributes of a document with its imports: each takes about half a kilobyte.
MAX_VALUES = 100_000
# Bound on the files of a document together, but for its imports, in files of the largest size.
FILES_TOGETHER = 8
# Bound on imports inside imports.
MAX_IMPORT_DEPTH = 128
# What a path of `read` may begin with; all of them are the document's folder, but for the one of the file it is in.
_DOCUMENTS_FOLDER = ("${workspace}", "${tool_dir}", "${prompt_dir}")
_OWN_FOLDER = "${source_dir}"


class Places(NamedTuple):
    """What may be read: the document's folder, and more folders. Absolute, without `..`."""

    folder: Path
    roots: tuple[Path, ...] = ()


class Sizes(NamedTuple):
    """Bounds: bytes of the document and its imports together, of each other file, and values as in `Bounds`. `together`
    bounds the bytes of all other files; None is `FILES_TOGETHER` times that of one.
    """

    source_bytes: int
    fs_bytes: int
    values: int
    together: int | None = None

    @property
    def all_files(self) -> int:
        return FILES_TOGETHER * self.fs_bytes if self.together is None else self.together


class Loaded(msgspec.Struct, frozen=True):
    """A document with its imports in their places. `imported` are their files, in order; `files` the other files that
    it names; `agents` those of them that are documents; `roots` the folders of its tools, by the path and the file that
    it stands in. `folder` is None for a document without files. With errors, what could be made out.
    """

    source: bytes
    document: Document
    diagnostics: tuple[Diagnostic, ...]
    imported: tuple[Path, ...]
    files: dict[Path, bytes]
    agents: tuple[Path, ...]
    roots: dict[tuple[str, str], Path] = {}
    folder: Path | None = None

    def path_of(self, source: str) -> Path:
        """The path of a file that an element names with `local`."""
        return Path(posixpath.normpath(f"{self.folder}/{source}"))

    @property
    def errors(self) -> list[Diagnostic]:
        return errors(self.diagnostics)


def _unseen(path: Path) -> None:
    pass


def load(
    path: Path,
    sizes: Sizes,
    *,
    shown: str = "",
    roots: Iterable[Path] = (),
    strict: bool = False,
    seen: Callable[[Path], None] = _unseen,
) -> Loaded:
    """Read a document, its imports, and the files that it names. `shown` is its name in places. `seen` is called with
    each path before it is read, also where there is no such file.

    Raises OSError if the document itself cannot be read, or a file for a reason of the host's.
    """
    path = plain(path)
    places = Places(path.parent, tuple(plain(root) for root in roots))
    seen(path)
    source = source_of(path, sizes.source_bytes)
    return _Loading(places, sizes, shown or str(path), strict, seen).load(source, path)


def load_text(source: bytes, sizes: Sizes, *, shown: str, strict: bool = False) -> Loaded:
    """Read a document that is no file: what it names with `local`, and its imports, are outside of its folder."""
    nowhere = Path("/")
    loaded = _Loading(Places(nowhere), sizes, shown, strict, _unseen, has_files=False).load(source, nowhere)
    return msgspec.structs.replace(loaded, folder=None)


def load_packed(
    files: Mapping[Path, bytes], path: Path, folder: Path, sizes: Sizes, *, strict: bool = False
) -> Loaded:  # fmt: skip
    """Read a document of a package: it and what it names are among `files`, all of which are below `folder`."""
    shown = str(path.relative_to(folder))
    loading = _Packed(Places(path.parent, (folder,)), sizes, shown, strict, files)
    return loading.load(files[path][: sizes.source_bytes + 1], path)


def source_of(path: Path, bound: int) -> bytes:
    """The bytes of a file that the operator named, so its path may have links: at most one more than `bound`, which the
    reader refuses. Raises OSError.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # a FIFO would block for ever
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with path.open("rb") as file:
        return file.read(bound + 1)


def plain(path: Path) -> Path:
    """The absolute path, without `..`; links are not followed."""
    return Path(posixpath.normpath(Path.cwd() / path))


class _Missing(Exception):
    """A file that is not read: the code, and why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Loading:
    """One loading. A file is read once; each place that imports it counts towards the bounds."""

    def __init__(
        self,
        places: Places,
        sizes: Sizes,
        shown: str,
        strict: bool,
        seen: Callable[[Path], None],
        *,
        has_files: bool = True,
    ) -> None:
        self._places, self._sizes, self._shown, self._strict = places, sizes, shown, strict
        self._seen, self._has_files = seen, has_files
        self._left, self._values, self._files_left = sizes.source_bytes, sizes.values, sizes.all_files
        self._found: dict[Diagnostic, None] = {}
        self._read: dict[Path, tuple[int, Reading]] = {}
        self._files: dict[Path, bytes] = {}
        self._imported: dict[Path, None] = {}
        self._agents: dict[Path, None] = {}
        self._roots: dict[tuple[str, str], Path] = {}

    def load(self, source: bytes, path: Path) -> Loaded:
        reading = read(source, Bounds(self._sizes.source_bytes, self._values), file=self._shown, strict=self._strict)
        self._take(len(source), reading)
        nodes = self._spliced(reading.document.nodes, (path,), 0)
        elements = tuple(node for node in nodes if isinstance(node, Element))
        for code, message, at in second_configs(elements):
            self._report(code, message, at)
        for element in walk(elements):
            self._named(element)
        document = Document(elements, reading.document.comments)
        found = tuple(self._found)
        imported, agents = tuple(self._imported), tuple(self._agents)
        return Loaded(source, document, found, imported, self._files, agents, self._roots, self._places.folder)

    def _take(self, size: int, reading: Reading) -> None:
        self._left -= size
        self._values -= sum(1 + len(element.attributes) for element in walk(reading.document.nodes))
        self._found.update(dict.fromkeys(reading.diagnostics))

    # ---- imports --------------------------------------------------------------------------------------------------

    def _spliced(self, nodes: Iterable[Node], chain: tuple[Path, ...], depth: int) -> list[Node]:
        """The nodes, with what imports name in their places. `chain` are the files that lead here, `depth` the elements
        around.
        """
        spliced: list[Node] = []
        for node in nodes:
            if not isinstance(node, Element):
                spliced.append(node)
            elif node.name == "import":
                spliced += self._import(node, chain, depth)
            elif node.children and may_import(node.name, node.attributes):
                children = tuple(self._spliced(node.children, chain, depth + 1))
                spliced.append(msgspec.structs.replace(node, children=children))
            else:
                spliced.append(node)
        return spliced

    def _import(self, element: Element, chain: tuple[Path, ...], depth: int) -> list[Node]:
        source = element.value("src")
        if not source:
            return []  # reported by the checks
        try:
            path = self._path(source, chain[-1].parent)
            if path in chain:
                shown = " -> ".join(self._name(each) for each in (*chain[chain.index(path) :], path))
                raise _Missing("import-cycle", f"a cycle: {shown}")
            if len(chain) > MAX_IMPORT_DEPTH:
                raise _Missing("import-depth", f"imports are nested more than {MAX_IMPORT_DEPTH} deep")
            reading = self._imported_file(path)
            if depth + height(reading.document.nodes) > MAX_DEPTH:
                raise _Missing("too-large", f"elements are nested more than {MAX_DEPTH} deep")
        except _Missing as why:
            self._report(why.code, f'<import src="{source}">: {why}', element.at)
            return []
        return self._spliced(reading.document.nodes, (*chain, path), depth)

    def _imported_file(self, path: Path) -> Reading:
        known = self._read.get(path)
        if known is None:
            source = self._content(path, self._left, f"source_bytes, {self._sizes.source_bytes} with all imports")
            bounds = Bounds(self._sizes.source_bytes, max(self._values, 0))
            known = len(source), read(source, bounds, file=self._name(path), strict=self._strict)
            self._read[path] = known
            self._imported[path] = None
        size, reading = known
        if size > self._left or self._values < 0:
            shown = f"{self._sizes.source_bytes:,} bytes, or {self._sizes.values:,} elements and attributes"
            raise _Missing("too-large", f"the document and its imports have more than {shown}")
        self._take(size, reading)
        return reading

    # ---- other files ----------------------------------------------------------------------------------------------

    def _named(self, element: Element) -> None:
        """The file that an element names, read."""
        attribute = "agent" if element.name == "tool" else "src"
        if element.name == "tool" and element.value("name") in READ_TOOLS:
            for child in element.children:
                if isinstance(child, Element) and child.value("path"):
                    self._root(child)
        if element.name not in ("doc", "img", "agent", "tool") or "local" not in element.attributes:
            return
        source = element.value(attribute)
        if not source:
            return
        try:
            path = self._path(source, self._places.folder)
            if path not in self._files:
                self._files[path] = self._file(path)
            if element.name in ("agent", "tool"):
                self._agents[path] = None
        except _Missing as why:
            self._report(why.code, f'<{element.name} {attribute}="{source}">: {why}', element.at)

    def _file(self, path: Path) -> bytes:
        bound = min(self._sizes.fs_bytes, self._files_left)
        together = f"fs_bytes, {self._sizes.all_files} with all files of the document"
        content = self._content(path, bound, "fs_bytes" if bound == self._sizes.fs_bytes else together)
        self._files_left -= len(content)
        return content

    def _root(self, element: Element) -> None:
        """A folder that a tool is to read."""
        given = element.value("path")
        folder, _, rest = given.partition("/")
        try:
            if folder in _DOCUMENTS_FOLDER:
                path = self._path(rest or ".", self._places.folder)
            elif folder == _OWN_FOLDER:
                path = self._path(rest or ".", self._folder_of(element.at))
            elif "${" in given:
                raise _Missing("file-outside", "there is no such variable, or its folder is not the document's")
            else:
                path = self._path(given, self._places.folder)
            self._require_folder(path)
            self._roots[given, element.at.file] = path
        except _Missing as why:
            self._report(why.code, f'<read path="{given}">: {why}', element.at)

    def _require_folder(self, path: Path) -> None:
        try:
            if any(each.is_symlink() for each in self._below(path)):
                raise _Missing("file-outside", "a symbolic link, and links are not followed")
            if not path.exists():
                raise _Missing("file-missing", "no such folder")
            if not path.is_dir():
                raise _Missing("file-kind", "not a folder")
        except (OSError, ValueError) as error:  # a name that is too long, or no name
            raise _Missing("file-missing", str(error)) from None

    def _folder_of(self, at: Position) -> Path:
        """The folder of the file that a place is in."""
        return next((path.parent for path in self._imported if self._name(path) == at.file), self._places.folder)

    # ---- paths ----------------------------------------------------------------------------------------------------

    def _path(self, given: str, folder: Path) -> Path:
        """The path that is given from a folder. Raises _Missing unless it is below a folder that may be read."""
        if not self._has_files:
            raise _Missing("file-outside", "a document from an address reads no files")
        if "://" in given:
            raise _Missing("file-outside", "a file is meant here, and this is an address")
        if given.startswith("/"):
            raise _Missing("file-outside", "an absolute path; paths begin at the document's folder")
        path = Path(posixpath.normpath(f"{folder}/{given}"))
        if "\0" in given or self._root_of(path) is None:
            raise _Missing("file-outside", f"outside of {self._places.folder.name or 'its folder'}")
        return path

    def _root_of(self, path: Path) -> Path | None:
        return next((root for root in (self._places.folder, *self._places.roots) if path.is_relative_to(root)), None)

    def _below(self, path: Path) -> Iterator[Path]:
        """The path and the folders above it, up to the one that may be read."""
        root = self._root_of(path)
        while root is not None and path != root:
            yield path
            path = path.parent

    def _content(self, path: Path, bound: int, set_by: str) -> bytes:
        root = self._root_of(path)
        if root is None or path == root:
            raise _Missing("file-kind", "a folder, not a file")
        self._seen(path)
        try:
            return read_file(root, parse_path(str(path.relative_to(root))), max(bound, 0), set_by=set_by)
        except FileRefused as refused:
            code = {"missing": "file-missing", "link": "file-outside", "kind": "file-kind", "size": "too-large"}
            why = f"{self._name(path)} is no regular file" if refused.why == "kind" else str(refused)
            raise _Missing(code[refused.why], why) from None
        except (CallRefused, ValueError) as refused:
            raise _Missing("file-missing", str(refused)) from None

    def _name(self, path: Path) -> str:
        """A file's name in places: beside the document's, as the user named that."""
        folder = posixpath.dirname(self._shown)
        return posixpath.normpath(posixpath.join(folder, posixpath.relpath(path, self._places.folder)))

    def _report(self, code: str, message: str, at: Position) -> None:
        self._found[diagnostic(code, message, at, strict=self._strict)] = None


class _Packed(_Loading):
    """A loading from a package, whose files are texts in memory."""

    def __init__(
        self, places: Places, sizes: Sizes, shown: str, strict: bool, files: Mapping[Path, bytes]
    ) -> None:  # fmt: skip
        super().__init__(places, sizes, shown, strict, _unseen)
        self._packed = files

    def _require_folder(self, path: Path) -> None:
        if path in self._packed:
            raise _Missing("file-kind", "not a folder")
        if path not in self._places.roots and not any(each.is_relative_to(path) for each in self._packed):
            raise _Missing("file-missing", "no such folder")

    def _content(self, path: Path, bound: int, set_by: str) -> bytes:
        content = self._packed.get(path)
        if content is None:
            raise _Missing("file-missing", f"{self._name(path)} is not among the package's files")
        if len(content) > bound:
            raise _Missing("too-large", f"{self._name(path)} is larger than {max(bound, 0)} bytes ({set_by})")
        return content

"""`read_file` and `read_directory`: the files of a document's folder, or of the folders that it names, as text.

They are opened as `fs.read` opens them: component by component, never through a symbolic link.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import structlog
import trio

from agents.agent import Call
from agents.chatmd.program import Declared
from agents.toolbox import Offered
from engine.bridge import CallDenied, CallRefused
from engine.bridge.fs import AT_ONCE, FileRefused, Parts, list_folder, parse_path, read_file
from engine.errors import Code, Problem
from sandbox.wire.limits import KIB

log = structlog.get_logger("agents.toolbox")

# What one call gives the model: 128 KiB are some 32,000 tokens. The rest of a file is read with `offset`.
READ_BYTES = 128 * KIB
LISTED = 1_000
# The name that the model sees, by the name that a document declares.
NAMES: Mapping[str, str] = {
    "read_file": "read_file",
    "get_contents": "read_file",
    "read_dir": "read_directory",
    "read_directory": "read_directory",
}
_LONGEST_SHOWN = 128
# The suffixes of documents, and of the files beside them that have their keys.
_DOCUMENT = ".chatmd"
_KEYS = ".toml"

T = TypeVar("T")


class FileBounds(NamedTuple):
    """What the tools may read: files of at most `fs_bytes`, which `set_by` set, and none of `private`.

    `folder` is the document's own, for tools that name no other. Of documents and files of keys beside them it reads
    those in `own`: a folder may have documents of several tenants. With None, all files are the document's.
    """

    fs_bytes: int
    folder: str = ""
    set_by: str = "fs_bytes"
    private: tuple[Path, ...] = ()
    own: frozenset[Path] | None = None

    def foreign_in(self, folder: Path) -> Callable[[str], bool]:
        """Says of a name in this folder whether it is another document, or the keys of one. Looks at the disk."""
        own = self.own
        if own is None:
            return lambda _: False

        @cache
        def documents() -> Mapping[str, list[Path]]:  # by stem; the case of a suffix does not count
            found: dict[str, list[Path]] = {}
            with suppress(OSError):
                for path in map(folder.joinpath, os.listdir(folder)):
                    if path.suffix.lower() == _DOCUMENT:
                        found.setdefault(path.stem, []).append(path)
            return found

        def is_foreign(name: str) -> bool:
            path = folder / name
            if path.suffix.lower() == _DOCUMENT:
                return path not in own
            beside = documents().get(path.stem) if path.suffix.lower() == _KEYS else None
            return beside is not None and own.isdisjoint(beside)

        return is_foreign


class _Root(NamedTuple):
    """A folder that a tool reads. `name` is empty for the only one of a document that names none."""

    name: str
    folder: Path
    description: str


def file_tools(declared: Declared, bounds: FileBounds) -> list[Offered]:
    """The tools that a declaration of the kind `file` makes."""
    given = declared.roots or (("", bounds.folder, ""),)
    roots = tuple(_Root(name, Path(folder), description) for name, folder, description in given)
    kind = ReadFile if NAMES[declared.name] == "read_file" else ReadDirectory
    return [kind(declared.description or kind.about, roots, bounds)]


@dataclass(frozen=True, slots=True)
class _FileTool:
    """What both tools share. With several folders, the model says which by the parameter `root`."""

    given: str
    roots: tuple[_Root, ...] = field(repr=False)
    bounds: FileBounds = field(repr=False)

    @property
    def description(self) -> str:
        """What the document says of it, and its folders."""
        lines = [f"- {root.name}: {root.description}" for root in self.roots if root.name and root.description]
        return "\n".join((self.given, "Folders:", *lines)) if lines else self.given

    @property
    def read_only(self) -> bool:
        return True

    @property
    def destructive(self) -> bool | None:
        return False

    def _schema(self, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
        if len(self.roots) > 1:
            names = [root.name for root in self.roots]
            properties["root"] = {"type": "string", "enum": names, "description": "The folder that it is in"}
            required = [*required, "root"]
        schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
        return schema | ({"required": required} if required else {})

    def _root(self, arguments: Mapping[str, Any]) -> _Root:
        if len(self.roots) == 1:
            return self.roots[0]
        names = [root.name for root in self.roots]
        wanted = arguments.get("root")
        if wanted not in names:
            raise Problem(Code.BAD_REQUEST, f"root: expected one of {', '.join(names)}")
        return self.roots[names.index(wanted)]

    def _known(self, arguments: Mapping[str, Any], *names: str) -> None:
        known = (*names, *(("root",) if len(self.roots) > 1 else ()))
        if unknown := next((name for name in arguments if name not in known), None):
            raise Problem(Code.BAD_REQUEST, f"unknown argument {_shown(unknown)}; there are {', '.join(known)}")


class ReadFile(_FileTool):
    """The text of a file, in pieces of `READ_BYTES`."""

    __slots__ = ()
    about = (
        "Reads a text file and returns its content. "
        f"At most {READ_BYTES:,} bytes are returned at once: the rest of a longer file is read with offset."
    )

    @property
    def name(self) -> str:
        return "read_file"

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self._schema(
            {
                "file": {"type": "string", "description": "The path of the file, relative to its folder"},
                "offset": {"type": "integer", "minimum": 0, "description": "The byte to begin at, from 0"},
            },
            ["file"],
        )

    async def call(self, arguments: Mapping[str, Any], call: Call) -> str:
        """Read it. Raises Problem."""
        self._known(arguments, "file", "path", "offset")
        path = arguments.get("file", arguments.get("path"))
        offset = arguments.get("offset", 0)
        if not isinstance(path, str):
            raise Problem(Code.BAD_REQUEST, "file: expected the path of a file, a text")
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise Problem(Code.BAD_REQUEST, "offset: expected a whole number, at least 0")
        root, parts = self._root(arguments), _parts(path)
        if not parts:
            raise Problem(Code.BAD_REQUEST, f"{_shown(path)} is a folder; read_directory lists it")
        bounds = self.bounds
        read = partial(read_file, root.folder, parts, bounds.fs_bytes, set_by=bounds.set_by, private=bounds.private)

        def work() -> str:
            at = _at(root, parts)
            if bounds.foreign_in(at.parent)(at.name):
                raise Problem(Code.BAD_REQUEST, f"{_shown(path)} belongs to another document, which is not read")
            return piece(read(), offset, path)

        return await _in_thread(call, path, work)


class ReadDirectory(_FileTool):
    """The names in a folder."""

    __slots__ = ()
    about = "Lists a folder: one name a line, those of folders with a '/', files with their size in bytes."

    @property
    def name(self) -> str:
        return "read_directory"

    @property
    def parameters(self) -> Mapping[str, Any]:
        path = {"type": "string", "description": "The path of the folder; '.' is the outermost one", "default": "."}
        return self._schema({"path": path}, [])

    async def call(self, arguments: Mapping[str, Any], call: Call) -> str:
        """List it. Raises Problem."""
        self._known(arguments, "path")
        path = arguments.get("path", ".")
        if not isinstance(path, str):
            raise Problem(Code.BAD_REQUEST, "path: expected the path of a folder, a text")
        root, parts = self._root(arguments), _parts(path)
        listed = partial(list_folder, root.folder, parts, None, private=self.bounds.private)

        def work() -> str:
            is_foreign = self.bounds.foreign_in(_at(root, parts))

            def is_shown(entry: Mapping[str, Any]) -> bool:
                name = os.fsencode(entry["name"]) if isinstance(entry["name"], str) else entry["name"]
                return entry["type"] == "directory" or not is_foreign(os.fsdecode(name))

            return listing([each for each in listed() if is_shown(each)])

        return await _in_thread(call, path, work)


def piece(content: bytes, offset: int, path: str) -> str:
    """The text of a file from a byte on, up to the end of the last line within the bound. Raises Problem."""
    try:
        content.decode()
    except UnicodeDecodeError:
        raise Problem(Code.BAD_REQUEST, f"{_shown(path)} is not a text: it is not UTF-8") from None
    if offset > len(content):
        raise Problem(Code.BAD_REQUEST, f"offset: {_shown(path)} has only {len(content):,} bytes")
    begin = _boundary(content, offset)
    end = min(begin + READ_BYTES, len(content))
    if end < len(content):
        line = content.rfind(b"\n", begin, end) + 1
        end = line if line > begin else _boundary(content, end)
    text = content[begin:end].decode()
    if end == len(content):
        return text
    return f"{text}\n\n[{len(content) - end:,} more bytes: read on with offset {end}]"


def _boundary(content: bytes, at: int) -> int:
    """The place of the next character of UTF-8, from this byte on."""
    while at < len(content) and content[at] & 0xC0 == 0x80:
        at += 1
    return at


def listing(entries: list[dict[str, Any]]) -> str:
    """The entries of a folder as text."""
    lines = [_line(entry) for entry in entries[:LISTED]]
    if len(entries) > LISTED:
        lines.append(f"[{len(entries) - LISTED:,} more]")
    return "\n".join(lines) if lines else "[no files]"


def _line(entry: Mapping[str, Any]) -> str:
    name = entry["name"]
    shown = name if isinstance(name, str) else name.decode(errors="backslashreplace")
    # A line break in a name would look like another file.
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown)
    match entry["type"]:
        case "directory":
            return f"{shown}/"
        case "file":
            return f"{shown}  {entry['size']} bytes"
        case "symlink":
            return f"{shown}  (a symbolic link, which is not followed)"
    return f"{shown}  (not a regular file)"


def _at(root: _Root, parts: Parts) -> Path:
    return root.folder.joinpath(*map(os.fsdecode, parts))


def _parts(path: str) -> Parts:
    if path.startswith("/"):
        raise Problem(Code.BAD_REQUEST, f"{_shown(path)} is absolute; paths are relative to the folder")
    if ".." in path.split("/"):
        raise Problem(Code.BAD_REQUEST, f"{_shown(path)} holds '..'; paths stay below the folder")
    try:
        return parse_path(path.removesuffix("/"))
    except ValueError as error:
        raise Problem(Code.BAD_REQUEST, str(error)) from None


def _shown(path: str) -> str:
    return repr(path if len(path) <= _LONGEST_SHOWN else f"{path[: _LONGEST_SHOWN - 1]}…")


_CODES: Mapping[str, Code] = {"missing": Code.NOT_FOUND, "size": Code.TOO_LARGE}
# Invariant: an entry for every tenant with a running thread, as in `engine.bridge.fs`: a tenant's hanging files take no
# thread of another tenant's.
_LIMITERS: trio.lowlevel.RunVar[WeakValueDictionary[str, trio.CapacityLimiter]] = trio.lowlevel.RunVar("limiters")


def _limiter(tenant: str) -> trio.CapacityLimiter:
    try:
        limiters = _LIMITERS.get()
    except LookupError:
        limiters = WeakValueDictionary()
        _LIMITERS.set(limiters)
    limiter = limiters.get(tenant)
    if limiter is None:
        limiter = limiters[tenant] = trio.CapacityLimiter(AT_ONCE)
    return limiter


async def _in_thread(call: Call, path: str, work: Callable[[], T]) -> T:
    """Do it in a thread. Raises Problem."""
    try:
        # Safe to abandon: the thread writes nothing, and closes the descriptors that it opens.
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=_limiter(call.tenant.id))
    except FileRefused as refused:
        if refused.why == "kind":
            raise Problem(Code.BAD_REQUEST, f"{_shown(path)} is not a regular file") from None
        raise Problem(_CODES.get(refused.why, Code.BAD_REQUEST), str(refused)) from None
    except CallDenied:
        raise Problem(Code.BAD_REQUEST, f"{_shown(path)} may not be read") from None
    except CallRefused as refused:
        raise Problem(Code.BAD_REQUEST, str(refused).replace("script's own ", "")) from None
    except OSError as error:
        log.warning("a file cannot be read", tenant=call.tenant.id, reason=error.strerror)
        raise Problem(Code.UNAVAILABLE, f"{_shown(path)} cannot be read now") from None

"""`fs.read`, `fs.list`: the files of the script's own folder, read-only.

A path is never resolved as a whole: it is walked component by component, each opened relative to the descriptor of the
one before and never through a symbolic link. So a rename or a replaced folder cannot lead outside, whenever it happens.
(A hard link, or a mount below the folder, counts as inside: its author could have put the file there.)
"""

import errno
import fnmatch
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar
from weakref import WeakValueDictionary

import msgspec
import trio

from engine.bridge import CallDenied, CallRefused, HostContext, HostFunction
from engine.bridge.families import Family
from engine.run import RunRequest

READ, LIST = "fs.read", "fs.list"
GRANTS = frozenset({READ, LIST})

# Bound on the entries of a folder that is listed: stat takes some microseconds each, and all of them go to the script.
MAX_ENTRIES = 10_000
# Bound on a path, in bytes. Every entry of a listing repeats the path of its folder; Linux's PATH_MAX is 4,096.
MAX_PATH_BYTES = 1_024
# NAME_MAX of every common filesystem.
MAX_NAME_BYTES = 255
MAX_GLOB_CHARACTERS = 255
# Bound on the patterns that the braces of one glob expand to: each is compiled, in up to 1 ms (measured).
MAX_GLOB_ALTERNATIVES = 16
# Bound on one tenant's calls under way, and so on the threads that a hanging filesystem can occupy.
AT_ONCE = 4

# The operator chose the folder itself: its path may contain links.
_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FOLDER = _ROOT | os.O_NOFOLLOW
# NONBLOCK: open of a FIFO in a file's place would wait for a writer. It has no effect on a regular file.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_READ_BYTES = 256 * 1024

# Why a file is not read: it is not there or may not be read, is a link, is no regular file, or is too large.
Why = Literal["missing", "link", "kind", "size"]


class FileRefused(CallRefused):
    """A file that is not read, and why."""

    def __init__(self, message: str, why: Why) -> None:
        super().__init__(message)
        self.why = why


T = TypeVar("T")
Parts = tuple[bytes, ...]


class ReadArguments(msgspec.Struct):
    path: Any  # text or bytes: a file's name need not be UTF-8, and msgspec has no such union


class ListArguments(msgspec.Struct):
    path: Any = None
    glob: str | None = None


def functions(private: Iterable[Path] = ()) -> tuple[HostFunction, ...]:
    """The family. It reads `authority.folder` of the calling run, except `private` files, and `private` folders with
    their content.

    An operator may keep scripts beside the configuration and the stores, which scripts must not read.
    """
    kept_private = tuple(private)
    # Invariant: an entry for every tenant with a running thread. A thread that a cancelled call abandoned keeps its
    # limiter, so a tenant never has more than AT_ONCE threads, and takes none from other tenants.
    limiters: WeakValueDictionary[str, trio.CapacityLimiter] = WeakValueDictionary()

    async def in_thread(request: RunRequest, work: Callable[[], T]) -> T:
        tenant = request.tenant.id
        limiter = limiters.get(tenant)
        if limiter is None:
            limiter = limiters[tenant] = trio.CapacityLimiter(AT_ONCE)
        # Safe to abandon: the thread writes nothing, and closes the descriptors that it opens.
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)

    async def read(context: HostContext, arguments: ReadArguments) -> bytes:
        folder, parts = _where(context.request, arguments.path)
        if not parts:
            raise CallRefused(f"path: {_as_text(parts)} is the script's own folder, not a file in it")
        limits = context.request.limits
        set_by = f"fs_bytes, set by the {limits.sources['fs_bytes']}"
        return await in_thread(
            context.request,
            partial(read_file, folder, parts, limits.values.fs_bytes, set_by=set_by, private=kept_private),
        )

    async def list_(context: HostContext, arguments: ListArguments) -> list[dict[str, Any]]:
        given = "" if arguments.path is None else arguments.path
        # A trailing slash says "a folder", as is expected here.
        folder, parts = _where(context.request, _without_last_slash(given))
        try:
            patterns = parse_glob(arguments.glob) if arguments.glob is not None else None
        except ValueError as error:
            raise CallRefused(f"glob: {error}") from None
        return await in_thread(context.request, partial(list_folder, folder, parts, patterns, private=kept_private))

    return (
        HostFunction(READ, ReadArguments, read, at_once=AT_ONCE),
        HostFunction(LIST, ListArguments, list_, at_once=AT_ONCE),
    )


def _where(request: RunRequest, path: object) -> tuple[Path, Parts]:
    try:
        parts = parse_path(path)
    except ValueError as error:
        raise CallDenied(f"path: {error}") from None
    folder = request.authority.folder
    if folder is None:
        raise CallRefused(f"{request.name!r} has no folder of its own: it was not loaded from a file")
    return Path(folder), parts


def _without_last_slash(path: object) -> object:
    if isinstance(path, str) and path != "/":
        return path.removesuffix("/")
    if isinstance(path, bytes) and path != b"/":
        return path.removesuffix(b"/")
    return path


def parse_path(path: object) -> Parts:
    """The components of a path below the script's folder, without `.`; `..` and empty ones are refused.

    `path` is text or, if it is not UTF-8, bytes. The folder itself ("" and ".") has no components. Raises ValueError.
    """
    if not isinstance(path, str | bytes):
        raise ValueError(f"expected string, got {_LUA_TYPES.get(type(path), 'table')}")
    try:
        raw = path.encode() if isinstance(path, str) else path
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is not text") from None
    if not raw:
        return ()
    if len(raw) > MAX_PATH_BYTES:
        raise ValueError(f"is {len(raw)} bytes long; the limit is {MAX_PATH_BYTES}")
    shown = _as_text((raw,))
    if b"\0" in raw:
        raise ValueError(f"{shown} holds a zero byte")
    if b"\\" in raw:
        raise ValueError(f"{shown} holds a backslash; the separator is '/'")
    if raw.startswith(b"/"):
        raise ValueError(f"{shown} is absolute; paths are relative to the script's own folder")
    if raw.endswith(b"/"):
        raise ValueError(f"{shown} ends with '/', so it does not name a file")
    names = raw.split(b"/")
    if b"" in names:
        raise ValueError(f"{shown} holds '//': a name is missing")
    if b".." in names:
        raise ValueError(f"{shown} holds '..'; paths stay below the script's own folder")
    if any(len(name) > MAX_NAME_BYTES for name in names):
        raise ValueError(f"{shown} holds a name of more than {MAX_NAME_BYTES} bytes")
    return tuple(name for name in names if name != b".")


_LUA_TYPES = {int: "number", float: "number", bool: "boolean", type(None): "nil"}


def parse_glob(glob: str) -> tuple[str, ...]:
    """The fnmatch patterns that a glob for names expands to; one of them has to match. Raises ValueError.

    `*` is any characters, `?` one, `[a-z]` one of a set, `[!a-z]` one outside it, `{a,b}` either; case matters. A
    leading `**/` is ignored: one level is listed. (context-harness matches names with the Rust crate globset; these are
    its rules without escapes.)
    """
    if len(glob) > MAX_GLOB_CHARACTERS:
        raise ValueError(f"is {len(glob)} characters long; the limit is {MAX_GLOB_CHARACTERS}")
    pattern = glob
    while pattern.startswith("**/"):
        pattern = pattern[3:]
    if "/" in pattern:
        raise ValueError(f"{glob!r} holds '/'; it is matched against names, one level at a time")
    if "\\" in pattern or "\0" in pattern:
        raise ValueError(f"{glob!r} holds a backslash or a zero byte; a literal '*' is '[*]'")
    return tuple(_alternatives(pattern, glob))


# A set, whose first character may be a bracket; or a character that delimits alternatives; or plain text.
_TOKEN = re.compile(r"\[[!^]?\]?[^\]]*\]|[\[{},]|[^\[{},]+")


def _alternatives(pattern: str, glob: str) -> list[str]:
    """The patterns without braces that a pattern with braces expands to."""
    # One level for every open brace: the text before this alternative, and the alternatives that are complete.
    open_: list[tuple[list[str], list[str]]] = []
    current = [""]
    for token in _TOKEN.findall(pattern):
        if token == "{":
            open_.append((current, []))
            current = [""]
        elif token in (",", "}") and open_:
            before, complete = open_[-1]
            complete += current
            current = [""]
            if token == "}":
                open_.pop()
                current = [first + then for first in before for then in complete]
        elif token in ("[", "}", "[]", "[!]", "[^]"):  # a leading bracket in a set is a member of it
            token = token[0]
            raise ValueError(f"{glob!r} has a {token!r} without its counterpart; a literal one is '[{token}]'")
        else:
            if token.startswith("[^"):  # globset knows both, fnmatch only `[!`
                token = "[!" + token[2:]
            current = [first + token for first in current]
        if len(current) + sum(len(complete) for _, complete in open_) > MAX_GLOB_ALTERNATIVES:
            raise ValueError(f"{glob!r} stands for more than {MAX_GLOB_ALTERNATIVES} patterns")
    if open_:
        raise ValueError(f"{glob!r} has a '{{' without its counterpart; a literal one is '[{{]'")
    return current


def read_file(root: Path, parts: Parts, bound: int, *, set_by: str, private: Iterable[Path] = ()) -> bytes:
    """The content of a regular file of at most `bound` bytes that is not in `private`. Reads at most one byte more.

    `parts` are names from `root`, at least one. `set_by` is the source of the bound, for errors. Blocks: call it in a
    thread. Raises CallRefused; OSError when the host is at fault.
    """
    *folders, name = parts
    with _opened_folder(root, tuple(folders), private) as folder:
        with _refusals(parts):
            # Checked before it is opened: opening a device may have effects, and closing any descriptor of a database
            # releases all locks that this process has on it (fcntl(2)), also those of its writers.
            info = os.stat(name, dir_fd=folder, follow_symlinks=False)
            _require_file(info, parts)
            _require_not_private(info, parts, private)
            descriptor = os.open(name, _FILE, dir_fd=folder)
        try:
            info = os.fstat(descriptor)
            _require_file(info, parts)  # again: the name may be another file's by now
            _require_not_private(info, parts, private)
            if info.st_size > bound:
                raise _too_large(parts, f"{info.st_size}", bound, set_by)
            chunks, left = [], bound + 1
            while left > 0 and (chunk := os.read(descriptor, min(left, _READ_BYTES))):
                chunks.append(chunk)
                left -= len(chunk)
            if left == 0:  # it grew while it was read, or reports no size, as files in /proc do
                raise _too_large(parts, f"more than {bound}", bound, set_by)
            return b"".join(chunks)
        finally:
            os.close(descriptor)


def _is_same(path: Path, info: os.stat_result) -> bool:
    """Whether the file at this path has this device and inode, as a file may have several names."""
    try:
        return os.path.samestat(path.stat(), info)
    except OSError:
        return False


def _require_not_private(info: os.stat_result, parts: Parts, private: Iterable[Path]) -> None:
    if any(_is_same(path, info) for path in private):
        raise CallDenied(f"{_as_text(parts)} is a file of the engine's own, which no script may read")


def list_folder(
    root: Path, parts: Parts, patterns: tuple[str, ...] | None, *, private: Iterable[Path] = ()
) -> list[dict[str, Any]]:
    """The entries of a folder whose names match one of the patterns of `parse_glob`, sorted by their names' bytes.

    Each is `{name, path, type, size, modified}`: `path` from `root`, `type` is file, directory, symlink or other,
    `size` in bytes (0 except for files), `modified` in whole Unix seconds. Blocks: call it in a thread. Raises
    CallRefused; OSError when the host is at fault.
    """
    # Matching is bounded: `translate` makes an atomic group of each `*` but the last, so it does not backtrack.
    matchers = None if patterns is None else [re.compile(fnmatch.translate(pattern)) for pattern in patterns]
    found: list[tuple[bytes, dict[str, Any]]] = []
    with _opened_folder(root, parts, private) as folder, _refusals(parts), os.scandir(folder) as listing:
        for count, entry in enumerate(listing):
            if count >= MAX_ENTRIES:
                raise CallRefused(f"{_as_text(parts)} has more than {MAX_ENTRIES} entries, too many to list")
            if matchers is not None and not any(matcher.match(entry.name) for matcher in matchers):
                continue
            try:
                info = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # removed since it was listed
            name = os.fsencode(entry.name)
            found.append((name, _entry(name, parts, info)))
    return [shown for _, shown in sorted(found, key=lambda item: item[0])]


def _entry(name: bytes, folder: Parts, info: os.stat_result) -> dict[str, Any]:
    kind = _kind(info)
    return {
        "name": _text(name),
        "path": _text(b"/".join((*folder, name))),
        "type": kind,
        # Not of a link: that is the length of its target. Nor of a folder: that depends on the filesystem.
        "size": info.st_size if kind == "file" else 0,
        "modified": info.st_mtime_ns // 1_000_000_000,
    }


def _kind(info: os.stat_result) -> str:
    if stat.S_ISREG(info.st_mode):
        return "file"
    if stat.S_ISDIR(info.st_mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(info.st_mode) else "other"


@contextmanager
def _opened_folder(root: Path, parts: Parts, private: Iterable[Path]) -> Iterator[int]:
    """A descriptor of the folder that these names lead to, open until the block ends. Raises CallRefused.

    None of the folders may be `private`; `root` may be inside a private one, as the engine may have put it there.
    """
    try:
        current = os.open(root, _ROOT)
    except OSError as error:
        if error.errno not in _SCRIPTS_FAULT:
            raise
        raise CallRefused(f"the script's own folder cannot be opened ({_SCRIPTS_FAULT[error.errno]})") from None
    try:
        for depth, name in enumerate(parts, start=1):
            with _refusals(parts[:depth], folder=current):
                below = os.open(name, _FOLDER, dir_fd=current)
            os.close(current)
            current = below
            info = os.fstat(current)
            if any(_is_same(path, info) for path in private):
                raise CallDenied(f"{_as_text(parts[:depth])} is a folder of the engine's own, which no script may read")
        yield current
    finally:
        os.close(current)


# Errors that the script's path, or the content of its folder, can cause. Any other is the host's (a disk, no
# descriptors left) and is logged as ours.
_SCRIPTS_FAULT = {
    errno.ENOENT: "no such file or directory",
    errno.ENOTDIR: "not a directory",
    errno.ELOOP: "a symbolic link, and links are not followed",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENAMETOOLONG: "a name is too long",
    errno.ENXIO: "not a regular file",  # a socket, or a device without a driver, in a file's place
}


_WHY: dict[str, Why] = {_SCRIPTS_FAULT[errno.ELOOP]: "link", _SCRIPTS_FAULT[errno.ENXIO]: "kind"}


@contextmanager
def _refusals(parts: Parts, *, folder: int | None = None) -> Iterator[None]:
    """Turn OSError at these names into CallRefused. With `folder`, the last name was opened as a folder in it."""
    try:
        yield
    except OSError as error:
        why = _SCRIPTS_FAULT.get(error.errno or 0)
        if why is None:
            raise
        if error.errno == errno.ENOTDIR and folder is not None and _is_link(folder, parts[-1]):
            why = _SCRIPTS_FAULT[errno.ELOOP]
        raise FileRefused(f"{_as_text(parts)}: {why}", _WHY.get(why, "missing")) from None


def _is_link(folder: int, name: bytes) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:  # removed meanwhile; only the wording of an error depends on it
        return False


_NOT_A_FILE = {
    "directory": "a directory, which fs.list lists",
    "symlink": _SCRIPTS_FAULT[errno.ELOOP],
    "other": "not a regular file",
}


def _require_file(info: os.stat_result, parts: Parts) -> None:
    kind = _kind(info)
    if kind != "file":
        raise FileRefused(f"{_as_text(parts)}: {_NOT_A_FILE[kind]}", "link" if kind == "symlink" else "kind")


def _too_large(parts: Parts, size: str, bound: int, set_by: str) -> FileRefused:
    return FileRefused(f"{_as_text(parts)} has {size} bytes; the limit is {bound} ({set_by})", "size")


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _as_text(parts: Parts) -> str:
    """A path for an error: quoted, cut if it is long, with bytes that are not UTF-8 as escapes."""
    text = b"/".join(parts).decode(errors="surrogateescape") or "."
    return repr(text if len(text) <= 128 else f"{text[:127]}…").replace("\\udc", "\\x")


FAMILY = Family.plain(lambda host: functions(host.private))

"""Documents from the files below a folder."""

import errno
import os
import stat
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from knowledge.connectors import ConnectorError, Found, Item, Skipped, Unchanged, Unreadable
from knowledge.extraction import TEXT_ONLY, Extracted, Extractor
from knowledge.textfiles import DEFAULT_INCLUDE, DEFAULT_MAX_BYTES, Globs, GlobStyle, text_of, too_large
from knowledge.times import from_timestamp
from storage.metering import in_thread

# A file that changed this shortly before the scan may change again with the same times: kernels stamp files by a coarse
# clock (and some filesystems by whole seconds). The version of such a file is not trusted.
_SETTLED_NS = 3_000_000_000
# A walk is cut into slices of so long, between which a sync can rest, and paths of files that did not change are given
# this many at once.
_SLICE_S = 0.02
_SAME_AT_ONCE = 500


class FilesystemConnector:
    """Files below `root` whose path, relative to it, matches an include pattern and no exclude pattern.

    Patterns are those of .gitignore; `!` in an exclude negates an earlier one, the defaults included. With `glob_style`
    "ctx" they are those of context-harness (`knowledge.globs`), and the default excludes stay. A source_id is the
    relative path with `/`. Links are skipped unless `follow_symlinks` is set, and then may lead out of the root.
    With `url_prefix` a document's source_url is the prefix and its path; without it, None: a `file://` URL would show
    clients paths of the host.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        include_globs: Sequence[str] = DEFAULT_INCLUDE,
        exclude_globs: Sequence[str] = (),
        follow_symlinks: bool = False,
        max_extract_bytes: int = DEFAULT_MAX_BYTES,
        url_prefix: str | None = None,
        glob_style: GlobStyle = "gitignore",
        extractor: Extractor = TEXT_ONLY,
    ) -> None:
        """Raises ValueError for an invalid pattern."""
        self._extractor = extractor
        self._root = Path(root)
        self._globs = Globs(include_globs, exclude_globs, glob_style)
        self._follow = follow_symlinks
        self._max_bytes = max_extract_bytes
        self._url_prefix = url_prefix
        self._known: Mapping[str, str] = {}
        self._timed = True

    def compare(self, versions: Mapping[str, str]) -> None:
        """The next scan names files of these versions by their path alone, and all others without their times."""
        self._known, self._timed = versions, False

    async def scan(self) -> AsyncIterator[Found | Unchanged | Skipped]:
        """Every matching file; sorted by path, without `compare`."""
        walk = self._walk()
        # Abandoned when cancelled: listing changes nothing, and a network filesystem may be slow.
        while entries := await in_thread(_slice, walk, abandon_on_cancel=True):
            for entry in entries:
                yield entry

    async def read(self, found: Found) -> Item:
        """One file's text. Raises Unreadable when it is gone, too large, has no text, or is no regular file."""
        text, info = await in_thread(self._read, found.source_id, abandon_on_cancel=True)
        if isinstance(text, bytes):
            text = await self._extractor.extract(found.source_id, text)
        changed = from_timestamp(info.st_mtime)
        return Item(
            body=text.body,
            title=text.title,
            source_url=None if self._url_prefix is None else self._url_prefix + quote(found.source_id),
            created_at=changed,
            updated_at=changed,
            content_type=text.content_type,
            pages=text.pages,
        )

    def trouble(self) -> str | None:
        """Why its root cannot be listed, or None."""
        try:
            self._root_there()
        except ConnectorError as error:
            return str(error)
        return None if os.access(self._root, os.R_OK | os.X_OK) else "its root folder cannot be read: Permission denied"

    def _root_there(self) -> os.stat_result:
        try:
            root = os.stat(self._root)
        except OSError as error:
            raise ConnectorError(f"its root folder cannot be reached: {error.strerror}") from error
        if not stat.S_ISDIR(root.st_mode):
            raise ConnectorError("its root is not a folder")
        return root

    def _walk(self) -> Iterator[Found | Unchanged | Skipped]:
        root = self._root_there()
        yield from self._walk_folder("", ((root.st_dev, root.st_ino),))

    def _walk_folder(self, prefix: str, above: tuple[tuple[int, int], ...]) -> Iterator[Found | Unchanged | Skipped]:
        """The items of one folder and below. `above` are its parent folders: a link to one of them is a loop."""
        try:
            with os.scandir(self._root / prefix) as listing:
                entries = list(listing)
        except OSError as error:
            if not prefix:
                raise ConnectorError(f"its root folder cannot be read: {error.strerror}") from error
            if error.errno != errno.ENOENT:  # else removed since its parent was listed
                yield Skipped(source_id=_shown(prefix), reason=f"cannot be listed: {error.strerror}", below=True)
            return
        if not self._known:
            entries.sort(key=_order)
        entries.reverse()
        settled_ns = time.time_ns() - _SETTLED_NS
        # Of 100,000 files that did not change, each statement here is a hundredth of the time.
        known, follow, largest, taken = self._known, self._follow, self._max_bytes, self._globs.taken_in(prefix)
        same: list[str] = []
        while entries:
            entry = entries.pop()  # with what it knows of its file, half a kilobyte
            path = prefix + entry.name
            try:
                if entry.is_symlink() and not follow:
                    continue
                if entry.is_dir():
                    yield from self._below(path, entry.stat(), above)
                elif taken(entry.name):
                    info = entry.stat()
                    if info.st_size <= largest and known.get(path, "") == (_version(info, settled_ns) or None):
                        same.append(path)
                        if len(same) == _SAME_AT_ONCE:
                            yield Unchanged(same)
                            same = []
                    elif stat.S_ISREG(info.st_mode):
                        yield self._found(path, info, settled_ns)
            except FileNotFoundError:
                continue  # removed since it was listed, or a link to nothing
            except OSError as error:
                yield Skipped(source_id=_shown(path), reason=f"cannot be reached: {error.strerror}")
        if same:
            yield Unchanged(same)

    def _below(
        self, path: str, info: os.stat_result, above: tuple[tuple[int, int], ...]
    ) -> Iterator[Found | Unchanged | Skipped]:
        """What is in a folder of a folder."""
        identity = (info.st_dev, info.st_ino)
        if identity not in above and not self._globs.excludes(path + "/"):
            yield from self._walk_folder(path + "/", (*above, identity))

    def _found(self, path: str, info: os.stat_result, settled_ns: int) -> Found | Skipped:
        if _shown(path) != path:
            return Skipped(source_id=_shown(path), reason="its name is not UTF-8")
        if info.st_size > self._max_bytes:
            return Skipped(source_id=path, reason=too_large(info.st_size, self._max_bytes))
        changed = from_timestamp(info.st_mtime) if self._timed else None
        return Found(source_id=path, version=_version(info, settled_ns), updated_at=changed)

    def _read(self, source_id: str) -> tuple[Extracted | bytes, os.stat_result]:
        """A file of text, or the bytes of one that the extractor takes."""
        try:
            data, info = self._read_bytes(source_id)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise Unreadable("became a link or moved while it was read") from error
            raise Unreadable(f"cannot be read: {error.strerror}") from error
        if len(data) > self._max_bytes:
            raise Unreadable(too_large(max(len(data), info.st_size), self._max_bytes))
        return (data if self._extractor.takes(source_id, data) else text_of(source_id, data)), info

    def _read_bytes(self, source_id: str) -> tuple[bytes, os.stat_result]:
        """The content, at most one byte more than the limit, and the file's state before it was read."""
        with open(self._open(source_id), "rb") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise Unreadable("not a regular file any more")
            return file.read(self._max_bytes + 1), info

    def _open(self, source_id: str) -> int:
        # Step by step from the root, refusing links: a process that can write below the root could otherwise swap a
        # folder for a link between the scan and now. O_NONBLOCK: a pipe put in a file's place must not block us.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        if self._follow:
            return os.open(self._root / source_id, flags)
        *folders, name = source_id.split("/")
        folder = os.open(self._root, flags | os.O_DIRECTORY)
        try:
            for part in folders:
                inner = os.open(part, flags | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
                os.close(folder)
                folder = inner
            return os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
        finally:
            os.close(folder)


def _slice(walk: Iterator[Found | Unchanged | Skipped]) -> list[Found | Unchanged | Skipped]:
    """The next entries, of some milliseconds; none at the end."""
    until_s = time.monotonic() + _SLICE_S
    entries = []
    for entry in walk:
        entries.append(entry)
        if time.monotonic() > until_s:
            break
    return entries


def _order(entry: os.DirEntry[str]) -> str:
    """What sorts the entries of a folder as the paths of the files below it."""
    try:
        return entry.name + "/" if entry.is_dir() else entry.name
    except OSError:  # of a link that cannot be followed
        return entry.name


def _shown(path: str) -> str:
    """The path as text; bytes that are not UTF-8 as `\\xNN`."""
    return path if path.isascii() else os.fsencode(path).decode("utf-8", "backslashreplace")


def _version(info: os.stat_result, settled_ns: int) -> str:
    """The version of a file; empty for one that changed after the time."""
    if info.st_mtime_ns > settled_ns or info.st_ctime_ns > settled_ns:
        return ""
    return f"{info.st_mtime_ns}.{info.st_ctime_ns}.{info.st_size}.{info.st_ino}"


CONNECTOR = FilesystemConnector

"""Documents from the text files below a folder."""

import errno
import os
import re
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import quote

import trio
from markdown_it import MarkdownIt
from pathspec import GitIgnoreSpec

from knowledge.connectors import ConnectorError, Found, Item, Skipped, Unreadable
from knowledge.globs import compile_glob
from knowledge.times import from_timestamp

DEFAULT_INCLUDE = ("**/*.md", "**/*.txt")
DEFAULT_EXCLUDE = (".git/", "node_modules/", "target/")
# Of the back ends of `pathspec`, the one in Python: that in RE2 is chosen where RE2 is installed, and raises
# UnicodeEncodeError for names that are not UTF-8.
_BACKEND: Literal["simple"] = "simple"

# 50 MB, context-harness's default: far above any text that a person wrote, below what a chunker should have to cut.
DEFAULT_MAX_BYTES = 50_000_000

# A title is searched for in this much of a text; parsing more of a large file would cost seconds and find none better.
_TITLE_CHARACTERS = 64 * 1024

# A file that changed this shortly before the scan may change again with the same times: kernels stamp files by a coarse
# clock (and some filesystems by whole seconds). The version of such a file is not trusted.
_SETTLED_NS = 3_000_000_000

_CONTENT_TYPES = {".md": "text/markdown", ".markdown": "text/markdown"}

_FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(?P<fields>.*?\n)(?:---|\.\.\.)[ \t]*(?:\r?\n|$)", re.DOTALL)
_TITLE_FIELD = re.compile(r"title[ \t]*:[ \t]*(?P<title>\S.*)")

_MARKDOWN = MarkdownIt("commonmark")


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
        glob_style: Literal["gitignore", "ctx"] = "gitignore",
    ) -> None:
        """Raises ValueError for an invalid pattern."""
        self._root = Path(root)
        try:
            if glob_style == "ctx":
                self._include, excluded = _matcher_of_ctx(include_globs), _matcher_of_ctx(exclude_globs)
                default = GitIgnoreSpec.from_lines(DEFAULT_EXCLUDE, backend=_BACKEND).match_file
                self._exclude: Callable[[str], bool] = lambda path: default(path) or excluded(path)
            else:
                self._include = GitIgnoreSpec.from_lines(include_globs, backend=_BACKEND).match_file
                self._exclude = GitIgnoreSpec.from_lines(
                    [*DEFAULT_EXCLUDE, *exclude_globs], backend=_BACKEND
                ).match_file
        except ValueError as error:
            raise ValueError(f"a glob is not valid: {error}") from None
        self._follow = follow_symlinks
        self._max_bytes = max_extract_bytes
        self._url_prefix = url_prefix

    async def scan(self) -> AsyncIterator[Found | Skipped]:
        """Every matching file, sorted by path."""
        # Abandoned when cancelled: listing changes nothing, and a network filesystem may be slow.
        entries = await trio.to_thread.run_sync(lambda: list(self._walk()), abandon_on_cancel=True)
        for entry in sorted(entries, key=lambda entry: entry.source_id):
            yield entry

    async def read(self, found: Found) -> Item:
        """One file's text. Raises Unreadable when it is gone, too large, not UTF-8, or not a regular file any more."""
        return await trio.to_thread.run_sync(self._read, found.source_id, abandon_on_cancel=True)

    def _walk(self) -> Iterator[Found | Skipped]:
        try:
            root = os.stat(self._root)
        except OSError as error:
            raise ConnectorError(f"its root folder cannot be reached: {error.strerror}") from error
        if not stat.S_ISDIR(root.st_mode):
            raise ConnectorError("its root is not a folder")
        yield from self._walk_folder("", ((root.st_dev, root.st_ino),))

    def _walk_folder(self, prefix: str, above: tuple[tuple[int, int], ...]) -> Iterator[Found | Skipped]:
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
        for entry in entries:
            path = prefix + entry.name
            if entry.is_symlink() and not self._follow:
                continue
            try:
                yield from self._entry(path, entry.stat(follow_symlinks=self._follow), above)
            except FileNotFoundError:
                continue  # removed since it was listed, or a link to nothing
            except OSError as error:
                yield Skipped(source_id=_shown(path), reason=f"cannot be reached: {error.strerror}")

    def _entry(self, path: str, info: os.stat_result, above: tuple[tuple[int, int], ...]) -> Iterator[Found | Skipped]:
        if stat.S_ISDIR(info.st_mode):
            identity = (info.st_dev, info.st_ino)
            if identity not in above and not self._exclude(path + "/"):
                yield from self._walk_folder(path + "/", (*above, identity))
        elif stat.S_ISREG(info.st_mode) and self._include(path) and not self._exclude(path):
            yield self._found(path, info)

    def _found(self, path: str, info: os.stat_result) -> Found | Skipped:
        if _shown(path) != path:
            return Skipped(source_id=_shown(path), reason="its name is not UTF-8")
        if info.st_size > self._max_bytes:
            return Skipped(source_id=path, reason=self._too_large(info.st_size))
        return Found(source_id=path, version=_version(info), updated_at=from_timestamp(info.st_mtime))

    def _too_large(self, size: int) -> str:
        return f"too large: {size} bytes; max_extract_bytes is {self._max_bytes}"

    def _read(self, source_id: str) -> Item:
        try:
            data, info = self._read_bytes(source_id)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise Unreadable("became a link or moved while it was read") from error
            raise Unreadable(f"cannot be read: {error.strerror}") from error
        if len(data) > self._max_bytes:
            raise Unreadable(self._too_large(max(len(data), info.st_size)))
        try:
            body = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise Unreadable(f"not UTF-8 (byte {error.start})") from error
        path = PurePosixPath(source_id)
        content_type = _CONTENT_TYPES.get(path.suffix.lower(), "text/plain")
        changed = from_timestamp(info.st_mtime)
        return Item(
            body=body,
            title=(markdown_title(body) if content_type == "text/markdown" else None) or path.name,
            source_url=None if self._url_prefix is None else self._url_prefix + quote(source_id),
            created_at=changed,
            updated_at=changed,
            content_type=content_type,
        )

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


def _matcher_of_ctx(globs: Sequence[str]) -> Callable[[str], bool]:
    patterns = [compile_glob(glob) for glob in globs]
    return lambda path: any(pattern.fullmatch(path) for pattern in patterns)


def markdown_title(text: str) -> str | None:
    """The front matter's `title`, else the text of the first level-one heading, both near the beginning only."""
    head = text[:_TITLE_CHARACTERS]
    if front := _FRONT_MATTER.match(head):
        for line in front["fields"].splitlines():
            if field := _TITLE_FIELD.fullmatch(line.rstrip()):
                title = field["title"].strip()
                return (
                    title[1:-1] if len(title) > 1 and title[0] == title[-1] and title[0] in "\"'" else title
                ) or None
        head = head[front.end() :]
    tokens = _MARKDOWN.parse(head)
    for index, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag == "h1":
            inline = tokens[index + 1].children or []
            title = " ".join("".join(child.content or " " * (child.type == "softbreak") for child in inline).split())
            if title:
                return title
    return None


def _shown(path: str) -> str:
    """The path as text; bytes that are not UTF-8 as `\\xNN`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _version(info: os.stat_result) -> str:
    changed = max(info.st_mtime_ns, info.st_ctime_ns)
    if changed > time.time_ns() - _SETTLED_NS:
        return ""
    return f"{info.st_mtime_ns}.{info.st_ctime_ns}.{info.st_size}.{info.st_ino}"


CONNECTOR = FilesystemConnector

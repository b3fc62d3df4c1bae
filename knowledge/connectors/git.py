"""Documents from the files of a branch of a git repository.

The git program runs as a child in a process group of its own, which is killed when the sync is cancelled. The clone is
bare: without a work tree no filter, hook or link of the repository has an effect here. It holds every commit and tree,
for the author and time of each file, and the texts of the newest commit up to `max_extract_bytes`.
"""

import base64
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import trio

from knowledge.connectors import ConnectorError, Found, Item, Skipped, Unreadable
from knowledge.extraction import TEXT_ONLY, Extractor
from knowledge.textfiles import DEFAULT_INCLUDE, DEFAULT_MAX_BYTES, Globs, GlobStyle, text_of, too_large
from knowledge.times import from_timestamp
from storage.metering import has_ended, in_thread, reaped

# Bound on the files of a commit: trees that contain one another can list 10**10 paths from a few kilobytes.
_MAX_FILES = 1_000_000
_ERRORS_KEPT = 64 * 1024
_LOCK_POLL_S = 0.1
_AUTHOR_CHARACTERS = 200

# What of the engine's environment git may see: where programs are, proxies, certificates, the agent of ssh.
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_INHERITED = (
    *("PATH", "HOME", "USER", "TMPDIR", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *_PROXIES,
    *(name.upper() for name in _PROXIES),
)
_ENVIRONMENT = {
    "LC_ALL": "C",  # messages are matched below
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "/bin/false",
    "SSH_ASKPASS": "/bin/false",
    "GIT_ALLOW_PROTOCOL": "https:http:ssh:file",
    "GIT_PROTOCOL_FROM_USER": "0",
    "GIT_LITERAL_PATHSPECS": "1",
}
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "transfer.fsckObjects=true",
    "fetch.writeCommitGraph=false",
    "gc.autoDetach=false",
    # A header with a token would go to the host that a redirect names.
    "http.followRedirects=false",
    # A server that sends less than 1 kB/s for a minute has stopped.
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=60",
)
_SSH = ("ssh", "-oBatchMode=yes", "-oConnectTimeout=30", "-oServerAliveInterval=20", "-oServerAliveCountMax=3")

_HEAD = "refs/engine/head"
_SCP = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_.+~]+[A-Za-z0-9_.+~-]*)@)?(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*):(?P<path>[^/:].*|/[^/].*)"
)
_BAD_BRANCH = re.compile(r"^[-/.]|[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(/|$)|[/.]$|^@$")
_SYMLINK, _SUBMODULE = "120000", "160000"
_LFS = b"version https://git-lfs"
_LFS_BYTES = 1024  # pointers are some 130 bytes

# What git says of a repository that cannot be fetched, and what we say. First match wins.
_FAILURES = (
    (r"couldn't find remote ref", "it has no branch {branch!r}"),
    (
        r"Authentication failed|could not read (Username|Password)|terminal prompts disabled|Permission denied"
        r"|error: 40[13]\b|Host key verification failed",
        "its server refuses access; check `token` or `ssh_key`",
    ),
    (r"unable to update url base|error: 30\d\b|redirect",
     "its server redirects; give the final address, with its .git"),
    (r"Could not resolve|Failed to connect|Couldn't connect|Connection (refused|reset|timed out)|No route to host"
     r"|Operation (timed out|too slow)|unexpected disconnect|hung up unexpectedly|early EOF|RPC failed"
     r"|error: 5\d\d\b|SSL|certificate",
     "its server cannot be reached, or ended the connection"),
    (r"dubious ownership", "its folder belongs to another user, and git refuses to read it"),
    (r"not found|does not exist|does not appear to be a git repository|error: 4\d\d\b",
     "there is no repository at its address"),
    (r"fsck error|error in (object|tag|tree|blob|commit)|error: object [0-9a-f]+:",
     "its history has objects that git refuses as malformed"),
    (r"No space left|Disk quota", "there is no room for its clone"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Address:
    """Where a repository is: for git, for readers (without a password), and on the web."""

    fetch: str
    shown: str
    web: str | None  # of a file; `{commit}` and `{path}` are replaced
    user: str | None = None
    password: str | None = field(default=None, repr=False)


class GitConnector:
    """Files below `root` of a branch whose path, relative to `root`, the globs take. A source_id is that path.

    With `shallow`, texts of old versions are not downloaded; without, they are. A document's time and author are those
    of the commit that gave the file its content; its source_url is its page there, on hosts whose pages are known.
    `token` (and `username`) go to an HTTP server in a header, `ssh_key` is the path of a private key. `cache_dir` holds
    the clones; sources with equal addresses share one.
    """

    def __init__(
        self,
        url: str,
        *,
        cache_dir: str | os.PathLike[str],
        branch: str = "main",
        root: str = ".",
        shallow: bool = True,
        include_globs: Sequence[str] = DEFAULT_INCLUDE,
        exclude_globs: Sequence[str] = (),
        glob_style: GlobStyle = "gitignore",
        max_extract_bytes: int = DEFAULT_MAX_BYTES,
        token: str | None = None,
        username: str = "x-access-token",
        ssh_key: str | os.PathLike[str] | None = None,
        extractor: Extractor = TEXT_ONLY,
    ) -> None:
        """Raises ValueError for an address, branch, root, token or pattern that cannot be used."""
        self._extractor = extractor
        if _BAD_BRANCH.search(branch):
            raise ValueError(f"branch {branch!r} is not a name of a branch")
        self._address = parse_address(url)
        self._globs = Globs(include_globs, exclude_globs, glob_style)
        self._root = _folder(root)
        self._max_bytes = max_extract_bytes
        secret = token or self._address.password
        user = username if token else self._address.user or username
        key = hashlib.sha256(f"{self._address.fetch}\n{branch}\n{shallow}".encode()).hexdigest()[:12]
        self._ssh_key = ssh_key
        self._clone = _Clone(
            folder=Path(cache_dir) / key,
            address=self._address.fetch,
            branch=branch,
            shallow=shallow,
            max_bytes=max_extract_bytes,
            environment=_environment(self._address.fetch, user, secret, ssh_key),
        )

    def trouble(self) -> str | None:
        """What is missing on this machine, or None: no repository is asked."""
        if shutil.which("git") is None:
            return "the program git is not installed"
        if self._ssh_key is not None and not os.access(self._ssh_key, os.R_OK):
            return "its ssh_key cannot be read"
        address = self._clone.address
        if address.startswith("file://") and not os.path.isdir(unquote(address.removeprefix("file://"))):
            return "there is no repository at its address"
        return None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["_Snapshot"]:
        """The files of the branch's newest commit. Raises ConnectorError when the repository cannot be fetched."""
        async with AsyncExitStack() as stack:
            async with self._clone.locked():
                commit = await self._clone.update()
                files, skipped = await self._list(commit)
                blobs = await stack.enter_async_context(self._clone.blobs())
            yield _Snapshot(self._address, self._root, files, skipped, blobs, self._extractor)

    async def _list(self, commit: str) -> tuple[dict[str, "_File"], list[Skipped]]:
        listed: dict[str, str] = {}
        skipped: list[Skipped] = []
        for mode, oid, raw in await self._clone.tree(commit, self._root):
            path = raw.decode("utf-8", "backslashreplace")
            if mode == _SUBMODULE:
                if not self._globs.excludes(path + "/"):
                    skipped.append(Skipped(source_id=path + "/", reason="a submodule; add it as a source", below=True))
            elif not self._globs.take(path):
                continue
            elif path.encode() != raw:
                skipped.append(Skipped(source_id=path, reason="its name is not UTF-8"))
            elif mode == _SYMLINK:
                skipped.append(Skipped(source_id=path, reason="a link"))
            else:
                listed[path] = oid
        sizes = await self._clone.sizes(commit, set(listed.values()))
        kept = {}
        for path, oid in listed.items():
            size = sizes.get(oid)
            if size is None:
                reason = f"too large: not downloaded; max_extract_bytes is {self._max_bytes}"
                skipped.append(Skipped(source_id=path, reason=reason))
            elif size > self._max_bytes:
                skipped.append(Skipped(source_id=path, reason=too_large(size, self._max_bytes)))
            else:
                kept[path] = oid
        changes = await self._clone.changes(commit, self._root, kept)
        return {path: _File(oid, changes[path]) for path, oid in kept.items()}, skipped


@dataclass(frozen=True, slots=True)
class _Change:
    """The commit that gave a file its content."""

    commit: str
    time: int
    author: str


@dataclass(frozen=True, slots=True)
class _File:
    oid: str
    change: _Change


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The files of one commit: a Connector."""

    address: Address
    root: str
    files: Mapping[str, _File]
    skipped: Sequence[Skipped]
    blobs: "_Blobs"
    extractor: Extractor

    async def scan(self) -> AsyncIterator[Found | Skipped]:
        """Every file that the globs take, sorted by path."""
        await trio.lowlevel.checkpoint()
        # What is stored beside the content and the commit; a source that moves is written again.
        mark = hashlib.sha256(f"{self.address.shown}\n{self.address.web}\n{self.root}".encode()).hexdigest()[:8]
        for path, file in sorted(self.files.items()):
            version = f"{file.oid}.{file.change.commit}.{mark}"
            yield Found(source_id=path, version=version, updated_at=from_timestamp(file.change.time))
        for entry in self.skipped:
            yield entry

    async def read(self, found: Found) -> Item:
        """One file's text. Raises Unreadable when it has none, or is a pointer."""
        path = found.source_id
        file = self.files[path]
        data = await self.blobs.read(file.oid)
        if len(data) <= _LFS_BYTES and data.startswith(_LFS):
            raise Unreadable("a pointer of Git LFS; the content is not in the repository")
        text = await self.extractor.extract(path, data) if self.extractor.takes(path, data) else text_of(path, data)
        change = file.change
        place = f"{self.root}/{path}" if self.root else path
        web = self.address.web
        changed = from_timestamp(change.time)
        return Item(
            body=text.body,
            title=text.title,
            author=change.author or None,
            source_url=None if web is None else web.format(commit=change.commit, path=quote(place)),
            created_at=changed,
            updated_at=changed,
            content_type=text.content_type,
            pages=text.pages,
            metadata={"git_sha": change.commit, "repo_url": self.address.shown},
        )


# ---- the clone ----------------------------------------------------------------------------------------------------


class _Damaged(Exception):
    """The clone cannot be used; a new one could."""


@dataclass(slots=True)
class _Clone:
    """A bare clone in a folder, shared by processes under a lock.

    `clone` is git's. Its config lets git download what is missing when it is read, also what we left out as too large:
    `view` has the same objects and no such config, and everything is read through it.
    """

    folder: Path
    address: str
    branch: str
    shallow: bool
    max_bytes: int
    environment: Mapping[str, str] = field(repr=False)
    lock: int = -1
    complete: bool = False  # all of the newest commit was asked for: what is not here is too large

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Hold the clone. Children inherit the lock: where we are killed, it is held until the last of them ended."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            lock = os.open(self.folder / "lock", flags, 0o600)
        except OSError as error:
            raise ConnectorError(f"its cache_dir cannot be written: {error.strerror}") from error
        try:
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                await trio.sleep(_LOCK_POLL_S)
            self.lock = lock
            yield
        finally:
            self.lock = -1
            os.close(lock)

    async def update(self) -> str:
        """Fetch what is new, and return the branch's newest commit. A clone that is damaged is made again, once."""
        with _disk_errors():
            if not (self.folder / "view").is_dir():
                await self._create()
            try:
                return await self._fetch()
            except _Damaged:
                await self._create()
        try:
            return await self._fetch()
        except _Damaged:
            raise ConnectorError("git cannot fetch it") from None

    async def _create(self) -> None:
        await in_thread(self._remove)
        for name in ("clone", "view"):  # the last one made is the mark of a complete one
            making = self.folder / f"{name}.making"
            await self._git("init", "--quiet", "--bare", "--template=", "--", str(making))
            if name == "clone":
                await self._git("remote", "add", "origin", self.address, repository=making)
            making.rename(self.folder / name)

    def _remove(self) -> None:
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()

    async def _fetch(self) -> str:
        clone = self.folder / "clone"
        # Left behind by a git that was killed; we hold the lock, so none is running.
        for pattern in ("*.lock", "refs/**/*.lock", "objects/**/tmp_*"):
            for path in clone.glob(pattern):
                path.unlink(missing_ok=True)
        small, none = f"--filter=blob:limit={self.max_bytes + 1}", "--filter=blob:none"
        first = await self._newest()
        snapshot = None
        if self.shallow and not first:
            await self._download("--depth=1", small)
            snapshot = await self._newest()
        elif not (clone / "shallow").exists():
            await self._download(small)
        if (clone / "shallow").exists():
            await self._download("--unshallow", none)
        commit = await self._newest()
        if not commit:
            raise _Damaged
        self.complete = snapshot == commit or not (self.shallow or first)
        await self._git("gc", "--auto", "--quiet", repository=clone)
        return commit

    async def _newest(self) -> str:
        _, out, _ = await self._run("rev-parse", "--verify", "--quiet", _HEAD, repository=self.folder / "clone")
        return out.decode().strip()

    async def _download(self, *options: str, repository: Path | None = None, objects: Path | None = None) -> None:
        args = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--force")
        target = ("origin", f"+refs/heads/{self.branch}:{_HEAD}")
        code, _, errors = await self._run(
            *args, "--no-auto-maintenance", *options, "--", *target,
            repository=repository or self.folder / "clone", objects=objects,
        )  # fmt: skip
        if code:
            for pattern, meaning in _FAILURES:
                if re.search(pattern, errors, re.IGNORECASE):
                    raise ConnectorError(meaning.format(branch=self.branch))
            raise _Damaged

    async def tree(self, commit: str, root: str) -> list[tuple[str, str, bytes]]:
        """The mode, object and path of each file below `root`. Raises ConnectorError when there is no such folder."""
        top = f"{commit}:{root}" if root else f"{commit}^{{tree}}"
        code, out, _ = await self._run("cat-file", "-t", top, repository=self.folder / "view", objects=self._objects)
        if code or out.strip() != b"tree":
            raise ConnectorError(f"its branch {self.branch!r} has no folder {root!r}")
        found = []
        async with self._reading("ls-tree", "-r", "-z", top) as tokens:
            async for token in tokens:
                head, _, path = token.partition(b"\t")
                mode, _, oid = head.decode().split(" ")
                found.append((mode, oid, path))
                if len(found) > _MAX_FILES:
                    raise ConnectorError(f"it has more than {_MAX_FILES:,} files; give a `root` below the top")
        return found

    async def sizes(self, commit: str, oids: set[str]) -> dict[str, int]:
        """The size of each of these objects that is here; those that are not are too large.

        Others may be missing too: a text that returns to an old version, which the server believes to be here. The
        newest commit is then downloaded again, as if nothing of it were here. `left` lists what is known as too large.
        """
        found = await self._sizes(oids)
        file = self.folder / "left"
        with _disk_errors():
            bound, *left = file.read_text().split() if file.exists() else [""]
            known = set(left) if bound == str(self.max_bytes) else set()
            missing = oids - found.keys()
            if missing <= known:
                return found
            if not self.complete:
                self.complete = await self._download_again(commit)
                found = await self._sizes(oids)
            if self.complete:
                file.write_text("\n".join([str(self.max_bytes), *sorted(known | (oids - found.keys()))]))
        return found

    async def _download_again(self, commit: str) -> bool:
        """Download the newest commit in whole. Returns whether it still is this one."""
        again = self.folder / "again"
        await in_thread(lambda: shutil.rmtree(again, ignore_errors=True))
        try:
            await self._git("init", "--quiet", "--bare", "--template=", "--", str(again))
            await self._git("remote", "add", "origin", self.address, repository=again)
            limit = f"--filter=blob:limit={self.max_bytes + 1}"
            await self._download("--depth=1", limit, repository=again, objects=self._objects)
            _, out, _ = await self._run("rev-parse", "--verify", "--quiet", _HEAD, repository=again)
        except _Damaged:
            raise ConnectorError("git cannot fetch it") from None
        shutil.rmtree(again, ignore_errors=True)
        return out.decode().strip() == commit

    async def _sizes(self, oids: set[str]) -> dict[str, int]:
        text = "".join(f"{oid}\n" for oid in oids).encode()
        args = ("cat-file", "--batch-check", "--buffer")
        _, out, _ = await self._run(*args, repository=self.folder / "view", objects=self._objects, stdin=text)
        rows = (line.split(" ") for line in out.decode().splitlines())
        return {row[0]: int(row[2]) for row in rows if len(row) == 3}

    async def changes(self, commit: str, root: str, files: Mapping[str, str]) -> dict[str, _Change]:
        """The commit that gave each file its content, from one pass over the history, ended when all are known.

        Later passes read what is new only: what they found is kept in a file.
        """
        kept = self.folder / f"history-{hashlib.sha256(root.encode()).hexdigest()[:12]}.json"
        before, known = _history(kept)
        found: dict[str, _Change] = {}
        if before != commit:
            if before and await self._is_ancestor(before, commit):
                await self._attribute(found, files, root, f"{before}..{commit}")
            else:
                known = {}
        found = {path: change for path, (oid, change) in known.items() if files.get(path) == oid} | found
        if len(found) < len(files):
            missing = {path: oid for path, oid in files.items() if path not in found}
            await self._attribute(found, missing, root, commit)
        if len(found) < len(files):
            newest = await self._change(commit)
            found = dict.fromkeys(files, newest) | found
        with _disk_errors():
            _keep_history(kept, commit, files, found)
        return found

    async def _is_ancestor(self, before: str, commit: str) -> bool:
        args = ("merge-base", "--is-ancestor", before, commit)
        code, _, _ = await self._run(*args, repository=self.folder / "view", objects=self._objects)
        return code == 0

    async def _change(self, commit: str) -> _Change:
        found: dict[str, _Change] = {}
        async with self._reading("log", "-1", "-z", _FORMAT, commit) as tokens, aclosing(_changes(tokens)) as changes:
            async for change, _, _ in changes:
                found[""] = change
        return found.get("") or _Change(commit, 0, "")

    async def _attribute(self, found: dict[str, _Change], files: Mapping[str, str], root: str, commits: str) -> None:
        wanted = set(files)
        below = (root,) if root else ()
        cut = len(root) + 1 if root else 0
        # -c has a merge name the files that differ from all its parents: those are its own doing.
        args = ("log", "-z", "-c", "--raw", "--no-abbrev", "--no-renames", _FORMAT, commits, "--", *below)
        async with self._reading(*args) as tokens, aclosing(_changes(tokens)) as changes:
            async for change, path, oid in changes:
                name = path[cut:]
                if name in wanted and files[name] == oid:
                    found[name] = change
                    wanted.discard(name)
                if not wanted:
                    return

    @asynccontextmanager
    async def blobs(self) -> AsyncIterator["_Blobs"]:
        """A child that answers with the contents of objects, until the end."""
        args = ("cat-file", "--batch")
        async with self._child(args, self.folder / "view", self._objects, errors=False, locked=False) as process:
            yield _Blobs(process)

    # ---- children

    @property
    def _objects(self) -> Path:
        return self.folder / "clone" / "objects"

    async def _git(self, *args: str, repository: Path | None = None) -> None:
        """Run git where it cannot fail but for our disk."""
        code, _, _ = await self._run(*args, repository=repository)
        if code:
            raise _Damaged

    async def _run(
        self, *args: str, repository: Path | None = None, objects: Path | None = None, stdin: bytes = b""
    ) -> tuple[int, bytes, str]:
        """Run git to its end: its status, its output, the end of its errors."""
        out, errors = bytearray(), bytearray()

        async def feed(pipe: trio.abc.SendStream) -> None:
            with suppress(trio.BrokenResourceError):
                await pipe.send_all(stdin)
            await pipe.aclose()

        async def collect(pipe: trio.abc.ReceiveStream, into: bytearray, bound: int | None) -> None:
            async for data in pipe:
                into += data
                if bound is not None:
                    del into[:-bound]

        async with self._child(args, repository, objects) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(feed, process.stdin)
                nursery.start_soon(collect, process.stdout, out, None)
                nursery.start_soon(collect, process.stderr, errors, _ERRORS_KEPT)
            return await reaped(process), bytes(out), errors.decode(errors="replace")

    @asynccontextmanager
    async def _reading(self, *args: str) -> AsyncIterator[AsyncGenerator[bytes]]:
        """The texts between NUL bytes that git prints. Raises ConnectorError if it fails before we stop reading."""
        async with (
            self._child(args, self.folder / "view", self._objects, errors=False) as process,
            aclosing(_split(process)) as tokens,
        ):
            yield tokens

    @asynccontextmanager
    async def _child(
        self,
        args: Iterable[str],
        repository: Path | None,
        objects: Path | None = None,
        *,
        errors: bool = True,
        locked: bool = True,
    ) -> AsyncIterator[trio.Process]:
        """A git in a process group of its own; at the end of the block it is killed and reaped if it still runs."""
        environment = dict(self.environment)
        if repository is not None:
            environment["GIT_DIR"] = str(repository)
        if objects is not None:
            environment["GIT_OBJECT_DIRECTORY"] = str(objects)
        settings = [part for setting in _SETTINGS for part in ("-c", setting)]
        try:
            process = await trio.lowlevel.open_process(
                ["git", *settings, *args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if errors else subprocess.DEVNULL,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
                pass_fds=(self.lock,) if locked else (),
            )
        except FileNotFoundError as error:
            raise ConnectorError("the program git is not installed") from error
        except OSError as error:
            raise ConnectorError(f"the program git cannot be started: {error.strerror}") from error
        try:
            yield process
        finally:
            if not has_ended(process):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            with trio.CancelScope(shield=True):
                await reaped(process)
                for pipe in (process.stdin, process.stdout, process.stderr):
                    if pipe is not None:
                        await pipe.aclose()


class _Blobs:
    """The contents of objects, from one `cat-file --batch`."""

    def __init__(self, process: trio.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout
        self._buffer = bytearray()

    async def read(self, oid: str) -> bytes:
        try:
            await self._in.send_all(f"{oid}\n".encode())
            while (end := self._buffer.find(b"\n")) < 0:
                await self._more()
            header = self._buffer[:end].decode().split(" ")
            del self._buffer[: end + 1]
            if len(header) != 3 or header[1] != "blob":
                raise Unreadable("missing in the clone")
            size = int(header[2])
            while len(self._buffer) <= size:
                await self._more()
            data = bytes(self._buffer[:size])
            del self._buffer[: size + 1]
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise Unreadable("the clone cannot be read") from None
        return data

    async def _more(self) -> None:
        data = await self._out.receive_some()
        if not data:
            raise Unreadable("the clone cannot be read")
        self._buffer += data


async def _split(process: trio.Process) -> AsyncGenerator[bytes]:
    assert process.stdout is not None
    rest = b""
    async for data in process.stdout:
        *tokens, rest = (rest + data).split(b"\0")
        for token in tokens:
            yield token
    if rest.strip():
        yield rest
    if await reaped(process):
        raise ConnectorError("its clone cannot be read; remove its folder in cache_dir")


# ---- the history --------------------------------------------------------------------------------------------------

_FORMAT = "--format=tformat:%x01%H%x00%ct%x00%an"


async def _changes(tokens: AsyncGenerator[bytes]) -> AsyncGenerator[tuple[_Change, str, str]]:
    """A commit, a path and the object it has there, for all that `log -z --raw` in `_FORMAT` prints.

    Commits come with an empty path first. Texts are taken by their place, so that none can pass for another.
    """
    change = _Change("", 0, "")
    async for token in tokens:
        token = token.lstrip(b"\n")
        if token.startswith(b"\x01"):
            time, author = await anext(tokens), await anext(tokens)
            name = author.decode("utf-8", "replace")[:_AUTHOR_CHARACTERS]
            change = _Change(token[1:].decode(), int(time), name)
            yield change, "", ""
        elif token.startswith(b":"):
            path = await anext(tokens)
            yield change, path.decode("utf-8", "backslashreplace"), token.decode().split(" ")[-2]


def _history(file: Path) -> tuple[str, dict[str, tuple[str, _Change]]]:
    """The commit up to which the history was read, and by path the object and its commit; empty when in doubt."""
    try:
        kept = json.loads(file.read_bytes())
        changes = [_Change(str(commit), int(time), str(author)) for commit, time, author in kept["changes"]]
        files = {str(path): (str(oid), changes[at]) for path, (oid, at) in kept["files"].items()}
        return str(kept["commit"]), files
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return "", {}


def _keep_history(file: Path, commit: str, files: Mapping[str, str], found: Mapping[str, _Change]) -> None:
    places = {change: at for at, change in enumerate(dict.fromkeys(found.values()))}
    kept: dict[str, Any] = {
        "commit": commit,
        "changes": [[change.commit, change.time, change.author] for change in places],
        "files": {path: [oid, places[found[path]]] for path, oid in files.items()},
    }
    making = file.with_suffix(".making")
    making.write_text(json.dumps(kept), encoding="utf-8")
    making.replace(file)


# ---- addresses ----------------------------------------------------------------------------------------------------


def parse_address(url: str) -> Address:
    """The address of a repository. Raises ValueError, which says what is accepted, for any other text."""
    accepted = "use https://, ssh://, file:// or user@host:path"
    if url.startswith("-"):
        raise ValueError(f"url may not begin with '-'; {accepted}")
    if any(character <= " " or character == "\x7f" for character in url):
        raise ValueError("url holds a space or a control character")
    if re.match(r"[A-Za-z0-9+.-]*::", url):
        raise ValueError(f"url names a helper program ({url.partition('::')[0]}::), which is refused; {accepted}")
    if url.startswith("/"):
        return Address(fetch=f"file://{quote(url)}", shown=f"file://{quote(url)}", web=None)
    if "://" not in url:
        match = _SCP.fullmatch(url)
        if match is None:
            raise ValueError(f"url is not the address of a repository; {accepted}")
        return Address(fetch=url, shown=url, web=_web(f"https://{match['host']}", match["host"], match["path"]))
    scheme = url.partition("://")[0].lower()
    if scheme == "git":
        raise ValueError(f"url begins with git://, which is refused: nothing proves who answers; {accepted}")
    if scheme not in ("https", "http", "ssh", "file"):
        raise ValueError(f"url begins with {scheme}://, which is refused; {accepted}")
    parts = urlsplit(url)
    place, _ = parts.netloc, parts.port  # `port` raises ValueError
    login, at, host = place.rpartition("@")
    if host.startswith("-") or login.startswith("-") or (scheme == "ssh" and "%" in place):
        raise ValueError("url has a host or user that ssh would take for an option")
    if scheme == "file":
        return Address(fetch=url, shown=url, web=None)
    if not parts.hostname:
        raise ValueError(f"url has no host; {accepted}")
    if scheme == "ssh":
        web = _web(f"https://{parts.hostname}", parts.hostname, parts.path)
        return Address(fetch=url, shown=url, web=web)
    bare = parts._replace(netloc=host).geturl()
    user, colon, password = login.partition(":")
    if at and not colon:  # https://TOKEN@host/: the form of GitHub
        user, password = "", user
    web = _web(f"{scheme}://{host}", parts.hostname, parts.path)
    return Address(bare, bare, web, unquote(user) or None, unquote(password) or None)


def _web(base: str, host: str, path: str) -> str | None:
    """The address of a file's page at a commit, or None for a host whose pages are not known."""
    path = quote(unquote(path.strip("/").removesuffix(".git")))
    start = f"{base}/{path}".replace("{", "{{").replace("}", "}}")
    labels = host.lower().split(".")
    if "github" in labels:
        return start + "/blob/{commit}/{path}"
    if "gitlab" in labels:
        return start + "/-/blob/{commit}/{path}"
    if "bitbucket" in labels:
        return start + "/src/{commit}/{path}"
    if {"codeberg", "gitea", "forgejo"} & set(labels):
        return start + "/src/commit/{commit}/{path}"
    return None


def _folder(root: str) -> str:
    """A folder in the repository, without dots and slashes around it; the top is an empty text."""
    parts = [part for part in root.split("/") if part not in ("", ".")]
    if root.startswith("/") or ".." in parts or "\0" in root:
        raise ValueError(f"root {root!r} is not a folder inside the repository")
    return "/".join(parts)


def _environment(address: str, user: str, secret: str | None, ssh_key: str | os.PathLike[str] | None) -> dict[str, str]:
    """The whole environment of git. Secrets are here and nowhere else: command lines are visible to all users."""
    found = {name: os.environ[name] for name in _INHERITED if name in os.environ} | _ENVIRONMENT
    ssh = list(_SSH)
    if ssh_key is not None:
        ssh += ["-oIdentitiesOnly=yes", "-i", os.fspath(ssh_key)]
    found["GIT_SSH_COMMAND"] = shlex.join(ssh)
    if secret is not None and address.startswith(("http://", "https://")):
        if any(character < " " for character in user + secret):
            raise ValueError("token or username holds a control character")
        login = base64.b64encode(f"{user}:{secret}".encode()).decode()
        found |= {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "http.extraHeader",
            "GIT_CONFIG_VALUE_0": f"Authorization: Basic {login}",
        }
    return found


@contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConnectorError(f"its cache_dir cannot be written: {error.strerror}") from error


CONNECTOR = GitConnector

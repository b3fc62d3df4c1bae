"""Scripts on disk: a script with the files that it requires."""

from dataclasses import dataclass, field
from pathlib import Path

from engine.bridge import CallDenied, CallRefused
from engine.bridge.fs import parse_path, read_file
from engine.bundle import Modules, NotBundled, Unreadable, bundle, is_bytecode
from engine.config.signatures import Files, signature
from engine.run import Script


class Unloadable(Exception):
    """Why a script cannot be loaded from its file. `line` is the script's, if known."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message, self.line = message, line


@dataclass(slots=True)
class Read:
    """What was read for a script. `required` are the files that it requires, each as it was before it was read, also
    where one could not be read.
    """

    script: Script | None = None
    failure: Unloadable | None = None
    required: Files = field(default_factory=dict)


def read_script(path: Path, bound: int, folder: Path | None = None) -> Read:
    """A script, and what it requires of its package, of at most `bound` bytes together. Blocks: call it in a thread.

    `folder` is the package's, by default the script's own.
    """
    read = Read()
    folder = folder or path.parent
    name = path.relative_to(folder).as_posix()
    try:
        source = _source(path, bound)
        read.script = Script.from_source(name, source, _modules(folder, name, source, bound, read.required))
    except Unloadable as failure:
        read.failure = failure
    return read


def _source(path: Path, bound: int) -> bytes:
    try:
        source = _read_bounded(path, bound + 1)
    except OSError as error:
        raise Unloadable(f"cannot read the script: {error.strerror}") from None
    if len(source) > bound:
        raise Unloadable(f"the script is larger than {bound} bytes (limits.source_bytes)")
    if is_bytecode(source):
        raise Unloadable("the file is Lua bytecode; only source is accepted")
    if source.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Unloadable("the file is UTF-16, by its first two bytes; save it as UTF-8")
    return source


def _read_bounded(path: Path, size: int) -> bytes:
    if not path.is_file():  # a FIFO would block for ever
        raise FileNotFoundError(2, "no such file" if not path.exists() else "not a regular file")
    with path.open("rb") as file:
        return file.read(size)


def _modules(folder: Path, name: str, source: bytes, bound: int, required: Files) -> Modules:
    def read(name: str, left: int) -> bytes:
        required[folder / name] = signature(folder / name)
        try:
            return read_file(folder, parse_path(name), left, set_by=f"limits.source_bytes, {bound} in all")
        except (CallRefused, CallDenied, ValueError) as refused:
            raise Unreadable(str(refused)) from None
        except OSError as error:
            raise Unreadable(f"cannot be read: {error.strerror}") from None

    try:
        return bundle(name, source, read, bound)
    except NotBundled as wrong:
        raise Unloadable(wrong.message, wrong.line) from None

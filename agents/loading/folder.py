"""The documents of `[agents.chatmd] dir`: each an agent of its file's name, with `NAME.toml` of its keys beside it."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from engine.config import ChatmdEntry, ConfigError, check_tables, read_tables
from engine.config.signatures import Files, signature
from engine.names import valid_name
from sandbox.wire.limits import KIB, MIB

SUFFIX = ".chatmd"
# Bounds on a folder: documents, their bytes together, and names of any kind that are looked at.
MAX_DOCUMENTS = 1_000
MAX_BYTES = 64 * MIB
MAX_NAMES = 20_000
# Bound on one `NAME.toml`: a parser in Python reads it.
MAX_TOML_BYTES = 64 * KIB


class FolderFailure(NamedTuple):
    """A document of the folder that is no agent. `path` is the file at fault; `keys_only`: that beside the document."""

    name: str
    path: Path
    message: str
    document: Path
    keys_only: bool = False


@dataclass(slots=True)
class Folder:
    """What was found: entries by name, in order of their names, and what is wrong. `read` are the files that were
    looked at.
    """

    entries: list[tuple[str, ChatmdEntry]] = field(default_factory=list)
    failures: list[FolderFailure] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    read: Files = field(default_factory=dict)


def documents_of(folder: Path, environ: Mapping[str, str]) -> Folder:
    """The entries of a folder's documents. Blocks: call it in a thread."""
    found = Folder()
    found.read[folder] = signature(folder)
    try:
        with os.scandir(folder) as listing:
            names = [each.name for each in islice(listing, MAX_NAMES + 1)]
    except OSError as error:
        found.failures.append(FolderFailure("dir", folder, f"file-missing: cannot read it: {error.strerror}", folder))
        return found
    if len(names) > MAX_NAMES:
        found.failures.append(FolderFailure("dir", folder, f"too-large: more than {MAX_NAMES:,} files", folder))
        return found
    paths = sorted(folder / name for name in names if Path(name).suffix.lower() == SUFFIX)
    taken: dict[str, Path] = {}
    left = MAX_BYTES
    for path in paths:
        left -= _size(path)
        if why := _refused(path, taken, left):
            found.failures.append(FolderFailure(path.stem[:64], path, why, path))
            continue
        taken[path.stem] = path
        try:
            found.entries.append((path.stem, _entry(path, environ, found)))
        except ConfigError as error:
            found.failures.append(FolderFailure(path.stem, path.with_suffix(".toml"), str(error), path, True))
    return found


def _size(path: Path) -> int:
    try:
        status = path.stat()
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _refused(path: Path, taken: Mapping[str, Path], left: int) -> str:
    """Why a document of the folder is no agent, or nothing."""
    if not valid_name(path.stem):
        return f"{path.name!r}: the name of the file is no name of 1 to 64 letters, digits, '_', '.' or '-'"
    if path.stem in taken:
        return f"{path.name}: another file of this name comes first: {taken[path.stem].name}"
    if len(taken) >= MAX_DOCUMENTS:
        return f"too-large: {path.name}: the folder has more than {MAX_DOCUMENTS:,} documents"
    if left < 0:
        return f"too-large: {path.name}: the documents of the folder have more than {MAX_BYTES:,} bytes together"
    return ""


def _entry(path: Path, environ: Mapping[str, str], found: Folder) -> ChatmdEntry:
    """The entry of a document, with the keys beside it. Raises ConfigError."""
    beside = path.with_suffix(".toml")
    found.read[beside] = signature(beside)
    tables = {}
    if found.read[beside] is not None:
        tables = read_tables(beside, beside.name, MAX_TOML_BYTES)
        if "path" in tables:
            raise ConfigError(f"{beside.name}: path: unknown key; the document is {path.name}")
    raw = {"agents": {"chatmd": {path.stem: {**tables, "path": str(path)}}}}
    if path.stem == "dir":
        raise ConfigError(f"{path.name}: no agent of this kind can be called dir")
    config, warnings = check_tables(raw, environ=environ, cwd=path.parent, shown_as=beside.name)
    found.warnings += warnings
    return config.agents.chatmd.entries[path.stem]

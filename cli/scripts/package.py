"""Reading a folder as a package: its manifest, and the text of every file in it."""

import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

from agents.publishing.manifest import MAX_FILES, MAX_PACKAGE_BYTES
from cli.output import FAILED, UNUSABLE, Exit

MANIFESTS = ("manifest.toml", "manifest.json")


def read_package(folder: Path) -> dict[str, Any]:
    """The upload for a folder: its manifest, with the text of every other file under `files`.

    Names that begin with a dot are left out. Raises Exit for a missing or invalid manifest, and for entries that cannot
    be published: symbolic links, special files, and files that are not UTF-8.
    """
    body = _manifest(folder)
    files: dict[str, str] = {}
    size = 0
    pending = [folder]
    while pending:
        for entry in sorted(os.scandir(pending.pop()), key=lambda entry: entry.name):
            path = Path(entry.path)
            shown = path.relative_to(folder).as_posix()
            if entry.name.startswith(".") or shown in MANIFESTS:
                continue
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                pending.append(path)
                continue
            if not stat.S_ISREG(mode):
                what = "a symbolic link" if stat.S_ISLNK(mode) else "not a regular file"
                raise Exit(FAILED, f"{path}: {what}; a package holds files and folders")
            text = _text(path, MAX_PACKAGE_BYTES)
            size += len(text)
            files[shown] = text
            if len(files) > MAX_FILES or size > MAX_PACKAGE_BYTES:
                raise Exit(
                    FAILED,
                    f"{folder}: more than {MAX_FILES} files or {MAX_PACKAGE_BYTES} bytes; is it the right folder?",
                )
    return {**body, "files": files}


def _manifest(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise Exit(UNUSABLE, f"{folder}: there is no such folder")
    path = next((folder / name for name in MANIFESTS if (folder / name).is_file()), None)
    if path is None:
        raise Exit(UNUSABLE, f"{folder}: there is no {' or '.join(MANIFESTS)} in it")
    text = path.read_bytes()
    try:
        said = tomllib.loads(text.decode()) if path.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Exit(FAILED, f"{path}: cannot be read: {error}") from None
    if not isinstance(said, dict):
        raise Exit(FAILED, f"{path}: a manifest is an object")
    if "files" in said:
        raise Exit(FAILED, f"{path}: a manifest in a folder names no files: all files of the folder are published")
    return said


def _text(path: Path, bound: int) -> str:
    # Opened without following links: one may have been put there since the check.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        raw = file.read(bound + 1)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise Exit(FAILED, f"{path}: not UTF-8 text; a package holds texts") from None

"""Which test files there are, and the folder that each requires files from."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cli.options import shown
from cli.output import UNUSABLE, Exit
from engine.config import LoadedConfig, ScriptEntry

SUFFIX = "_test.lua"
MANIFEST = "manifest.toml"


@dataclass(frozen=True, slots=True)
class TestFile:
    """One test file. `root` is the folder of its package, from which it requires files."""

    __test__ = False  # not a test of pytest's

    path: Path
    root: Path

    @property
    def name(self) -> str:
        """Its name in its package, as errors show it."""
        return self.path.relative_to(self.root).as_posix()


def find(paths: Iterable[Path], loaded: LoadedConfig) -> list[TestFile]:
    """The files that are named, and those in the folders that are named; by default in those of the configured scripts,
    or the working directory if none is configured. Raises Exit if there is none, or one does not exist.
    """
    scripts = script_folders(loaded)
    wanted = [Path(os.path.abspath(path)) for path in paths] or _outermost(scripts) or [Path.cwd()]
    found: dict[Path, None] = {}
    for path in wanted:
        if path.is_dir():
            found |= dict.fromkeys(_in_folder(path))
        elif path.is_file():
            found[path] = None
        else:
            raise Exit(UNUSABLE, f"{shown(path)}: there is no such file or folder")
    if not found:
        where = ", ".join(shown(path) for path in wanted)
        raise Exit(UNUSABLE, f"there is no file *{SUFFIX} in {where}")
    return [TestFile(path, root_of(path, scripts)) for path in found]


def script_folders(loaded: LoadedConfig) -> set[Path]:
    """The folders of the configured scripts that exist."""
    sections = (loaded.config.agents, loaded.config.tools)
    entries = (entry for section in sections for _, _, entry in section.in_order() if isinstance(entry, ScriptEntry))
    return {entry.path.parent for entry in entries if entry.path.parent.is_dir()}


def root_of(path: Path, scripts: Iterable[Path]) -> Path:
    """The folder of a test file's package: the nearest one with a configured script or a manifest; else its own."""
    known = set(scripts)
    return next((folder for folder in path.parents if folder in known or (folder / MANIFEST).is_file()), path.parent)


def _outermost(folders: set[Path]) -> list[Path]:
    return sorted(folder for folder in folders if not folders & set(folder.parents))


def _in_folder(folder: Path) -> Iterator[Path]:
    """The test files below a folder, by name. Hidden folders are left out, and links to folders are not followed."""
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "node_modules")
        for name in sorted(files):
            if name.endswith(SUFFIX) and (Path(where) / name).is_file():
                yield Path(where) / name

"""What the tests of Python agents and tools share: modules of an author's, found as an operator's are."""

import itertools
from dataclasses import dataclass
from pathlib import Path

from agents_support import Project

_NUMBERS = itertools.count()


@dataclass
class Authored:
    """Python modules in a project's folder, each under a name of its own, as an interpreter imports a name once."""

    project: Project

    def module(self, source: str) -> str:
        """Write a module; returns its name."""
        name = f"authored_{next(_NUMBERS)}"
        (self.project.folder / f"{name}.py").write_text(source)
        return name

    def agent(self, name: str, source: str, keys: str = "") -> str:
        """A module with a class `It`; returns the entry of an agent."""
        return f'[agents.python.{name}]\npath = "{self.module(source)}:It"\n{keys}\n'

    def tool(self, name: str, source: str, keys: str = "") -> str:
        return self.agent(name, source, keys).replace("[agents.", "[tools.", 1)

    def package(self, name: str, points: dict[str, dict[str, str]]) -> Path:
        """An installed package with these entry points (group -> name -> value); returns the folder that holds it."""
        folder = self.project.folder / f"site-{name}"
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [
            line
            for group, values in points.items()
            for line in (f"[{group}]", *(f"{key} = {value}" for key, value in values.items()))
        ]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        return folder

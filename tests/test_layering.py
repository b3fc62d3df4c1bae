"""Who may import whom, read from the source: the packages' picture, and no circle between modules."""

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# What the supervisor's side may know of the sandbox: the wire and the lists, never what runs inside a worker.
WIRE = ("sandbox.frame", "sandbox.kept", "sandbox.limits", "sandbox.layers", "sandbox.messages", "sandbox.outcome")

# Package -> what of ours it may import, beside itself. Nobody may import cli, and only cli benchmarks.
ALLOWED: Mapping[str, tuple[str, ...]] = {
    "sandbox": (),
    "knowledge": (),
    "engine": ("knowledge", *WIRE),
    "agents": ("engine", "knowledge", *WIRE),
    "server": ("agents", "engine", *WIRE),
    "cli": ("benchmarks", "server", "agents", "engine", "knowledge", *WIRE),
    "benchmarks": ("server", "agents", "engine", "knowledge", *WIRE),
}
# The one way up: `from engine import serve` is the door for programs of somebody's own. It is named after the whole,
# and looks up what it names when that is first asked for: importing a module of `engine` still loads nothing above.
DOOR = ("engine", ("agents.authoring", "server.program"))
# What a worker has loaded is what can be attacked from inside it.
FOREIGN_TO_SANDBOX = frozenset(sys.stdlib_module_names) | {"lupa", "msgspec"}


@dataclass(frozen=True)
class Arrow:
    """One import: from which module and line, of what, and whether it happens at run time."""

    file: str
    line: int
    importer: str
    imported: str
    at_run_time: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.importer} imports {self.imported}"


def modules(root: Path) -> dict[str, Path]:
    """Every module of our packages by its dotted name."""
    found = {}
    for package in ALLOWED:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def arrows(root: Path) -> list[Arrow]:
    """Every import in every module, wherever it stands: at the top, in a function, under TYPE_CHECKING."""
    known = modules(root)
    return [arrow for name, path in known.items() for arrow in _arrows_of(name, path, root, known)]


def _arrows_of(name: str, path: Path, root: Path, known: Mapping[str, Path]) -> Iterator[Arrow]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for child in block.body
        for node in ast.walk(child)
    }
    deferred = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [node.module])])
            # `from engine import protocol` imports a module; `from engine.run import Usage` a name of one.
            full = [f"{base}.{alias.name}" for alias in node.names]
            targets = [target if target in known else base for target in full]
        else:
            continue
        for target in dict.fromkeys(targets):
            at_run_time = id(node) not in for_types and id(node) not in deferred
            yield Arrow(str(path.relative_to(root)), node.lineno, name, target, at_run_time)


def forbidden(found: list[Arrow]) -> list[str]:
    """The arrows that are not in the picture, as texts that name file and line."""
    return [f"{arrow} (not in the picture of docs)" for arrow in found if not _allowed(arrow)]


def _allowed(arrow: Arrow) -> bool:
    own, target = arrow.importer.partition(".")[0], arrow.imported
    package = target.partition(".")[0]
    if arrow.importer == DOOR[0] and target in DOOR[1] and not arrow.at_run_time:
        return True
    if package not in ALLOWED:
        return own != "sandbox" or package in FOREIGN_TO_SANDBOX
    return package == own or any(target == may or target.startswith(f"{may}.") for may in ALLOWED[own])


def circles(found: list[Arrow]) -> list[str]:
    """Modules that import each other when they are loaded, as paths."""
    graph: dict[str, dict[str, Arrow]] = {}
    for arrow in found:
        if arrow.at_run_time and arrow.imported != arrow.importer:
            graph.setdefault(arrow.importer, {}).setdefault(arrow.imported, arrow)
    done: set[str] = set()
    found_circles: list[str] = []

    def visit(module: str, path: list[str]) -> None:
        if module in path:
            circle = [*path[path.index(module) :], module]
            found_circles.append("; ".join(str(graph[a][b]) for a, b in pairwise(circle)))
        elif module not in done:
            for following in graph.get(module, {}):
                visit(following, [*path, module])
            done.add(module)

    for module in graph:
        visit(module, [])
    return found_circles


def test_every_import_is_an_arrow_of_the_picture() -> None:
    assert forbidden(arrows(ROOT)) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(arrows(ROOT)) == []


def test_the_checker_looks_at_every_package() -> None:
    importers = {arrow.importer.partition(".")[0] for arrow in arrows(ROOT)}
    assert importers == set(ALLOWED)


def plant(root: Path, files: Mapping[str, str]) -> list[Arrow]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text)
    return arrows(root)


def test_a_planted_arrow_upwards_is_found_with_file_and_line(tmp_path: Path) -> None:
    found = forbidden(plant(tmp_path, {"engine/bad.py": "import os\n\nfrom agents.agent import Call\n"}))
    assert found == ["engine/bad.py:3: engine.bad imports agents.agent (not in the picture of docs)"]


def test_the_door_for_programs_opens_late_and_to_what_it_names_alone(tmp_path: Path) -> None:
    late = "def __getattr__(name):\n    from server import program\n    from server import app\n    return program\n"
    files = {"server/program.py": "", "server/app.py": "", "engine/other.py": late}
    plant(tmp_path, files)
    (tmp_path / "engine/__init__.py").write_text(late)
    found = forbidden(arrows(tmp_path))
    assert [text.partition(" (")[0] for text in found] == [
        "engine/__init__.py:3: engine imports server.app",
        "engine/other.py:2: engine.other imports server.program",
        "engine/other.py:3: engine.other imports server.app",
    ]
    (tmp_path / "engine/__init__.py").write_text("from server.program import serve\n")
    assert "engine/__init__.py:1: engine imports server.program (not in the picture of docs)" in forbidden(
        arrows(tmp_path)
    )


def test_planted_arrows_are_found_wherever_they_stand(tmp_path: Path) -> None:
    found = forbidden(
        plant(
            tmp_path,
            {
                "engine/late.py": "def f():\n    from sandbox.vm import VM\n",
                "engine/package.py": "from sandbox import vm\n",
                "engine/typed.py": (
                    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from server.app import listen\n"
                ),
                "sandbox/foreign.py": "import trio\n",
                "sandbox/relative.py": "from ..engine import run\n",
                "sandbox/vm.py": "from . import outcome\nimport lupa.lua54\n",
                "knowledge/upward.py": "from sandbox.limits import MIB\n",
                "server/top.py": "import cli.main\n",
            },
        )
    )
    assert [text.partition(": ")[0] for text in found] == [
        "sandbox/foreign.py:1",
        "sandbox/relative.py:1",
        "knowledge/upward.py:1",
        "engine/late.py:2",
        "engine/package.py:1",
        "engine/typed.py:3",
        "server/top.py:1",
    ]


def test_a_planted_circle_is_found_unless_it_is_for_types_or_later(tmp_path: Path) -> None:
    found = plant(
        tmp_path,
        {
            "engine/a.py": "from engine import b\n",
            "engine/b.py": "from engine.c import x\n",
            "engine/c.py": "import engine.a\nx = 1\n",
            "engine/d.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from engine.e import y\n",
            "engine/e.py": "from engine.d import z\n\ndef f():\n    import engine.e\n",
        },
    )
    (circle,) = circles(found)
    assert "engine/a.py:1" in circle
    assert "engine/b.py:1" in circle
    assert "engine/c.py:1" in circle

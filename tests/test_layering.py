"""Who may import whom: packages, rooms and pure modules as docs/architecture.md has them, and no circles."""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# What the supervisor's side may know of the sandbox: the wire and the lists, never what runs inside a worker.
WIRE = "sandbox.wire"

# Package -> what of ours it may import, beside itself. Nothing imports cli, and only cli imports benchmarks.
ALLOWED: Mapping[str, tuple[str, ...]] = {
    "sandbox": (),
    "storage": (),
    "knowledge": ("storage",),
    "engine": ("knowledge", "storage", WIRE),
    "control": ("engine", "knowledge", "storage", WIRE),
    "agents": ("control", "engine", "knowledge", "storage.teams", WIRE),
    "server": ("agents", "control", "engine", WIRE),
    "cli": ("benchmarks", "server", "agents", "control", "engine", "knowledge", WIRE),
    "benchmarks": ("agents", "control", "engine", "knowledge", WIRE),
}
# The one arrow up: `from engine import serve`, for programs that embed the engine, is imported when it is first used.
# Importing a module of `engine` loads nothing above it.
DOOR = ("engine", ("agents.code.authoring", "server.program"))
# Importer -> what it never imports, below what its package may.
NEVER: Mapping[str, tuple[str, ...]] = {
    "control": tuple(f"engine.{room}" for room in ("engine", "execution", "bridge", "scheduling", "workers")),
    **dict.fromkeys(("cli", "benchmarks"), ("benchmarks.aims", "benchmarks.quality")),
}
# What makes a module impure: a loop, a clock, randomness, threads, processes, sockets, files by system call, SQLite.
IMPURE = frozenset(
    {"apsw", "asyncio", "os", "random", "secrets", "select", "selectors", "socket", "sqlite3", "ssl"}
    | {"subprocess", "tempfile", "threading", "time", "trio"}
)
# Who may know SQLite and hold SQL; what is above them calls their methods, so that another database can take its place.
STORES = ("storage", "knowledge", "control")
# And what the store is measured beside.
BARE_SQLITE = "benchmarks.aims.store.bare"
SQLITE = ("apsw", "sqlite3")
STATEMENT = re.compile(
    r"\s*(SELECT|INSERT (OR \w+ )?INTO|REPLACE INTO|UPDATE \"?\w+\"? SET|DELETE FROM|WITH \w+ AS|PRAGMA|VACUUM|EXPLAIN"
    r"|(CREATE|DROP|ALTER) (UNIQUE |VIRTUAL |TEMP )?(TABLE|INDEX|VIEW|TRIGGER)|BEGIN IMMEDIATE|ATTACH DATABASE)\b"
)
PICTURES = ROOT / "docs" / "architecture.md"
# What a worker has loaded is what can be attacked from inside it.
FOREIGN_TO_SANDBOX = frozenset(sys.stdlib_module_names) | {"lupa", "msgspec", "re2", "selectolax", "yaml"}
# What reads documents, in processes of its own.
FOREIGN_TO_EXTRACTION = frozenset({"docx", "html_to_markdown", "pptx", "pypdfium2", "python_calamine"})
# What runs a model, in another one.
FOREIGN_TO_EMBEDDING = frozenset({"numpy", "onnxruntime"})


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


@cache
def ours() -> list[Arrow]:
    """The arrows of the checkout."""
    return arrows(ROOT)


def forbidden(found: list[Arrow]) -> list[str]:
    """The arrows that are not in the picture, as texts that name file and line."""
    return [f"{arrow} (not in the picture of docs)" for arrow in found if not _allowed(arrow)]


def _allowed(arrow: Arrow) -> bool:
    own, target = arrow.importer.partition(".")[0], arrow.imported
    package = target.partition(".")[0]
    if arrow.importer == DOOR[0] and target in DOOR[1] and not arrow.at_run_time:
        return True
    if package in SQLITE and own not in STORES and arrow.importer != BARE_SQLITE:
        return False
    if package not in ALLOWED:
        reads = _within(arrow.importer, "sandbox.extraction") and package in FOREIGN_TO_EXTRACTION
        computes = _within(arrow.importer, "sandbox.embedding") and package in FOREIGN_TO_EMBEDDING
        return own != "sandbox" or package in FOREIGN_TO_SANDBOX or reads or computes
    if any(_within(target, never) and not _within(arrow.importer, never) for never in NEVER.get(own, ())):
        return False
    return package == own or any(_within(target, may) for may in ALLOWED[own])


def _within(module: str, room: str) -> bool:
    return module == room or module.startswith(f"{room}.")


@dataclass(frozen=True)
class Page:
    """What docs/architecture.md says: the rooms of each package from top to bottom, and the marks of each file."""

    rooms: Mapping[str, tuple[frozenset[str], ...]]
    marks: Mapping[str, str]


def read_page(text: str) -> Page:
    """The pictures and tables of the page. Headings name folders, rows the files in them."""
    rooms: dict[str, tuple[frozenset[str], ...]] = {}
    marks: dict[str, str] = {}
    for section in re.split(r"^##+ (?=`)", text, flags=re.MULTILINE)[1:]:
        folder = section[1 : section.index("/`")]
        if picture := re.search(r"^```\n([^`]+)^```$", section, re.MULTILINE):
            levels = picture[1].split("►")
            rooms[folder] = tuple(frozenset(re.findall(r"\w+", level)) for level in levels)
        for name, mark in re.findall(r"^\| `([\w.]+)` \| ([A-Z ]*) \|", section, re.MULTILINE):
            assert f"{folder}/{name}" not in marks, f"{folder}/{name} has two rows"
            marks[f"{folder}/{name}"] = mark
    return Page(rooms, marks)


def upwards(found: list[Arrow], rooms: Mapping[str, tuple[frozenset[str], ...]]) -> list[str]:
    """The arrows inside a package that do not lead down in its picture, and rooms that are not in it."""
    wrong = []
    for arrow in found:
        (package, *own), (other, *target) = arrow.importer.split("."), arrow.imported.split(".")
        if package != other or not own or not target or own[0] == target[0]:
            continue
        levels = {room: level for level, together in enumerate(rooms.get(package, ())) for room in together}
        if missing := {own[0], target[0]} - set(levels):
            wrong.append(f"{arrow} ({', '.join(sorted(missing))}: not in the picture of {package})")
        elif levels[own[0]] >= levels[target[0]]:
            wrong.append(f"{arrow} (up, in the picture of {package})")
    return wrong


def impure(root: Path, files: Iterable[str]) -> list[str]:
    """Of these files, the imports of what a pure module does not know."""
    wrong = []
    for file in files:
        for node in ast.walk(ast.parse((root / file).read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found = {name.partition(".")[0] for name in names} & IMPURE
            wrong += [f"{file}:{node.lineno}: a pure module imports {name}" for name in sorted(found)]
    return wrong


def statements(root: Path) -> list[str]:
    """The SQL in texts of the packages that hold none."""
    return [
        f"{path.relative_to(root)}:{node.lineno}: {node.value.strip()[:40]}"
        for name, path in modules(root).items()
        if name.partition(".")[0] not in STORES and name != BARE_SQLITE
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and STATEMENT.match(node.value)
    ]


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
    assert forbidden(ours()) == []


def test_inside_a_package_every_import_leads_down_in_its_picture() -> None:
    assert upwards(ours(), read_page(PICTURES.read_text(encoding="utf-8")).rooms) == []


def test_every_file_has_a_row_in_the_page_and_every_row_a_file() -> None:
    marks = read_page(PICTURES.read_text(encoding="utf-8")).marks
    files = {str(path.relative_to(ROOT)) for path in modules(ROOT).values() if path.name != "__init__.py"}
    assert sorted(files - set(marks)) == []
    assert sorted(set(marks) - files) == []


def test_what_the_page_calls_pure_is_pure() -> None:
    marks = read_page(PICTURES.read_text(encoding="utf-8")).marks
    pure = [file for file, mark in marks.items() if "P" in mark.split()]
    assert len(pure) > 60
    assert impure(ROOT, pure) == []


def test_no_sql_is_outside_the_stores() -> None:
    assert statements(ROOT) == []


def test_a_folder_holds_about_a_dozen_files() -> None:
    sizes = Counter(path.parent for path in modules(ROOT).values() if path.name != "__init__.py")
    assert {str(folder.relative_to(ROOT)): size for folder, size in sizes.items() if size > 16} == {}


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(ours()) == []


def test_the_checker_looks_at_every_package() -> None:
    importers = {arrow.importer.partition(".")[0] for arrow in ours()}
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
                "knowledge/upward.py": "from sandbox.wire.limits import MIB\n",
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


def test_planted_arrows_between_rooms_are_found(tmp_path: Path) -> None:
    planted = plant(
        tmp_path,
        {
            "engine/workers/bad.py": "from engine.execution import run\n",
            "engine/execution.py": "from engine.workers import bad\n",
            "engine/attic/old.py": "from engine.execution import run\n",
            "server/mcp/bad.py": "from server.rest.routes import ROUTES\n",
            "server/rest/routes.py": "from server.http import guard\n",
            "server/http/guard.py": "",
            "control/bad.py": "from engine.workers import bad\nfrom engine.config import Config\n",
            "benchmarks/bad.py": "from benchmarks.aims import rows\n",
            "benchmarks/aims/rows.py": "",
            "cli/bad.py": "import benchmarks.aims.rows\n",
            "agents/bad.py": "from storage.lanes import Lane\n",
        },
    )
    rooms = read_page(PICTURES.read_text(encoding="utf-8")).rooms
    assert [text.partition(": ")[0] + text[text.rindex(" (") :] for text in upwards(planted, rooms)] == [
        "engine/attic/old.py:1 (attic: not in the picture of engine)",
        "engine/workers/bad.py:1 (up, in the picture of engine)",
        "server/mcp/bad.py:1 (up, in the picture of server)",
        "benchmarks/bad.py:1 (bad: not in the picture of benchmarks)",
    ]
    assert [text.partition(": ")[0] for text in forbidden(planted)] == [
        "control/bad.py:1",
        "agents/bad.py:1",
        "cli/bad.py:1",
        "benchmarks/bad.py:1",
    ]


def test_planted_sql_and_a_planted_import_of_sqlite_are_found(tmp_path: Path) -> None:
    late = "def stored(control):\n    import apsw\n    return control.read(lambda db: db.execute('SELECT 1'))\n"
    planted = {
        "agents/bad.py": late,
        "cli/bad.py": "from sqlite3 import connect\ntable = 'keys'\nsql = f'DELETE FROM {table}'\n",
        "control/good.py": "import apsw\nsql = 'SELECT 1'\n",
        "server/good.py": "text = 'UPDATE the client'\nverb = 'DELETE'\n",
    }
    found = forbidden(plant(tmp_path, planted))
    assert [text.partition(" (")[0] for text in found] == [
        "agents/bad.py:2: agents.bad imports apsw",
        "cli/bad.py:1: cli.bad imports sqlite3",
    ]
    assert statements(tmp_path) == ["agents/bad.py:3: SELECT 1", "cli/bad.py:3: DELETE FROM"]


def test_a_planted_clock_in_a_pure_module_is_found(tmp_path: Path) -> None:
    plant(
        tmp_path, {"engine/usage.py": "import json\nimport time\n", "engine/quota.py": "from trio.lowlevel import x\n"}
    )
    assert impure(tmp_path, ["engine/usage.py", "engine/quota.py"]) == [
        "engine/usage.py:2: a pure module imports time",
        "engine/quota.py:1: a pure module imports trio",
    ]

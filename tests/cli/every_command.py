"""Every command that opens a store or prints something, in an order in which each has what it needs.

For tests of what holds for all commands: `test_every_command_is_listed` fails when one is added and not put here.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cli_support import Ended, Engine

SECRETS_KEY = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU="
CONFIG = f"""
[db]
path = "data/engine.sqlite"
[sandbox]
workers = 1
reserve = 0
[tenants]
enabled = true
secrets_key = "{SECRETS_KEY}"
[models.scripted]
api = "script"
path = "answers.toml"
[connectors.filesystem.docs]
root = "docs"
"""
LUA = """
%s = { description = 'D' }
function %s.%s() return %s end
"""


@dataclass(frozen=True)
class Line:
    """One command line. `{id}` and `{key}` stand for the last such value that was printed."""

    words: tuple[str, ...]
    stdin: bytes = b""
    # What it prints differs from one time to the next, or from one project to another.
    varies: bool = False

    @property
    def name(self) -> str:
        return " ".join(self.words)


def _line(text: str, stdin: bytes = b"", *, varies: bool = False) -> Line:
    return Line(tuple(text.split()), stdin, varies)


LINES: tuple[Line, ...] = (
    _line("sync all"),
    _line("init"),
    _line("doctor", varies=True),
    _line("search deployments"),
    _line("search deployments --json", varies=True),
    _line("eval questions.jsonl"),
    _line("get {id}"),
    _line("sources"),
    _line("stats", varies=True),
    _line("export"),
    _line("embed pending --json"),
    _line("embed rebuild"),
    _line("tenant create acme"),
    _line("tenant change acme --weight 2", varies=True),
    _line("tenant list", varies=True),
    _line("tenant show acme", varies=True),
    _line("key create acme --json", varies=True),
    _line("key list acme", varies=True),
    _line("key revoke {id}", varies=True),
    _line("secret set acme TOKEN --host api.example.com", b"value\n"),
    _line("secret list acme", varies=True),
    _line("secret delete acme TOKEN"),
    _line("kv set agent:greeter seen [1] --tenant acme"),
    _line("kv list agent:greeter --tenant acme"),
    _line("kv get agent:greeter seen --tenant acme"),
    _line("kv delete agent:greeter seen --tenant acme"),
    _line("agent publish agent --tenant acme", varies=True),
    _line("agent list --tenant acme"),
    _line("agent test greeter --tenant acme", varies=True),
    _line("agent versions greeter --tenant acme", varies=True),
    _line("agent publish agent2 --tenant acme", varies=True),
    _line("agent show greeter 2 --tenant acme", varies=True),
    _line("agent diff greeter 1 2 --tenant acme", varies=True),
    _line("agent activate greeter 1 --tenant acme", varies=True),
    _line("agent approve greeter 2 --tenant acme", varies=True),
    _line("agent deprecate greeter 1 --tenant acme", varies=True),
    _line("tool publish tool --tenant acme", varies=True),
    _line("tool list --tenant acme"),
    _line("tool test counter --tenant acme", varies=True),
    _line("tool versions counter --tenant acme", varies=True),
    _line("tool publish tool2 --tenant acme", varies=True),
    _line("tool show counter 2 --tenant acme", varies=True),
    _line("tool diff counter 1 2 --tenant acme", varies=True),
    _line("tool activate counter 1 --tenant acme", varies=True),
    _line("tool approve counter 2 --tenant acme", varies=True),
    _line("tool deprecate counter 1 --tenant acme", varies=True),
    _line("audit", varies=True),
    _line("tenant usage acme", varies=True),
    _line("tenant suspend acme"),
    _line("tenant resume acme"),
    _line("tenant export acme -o acme.tar"),
    _line("tenant backup copies"),
    _line("tenant delete acme --yes", varies=True),  # a link is a file, too
    _line("tenant import acme.tar"),
    _line("agent init fresh", varies=True),
    _line("tool init fresh", varies=True),
    _line("connector list"),
    _line("connector test filesystem:docs", varies=True),
    _line("connector init fresh", varies=True),
    _line("model list"),
    _line("model test scripted", varies=True),
    _line("test agents", varies=True),
    _line("chatmd check hello.chatmd"),
    _line("chatmd fmt hello.chatmd"),
    _line("chatmd parse hello.chatmd"),
    _line("mcp-config cursor"),
    _line("completions bash"),
    _line("bench scenarios"),
)

# Commands that run until they are stopped or measure something, with what holds for them elsewhere.
APART = {
    ("serve",), ("demo",), ("agent", "dev"), ("tool", "dev"), ("model", "stub"), ("bench", "run"), ("bench", "http"),
    ("bench", "mcp"), ("bench", "ramp"), ("bench", "compare"),
}  # fmt: skip


def begin(folder: Path) -> None:
    """Make a project in which every line can be run."""
    (folder / "engine.toml").write_text(CONFIG)
    (folder / "docs").mkdir()
    (folder / "answers.toml").write_text('[[reply]]\ntext = "Yes."\n')
    (folder / "docs" / "beta.md").write_text("# Beta\n\nDeployments go out on Tuesdays.\n")
    os.utime(folder / "docs" / "beta.md", (1_700_000_000, 1_700_000_000))
    question = {"id": "1", "question": "deployments", "kind": "exact", "answers": [{"source_id": "beta.md"}]}
    (folder / "questions.jsonl").write_text(json.dumps(question))
    (folder / "hello.chatmd").write_text("<user>hello</user>\n")
    (folder / "agents").mkdir()
    (folder / "agents" / "x_test.lua").write_text("it('holds', function() expect(1).to_be(1) end)\n")
    for name, kind, function, answer in (
        ("greeter", "agent", "resolve", "{ system = fs.read('data/x.md') }"),
        ("counter", "tool", "call", "{ 1 }"),
    ):
        for version in ("1", "2"):
            package = folder / (kind if version == "1" else kind + version)
            (package / "data").mkdir(parents=True)
            (package / "data" / "x.md").write_text("x")
            (package / "manifest.toml").write_text(f'name = "{name}"\nversion = "{version}"\nmain = "main.lua"\n')
            source = LUA % (kind, kind, function if kind == "agent" else "execute", answer)
            (package / "main.lua").write_text(source)


class Life:
    """Runs the lines one after the other, and knows what the ones before have printed."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def words(self, line: Line) -> list[str]:
        return [word.format(**self._known) if word.startswith("{") else word for word in line.words]

    def saw(self, line: Line, out: str) -> None:
        if "--json" in line.words:
            found = json.loads(out)
            self._known |= {name: value for name, value in found.items() if name in ("id", "key")}
            for hit in found.get("results", ()):
                self._known["id"] = hit["id"]

    def run(self, engine: Engine, line: Line, **more: object) -> Ended:
        ended: Ended = engine(*self.words(line), stdin=line.stdin, **more)
        self.saw(line, ended.out)
        return ended


def leaves() -> Iterator[tuple[str, ...]]:
    """Every command of the program."""
    from cli.application import build

    def walk(app: object, *words: str) -> Iterator[tuple[str, ...]]:
        names = [name for name in app if not name.startswith("-")]  # type: ignore[attr-defined]
        if not names:
            yield words
        for name in names:
            yield from walk(app[name], *words, name)  # type: ignore[index]

    return walk(build())


def unlisted() -> set[tuple[str, ...]]:
    """Commands that are in neither list."""
    listed = {re.split(r" (?=[-{])", line.name)[0] for line in LINES}
    return {
        words for words in leaves() if words not in APART and not any(
            name == " ".join(words) or name.startswith(" ".join(words) + " ") for name in listed
        )
    }  # fmt: skip

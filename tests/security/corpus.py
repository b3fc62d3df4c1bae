"""The corpus: Lua agents of our own, one a file, and how the line that says what must become of each is read.

First line:  -- expect: OUTCOME[|OUTCOME] [KEY=VALUE | KEY~TEXT | no... ] ...
Second line: what is tried, in one sentence.

OUTCOME is one of `sandbox.wire.outcome`. Values are JSON; `limits` is a TOML inline table.

    value=JSON            the answer, exactly (1 and 1.0 differ)
    message="..."         the failure's message, exactly; message~"..." a part of it
    traceback~"..."       a part of the traceback; notraceback~"..." what must not be in it
    log~"..."             a part of some log line (may be given again); logs=N how many lines
    progress=N            how many progress reports arrived; calls=N how many host calls were counted
    limit="output_bytes"  which limit the failure names, where the outcome leaves that open
    limits={cpu_s=1}      what the script asks for, beside the corpus's own defaults
    runs=N                run it so many times; each must end the same
    args=, config=        what the agent is given (default {}); grants=[...] the host calls (default: knowledge)
    describe=true         describe the script instead of calling `resolve`
    name="..."            the name the script is known by (default "corpus")
    before="..."          bytes (as Latin-1) before the file's own text
    files={"a.lua": T}    other files of its package (texts as Latin-1, <X> as below); it is `main.lua` there
    fill={"<X>": [T, N]}  put N copies of T (as Latin-1, {i} is the copy's number) where <X> stands below these lines
"""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox.wire.limits import MIB
from sandbox.wire.outcome import Outcome

ROOT = Path(__file__).parent
FOLDERS = {"escape": 50, "cpu": 25, "memory": 20, "output": 20, "protocol": 15, "benign": 40}  # the least in each
TOTAL = 170

# The deadline is generous and the CPU budget is not, so that which of the two ends a script does not depend on how
# busy the machine is. Scripts that are about the deadline ask for a short one and for much CPU time.
DEFAULT_LIMITS: dict[str, float] = {"cpu_s": 0.3, "timeout_s": 5.0, "memory_bytes": 16 * MIB}

_KEY = re.compile(r"\s+([a-z]+)(=|~)")
_TABLE = re.compile(r"\{[^{}]*\}")
_EXACT = {
    "value", "message", "logs", "progress", "calls", "limit", "runs", "args", "config", "grants", "describe", "name",
    "before", "fill", "files",
}  # fmt: skip
_PARTS = {"message", "traceback", "notraceback", "log"}


class HeaderError(Exception):
    """The first two lines of a script are not as described above."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The first line, read."""

    outcomes: tuple[Outcome, ...]
    exact: dict[str, Any]
    parts: list[tuple[str, str]]
    limits: dict[str, float] = field(default_factory=dict)

    def get(self, key: str, default: Any = None) -> Any:
        return self.exact.get(key, default)


@dataclass(frozen=True, slots=True)
class CorpusScript:
    """One file: where it is, what must become of it, what it tries, and the bytes to run."""

    id: str
    expected: Expected
    purpose: str
    source: bytes
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        return self.id.partition("/")[0]


def parse_header(line: str) -> Expected:
    """Read the first line. Raises HeaderError."""
    match = re.match(r"-- expect: ([a-z_|]+)", line)
    if match is None:
        raise HeaderError(f"does not begin with '-- expect: OUTCOME': {line[:80]!r}")
    try:
        outcomes = tuple(Outcome(name) for name in match[1].split("|"))
    except ValueError as error:
        raise HeaderError(str(error)) from None
    expected = Expected(outcomes, {}, [])
    at = match.end()
    while rest := line[at:].rstrip():
        key = _KEY.match(rest)
        if key is None:
            raise HeaderError(f"not KEY=VALUE or KEY~TEXT: {rest[:80]!r}")
        at += key.end() + _read_value(expected, key[1], key[2], rest[key.end() :])
    return expected


def _read_value(expected: Expected, key: str, operator: str, text: str) -> int:
    """Take one value from the start of `text`; returns how much of it that was."""
    try:
        if key == "limits":
            table = _TABLE.match(text)
            if table is None:
                raise HeaderError(f"limits is not an inline table: {text[:80]!r}")
            expected.limits.update(tomllib.loads(f"limits = {table[0]}")["limits"])
            return table.end()
        value, length = json.JSONDecoder().raw_decode(text)
    except ValueError as error:
        raise HeaderError(f"{key}: {error}") from None
    if key not in (_PARTS if operator == "~" else _EXACT):
        raise HeaderError(f"unknown: {key}{operator}")
    if operator == "~":
        expected.parts.append((key, value))
    else:
        expected.exact[key] = value
    return length


def read_script(path: Path) -> CorpusScript:
    """Read one file. Raises HeaderError."""
    raw = path.read_bytes()
    first, second, *_ = raw.decode("latin-1").split("\n", 2)
    expected = parse_header(raw.split(b"\n", 1)[0].decode())
    if not re.fullmatch(r"-- [A-Z].*[.!?]", second):
        raise HeaderError(f"the second line is not a comment of one sentence: {second[:80]!r}")
    files = {name: text.encode("latin-1") for name, text in expected.get("files", {}).items()}
    head, body = raw[: len(first) + len(second) + 2], raw[len(first) + len(second) + 2 :]
    for mark, (text, count) in expected.get("fill", {}).items():
        if not any(mark.encode() in each for each in (body, *files.values())):
            raise HeaderError(f"fill: {mark} is not in the text")
        copies = "".join(text.replace("{i}", str(i)) for i in range(1, count + 1)).encode("latin-1")
        body = body.replace(mark.encode(), copies)
        files = {name: each.replace(mark.encode(), copies) for name, each in files.items()}
    # Every script must be a chunk of its own line numbers, so the two lines stay where they are.
    source = expected.get("before", "").encode("latin-1") + head + body
    return CorpusScript(path.relative_to(ROOT).with_suffix("").as_posix(), expected, second[3:], source, files)


def paths() -> list[Path]:
    """Every script of the corpus, in a fixed order."""
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.lua"))

"""Output and exit codes of all commands: results on standard output, everything else on standard error."""

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

OK = 0
FAILED = 1  # the script, agent, search target or threshold failed; also a bad --param or --arg
UNUSABLE = 2  # misuse, unknown name, configuration, or our failure
INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended

# Descriptions in lists are cut to this width, so that a row stays on one line of a terminal.
DESCRIPTION_WIDTH = 80

# C0 without tab and newline, DEL and C1: characters that could move the cursor of a terminal or write to its clipboard.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_C1 = re.compile(r"[\x7f-\x9f]")


class Exit(Exception):
    """Ends the command with this exit code and this one line on standard error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def exit_code_of(problem: Any) -> int:
    """1 for a fault of the script or of the values given to it; 2 for a wrong name or key, or a fault of the engine."""
    spec = problem.code.spec
    return UNUSABLE if spec.fault == "engine" or spec.wrong in ("name", "key") else FAILED


def plain(text: object) -> str:
    """The text with control characters made visible: documents and scripts must not control the terminal."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", str(text).replace("\r\n", "\n"))


def one_line(text: object) -> str:
    return " ".join(plain(text).split())


def say(text: str = "") -> None:
    """Print text to standard output."""
    print(plain(text))


def note(text: str) -> None:
    """Print text to standard error."""
    print(plain(text), file=sys.stderr)


def warn(text: str) -> None:
    note(f"warning: {one_line(text)}")


def say_json(value: Any) -> None:
    """Print one JSON value to standard output."""
    text = json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False)
    print(_C1.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def indented(text: str, by: str = "  ") -> str:
    return "\n".join(f"{by}{line}".rstrip() for line in text.splitlines())


def table(rows: Iterable[Sequence[object]], *, heading: Sequence[str] | None = None, indent: str = "  ") -> None:
    """Print rows in aligned columns; the width of the last column is not bounded."""
    # Imported here, as is the log below: `engine --help` loads this module and needs neither.
    from rich.cells import cell_len  # wide characters take two columns

    lines = [[one_line(cell) for cell in row] for row in ([heading] if heading else []) + list(rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)]
        say((indent + "  ".join(cells)).rstrip())


def shortened(text: str, width: int) -> str:
    """The first line of the text, cut to `width` characters."""
    first = one_line(text.strip().partition("\n")[0])
    return first if len(first) <= width else first[: width - 1].rstrip() + "…"


def plural(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def mebibytes(count: int) -> str:
    return f"{count / (1024 * 1024):.1f} MiB"


def quiet_logs() -> None:
    """Keep the engine's log off the terminal: the command prints what matters. ENGINE_LOG turns it on again."""
    from server import logs

    logs.configure({"ENGINE_LOG": "critical", **os.environ})


def ago(moment: str | None, now: datetime) -> str:
    """The time since then, in the largest unit that fits; after thirty days, the date."""
    if moment is None:
        return "never"
    then = datetime.fromisoformat(moment)
    seconds = max(0, int((now - then).total_seconds()))
    if seconds > 30 * 86400:
        return then.strftime("%Y-%m-%d %H:%M")
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            return f"{plural(seconds // size, unit)} ago"
    return "just now"


def due(moment: str, now: datetime) -> str:
    """The time until then, in the largest unit that fits."""
    seconds = int((datetime.fromisoformat(moment) - now).total_seconds())
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            return f"in {plural(seconds // size, unit)}"
    return "now"

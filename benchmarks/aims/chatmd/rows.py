"""The rows of the table of aims that are of documents: their aims, and what measures them."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio

from benchmarks.aims.chatmd import reading, running
from benchmarks.aims.harness import Figures, compared, in_folder, of_all, p50s, ratio
from benchmarks.aims.rows import Aim, Found

Part = tuple[Sequence[Aim], Callable[[], Sequence[Found]]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured: megabytes of a document, runs of a turn, runs that wait."""

    megabytes: float = 10
    runs: int = 100
    waiting: int = 500


def parts(sizes: Sizes, rounds: int, peers: Path) -> dict[str, Part]:
    """The parts by name. `peers` is the environment of what others would use."""
    return {
        "chatmd-reading": _reading(sizes.megabytes, rounds),
        "chatmd-turn": ((TURN,), lambda: _in_folder(running.one_turn, turn_found, sizes.runs, rounds)),
        "chatmd-tool": ((TOOL_P50, TOOL_CPU), lambda: _beside_sdk(peers / "bin" / "python", sizes.runs, rounds)),
        "chatmd-waiting": _waiting(sizes.waiting, sizes.runs, max(1, rounds // 2)),
    }


TURN = Aim(what="run of one turn over REST, p50", beside="bare httpx2 stream of the answer", least=4)
TOOL_P50 = Aim(what="run of two turns and a tool, p50", beside="openai-agents", least=0.5)
TOOL_CPU = Aim(what="run of two turns and a tool, CPU", beside="openai-agents", least=0.5)


def _in_folder(measure: Callable[..., Awaitable[Any]], judge: Callable[..., list[Found]], *given: Any) -> list[Found]:
    return judge(trio.run(in_folder, lambda folder: measure(folder, *given)))


def turn_found(seen: Figures) -> list[Found]:
    """The row of a run of one turn, from the microseconds of its rounds."""
    measured, beside = (_ms(of_all(seen[name], 0.5)) for name in ("ours", "bare"))
    return [Found(aim=TURN, figure=ratio(p50s(seen["ours"]), p50s(seen["bare"])), measured=measured, beside=beside)]


def _beside_sdk(python: Path, runs: int, rounds: int) -> list[Found]:
    if not running.has_sdk(python):
        return [Found(aim=aim, why="openai-agents is not installed: make peers") for aim in (TOOL_P50, TOOL_CPU)]
    return _in_folder(running.two_turns, tool_found, python, runs, rounds)


def tool_found(seen: dict[str, list[running.Turn]]) -> list[Found]:
    """The rows of a run with a tool, from the turns of both."""
    ours, theirs = seen.values()
    return [
        compared(TOOL_P50, p50s([turn.times_us for turn in ours]), p50s([turn.times_us for turn in theirs]), _ms),
        compared(TOOL_CPU, [turn.cpu_us for turn in ours], [turn.cpu_us for turn in theirs], _ms),
    ]


def _waiting(many: int, runs: int, rounds: int) -> Part:
    memory = Aim(what=f"memory of {many} runs that wait", beside=f"{many} bare httpx2 streams", least=2)
    prompt = Aim(what=f"Lua prompt beside {many} runs that wait, p50", beside="none waiting", least=1.2)

    def judge(seen: Figures) -> list[Found]:
        return [
            compared(memory, seen["ours_bytes"], seen["bare_bytes"], lambda size: f"{size / (1 << 20):.1f} MiB"),
            compared(prompt, p50s(seen["beside"]), p50s(seen["alone"]), _ms),
        ]

    return (memory, prompt), lambda: _in_folder(running.waiting, judge, many, runs, rounds)


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1000:.2f} ms"


def _reading(size: float, rounds: int) -> Part:
    rate = Aim(what=f"reading {size:g} MB of ChatMD, MB/s", beside="html.parser, same text", better="more", least=1.0)
    twice = Aim(what=f"reading {2 * size:g} MB of ChatMD, CPU", beside=f"{size:g} MB", least=2.2)
    return (rate, twice), partial(_read, size, rounds, rate, twice)


def _read(size: float, rounds: int, rate: Aim, twice: Aim) -> list[Found]:
    seen = reading.measure(size, rounds)
    ours, beside = ([size / taken for taken in seen[name]] for name in ("ours", "html.parser"))
    return [
        compared(rate, ours, beside, "{:.1f} MB/s".format),
        compared(twice, seen["twice"], seen["ours"], "{:.2f} s".format),
    ]

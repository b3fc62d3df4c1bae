"""The engine, its floor and its peers on one job, in turns: which are installed, and their figures.

Contestants are programs (`peers/`) that stay up and run only in their turn. Rounds are interleaved, every second one in
reverse order, so that other load on the machine affects all of them alike.
"""

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.aims import peers
from benchmarks.aims.harness import ROOT, one_round, ratio, tree_cpu_s
from benchmarks.aims.job import AS_JSON
from benchmarks.aims.peers import Peer
from benchmarks.report.figures import percentile

PEERS_FOLDER = ROOT / ".peers"
WORKERS = 2  # processes that serve runs, for contestants that use processes


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of turn. With a pause, each run begins that long after the end of the one before."""

    name: str
    concurrency: int
    warm_up_s: float
    seconds: float
    pause_s: float = 0.0
    only: tuple[str, ...] | None = None

    def asks(self, peer: str) -> bool:
        return self.only is None or peer in self.only


ONE, EIGHT, PACED = "one at a time", "eight at once", "one at a time, with pauses"


def kinds(seconds: float) -> tuple[Kind, ...]:
    """The turns of one round. The pauses let the reserve of pristine workers fill up between runs."""
    warm_up_s = seconds / 4
    return (
        Kind(ONE, 1, warm_up_s, seconds),
        Kind(EIGHT, 8, warm_up_s, seconds),
        Kind(PACED, 1, warm_up_s, seconds, 0.02, (peers.ENGINE, peers.ENGINE_EXECUTION)),
    )


@dataclass(slots=True)
class Seen:
    """The figures of one contestant in one kind of turn, one for each round."""

    p50_us: list[float] = field(default_factory=list)
    p99_us: list[float] = field(default_factory=list)
    per_s: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)  # per run, of the whole tree of processes

    def median(self, figure: str) -> float:
        values: list[float] = getattr(self, figure)
        return statistics.median(values)


@dataclass(slots=True)
class Contest:
    """All figures. `versions` has the contestants that took part, `absent` the reasons why others did not."""

    rounds: int
    seen: dict[tuple[str, str], Seen] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def leave_out(self, peer: str, why: str) -> None:
        """Remove a contestant that failed: rounds without it cannot be compared."""
        self.absent[peer] = why
        self.versions.pop(peer, None)
        for key in [key for key in self.seen if key[0] == peer]:
            del self.seen[key]

    def of(self, peer: str, kind: str) -> Seen | None:
        return self.seen.get((peer, kind))

    def ratio(self, kind: str, figure: str, peer: str, beside: str) -> float | None:
        """The figure of `peer` divided by that of `beside`; None if one of them did not take part."""
        ours, theirs = self.of(peer, kind), self.of(beside, kind)
        if ours is None or theirs is None:
            return None
        return ratio(getattr(ours, figure), getattr(theirs, figure))

    def better(self, kind: str, figure: str, names: Sequence[str]) -> str:
        """Of several ways to use one peer, the one with the better figure; the first if none took part."""
        here = {name: seen.median(figure) for name in names if (seen := self.of(name, kind)) is not None}
        if not here:
            return names[0]
        return max(here, key=here.__getitem__) if figure == "per_s" else min(here, key=here.__getitem__)


class Absent(Exception):
    """A contestant is not installed, or does not start. One line with the reason, and how to install it."""


class Contestant:
    """A contestant's program, running while the block lasts."""

    def __init__(self, peer: Peer, python: Path) -> None:
        self.peer = peer
        command = [
            str(python),
            "-m",
            f"benchmarks.aims.peers.{peer.module}",
            *([peer.argument] if peer.argument else []),
        ]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
        )

    def __enter__(self) -> "Contestant":
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(15)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait()

    def ask(self, value: Any) -> Any:
        """Its answer to one line. Raises Absent if there is none, with its last output as the reason."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            assert self._process.stderr is not None
            words = self._process.stderr.read().strip().splitlines() or ["it ended"]
            raise Absent(f"does not run here: {words[-1].strip()}")
        return json.loads(answer)

    def turn(self, kind: Kind, seen: Seen) -> None:
        """Run one turn, and add its figures to `seen`."""
        before = tree_cpu_s(self._process.pid)
        answer = self.ask(
            {
                "concurrency": kind.concurrency, "warm_up_s": kind.warm_up_s,
                "seconds": kind.seconds, "pause_s": kind.pause_s,
            }
        )  # fmt: skip
        cpu_s = tree_cpu_s(self._process.pid) - before
        latencies = answer["latencies_us"]
        if not latencies:
            raise Absent(f"made no run within {kind.seconds:g} s")
        seen.p50_us.append(percentile(latencies, 0.5))
        seen.p99_us.append(percentile(latencies, 0.99))
        seen.per_s.append(len(latencies) / kind.seconds)
        seen.cpu_us.append(cpu_s / answer["runs"] * 1e6)


def missing(peer: Peer, python: Path) -> str | None:
    """What a peer lacks here, and how to install it; None if it can start."""
    for need, how in peer.needs.items():
        kind, _, module = need.rpartition(":")
        if kind != "python":
            if shutil.which(need) is None:
                return f"{need} is not installed: {how}"
        elif not imports(python, module):
            return f"{module} is not installed: {how}"
    return None


def imports(python: Path, module: str) -> bool:
    """Whether an interpreter is there and has the module."""
    command = [str(python), "-c", f"import {module}"]
    return python.exists() and subprocess.run(command, capture_output=True, check=False).returncode == 0


def python_of(peer: Peer, folder: Path) -> Path:
    """The interpreter that runs a contestant: the project's for ours, the peers' environment for the others."""
    if peer.own or not any(need.startswith("python:") for need in peer.needs):
        return Path(sys.executable)
    return folder / "bin" / "python"


def hold(rounds: int, seconds: float, folder: Path = PEERS_FOLDER, who: Sequence[Peer] = peers.PEERS) -> Contest:
    """Run all of `who` that are installed, for so many rounds; `seconds` is the measured part of a turn.

    A contestant that fails is left out from then on, and its figures are discarded.
    """
    contest = Contest(rounds)
    with ExitStack() as stack:
        here: list[Contestant] = []
        for peer in who:
            python = python_of(peer, folder)
            if lacks := missing(peer, python):
                contest.absent[peer.name] = lacks
                continue
            contestant = stack.enter_context(Contestant(peer, python))
            try:
                contest.versions[peer.name] = contestant.ask({"document": AS_JSON, "workers": WORKERS})["ready"]
            except Absent as absent:
                contest.absent[peer.name] = str(absent)
            else:
                here.append(contestant)
        for number in range(rounds):
            for kind in kinds(seconds):
                for contestant in one_round(here, number):
                    if kind.asks(contestant.peer.name):
                        seen = contest.seen.setdefault((contestant.peer.name, kind.name), Seen())
                        try:
                            contestant.turn(kind, seen)
                        except Absent as absent:
                            contest.leave_out(contestant.peer.name, str(absent))
                            here.remove(contestant)
    return contest

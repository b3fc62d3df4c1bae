"""Live display of a load on a terminal: rate, percentiles and outcomes of the last second."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from benchmarks.load.progress import Progress
from benchmarks.load.schedule import Load
from benchmarks.report.text import milliseconds


@contextmanager
def live(load: Load, what: str) -> Iterator[Callable[[Progress, float], None]]:
    """Show progress on standard error until the block ends; yields the function to call with it."""
    with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as display:

        def tell(progress: Progress, at_s: float) -> None:
            display.update(Text(as_text(progress, at_s, load, what), overflow="fold"), refresh=True)

        yield tell


def as_text(progress: Progress, at_s: float, load: Load, what: str) -> str:
    """The lines for one update. Plain text: rendering a table of rich would delay the load for milliseconds."""
    recent = progress.recent.summary()
    phase = (
        "warm-up"
        if at_s < load.warm_up_s
        else "measuring"
        if at_s < load.total_s
        else "waiting for the last answers"
    )  # fmt: skip
    latencies = ", ".join(f"{name} {milliseconds(recent[f'{name}_ms'])}" for name in ("p50", "p99", "max"))
    outcomes = ", ".join(f"{name} {count:,}" for name, count in progress.outcomes.most_common(4))
    return "\n".join(
        (
            f"{what}: {phase}, {min(at_s, load.total_s):.0f} of {load.total_s:g} s",
            f"  last second: {progress.recent.count:,} answers, {latencies} ms; {progress.in_flight:,} under way",
            f"  so far: {outcomes or 'nothing'}; errors {progress.errors:,}, dropped {progress.dropped:,}",
        )
    )

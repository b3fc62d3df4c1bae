"""`sleep`: wait, at no cost but the run's wall time."""

import msgspec
import trio

from engine.bridge import CallRefused, HostContext, HostFunction
from engine.bridge.families import Family

SLEEP = "sleep"
GRANTS = frozenset({SLEEP})
# A day. No run lasts that long, so a larger figure is a mistake (milliseconds, a date) and an error at once.
MAX_SECONDS = 86_400


class SleepArguments(msgspec.Struct):
    seconds: int | float


def functions() -> tuple[HostFunction, ...]:
    """The family. The number of sleeps under way is not bounded: each holds only a timer."""

    async def sleep(context: HostContext, arguments: SleepArguments) -> None:
        # A sleep beyond the run's remaining time is not refused: it lasts until the deadline ends the run, as
        # `timeout`.
        seconds = arguments.seconds
        if not 0 <= seconds <= MAX_SECONDS:  # NaN fails it too
            raise CallRefused(f"seconds must be a number from 0 to {MAX_SECONDS}, got {seconds:g}")
        await trio.sleep(seconds)

    return (HostFunction(SLEEP, SleepArguments, sleep),)


FAMILY = Family.plain(lambda host: functions())

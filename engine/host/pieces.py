"""Work in pieces: a generator that yields where other tasks may run."""

from collections.abc import Generator
from typing import TypeVar, cast

import trio

T = TypeVar("T")


async def in_pieces(work: Generator[None, None, T]) -> T:
    """Do the work, with a checkpoint at each yield, and return its result. Without a yield there is no checkpoint."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return cast(T, end.value)
        await trio.lowlevel.checkpoint()

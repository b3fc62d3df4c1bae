"""The zygote of scripts: what it has ready before it forks a worker."""

import gc
import os
from functools import partial
from typing import NoReturn

from sandbox.confine.plan import FleetPlan
from sandbox.launcher import Serve, launch
from sandbox.natives import warm_up
from sandbox.vm import VM, Prelude
from sandbox.worker import serve


def main(control_fd: int, memory_bytes: int, processes: int, off: str) -> NoReturn:
    """Be the zygote of scripts until the supervisor closes the socket."""
    fleet = FleetPlan(memory_bytes=memory_bytes, processes=processes, off=tuple(filter(None, off.split(","))))
    launch(control_fd, fleet, lambda: _warm_up(Prelude()))


def _warm_up(prelude: Prelude) -> Serve:
    """Do in advance what confinement forbids: imports, first uses that open files, growth of the heap."""
    VM(prelude)
    warm_up()
    os.urandom(1)
    gc.enable()
    gc.collect()
    gc.freeze()  # workers share these pages; a collection would write to each of them
    return partial(serve, prelude)

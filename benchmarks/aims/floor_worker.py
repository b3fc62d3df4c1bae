"""The floor's worker: the minimum that runs Lua in another process. No confinement, no limits, no checks.

Started as a script, `floor_worker.py warm` keeps one Lua state for all runs, `floor_worker.py fresh` makes one per run
when the run arrives. On standard input and output it speaks frames of four bytes of length and a msgpack value:
a run is the document's id; it is answered by any number of `[name, argument]`, each answered by a value, then by a map.
"""

import gc
import os
import sys
from typing import Any

import msgspec
from lupa.lua54 import LuaRuntime

JOB = """
local host = ...
return function(id)
    local document = host("context.get", id)
    return { system = "Read " .. document.title, characters = #document.body }
end
"""


class Worker:
    """One process's loop. Ends the process when standard input ends."""

    def __init__(self, *, fresh: bool) -> None:
        self._fresh = fresh
        self._buffer = b""
        self._renew()

    def _renew(self) -> None:
        self._lua = LuaRuntime()
        self._job = self._lua.execute(JOB, self._host)

    def serve(self) -> None:
        while True:
            argument = self._receive()
            if self._fresh:
                self._renew()
            self._send(dict(self._job(argument)))

    def _host(self, name: str, argument: str) -> Any:
        self._send([name, argument])
        return self._lua.table_from(self._receive())

    def _receive(self) -> Any:
        length = int.from_bytes(self._take(4), "big")
        return msgspec.msgpack.decode(self._take(length))

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            data = os.read(0, 65536)
            if not data:
                os._exit(0)
            self._buffer += data
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    @staticmethod
    def _send(value: Any) -> None:
        payload = msgspec.msgpack.encode(value)
        os.write(1, len(payload).to_bytes(4, "big") + payload)


if __name__ == "__main__":
    worker = Worker(fresh=sys.argv[1] == "fresh")
    gc.collect()
    gc.freeze()  # as the engine's workers do
    worker.serve()

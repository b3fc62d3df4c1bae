"""Redis: the job as a script of its embedded Lua, sent with every call; `redis.call` is the host call.

A separate server on a Unix socket, without persistence. The client speaks RESP directly (https://redis.io/docs/latest/
develop/reference/protocol-spec/), with the least overhead.
"""

import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.aims.peers import turns

SCRIPT = """
local document = redis.call("HMGET", KEYS[1], "title", "body")
return {"Read " .. document[1], #document[2]}
"""
_START_TIMEOUT_S = 10.0


class Connection:
    """One connection; a request and its answer at a time."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._file = self._socket.makefile("rb")

    def ask(self, *words: str) -> Any:
        """The answer to a command. Raises RuntimeError for an error."""
        parts = [word.encode() for word in words]
        self._socket.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts))
        return self._answer()

    def _answer(self) -> Any:
        kind, rest = (line := self._file.readline())[:1], line[1:-2]
        if kind == b"+":
            return rest.decode()
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return self._file.read(int(rest) + 2)[:-2].decode()
        if kind == b"*":
            return [self._answer() for _ in range(int(rest))]
        raise RuntimeError(f"redis-server said {line!r}")


class _Mine(threading.local):
    """A connection for each thread, as in a connection pool."""

    connection: Connection | None = None


@contextmanager
def open_server() -> Iterator[Path]:
    """A redis-server; yields its socket."""
    with tempfile.TemporaryDirectory(prefix="peers-redis-") as folder:
        path = Path(folder) / "redis.sock"
        command = ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", folder]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            give_up = time.monotonic() + _START_TIMEOUT_S
            while not path.exists():
                if process.poll() is not None or time.monotonic() > give_up:
                    raise RuntimeError("redis-server did not start")
                time.sleep(0.01)
            yield path
        finally:
            process.terminate()
            process.wait()


def serve() -> None:
    job = turns.read_job()
    with open_server() as path:
        mine = _Mine()

        def connection() -> Connection:
            if mine.connection is None:
                mine.connection = Connection(path)
            return mine.connection

        connection().ask("HSET", job.document_id, "title", job.document["title"], "body", job.document["body"])
        facts = dict(line.split(":", 1) for line in connection().ask("INFO", "server").split("\r\n") if ":" in line)
        turns.serve_threads(
            f"Redis {facts['redis_version']}",
            lambda: job.check(*connection().ask("EVAL", SCRIPT, "1", job.document_id)),
        )


if __name__ == "__main__":
    turns.main(serve)

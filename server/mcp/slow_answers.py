"""Slow plain answers of `/mcp`: they become event streams with keep-alive comments, as the SDK's own do.

A proxy cuts a connection that is idle for too long, so a long call must send something (2026-07-28, streamable HTTP).
The SDK runs two tasks beside every call for that, a fifth of what a call costs. Here one task watches all calls, and a
call gets a task of its own only once it is late.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from engine.errors import leaf
from server.http.asgi import Message, Send
from server.http.target import MCP_PATH
from server.logs import report

# A call is late after this long, and then sends keep-alives at this interval: the SDK's own value.
SILENT_S = 15.0
LOOK_EVERY_S = 1.0

_START: tuple[tuple[bytes, bytes], ...] = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
_KEEP_ALIVE = b": ping\r\n\r\n"


class _SlowAnswer:
    """One answer in progress: sent unchanged or, once it is late, as the one event of a stream."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.since = trio.current_time()
        # Invariant: at most one of them is true. `begun` is set when the answer begins in time, without a checkpoint
        # before it is sent; `late` when it does not, and from then on everything is sent under the lock.
        self.begun = False
        self.late = False
        self._streaming = False
        self._finished = False
        self._lock = trio.Lock()
        self.scope = trio.CancelScope()

    async def send(self, message: Message) -> None:
        """Forward the application's message. A late answer loses its status: 200 is already on the wire."""
        if not self.late:
            self.begun = True
            await self._send(message)
        elif message["type"] == "http.response.body":
            async with self._lock:
                self._finished = True
                await self._stream(b"event: message\r\ndata: " + message.get("body", b"") + b"\r\n\r\n", more=False)

    async def keep_alive(self) -> None:
        """Send keep-alives until the answer is complete or `scope` is cancelled."""
        with self.scope:
            try:
                while True:
                    async with self._lock:
                        if self._finished:
                            return
                        await self._stream(_KEEP_ALIVE, more=True)
                    await trio.sleep(SILENT_S)
            except Exception as error:  # a fault on one connection must not end the other ones
                report(leaf(error), MCP_PATH)

    async def _stream(self, data: bytes, *, more: bool) -> None:
        if not self._streaming:
            self._streaming = True
            await self._send({"type": "http.response.start", "status": 200, "headers": list(_START)})
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


class SlowAnswers:
    """The plain answers in progress. `watch` must run while there are any."""

    def __init__(self) -> None:
        # In the order of their requests. Late answers are removed.
        self._waiting: dict[_SlowAnswer, None] = {}

    @contextmanager
    def watched(self, send: Send) -> Iterator[Send]:
        """A `send` for an application that sends one JSON text, watched for as long as the block lasts."""
        answer = _SlowAnswer(send)
        self._waiting[answer] = None
        try:
            yield answer.send
        finally:
            self._waiting.pop(answer, None)
            answer.scope.cancel()

    async def watch(self) -> None:
        """Start keep-alives for answers that have become late. Runs until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(LOOK_EVERY_S)
                due = trio.current_time() - SILENT_S
                for answer in [each for each in self._waiting if each.since <= due]:
                    del self._waiting[answer]
                    if not answer.begun:
                        answer.late = True
                        nursery.start_soon(answer.keep_alive)

"""Plain answers of `/mcp` that take long: they become event streams with signs of life, as the SDK's own do.

A proxy cuts a connection on which nothing is said for too long, so a silent call may not stay silent (2026-07-28,
streamable HTTP). The SDK has two tasks beside every call for that, a fifth of what a call costs; here one task looks
after all of them, and a call has a task of its own only once it is late.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from engine.errors import leaf
from server.asgi import Message, Send
from server.logs import report
from server.target import MCP_PATH

# A call is late after this long, and shows life as often: what the SDK does.
SILENT_S = 15.0
LOOK_EVERY_S = 1.0

_START: tuple[tuple[bytes, bytes], ...] = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
_SIGN_OF_LIFE = b": ping\r\n\r\n"


class _Answer:
    """One answer on its way: to be sent as it is said, or, once it is late, as the one event of a stream."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.since = trio.current_time()
        # Invariant: at most one of them is true. The first is set when the answer begins in time, before anything else
        # can run; the second when it did not, and from then on everything is sent under the lock.
        self.begun = False
        self.late = False
        self._streaming = False
        self._finished = False
        self._lock = trio.Lock()
        self.scope = trio.CancelScope()

    async def say(self, message: Message) -> None:
        """Pass on what the application says. The status of a late answer is lost: it was 200 before anybody knew."""
        if not self.late:
            self.begun = True
            await self._send(message)
        elif message["type"] == "http.response.body":
            async with self._lock:
                self._finished = True
                await self._stream(b"event: message\r\ndata: " + message.get("body", b"") + b"\r\n\r\n", more=False)

    async def show_life(self) -> None:
        """Say that nothing has happened yet, until `scope` is cancelled."""
        with self.scope:
            try:
                while True:
                    async with self._lock:
                        if self._finished:
                            return
                        await self._stream(_SIGN_OF_LIFE, more=True)
                    await trio.sleep(SILENT_S)
            except Exception as error:  # one client's connection: no reason for anybody else's to end
                report(leaf(error), MCP_PATH)

    async def _stream(self, data: bytes, *, more: bool) -> None:
        if not self._streaming:
            self._streaming = True
            await self._send({"type": "http.response.start", "status": 200, "headers": list(_START)})
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


class Late:
    """The plain answers that are being made. `watch` must run while there are any."""

    def __init__(self) -> None:
        # In the order in which they were asked for; one that has become late is no longer here.
        self._waiting: dict[_Answer, None] = {}

    @contextmanager
    def looked_after(self, send: Send) -> Iterator[Send]:
        """A `send` for an application that says one JSON text, for as long as the block lasts."""
        answer = _Answer(send)
        self._waiting[answer] = None
        try:
            yield answer.say
        finally:
            self._waiting.pop(answer, None)
            answer.scope.cancel()

    async def watch(self) -> None:
        """Look after them. Runs until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(LOOK_EVERY_S)
                due = trio.current_time() - SILENT_S
                for answer in [each for each in self._waiting if each.since <= due]:
                    del self._waiting[answer]
                    if not answer.begun:
                        answer.late = True
                        nursery.start_soon(answer.show_life)

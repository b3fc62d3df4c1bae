"""The wire `script`: answers from a file, offline. The file is read again when it changes."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import trio

from engine.models import openai
from engine.models.retrying import passes
from engine.models.scripted import MAX_SCRIPT_BYTES, Reply, Scripted, last_text, parse_script
from engine.models.shapes import (
    Building,
    Event,
    ModelFailed,
    Request,
    Room,
    Stopped,
    TextDelta,
)
from engine.models.stub import HUGE_BYTES

_PIECE = 64


def read_script(path: Path) -> tuple[Reply, ...]:
    """The replies in a file. Raises ValueError, a phrase, also where it cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SCRIPT_BYTES + 1)
        return parse_script(raw.decode())
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None


@dataclass
class ScriptWire:
    """A script as a model."""

    path: Path
    url: None = None
    _script: Scripted | None = None
    _state: tuple[int, int, int] = field(default=(0, 0, 0))

    def body(self, request: Request) -> bytes:
        """The request as a server would get it, by whose size its tokens are counted."""
        most = request.max_output_tokens or 1
        return orjson.dumps(openai.body(request, "script", most, openai.Dialect()))

    @asynccontextmanager
    async def send(self, request: Request, key: str | None) -> AsyncIterator[AsyncIterator[Event]]:
        """One try. Raises ModelFailed."""
        body = self.body(request)
        script = await self._current()
        reply = script.next(last_text(orjson.loads(body)["messages"]))
        if reply is None:
            raise ModelFailed("no reply of the script fits the last message")
        if reply.delay_s:
            await trio.sleep(reply.delay_s)
        if reply.status >= 300:
            raise ModelFailed(
                f"its script answers with status {reply.status}", again=passes(reply.status), status=reply.status
            )
        async with aclosing(_events(reply, request, len(body))) as events:
            yield events

    async def _current(self) -> Scripted:
        try:
            state = await trio.to_thread.run_sync(_state, self.path)
            if self._script is None or state != self._state:
                self._script = Scripted(await trio.to_thread.run_sync(read_script, self.path))
                self._state = state
        except OSError as error:
            raise ModelFailed(f"its script cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise ModelFailed(f"its script: {error}") from None
        return self._script


def _state(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


async def _events(reply: Reply, request: Request, size: int) -> AsyncGenerator[Event, None]:
    room = Room(request.output_bytes)
    text = reply.text
    match reply.fault:
        case "garbage":
            raise ModelFailed("its answer is not JSON where the wire has JSON")
        case "huge":
            text = "x" * HUGE_BYTES
        case "stall" | "cut":
            text = text[: len(text) // 2]
    piece = _PIECE if reply.fault != "huge" else HUGE_BYTES // _PIECE
    for at in range(0, len(text), piece):
        yield TextDelta(room.take(text[at : at + piece]))
        await trio.lowlevel.checkpoint()
    if reply.fault == "stall":
        await trio.sleep_forever()
    if reply.fault == "cut":
        raise ModelFailed("its answer ends in the middle", again=True)
    for position, call in enumerate(reply.tool_calls, 1):
        raw = call.arguments if isinstance(call.arguments, str) else orjson.dumps(call.arguments).decode()
        building = Building(f"call_{position}", call.name)
        building.pieces.append(room.take(raw))
        yield building.done(position, {wire: name for name, wire in openai.names_of(request).items()}, room)
    yield reply.tokens(size)
    yield Stopped("tool_calls" if reply.tool_calls else "stop")

"""Models for tests: the recorded streams, a stub, and a server whose answers are written out."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trio

from engine.config import parse_config
from engine.egress.secrets import NoSecrets, SecretSource
from engine.models import anthropic, openai
from engine.models.calling import CalledModel, Models, open_models
from engine.models.http import Http, Reply, Stream
from engine.models.scripted import parse_script
from engine.models.shapes import Answer, Event, Request, Text, User, collected
from engine.models.stub import Stub, serve_stub

STREAMS = Path(__file__).with_name("streams")
NAMES = sorted(path.stem for path in STREAMS.glob("*.sse"))
HELLO = Request([User((Text("Hello, are you there?"),))])


async def in_pieces(pieces: Sequence[bytes]) -> AsyncIterator[bytes]:
    """A body that arrives in these pieces."""
    for piece in pieces:
        yield piece


async def read(api: str, pieces: Sequence[bytes], request: Request = HELLO) -> list[Event]:
    """The events of a body in these pieces, to a request of 100 bytes."""
    head = {"content-type": "text/event-stream; charset=latin-1"}
    reply = Reply(200, head, in_pieces(pieces), 10_000_000, "model.test")
    reader = anthropic.Reader(request) if api == "anthropic" else openai.Reader(request)
    stream = Stream(reply, reader, 100)
    return [event async for event in stream]


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((STREAMS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def shown(answer: Answer) -> dict[str, Any]:
    """An answer in the form of the files."""
    usage = answer.usage
    return {
        "text": answer.text,
        "calls": [[call.id, call.name, call.arguments] for call in answer.calls],
        "usage": [usage.input, usage.cached, usage.output, usage.estimated],
        "reason": answer.reason,
    }


@asynccontextmanager
async def stubbed(script: str) -> AsyncIterator[tuple[Stub, str]]:
    """A stub with this script, and its address."""
    stub = Stub(parse_script(script))
    async with trio.open_nursery() as nursery:
        port = await nursery.start(partial(serve_stub, stub, "127.0.0.1", 0))
        yield stub, f"http://127.0.0.1:{port}"
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def configured(text: str, secrets: SecretSource | None = None, http: Http | None = None) -> AsyncIterator[Models]:
    """The models of a configuration."""
    config, warnings = parse_config(text, environ={}, cwd=Path("/nowhere"))
    assert warnings == ()
    async with open_models(config, secrets or NoSecrets(), http) as models:
        yield models


@asynccontextmanager
async def model_at(url: str, api: str = "openai", *more: str, **how: Any) -> AsyncIterator[CalledModel]:
    """A model at this address; `more` are lines of its table."""
    base = f"{url}/v1" if api == "openai" else url
    lines = "\n".join(more)
    text = f'[models.m]\napi = "{api}"\nmodel = "some-model"\nurl = "{base}"\n{lines}\n'
    async with configured(text, **how) as models:
        yield models.model("m", "default")


async def answered(model: CalledModel, request: Request = HELLO) -> Answer:
    """The whole answer, within the time of a test."""
    with trio.fail_after(20):
        async with model.ask(request) as events:
            return collected([event async for event in events])


# ---- a server that says what it is told ------------------------------------------------------------------------


@dataclass
class Asked:
    """A request as the server got it."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


Behaviour = Callable[[trio.abc.Stream], Awaitable[None]]


@dataclass
class Server:
    """Answers with bytes, or by a function, one after the other; the last one for ever."""

    answers: list[bytes | Behaviour]
    asked: list[Asked] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    gone: int = 0

    async def serve(self, stream: trio.abc.Stream) -> None:
        try:
            buffer = b""
            while True:
                while b"\r\n\r\n" not in buffer:
                    data = await stream.receive_some()
                    if not data:
                        return
                    buffer += data
                head, _, rest = buffer.partition(b"\r\n\r\n")
                first, *lines = head.decode().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                length = int(headers.get("content-length", 0))
                while len(rest) < length:
                    rest += await stream.receive_some()
                body, buffer = rest[:length], rest[length:]
                self.asked.append(Asked(first.split()[1], headers, json.loads(body)))
                self.at.append(trio.current_time())
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if isinstance(answer, bytes):
                    await stream.send_all(answer)
                    if b"connection: close" in answer:
                        return
                else:
                    await answer(stream)
                    return
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await trio.aclose_forcefully(stream)
            self.gone += 1


def http(body: bytes | str = b"", status: int = 200, kind: str = "text/event-stream", **headers: str) -> bytes:
    """An answer with a length."""
    raw = body.encode() if isinstance(body, str) else body
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(raw)}\r\n{lines}\r\n".encode() + raw


def recorded(name: str) -> bytes:
    """An answer with a recorded stream."""
    return http((STREAMS / f"{name}.sse").read_bytes())


@asynccontextmanager
async def serving(*answers: bytes | Behaviour, tls: Any = None) -> AsyncIterator[tuple[Server, str]]:
    """A server with these answers, and its address."""
    server = Server(list(answers))

    async def handle(stream: trio.SocketStream) -> None:
        if tls is None:
            await server.serve(stream)
            return
        encrypted = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
        try:
            await encrypted.do_handshake()
        except (trio.BrokenResourceError, OSError):
            return
        await server.serve(encrypted)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, handle, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        yield server, f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"
        nursery.cancel_scope.cancel()

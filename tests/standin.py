"""A small HTTP server on loopback: answers as a function says, and keeps what it was asked."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import h11
import trio


@dataclass(frozen=True)
class Asked:
    """One request. `headers` has lower-case names."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Said:
    """One answer."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class StandIn:
    """Where the server is (`127.0.0.1:PORT`), and what it was asked so far."""

    address: str
    asked: list[Asked] = field(default_factory=list)


@asynccontextmanager
async def stand_in(answer: Callable[[Asked], Said | None]) -> AsyncIterator[StandIn]:
    """Such a server, on any free port. One request a connection; None is no answer, ever."""

    async def serve(stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER)
        request, body = None, b""
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some())
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += event.data
            else:  # the client went away
                return
        assert request is not None
        headers = {name.decode(): value.decode() for name, value in request.headers}
        asked = Asked(request.method.decode(), request.target.decode(), headers, body)
        server.asked.append(asked)
        said = answer(asked)
        if said is None:
            await trio.sleep_forever()
            return
        length = {"content-length": str(len(said.body)), "connection": "close"}
        for out in (
            h11.Response(status_code=said.status, headers=list({**length, **said.headers}.items())),
            h11.Data(data=said.body),
            h11.EndOfMessage(),
        ):
            await stream.send_all(connection.send(out) or b"")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        server = StandIn(f"127.0.0.1:{listeners[0].socket.getsockname()[1]}")
        yield server
        nursery.cancel_scope.cancel()

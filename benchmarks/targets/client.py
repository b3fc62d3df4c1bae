"""A light HTTP/1.1 client: h11 on trio streams, keep-alive connections, nothing else.

The client uses CPU time of the machine under test: h11 needs about 90 us a request, a full client three times that.
"""

import errno
import select
from collections.abc import Sequence
from dataclasses import dataclass

import h11
import trio

from benchmarks.load.account import CLOSED, GARBAGE, REFUSED, RESET, TESTER
from benchmarks.targets.address import Address, connect

# A larger answer is given up: `output_bytes` cannot be set above 16 MiB.
MAX_BODY_BYTES = 64 << 20
_READ_BYTES = 65536

# Errors about resources of this machine, not of the server.
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})

Headers = Sequence[tuple[str, str]]


class Failed(Exception):
    """There is no answer. `outcome` is one of the tester's own; see `account`."""

    def __init__(self, outcome: str) -> None:
        super().__init__(outcome)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Response:
    """A complete answer. Names of headers are in lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


class _Connection:
    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.http = h11.Connection(h11.CLIENT)
        self._poll = select.poll()
        self._poll.register(stream.socket.fileno(), select.POLLIN)

    def stale(self) -> bool:
        """Whether the server has closed it, or sent unsolicited bytes: no request may be sent on it."""
        return bool(self._poll.poll(0))


class Client:
    """Requests to one address. Each takes the idle connection used last, or opens a new one."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._free: list[_Connection] = []

    async def request(self, method: str, path: str, body: bytes | None = None, headers: Headers = ()) -> Response:
        """Send one request and read its answer. `path` is appended to the address's path. Raises Failed."""
        connection = await self._take()
        keep = False
        try:
            await connection.stream.send_all(self._written(connection.http, method, path, body, headers))
            response = await self._read(connection)
            keep = connection.http.our_state is h11.DONE and connection.http.their_state is h11.DONE
        except (trio.BrokenResourceError, OSError):
            raise Failed(RESET) from None
        finally:
            if keep:
                connection.http.start_next_cycle()
                self._free.append(connection)
            else:
                connection.stream.socket.close()
        return response

    def close(self) -> None:
        """Close every idle connection."""
        for connection in self._free:
            connection.stream.socket.close()
        self._free.clear()

    async def _take(self) -> _Connection:
        while self._free:
            connection = self._free.pop()
            if not connection.stale():
                return connection
            connection.stream.socket.close()
        try:
            return _Connection(await connect(self._address.host, self._address.port))
        except OSError as error:
            raise Failed(TESTER if error.errno in _OURS else REFUSED) from None

    def _written(self, http: h11.Connection, method: str, path: str, body: bytes | None, headers: Headers) -> bytes:
        fields = [("host", self._address.authority), ("user-agent", "engine-bench"), *headers]
        if body is not None:
            fields += [("content-type", "application/json"), ("content-length", str(len(body)))]
        target = f"{self._address.path}{path}" or "/"
        data = http.send(h11.Request(method=method, target=target, headers=fields)) or b""
        if body is not None:
            data += http.send(h11.Data(data=body)) or b""
        return data + (http.send(h11.EndOfMessage()) or b"")

    async def _read(self, connection: _Connection) -> Response:
        http, stream = connection.http, connection.stream
        head: h11.Response | None = None
        parts: list[bytes] = []
        size, at_the_end = 0, False
        while True:
            try:
                event = http.next_event()
            except h11.RemoteProtocolError:
                raise Failed(CLOSED if at_the_end else GARBAGE) from None
            if event is h11.NEED_DATA:
                data = await stream.receive_some(_READ_BYTES)
                at_the_end = not data
                http.receive_data(data)
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                parts.append(bytes(event.data))
                if (size := size + len(event.data)) > MAX_BODY_BYTES:
                    raise Failed(GARBAGE)
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None  # h11 gives a head before a body
                return Response(head.status_code, dict(head.headers), b"".join(parts))
            elif not isinstance(event, h11.InformationalResponse):
                raise Failed(CLOSED)

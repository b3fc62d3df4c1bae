"""Connections for httpcore2 on trio: a request goes out in one piece, and a read makes no scope of its own.

Head and body sent apart are two packets, of which the first wakes the server for nothing. A scope for a read without a
timeout was 1.7 KB of each call that waits.
"""

import ssl
from collections.abc import Iterable
from contextlib import suppress
from math import inf
from typing import Any

import httpcore2
import trio

_LOST = (trio.BrokenResourceError, trio.ClosedResourceError)


class Network(httpcore2.AsyncNetworkBackend):
    """Connects by TCP."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (httpcore2's)
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            with trio.fail_after(inf if timeout is None else timeout):
                return _Connection(await trio.open_tcp_stream(host, port, local_address=local_address))
        except trio.TooSlowError as error:
            raise httpcore2.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpcore2.ConnectError(str(error)) from error


class _Connection(httpcore2.AsyncNetworkStream):
    """One connection. `timeout` is None but for its handshake: the call's scope bounds the exchange."""

    def __init__(self, socket: trio.SocketStream, encrypted: "trio.SSLStream[trio.SocketStream] | None" = None) -> None:
        self._socket = socket
        self._stream = encrypted or socket
        # What is written, until something is to be read.
        self._written: list[bytes] = []

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        if buffer:
            self._written.append(buffer)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        try:
            if self._written:
                await self._send()
            return bytes(await self._stream.receive_some(max_bytes))
        except _LOST as error:
            raise httpcore2.ReadError(str(error)) from error

    async def _send(self) -> None:
        whole, self._written = b"".join(self._written), []
        with suppress(*_LOST):  # a server that refuses a request before its end has answered, and the answer is read
            await self._stream.send_all(whole)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore2.AsyncNetworkStream:
        stream = trio.SSLStream(self._socket, ssl_context, server_hostname=server_hostname, https_compatible=True)
        try:
            with trio.fail_after(inf if timeout is None else timeout):
                await stream.do_handshake()
        except BaseException as error:
            await trio.aclose_forcefully(self._socket)
            if isinstance(error, trio.TooSlowError):
                raise httpcore2.ConnectTimeout(str(error)) from error
            if isinstance(error, trio.BrokenResourceError):
                raise httpcore2.ConnectError(str(error)) from error
            raise
        return _Connection(self._socket, stream)

    def get_extra_info(self, info: str) -> Any:
        """`is_readable` of an idle connection: its server has closed it."""
        return self._socket.socket.is_readable() if info == "is_readable" else None

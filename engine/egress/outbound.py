"""Outgoing connections of scripts: to vetted addresses, kept alive for their tenant, with bounds on everything.

`engine/egress/rules.py` decides what is allowed; this module resolves names, connects, and uses httpcore2 for HTTP/1.1.
It reads no proxy setting and no .netrc, and stores no cookies. It is imported with the first `http` call.
"""

import logging
import math
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

import httpcore2
import trio

from engine.egress.rules import Address, Target
from sandbox.wire.limits import KIB

# At debug level it logs the headers of answers, which may repeat secrets. A program that embeds the engine may log at
# that level.
logging.getLogger("httpcore2").setLevel(logging.INFO)

Lookup = Callable[[str], Sequence[str]]
Header = tuple[bytes, bytes]

# Time-out for connecting to one address. The rest of the call's time is shared among the addresses still to try.
CONNECT_S = 10.0
# A name with more addresses than this is a content network, or an attempt to make the engine scan for the script.
MAX_TRIED = 4
MAX_ADDRESSES = 64
# A getaddrinfo that hangs cannot be stopped, only abandoned; one tenant's must not use up the threads of all.
LOOKUPS_AT_ONCE = 8
# Keep-alive: how long an idle connection is kept for the next call, and how many are. Lua tools make calls in bursts.
KEPT_S = 15.0
KEPT_PER_TENANT = 8
KEPT_IN_ALL = 128
# Bound on the head of an answer, informational answers before it included.
HEAD_BYTES = 64 * KIB
MAX_HEADERS = 256
# Each chunk takes time of the shared event loop; no honest server sends a body in many tiny ones.
MAX_PARTS = 4096
MIN_BYTES_A_PART = 64
# How much is inflated between checkpoints.
INFLATED_AT_ONCE = 256 * KIB
# Bodies up to this size are copied into `bytes`, which is simpler.
COPIED_BYTES = 1024 * KIB
# How much of an unwanted body is read, and for how long, so that its connection can be reused.
DISCARDED_BYTES = 64 * KIB
DISCARD_S = 0.5

# Idempotent methods (RFC 9110 section 9.2.2), which may be retried when a kept connection turns out to be dead.
_REPEATABLE = frozenset({"GET", "PUT", "DELETE"})


class ExchangeFailed(Exception):
    """An exchange failed. The text says why in one sentence; it is safe to show to a script."""


class NotPermitted(ExchangeFailed):
    """The name has no address that the script may connect to."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it is sent, with all headers except those of the connection."""

    method: str
    target: Target = field(repr=False)  # no repr of what may contain secrets
    headers: tuple[Header, ...] = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(slots=True)
class Trace:
    """What is known of one exchange so far, for the egress log. Bytes are those inside TLS."""

    address: str | None = None
    status: int | None = None
    bytes_in: int = 0
    bytes_out: int = 0


def system_lookup(host: str) -> tuple[str, ...]:
    """The addresses of a name in the system's order. Blocks; raises OSError when there are none."""
    # As bytes, so that Python does not apply its own IDNA encoding.
    found = socket.getaddrinfo(host.encode("ascii"), None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


class _Wire(httpcore2.AsyncNetworkStream):
    """A connected stream that counts bytes, and reads no more than is allowed.

    The `timeout` parameters are httpcore2's and always None: the caller's cancel scope bounds the exchange.
    """

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self.ended = False
        self.begin(Trace())

    def begin(self, trace: Trace) -> None:
        """Start the next exchange: allow its head to be read."""
        self.trace = trace
        self.allow(HEAD_BYTES, f"the head of the answer is larger than {HEAD_BYTES} bytes")

    def allow(self, allowed: int, beyond: str) -> None:
        """Fail with the text `beyond` once `allowed` bytes of this exchange were read."""
        self._allowed, self._beyond = allowed, beyond

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        if self.trace.bytes_in >= self._allowed:
            raise ExchangeFailed(self._beyond)
        data = await self._stream.read(max_bytes, timeout)
        self.trace.bytes_in += len(data)
        self.ended = not data
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await self._stream.write(buffer, timeout)
        self.trace.bytes_out += len(buffer)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Connection:
    """One connection to one address, for requests to one origin."""

    def __init__(self, target: Target, address: Address, stream: httpcore2.AsyncNetworkStream) -> None:
        self.origin = target.origin
        self.address = address
        self.kept_since = 0.0
        self.wire = _Wire(stream)
        self._http = httpcore2.AsyncHTTP11Connection(_origin(target), self.wire)

    async def ask(self, request: Request, trace: Trace) -> httpcore2.Response:
        """Send a request and read the head of its answer. After an error the connection is closed."""
        target = request.target
        trace.address = str(self.address)
        self.wire.begin(trace)
        try:
            with _in_words(target.host, self.wire):
                response = await self._http.handle_async_request(
                    httpcore2.Request(
                        request.method,
                        httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path),
                        headers=list(request.headers),
                        content=request.body,
                    )
                )
            trace.status = response.status
            if len(response.headers) > MAX_HEADERS:
                raise ExchangeFailed(f"the answer has {len(response.headers)} headers; the limit is {MAX_HEADERS}")
        except BaseException:
            await self.close()
            raise
        return response

    def reusable(self) -> bool:
        """Whether the last exchange was complete, without trailing bytes."""
        # Bytes beyond the announced length would be read as the answer of the next request.
        return self._http.is_idle() and self._http._h11_state.trailing_data == (b"", False)

    def alive(self) -> bool:
        """Whether the server has neither closed it nor sent anything since."""
        return not self._http.has_expired()

    async def close(self) -> None:
        with trio.CancelScope(shield=True):  # safe to shield: close does not wait
            await self.wire.aclose()


def _origin(target: Target) -> httpcore2.Origin:
    return httpcore2.Origin(target.scheme.encode(), target.host.encode(), target.port)


@contextmanager
def _in_words(host: str, wire: _Wire | None = None) -> Iterator[None]:
    """Turn errors of httpcore2 into ExchangeFailed, with texts that quote neither the library nor the peer."""
    try:
        yield
    except httpcore2.LocalProtocolError:
        raise ExchangeFailed("the request is not legal HTTP/1.1") from None
    except httpcore2.ProtocolError:
        if wire is not None and wire.ended:
            raise ExchangeFailed(f"{host} closed the connection before its answer was complete") from None
        raise ExchangeFailed(f"{host} sent something that is not an HTTP/1.1 answer") from None
    except httpcore2.NetworkError as error:
        if (found := _tls_error(error)) is None:
            raise ExchangeFailed(f"the connection to {host} failed") from None
        if isinstance(found, ssl.SSLCertVerificationError):
            raise ExchangeFailed(f"the certificate of {host} is not valid: {found.verify_message}") from None
        raise ExchangeFailed(f"no TLS connection could be made to {host}") from None


def _tls_error(error: BaseException) -> ssl.SSLError | None:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    return cause


class Response:
    """The head of an answer, and its body on demand. `headers` has lower-case names; repeated ones are joined."""

    def __init__(self, connection: _Connection, response: httpcore2.Response, host: str) -> None:
        self.status = response.status
        self.headers: dict[str, str] = {}
        for raw_name, raw_value in response.headers:
            name, value = raw_name.decode("latin-1").lower(), _text(raw_value)
            self.headers[name] = f"{self.headers[name]}, {value}" if name in self.headers else value
        self.coded = bytearray()
        self._connection = connection
        self._response = response
        self._host = host

    @property
    def encoded(self) -> bool:
        """Whether the body has a coding that is not decoded (RFC 9110 section 8.4)."""
        return self.headers.get("content-encoding", "").strip().lower() not in _UNDONE

    async def read(
        self, max_bytes: int, limit: str, hold: Callable[[int], None], *, keep_coded: bool = False
    ) -> bytes | bytearray:
        """The whole body, decompressed. `hold` is called with each size before that many bytes are kept, and may raise.

        With `keep_coded`, `coded` collects the compressed bytes, if the body is compressed.

        Raises ExchangeFailed beyond `max_bytes`, before or after decompression; `limit` is the name of that bound.
        """
        beyond = f"the answer is larger than {max_bytes} bytes ({limit})"
        wire = self._connection.wire
        # Bound the wire, too: compressed data may decompress to nothing. Framing of honest chunks adds under an eighth.
        wire.allow(wire.trace.bytes_in + max_bytes + max_bytes // 8 + HEAD_BYTES, beyond)
        inflater = _inflater(self.headers.get("content-encoding", ""))
        body = bytearray()
        raw = count = 0
        async with aclosing(self._response.aiter_stream()) as parts:
            with _in_words(self._host, wire):
                async for part in parts:
                    raw += len(part)
                    count += 1
                    if count > MAX_PARTS and raw < count * MIN_BYTES_A_PART:
                        raise ExchangeFailed(f"{self._host} sends its answer in more than {MAX_PARTS} tiny chunks")
                    if keep_coded and inflater is not None:
                        hold(len(part))
                        self.coded += part
                    for piece in (part,) if inflater is None else inflater.feed(part):
                        if len(body) + len(piece) > max_bytes:
                            raise ExchangeFailed(beyond)
                        hold(len(piece))
                        body += piece
                        # Data that has arrived is read without a checkpoint: make one.
                        await trio.lowlevel.checkpoint()
        if inflater is not None and raw:
            inflater.end()
        # A large one is not copied: that takes 1 ms for 10 MiB, and 60 for 100 MiB.
        return bytes(body) if len(body) <= COPIED_BYTES else body

    async def discard(self) -> None:
        """Read the body if it is short, so that the connection can be reused; else it is closed."""
        wire = self._connection.wire
        wire.allow(wire.trace.bytes_in + DISCARDED_BYTES, "the body is not wanted")
        with trio.move_on_after(DISCARD_S):
            async with aclosing(self._response.aiter_stream()) as parts:
                try:
                    with _in_words(self._host, wire):
                        async for _ in parts:
                            pass
                except ExchangeFailed:
                    return  # the head is all that is needed


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


class _Inflater:
    """Inflates one gzip or deflate body, in pieces of bounded size. Raises ExchangeFailed for invalid data."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        # Some servers send deflate without the zlib header of RFC 9110 section 8.4.1.2: two bytes tell which it is.
        self._head = b""
        self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16) if coding == "gzip" else None

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._stream is None:
            self._head += data
            if len(self._head) < 2:
                return
            data, first = self._head, int.from_bytes(self._head[:2], "big")
            has_header = first >> 8 & 15 == zlib.DEFLATED and first % 31 == 0
            self._stream = zlib.decompressobj(zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS)
        while True:
            try:
                piece = self._stream.decompress(data, INFLATED_AT_ONCE)
            except zlib.error:
                raise ExchangeFailed(f"the body of the answer is not {self._coding}, as its headers say") from None
            yield piece
            data = self._stream.unconsumed_tail
            if self._stream.unused_data:
                raise ExchangeFailed(f"the body of the answer goes on after its {self._coding} data")
            if not data and len(piece) < INFLATED_AT_ONCE:
                return

    def end(self) -> None:
        """Check that the data is complete."""
        if self._stream is None or not self._stream.eof:
            raise ExchangeFailed(f"the body of the answer ends in the middle of its {self._coding} data")


# The codings that `_inflater` decodes, and the absence of one.
_UNDONE = frozenset({"", "identity", "gzip", "x-gzip", "deflate"})


def _inflater(content_encoding: str) -> _Inflater | None:
    """The inflater for a coding that we requested, or None. Any other body, also one with a chain of codings, is not
    decoded: every link of a chain multiplies the cost of a small body, and no honest server sends one."""
    match content_encoding.strip().lower():
        case "gzip" | "x-gzip":
            return _Inflater("gzip")
        case "deflate":
            return _Inflater("deflate")
    return None


@dataclass(slots=True)
class _Tenant:
    """The connections of one tenant. Tenants never share one."""

    lookups: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(LOOKUPS_AT_ONCE))
    kept: list[_Connection] = field(default_factory=list)
    under_way: int = 0

    @property
    def idle(self) -> bool:
        return not self.kept and not self.under_way and not self.lookups.borrowed_tokens


class Outbound:
    """All outgoing connections. `expire` must run while it is in use, and `aclose` at its end.

    `lookup` resolves a name and may block; `network` connects to an address; `tls` has the trusted certificates, by
    default the system's.
    """

    def __init__(
        self,
        lookup: Lookup | None = None,
        network: httpcore2.AsyncNetworkBackend | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._lookup = lookup or system_lookup
        self._network = network or httpcore2.TrioBackend()
        self._tls = tls
        self._tenants: dict[str, _Tenant] = {}
        self._to_expire = trio.Event()

    @asynccontextmanager
    async def exchange(
        self, tenant_id: str, request: Request, permitted: Callable[[Address], bool], trace: Trace
    ) -> AsyncIterator[Response]:
        """Send a request; the connection is released at the end of the block. `permitted` judges every address.

        Raises ExchangeFailed. The caller's cancel scope bounds the time of the exchange.
        """
        tenant = self._tenants.setdefault(tenant_id, _Tenant())
        tenant.under_way += 1
        try:
            connection, response = await self._ask(tenant, request, permitted, trace)
            try:
                yield Response(connection, response, request.target.host)
            finally:
                await self._release(tenant, connection, response)
        finally:
            tenant.under_way -= 1
            if tenant.idle:
                del self._tenants[tenant_id]
            else:  # also for an abandoned lookup
                self._to_expire.set()

    async def _ask(
        self, tenant: _Tenant, request: Request, permitted: Callable[[Address], bool], trace: Trace
    ) -> tuple[_Connection, httpcore2.Response]:
        kept = await self._take(tenant, request.target, permitted)
        if kept is not None:
            try:
                return kept, await kept.ask(request, trace)
            except ExchangeFailed:
                # The server may have closed it while it was idle. That looks like an answer that never came, so a
                # request that is not idempotent is not sent again.
                if trace.bytes_in or request.method not in _REPEATABLE:
                    raise
                trace.bytes_out = 0
        connection = await self._connect(tenant, request.target, permitted)
        return connection, await connection.ask(request, trace)

    async def _take(self, tenant: _Tenant, target: Target, permitted: Callable[[Address], bool]) -> _Connection | None:
        """A kept connection for this origin.

        Safe against DNS rebinding: the connection leads to the address that was vetted when it was made, whatever the
        name resolves to now, and that address is judged again by the rules of this run. A connection to the same
        address under another name is another origin, and with TLS had another certificate.
        """
        fitting = [c for c in reversed(tenant.kept) if c.origin == target.origin and permitted(c.address)]
        for connection in fitting:
            tenant.kept.remove(connection)
            if connection.alive():
                return connection
            await connection.close()
        return None

    async def _release(self, tenant: _Tenant, connection: _Connection, response: httpcore2.Response) -> None:
        with trio.CancelScope(shield=True):  # safe to shield: nothing is read or written, close does not wait
            await response.aclose()
        if (
            connection.reusable()
            and len(tenant.kept) < KEPT_PER_TENANT
            and sum(len(other.kept) for other in self._tenants.values()) < KEPT_IN_ALL
        ):
            connection.kept_since = trio.current_time()
            tenant.kept.append(connection)
        else:
            await connection.close()

    async def _connect(self, tenant: _Tenant, target: Target, permitted: Callable[[Address], bool]) -> _Connection:
        addresses = await self._addresses(tenant, target, permitted)
        for position, address in enumerate(addresses):
            share = (trio.current_effective_deadline() - trio.current_time()) / (len(addresses) - position)
            with trio.move_on_after(max(0.0, min(CONNECT_S, share) if math.isfinite(share) else CONNECT_S)):
                try:
                    stream = await self._network.connect_tcp(str(address), target.port)
                except (httpcore2.NetworkError, httpcore2.TimeoutException):
                    continue
                if target.scheme == "https":
                    stream = await self._encrypted(stream, target)
                return _Connection(target, address, stream)
        raise ExchangeFailed(f"{target.host} does not accept connections at port {target.port}")

    async def _addresses(
        self, tenant: _Tenant, target: Target, permitted: Callable[[Address], bool]
    ) -> tuple[Address, ...]:
        """The addresses to try. This is the only time that the name is resolved."""
        if target.address is not None:
            return (target.address,)
        try:
            found = await trio.to_thread.run_sync(
                self._lookup, target.host, abandon_on_cancel=True, limiter=tenant.lookups
            )
        except OSError:
            raise ExchangeFailed(f"no address was found for {target.host}") from None
        if not found:
            raise ExchangeFailed(f"no address was found for {target.host}")
        vetted = [address for address in map(ip_address, found[:MAX_ADDRESSES]) if permitted(address)]
        if not vetted:
            raise NotPermitted(
                f"{target.host} leads to an address that is not public, which only a rule that lists it reaches "
                "(allow_hosts with the address itself, beside the name)"
            )
        return tuple(vetted[:MAX_TRIED])

    async def _encrypted(self, stream: httpcore2.AsyncNetworkStream, target: Target) -> httpcore2.AsyncNetworkStream:
        """Start TLS, with the certificate checked against the name, not the address."""
        try:
            if self._tls is None:  # reads the system's certificates: some 20 ms
                self._tls = await trio.to_thread.run_sync(httpcore2.default_ssl_context)
                self._tls.set_alpn_protocols(["http/1.1"])
            with _in_words(target.host):
                return await stream.start_tls(self._tls, server_hostname=target.host)
        except BaseException:
            with trio.CancelScope(shield=True):  # safe to shield: close does not wait
                await stream.aclose()
            raise

    async def expire(self) -> None:
        """Close connections that have been idle for `KEPT_S`, and drop tenants without any. Runs until cancelled."""
        while True:
            await self._to_expire.wait()
            await trio.sleep(KEPT_S)
            expired = []
            for tenant_id, tenant in list(self._tenants.items()):
                old = [c for c in tenant.kept if c.kept_since <= trio.current_time() - KEPT_S]
                tenant.kept = [c for c in tenant.kept if c not in old]
                expired += old
                if tenant.idle:
                    del self._tenants[tenant_id]
            for connection in expired:
                await connection.close()
            if not self._tenants:
                self._to_expire = trio.Event()

    async def aclose(self) -> None:
        """Close every idle connection. None may be in use."""
        for tenant in self._tenants.values():
            while tenant.kept:
                await tenant.kept.pop().close()
        self._tenants.clear()

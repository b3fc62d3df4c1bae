"""`http.get`, `http.post`, `http.put`, `http.patch`, `http.delete`: requests to the hosts that `allow_hosts` lists.

This module makes requests from arguments and follows redirects; the rules are in `engine/egress/rules.py`, the
connections in `engine/egress/outbound.py`. Every hop writes one line to the log `engine.egress`.
"""

import codecs
import math
import re
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import orjson
import structlog
import trio

from engine.bridge import CallDenied, CallRefused, HostContext, HostFunction
from engine.bridge.families import Family, Host
from engine.bridge.room import SMALL_BYTES, Hold, NoRoom
from engine.egress import rules as egress
from engine.egress.rules import Scalar, Target
from engine.egress.secrets import Scrubber, SecretRefused
from engine.errors import ungrouped
from sandbox.wire.limits import MIB

if TYPE_CHECKING:  # imported with the first call (`_Connections.outbound`): it takes 40 ms
    import httpcore2

    from engine.egress.outbound import Lookup, Outbound, Request, Response, Trace

log = structlog.get_logger("engine.egress")

METHODS = {f"http.{method}": method.upper() for method in ("get", "post", "put", "patch", "delete")}
GRANTS = frozenset(METHODS)
# Bound on one tenant's calls under way, and so on its connections.
AT_ONCE = 16
# As in ctx.
DEFAULT_TIMEOUT_S = 30.0
MAX_REDIRECTS = 10
MAX_REQUEST_HEADERS = 64
MAX_REQUEST_HEADER_BYTES = 16 * 1024
# Larger JSON a script has to decode itself, in its own memory and CPU time. The worst case of so many values is lists
# in lists (15 ms), that of so many bytes strings full of escapes (20 ms, measured).
MAX_JSON_VALUES = 50_000
MAX_JSON_BYTES = 8 * MIB
# Bound on a table that is sent as JSON, as msgpack; control characters become six times as many bytes (20 ms).
MAX_TABLE_BYTES = 2 * MIB

# Up to this work, an answer is searched for secrets without a thread: about a millisecond.
SCRUBBED_AT_ONCE = 1024 * 1024

# RFC 9110 section 5.1 and 5.5. Control characters would end the header.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NOT_IN_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# Headers of the connection, which scripts may not set (RFC 9110 section 7.6.1): they could make one request look like
# two, or like one for another host.
_OURS = frozenset(
    {
        "accept-encoding", "connection", "content-length", "expect", "host", "http2-settings", "keep-alive",
        "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding",
        "upgrade",
    }
)  # fmt: skip
# Headers that are kept when a redirect leads to another origin. A list of harmless ones, not of secret ones: tokens
# travel in headers of any name (Private-Token, X-Api-Key, apikey).
_HARMLESS = frozenset(
    {
        "accept", "accept-charset", "accept-language", "content-encoding", "content-language", "content-type",
        "user-agent",
    }
)  # fmt: skip
# Headers that ask for a part of the answer, a digest of it, or another encoding. If a secret is bound to the host, its
# answers are searched for the value, so a script must not choose their form.
_FORM = frozenset(
    {
        "a-im", "accept-charset", "accept-ranges", "if-range", "range", "range-unit", "request-range",
        "unless-modified", "want-content-digest", "want-digest", "want-repr-digest", "x-accept-encoding", "x-range",
    }
)  # fmt: skip
# Partial answers: a range (RFC 9110 section 15.3.7), and a delta (RFC 3229 section 10.4.1).
_PARTIAL = frozenset({206, 226})
# Charsets in which ASCII, and so nearly every secret, has the same bytes as in UTF-8; UTF-16 and UTF-32 are searched as
# well (`engine.egress.secrets`). Not among them: UTF-7, EBCDIC, and those that switch with escapes.
_READABLE_CHARSET = re.compile(
    r"(utf-?8|utf-?(16|32)(le|be)?|us-ascii|ascii|iso-?8859-?\d{1,2}|latin-?1|windows-?\d{3,4}|cp125\d|koi8-[ru]"
    r"|euc-(jp|kr)|gb2312|gbk|gb18030|big5|shift_jis|binary)?"
)
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([^\"';,\s]*)", re.IGNORECASE)
# Content codings that are decoded before the answer is searched; scripts cannot request another.
_CODINGS = "gzip, deflate"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_JSON_TYPE = re.compile(r"(application|text)/json|[^/]+/[^/]+\+json")


class HttpArguments(msgspec.Struct):
    """`url` is absolute; `params` go into its query; `body` is text, bytes or, sent as JSON, a table; `timeout` is the
    time for the whole call in seconds, redirects included."""

    url: str
    headers: dict[str, str | int | float] | None = None
    params: dict[str, str | int | float | bool] | None = None
    body: msgspec.Raw = msgspec.Raw(msgspec.msgpack.encode(None))  # decoded when it is the call's turn
    timeout: int | float | None = None


@dataclass(frozen=True, slots=True)
class Http:
    """The family, with its resources open."""

    functions: tuple[HostFunction, ...]


@asynccontextmanager
async def open_http(
    *,
    lookup: "Lookup | None" = None,
    network: "httpcore2.AsyncNetworkBackend | None" = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Http]:
    """The `http` host calls. A tenant's connections are kept alive between calls for some seconds.

    `lookup` resolves a name (it may block: it runs in a thread), `network` connects to an address, `tls` has the
    trusted certificates; all three default to the system's.
    """
    with ungrouped():  # the nursery's own task raises nothing
        async with trio.open_nursery() as nursery:
            connections = _Connections(nursery, lookup, network, tls)
            try:
                yield Http(
                    tuple(
                        HostFunction(name, HttpArguments, partial(_call, connections, method), AT_ONCE)
                        for name, method in METHODS.items()
                    )
                )
            finally:
                nursery.cancel_scope.cancel()
                await connections.aclose()


class _Connections:
    """Imports the HTTP client, and opens `Outbound`, when the first call comes."""

    def __init__(
        self,
        nursery: trio.Nursery,
        lookup: "Lookup | None",
        network: "httpcore2.AsyncNetworkBackend | None",
        tls: ssl.SSLContext | None,
    ) -> None:
        self._nursery = nursery
        self._how = (lookup, network, tls)
        self._outbound: Outbound | None = None

    def outbound(self) -> "Outbound":
        if self._outbound is None:
            from engine.egress.outbound import Outbound

            self._outbound = Outbound(*self._how)
            self._nursery.start_soon(self._outbound.expire)
        return self._outbound

    async def aclose(self) -> None:
        if self._outbound is not None:
            await self._outbound.aclose()


async def _call(connections: _Connections, method: str, context: HostContext, arguments: HttpArguments) -> Any:
    outbound = connections.outbound()
    request = _request(method, arguments, context.request.limits.values.http_bytes, context)
    seconds = _seconds(arguments.timeout, context.remaining()["timeout_s"])
    del arguments  # frees them while the call waits
    hold = context.hold()
    try:
        hold.take(len(request.body))
        with trio.move_on_after(seconds):
            return await _follow(outbound, context, request, hold)
    finally:
        hold.release()
    raise CallRefused(f"no complete answer from {request.target.host} within {seconds:g} s (timeout)")


def _seconds(asked: float | None, left: float) -> float:
    """The time-out of the whole call: as requested, within the run's remaining time."""
    if asked is not None and not (math.isfinite(asked) and asked > 0):
        raise CallRefused(f"timeout must be a number of seconds above 0, got {asked:g}")
    return max(0.0, min(DEFAULT_TIMEOUT_S if asked is None else float(asked), left))


async def _follow(outbound: "Outbound", context: HostContext, request: "Request", hold: Hold) -> dict[str, Any]:
    """The answer to a request, after at most `MAX_REDIRECTS` redirects, each of which is checked anew."""
    for hop in range(MAX_REDIRECTS + 1):
        found = await _hop(outbound, context, request, hold, redirected=hop > 0)
        if isinstance(found, dict):
            return found
        request = found
    raise CallRefused(f"more than {MAX_REDIRECTS} redirects")


async def _hop(
    outbound: "Outbound", context: HostContext, request: "Request", hold: Hold, *, redirected: bool
) -> "dict[str, Any] | Request":
    """One request to one host: the answer for the script, or the next request if it redirects."""
    from engine.egress.outbound import ExchangeFailed, NotPermitted, Trace

    run, target = context.request, request.target
    rules, limits = egress.parse_rules(run.authority.hosts), run.limits.values
    record = _Record(context, request, Trace())
    with record:
        if (refused := egress.refusal(rules, target)) is not None:
            record.decision = "refused: not in allow_hosts"
            raise CallDenied(_refused_redirect(target, refused) if redirected else refused)
        try:
            filled = context.secrets.fill(target, request.headers, request.body, limits.http_bytes)
        except SecretRefused as refusal:
            record.decision = "refused: a secret"
            raise CallDenied(str(refusal)) from None
        record.secrets = filled.used
        scrubber = context.secrets.scrubber(target, filled.forms)
        if (
            scrubber
            and (asked := next((name for name, _ in request.headers if name.decode() in _FORM), None)) is not None
        ):
            record.decision = "refused: a secret"
            raise CallDenied(_refused_form(asked.decode(), target))
        if filled.body is not request.body:
            hold.take(len(filled.body))
        leaving = replace(request, target=filled.target, headers=filled.headers, body=filled.body)
        try:
            async with outbound.exchange(
                run.tenant.id, leaving, lambda address: egress.may_connect(rules, address, target.port), record.trace
            ) as answer:
                # From the script's own request: placeholders are filled in anew for the next host.
                following = _redirect(request, answer, scrubber)
                if following is None:
                    if scrubber and (form := _unsearched(answer)) is not None:
                        record.decision = "refused: a secret"
                        raise CallDenied(f"the answer of {target.host} {form}: {_BOUND}")
                    body = await answer.read(
                        limits.http_bytes, "limits.http_bytes", hold.take, keep_coded=bool(scrubber)
                    )
                    if await _scrub(answer.coded, scrubber, context) is not answer.coded:
                        record.decision = "refused: a secret"
                        raise CallDenied(f"the answer of {target.host} {_IN_CODING}: {_BOUND}")
                    headers = {scrubber.text(name): scrubber.text(value) for name, value in answer.headers.items()}
                    body = await _scrub(body, scrubber, context)
                    return _as_value(answer.status, headers, body, target.url, scrubber, context)
                await answer.discard()
                return following
        except NotPermitted as refusal:
            record.decision = "refused: not a public address"
            raise CallDenied(str(refusal)) from None
        except ExchangeFailed as failed:
            raise CallRefused(str(failed)) from None


_BOUND = "a secret is bound to this host, and an answer that cannot be searched for it is withheld"
# Compressed data does not contain a secret as it is, unless a script made it so that it decompresses to another text.
_IN_CODING = "holds a secret inside its coding (Content-Encoding)"


def _refused_form(name: str, target: Target) -> str:
    return f"headers: {name} chooses the form in which {target.authority} answers, and a secret is bound to that host"


def _unsearched(answer: "Response") -> str | None:
    """Why an answer cannot be searched for secrets, or None."""
    content_type = answer.headers.get("content-type", "").lower()
    if answer.status in _PARTIAL or "content-range" in answer.headers or "multipart/" in content_type:
        return "is partial content"
    if answer.encoded:
        return "has a coding that the engine does not decode (Content-Encoding)"
    if not all(map(_READABLE_CHARSET.fullmatch, _CHARSET.findall(content_type))):
        return "is text in an encoding that the engine does not read (charset)"
    return None


async def _scrub(body: bytes | bytearray, scrubber: Scrubber, context: HostContext) -> bytes | bytearray:
    """The body without secrets. More than `SCRUBBED_AT_ONCE` of work is done in a thread, and the run is charged."""
    if scrubber.work(len(body)) <= SCRUBBED_AT_ONCE:
        return scrubber.data(body)

    def work() -> tuple[bytes | bytearray, float]:
        started = time.thread_time()
        return scrubber.data(body), time.thread_time() - started

    body, cpu_s = await trio.to_thread.run_sync(work)
    context.worked(cpu_s)
    return body


def _refused_redirect(target: Target, refused: str) -> str:
    # The script did not name this address, an answer did: it may reveal a private network, so it is not shown.
    if target.address is not None and not egress.is_public(target.address):
        return "the answer redirects to an address that is not public, which only a rule that lists it reaches"
    return f"the answer redirects, and {refused}"


class _Record:
    """One hop's line in the egress log: with the names of secrets, and without path, query, headers and body, which
    may hold their values."""

    def __init__(self, context: HostContext, request: "Request", trace: "Trace") -> None:
        self.decision = "allowed"
        self.secrets: tuple[str, ...] = ()
        self.trace = trace
        self._context = context
        self._request = request
        self._started = time.perf_counter()

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        run, target, trace = self._context.request, self._request.target, self.trace
        failed = None
        if error is not None and self.decision == "allowed":
            failed = str(error) if isinstance(error, CallRefused | NoRoom) else type(error).__name__
        log.info(
            "egress", tenant=run.tenant.id, script=run.label, run_id=self._context.run_id, method=self._request.method,
            host=target.host, port=target.port, address=trace.address, decision=self.decision, status=trace.status,
            bytes_in=trace.bytes_in, bytes_out=trace.bytes_out,
            wall_ms=round((time.perf_counter() - self._started) * 1000, 1), failed=failed,
            **({"secrets": self.secrets} if self.secrets else {}),
        )  # fmt: skip


# ---- requests ---------------------------------------------------------------------------------------------------


def _request(method: str, arguments: HttpArguments, max_bytes: int, context: HostContext) -> "Request":
    from engine.egress.outbound import Request

    try:
        target = egress.parse_url(arguments.url, arguments.params)
    except ValueError as error:
        raise CallRefused(f"url: {error}") from None
    headers = _headers(arguments.headers or {})
    with _charged(context, len(arguments.body)):
        body, is_table = _body(arguments.body)
    if len(body) > max_bytes:
        raise CallRefused(f"body: {len(body)} bytes; the limit is {max_bytes} (limits.http_bytes)")
    if is_table:
        headers.setdefault("content-type", "application/json")
    return Request(method, target, _on_the_wire(method, target, headers, body), body)


@contextmanager
def _charged(context: HostContext, size: int) -> Iterator[None]:
    """Charge the run for the work in the block, on `size` bytes, if these are many. Nothing may be awaited inside."""
    if size <= SMALL_BYTES:
        yield
        return
    began_s = time.thread_time()
    try:
        yield
    finally:
        context.worked(time.thread_time() - began_s)


def _headers(given: Mapping[str, Scalar]) -> dict[str, str]:
    """The script's headers by lower-case name. Raises CallRefused for names and values that are not legal."""
    headers: dict[str, str] = {}
    if len(given) > MAX_REQUEST_HEADERS:
        raise CallRefused(f"headers: {len(given)} of them; the limit is {MAX_REQUEST_HEADERS}")
    for name, value in given.items():
        lower, text = name.lower(), str(value).strip(" \t")
        if not _HEADER_NAME.fullmatch(name):
            raise CallRefused(f"headers: {name[:64]!r} is not the name of a header")
        if lower in _OURS:
            raise CallRefused(f"headers: {name} is set by the engine and not by scripts")
        if lower in headers:
            raise CallRefused(f"headers: {name} is given twice, in different spellings")
        if _NOT_IN_VALUE.search(text):
            raise CallRefused(f"headers: the value of {name} holds a line break or another control character")
        headers[lower] = text
    if sum(len(name) + len(value.encode()) for name, value in headers.items()) > MAX_REQUEST_HEADER_BYTES:
        raise CallRefused(f"headers: together larger than {MAX_REQUEST_HEADER_BYTES} bytes")
    return headers


def _body(packed: msgspec.Raw) -> tuple[bytes, bool]:
    """The body as it is sent, and whether it is a table, encoded as JSON."""
    is_table = _is_table(bytes(memoryview(packed)[:1]))
    if is_table and len(packed) > MAX_TABLE_BYTES:
        raise CallRefused(
            f"body: a table of {len(packed)} bytes; the limit is {MAX_TABLE_BYTES}, beyond it send text (json.encode)"
        )
    try:
        value = msgspec.msgpack.decode(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        raise CallRefused("body: the table cannot be sent as JSON: it is nested too deep, or not plain data") from None
    match value:
        case None:
            return b"", False
        case str():
            return value.encode(), False
        case bytes():
            return value, False
        case dict() | list():
            try:
                return orjson.dumps(value), True
            except TypeError as error:  # orjson's text tells bytes from nesting
                why = "is nested too deep" if "ecursion" in str(error) else "holds a string that is not UTF-8"
                raise CallRefused(f"body: the table cannot be sent as JSON: it {why}") from None
    raise CallRefused(f"body: expected a string or a table, got {'boolean' if isinstance(value, bool) else 'number'}")


def _is_table(first: bytes) -> bool:
    """Whether msgpack with this first byte is a list or a map."""
    return b"\x80" <= first < b"\xa0" or first in (b"\xdc", b"\xdd", b"\xde", b"\xdf")


def _on_the_wire(
    method: str, target: Target, headers: Mapping[str, str], body: bytes
) -> "tuple[tuple[bytes, bytes], ...]":
    """The script's headers with ours."""
    ours = {"host": target.authority, "accept": "*/*", "accept-encoding": _CODINGS, "user-agent": "engine"}
    # RFC 9110 section 8.6: methods that expect a body send Content-Length even without one.
    if body or method in ("POST", "PUT", "PATCH"):
        ours["content-length"] = str(len(body))
    return tuple((name.encode("ascii"), value.encode()) for name, value in {**ours, **headers}.items())


def _redirect(request: "Request", answer: "Response", scrubber: Scrubber) -> "Request | None":
    """The request that an answer redirects to, or None. Raises CallRefused for an invalid Location."""
    location = answer.headers.get("location")
    if answer.status not in _REDIRECTS or location is None:
        return None
    try:
        target = egress.redirected(request.target, scrubber.location(location))
    except ValueError as error:
        raise CallRefused(f"the answer of {request.target.host} redirects, and {error}") from None
    headers = {name.decode(): value.decode() for name, value in request.headers}
    method, body = request.method, request.body
    # As in browsers (https://fetch.spec.whatwg.org/#http-redirect-fetch): these drop the body.
    if (answer.status in (301, 302) and method == "POST") or (answer.status == 303 and method != "GET"):
        method, body = "GET", b""
        headers = {name: value for name, value in headers.items() if not name.startswith("content-")}
    if not _same_place(request.target, target):
        headers = {name: value for name, value in headers.items() if name in _HARMLESS}
    headers = {name: value for name, value in headers.items() if name not in _OURS}
    return replace(
        request, method=method, target=target, headers=_on_the_wire(method, target, headers, body), body=body
    )


def _same_place(start: Target, end: Target) -> bool:
    """Whether the headers for one may go to the other: the same origin, or its upgrade from http to https."""
    upgraded = (start.scheme, start.port, end.scheme, end.port) == ("http", 80, "https", 443)
    return start.origin == end.origin or (upgraded and start.host == end.host)


# ---- answers ----------------------------------------------------------------------------------------------------


def _as_value(
    status: int, headers: Mapping[str, str], body: bytes | bytearray, url: str, scrubber: Scrubber, context: HostContext
) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "status": status,
        "ok": 200 <= status < 300,
        "headers": headers,
        "body": body,
        "url": url,
    }
    with _charged(context, len(body)):
        value = _json(headers.get("content-type", ""), body, context.request.limits.values.value_depth)
        if value is not None and scrubber:
            plain = orjson.dumps(value)
            if (masked := scrubber.data(plain)) is not plain:
                # A secret was written with needless escapes: mask it in both spellings.
                shown["body"] = masked
                value = orjson.loads(masked)
    return shown if value is None else {**shown, "json": value}


def _json(content_type: str, body: bytes | bytearray, max_depth: int) -> Any:
    """The value of a body that is JSON by its content type, or has no content type; None if it is not JSON."""
    essence = content_type.partition(";")[0].strip().lower()
    if (essence and not _JSON_TYPE.fullmatch(essence)) or len(body) > MAX_JSON_BYTES:
        return None
    text = body.removeprefix(codecs.BOM_UTF8)  # RFC 8259 section 8.1: may be ignored
    opened = text.count(b"[") + text.count(b"{")
    if opened + text.count(b",") > MAX_JSON_VALUES:
        return None
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return None if opened > max_depth and _deeper_than(value, max_depth) else value


def _deeper_than(value: Any, levels: int) -> bool:
    """Whether lists and objects are nested deeper than this."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is list or type(inner) is dict  # three times as fast as isinstance of both
        ]
    return bool(level)


@asynccontextmanager
async def _opened(host: Host) -> AsyncIterator[tuple[HostFunction, ...]]:
    async with open_http() as http:
        yield http.functions


FAMILY = Family(_opened)

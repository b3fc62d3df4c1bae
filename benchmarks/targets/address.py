"""The address of a target: the URL, its resolved addresses, and whether a load may be sent there."""

import ipaddress
import os
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

import trio

# How long a server may take to accept a connection before the load begins.
CONNECT_TIMEOUT_S = 5.0


class AddressError(Exception):
    """A URL is unusable, or a load must not be sent to its address. One line, for the user."""


@dataclass(frozen=True, slots=True)
class Address:
    """One address of a server: for connections (`host` is numeric), and for requests.

    `authority` is for the Host header; `path` is the prefix of every path, without a trailing slash.
    """

    host: str
    port: int
    authority: str
    path: str = ""
    query: str = ""


@dataclass(frozen=True, slots=True)
class Url:
    """The parts of a URL, unchanged."""

    host: str
    port: int
    authority: str
    path: str
    query: str


def parse_url(text: str) -> Url:
    """The parts of an http URL. Raises AddressError."""
    if any(each <= " " or each == "\x7f" for each in text):
        raise AddressError(f"{text!r} is not a URL: it holds a space or a control character")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise AddressError(f"{text!r} is not a URL: {error}") from None
    if parts.scheme == "https":
        raise AddressError("https is not spoken here: give the http address behind the proxy that ends TLS")
    if parts.scheme != "http" or not parts.hostname:
        raise AddressError(f"{text!r} is not a URL of the form http://HOST:PORT")
    if parts.username is not None or parts.password is not None:
        raise AddressError("a URL with a user or password is refused; keys belong in a file (--key-file)")
    if port == 0:
        raise AddressError("port 0 is no port")
    try:
        text.encode("ascii")
    except UnicodeEncodeError:
        raise AddressError(f"{text!r} is not a URL: it holds characters that are not ASCII") from None
    return Url(parts.hostname, port or 80, parts.netloc, parts.path.rstrip("/"), parts.query)


def choose(numeric: list[str], host: str, *, allow_remote: bool) -> list[str]:
    """The addresses that may be used: all of them, if all are loopback or remote ones are allowed.

    A single address that is not loopback refuses all: a name that sometimes resolves elsewhere must not get a load by
    chance. Raises AddressError.
    """
    remote = [each for each in numeric if not _loopback(each)]
    if remote and not allow_remote:
        raise AddressError(
            f"{host}{'' if host == remote[0] else f' ({remote[0]})'} is not this machine; a load there needs "
            "--allow-remote (and the consent of its operator)"
        )
    return list(dict.fromkeys(numeric))


def _loopback(numeric: str) -> bool:
    address = ipaddress.ip_address(numeric.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


async def resolve(url: Url, *, allow_remote: bool) -> Address:
    """The first address of the URL that accepts connections. The load goes only there.

    Raises AddressError if the name is unknown, an address is not loopback, or no server listens.
    """
    try:
        with trio.fail_after(CONNECT_TIMEOUT_S):
            found = await trio.socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise AddressError(f"{url.host}: no such host") from None
    except trio.TooSlowError:
        raise AddressError(f"{url.host}: the name was not resolved within {CONNECT_TIMEOUT_S:g} s") from None
    reasons = []
    for numeric in choose([str(each[4][0]) for each in found], url.host, allow_remote=allow_remote):
        try:
            with trio.fail_after(CONNECT_TIMEOUT_S):
                stream = await connect(numeric, url.port)
        except OSError as error:
            reasons.append(f"{numeric}: {os.strerror(error.errno) if error.errno else 'cannot connect'}")
        except trio.TooSlowError:
            reasons.append(f"{numeric}: no connection within {CONNECT_TIMEOUT_S:g} s")
        else:
            await trio.aclose_forcefully(stream)
            return Address(numeric, url.port, url.authority, url.path, url.query)
    raise AddressError(f"nothing listens at {url.authority} ({'; '.join(reasons)})")


async def connect(numeric: str, port: int) -> trio.SocketStream:
    """A connection to a numeric address. Raises OSError."""
    family = socket.AF_INET6 if ":" in numeric else socket.AF_INET
    endpoint = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            await endpoint.connect((numeric.partition("%")[0], port, 0, _scope(numeric)))
        else:
            await endpoint.connect((numeric, port))
    except BaseException:
        endpoint.close()
        raise
    return trio.SocketStream(endpoint)


def _scope(numeric: str) -> int:
    name = numeric.partition("%")[2]
    if not name:
        return 0
    return int(name) if name.isdigit() else socket.if_nametoindex(name)

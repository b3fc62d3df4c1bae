"""Checks of `Host` and `Origin`: a page in a browser must not reach a private server by DNS rebinding or cross-origin.

DNS rebinding makes the host name of a foreign page resolve to this machine. Its requests carry that name in `Host`, so
only known names are answered (RFC 9110 section 15.5.20: 421). Cross-origin requests carry `Origin` (RFC 6454, Fetch).
"""

import ipaddress
import re
from functools import lru_cache

_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s/?#@:\[\]]+)(?::(\d{0,5}))?")
_ORIGIN = re.compile(r"(https?)://([^/?#@\s]+)")
_PORTS = {"http": "80", "https": "443"}
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def _split(authority: str) -> tuple[str, str | None] | None:
    """Host (lower case, without brackets or trailing dot) and port of an authority, or None if it is malformed."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        return None
    return match[1].strip("[]").rstrip(".").lower(), match[2] or None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Whether a host name or literal address is this machine's loopback."""
    address = _address(host.strip("[]"))
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


class Access:
    """The allow lists of a server. Hosts: `name`, `name:port`, `*.name` or `*`; origins: `scheme://host[:port]` or `*`.

    Loopback names and the bound host are always allowed. A server bound to every interface also allows any literal
    address: rebinding needs a name. Without configured origins, pages served from loopback are allowed.
    """

    def __init__(
        self, bind_host: str, allowed_hosts: tuple[str, ...] = (), allowed_origins: tuple[str, ...] = ()
    ) -> None:
        bound = _address(bind_host)
        self._any_address = bind_host == "" or (bound is not None and bound.is_unspecified)
        self._any_host = "*" in allowed_hosts
        self._hosts = {*_LOOPBACK_NAMES, bind_host.lower()}
        self._suffixes = tuple(entry[1:].lower() for entry in allowed_hosts if entry.startswith("*."))
        self._authorities: set[tuple[str, str]] = set()
        for entry in allowed_hosts:
            parts = _split(entry.removesuffix(":*"))
            if parts is None or entry.startswith("*"):
                continue
            if parts[1] is None:
                self._hosts.add(parts[0])
            else:
                self._authorities.add((parts[0], parts[1]))
        self._any_origin = "*" in allowed_origins
        self._loopback_origins = not allowed_origins
        self._origins = {origin for entry in allowed_origins if (origin := _normal(entry)) is not None}
        # Browsers repeat the same few values; the bound keeps an attacker from growing the caches.
        self.host_allowed = lru_cache(maxsize=256)(self._host_allowed)
        self.origin_allowed = lru_cache(maxsize=256)(self._origin_allowed)

    def _host_allowed(self, host: bytes) -> bool:
        """Whether a request with this `Host` is for this server."""
        if self._any_host:
            return True
        parts = _split(host.decode("latin-1"))
        if parts is None:
            return False
        name, port = parts
        return (
            name in self._hosts
            or (port is not None and (name, port) in self._authorities)
            or name.endswith(self._suffixes)
            or (self._any_address and _address(name) is not None)
        )

    def _origin_allowed(self, origin: bytes, host: bytes) -> bool:
        """Whether a page of this `Origin` may call `host` (already allowed): a configured origin, or the same one."""
        if self._any_origin:
            return True
        normal = _normal(origin.decode("latin-1"))
        if normal is None:
            return False
        if normal in self._origins:
            return True
        scheme, name, port = normal
        if self._loopback_origins and is_loopback(name):
            return True
        own = _split(host.decode("latin-1"))
        return own is not None and (name, port) == (own[0], own[1] or _PORTS[scheme])


def _normal(origin: str) -> tuple[str, str, str] | None:
    """Scheme, host and port (the default one filled in) of an origin; None for `null` and anything malformed."""
    match = _ORIGIN.fullmatch(origin.strip().rstrip("/"))
    parts = _split(match[2]) if match else None
    if match is None or parts is None:
        return None
    return match[1], parts[0], parts[1] or _PORTS[match[1]]

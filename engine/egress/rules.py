"""Which hosts a script may connect to: the rules of `allow_hosts`, applied to a URL and to an address. Pure.

Three decisions, made anew for every hop of a request: what the URL names (`parse_url`), whether the script may contact
that host (`refusal`), and which of its addresses may be connected to (`may_connect`). The parts of the parsed URL are
what is connected to, so that no second parser can understand another host.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Literal
from urllib.parse import quote, urlencode, urljoin

import idna

Address = IPv4Address | IPv6Address
Scalar = str | int | float | bool

DEFAULT_PORTS: Mapping[str, int] = {"http": 80, "https": 443}
# Most servers accept a request line of 8 KiB.
MAX_URL_CHARS = 16 * 1024
# RFC 1035 section 2.3.4. Checked before IDNA, whose time grows with the length.
_MAX_NAME_CHARS = 253

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^?#]*)(\?[^#]*)?(?:#.*)?", re.DOTALL)
_AUTHORITY = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::([0-9]{0,5}))?")
# Underscores are not legal in host names (RFC 952), but container networks are full of them.
_LABEL = re.compile(r"[a-z0-9_-]{1,63}")
# A last label that URL parsers take for an IPv4 address: https://url.spec.whatwg.org/#ends-in-a-number-checker
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
# RFC 3986 section 3.3 and 3.4: characters that are legal in a path and a query, and the percent sign of escapes.
_PATH_SAFE = "/:@!$&'()*+,;=-._~%"
_QUERY_SAFE = _PATH_SAFE + "?"

# Networks that are not public, from the IANA special-purpose registries:
# https://www.iana.org/assignments/iana-ipv4-special-registry and .../iana-ipv6-special-registry
_NOT_PUBLIC_4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network; 0.0.0.0 reaches loopback
            "10.0.0.0/8",  # private, RFC 1918
            "100.64.0.0/10",  # shared by carriers, RFC 6598; holds Alibaba's metadata service 100.100.100.200
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # looks public, but is every Azure machine's host: agent, DNS, secrets of extensions
            "169.254.0.0/16",  # link-local; holds the metadata services of AWS, Azure, Google and others
            "172.16.0.0/12",  # private, RFC 1918
            "192.0.0.0/24",  # protocol assignments; holds Oracle's metadata service 192.0.0.192
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # 6to4 relays, deprecated by RFC 7526
            "192.168.0.0/16",  # private, RFC 1918
            "198.18.0.0/15",  # benchmarks, RFC 2544
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)
# Only these are public: not loopback, link-local (fe80::/10), unique local (fc00::/7, with AWS's metadata service
# fd00:ec2::254), multicast, nor the forms that contain an IPv4 address: ::a.b.c.d, ::ffff:a.b.c.d, 64:ff9b::/96.
_PUBLIC_6 = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments; holds Teredo, 2001::/32, with an IPv4 address inside
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4, with an IPv4 address inside
            "3fff::/20",  # documentation, RFC 9637
        ),
    )
)


def is_public(address: Address) -> bool:
    """Whether the address is public: only then may a name, or the rule `*`, lead to it."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    return (
        address.scope_id is None and address in _PUBLIC_6 and not any(address in network for network in _NOT_PUBLIC_6)
    )


# Networks of an organisation, and this machine.
_INTERNAL_4 = tuple(map(IPv4Network, ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
_INTERNAL_6 = (IPv6Network("::1/128"), IPv6Network("fc00::/7"))
# Inside them: services that hand out the secrets of the machine, of Alibaba and of AWS.
_METADATA = frozenset({IPv4Address("100.100.100.200"), IPv6Address("fd00:ec2::254"), IPv6Address("fd00:ec2::23")})


def is_internal(address: Address) -> bool:
    """Whether the address is of this machine or of a private network, and serves no metadata of a cloud."""
    if address in _METADATA:
        return False
    if isinstance(address, IPv4Address):
        return any(address in network for network in _INTERNAL_4)
    return address.scope_id is None and any(address in network for network in _INTERNAL_6)


# ---- rules ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostRule:
    """One entry of `allow_hosts`. `text` is the entry as written.

    `host` is the name that it lists, for `below` the suffix of names, with its dot; `address` is the address that it
    lists. `port` None means 80 and 443.
    """

    text: str
    kind: Literal["any", "below", "name", "address"]
    host: str = ""
    address: Address | None = None
    port: int | None = None

    def lists(self, address: Address, port: int) -> bool:
        """Whether this rule lists the address itself, at this port."""
        return self.address == address and self._covers_port(port)

    def names(self, host: str, port: int) -> bool:
        """Whether this rule covers the host name (canonical, not an address) at this port."""
        if not self._covers_port(port):
            return False
        match self.kind:
            case "any":
                return True
            case "below":  # the suffix has a dot, and a label must precede it: neither example.org nor evilexample.org
                return host.endswith(self.host) and len(host) > len(self.host)
            case "name":
                return host == self.host
        return False

    def any_public(self, port: int) -> bool:
        """Whether this rule covers every public address at this port."""
        return self.kind == "any" and self._covers_port(port)

    def _covers_port(self, port: int) -> bool:
        return port in (80, 443) if self.port is None else port == self.port


def parse_rule(text: str) -> HostRule:
    """The rule of an entry of `allow_hosts`: `HOST` or `HOST:PORT`, where HOST is a name, `*.NAME`, an address (IPv6 in
    brackets) or `*`.

    Raises ValueError, a text that begins with "expected". It does not quote the entry, which may come from the
    environment.
    """
    if "://" in text or "/" in text:
        raise ValueError("expected a host without scheme, path or mask, like api.example.com or 10.0.0.5:8080")
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        raise ValueError("expected HOST or HOST:PORT, with an IPv6 address in brackets: [2001:db8::1]:8443")
    host, port_text = match[1], match[2]
    port = None if port_text is None else _port(port_text)
    if port_text is not None and port is None:
        raise ValueError("expected a port of 1 to 65535 after the colon")
    if host == "*":
        return HostRule(text, "any", port=port)
    below = host.startswith("*.")
    try:
        name, address = _canonical(host[2:] if below else host)
    except ValueError:
        raise ValueError(
            "expected the name of a host, *. and a name, an address as four decimal numbers or in brackets, or *"
        ) from None
    if below and address is not None:
        raise ValueError("expected a name after *. (there is nothing below an address)")
    if address is not None:
        return HostRule(text, "address", address=address, port=port)
    return HostRule(text, "below" if below else "name", f".{name}" if below else name, port=port)


@lru_cache(maxsize=1024)
def parse_rules(texts: tuple[str, ...]) -> tuple[HostRule, ...]:
    """The rules of an `allow_hosts` whose entries are known to be valid."""
    return tuple(map(parse_rule, texts))


# ---- URLs -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed URL. `host` is a canonical name, or the canonical text of `address` if the URL has one.

    `path` is path and query as they are sent.
    """

    scheme: str
    host: str
    port: int
    path: str
    address: Address | None = None

    @property
    def authority(self) -> str:
        """Host and port as in `Host` and URLs, without the scheme's default port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port, to which connections and credentials belong."""
        return self.scheme, self.host, self.port


def parse_url(url: str, params: Mapping[str, Scalar] | None = None) -> Target:
    """Parse an absolute URL; `params` are appended to its query, sorted by name.

    Strict where URL parsers differ: an IPv4 address is four decimal numbers, there is no user part, the host has no
    escapes and no zone. Spaces and the like in path and query are escaped. Raises ValueError, a sentence that quotes
    only the scheme of the URL.
    """
    if len(url) > MAX_URL_CHARS:
        raise ValueError(f"the URL is longer than {MAX_URL_CHARS} characters")
    if _CONTROL.search(url):
        raise ValueError("the URL holds a control character")
    match = _URL.fullmatch(url.strip(" "))
    if match is None:
        raise ValueError("the URL must be absolute, like https://api.example.com/path")
    scheme, authority, path, query = match[1].lower(), match[2], match[3], match[4]
    if scheme not in DEFAULT_PORTS:
        raise ValueError(f"the scheme must be http or https, got {scheme[:32]}")
    if "@" in authority:
        raise ValueError("the URL must not hold a user or password; send them in the Authorization header")
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None:
        raise ValueError("the URL's host is not a host name or address")
    port = _port(parts[2]) if parts[2] else DEFAULT_PORTS[scheme]
    if port is None:
        raise ValueError("the URL's port is not a number of 1 to 65535")
    host, address = _canonical(parts[1])
    target = _escaped(path or "/", _PATH_SAFE)
    if query is not None:
        target += _escaped(query, _QUERY_SAFE)
    if params:
        # Each takes at least two characters besides its name. Checked before encoding, which may triple the length.
        if sum(len(name) + 2 for name in params) + len(target) > MAX_URL_CHARS:
            raise ValueError(f"the URL is longer than {MAX_URL_CHARS} characters with its params")
        if sum(len(value) for value in params.values() if isinstance(value, str)) > MAX_URL_CHARS:
            raise ValueError(f"the URL is longer than {MAX_URL_CHARS} characters with its params")
        pairs = [(name, _as_text(params[name])) for name in sorted(params)]
        target += ("?" if query is None else "&" if query != "?" else "") + urlencode(pairs, quote_via=quote)
    if len(target) > MAX_URL_CHARS:
        raise ValueError(f"the URL is longer than {MAX_URL_CHARS} characters once it is escaped")
    return Target(scheme, host, port, target, address)


def redirected(target: Target, location: str) -> Target:
    """The target of `Location` in an answer of `target` (RFC 9110 section 10.2.2). Raises ValueError as `parse_url`."""
    if _CONTROL.search(location):  # urljoin would drop some of them
        raise ValueError("the URL holds a control character")
    try:
        absolute = urljoin(target.url, location)
    except ValueError:  # Python's text may quote the URL
        raise ValueError("the URL's host is not a host name or address") from None
    return parse_url(absolute)


def _port(text: str) -> int | None:
    return int(text) if text and 1 <= int(text) <= 65535 else None


def _escaped(text: str, safe: str) -> str:
    return quote(_STRAY_PERCENT.sub("%25", text), safe=safe)


def _as_text(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    # In Lua 10 / 2 is 5.0; a query should have 5.
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _canonical(host: str) -> tuple[str, Address | None]:
    """The canonical form of a URL's host, and its address if it is one. Raises ValueError, a sentence."""
    if host.startswith("["):
        if "%" in host:
            raise ValueError("an address with a zone is not supported")
        try:
            address = IPv6Address(host[1:-1])
        except ValueError:
            raise ValueError("the host in brackets is not an IPv6 address") from None
        return str(address), address
    if len(host) > _MAX_NAME_CHARS:
        raise ValueError(f"the host name is longer than {_MAX_NAME_CHARS} characters")
    if not host.isascii():
        try:
            # Maps full-width digits and dots to plain ones, so that the checks below see the host that is connected to.
            host = idna.encode(host, uts46=True).decode("ascii")
        except UnicodeError:
            raise ValueError("the host name is not a legal international name (IDNA)") from None
    host = host.lower().removesuffix(".")
    labels = host.split(".")
    if len(host) > _MAX_NAME_CHARS or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError("the host is not a host name: letters, digits, - and _ between single dots")
    if not _NUMBER.fullmatch(labels[-1]):
        return host, None
    try:
        address4 = IPv4Address(host)
    except ValueError:
        # 2130706433, 0x7f.1 and 0177.0.0.1 are 127.0.0.1 to some programs and something else to others.
        raise ValueError("an IPv4 address must be written as four decimal numbers") from None
    return str(address4), address4


# ---- decisions --------------------------------------------------------------------------------------------------


def refusal(rules: Collection[HostRule], target: Target) -> str | None:
    """Why the rules forbid a script this host at this port, and what would grant it; None if they permit it.

    The addresses of a name are checked separately, by `may_connect`.
    """
    if target.address is None:
        if any(rule.names(target.host, target.port) for rule in rules):
            return None
        return f"{_described(target)} is not among the hosts that this script may reach; {grant(target)} would grant it"
    if any(rule.lists(target.address, target.port) for rule in rules):
        return None
    if not is_public(target.address):
        return (
            f"{_described(target)} is not a public address, which only a rule that lists it reaches; "
            f"{grant(target)} would grant it"
        )
    if any(rule.any_public(target.port) for rule in rules):
        return None
    return f"{_described(target)} is not among the hosts that this script may reach; {grant(target)} would grant it"


def may_connect(rules: Collection[HostRule], address: Address, port: int) -> bool:
    """Whether a name that the rules allow may lead to this address: a public one, or one that a rule lists."""
    return is_public(address) or any(rule.lists(address, port) for rule in rules)


def grant(target: Target) -> str:
    """The line of configuration that would allow this host. A name of this machine also needs its address."""
    described = _described(target)
    if target.host != "localhost" and not target.host.endswith(".localhost"):
        return f'allow_hosts = ["{described}"]'
    return f'allow_hosts = ["{described}", "127.0.0.1{described.removeprefix(target.host)}"]'


def _described(target: Target) -> str:
    host = f"[{target.host}]" if ":" in target.host else target.host
    return host if target.port in (80, 443) else f"{host}:{target.port}"

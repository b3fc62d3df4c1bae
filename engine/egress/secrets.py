"""Secrets by reference: scripts see placeholders, whose values are filled into requests to the right host.

A placeholder is valid for one run and cannot be guessed. So text that passes through a script (a document, a caller's
argument) cannot name a secret: it would have to contain a random number that was drawn when the run began.
"""

import base64
import binascii
import html
import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from urllib.parse import quote, quote_plus

from engine.egress.redaction import MASK, Redactor, base64_forms
from engine.egress.rules import MAX_URL_CHARS, HostRule, Target, parse_rule

Header = tuple[bytes, bytes]

# A config value that matches this as a whole names a secret.
_REFERENCE = re.compile(r"secret:([A-Za-z_][A-Za-z0-9_]{0,63})")
# RFC 7617. The credentials after the scheme are decoded, filled in, and encoded again.
_BASIC = re.compile(rb"([Bb][Aa][Ss][Ii][Cc] +)([A-Za-z0-9+/]+=*)")
_NOT_IN_HEADERS = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_JSON_TYPE = re.compile(r"(application|text)/json|[^/]+/[^/]+\+json")
# Most servers accept a head of 8 to 64 KiB. Placeholders are short and values may be long, so the result is bounded
# before it is made.
_MAX_HEADER_BYTES = 64 * 1024
# Each occurrence is checked by itself. An honest request names each secret a few times.
_MAX_PLACEHOLDERS = 1_000
# The base64 of a shorter value is likely to occur in other base64 by chance.
_MIN_BASE64_BYTES = 8
# The same for the bytes that a value decodes to as base64 or hexadecimal.
_MIN_READ_BYTES = 6
# The beginning of an escape that the value would complete: of a URL or form (also one that is escaped itself), or of
# JSON and the like. The host would decode another character, and its answers would not show the value as it is. An
# escape takes at most so many characters of a value.
_BEGUN = re.compile(rb"%(?:25)*[0-9A-Fa-f]?\Z|(?<!\\)(?:\\\\)*\\(?:u[0-9A-Fa-f]{0,3}|x[0-9A-Fa-f]?|[0-7]{1,2})?\Z")
_LONGEST_ESCAPE = 4
# The backslashes before a placeholder are counted within so many bytes.
_BEFORE = 64


class SecretRefused(Exception):
    """A request may not carry a secret. The text says why; it is safe to show to the script."""


class MissingSecret(Exception):
    """The script's configuration names a secret that is missing: `name`, at `key`.

    `trouble` says why the tenant has no secrets, if that is a fault.
    """

    def __init__(self, key: str, name: str, trouble: str | None) -> None:
        super().__init__(f"{key} names the secret {name!r}")
        self.key, self.name, self.trouble = key, name, trouble


@dataclass(frozen=True, slots=True)
class BoundSecret:
    """A value, and the hosts that it may be sent to."""

    name: str
    value: str = field(repr=False)
    hosts: tuple[HostRule, ...]

    @classmethod
    def from_rules(cls, name: str, value: str, hosts: Iterable[str]) -> "BoundSecret":
        """`hosts` are rules as in `allow_hosts`. Raises ValueError for an invalid one."""
        return cls(name, value, tuple(map(parse_rule, hosts)))

    def refusal(self, target: Target) -> str | None:
        """Why the secret may not go to this host at this port, or None."""
        fitting = [rule for rule in self.hosts if _covers(rule, target)]
        if not fitting:
            where = ", ".join(rule.text for rule in self.hosts)
            return f"the secret {self.name} is bound to {where}, and is not sent to {target.authority}"
        # Plain http can be read on its way. A rule with a port permits it explicitly.
        if target.scheme == "http" and all(rule.address is None and rule.port is None for rule in fitting):
            return (
                f"the secret {self.name} is not sent over plain http; use https, or bind it to "
                f"{target.host}:{target.port}"
            )
        return None


def _covers(rule: HostRule, target: Target) -> bool:
    if target.address is None:
        return rule.names(target.host, target.port)
    return rule.lists(target.address, target.port)


class Vault:
    """All secrets of one tenant at one moment. `trouble` says why there are none, if that is a fault."""

    def __init__(self, found: Iterable[BoundSecret] = (), trouble: str | None = None) -> None:
        self.secrets: Mapping[str, BoundSecret] = {secret.name: secret for secret in found}
        self.trouble = trouble
        self._redactors: dict[tuple[str, ...], Redactor] = {}
        # Made on first use: about thirty for each secret, each as long as the value or longer.
        self._forms: dict[str, frozenset[bytes]] = {}

    def forms(self, name: str) -> frozenset[bytes]:
        """The forms in which a host's answer may contain the value of this secret."""
        if name not in self._forms:
            self._forms[name] = frozenset(_forms(self.secrets[name].value))
        return self._forms[name]

    def redactor(self, own: Redactor) -> Redactor:
        """A redactor for these secrets and those of `own`. Cached by the secrets of `own`."""
        if not self.secrets:
            return own
        if own.secrets not in self._redactors:
            values = (secret.value for secret in self.secrets.values())
            self._redactors[own.secrets] = Redactor((*own.secrets, *values))
        return self._redactors[own.secrets]


class SecretSource(Protocol):
    """Where tenants' secrets come from."""

    async def vault(self, tenant: str) -> Vault:
        """The tenant's secrets as they are now."""
        ...


class NoSecrets:
    """A source without secrets."""

    async def vault(self, tenant: str) -> Vault:
        return EMPTY_VAULT


EMPTY_VAULT = Vault()


@dataclass(frozen=True, slots=True)
class Filled:
    """A request with values filled in. `used` are their names; `forms` must be scrubbed from answers, too."""

    target: Target = field(repr=False)
    headers: tuple[Header, ...] = field(repr=False)
    body: bytes = field(repr=False)
    used: tuple[str, ...] = ()
    forms: tuple[bytes, ...] = field(default=(), repr=False)


class References:
    """The placeholders of one run. `table` becomes the script's `secrets`."""

    def __init__(
        self,
        vault: Vault = EMPTY_VAULT,
        granted: frozenset[str] | None = frozenset(),
        token: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        """`granted` are the names that the script may use; None: all. `token` is called once for a run with secrets."""
        mine = {name: each for name, each in vault.secrets.items() if granted is None or name in granted}
        self._vault = vault
        self._token = token() if mine else ""
        self._secrets = {f"secret_{name}_{self._token}": each for name, each in mine.items()}
        self.table = {each.name: placeholder for placeholder, each in self._secrets.items()}
        self.trouble = vault.trouble

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def placed(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The script's configuration, with a placeholder for every `secret:NAME`. Raises MissingSecret."""

        def place(value: Any, key: str) -> Any:
            match value:
                case str() if (found := _REFERENCE.fullmatch(value)) is not None:
                    if found[1] not in self.table:
                        raise MissingSecret(key, found[1], self.trouble)
                    return self.table[found[1]]
                case dict():
                    return {name: place(inner, f"{key}.{name}") for name, inner in value.items()}
                case list() | tuple():
                    return [place(inner, f"{key}[{i}]") for i, inner in enumerate(value)]
            return value

        return {name: place(value, name) for name, value in config.items()}

    # ---- requests ------------------------------------------------------------------------------------------------

    def fill(self, target: Target, headers: Sequence[Header], body: bytes, max_body: int) -> Filled:
        """The request with values in place of placeholders: in header values, in basic credentials, in the body
        (escaped for JSON or a form, by its type) and in path and query (percent-encoded).

        Raises SecretRefused for a secret that may not go to this host, or if the result would not be a legal request.
        """
        if not self._token or not self._is_in(target, headers, body):
            return Filled(target, tuple(headers), body)
        filling = _Filling(self._secrets, self._token, target)
        path = filling.text(target.path, MAX_URL_CHARS, "the URL", _percent_encoded)
        kind = dict(headers).get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")
        new_body = filling.data(body, max_body, "the body", _encoder(kind))
        if new_body is not body and dict(headers).get(b"content-encoding", b"identity").strip().lower() != b"identity":
            # The host would decode it into a form that answers are not searched for, and the script could reverse that.
            raise SecretRefused("a secret cannot be put into a body with Content-Encoding")
        new_headers = []
        for name, value in headers:
            filled = filling.header(value)
            if filled != value and _NOT_IN_HEADERS.search(filled):
                raise SecretRefused("a secret with a line break or other control character cannot be sent in a header")
            if name == b"content-length":
                filled = str(len(new_body)).encode()
            new_headers.append((name, filled))
        used = tuple(sorted(filling.used))
        return Filled(replace(target, path=path), tuple(new_headers), new_body, used, tuple(filling.forms))

    def _is_in(self, target: Target, headers: Sequence[Header], body: bytes) -> bool:
        token = self._token.encode()
        if self._token in target.path or token in body:
            return True
        return any(token in value or token in _credentials(value)[1] for _, value in headers)

    # ---- answers -------------------------------------------------------------------------------------------------

    def scrubber(self, target: Target, more: Iterable[bytes] = ()) -> "Scrubber":
        """The scrubber for answers of this host: for every secret of the tenant that is bound to it, in each form; also
        for secrets that the script was not granted, as another script may have stored them there."""
        placeholders = {each.name: placeholder for placeholder, each in self._secrets.items()}
        bound = [each for each in self._vault.secrets.values() if any(_covers(rule, target) for rule in each.hosts)]
        if not bound:
            return _NO_SCRUBBER
        return Scrubber(
            [(placeholders.get(each.name, MASK), each.value) for each in bound],
            {form for each in bound for form in self._vault.forms(each.name)} | set(more),
        )


NO_REFERENCES = References()


class _Filling:
    """Fills in the parts of one request, and records the secrets used."""

    def __init__(self, secrets_: Mapping[str, BoundSecret], token: str, target: Target) -> None:
        self._secrets = secrets_
        self._token = token.encode()
        self._raw = [placeholder.encode() for placeholder in secrets_]
        self._longest = max(map(len, self._raw))
        self._target = target
        self.used: set[str] = set()
        self.forms: list[bytes] = []

    def data(self, data: bytes, bound: int, what: str, encode: Callable[[str], str]) -> bytes:
        found = [
            (raw, encode(each.value).encode(), each, data.count(raw))
            for raw, each in ((raw, self._secrets[raw.decode()]) for raw in self._named(data, what))
        ]
        for _, _, each, _ in found:
            if (refused := each.refusal(self._target)) is not None:
                raise SecretRefused(refused)
            self.used.add(each.name)
        if len(data) + sum(count * (len(value) - len(raw)) for raw, value, _, count in found) > bound and found:
            raise SecretRefused(f"with its secrets, {what} is larger than {bound} bytes")
        for raw, value, _, _ in found:
            data = data.replace(raw, value)
        return data

    def _named(self, data: bytes, what: str) -> list[bytes]:
        """The placeholders in the data, each once. One search for their common ending, however many there are."""
        found: dict[bytes, None] = {}
        start = count = 0
        while (place := data.find(self._token, start)) >= 0:
            start = place + len(self._token)
            if (count := count + 1) > _MAX_PLACEHOLDERS:
                raise SecretRefused(f"{what} holds more than {_MAX_PLACEHOLDERS} placeholders of secrets")
            before = data[max(0, start - self._longest) : start]
            for raw in self._raw:
                if before.endswith(raw):
                    at = start - len(raw)
                    if _BEGUN.search(data[max(0, at - _BEFORE) : at]):
                        raise SecretRefused(
                            f"{what} holds the placeholder of a secret after the beginning of an escape"
                        )
                    found[raw] = None
        return list(found)

    def text(self, text: str, bound: int, what: str, encode: Callable[[str], str]) -> str:
        return self.data(text.encode(), bound, what, encode).decode()

    def header(self, value: bytes) -> bytes:
        scheme, credentials = _credentials(value)
        if (filled := self.data(credentials, _MAX_HEADER_BYTES, "a header", str)) != credentials:
            encoded = base64.b64encode(filled)
            self.forms.append(encoded)
            return scheme + encoded
        return self.data(value, _MAX_HEADER_BYTES, "a header", str)


def _credentials(value: bytes) -> tuple[bytes, bytes]:
    """The scheme of basic credentials with its space, and their decoded value; both empty for other values."""
    match = _BASIC.fullmatch(value)
    if match is None:
        return b"", b""
    try:
        return match[1], base64.b64decode(match[2], validate=True)
    except binascii.Error:
        return b"", b""


def _percent_encoded(value: str) -> str:
    return quote(value, safe="")


def _in_json(value: str) -> str:
    return json.dumps(value)[1:-1]


def _encoder(content_type: str) -> Callable[[str], str]:
    """The escaping of a value in a body of this type."""
    if _JSON_TYPE.fullmatch(content_type):
        return _in_json
    return quote_plus if content_type == "application/x-www-form-urlencoded" else str


# How much longer masked data may be: as if every byte of it were a value.
_MASKED_GROWTH = len(MASK)


class Scrubber:
    """Removes secrets from a host's answers, so that one that echoes requests reveals nothing to a script."""

    def __init__(self, bound: Sequence[tuple[str, str]], forms: Iterable[bytes]) -> None:
        """`bound`: the values, each with its replacement in a redirect's URL; `forms`: what to remove from answers."""
        # Longest first: a form that is part of a longer one must not break it up.
        self._in_urls = [(form, placeholder) for placeholder, value in bound for form in _url_forms(value)]
        self._in_urls.sort(key=lambda pair: -len(pair[0]))
        self._forms = sorted(forms, key=lambda form: (-len(form), form))

    def __bool__(self) -> bool:
        return bool(self._forms)

    def work(self, size: int) -> int:
        """How many bytes are searched for a text of this size."""
        return size * len(self._forms)

    def data(self, data: bytes | bytearray) -> bytes | bytearray:
        """The data with `MASK` for every secret in it.

        A value of one character also occurs in masks, which then multiply: data that would grow by more than
        `_MASKED_GROWTH` times is masked as a whole.
        """
        bound = _MASKED_GROWTH * (len(data) + len(MASK))
        for form in self._forms:
            if form in data:
                if len(data) + data.count(form) * (len(MASK) - len(form)) > bound:
                    return MASK.encode()
                data = data.replace(form, MASK.encode())
        return data

    def text(self, text: str) -> str:
        """As `data`, for a header."""
        masked = self.data(raw := text.encode("utf-8", "surrogateescape"))
        return text if masked == raw else masked.decode("utf-8", "surrogateescape")

    def location(self, url: str) -> str:
        """A redirect's URL, with placeholders for the secrets in it, so that the next hop is checked anew."""
        for form, placeholder in self._in_urls:
            url = url.replace(form, placeholder)
        return self.text(url)


_NO_SCRUBBER = Scrubber((), ())


def _url_forms(value: str) -> set[str]:
    encoded = {value, _percent_encoded(value), quote_plus(value), quote(value)}
    return encoded | {_lower_escapes(each) for each in encoded if each != value}


def _lower_escapes(text: str) -> str:
    return re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), text)


def _forms(value: str) -> set[bytes]:
    """The forms of a value in an answer that echoes it: as it is, in a URL, in JSON (also in a string inside JSON), in
    HTML, in base64, and in the other encodings of text that an answer may have."""
    raw = value.encode()
    in_json = {json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True)}
    twice = {json.dumps(each, ensure_ascii=False)[1:-1] for each in in_json}
    slashes = {each.replace("/", "\\/") for each in in_json}  # as PHP writes it
    signs = {each.translate(signs) for each in in_json for signs in (_SIGNS, _SIGNS_UPPER)}  # as Go and PHP do
    in_html = {html.escape(value), html.escape(value, quote=False), html.escape(value).replace("&#x27;", "&#39;")}
    forms = {each.encode() for each in (*in_json, *twice, *slashes, *signs, *in_html, *_url_forms(value))} | {raw}
    forms |= {value.encode(encoding) for encoding in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")}
    if all(ord(character) < 0x100 for character in value):
        forms.add(value.encode("latin-1"))
    if len(raw) >= _MIN_BASE64_BYTES:
        standard = set(base64_forms(value))
        forms |= {each.encode() for each in standard}
        forms |= {each.translate(_URL_SAFE).encode() for each in standard}
        forms |= {raw.hex().encode(), raw.hex().upper().encode()}
        forms |= {form for form in _read(value) if len(form) >= _MIN_READ_BYTES}
    if len(raw) >= _MIN_BASE64_BYTES + _LONGEST_ESCAPE:
        forms.add(raw[_LONGEST_ESCAPE:])
    return {form for form in forms if form}


def _read(value: str) -> Iterator[bytes]:
    """What a host stores that decodes the value, alone or with text before it, as base64 or hexadecimal."""
    standard = value.translate(_STANDARD).rstrip("=")
    if _IN_BASE64.fullmatch(standard):
        for skipped in range(4):
            whole = standard[skipped : len(standard) - (len(standard) - skipped) % 4]
            yield base64.b64decode(whole)
    if _IN_HEX.fullmatch(value):
        for skipped in range(2):
            yield bytes.fromhex(value[skipped : len(value) - (len(value) - skipped) % 2])


_URL_SAFE, _STANDARD = str.maketrans("+/", "-_"), str.maketrans("-_", "+/")
_IN_BASE64, _IN_HEX = re.compile(r"[A-Za-z0-9+/]*"), re.compile(r"[0-9A-Fa-f]*")
# Escaped by some encoders although JSON does not require it, so that it cannot end a script in HTML.
_SIGNS = str.maketrans({sign: f"\\u{ord(sign):04x}" for sign in "<>&'"})
_SIGNS_UPPER = str.maketrans({sign: f"\\u{ord(sign):04X}" for sign in "<>&'"})

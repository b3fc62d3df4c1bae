"""A signed token (JWT, RFC 7519) as text: read within bounds, before anything is known of its sender. Pure."""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, unique
from typing import Any, NoReturn

from engine.config.oauth import ALGORITHMS
from engine.errors import Code, Problem
from engine.values import marks_at_most
from engine.work import WORK

# A head may have 16 KiB. The largest tokens seen are those of Entra with 200 groups: 6 KiB.
MAX_BYTES = WORK["token"].max_bytes or 0
MAX_VALUES = WORK["token"].max_values or 0
MAX_HEADER_BYTES = 2048
MAX_KID_CHARS = 256

_PARTS = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)", re.ASCII)
# RFC 9068 section 2.1, RFC 7515 section 4.1.9, and the value that most issuers write. Tokens of another purpose
# (`logout+jwt`, `dpop+jwt`) have another type.
_TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})


@unique
class Reason(Enum):
    """Why a token gives no access. The text is for its sender, who learns which claim is wrong only of a token that a
    configured issuer has signed."""

    FORGED = "the token is not one that an issuer configured here has signed"
    EXPIRED = "the token has expired"
    EARLY = "the token is not valid yet"
    AUDIENCE = "the token is for another audience"
    CLAIMS = "a claim of the token is missing, or has another type than expected"
    BOUND = "the token is bound to a key of its client, which is not checked here"
    TENANT = "the claims of the token lead to no active tenant"


class Refused(Problem):
    """A token that gives no access. `detail` is for the log."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(Code.UNAUTHORIZED, reason.value)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Token:
    """A token whose form is right; nothing of it is verified. `issuer` is what it claims."""

    text: str
    algorithm: str
    kid: str | None
    issuer: str
    claims: Mapping[str, Any]


def _forged(detail: str) -> NoReturn:
    raise Refused(Reason.FORGED, detail)


def read_token(text: str) -> Token:
    """The parts of a token. Raises Refused."""
    if len(text) > MAX_BYTES:
        _forged(f"more than {MAX_BYTES} bytes")
    parts = _PARTS.fullmatch(text)
    if parts is None:
        _forged("not three parts in base64url")
    if len(parts[1]) > MAX_HEADER_BYTES:
        _forged(f"a header of more than {MAX_HEADER_BYTES} bytes")
    try:
        header, claims = (read_object(_decoded(parts[at]), MAX_VALUES) for at in (1, 2))
    except ValueError as error:
        _forged(str(error))
    algorithm, kid, kind, issuer = header.get("alg"), header.get("kid"), header.get("typ", "JWT"), claims.get("iss")
    if algorithm not in ALGORITHMS:
        _forged("its algorithm is not one that is allowed")
    # An extension that has to be understood (RFC 7515 section 4.1.11), and one that changes what is signed (RFC 7797).
    if "crit" in header or "b64" in header:
        _forged("a critical header")
    if kid is not None and not (isinstance(kid, str) and len(kid) <= MAX_KID_CHARS):
        _forged("a kid that is no short text")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        _forged("a type other than that of access tokens")
    if not isinstance(issuer, str):
        _forged("no issuer")
    return Token(text, algorithm, kid, issuer, claims)


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):  # parsers differ in which of two they take
        raise ValueError("an object has a key twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def read_object(raw: bytes, max_values: int) -> dict[str, Any]:
    """An object of strict JSON with at most so many values. Raises ValueError, which quotes nothing of it."""
    if marks_at_most(raw) > max_values:
        raise ValueError(f"more than {max_values} values")
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except json.JSONDecodeError:
        raise ValueError("not JSON") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value

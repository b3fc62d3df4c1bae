"""An issuer's public keys (JWKS, RFC 7517): read within bounds, and which of them verifies a token. Pure.

PyJWT makes keys and checks signatures; what reaches it is bounded here, as some legal keys take very long.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import jwt

from engine.work import WORK
from server.oauth.token import Reason, Refused, Token, read_object

MAX_BYTES = WORK["issuer keys"].max_bytes or 0
MAX_VALUES = WORK["issuer keys"].max_values or 0
MAX_KEYS = 64
# Verifying took 0.025 ms of CPU with 2,048 bits, 0.11 with 4,096 and 1.5 with 16,384; with an exponent as long as the
# key, which is legal, 2.8 ms with 2,048 bits (cryptography 50). Public exponents are 65537 nearly always.
RSA_BITS = range(2048, 4097)
RSA_EXPONENT_BYTES = 4

# The members of a public key by its type; nothing else of what an issuer sends reaches the library.
_MEMBERS: Mapping[str, tuple[str, ...]] = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
_CURVES: Mapping[str, str] = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519"}
_MEMBER_CHARS = 1024


class BadKeys(Exception):
    """What an issuer sent is no set of keys that can be used. The text says why."""


def _fits(key: Mapping[str, Any], algorithm: str) -> bool:
    """Whether a key is for an algorithm."""
    if key.get("alg", algorithm) != algorithm or key.get("use", "sig") != "sig":
        return False
    operations = key.get("key_ops")
    if operations is not None and not (isinstance(operations, list) and "verify" in operations):
        return False
    kind = key.get("kty")
    if algorithm in _CURVES:
        return kind == ("OKP" if algorithm == "EdDSA" else "EC") and key.get("crv") == _CURVES[algorithm]
    return kind == "RSA" and _short(key)


def _short(key: Mapping[str, Any]) -> bool:
    """Whether verifying with an RSA key is quick, and its signatures are hard to make."""
    sizes = []
    for name in ("n", "e"):
        text = key.get(name)
        if not isinstance(text, str) or not text.isascii() or len(text) > _MEMBER_CHARS:
            return False
        try:
            sizes.append(int.from_bytes(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), "big").bit_length())
        except ValueError:
            return False
    return sizes[0] in RSA_BITS and sizes[1] <= 8 * RSA_EXPONENT_BYTES


class KeySet:
    """The keys of one issuer. `digest` is that of the bytes that they were read from."""

    def __init__(self, keys: Iterable[Mapping[str, Any]], digest: bytes) -> None:
        self.digest = digest
        self._keys = tuple(keys)
        self._fitting: dict[str, tuple[int, ...]] = {}
        # Keys as the library has them, by position and algorithm; None for one that it refuses.
        self._made: dict[tuple[int, str], jwt.PyJWK | None] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, kid: str | None, algorithm: str) -> jwt.PyJWK | None:
        """The key for a token's header: with its `kid`, or the only one for the algorithm if the token names none."""
        fitting = self._fitting.get(algorithm)
        if fitting is None:
            fitting = tuple(at for at, key in enumerate(self._keys) if _fits(key, algorithm))
            self._fitting[algorithm] = fitting
        if kid is not None:
            fitting = tuple(at for at in fitting if self._keys[at].get("kid") == kid)[:1]
        return self._make(fitting[0], algorithm) if len(fitting) == 1 else None

    def _make(self, at: int, algorithm: str) -> jwt.PyJWK | None:
        if (at, algorithm) not in self._made:
            key = self._keys[at]
            public = {name: key.get(name) for name in ("kty", *_MEMBERS[key["kty"]])}
            try:
                made = jwt.PyJWK(public, algorithm) if all(isinstance(each, str) for each in public.values()) else None
            except (jwt.PyJWTError, ValueError, TypeError):  # a point that is not on its curve
                made = None
            self._made[at, algorithm] = made
        return self._made[at, algorithm]


def read_keys(raw: bytes) -> KeySet:
    """The keys in the bytes of a JWKS. Raises BadKeys."""
    if len(raw) > MAX_BYTES:
        raise BadKeys(f"the keys take more than {MAX_BYTES} bytes")
    try:
        keys = read_object(raw, MAX_VALUES).get("keys")
    except ValueError as error:
        raise BadKeys(f"the keys are no JWKS: {error}") from None
    if not isinstance(keys, list) or not all(isinstance(key, dict) for key in keys):
        raise BadKeys("the keys are no JWKS: no list of objects as 'keys'")
    if len(keys) > MAX_KEYS:
        raise BadKeys(f"{len(keys)} keys; at most {MAX_KEYS} are read")
    return KeySet(keys, hashlib.sha256(raw).digest())


def verify(token: Token, key: jwt.PyJWK) -> None:
    """Check the signature of a token. Raises Refused."""
    try:
        jwt.api_jws.decode_complete(token.text, key, algorithms=[token.algorithm])
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        raise Refused(Reason.FORGED, type(error).__name__) from None

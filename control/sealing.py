"""Secrets at rest: AES-256-GCM under one key of the operator's, bound to tenant, name and hosts. Pure."""

import base64
import binascii
import json
import secrets
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from engine.errors import Code, Problem

KEY_BYTES = 32
# The standard nonce of GCM (NIST SP 800-38D). Random ones are good for 2^32 secrets under one key.
_NONCE_BYTES = 12


class BadKey(ValueError):
    """The configured key is not valid. One phrase, without the key."""


def parse_key(text: str) -> bytes:
    """The 32 bytes of a base64 text (either alphabet, with or without padding). Raises BadKey."""
    compact = "".join(text.split()).rstrip("=")
    try:
        key = base64.b64decode(compact + "=" * (-len(compact) % 4), altchars=_altchars(compact), validate=True)
    except (binascii.Error, ValueError):
        raise BadKey(f"expected {KEY_BYTES} bytes in base64") from None
    if len(key) != KEY_BYTES:
        raise BadKey(f"expected {KEY_BYTES} bytes in base64, got {len(key)} bytes")
    return key


def _altchars(text: str) -> bytes:
    return b"-_" if "-" in text or "_" in text else b"+/"


class Sealer:
    """Seals and opens values under one key."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def seal(self, tenant: str, name: str, hosts: Sequence[str], value: str) -> bytes:
        """The value encrypted, so that it opens for this tenant, name and list of hosts only."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, value.encode(), _bound_to(tenant, name, hosts))

    def open(self, tenant: str, name: str, hosts: Sequence[str], sealed: bytes) -> str:
        """The value that was sealed. Raises Problem `unavailable` under another key, or when anything was changed."""
        try:
            nonce, text = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
            return self._cipher.decrypt(nonce, text, _bound_to(tenant, name, hosts)).decode()
        except (InvalidTag, ValueError):
            raise Problem(
                Code.UNAVAILABLE,
                f"the secret {name!r} cannot be opened: it was sealed with another secrets_key, or was changed; "
                "set it again",
            ) from None


def _bound_to(tenant: str, name: str, hosts: Sequence[str]) -> bytes:
    # JSON of a list is unambiguous: no tenant, name or host can be confused with parts of two.
    return json.dumps(["engine secret", 1, tenant, name, list(hosts)]).encode()

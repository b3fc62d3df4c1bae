"""API keys: their format, the digest that is stored, and whether one is valid. Pure.

A key is `ek_PREFIX_SECRET`: 12 hexadecimal digits that find its row, then 64 that prove it. The store has the SHA-256
of the whole: with 256 random bits there is nothing to guess, so a slow hash would add nothing but time.
"""

import hashlib
import hmac
import re
import secrets

from control.records import KeyRecord, State

_KEY = re.compile(r"ek_([0-9a-f]{12})_[0-9a-f]{64}", re.ASCII)

# What is looked up and compared where there is no row, so that the work is the same: no key has either.
NO_PREFIX = "ek_"
NO_DIGEST = b"\0" * 32


def new_key() -> tuple[str, str]:
    """A fresh key, and the prefix by which its row is found."""
    prefix = f"ek_{secrets.token_hex(6)}"
    return f"{prefix}_{secrets.token_hex(32)}", prefix


def new_id() -> str:
    """A new id for a key's row, independent of the key."""
    return f"key_{secrets.token_hex(8)}"


def digest(presented: str) -> bytes:
    """The digest of a key, which is stored or compared with a stored one."""
    return hashlib.sha256(presented.encode("utf-8", "surrogatepass")).digest()


def prefix_of(presented: str) -> str:
    """The prefix to look up: `NO_PREFIX` for a text that is not a key, so that the work is the same."""
    return presented[:15] if _KEY.fullmatch(presented) else NO_PREFIX


def same(kept: bytes, presented: bytes) -> bool:
    """Whether two digests are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(kept, presented)


def usable(record: KeyRecord, state: State) -> bool:
    """Whether a key with the right digest is valid until it expires: not revoked, its tenant not suspended.

    Only a control action changes the answer, so it may be cached between two of them.
    """
    return record.revoked_at is None and state == "active"


def ended(expires_at: float | None, now: float) -> bool:
    """Whether a key with this expiry has expired. Not to be cached: a clock may be wrong and be corrected."""
    return expires_at is not None and expires_at <= now

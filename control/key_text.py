"""API keys: what they look like, what is kept of them, and whether one opens the door now. Pure.

A key is `ek_PREFIX_SECRET`: 12 hexadecimal digits that find its row, then 64 that prove it. What is kept is the SHA-256
of the whole: the 256 random bits in it leave nothing to guess, so that a slow hash would only be slow.
"""

import hashlib
import hmac
import re
import secrets

from control.records import KeyRecord, State

_KEY = re.compile(r"ek_([0-9a-f]{12})_[0-9a-f]{64}", re.ASCII)

# What is looked up, and compared with, where nothing was found: no key has either.
NO_PREFIX = "ek_"
NO_DIGEST = b"\0" * 32


def new_key() -> tuple[str, str]:
    """A fresh key, and the prefix by which its row is found."""
    prefix = f"ek_{secrets.token_hex(6)}"
    return f"{prefix}_{secrets.token_hex(32)}", prefix


def new_id() -> str:
    """A fresh name for a key's row: it says nothing about the key."""
    return f"key_{secrets.token_hex(8)}"


def digest(presented: str) -> bytes:
    """What is kept of a key, or compared with what is kept."""
    return hashlib.sha256(presented.encode("utf-8", "surrogatepass")).digest()


def prefix_of(presented: str) -> str:
    """The prefix to look up: `NO_PREFIX` for what is no key at all, so that the work is the same."""
    return presented[:15] if _KEY.fullmatch(presented) else NO_PREFIX


def same(kept: bytes, presented: bytes) -> bool:
    """Whether two digests are equal, in a time that does not tell how far they are."""
    return hmac.compare_digest(kept, presented)


def usable(record: KeyRecord, state: State) -> bool:
    """Whether a key whose digest is right is good until it ends: not revoked, its tenant not suspended.

    Only a control action changes the answer, so that it may be remembered between two of them.
    """
    return record.revoked_at is None and state == "active"


def ended(expires_at: float | None, now: float) -> bool:
    """Whether a key with this end has ended. A clock may be wrong and be put right: never to be remembered."""
    return expires_at is not None and expires_at <= now

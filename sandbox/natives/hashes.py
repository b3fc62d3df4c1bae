"""Hashes in C."""

import hashlib
from collections.abc import Callable, Mapping


def _of(name: str) -> Callable[[bytes], bytes]:
    def digest(data: bytes) -> bytes:
        return hashlib.new(name, data, usedforsecurity=False).hexdigest().encode()

    return digest


HASHES: Mapping[bytes, Callable[[bytes], bytes]] = {
    b"hash:md5": _of("md5"),
    b"hash:sha1": _of("sha1"),
    b"hash:sha512": _of("sha512"),
    b"hash:blake2": _of("blake2b"),
}


def warm_up() -> None:
    """OpenSSL looks its algorithms up on their first use."""
    for digest in HASHES.values():
        digest(b"")

"""`gzip`: both ways, and never more than the bound."""

import gzip
import random
import zlib
from contextlib import suppress

import pytest
from lua_support import error_of, value_of

from sandbox.natives import gzip as native
from sandbox.natives.refused import Refused


def decompress(data: bytes, most: int = 1000) -> bytes:
    return native.decompress(most.to_bytes(8, "big") + data)


def test_what_is_compressed_comes_back_and_python_reads_it() -> None:
    assert value_of("return gzip.decompress(gzip.compress(('abc'):rep(1000))) == ('abc'):rep(1000)")
    packed = native.compress(b"x" * 100)
    assert gzip.decompress(packed) == b"x" * 100
    assert packed == native.compress(b"x" * 100)


@pytest.mark.parametrize(
    "data", [gzip.compress(b"a") + gzip.compress(b"b"), zlib.compress(b"ab"), gzip.compress(b"ab") + b"\0"]
)
def test_members_zlib_and_padding_are_read(data: bytes) -> None:
    assert decompress(data) == b"ab"


def test_a_bomb_is_refused_at_the_bound_and_takes_no_more_memory_than_that() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    with pytest.raises(Refused, match="holds more than 1000 bytes"):
        decompress(bomb)
    many = gzip.compress(bytes(600)) * 2
    with pytest.raises(Refused, match="holds more than 1000 bytes"):
        decompress(many)
    assert decompress(gzip.compress(bytes(1000))) == bytes(1000)


def test_damaged_data_is_refused_whatever_the_damage() -> None:
    source, packed = random.Random(3), gzip.compress(bytes(range(200)))
    for _ in range(300):
        broken = bytearray(packed)
        broken[source.randrange(len(broken))] ^= 1 << source.randrange(8)
        with suppress(Refused):
            decompress(bytes(broken[: source.randrange(1, len(broken) + 1)]))
    for data in (b"", b"plain", packed[:20]):
        with pytest.raises(Refused):
            decompress(data)


@pytest.mark.parametrize(
    "call",
    ["gzip.compress(5)", "gzip.decompress('x')", "gzip.decompress('', 5)", "gzip.decompress('', {max_bytes = 1e9})"],
)
def test_a_wrong_argument_is_an_error_at_the_scripts_line(call: str) -> None:
    assert error_of(f"\n{call}").startswith("t.lua:2: gzip.")

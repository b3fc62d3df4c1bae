"""`uuid`: the bits of RFC 9562, from a key of the run's own."""

import time
from uuid import UUID

from lua_support import value_of


def made(version: str, count: int, before: str = "") -> list[UUID]:
    texts = value_of(f"{before} local t = {{}} for i = 1, {count} do t[i] = uuid.{version}() end return t")
    assert all(text == str(UUID(text)) for text in texts)
    return [UUID(text) for text in texts]


def test_identifiers_have_the_version_and_the_variant_and_are_all_different() -> None:
    for version in ("v4", "v7"):
        found = made(version, 2000)
        assert {each.version for each in found} == {int(version[1])}
        assert {each.variant for each in found} == {"specified in RFC 4122"}
        assert len(set(found)) == 2000


def test_every_random_bit_is_set_as_often_as_not() -> None:
    found = [each.int for each in made("v4", 4000)]
    fixed = {*range(62, 64), *range(76, 80)}
    for bit in set(range(128)) - fixed:
        assert 1750 < sum(each >> bit & 1 for each in found) < 2250, bit


def test_seeding_luas_generator_makes_no_two_runs_alike() -> None:
    seeded = "math.randomseed(42)"
    assert not set(made("v4", 50, seeded)) & set(made("v4", 50, seeded))


def test_version_7_has_the_time_in_milliseconds_and_sorts_as_it_was_made() -> None:
    before = time.time()
    found = made("v7", 10_000)
    after = time.time()
    assert sorted(found) == found
    assert int(before * 1000) <= found[0].int >> 80 <= int(after * 1000)


def test_both_can_be_made_in_callbacks() -> None:
    found = value_of("return ('ab'):gsub('.', function() return uuid.v4() .. uuid.v7() end)")
    assert len(found) == 2 * 72


def test_the_cipher_is_chacha20() -> None:
    """RFC 8439, appendix A.1, test vector 1: the key stream of a key of zeros."""
    from lua_support import PRELUDE
    from lupa.lua54 import LuaRuntime

    lua = LuaRuntime(encoding=None)
    make = lua.execute(
        b"""local code = ... local s, t = string, table
        return load(code, 'uuid', 'b')({format = s.format, pack = s.pack, unpack = s.unpack, sub = s.sub,
            key = ('\\0'):rep(32), isyieldable = function() return false end, os_time = os.time}).v4()""",
        PRELUDE.libraries_in(b"uuid")[0][1],
    )
    stream = bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28")
    assert UUID(make.decode()) == UUID(bytes=stream, version=4)

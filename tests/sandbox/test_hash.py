"""`hash`: digests of any bytes."""

import hashlib

import pytest
from lua_support import error_of, value_of


@pytest.mark.parametrize("name", ["md5", "sha1", "sha512", "blake2"])
def test_a_digest_is_that_of_hashlib(name: str) -> None:
    expected = hashlib.new("blake2b" if name == "blake2" else name, bytes(range(256)) * 9).hexdigest()
    all_bytes = "local t = {} for i = 0, 255 do t[#t + 1] = string.char(i) end local s = table.concat(t):rep(9)"
    assert value_of(f"{all_bytes} return hash.{name}(s)") == expected


def test_a_value_that_is_no_string_is_an_error_at_the_scripts_line() -> None:
    assert error_of("\nhash.md5({})") == "t.lua:2: hash.md5: a string is expected, got table"


def test_in_a_callback_it_is_refused_and_says_so() -> None:
    assert "hash.sha1 cannot be called here" in error_of("return ('a'):gsub('.', hash.sha1)")

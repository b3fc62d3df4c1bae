"""Tokens as text, before anything is known of their sender."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oauth_support import claims, part, signed

from engine.config.oauth import ALGORITHMS, looks_like_token
from server.oauth.token import MAX_BYTES, MAX_VALUES, Reason, Refused, read_object, read_token


def built(header: Any, payload: Any, signature: str = "AAAA") -> str:
    return f"{part(header)}.{part(payload)}.{signature}"


HEADER = {"alg": "RS256", "kid": "k1", "typ": "at+jwt"}


def detail(text: str) -> str:
    with pytest.raises(Refused) as refused:
        read_token(text)
    assert refused.value.reason is Reason.FORGED
    return refused.value.detail


def test_a_token_is_read() -> None:
    token = read_token(signed(claims(iss="https://sso.example.com")))
    assert (token.algorithm, token.kid, token.issuer) == ("RS256", "k1", "https://sso.example.com")


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "NONE", "HS256", "HS512", "rs256", "", None, 1, ["RS256"], "RS1"]
)
def test_an_algorithm_that_is_not_of_a_public_key_is_refused(algorithm: Any) -> None:
    assert algorithm not in ALGORITHMS
    assert "algorithm" in detail(built({**HEADER, "alg": algorithm}, claims()))


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"crit": ["b64"]}, "critical"),
        ({"crit": ["exp"]}, "critical"),
        ({"crit": []}, "critical"),
        ({"b64": False}, "critical"),
        ({"b64": True}, "critical"),
        ({"kid": 1}, "kid"),
        ({"kid": ["k1"]}, "kid"),
        ({"kid": "k" * 300}, "kid"),
        ({"typ": "dpop+jwt"}, "type"),
        ({"typ": "logout+jwt"}, "type"),
        ({"typ": 1}, "type"),
        ({"typ": None}, "type"),
        ({"typ": ""}, "type"),
    ],
    ids=repr,
)
def test_an_odd_header_is_refused(header: dict[str, Any], said: str) -> None:
    assert said in detail(built({**HEADER, **header}, claims()))


@pytest.mark.parametrize("kind", ["JWT", "jwt", "at+jwt", "AT+JWT", "application/at+jwt"])
def test_the_types_of_access_tokens_are_taken(kind: str) -> None:
    read_token(built({**HEADER, "typ": kind}, claims()))


def test_a_key_that_is_twice_in_a_token_is_refused_wherever_it_is() -> None:
    header, payload = json.dumps(HEADER)[:-1].encode(), json.dumps(claims())[:-1].encode()
    assert "twice" in detail(built(header + b', "alg": "RS256"}', claims()))
    assert "twice" in detail(built(HEADER, payload + b', "sub": "mallory"}'))
    assert "twice" in detail(built(HEADER, payload + b', "a": [{"b": 1, "b": 2}]}'))


def test_a_token_with_a_megabyte_of_claims_is_refused_before_it_is_parsed() -> None:
    assert f"more than {MAX_BYTES} bytes" in detail(built(HEADER, claims(junk="x" * 2**20)))


def test_a_token_of_many_small_values_is_refused_before_it_is_parsed() -> None:
    assert f"more than {MAX_VALUES} values" in detail(built(HEADER, claims(junk=[1] * MAX_VALUES)))
    assert f"more than {MAX_VALUES} values" in detail(built(HEADER, b"[" * 5000))
    assert "header" in detail(built({**HEADER, "x": "y" * 3000}, claims()))


@pytest.mark.parametrize(
    "payload",
    [b"", b"[]", b"null", b"1", b"{", b'{"iss": NaN}', b'{"iss": "\xff"}', b'{"iss": 1}', b"{}", b"\xef\xbb\xbf{}"],
)
def test_claims_that_are_no_object_with_an_issuer_are_refused(payload: bytes) -> None:
    detail(built(HEADER, payload) if payload else f"{part(HEADER)}..AAAA")


def test_a_digit_flood_is_refused() -> None:
    detail(built(HEADER, b'{"iss": ' + b"9" * 5000 + b"}"))


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda raw: raw.decode("latin-1")))
def test_any_text_is_a_token_or_refused(text: str) -> None:
    for each in (text, f"eyJ{text}.e30.x", f"eyJ9.{text}.x", built(HEADER, text.encode("utf-8", "replace") or b"x")):
        with suppress(Refused):
            assert isinstance(read_token(each).claims, dict)


@given(st.binary(max_size=300))
def test_strict_json_raises_nothing_but_value_errors(raw: bytes) -> None:
    try:
        found = read_object(raw, 100)
    except ValueError:
        return
    assert isinstance(found, dict)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("ek_000000000000_" + "0" * 64, False),
        ("the-operator", False),
        ("a.b.c", False),
        ("eyJhbGciOiJub25lIn0.e30.", True),
        ("eyJhbGciOiJub25lIn0.e30.AA", True),
        ("eyJhbGciOiJub25lIn0.e30", False),
        ("eyJ.e30.AA.BB", False),
        ("", False),
    ],
)
def test_tokens_are_told_from_keys_by_their_form(text: str, is_one: bool) -> None:
    assert looks_like_token(text) is is_one

"""An issuer's keys: which of them verify a token, and which are never used."""

import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from oauth_support import claims, ec_key, ed_key, keys_of, number, part, public, rsa_key, signed

from engine.work import LOOP_S
from server.oauth.keys import MAX_BYTES, MAX_KEYS, BadKeys, read_keys, verify
from server.oauth.token import Reason, Refused, read_token

ISS = "https://sso.example.com"


def check(text: str, *keys: dict[str, Any]) -> None:
    token = read_token(text)
    key = read_keys(keys_of(*keys)).find(token.kid, token.algorithm)
    if key is None:
        raise Refused(Reason.FORGED, "no key")
    verify(token, key)


def refused(text: str, *keys: dict[str, Any]) -> None:
    with pytest.raises(Refused) as found:
        check(text, *keys)
    assert found.value.reason is Reason.FORGED


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(rsa_key, a) for a in ("RS256", "RS384", "RS512", "PS256")] + [(ec_key, "ES256"), (ed_key, "EdDSA")],
)
def test_a_token_is_verified_by_the_key_that_it_names(key: Any, algorithm: str) -> None:
    text = signed(claims(iss=ISS), key(), algorithm)
    check(text, public(rsa_key(number=1), kid="k0"), public(key()))
    refused(text, public(rsa_key(number=1)), public(key(), kid="k2"))
    head, payload, signature = text.split(".")
    refused(f"{head}.{part(claims(iss=ISS, sub='mallory'))}.{signature}", public(key()))
    refused(f"{head}.{payload}.{'A' * len(signature)}", public(key()))


def test_a_token_without_a_kid_is_verified_where_one_key_alone_fits() -> None:
    text = signed(claims(iss=ISS), kid=None)
    check(text, public(rsa_key()), public(ec_key(), kid="k2"))
    refused(text, public(rsa_key()), public(rsa_key(number=1), kid="k2"))


def test_the_public_key_is_no_secret_of_an_hmac() -> None:
    pem = (
        rsa_key().public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    import hashlib
    import hmac

    said = f"{part({'alg': 'HS256', 'kid': 'k1'})}.{part(claims(iss=ISS))}"
    forged = f"{said}.{part(hmac.new(pem, said.encode(), hashlib.sha256).digest())}"
    refused(forged, public(rsa_key()))
    refused(forged, {"kty": "oct", "kid": "k1", "k": part(pem)})


def test_the_key_in_a_tokens_own_header_is_not_used() -> None:
    mine = public(rsa_key(number=1))
    refused(signed(claims(iss=ISS), rsa_key(number=1), jwk=mine, kid="k1"), public(rsa_key()))
    refused(signed(claims(iss=ISS), rsa_key(number=1), jku="https://evil.example/keys"), public(rsa_key()))


@pytest.mark.parametrize(
    "more", [{"use": "enc"}, {"use": 1}, {"key_ops": ["sign"]}, {"key_ops": "verify"}, {"alg": "RS512"}, {"alg": None},
             {"kty": "oct"}, {"kty": ["RSA"]}, {"kty": None}, {"n": 1}, {"n": "!!"}, {"e": None},
             {"kid": 1}, {"n": "\u00e9"}], ids=repr
)  # fmt: skip
def test_a_key_for_something_else_is_not_used(more: dict[str, Any]) -> None:
    refused(signed(claims(iss=ISS)), public(rsa_key(), **more))


def test_a_curve_belongs_to_its_algorithm() -> None:
    refused(signed(claims(iss=ISS), ec_key(), "ES256"), public(ec_key(), crv="P-384"))
    refused(signed(claims(iss=ISS), ec_key(), "ES256"), public(ec_key(), x=number(5)))


def test_a_private_key_that_an_issuer_publishes_is_used_as_a_public_one() -> None:
    leaked = {"kid": "k1", **jwt.algorithms.RSAAlgorithm.to_jwk(rsa_key(), as_dict=True)}
    leaked.pop("key_ops", None)
    check(signed(claims(iss=ISS)), leaked)


def test_keys_whose_signatures_take_long_to_check_or_are_weak_are_not_used() -> None:
    refused(signed(claims(iss=ISS), rsa_key(1024)), public(rsa_key(1024)))
    text = signed(claims(iss=ISS))
    huge = {"kty": "RSA", "kid": "k1", "n": number((1 << 16383) + 1), "e": "AQAB"}
    refused(text, huge)
    n = rsa_key().public_key().public_numbers().n
    refused(text, {"kty": "RSA", "kid": "k1", "n": number(n), "e": number(n - 2)})
    largest = rsa_key(4096)
    slow = signed(claims(iss=ISS), largest)
    began = time.thread_time()
    check(slow, public(largest))
    assert time.thread_time() - began < LOOP_S


def test_a_jwks_of_ten_thousand_keys_is_refused_before_it_is_parsed_and_of_many_after() -> None:
    with pytest.raises(BadKeys, match=f"more than {MAX_BYTES} bytes"):
        read_keys(keys_of(*[public(rsa_key())] * 10_000))
    with pytest.raises(BadKeys, match="values"):
        read_keys(keys_of(*[{"kty": "x"}] * 10_000))
    with pytest.raises(BadKeys, match=f"at most {MAX_KEYS}"):
        read_keys(keys_of(*[public(rsa_key())] * (MAX_KEYS + 1)))
    assert len(read_keys(keys_of(*[public(rsa_key())] * MAX_KEYS))) == MAX_KEYS


def test_the_most_keys_that_are_read_take_less_than_a_piece_of_work() -> None:
    raw = keys_of(*(public(rsa_key(4096), kid=f"k{n}") for n in range(MAX_KEYS)))
    text = read_token(signed(claims(iss=ISS), rsa_key(4096), kid=f"k{MAX_KEYS - 1}"))
    began = time.thread_time()
    key = read_keys(raw).find(text.kid, "RS256")
    assert key is not None
    verify(text, key)
    assert time.thread_time() - began < LOOP_S


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b'{"keys": 1}', b'{"keys": [1]}', b'{"keys": {}}', b'{"keys": [], "keys": []}',
            b"<html>", b"\xff", b'{"keys":' + b"[" * 3000]
)  # fmt: skip
def test_what_is_no_jwks_is_refused(raw: bytes) -> None:
    with pytest.raises(BadKeys):
        read_keys(raw)


def test_an_exponent_of_three_is_a_key() -> None:
    key = rsa.generate_private_key(3, 2048)
    check(signed(claims(iss=ISS), key), public(key))

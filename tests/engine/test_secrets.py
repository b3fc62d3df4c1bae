"""Secrets by reference: what a script sees, what leaves for which host, what of an answer is kept from scripts."""

import base64
import hashlib
import json
import time
import zlib
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qs, quote, unquote

import msgspec
import pytest
import structlog
import trio
from hostile_http import HOST, PUBLIC, PUBLIC_TOO, Seen, World, answer, context, gzipped, open_world, redirect
from hypothesis import given
from hypothesis import strategies as st

from engine.bridge import http
from engine.egress.redaction import MASK, NOTHING_SECRET, Redactor
from engine.egress.rules import parse_url
from engine.egress.secrets import (
    EMPTY_VAULT,
    BoundSecret,
    MissingSecret,
    References,
    SecretRefused,
    Vault,
)
from engine.run import Usage

VALUE = 'sentinel/"a\\b"+7f3d=é'
OTHER = "other.example.com"
HTTPS = f"https://{HOST}/v1?q=1"
MIB = 1 << 20


def vault(value: str = VALUE, *hosts: str, **more: str) -> Vault:
    """A vault with TOKEN, bound to HOST unless said otherwise, and more secrets of that host."""
    bound = hosts or (HOST,)
    return Vault(
        [BoundSecret.from_rules("TOKEN", value, bound), *(BoundSecret.from_rules(n, v, bound) for n, v in more.items())]
    )


def references(value: str = VALUE, *hosts: str) -> References:
    return References(vault(value, *hosts), granted=None)


def filled(
    run: References, *, url: str = HTTPS, headers: Mapping[str, str] | None = None, body: str = "", bound: int = MIB
) -> Any:
    raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    return run.fill(parse_url(url), raw, body.encode(), bound)


# ---- placeholders -----------------------------------------------------------------------------------------------


def test_a_script_is_told_placeholders_of_what_it_was_granted_and_nothing_of_the_values() -> None:
    run = References(vault(), frozenset({"TOKEN", "UNKNOWN"}))
    assert set(run.table) == {"TOKEN"}
    assert VALUE not in repr(run.table) + repr(vault().secrets)
    assert References(vault(), frozenset()).table == {}
    assert References(EMPTY_VAULT, None).table == {}


def test_a_placeholder_is_of_one_run() -> None:
    first, second = references(), references()
    assert first.table["TOKEN"] != second.table["TOKEN"]
    # What another run was given, or a document says, is text like any other.
    body = first.table["TOKEN"]
    assert filled(second, body=body).body == body.encode()


def test_config_values_that_name_a_secret_become_its_placeholder_and_others_stay() -> None:
    run = references()
    config = {"a": "secret:TOKEN", "deep": [{"b": "secret:TOKEN"}, "not secret:TOKEN"], "n": 5, "c": "secret:"}
    placeholder = run.table["TOKEN"]
    assert run.placed(config) == {
        "a": placeholder,
        "deep": [{"b": placeholder}, "not secret:TOKEN"],
        "n": 5,
        "c": "secret:",
    }


def test_config_that_names_a_secret_which_is_not_there_says_where() -> None:
    with pytest.raises(MissingSecret, match=r"deep\[1\]\.key names the secret 'GONE'"):
        references().placed({"deep": [1, {"key": "secret:GONE"}]})
    with pytest.raises(MissingSecret):
        References(vault(), frozenset({"ANOTHER"})).placed({"a": "secret:TOKEN"})


# ---- filling in -------------------------------------------------------------------------------------------------


def test_header_values_and_basic_credentials_get_the_value() -> None:
    run = references("value-of-the-token")
    placeholder = run.table["TOKEN"]
    basic = "Basic " + base64.b64encode(f"me:{placeholder}".encode()).decode()
    sent = dict(filled(run, headers={"x-key": f"k={placeholder};", "authorization": basic, "accept": "*/*"}).headers)
    assert sent[b"x-key"] == b"k=value-of-the-token;"
    assert base64.b64decode(sent[b"authorization"].removeprefix(b"Basic ")) == b"me:value-of-the-token"
    assert sent[b"accept"] == b"*/*"


@pytest.mark.parametrize("credentials", ["Basic ????", "Basic", "Basic YQ", "basic Zm9v extra", "Bearer Zm9v"])
def test_what_only_looks_like_basic_credentials_is_left_alone(credentials: str) -> None:
    assert dict(filled(references(), headers={"authorization": credentials}).headers) == {
        b"authorization": credentials.encode()
    }


@given(value=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_whatever_a_value_holds_it_stays_one_value_in_json_in_a_form_and_in_a_url(value: str) -> None:
    run = references(value)
    placeholder = run.table["TOKEN"]
    in_json = filled(run, headers={"content-type": "application/json"}, body=json.dumps({"a": [placeholder], "b": 1}))
    assert json.loads(in_json.body) == {"a": [value], "b": 1}
    form = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
    in_form = filled(run, headers=form, body=f"token={placeholder}&b=1").body.decode()
    assert parse_qs(in_form, keep_blank_values=True) == {"token": [value], "b": ["1"]}
    in_url = filled(run, url=f"https://{HOST}/hooks/{placeholder}?k={placeholder}&b=1").target.path
    path, _, query = in_url.partition("?")
    assert (path.count("/"), unquote(path)) == (2, f"/hooks/{value}")
    assert parse_qs(query, keep_blank_values=True) == {"k": [value], "b": ["1"]}


def test_the_length_that_the_headers_tell_is_that_of_the_body_that_is_sent() -> None:
    run = references("v" * 200)
    body = run.table["TOKEN"]
    sent = filled(run, headers={"content-length": str(len(body))}, body=body)
    assert sent.headers == ((b"content-length", b"200"),)
    assert sent.used == ("TOKEN",)


def test_a_request_without_placeholders_stays_as_it_is() -> None:
    sent = filled(references(), headers={"content-length": "1"}, body="x")
    assert (sent.headers, sent.body, sent.used) == (((b"content-length", b"1"),), b"x", ())


REFUSED: tuple[tuple[tuple[str, ...], str, str | None], ...] = (
    ((HOST,), f"https://{OTHER}/", "TOKEN is bound to api.example.com, and is not sent to other.example.com"),
    ((HOST,), f"https://{HOST}:8443/", "is not sent to api.example.com:8443"),
    ((HOST,), f"http://{HOST}/", "is not sent over plain http; use https, or bind it to api.example.com:80"),
    (("*.example.com",), f"http://{HOST}/", "is not sent over plain http"),
    (("*.example.com",), "https://example.com/", "is not sent to example.com"),
    ((HOST,), f"https://{HOST}.evil.com/", "is not sent to"),
    (("10.0.0.5",), "https://10.0.0.6/", "is not sent to 10.0.0.6"),
    ((HOST,), f"https://{HOST}/", None),
    ((f"{HOST}:80",), f"http://{HOST}/", None),
    (("*.example.com:8080",), f"http://{HOST}:8080/", None),
    (("10.0.0.5",), "http://10.0.0.5/", None),
    (("127.0.0.1:8080",), "http://127.0.0.1:8080/", None),
    ((OTHER, HOST), f"https://{HOST}/", None),
)


@pytest.mark.parametrize(("hosts", "url", "text"), REFUSED)
def test_a_secret_goes_to_the_hosts_that_it_is_bound_to_and_nowhere_else(
    hosts: tuple[str, ...], url: str, text: str | None
) -> None:
    run = references("the value", *hosts)
    placeholder = run.table["TOKEN"]
    basic = "Basic " + base64.b64encode(f"me:{placeholder}".encode()).decode()
    ways: tuple[dict[str, Any], ...] = (
        {"headers": {"x": placeholder}},
        {"headers": {"x": basic}},
        {"body": placeholder},
        {"url": f"{url}?k={placeholder}"},
    )
    for way in ways:
        if text is None:
            assert filled(run, **{"url": url, **way}).used == ("TOKEN",)
            continue
        with pytest.raises(SecretRefused, match=text) as refused:
            filled(run, **{"url": url, **way})
        assert "the value" not in str(refused.value)


def test_a_value_that_fits_no_header_is_refused_without_showing_it() -> None:
    run = references("two\r\nlines: x")
    with pytest.raises(SecretRefused, match="cannot be sent in a header") as refused:
        filled(run, headers={"x": run.table["TOKEN"]})
    assert "two" not in str(refused.value)
    assert filled(run, body=run.table["TOKEN"]).body == b"two\r\nlines: x"


def test_a_request_that_its_secrets_would_blow_up_is_refused_before_it_is_made() -> None:
    run = references("v" * 60_000)
    placeholder = run.table["TOKEN"]
    with pytest.raises(SecretRefused, match="the body is larger than 1048576 bytes"):
        filled(run, body=placeholder * 1_000)
    with pytest.raises(SecretRefused, match="the body holds more than 1000 placeholders of secrets"):
        filled(run, body=placeholder * 10_000)
    with pytest.raises(SecretRefused, match="a header is larger than"):
        filled(run, headers={"x": placeholder * 2})
    with pytest.raises(SecretRefused, match="the URL is larger than"):
        filled(run, url=f"https://{HOST}/{placeholder}")
    assert len(filled(run, headers={"x": placeholder}).headers[0][1]) == 60_000


# ---- what an answer shows ---------------------------------------------------------------------------------------


def echoes(value: str) -> dict[str, bytes]:
    """The value as servers that echo requests show it."""
    credentials = base64.b64encode(f"user:{value}".encode())
    return {
        "plain": f"got {value}!".encode(),
        "json": json.dumps({"headers": {"X-Key": value}}).encode(),
        "json as utf-8": json.dumps({"a": value}, ensure_ascii=False).encode(),
        "json in json": json.dumps({"a": json.dumps({"b": value}, ensure_ascii=False)}, ensure_ascii=False).encode(),
        "escaped slashes": json.dumps({"a": value}).replace("/", "\\/").encode(),
        "url": f"/path?token={quote(value, safe='')}&x=1".encode(),
        "form": f"token={quote(value, safe='')}".replace("%20", "+").encode(),
        "basic": b"Basic " + credentials,
        "base64 in a longer text": base64.b64encode(f'{{"k": "{value}", "z": 0}}'.encode()),
        "base64 of the safe alphabet": base64.urlsafe_b64encode(f"12{value}".encode()),
        "hex": value.encode().hex().encode(),
    }


@pytest.mark.parametrize("value", [VALUE, "sk_live_0123456789abcdef", "pass word with spaces", "a/b+c=d?e&f"])
def test_a_secret_is_masked_in_every_form_in_which_servers_echo_it(value: str) -> None:
    run = references(value)
    scrubber = run.scrubber(parse_url(HTTPS))
    for form, body in echoes(value).items():
        shown = scrubber.data(body)
        assert MASK.encode() in shown, form
        assert value.encode() not in shown, form
        for token in shown.replace(b'"', b" ").split():
            # What is left of base64 decodes to less than the value.
            assert value.encode() not in _decoded(token), form


def _decoded(token: bytes) -> bytes:
    try:
        return base64.b64decode(token, altchars=b"-_" if b"-" in token or b"_" in token else None)
    except ValueError:
        return b""


def test_an_answer_without_secrets_is_not_touched() -> None:
    scrubber = references().scrubber(parse_url(HTTPS))
    body = bytes(range(256)) * 10
    assert scrubber.data(body) is body
    assert scrubber.text("naïve \udcff") == "naïve \udcff"


def test_what_another_host_answers_is_its_own_business() -> None:
    assert not references().scrubber(parse_url(f"https://{OTHER}/"))
    assert not References().scrubber(parse_url(HTTPS))


def test_a_short_secret_is_masked_as_it_is_and_in_the_credentials_that_were_sent() -> None:
    run = references("hunter2")
    basic = "Basic " + base64.b64encode(f"u:{run.table['TOKEN']}".encode()).decode()
    sent = filled(run, headers={"authorization": basic})
    scrubber = run.scrubber(sent.target, sent.forms)
    echoed = dict(sent.headers)[b"authorization"]
    assert base64.b64decode(echoed.split()[1]) == b"u:hunter2"
    assert scrubber.data(b"saw " + echoed + b" and hunter2") == b"saw Basic [redacted] and [redacted]"


def test_a_place_to_go_to_has_the_placeholder_again() -> None:
    run = references("a b/c")
    scrubber, placeholder = run.scrubber(parse_url(HTTPS)), run.table["TOKEN"]
    for written in ("a%20b%2Fc", "a%20b%2fc", "a+b%2Fc", "a b/c"):
        assert scrubber.location(f"/next?k={written}&x=1") == f"/next?k={placeholder}&x=1"


def test_logs_and_errors_are_rid_of_a_tenants_secrets_beside_the_operators() -> None:
    kept = vault("the-token-of-acme")
    redactor = kept.redactor(Redactor(["operators-own-secret"]))
    assert redactor.text("the-token-of-acme operators-own-secret") == f"{MASK} {MASK}"
    assert kept.redactor(Redactor(["operators-own-secret"])) is redactor
    assert EMPTY_VAULT.redactor(NOTHING_SECRET) is NOTHING_SECRET


# ---- with real requests -----------------------------------------------------------------------------------------


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world() as world:
        world.names.known[OTHER] = [[PUBLIC_TOO]]
        world.streets.at[PUBLIC_TOO, 80] = world.peer.port
        yield world


BOUND = f"{HOST}:80"
RULES = (HOST, OTHER)


async def call(
    world: World,
    run: References,
    name: str,
    url: str,
    *,
    rules: Iterable[str] = RULES,
    charged: Any = None,
    **given: Any,
) -> Any:
    """The answer of a call by a run with these secrets, or the text of its error."""
    made = context(rules)
    made = msgspec.structs.replace(made, secrets=run, charge=charged or made.charge)
    with trio.fail_after(20):
        reply = await world.bridge.call(made, name, msgspec.msgpack.encode({"url": url, **given}))
    return msgspec.msgpack.decode(reply.value) if reply.ok else reply.value.decode()


async def _echo(stream: trio.abc.Stream, seen: Seen) -> None:
    said = json.dumps({"path": seen.path, "headers": seen.headers, "body": seen.body.decode()}).encode()
    headers = (f"X-Echo: {seen.headers.get('x-key', '')}", "Content-Type: application/json")
    await stream.send_all(answer(said, 200, *headers))


async def test_the_host_gets_the_value_and_the_script_an_answer_without_it(world: World) -> None:
    run = references("the-real-value", BOUND)
    placeholder = run.table["TOKEN"]
    world.peer.routes["/e"] = _echo
    basic = "Basic " + base64.b64encode(f"me:{placeholder}".encode()).decode()
    found = await call(
        world, run, "http.post", f"http://{HOST}/e?k={placeholder}",
        headers={"X-Key": placeholder, "Authorization": basic}, body={"token": placeholder},
    )  # fmt: skip
    (seen,) = world.peer.seen
    assert seen.path == "/e?k=the-real-value"
    assert seen.headers["x-key"] == "the-real-value"
    assert base64.b64decode(seen.headers["authorization"].split()[1]) == b"me:the-real-value"
    assert json.loads(seen.body) == {"token": "the-real-value"}
    assert int(seen.headers["content-length"]) == len(seen.body)
    assert found["url"] == f"http://{HOST}/e?k={placeholder}"
    assert found["headers"]["x-echo"] == MASK
    assert found["json"]["headers"]["x-key"] == MASK
    assert found["json"]["headers"]["authorization"] == f"Basic {MASK}"
    assert "the-real-value" not in repr(found)
    await world.works()


async def test_a_secret_is_not_sent_to_another_host_that_the_script_may_reach(world: World) -> None:
    run = references("the-real-value", BOUND)
    found = await call(world, run, "http.get", f"http://{OTHER}/", headers={"X-Key": run.table["TOKEN"]})
    assert found == f"http.get: the secret TOKEN is bound to {BOUND}, and is not sent to {OTHER}"
    assert world.peer.seen == []
    await world.works()


async def test_being_bound_to_a_host_does_not_allow_a_script_to_reach_it(world: World) -> None:
    run = references("the-real-value", BOUND)
    found = await call(world, run, "http.get", f"http://{HOST}/", rules=(OTHER,), headers={"X": run.table["TOKEN"]})
    assert "is not among the hosts that this script may reach" in found
    assert world.peer.seen == []


async def test_a_redirect_to_another_host_takes_no_secret_along(world: World) -> None:
    run = references("the-real-value", BOUND)
    placeholder = run.table["TOKEN"]
    world.peer.routes["/a"] = redirect(f"http://{OTHER}/b", 307)
    world.peer.routes["/b"] = _echo
    found = await call(world, run, "http.get", f"http://{HOST}/a", headers={"X-Key": placeholder})
    assert (found["status"], world.peer.seen[-1].headers.get("x-key")) == (200, None)
    # A body goes along with 307, and would take the secret with it: refused.
    found = await call(world, run, "http.post", f"http://{HOST}/a", body=f"token={placeholder}")
    assert found == f"http.post: the secret TOKEN is bound to {BOUND}, and is not sent to {OTHER}"
    assert [seen.path for seen in world.peer.seen] == ["/a", "/b", "/a"]


async def test_a_redirect_that_repeats_the_secret_shows_the_script_its_placeholder(world: World) -> None:
    run = references("the real/value", BOUND)
    placeholder = run.table["TOKEN"]
    world.peer.routes["/a"] = redirect("/b?again=the%20real%2Fvalue")
    world.peer.routes["/b"] = answer(b"there")
    found = await call(world, run, "http.get", f"http://{HOST}/a?k={placeholder}")
    assert [seen.path for seen in world.peer.seen] == ["/a?k=the%20real%2Fvalue", "/b?again=the%20real%2Fvalue"]
    assert (found["url"], found["body"]) == (f"http://{HOST}/b?again={placeholder}", b"there")
    # And where it leads elsewhere, the secret stays here.
    world.peer.routes["/a"] = redirect(f"http://{OTHER}/b?again=the+real%2fvalue")
    found = await call(world, run, "http.get", f"http://{HOST}/a?k={placeholder}")
    assert "is not sent to other.example.com" in found
    assert len(world.peer.seen) == 3


async def test_the_egress_log_names_the_secrets_that_left_and_has_none_of_them(world: World) -> None:
    run = references("the-real-value", BOUND)
    placeholder = run.table["TOKEN"]
    world.peer.routes["/a"] = redirect(f"http://{OTHER}/?the-real-value")
    with structlog.testing.capture_logs() as logs:
        await call(world, run, "http.get", f"http://{HOST}/a?k={placeholder}")
        await call(world, run, "http.get", f"http://{OTHER}/", headers={"X": placeholder})
        await call(world, run, "http.get", f"http://{HOST}/none")
    hops = [entry for entry in logs if entry["event"] == "egress"]
    assert [(hop["host"], hop["decision"], hop.get("secrets")) for hop in hops] == [
        (HOST, "allowed", ("TOKEN",)),
        (OTHER, "refused: a secret", None),
        (OTHER, "refused: a secret", None),
        (HOST, "allowed", None),
    ]
    assert "the-real-value" not in repr(logs)
    assert placeholder not in repr(logs)


async def test_taking_secrets_out_of_a_large_answer_is_charged_to_the_run(world: World) -> None:
    run = references("the-real-value", BOUND)
    large = b"x" * (3 * MIB) + b"the-real-value" + b"y" * MIB
    world.peer.routes["/large"] = answer(large)
    charged: list[Usage] = []
    found = await call(world, run, "http.get", f"http://{HOST}/large", charged=charged.append)
    assert len(large) > http.SCRUBBED_AT_ONCE
    assert found["body"] == large.replace(b"the-real-value", MASK.encode())
    assert time.process_time() > sum(usage.cpu_s for usage in charged) > 0
    assert PUBLIC in {host for host, _ in world.streets.connected}
    await world.works()


# ---- the form of an answer is not the script's choice --------------------------------------------------------------

STORED = "the-real-value-of-the-token"


async def _store(stream: trio.abc.Stream, seen: Seen, kept: dict[str, bytes]) -> None:
    """An honest store: it keeps what is put there, and gives it in every form that is asked for."""
    if seen.method != "GET":
        kept["body"] = seen.body
        await stream.send_all(answer(b"", 204))
        return
    body, status, headers = kept["body"], 200, ["Content-Type: text/plain"]
    asked = seen.headers
    if charset := asked.get("accept-charset"):
        body, headers = body.decode().encode(charset), [f"Content-Type: text/plain; charset={charset}"]
    if any(name in asked for name in ("range", "request-range", "x-range")):
        part, total = body[: len(STORED) // 2], len(body)
        body, status = part, 206
        headers.append(f"Content-Range: bytes 0-{len(part) - 1}/{total}")
        if "," in asked.get("range", ""):
            body = b"--b\r\nContent-Range: bytes 0-9/27\r\n\r\n" + part[:10] + b"\r\n--b--"
            headers[0] = "Content-Type: multipart/byteranges; boundary=b"
    coding = asked.get("accept-encoding", "")
    if "x-reversed" in coding:
        body = body[::-1]
        headers.append("Content-Encoding: x-reversed")
    elif "gzip" in coding:
        body = gzipped([body])
        headers.append("Content-Encoding: gzip")
    for name in ("want-digest", "want-repr-digest", "want-content-digest"):
        if name in asked:
            headers.append("Repr-Digest: sha-256=" + hashlib.sha256(body).hexdigest())
    await stream.send_all(answer(body, status, *headers))


FORMS: dict[str, tuple[str, ...]] = {
    "Accept": ("*/*", "multipart/byteranges", "application/octet-stream", "text/plain;charset=utf-7"),
    "Accept-Charset": ("utf-16", "utf-16-le", "utf-32", "utf-7", "cp037", "iso-2022-jp", "latin-1"),
    "Accept-Encoding": ("x-reversed", "x-reversed, gzip", "identity", "gzip"),
    "Accept-Language": ("en",),
    "Cache-Control": ("no-transform",),
    "If-None-Match": ("x",),
    "If-Range": ('"tag"',),
    "Prefer": ("return=minimal",),
    "Range": ("bytes=0-13", "bytes=0-3,5-8", "bytes=-4", "chars=0-3"),
    "Request-Range": ("bytes=0-3",),
    "TE": ("trailers",),
    "Want-Content-Digest": ("sha-256=1",),
    "Want-Digest": ("sha-256",),
    "Want-Repr-Digest": ("sha-256=1",),
    "X-Range": ("bytes=0-3",),
    "A-IM": ("range",),
}


@pytest.mark.parametrize("name", sorted(FORMS))
@pytest.mark.parametrize("spelled", [str, str.lower, str.upper])
async def test_whatever_headers_a_script_sends_an_honest_store_gives_it_no_part_of_the_value(
    world: World, name: str, spelled: Any
) -> None:
    run = references(STORED, BOUND)
    kept: dict[str, bytes] = {}
    world.peer.routes["/s"] = partial(_store, kept=kept)
    assert (await call(world, run, "http.put", f"http://{HOST}/s", body=run.table["TOKEN"]))["status"] == 204
    assert kept["body"] == STORED.encode()
    for value in FORMS[name]:
        found = await call(world, run, "http.get", f"http://{HOST}/s", headers={spelled(name): value})
        shown = repr(found)
        for start in range(len(STORED) - 5):
            piece = STORED[start : start + 6]
            assert piece not in shown, (name, value, found)
            assert piece[::-1] not in shown, (name, value, found)
            for encoding in ("utf-7", "cp037", "utf-16-le"):
                assert piece.encode(encoding) not in (found["body"] if isinstance(found, dict) else b"")
        assert hashlib.sha256(STORED.encode()).hexdigest() not in shown
    await world.works()


def _turned_round() -> tuple[bytes, bytes]:
    """What makes any ASCII between the two a deflate stream, of the same bytes with their bits in reverse order."""
    bits: list[int] = []

    def number(value: int, width: int) -> None:
        bits.extend(value >> place & 1 for place in range(width))

    def code(value: int, width: int) -> None:
        bits.extend(value >> place & 1 for place in reversed(range(width)))

    def written() -> bytes:
        padded = bits + [0] * (-len(bits) % 8)
        return bytes(sum(padded[at + place] << place for place in range(8)) for at in range(0, len(padded), 8))

    number(0b101, 3)  # the last block, with codes of its own (RFC 1951 section 3.2.7)
    number(0, 10)  # 257 symbols, one distance
    number(15, 4)
    for length in (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15):
        number({8: 1, 9: 2, 1: 2}.get(length, 0), 3)
    for _ in range(255):
        code(0, 1)
    for width in (3, 3, 2):  # 9 bits for the last byte and for the end, one for the distance
        code(width, 2)
    while len(bits) % 8:
        code(0x1FE, 9)
    before = written()
    bits.clear()
    code(0x1FF, 9)
    return before, written()


async def test_a_host_that_keeps_the_coding_of_what_it_is_given_turns_no_value_into_another_text(world: World) -> None:
    run = references(STORED, BOUND)
    placeholder, (before, after) = run.table["TOKEN"], _turned_round()
    turned = zlib.decompressobj(-15).decompress(before + STORED.encode() + after)
    assert STORED.encode() in bytes(int(f"{byte:08b}"[::-1], 2) for byte in turned)
    url, body = f"http://{HOST}/s", before + placeholder.encode() + after
    found = await call(world, run, "http.put", url, body=body, headers={"Content-Encoding": "deflate"})
    assert "a secret cannot be put into a body with Content-Encoding" in found
    # A store may take the coding from somewhere else: a header or a parameter of its own.
    kept: dict[str, bytes] = {}
    world.peer.routes["/s"] = partial(_store, kept=kept)
    assert (await call(world, run, "http.put", url, body=body))["status"] == 204
    world.peer.routes["/s"] = answer(kept["body"], 200, "Content-Encoding: deflate")
    found = await call(world, run, "http.get", url)
    assert isinstance(found, str), found
    assert "inside its coding" in found
    world.peer.routes["/s"] = answer(gzipped([b"nothing"]), 200, "Content-Encoding: gzip")
    assert (await call(world, run, "http.get", url))["body"] == b"nothing"


ESCAPES = {"form": ("%", "%4", "%25", "%254"), "JSON": ("\\", "\\u", "\\u00", "\\u004", "\\\\\\x4", "\\1")}


@pytest.mark.parametrize("begun", [each for some in ESCAPES.values() for each in some])
def test_no_escape_that_a_script_begins_takes_the_beginning_of_a_value(begun: str) -> None:
    run = references("beefcafe01234567")
    with pytest.raises(SecretRefused, match="beginning of an escape"):
        filled(run, body=f"content={begun}{run.table['TOKEN']}")
    for whole in ("%41", "\\u0041", "\\n", "\\\\", '\\"', "="):
        assert b"beefcafe" in filled(run, body=f"content={whole}{run.table['TOKEN']}").body


@pytest.mark.parametrize("value", ["beefcafe0123456789abcdef", "gh-Zm9vYmFyYmF6cXV1eA_8w", "4Qd+/9aZ4Qd+/9aZ4Qd="])
def test_what_a_host_makes_of_a_value_that_it_takes_for_an_encoded_one_is_searched_for(value: str) -> None:
    scrubber = references(value).scrubber(parse_url(HTTPS))
    for before in ("", "A", "AB", "ABC"):
        text = (before + value).rstrip("=").translate(str.maketrans("-_", "+/"))
        assert MASK.encode() in scrubber.data(b"<" + base64.b64decode(text[: len(text) // 4 * 4]) + b">")
    for taken in range(5):
        assert value[4:].encode() not in scrubber.data(b"K" + value[taken:].encode())


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (206, ()),
        (200, ("Content-Range: bytes 0-3/9",)),
        (200, ("Content-Type: multipart/byteranges; boundary=x",)),
        (226, ("IM: feed",)),
        (200, ("Content-Encoding: br",)),
        (200, ("Content-Encoding: gzip, gzip",)),
        (200, ("Content-Type: text/plain; charset=utf-7",)),
        (200, ('Content-Type: text/plain; charset="IBM037"',)),
        (200, ("Content-Type: text/plain; charset=utf-8; charset=hz-gb-2312",)),
    ],
)
async def test_a_form_that_is_not_searched_comes_from_no_host_that_a_secret_is_bound_to(
    world: World, status: int, headers: tuple[str, ...]
) -> None:
    run = references(STORED, BOUND)
    world.peer.routes["/p"] = answer(b"part", status, *headers)
    found = await call(world, run, "http.get", f"http://{HOST}/p")
    assert isinstance(found, str), found
    assert ": a secret is bound to this host" in found
    # From any other host it comes as ever.
    found = await call(world, References(), "http.get", f"http://{HOST}/p")
    assert (found["status"], found["body"]) == (status, b"part")
    await world.works()


async def test_a_secret_is_taken_out_of_answers_to_scripts_that_it_was_not_granted_to(world: World) -> None:
    world.peer.routes["/s"] = answer(STORED.encode())
    other = References(vault(STORED, BOUND), frozenset())
    assert (await call(world, other, "http.get", f"http://{HOST}/s"))["body"] == MASK.encode()
    found = await call(world, other, "http.get", f"http://{HOST}/s", headers={"Range": "bytes=0-3"})
    assert found == (
        "http.get: headers: range chooses the form in which api.example.com answers, and a secret is bound to that host"
    )


@pytest.mark.parametrize("escape", ["\\u{:04x}", "\\u{:04X}"])
async def test_a_value_that_json_spells_with_escapes_throughout_is_found_as_well(world: World, escape: str) -> None:
    run = references(STORED, BOUND)
    spelled = "".join(escape.format(ord(character)) for character in STORED)
    body = ('{"a":["' + spelled + '"],"n":1}').encode()
    world.peer.routes["/j"] = answer(body, 200, "Content-Type: application/json")
    found = await call(world, run, "http.get", f"http://{HOST}/j")
    assert (found["json"], json.loads(found["body"])) == ({"a": [MASK], "n": 1}, {"a": [MASK], "n": 1})


async def test_a_header_whose_name_repeats_the_value_is_masked(world: World) -> None:
    run = references("the-real-value", BOUND)
    world.peer.routes["/h"] = answer(b"", 200, "X-the-real-value: 1")
    found = await call(world, run, "http.get", f"http://{HOST}/h")
    assert found["headers"]["x-[redacted]"] == "1"

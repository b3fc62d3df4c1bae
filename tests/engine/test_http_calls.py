"""`http.get` and its kin before a hostile peer: permitted hosts, what is read, what errors say; the engine goes on."""

import datetime
import ipaddress
import json
import socket
import ssl
import subprocess
import sys
import threading
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from engine_support import run, small_config
from hostile_http import (
    HOST,
    PUBLIC,
    PUBLIC_6,
    PUBLIC_TOO,
    Peer,
    Seen,
    World,
    answer,
    context,
    gzipped,
    listening,
    open_world,
    redirect,
)
from hypothesis import given
from hypothesis import strategies as st

from engine.bridge.http import GRANTS, MAX_JSON_VALUES, MAX_REDIRECTS, open_http
from engine.bridge.http import _json as parsed
from engine.egress import outbound
from engine.engine import open_engine
from engine.run import Authority
from engine.tenant import Tenant
from sandbox.wire.outcome import Outcome

KIB, MIB = 1024, 1024 * 1024
SMALL = {"http_bytes": 64 * KIB}
OTHER = "other.example.com"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world() as world:
        yield world


# ---- the ordinary case ------------------------------------------------------------------------------------------


async def test_an_answer_is_status_headers_body_and_the_final_address(world: World) -> None:
    world.peer.routes["/a"] = answer(b"\xff\x00text", 201, "X-One: 1", "X-ONE: 2", "Content-Type: text/plain")
    assert await world.get("/a?q=1#part") == {
        "status": 201,
        "ok": True,
        "headers": {"content-length": "6", "x-one": "1, 2", "content-type": "text/plain"},
        "body": b"\xff\x00text",
        "url": f"http://{HOST}/a?q=1",
    }


async def test_ok_means_a_status_of_200_to_299(world: World) -> None:
    for status in (200, 204, 299, 300, 304, 404, 500, 599):
        world.peer.routes["/"] = answer(b"" if status in (204, 304) else b"x", status)
        found = await world.get()
        assert (found["status"], found["ok"]) == (status, status < 300)


async def test_every_method_goes_out_as_it_is_called(world: World) -> None:
    world.peer.routes["/"] = answer(b"x")
    for name in sorted(GRANTS):
        assert (await world.call(name, f"http://{HOST}/"))["status"] == 200
    assert [seen.method for seen in world.peer.seen] == ["DELETE", "GET", "PATCH", "POST", "PUT"]


async def test_a_request_carries_the_scripts_headers_and_ours(world: World) -> None:
    await world.call(
        "http.post", f"http://{HOST}/p", headers={"X-Token": " abc ", "accept": "text/x", "N": 5}, body="é"
    )
    (seen,) = world.peer.seen
    assert seen.body == "é".encode()
    assert seen.headers == {
        "host": HOST,
        "accept": "text/x",
        "accept-encoding": "gzip, deflate",
        "user-agent": "engine",
        "content-length": "2",
        "x-token": "abc",
        "n": "5",
    }


BODIES: tuple[tuple[Any, dict[str, str], bytes, str | None], ...] = (
    ({"a": [1, 2.5, None, True]}, {}, b'{"a":[1,2.5,null,true]}', "application/json"),
    ([], {}, b"[]", "application/json"),
    ({"a": 1}, {"Content-Type": "application/vnd.x+json"}, b'{"a":1}', "application/vnd.x+json"),
    ("a=1", {"Content-Type": "application/x-www-form-urlencoded"}, b"a=1", "application/x-www-form-urlencoded"),
    (b"\xff\xfe", {}, b"\xff\xfe", None),
    (None, {}, b"", None),
    ("", {}, b"", None),
)


async def test_a_table_is_sent_as_json_and_text_as_it_is(world: World) -> None:
    for body, headers, sent, content_type in BODIES:
        await world.call("http.put", f"http://{HOST}/", body=body, headers=headers)
        seen = world.peer.seen[-1]
        assert (seen.body, seen.headers.get("content-type")) == (sent, content_type)
        assert seen.headers["content-length"] == str(len(sent))


async def test_params_are_appended_to_the_query(world: World) -> None:
    await world.get("/s?a=1", params={"q": "x y&z", "n": 3, "f": 2.0, "b": False})
    assert [seen.path for seen in world.peer.seen] == ["/s?a=1&b=false&f=2&n=3&q=x%20y%26z"]


WRONG_ARGUMENTS = {
    "http.get: url: the URL must be absolute": {"url": "/path"},
    "http.get: url: the scheme must be http or https, got ftp": {"url": "ftp://api.example.com/"},
    "http.get: url: the URL must not hold a user or password": {"url": f"http://u:p@{HOST}/"},
    "http.get: url: expected string, got number": {"url": 5},
    "http.get: headers[...]: expected number or string, got list": {"headers": {"a": [1]}},
    "http.get: headers: 'a b' is not the name of a header": {"headers": {"a b": "x"}},
    "http.get: headers: '' is not the name of a header": {"headers": {"": "x"}},
    "http.get: headers: 'é' is not the name of a header": {"headers": {"é": "x"}},
    "http.get: headers: the value of A holds a line break": {"headers": {"A": "x\r\nHost: evil.com"}},
    "http.get: headers: the value of B holds a line break": {"headers": {"B": "x\ny"}},
    "http.get: headers: the value of C holds a line break": {"headers": {"C": "x\x00"}},
    "http.get: headers: Host is set by the engine": {"headers": {"Host": "evil.com"}},
    "http.get: headers: TRANSFER-Encoding is set by the engine": {"headers": {"TRANSFER-Encoding": "chunked"}},
    "http.get: headers: Content-Length is set by the engine": {"headers": {"Content-Length": "5"}},
    "http.get: headers: Connection is set by the engine": {"headers": {"Connection": "X-Token"}},
    "http.get: headers: Upgrade is set by the engine": {"headers": {"Upgrade": "h2c"}},
    "http.get: headers: 65 of them; the limit is 64": {"headers": {f"h{i}": "x" for i in range(65)}},
    "http.get: headers: together larger than 16384 bytes": {"headers": {"h": "x" * 16384}},
    "http.get: timeout must be a number of seconds above 0, got 0": {"timeout": 0},
    "http.get: timeout must be a number of seconds above 0, got -1": {"timeout": -1},
    "http.get: timeout must be a number of seconds above 0, got nan": {"timeout": float("nan")},
    "http.get: timeout: expected number or nil, got string": {"timeout": "5"},
    "http.get: body: expected a string or a table, got number": {"body": 5},
    "http.get: body: expected a string or a table, got boolean": {"body": True},
    "http.get: body: the table cannot be sent as JSON: it holds a string that is not UTF-8": {"body": {"a": b"\xff"}},
    "http.get: body: 65537 bytes; the limit is 65536 (limits.http_bytes)": {"body": "x" * 65537},
}


async def test_arguments_that_make_no_sense_are_refused_before_anybody_is_asked(world: World) -> None:
    for text, wrong in WRONG_ARGUMENTS.items():
        arguments = {"url": f"http://{HOST}/", **wrong}
        found = await world.call("http.get", arguments.pop("url"), limits=SMALL, **arguments)
        assert isinstance(found, str), text
        assert found.startswith(text)
    assert (world.peer.seen, world.names.asked) == ([], [])


async def test_one_header_in_two_spellings_is_refused(world: World) -> None:
    found = await world.get(headers={"X-A": "1", "x-a": "2"})
    assert "is given twice" in found


async def test_a_table_nested_without_end_is_refused(world: World) -> None:
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    assert "is nested too deep" in await world.call("http.post", f"http://{HOST}/", body=deep)


async def test_without_the_grant_nothing_is_asked(world: World) -> None:
    assert await world.get(grants=frozenset()) == "http.get is not granted to 'test'"
    assert world.names.asked == []


# ---- who may be asked -------------------------------------------------------------------------------------------


async def test_a_host_that_is_not_listed_is_not_even_looked_up(world: World) -> None:
    assert await world.get(rules=()) == (
        f'http.get: {HOST} is not among the hosts that this script may reach; allow_hosts = ["{HOST}"] would grant it'
    )
    assert (world.names.asked, world.streets.connected) == ([], [])
    await world.works()


PRIVATE = (
    "127.0.0.1", "10.0.0.5", "192.168.1.1", "169.254.169.254", "100.100.100.200", "168.63.129.16", "0.0.0.0", "::1",
    "::", "fe80::1", "fe80::1%2", "fd00:ec2::254", "::ffff:127.0.0.1", "::ffff:93.184.216.34", "::7f00:1",
    "64:ff9b::7f00:1", "2002:7f00:1::", "224.0.0.1",
)  # fmt: skip


async def test_a_name_that_leads_to_a_private_address_is_refused_without_telling_it(world: World) -> None:
    for address in PRIVATE:
        world.names.known[HOST] = [[address]]
        for rules in ([HOST], ["*"]):
            assert await world.get(rules=rules) == (
                f"http.get: {HOST} leads to an address that is not public, which only a rule that lists it reaches "
                "(allow_hosts with the address itself, beside the name)"
            ), address
    assert world.streets.connected == []
    world.names.known[HOST] = [[PUBLIC]]
    await world.works()


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/", "http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://169.254.169.254/"]
)
async def test_a_private_address_in_the_url_is_refused_under_every_name_rule(world: World, url: str) -> None:
    assert "is not a public address" in await world.call("http.get", url, rules=["*", "localhost", "*.com", HOST])
    assert world.streets.connected == []


async def test_a_listed_private_address_is_reached_by_itself_and_through_a_name(world: World) -> None:
    world.peer.routes["/"] = answer(b"inside")
    world.streets.at["10.0.0.5", 8080] = world.peer.port
    world.names.known["db.internal"] = [["10.0.0.5"]]
    rules = ["10.0.0.5:8080", "db.internal:8080", "db.internal"]
    assert (await world.call("http.get", "http://10.0.0.5:8080/", rules=rules))["body"] == b"inside"
    assert (await world.call("http.get", "http://db.internal:8080/", rules=rules))["body"] == b"inside"
    assert "not public" in await world.call("http.get", "http://db.internal/", rules=rules)  # listed at another port
    assert world.names.asked == ["db.internal", "db.internal"]


async def test_of_several_addresses_only_the_permitted_ones_are_tried(world: World) -> None:
    world.names.known[HOST] = [["127.0.0.1", "10.0.0.1", PUBLIC_TOO, "::1", PUBLIC]]
    await world.works()
    assert world.streets.connected == [(PUBLIC_TOO, 80), (PUBLIC, 80)]


async def test_a_name_is_asked_of_few_addresses_only(world: World) -> None:
    world.names.known[HOST] = [[f"93.184.217.{i}" for i in range(200)]]
    assert await world.get() == f"http.get: {HOST} does not accept connections at port 80"
    assert len(world.streets.connected) == outbound.MAX_TRIED


async def test_an_address_that_does_not_answer_leaves_time_for_the_next(world: World) -> None:
    world.names.known[HOST] = [[PUBLIC_6, PUBLIC]]
    world.streets.at[PUBLIC_6, 80] = trio.sleep_forever
    world.peer.routes["/"] = answer(b"at last")
    assert (await world.get(timeout=2))["body"] == b"at last"
    assert world.streets.connected == [(PUBLIC_6, 80), (PUBLIC, 80)]


async def test_a_name_that_rebinds_is_connected_where_it_was_vetted(world: World) -> None:
    world.names.known[HOST] = [[PUBLIC], ["127.0.0.1"]]
    world.peer.routes["/"] = answer(b"public", 200, "Connection: close")
    assert (await world.get())["body"] == b"public"
    assert world.names.asked == [HOST]  # once: there is no second answer between the check and the connection
    assert "not public" in await world.get()
    assert world.streets.connected == [(PUBLIC, 80)]


async def test_a_kept_connection_stays_at_its_vetted_address_whatever_the_name_says_later(world: World) -> None:
    world.names.known[HOST] = [[PUBLIC], ["127.0.0.1"]]
    world.peer.routes["/"] = answer(b"public")
    for _ in range(3):
        assert (await world.get())["body"] == b"public"
    assert (world.names.asked, world.streets.connected) == ([HOST], [(PUBLIC, 80)])
    assert [seen.connection for seen in world.peer.seen] == [1, 1, 1]


async def test_a_connection_that_one_script_may_have_is_not_handed_to_one_that_may_not(world: World) -> None:
    world.names.known["db.internal"] = [["10.0.0.5"]]
    world.streets.at["10.0.0.5", 80] = world.peer.port
    world.peer.routes["/"] = answer(b"inside")
    assert (await world.call("http.get", "http://db.internal/", rules=["db.internal", "10.0.0.5"]))["body"] == b"inside"
    assert "not public" in await world.call("http.get", "http://db.internal/", rules=["db.internal"])
    assert len(world.peer.seen) == 1


async def test_tenants_share_no_connection(world: World) -> None:
    world.peer.routes["/"] = answer(b"x")
    for tenant in ("acme", "globex", "acme", "globex"):
        assert (await world.get(tenant=Tenant(tenant)))["status"] == 200
    assert [seen.connection for seen in world.peer.seen] == [1, 2, 1, 2]


async def test_one_address_under_two_names_is_two_connections(world: World) -> None:
    world.names.known[OTHER] = [[PUBLIC]]
    world.peer.routes["/"] = answer(b"x")
    for host in (HOST, OTHER, HOST, OTHER):
        await world.call("http.get", f"http://{host}/", rules=["*"])
    assert [(seen.headers["host"], seen.connection) for seen in world.peer.seen] == [
        (HOST, 1), (OTHER, 2), (HOST, 1), (OTHER, 2),
    ]  # fmt: skip


async def test_names_that_do_not_resolve_and_hosts_that_refuse_are_told(world: World) -> None:
    gone = [OSError("[Errno -2] Name or service not known: 10.0.0.53")]
    world.names.known.update(
        {"gone.example.com": list(gone), "empty.example.com": [[]], "shut.example.com": [[PUBLIC_TOO]]}
    )
    rules = ["*.example.com"]
    assert (
        await world.call("http.get", "http://gone.example.com/", rules)
        == "http.get: no address was found for gone.example.com"
    )
    assert (
        await world.call("http.get", "http://empty.example.com/", rules)
        == "http.get: no address was found for empty.example.com"
    )
    assert (
        await world.call("http.get", "https://shut.example.com/", rules)
        == "http.get: shut.example.com does not accept connections at port 443"
    )
    await world.works()


async def test_proxies_of_the_environment_are_not_used(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    await world.works()
    assert world.streets.connected == [(PUBLIC, 80)]


async def test_cookies_are_not_kept(world: World) -> None:
    world.peer.routes["/"] = answer(b"x", 200, "Set-Cookie: session=1")
    await world.get()
    await world.get()
    assert ["cookie" in seen.headers for seen in world.peer.seen] == [False, False]


async def test_with_the_systems_own_resolver_and_network_a_listed_loopback_address_is_reached() -> None:
    async with listening(Peer({"/": answer(b"real")})) as peer, open_http() as http:
        function = next(f for f in http.functions if f.name == "http.get")
        rules = (f"127.0.0.1:{peer.port}", f"localhost:{peer.port}")
        for host in ("127.0.0.1", "localhost"):
            arguments = function.arguments(url=f"http://{host}:{peer.port}/")  # type: ignore[call-arg]
            assert (await function.handler(context(rules), arguments))["body"] == b"real"


async def test_an_ipv6_address_is_reached_when_it_is_listed() -> None:
    async with listening(Peer({"/": answer(b"six")}), host="::1") as peer, open_http() as http:
        function = next(f for f in http.functions if f.name == "http.get")
        arguments = function.arguments(url=f"http://[::1]:{peer.port}/")  # type: ignore[call-arg]
        assert (await function.handler(context([f"[::1]:{peer.port}"]), arguments))["body"] == b"six"
        assert peer.seen[0].headers["host"] == f"[::1]:{peer.port}"


# ---- redirects --------------------------------------------------------------------------------------------------

PRIVATE_PLACES = (
    "http://127.0.0.1/",
    "http://[::1]/",
    "http://169.254.169.254/latest/",
    "//10.0.0.1/x",
    "http://[::ffff:7f00:1]/",
)


async def test_a_redirect_to_a_private_address_is_an_error_that_does_not_tell_it(world: World) -> None:
    for place in PRIVATE_PLACES:
        world.peer.routes["/"] = redirect(place)
        assert await world.get(rules=["*"]) == (
            "http.get: the answer redirects to an address that is not public, which only a rule that lists it reaches"
        ), place
        await world.works()
    assert {address for address, _ in world.streets.connected} == {PUBLIC}


async def test_a_redirect_to_a_name_that_leads_inside_is_an_error(world: World) -> None:
    world.names.known[OTHER] = [["192.168.0.1"]]
    world.peer.routes["/"] = redirect(f"http://{OTHER}/")
    assert "leads to an address that is not public" in await world.get(rules=["*"])
    assert world.streets.connected == [(PUBLIC, 80)]
    await world.works()


async def test_a_redirect_to_a_host_that_is_not_listed_is_an_error_that_names_it(world: World) -> None:
    world.peer.routes["/"] = redirect(f"http://{OTHER}:8080/secret?token=x")
    assert await world.get() == (
        f"http.get: the answer redirects, and {OTHER}:8080 is not among the hosts that this script may reach; "
        f'allow_hosts = ["{OTHER}:8080"] would grant it'
    )
    assert world.names.asked == [HOST]


NO_PLACES = ("http://2130706433/", "http://0x7f.1/", "http://u:p@a.example/", "file:///etc/passwd", "http://[::1")


async def test_a_redirect_to_what_is_no_plain_url_is_an_error(world: World) -> None:
    for place in NO_PLACES:
        world.peer.routes["/"] = redirect(place)
        assert (await world.get(rules=["*"])).startswith(f"http.get: the answer of {HOST} redirects, and "), place
        await world.works()


async def test_a_redirect_that_never_ends_is_an_error_after_ten(world: World) -> None:
    async def onwards(stream: trio.abc.Stream, seen: Seen) -> None:
        await stream.send_all(redirect(f"/onwards?{len(world.peer.seen)}"))

    world.peer.routes.update({"/onwards": onwards, "/a": redirect("/b"), "/b": redirect("/a")})
    for path in ("/onwards", "/a"):
        world.peer.seen.clear()
        assert await world.get(path) == f"http.get: more than {MAX_REDIRECTS} redirects"
        assert len(world.peer.seen) == MAX_REDIRECTS + 1
    await world.works()


# Bytes of a body, how many are announced, whether the server then closes, and whether the connection is used again.
UNWANTED = ((30_000, 30_000, False, True), (MIB, MIB, False, False), (5, 1000, True, False), (5, 1000, False, False))


async def test_a_redirect_is_followed_whatever_its_body_is(world: World) -> None:
    for size, announced, closes, used_again in UNWANTED:

        async def moved(
            stream: trio.abc.Stream, seen: Seen, size: int = size, announced: int = announced, closes: bool = closes
        ) -> None:
            await stream.send_all(answer(b"x" * size, 302, "Location: /end", length=announced))
            if closes:
                raise trio.ClosedResourceError

        world.peer.routes.update({"/": moved, "/end": answer(b"end")})
        assert (await world.get())["body"] == b"end"
        first, second = world.peer.seen[-2:]
        assert (first.connection == second.connection) is used_again, (size, announced)


# Status, method, method after the redirect, and whether the body goes along.
FOLLOWED = (
    (301, "get", "GET", False), (301, "post", "GET", False), (301, "put", "PUT", True), (302, "post", "GET", False),
    (302, "delete", "DELETE", False), (303, "post", "GET", False), (303, "put", "GET", False),
    (303, "delete", "GET", False), (307, "post", "POST", True), (308, "patch", "PATCH", True),
    (308, "get", "GET", False),
)  # fmt: skip


async def test_methods_and_bodies_follow_redirects_as_in_browsers(world: World) -> None:
    for status, method, after, with_body in FOLLOWED:
        world.peer.routes.update({"/": redirect("/end", status), "/end": answer(b"end")})
        body = None if method in ("get", "delete") else {"a": 1}
        found = await world.call(f"http.{method}", f"http://{HOST}/", body=body)
        assert (found["body"], found["url"]) == (b"end", f"http://{HOST}/end")
        end = world.peer.seen[-1]
        assert (end.method, end.body) == (after, b'{"a":1}' if with_body else b""), (status, method)
        assert ("content-type" in end.headers) is with_body, (status, method)


async def test_other_statuses_are_answers_and_not_redirects(world: World) -> None:
    for status in (300, 304, 305, 306, 309):
        world.peer.routes["/"] = answer(b"" if status == 304 else b"x", status, "Location: http://127.0.0.1/")
        assert (await world.get())["status"] == status


async def test_a_redirect_without_a_location_is_an_answer(world: World) -> None:
    world.peer.routes["/"] = answer(b"where?", 302)
    assert (await world.get())["body"] == b"where?"


SECRET = {
    "Authorization": "Bearer s3cret", "Cookie": "session=s3cret", "X-Api-Key": "s3cret", "Private-Token": "s3cret",
    "X-Whatever": "s3cret",
}  # fmt: skip
HARMLESS = {"Accept": "text/x", "User-Agent": "mine", "Accept-Language": "de"}


async def two_hosts(world: World, place: str, *, start: str = f"http://{HOST}/") -> Seen:
    """The request that arrives after a redirect to `place`, which was told everything."""
    world.names.known[OTHER] = [[PUBLIC]]
    world.streets.at[PUBLIC, 8080] = world.peer.port
    world.peer.routes.update({"/": redirect(place), "/end": answer(b"end")})
    rules = [HOST, OTHER, f"{HOST}:8080", f"{OTHER}:8080"]
    found = await world.call("http.get", start, rules=rules, headers={**SECRET, **HARMLESS})
    assert isinstance(found, dict), found
    return world.peer.seen[-1]


@pytest.mark.parametrize("place", [f"http://{OTHER}/end", f"http://{HOST}:8080/end", f"//{OTHER}:8080/end"])
async def test_a_redirect_to_another_host_or_port_drops_every_header_that_may_be_a_credential(
    world: World, place: str
) -> None:
    seen = await two_hosts(world, place)
    assert "s3cret" not in str(seen.headers)
    assert {name: seen.headers[name.lower()] for name in HARMLESS} == HARMLESS


async def test_what_was_dropped_does_not_come_back_at_the_first_host(world: World) -> None:
    world.names.known[OTHER] = [[PUBLIC_TOO]]
    async with listening(Peer({"/there": redirect(f"http://{HOST}/end")})) as other:
        world.streets.at[PUBLIC_TOO, 80] = other.port
        world.peer.routes.update({"/": redirect(f"http://{OTHER}/there"), "/end": answer(b"end")})
        found = await world.get(rules=[HOST, OTHER], headers=SECRET)
    assert found["body"] == b"end"
    assert "s3cret" not in str(other.seen[0].headers)
    assert "s3cret" not in str(world.peer.seen[-1].headers)


@pytest.mark.parametrize(
    "place", ["/end", f"http://{HOST}/end", f"http://{HOST}:80/end", f"HTTP://{HOST.upper()}./end"]
)
async def test_a_redirect_within_one_host_keeps_them(world: World, place: str) -> None:
    seen = await two_hosts(world, place)
    assert {name: seen.headers[name.lower()] for name in SECRET} == SECRET


# ---- TLS --------------------------------------------------------------------------------------------------------


class Certifier:
    """A certificate authority of a test, and certificates by it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
        self.certificate = self._issue(self._name, self._key, x509.BasicConstraints(ca=True, path_length=None))

    def trusted(self) -> ssl.SSLContext:
        """A context that trusts this authority alone."""
        pem = self.certificate.public_bytes(serialization.Encoding.PEM).decode()
        return ssl.create_default_context(cadata=pem)

    def server(self, name: str, *, days: int = 1) -> ssl.SSLContext:
        """What proves to be `name`, a host name or an address; with negative days, no longer."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            known: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            known = x509.DNSName(name)
        issued = self._issue(x509.Name([]), key, x509.SubjectAlternativeName([known]), days=days)
        path = self._folder / "server.pem"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + issued.public_bytes(serialization.Encoding.PEM)
        )
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(path)
        return tls

    def _issue(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType, *, days: int = 1
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=9))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints) or name == x509.Name([]))
            .sign(self._key, hashes.SHA256())
        )


@pytest.fixture
def authority(tmp_path: Path) -> Certifier:
    return Certifier(tmp_path)


async def test_tls_is_made_to_the_name_and_checked_against_it(authority: Certifier) -> None:
    async with (
        open_world(tls=authority.trusted()) as world,
        listening(Peer({"/": answer(b"secret")}), tls=authority.server(HOST)) as peer,
    ):
        world.streets.at[PUBLIC, 443] = peer.port
        for _ in range(2):
            assert (await world.call("http.get", f"https://{HOST}/"))["body"] == b"secret"
        assert world.streets.connected == [(PUBLIC, 443)]
        assert peer.seen[0].headers["host"] == HOST


@pytest.mark.parametrize(("name", "days", "told"), [(OTHER, 1, "Hostname mismatch"), (HOST, -1, "expired")])
async def test_a_certificate_that_does_not_fit_is_refused_and_nothing_is_sent(
    authority: Certifier, name: str, days: int, told: str
) -> None:
    async with (
        open_world(tls=authority.trusted()) as world,
        listening(Peer({"/": answer(b"secret")}), tls=authority.server(name, days=days)) as peer,
    ):
        world.streets.at[PUBLIC, 443] = peer.port
        found = await world.call("http.get", f"https://{HOST}/", headers=SECRET)
        assert found.startswith(f"http.get: the certificate of {HOST} is not valid: ")
        assert told in found
        assert peer.seen == []
        await world.works()


async def test_an_authority_that_the_system_does_not_know_is_not_trusted(authority: Certifier) -> None:
    async with open_world() as world, listening(Peer(), tls=authority.server(HOST)) as peer:
        world.streets.at[PUBLIC, 443] = peer.port
        assert f"the certificate of {HOST} is not valid" in await world.call("http.get", f"https://{HOST}/")
        assert peer.seen == []
        await world.works()


async def test_a_server_that_speaks_no_tls_or_stops_in_the_middle_is_told(world: World) -> None:
    async def plain(stream: trio.abc.Stream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def silent(stream: trio.abc.Stream) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for behaviour, timeout, told in (
            (plain, 10, f"no TLS connection could be made to {HOST}"),
            (silent, 0.3, f"no complete answer from {HOST} within 0.3 s"),
        ):
            listeners = await nursery.start(trio.serve_tcp, behaviour, 0)
            world.streets.at[PUBLIC, 443] = listeners[0].socket.getsockname()[1]
            assert told in await world.call("http.get", f"https://{HOST}/", timeout=timeout)
            await world.works()
        nursery.cancel_scope.cancel()


async def test_from_https_to_http_no_credential_goes_along_and_from_http_to_https_of_one_host_it_does(
    authority: Certifier,
) -> None:
    async with (
        open_world(tls=authority.trusted()) as world,
        listening(
            Peer({"/": redirect(f"http://{HOST}/end"), "/end": answer(b"x")}), tls=authority.server(HOST)
        ) as safe,
    ):
        world.streets.at[PUBLIC, 443] = safe.port
        assert "s3cret" not in str((await two_hosts(world, "/", start=f"https://{HOST}/")).headers)
        await two_hosts(world, f"https://{HOST}/end")
        assert {name: safe.seen[-1].headers[name.lower()] for name in SECRET} == SECRET
        async with listening(Peer({"/end": answer(b"x")}), tls=authority.server(OTHER)) as other:
            world.names.known[OTHER] = [[PUBLIC_TOO]]
            world.streets.at[PUBLIC_TOO, 443] = other.port
            world.peer.routes["/"] = redirect(f"https://{OTHER}/end")
            assert (await world.get(rules=[HOST, OTHER], headers=SECRET))["body"] == b"x"
            assert "s3cret" not in str(other.seen[-1].headers)


# ---- answers without measure ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n",
    ],
)
async def test_a_body_of_ten_gigabytes_is_left_behind_at_the_bound(world: World, head: bytes) -> None:
    async def endless(stream: trio.abc.Stream, seen: Seen) -> None:
        await stream.send_all(head)
        await world.peer.flood(stream, b"x" * 65536)

    world.peer.routes["/"] = endless
    assert await world.get(limits=SMALL) == "http.get: the answer is larger than 65536 bytes (limits.http_bytes)"
    await world.works()
    assert world.peer.sent < 32 * MIB  # what fits in the buffers of two sockets


async def test_a_body_of_exactly_the_bound_is_read(world: World) -> None:
    world.peer.routes.update({"/fits": answer(b"x" * 65536), "/not": answer(b"x" * 65537)})
    assert len((await world.get("/fits", limits=SMALL))["body"]) == 65536
    assert "larger than 65536 bytes" in await world.get("/not", limits=SMALL)


async def test_endless_chunks_are_left_behind_at_the_bound(world: World) -> None:
    async def endless(stream: trio.abc.Stream, seen: Seen) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await world.peer.flood(stream, b"1000\r\n" + b"x" * 4096 + b"\r\n")

    world.peer.routes["/"] = endless
    assert "larger than 65536 bytes" in await world.get(limits=SMALL)
    await world.works()


async def test_very_many_tiny_chunks_are_left_behind(world: World) -> None:
    async def crumbs(stream: trio.abc.Stream, seen: Seen) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await world.peer.flood(stream, b"1\r\nx\r\n" * 1000)

    world.peer.routes["/"] = crumbs
    assert await world.get() == f"http.get: {HOST} sends its answer in more than 4096 tiny chunks"
    await world.works()


CODINGS = {
    "gzip": zlib.MAX_WBITS | 16,
    "x-gzip": zlib.MAX_WBITS | 16,
    "deflate": zlib.MAX_WBITS,
    "Deflate ": -zlib.MAX_WBITS,
}


@pytest.mark.parametrize("coding", CODINGS)
async def test_a_bomb_costs_no_more_memory_than_the_bound(world: World, coding: str) -> None:
    bomb = gzipped((bytes(MIB) for _ in range(64)), CODINGS[coding])
    assert len(bomb) < 128 * KIB
    world.peer.routes["/"] = answer(bomb, 200, f"Content-Encoding: {coding}")
    tracemalloc.start()
    try:
        found = await world.get(limits={"http_bytes": 256 * KIB})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == "http.get: the answer is larger than 262144 bytes (limits.http_bytes)"
    assert peak < 8 * MIB
    await world.works()


async def test_compressed_data_that_stands_for_nothing_is_bounded_too(world: World) -> None:
    async def endless(stream: trio.abc.Stream, seen: Seen) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n")
        await stream.send_all(gzipped([])[:10])  # the header; blocks of no bytes follow (RFC 1951 section 3.2.4)
        await world.peer.flood(stream, b"\0\0\0\xff\xff" * 1000)

    world.peer.routes["/"] = endless
    assert await world.get(limits=SMALL) == "http.get: the answer is larger than 65536 bytes (limits.http_bytes)"
    await world.works()


@pytest.mark.parametrize("coding", CODINGS)
async def test_a_compressed_body_arrives_as_it_was_however_it_is_cut(world: World, coding: str) -> None:
    whole = b"".join(b"%d," % i for i in range(200_000))
    packed = gzipped([whole], CODINGS[coding])

    async def in_pieces(stream: trio.abc.Stream, seen: Seen) -> None:
        await stream.send_all(answer(b"", 200, f"Content-Encoding: {coding}", length=len(packed)))
        for start, end in ((0, 1), (1, 2), (2, 3), (3, 5000), (5000, len(packed))):
            await stream.send_all(packed[start:end])
            await trio.sleep(0.002)

    world.peer.routes["/"] = in_pieces
    assert (await world.get())["body"] == whole


async def test_what_the_inflater_holds_back_at_the_end_is_read_too(world: World) -> None:
    for beyond in (0, 1, 25, 258):  # a last copy that goes on after the piece is full, with no input left
        whole = bytes(outbound.INFLATED_AT_ONCE + beyond)
        packed = gzipped([whole], -zlib.MAX_WBITS)
        world.peer.routes["/"] = answer(packed, 200, "Content-Encoding: deflate")
        assert (await world.get())["body"] == whole


BROKEN_CODINGS = {
    "ends in the middle of its gzip data": (gzipped([b"x" * 1000])[:-9], "gzip"),
    "ends in the middle of its deflate data": (b"\x78", "deflate"),
    "goes on after its gzip data": (gzipped([b"x"]) + gzipped([b"y"]), "gzip"),
    "is not gzip, as its headers say": (b"plain text", "gzip"),
    "is not deflate, as its headers say": (b"\xff\xff\xff\xff", "deflate"),
}


async def test_a_body_that_is_not_what_its_coding_says_is_an_error(world: World) -> None:
    for text, (body, coding) in BROKEN_CODINGS.items():
        world.peer.routes["/"] = answer(body, 200, f"Content-Encoding: {coding}")
        assert await world.get() == f"http.get: the body of the answer {text}"
        await world.works()


async def test_a_coding_that_was_not_requested_is_handed_on_as_it_is(world: World) -> None:
    twice = gzipped([gzipped([b"x" * 1000])])
    for coding in ("br", "zstd", "gzip, gzip", "identity"):
        world.peer.routes["/"] = answer(twice, 200, f"Content-Encoding: {coding}")
        assert (await world.get())["body"] == twice


async def test_an_empty_body_needs_no_gzip_header(world: World) -> None:
    world.peer.routes["/"] = answer(b"", 200, "Content-Encoding: gzip")
    assert (await world.get())["body"] == b""


HEADS = {
    "a head without end": (b"HTTP/1.1 200 OK\r\nX: ", b"x" * 8192, "the head of the answer is larger than 65536 bytes"),
    "headers without end": (
        b"HTTP/1.1 200 OK\r\n",
        b"a:b\r\n" * 1000,
        "the head of the answer is larger than 65536 bytes",
    ),
    "informational answers without end": (
        b"",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
        "the head of the answer is larger",
    ),
    "a status line without end": (b"HTTP/1.1 200 ", b"O" * 8192, "the head of the answer is larger than 65536 bytes"),
}


async def test_heads_are_bounded(world: World) -> None:
    for what, (start, more, told) in HEADS.items():

        async def hostile(stream: trio.abc.Stream, seen: Seen, start: bytes = start, more: bytes = more) -> None:
            await stream.send_all(start)
            await world.peer.flood(stream, more)

        world.peer.routes["/"] = hostile
        assert told in await world.get(), what
        await world.works()


async def test_the_number_of_headers_is_bounded(world: World) -> None:
    world.peer.routes["/"] = answer(b"x", 200, *(f"h{i}: {i}" for i in range(300)))
    assert await world.get() == "http.get: the answer has 301 headers; the limit is 256"
    await world.works()


# ---- answers that take their time -------------------------------------------------------------------------------


async def test_a_drip_ends_at_the_time_of_the_whole_call(world: World) -> None:
    async def drip(stream: trio.abc.Stream, seen: Seen) -> None:
        await stream.send_all(answer(b"", length=1000))
        while True:
            await stream.send_all(b"x")
            await trio.sleep(0.02)

    world.peer.routes["/"] = drip
    assert await world.get(timeout=0.3) == f"http.get: no complete answer from {HOST} within 0.3 s (timeout)"
    await world.works()


async def test_the_time_of_a_call_is_no_more_than_the_run_has_left(world: World) -> None:
    async def silent(stream: trio.abc.Stream, seen: Seen) -> None:
        await trio.sleep_forever()

    world.peer.routes["/"] = silent
    assert "within 0.2 s (timeout)" in await world.get(timeout=60, left_s=0.2)
    assert "within 0.2 s (timeout)" in await world.get(left_s=0.2)
    await world.works()


async def test_redirects_share_the_time_of_their_call(world: World) -> None:
    async def slow(stream: trio.abc.Stream, seen: Seen) -> None:
        await trio.sleep(0.1)
        await stream.send_all(redirect("/"))

    world.peer.routes["/"] = slow
    assert "within 0.35 s (timeout)" in await world.get(timeout=0.35)
    await world.works()


async def test_a_slow_resolver_is_bounded_and_delays_no_other_tenant(world: World) -> None:
    never = threading.Event()
    try:
        world.names.known["slow.example.com"] = [never]
        async with trio.open_nursery() as nursery:

            async def hang() -> None:
                found = await world.call(
                    "http.get", "http://slow.example.com/", ["*"], tenant=Tenant("acme"), timeout=0.4
                )
                assert "no complete answer from slow.example.com" in found

            for _ in range(16):
                nursery.start_soon(hang)
            await trio.testing.wait_all_tasks_blocked()
            assert (await world.get("/x", tenant=Tenant("globex")))["status"] == 404
        assert world.names.asked.count("slow.example.com") == outbound.LOOKUPS_AT_ONCE
    finally:
        never.set()
    assert (await world.get("/x", tenant=Tenant("acme")))["status"] == 404


async def test_one_tenants_hanging_calls_delay_no_other_tenants(world: World) -> None:
    async def silent(stream: trio.abc.Stream, seen: Seen) -> None:
        await trio.sleep_forever()

    world.peer.routes["/"] = silent
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(lambda: world.get(tenant=Tenant("acme")))
        await world.peer.until(lambda peer: len(peer.seen) == 16)
        await trio.testing.wait_all_tasks_blocked()
        assert len(world.peer.seen) == 16  # connections are bounded by the calls
        assert (await world.get("/x", tenant=Tenant("globex")))["status"] == 404
        nursery.cancel_scope.cancel()
    await world.works()
    assert (await world.get("/x", tenant=Tenant("acme")))["status"] == 404


async def test_a_cancelled_call_closes_its_connection(world: World) -> None:
    async def half(stream: trio.abc.Stream, seen: Seen) -> None:
        await stream.send_all(answer(b"", length=1000) + b"x")
        assert await stream.receive_some() == b""
        raise trio.BrokenResourceError

    world.peer.routes["/"] = half
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.get)
        await world.peer.until(lambda peer: bool(peer.seen))
        nursery.cancel_scope.cancel()
    await world.peer.until(lambda peer: peer.gone == 1)
    await world.works()


# ---- answers that are none --------------------------------------------------------------------------------------

NONSENSE = {
    "garbage": (b"\x00\x01\x02 garbage\r\n\r\n", "sent something that is not an HTTP/1.1 answer"),
    "another protocol": (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "sent something that is not an HTTP/1.1 answer"),
    "nothing": (b"", "closed the connection before its answer was complete"),
    "half a head": (b"HTTP/1.1 200 OK\r\nContent-Le", "closed the connection before its answer was complete"),
    "less than announced": (answer(b"short", length=100), "closed the connection before its answer was complete"),
    "two lengths": (answer(b"x", 200, "Content-Length: 2"), "sent something that is not an HTTP/1.1 answer"),
    "a negative length": (answer(b"x", length=-1), "sent something that is not an HTTP/1.1 answer"),
    "a length of letters": (b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n", "sent something that is not"),
    "a bad chunk": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nx\r\n",
        "sent something that is not an HTTP/1.1 answer",
    ),
    "a chunk of 2^64": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff0\r\nx\r\n",
        "closed the connection before its answer was complete",
    ),
    "half a chunk": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        "closed the connection before its answer was complete",
    ),
    "another protocol, politely": (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n",
        "sent something that is not an HTTP/1.1 answer",
    ),
    "a header that is none": (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "sent something that is not an HTTP/1.1 answer"),
    "a status of 99": (b"HTTP/1.1 99 Low\r\n\r\n", "sent something that is not an HTTP/1.1 answer"),
}  # fmt: skip


async def test_what_is_no_answer_is_told_in_our_own_words(world: World) -> None:
    for what, (raw, told) in NONSENSE.items():

        async def once(stream: trio.abc.Stream, seen: Seen, raw: bytes = raw) -> None:
            await stream.send_all(raw)
            raise trio.ClosedResourceError

        world.peer.routes["/"] = once
        assert (await world.get()).startswith(f"http.get: {HOST} {told}"), what
        await world.works()


async def test_a_server_that_resets_the_connection_is_told(world: World) -> None:
    async def reset(stream: trio.abc.Stream, seen: Seen) -> None:
        assert isinstance(stream, trio.SocketStream)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        raise trio.ClosedResourceError

    world.peer.routes["/"] = reset
    assert await world.get() == f"http.get: the connection to {HOST} failed"
    await world.works()


# ---- kept connections -------------------------------------------------------------------------------------------


async def test_a_kept_connection_that_the_server_closed_is_replaced(world: World) -> None:
    async def then_close(stream: trio.abc.Stream, seen: Seen) -> None:
        await stream.send_all(answer(b"x"))
        raise trio.ClosedResourceError

    world.peer.routes["/"] = then_close
    for method in ("get", "post", "get"):
        assert (await world.call(f"http.{method}", f"http://{HOST}/"))["body"] == b"x"
        await world.peer.until(lambda peer: peer.gone == peer.connections)
    assert [seen.connection for seen in world.peer.seen] == [1, 2, 3]


@pytest.mark.parametrize(
    ("method", "repeated"), [("get", True), ("put", True), ("delete", True), ("post", False), ("patch", False)]
)
async def test_a_kept_connection_that_dies_under_a_request_is_tried_again_where_twice_is_like_once(
    world: World, method: str, repeated: bool
) -> None:
    async def dies(stream: trio.abc.Stream, seen: Seen) -> None:
        if seen.connection == 1:
            raise trio.ClosedResourceError
        await stream.send_all(answer(b"second"))

    world.peer.routes.update({"/first": answer(b"first"), "/": dies})
    await world.get("/first")
    found = await world.call(f"http.{method}", f"http://{HOST}/", body="x")
    if repeated:
        assert found["body"] == b"second"
    else:
        assert found == f"http.{method}: {HOST} closed the connection before its answer was complete"
    assert [seen.connection for seen in world.peer.seen] == ([1, 1, 2] if repeated else [1, 1])
    await world.works()


async def test_what_a_server_sends_beyond_its_answer_is_not_taken_for_the_next_one(world: World) -> None:
    world.peer.routes["/"] = answer(b"honest") + answer(b"forged for the next request")
    assert (await world.get())["body"] == b"honest"
    await world.works()
    assert [seen.connection for seen in world.peer.seen] == [1, 2]


async def test_idle_connections_are_closed_after_a_while(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound, "KEPT_S", 0.05)
    for tenant in ("acme", "globex"):
        await world.get("/x", tenant=Tenant(tenant))
    await world.peer.until(lambda peer: peer.gone == 2)
    await world.works()


async def test_a_tenant_keeps_few_connections(world: World) -> None:
    async def together(stream: trio.abc.Stream, seen: Seen) -> None:
        await world.peer.until(lambda peer: len(peer.seen) == 16)
        await stream.send_all(answer(b"x"))

    world.peer.routes["/"] = together
    async with trio.open_nursery() as nursery:
        for _ in range(16):
            nursery.start_soon(world.get)
    assert world.peer.connections == 16
    await world.peer.until(lambda peer: peer.gone == 16 - outbound.KEPT_PER_TENANT)
    await world.works()
    assert world.peer.connections == 16


# ---- JSON -------------------------------------------------------------------------------------------------------

# Content type, body, and the value, or None where there is none.
JSON_ANSWERS: tuple[tuple[str | None, bytes, Any], ...] = (
    ("application/json", b'{"a": [1, 2.5, null, "x"]}', {"a": [1, 2.5, None, "x"]}),
    ("application/json; charset=utf-8", b"[]", []),
    ("Application/JSON", b"{}", {}),
    ("application/problem+json", b"5", 5),
    ("text/json", b'"x"', "x"),
    (None, b'{"a": 1}', {"a": 1}),
    ("application/json", b"\xef\xbb\xbf[1]", [1]),
    ("application/json", b"[18446744073709551616]", [2.0**64]),
    ("application/json", b"[18446744073709551615]", [2**64 - 1]),
    ("application/json", b"[" * 64 + b"]" * 64, "deep"),
    ("text/plain", b'{"a": 1}', None),
    ("text/html", b"[]", None),
    ("application/jsonx", b"[]", None),
    (None, b"plain text", None),
    (None, b"", None),
    ("application/json", b"", None),
    ("application/json", b"{broken", None),
    ("application/json", b'{"a": 1} and more', None),
    ("application/json", b"[NaN]", None),
    ("application/json", b"\xff", None),
    ("application/json", b'["\\ud800"]', None),
    ("application/json", b"null", None),
    ("application/json", b"[" * 65 + b"]" * 65, None),
    ("application/json", b'{"a":' * 65 + b"1" + b"}" * 65, None),
    ("application/json", b"[" * 100_000, None),
    ("application/json", b"[" * 100_000 + b"]" * 100_000, None),
    ("application/json", b"[" + b"[]," * (MAX_JSON_VALUES // 2) + b"1]", None),
)


async def test_json_is_parsed_where_it_is_json_within_bounds(world: World) -> None:
    for content_type, body, value in JSON_ANSWERS:
        world.peer.routes["/"] = answer(body, 200, *([f"Content-Type: {content_type}"] if content_type else []))
        found = await world.get()
        assert found["body"] == body
        if value is None:
            assert "json" not in found, (content_type, body[:40])
        else:
            assert json.dumps(found["json"]) == body.decode() if value == "deep" else found["json"] == value
    await world.works()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def depth(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)


def as_numbers_are(value: Any) -> Any:
    """What becomes of integers that 64 bits do not hold."""
    if isinstance(value, dict):
        return {key: as_numbers_are(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return list(map(as_numbers_are, value))
    return float(value) if isinstance(value, int) and not -(2**63) <= value < 2**64 else value


@given(json_values, st.integers(1, 6))
def test_any_json_within_the_depth_is_the_value_that_was_sent(value: Any, levels: int) -> None:
    found = parsed("application/json", json.dumps(value, ensure_ascii=False).encode(), levels)
    assert found == (as_numbers_are(value) if depth(value) <= levels else None)


# ---- the egress log, and what is loaded -------------------------------------------------------------------------


async def test_every_hop_is_one_line_without_anything_that_may_be_secret(world: World) -> None:
    world.peer.routes.update({"/s3cret": redirect("/end?s3cret"), "/end": answer(b"s3cret", 200, "X-S3cret: s3cret")})
    with structlog.testing.capture_logs() as lines:
        await world.call("http.post", f"http://{HOST}/s3cret?s3cret=1", headers={"X-Token": "s3cret"}, body="s3cret")
        await world.get(rules=[])
        await world.call("http.get", "http://127.0.0.1:9000/", rules=["*"])
    assert "s3cret" not in str(lines)
    assert [line.pop("event") for line in lines] == ["egress"] * 4
    for line in lines:
        assert line.pop("wall_ms") >= 0
        assert (line.pop("log_level"), line.pop("tenant"), line.pop("script"), line.pop("run_id")) == (
            "info", "default", "test", "run-1",
        )  # fmt: skip
    first, second, refused, private = lines
    to_host = {"host": HOST, "port": 80, "address": PUBLIC, "decision": "allowed", "failed": None}
    assert first == {
        **to_host,
        "method": "POST",
        "status": 302,
        "bytes_in": first["bytes_in"],
        "bytes_out": first["bytes_out"],
    }
    assert second == {
        **to_host,
        "method": "GET",
        "status": 200,
        "bytes_in": second["bytes_in"],
        "bytes_out": second["bytes_out"],
    }
    assert min(line[name] for line in (first, second) for name in ("bytes_in", "bytes_out")) > 50
    nothing = {"address": None, "status": None, "bytes_in": 0, "bytes_out": 0, "failed": None, "method": "GET"}
    assert refused == {**nothing, "host": HOST, "port": 80, "decision": "refused: not in allow_hosts"}
    assert private == {**nothing, "host": "127.0.0.1", "port": 9000, "decision": "refused: not in allow_hosts"}


async def test_a_hop_that_fails_is_logged_with_its_reason(world: World) -> None:
    world.names.known["inside.example.com"] = [["10.0.0.1"]]
    world.peer.routes["/"] = answer(b"x" * 100)
    with structlog.testing.capture_logs() as lines:
        await world.get(limits={"http_bytes": 10})
        await world.call("http.get", "http://inside.example.com/", rules=["*"])
    assert [(line["decision"], line["failed"]) for line in lines] == [
        ("allowed", "the answer is larger than 10 bytes (limits.http_bytes)"),
        ("refused: not a public address", None),
    ]


async def test_a_script_in_a_worker_gets_answers_as_lua_values_and_refusals_as_errors(world: World) -> None:
    world.peer.routes.update(
        {
            "/": answer(b'{"a": [1, {"b": null}]}', 200, "Content-Type: application/json"),
            "/bytes": answer(b"\xff\x00"),
            "/big": answer(b"x" * 1001),
        }
    )
    script = f"""
        local a = http.post('http://{HOST}/', {{n = 5}}, {{params = {{q = 1}}, headers = {{['X-A'] = 'b'}}}})
        local _, big = pcall(http.get, 'http://{HOST}/big')
        local _, other = pcall(http.get, 'http://{OTHER}/')
        return {{a.status, a.ok, a.json, a.headers['content-type'], #http.get('http://{HOST}/bytes').body, big, other}}
    """
    async with (
        open_http(lookup=world.names, network=world.streets) as http,
        open_engine(small_config(), http.functions) as engine,
    ):
        authority = Authority(hosts=(HOST,))
        result = await run(engine, script, limits={"http_bytes": 1000}, grants=GRANTS, authority=authority)
        assert result.value == [
            200,
            True,
            {"a": [1, {}]},
            "application/json",
            2,
            "http.get: the answer is larger than 1000 bytes (limits.http_bytes)",
            f"http.get: {OTHER} is not among the hosts that this script may reach; "
            f'allow_hosts = ["{OTHER}"] would grant it',
        ], result.failure
        nothing_granted = await run(engine, f"return http.get('http://{HOST}/').status", grants=GRANTS)
        assert nothing_granted.outcome is Outcome.SCRIPT_ERROR
    seen = world.peer.seen[0]
    assert (seen.method, seen.path, seen.body, seen.headers["x-a"]) == ("POST", "/?q=1", b'{"n":5}', "b")


def test_the_client_is_loaded_with_the_first_call_and_not_before() -> None:
    script = (
        "import sys, engine.engine, engine.bridge.http; "
        "print([name for name in ('httpcore2', 'httpx2', 'h11') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.strip() == "[]"


async def test_an_error_of_the_block_comes_out_as_it_was() -> None:
    async with listening(Peer({"/": answer(b"x")})) as peer:
        mine = LookupError("mine")
        with pytest.raises(LookupError) as raised:
            await _use_and_raise(peer, mine)
    assert raised.value is mine


async def _use_and_raise(peer: Peer, error: Exception) -> None:
    async with open_http() as http:
        function = http.functions[0]
        arguments = function.arguments(url=f"http://127.0.0.1:{peer.port}/")  # type: ignore[call-arg]
        assert (await function.handler(context([f"127.0.0.1:{peer.port}"]), arguments))["status"] == 200
        raise error

"""Which hosts and origins are let in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.http.access import Access, is_loopback

names = st.from_regex(r"[a-z][a-z0-9-]{0,20}(\.[a-z]{2,5}){1,2}", fullmatch=True)


@pytest.mark.parametrize(
    "host", [b"localhost", b"LOCALHOST:1", b"localhost.", b"127.0.0.1", b"127.0.0.1:7331", b"[::1]", b"[::1]:80"]
)
def test_loopback_names_are_answered_with_any_port(host: bytes) -> None:
    assert Access("127.0.0.1").host_allowed(host)


@pytest.mark.parametrize(
    "host",
    [b"", b"evil.example", b"evil.example:7331", b"localhost.evil.example", b"127.0.0.1.evil.example", b"192.168.1.5",
     b"localhost:port", b"user@localhost", b"localhost/", b"a b", b"[::1", b"\xff", b"127.0.0.1:7331:1", b"::1"],
)  # fmt: skip
def test_other_hosts_are_not_ours(host: bytes) -> None:
    assert not Access("127.0.0.1").host_allowed(host)


@given(names)
def test_no_name_is_answered_unless_it_was_configured(name: str) -> None:
    for bind in ("127.0.0.1", "0.0.0.0", "::"):
        assert not Access(bind).host_allowed(name.encode())
        assert Access(bind, (name,)).host_allowed(name.upper().encode() + b":8080")
        assert Access(bind, (f"{name}:8080",)).host_allowed(name.encode() + b":8080")
        assert not Access(bind, (f"{name}:8080",)).host_allowed(name.encode())
        assert Access(bind, (f"{name}:*",)).host_allowed(name.encode() + b":1")
        assert Access(bind, (f"*.{name}",)).host_allowed(b"a." + name.encode())
        assert not Access(bind, (f"*.{name}",)).host_allowed(name.encode())
        assert Access(bind, ("*",)).host_allowed(name.encode())


@pytest.mark.parametrize("bind", ["0.0.0.0", "::"])
def test_a_server_on_every_interface_answers_addresses_because_rebinding_needs_a_name(bind: str) -> None:
    access = Access(bind)
    assert access.host_allowed(b"192.168.1.5:7331")
    assert access.host_allowed(b"[2001:db8::1]:7331")
    assert not access.host_allowed(b"evil.example")


def test_the_bound_host_is_answered() -> None:
    assert Access("192.168.1.5").host_allowed(b"192.168.1.5:7331")
    assert not Access("192.168.1.5").host_allowed(b"192.168.1.6:7331")
    assert Access("fd00::1").host_allowed(b"[fd00::1]")


@pytest.mark.parametrize(
    "origin", [b"http://localhost:3000", b"https://localhost", b"http://127.0.0.1:7331", b"http://[::1]:5173"]
)
def test_loopback_pages_may_call_by_default(origin: bytes) -> None:
    assert Access("127.0.0.1").origin_allowed(origin, b"127.0.0.1:7331")


@pytest.mark.parametrize(
    "origin",
    [b"null", b"", b"https://evil.example", b"http://localhost.evil.example", b"file://", b"http://localhost@evil.example",
     b"chrome-extension://abc", b"http://localhost:3000/path", b"https://127.0.0.1.nip.example", b"http://", b"\xff"],
)  # fmt: skip
def test_other_pages_may_not(origin: bytes) -> None:
    assert not Access("127.0.0.1").origin_allowed(origin, b"127.0.0.1:7331")


def test_configured_origins_replace_the_default() -> None:
    access = Access("127.0.0.1", (), ("https://app.example.com", "http://dev.example.com:8080"))
    for origin in (b"https://app.example.com", b"https://app.example.com:443", b"http://dev.example.com:8080"):
        assert access.origin_allowed(origin, b"127.0.0.1:7331")
    for origin in (b"http://app.example.com", b"https://app.example.com:8443", b"http://localhost:3000"):
        assert not access.origin_allowed(origin, b"127.0.0.1:7331")


def test_our_own_pages_may_call_under_any_name_we_answer_to() -> None:
    access = Access("0.0.0.0", ("engine.example.com",), ("https://other.example.com",))
    assert access.origin_allowed(b"https://engine.example.com", b"engine.example.com")
    assert not access.origin_allowed(b"https://engine.example.com", b"engine.example.com:8443")


def test_every_origin_may_be_allowed() -> None:
    assert Access("127.0.0.1", (), ("*",)).origin_allowed(b"https://any.example", b"127.0.0.1")


@given(names)
def test_a_foreign_page_never_passes(name: str) -> None:
    assert not Access("127.0.0.1").origin_allowed(f"https://{name}".encode(), b"127.0.0.1:7331")


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost", True), ("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("[::1]", True), ("0.0.0.0", False),
     ("::", False), ("192.168.1.1", False), ("example.com", False), ("", False)],
)  # fmt: skip
def test_loopback_is_known_by_name_and_address(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected

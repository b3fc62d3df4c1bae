"""The rules of `allow_hosts`, by table and by property: what a URL names, what a rule allows, whose an address is."""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import Config, ConfigError, parse_config
from engine.egress.rules import (
    MAX_URL_CHARS,
    HostRule,
    grant,
    is_public,
    may_connect,
    parse_rule,
    parse_url,
    redirected,
    refusal,
)

CONTRACT = ("api.example.com", "*.example.org:8443", "127.0.0.1:8080", "[::1]:8080")


def rules(*texts: str) -> tuple[HostRule, ...]:
    return tuple(map(parse_rule, texts))


def allowed(url: str, *texts: str) -> bool:
    return refusal(rules(*texts), parse_url(url)) is None


# ---- rules ------------------------------------------------------------------------------------------------------

# Rule, URLs that it allows a script to ask for, URLs that it does not.
MATCHES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "api.example.com": (
        (
            "https://api.example.com/",
            "http://api.example.com/",
            "http://api.example.com:443/",
            "https://api.example.com:80/",
            "https://API.Example.COM/",
            "https://api.example.com./",
            "https://ａpi。example.com/",
        ),
        (
            "https://api.example.com:8443/",
            "http://api.example.com:8080/",
            "https://example.com/",
            "https://www.example.com/",
            "https://v2.api.example.com/",
            "https://evilapi.example.com/",
            "https://api.example.com.evil.org/",
            "https://api-example.com/",
            "https://93.184.216.34/",
        ),
    ),
    "api.example.com:8080": (
        ("http://api.example.com:8080/", "https://api.example.com:8080/"),
        ("http://api.example.com/", "https://api.example.com/", "https://api.example.com:8081/"),
    ),
    "*.example.org": (
        ("https://api.example.org/", "https://a.b.example.org/", "http://API.EXAMPLE.ORG./"),
        (
            "https://example.org/",
            "https://evilexample.org/",
            "https://example.org.evil.com/",
            "https://api.example.org:8443/",
            "https://api.example.org.evil.com/",
        ),
    ),
    "*.example.org:8443": (("https://api.example.org:8443/",), ("https://api.example.org/",)),
    "127.0.0.1:8080": (
        ("http://127.0.0.1:8080/", "http://127.0.0.1.:8080/", "http://１２７.0.0.1:8080/"),
        ("http://127.0.0.1/", "http://127.0.0.2:8080/", "http://localhost:8080/", "http://[::1]:8080/"),
    ),
    "10.0.0.5": (("http://10.0.0.5/", "https://10.0.0.5/"), ("http://10.0.0.5:8080/", "http://10.0.0.50/")),
    "[::1]:8080": (
        ("http://[::1]:8080/", "http://[0:0:0:0:0:0:0:1]:8080/", "http://[::0.0.0.1]:8080/"),
        ("http://[::1]/", "http://127.0.0.1:8080/", "http://[::2]:8080/"),
    ),
    "93.184.216.34": (("http://93.184.216.34/",), ("http://93.184.216.35/", "https://example.com/")),
    # A mapped address is another address than the one inside.
    "[::ffff:127.0.0.1]": (("http://[::ffff:7f00:1]/",), ("http://127.0.0.1/",)),
    "127.0.0.1": (("http://127.0.0.1/",), ("http://[::ffff:127.0.0.1]/", "http://[::127.0.0.1]/")),
    "*": (
        ("https://anything.example/", "http://localhost/", "http://93.184.216.34/", "http://[2606:4700::1111]/"),
        (
            "https://anything.example:8443/",
            "http://127.0.0.1/",
            "http://10.1.2.3/",
            "http://169.254.169.254/latest/meta-data/",
            "http://100.100.100.200/",
            "http://[::1]/",
            "http://[fd00:ec2::254]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:93.184.216.34]/",
            "http://[2002:7f00:1::]/",
            "http://[64:ff9b::a00:1]/",
        ),
    ),
    "*:8443": (("https://anything.example:8443/",), ("https://anything.example/", "https://127.0.0.1:8443/")),
    "münchen.example": (("https://xn--mnchen-3ya.example/", "https://MÜNCHEN.example/"), ("https://munchen.example/",)),
    "API_1.Example.COM.": (("http://api_1.example.com/",), ("http://api-1.example.com/",)),
}


@pytest.mark.parametrize("rule", MATCHES)
def test_a_rule_allows_what_it_names_and_nothing_else(rule: str) -> None:
    yes, no = MATCHES[rule]
    assert [url for url in yes if not allowed(url, rule)] == []
    assert [url for url in no if allowed(url, rule)] == []


def test_without_rules_nothing_is_allowed() -> None:
    for yes, no in MATCHES.values():
        assert not any(allowed(url) for url in (*yes, *no))


def test_rules_add_up() -> None:
    for url in (
        "http://api.example.com/",
        "https://x.example.org:8443/",
        "http://127.0.0.1:8080/",
        "http://[::1]:8080/",
    ):
        assert allowed(url, *CONTRACT)
    assert not allowed("http://127.0.0.1/", *CONTRACT)


def test_a_rule_keeps_the_text_that_it_was_written_as() -> None:
    assert [rule.text for rule in rules(*CONTRACT)] == list(CONTRACT)


WRONG_RULES = (
    "", " ", "https://api.example.com", "api.example.com/path", "10.0.0.0/8", "api.example.com:", "api.example.com:0",
    "api.example.com:65536", "api.example.com:http", "api.example.com:80:80", "::1", "[::1", "::1]", "[]", "[1.2.3.4]",
    "[fe80::1%eth0]", "*example.org", "api.*.org", "**", "*.", "*.*.org", "*.127.0.0.1", "*.[::1]", "2130706433",
    "0x7f.1", "0177.0.0.1", "127.1", "1.2.3", "1.2.3.4.5", "256.1.1.1", "a..b", ".a", "a b", "a\tb", "user@host",
    "%6cocalhost", "a" * 64, ".".join(["a" * 50] * 6), "exa\u200bmple..com", "a\\b", "a\nb", "[::1]x:80",
)  # fmt: skip


def test_what_is_no_rule_is_refused_in_words_that_do_not_quote_it() -> None:
    for text in WRONG_RULES:
        with pytest.raises(ValueError, match=r"^expected [\x20-\x7e]+$") as refused:
            parse_rule(text)
        assert len(text) < 5 or text not in str(refused.value)


def test_the_configuration_takes_rules_and_says_where_one_is_wrong() -> None:
    def parse(hosts: str) -> Config:
        text = f"[tools.script.x]\npath = 'x.lua'\nallow_hosts = {hosts}"
        return parse_config(text, environ={"SECRET": "https://s3cret"}, cwd=Path("/nonexistent"))[0]

    assert parse(str(list(CONTRACT))).tools.script["x"].allow_hosts == CONTRACT
    for wrong, told in (
        (
            '["a.com", "https://b.com"]',
            "[1]: expected a host without scheme, path or mask, like api.example.com or 10.0",
        ),
        ('["a.com:99999"]', "[0]: expected a port of 1 to 65535 after the colon, got 'a.com:99999'"),
        ('["${SECRET}"]', "[0]: expected a host without scheme"),
        ('"a.com"', ": expected a list, got 'a.com'"),
        ("[5]", "[0]: expected a text, got 5"),
    ):
        with pytest.raises(ConfigError, match=re.escape(f"tools.script.x.allow_hosts{told}")) as refused:
            parse(wrong)
        assert "s3cret" not in str(refused.value)


# ---- spellings of hosts -----------------------------------------------------------------------------------------

# URL, and the canonical host, or None where it is refused.
SPELLINGS: dict[str, str | None] = {
    "http://127.0.0.1/": "127.0.0.1",
    "http://127.0.0.1./": "127.0.0.1",
    "http://１２７。0。0。1/": "127.0.0.1",
    "http://[::1]/": "::1",
    "http://[0000:0000::0001]/": "::1",
    "http://[::FFFF:127.0.0.1]/": str(ip_address("::ffff:7f00:1")),
    "http://Example.COM/": "example.com",
    "http://example.com./": "example.com",
    "http://example\u3002com/": "example.com",
    "http://ⓔxample.com/": "example.com",
    "http://bücher.example/": "xn--bcher-kva.example",
    "http://loc\u00adalhost/": "localhost",
    "http://a_b.example/": "a_b.example",
    " http://example.com/ ": "example.com",
    "HTTP://example.com": "example.com",
    # The many ways to write 127.0.0.1 that programs disagree about.
    "http://2130706433/": None,
    "http://0x7f000001/": None,
    "http://0x7f.0.0.1/": None,
    "http://0x7f.1/": None,
    "http://0177.0.0.1/": None,
    "http://017700000001/": None,
    "http://127.1/": None,
    "http://127.0.1/": None,
    "http://127.0.0.01/": None,
    "http://0/": None,
    "http://0x/": None,
    "http://127.0.0.1.0/": None,
    "http://256.0.0.1/": None,
    "http://1.2.3.09/": None,
    "http://foo.0x7f/": None,
    "http://①２７.1/": None,
    "http://%31%32%37.0.0.1/": None,
    "http://127.0.0.1%2f.example.com/": None,
    "http://127.0.0.1%00.example.com/": None,
    "http://[::1%25lo]/": None,
    "http://[fe80::1%eth0]/": None,
    "http://[::1": None,
    "http://::1/": None,
    "http://[::1]evil.com/": None,
    "http://[example.com]/": None,
    "http://[v1.x]/": None,
    # Whose host is it?
    "http://api.example.com@evil.com/": None,
    "http://user:password@api.example.com/": None,
    "http://api.example.com\\@evil.com/": None,
    "http://api.example.com\\.evil.com/": None,
    "http:\\\\evil.com\\": None,
    "http://evil.com\\/": None,
    "http:///evil.com/": None,
    "http:evil.com": None,
    "//evil.com/": None,
    "http://": None,
    "http://./": None,
    "http://a..b/": None,
    "http://.a/": None,
    "http://a b/": None,
    "http://a\tb/": None,
    "http://a\r\nb/": None,
    "http://a/\r\nX: y": None,
    "http://a/\x00": None,
    "http://a<b/": None,
    "http://*.example.org/": None,
    "http://℀.com/": None,
    "http://" + "a" * 64 + "/": None,
    "http://" + ".".join(["a" * 50] * 6) + "/": None,
    "http://" + "é" * 300 + "/": None,
    # Ports and schemes.
    "http://a:0/": None,
    "http://a:65536/": None,
    "http://a:99999999999999999999/": None,
    "http://a:-1/": None,
    "http://a:8a/": None,
    "http://a:８０/": None,
    "http://a:80:80/": None,
    "ftp://a/": None,
    "file:///etc/passwd": None,
    "gopher://a/": None,
    "unix:///run/docker.sock": None,
    "javascript:alert(1)": None,
    "data:text/plain,x": None,
    "ws://a/": None,
    "jar:http://a/": None,
    "h ttp://a/": None,
    "": None,
    "a": None,
    "http://a/" + "x" * MAX_URL_CHARS: None,
    "http://a/" + "é" * (MAX_URL_CHARS // 2): None,
}  # fmt: skip


def test_a_host_has_one_spelling_and_what_is_doubtful_is_refused() -> None:
    for url, canonical in SPELLINGS.items():
        if canonical is None:
            with pytest.raises(ValueError, match=r"^(the|an) "):
                parse_url(url)
        else:
            assert parse_url(url).host == canonical, url


# URL, params, and what goes on the wire.
PATHS = (
    ("http://a", {}, "/"),
    ("http://a?", {}, "/?"),
    ("http://a/b?c=d#e", {}, "/b?c=d"),
    ("http://a#?", {}, "/"),
    ("http://a/b c?d e", {}, "/b%20c?d%20e"),
    ("http://a/%41%zz%", {}, "/%41%25zz%25"),
    ("http://a/é?é", {}, "/%C3%A9?%C3%A9"),
    ('http://a/"<>\\^`{|}', {}, "/%22%3C%3E%5C%5E%60%7B%7C%7D"),
    ("http://a/b", {"q": "a b&c=d", "n": 5}, "/b?n=5&q=a%20b%26c%3Dd"),
    ("http://a/b?x=1", {"y": True}, "/b?x=1&y=true"),
    ("http://a/b?", {"y": 2.0}, "/b?y=2"),
    ("http://a/b", {"y": 2.5, "é": "ü"}, "/b?y=2.5&%C3%A9=%C3%BC"),
    ("http://a/@:80/", {}, "/@:80/"),
)


def test_path_and_query_are_escaped_once_and_params_appended() -> None:
    for url, params, path in PATHS:
        target = parse_url(url, params)
        assert (target.host, target.path) == ("a", path), url


def test_the_schemes_own_port_is_left_out_where_hosts_are_told() -> None:
    assert [
        parse_url(url).authority
        for url in ("http://a:80", "https://a:443", "http://a:443", "http://[::1]:8080", "http://[::1]")
    ] == ["a", "a", "a:443", "[::1]:8080", "[::1]"]


REDIRECTS = {
    "/c?d": "http://a:8080/c?d",
    "c": "http://a:8080/b/c",
    "../c": "http://a:8080/c",
    "?x": "http://a:8080/b/p?x",
    "//evil.com/x": "http://evil.com/x",
    "https://b/": "https://b/",
    "HTTP://B/": "http://b/",
    "http://a:8080@evil.com/": None,
    "http://2130706433/": None,
    "http://a\tb/": None,
    "http:\\\\evil.com": "http://a:8080/b/%5C%5Cevil.com",  # browsers would go there; we stay
    "javascript:alert(1)": None,
    "file:///etc/passwd": None,
    "https://[::1": None,
}


def test_a_redirect_is_read_as_strictly_as_a_url() -> None:
    start = parse_url("http://a:8080/b/p?q")
    for location, end in REDIRECTS.items():
        if end is None:
            with pytest.raises(ValueError, match=r"^(the|an) "):
                redirected(start, location)
        else:
            assert redirected(start, location).url == end, location


# ---- addresses --------------------------------------------------------------------------------------------------

NOT_PUBLIC = (
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "100.127.255.255", "127.0.0.1",
    "127.255.255.255", "168.63.129.16", "169.254.0.1", "169.254.169.254", "169.254.170.2",
    "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.1",
    "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::127.0.0.1", "::93.184.216.34", "::ffff:10.0.0.1", "::ffff:93.184.216.34", "64:ff9b::10.0.0.1",
    "64:ff9b::93.184.216.34", "64:ff9b:1::1", "100::1", "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:2::1",
    "2001:10::1", "2001:20::1", "2001:db8::1", "2002:a00:1::1", "3fff::1", "4000::1", "5f00::1", "fc00::1",
    "fd00:ec2::254", "fd20:ce::254", "fe80::1", "fe80::1%eth0", "2606:4700::1111%eth0", "fec0::1", "ff02::1",
)  # fmt: skip
PUBLIC = (
    "1.1.1.1", "93.184.216.34", "100.63.255.255", "100.128.0.1", "172.15.255.255", "172.32.0.1", "169.253.1.1",
    "192.0.1.1", "198.17.255.255", "198.20.0.1", "223.255.255.255", "168.63.129.17",
    "2606:4700::1111", "2001:200::1", "2a00:1450:4001::1", "3ffe::1", "2620:4f:8000::1",
)  # fmt: skip


def test_an_address_of_a_special_range_is_not_public() -> None:
    assert [text for text in NOT_PUBLIC if is_public(ip_address(text))] == []
    assert [text for text in PUBLIC if not is_public(ip_address(text))] == []


def test_a_name_leads_to_a_private_address_only_where_that_is_listed_with_its_port() -> None:
    address = ip_address("127.0.0.1")
    for texts in (
        (),
        ("localhost",),
        ("*",),
        ("*.local", "*:8080"),
        ("127.0.0.2:8080",),
        ("127.0.0.1",),
        ("[::1]:8080",),
    ):
        assert not may_connect(rules(*texts), address, 8080), texts
    assert may_connect(rules("*.example", "127.0.0.1:8080"), address, 8080)


def test_a_refusal_of_a_private_address_says_that_it_must_be_listed() -> None:
    assert refusal(rules("*"), parse_url("http://169.254.169.254:8080/secret?token=x")) == (
        "169.254.169.254:8080 is not a public address, which only a rule that lists it reaches; "
        'allow_hosts = ["169.254.169.254:8080"] would grant it'
    )


def test_a_refusal_says_which_line_would_grant_it() -> None:
    assert refusal((), parse_url("https://api.example.com/secret")) == (
        "api.example.com is not among the hosts that this script may reach; "
        'allow_hosts = ["api.example.com"] would grant it'
    )


# ---- properties -------------------------------------------------------------------------------------------------

addresses = st.ip_addresses()
labels = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,10}[a-z0-9_])?", fullmatch=True)
names = (
    st.lists(labels, min_size=1, max_size=4)
    .map(".".join)
    .filter(lambda name: not re.search(r"(^|\.)(\d+|0x[0-9a-f]*)$", name))
)
ports = st.integers(1, 65535)
hosts = st.one_of(names, addresses.map(lambda a: f"[{a}]" if a.version == 6 else str(a)))


@given(addresses)
def test_what_the_library_says_is_not_global_is_not_public_to_us(address: IPv4Address | IPv6Address) -> None:
    assert address.is_global or not is_public(address)


@given(st.ip_addresses(v=4), st.integers(0, 2**32 - 1), st.integers(0, 2**80 - 1))
def test_no_form_that_holds_an_ipv4_address_is_public(inner: IPv4Address, server: int, rest: int) -> None:
    value = int(inner)
    forms = (
        value,  # compatible
        0xFFFF << 32 | value,  # mapped
        0xFFFF << 48 | value,  # translated, RFC 2765
        0x64FF9B << 96 | value,  # NAT64
        0x2002 << 112 | value << 80 | rest,  # 6to4
        0x20010000 << 96 | server << 64 | value ^ 0xFFFFFFFF,  # Teredo
    )
    for form in forms:
        address = IPv6Address(form)
        assert not is_public(address), address
        assert not may_connect(rules("*", f"{inner}"), address, 80)


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_read_in_its_decimal_spelling_alone(address: IPv4Address) -> None:
    a, b, c, d = address.packed
    number, last_two, last_three = int(address), c << 8 | d, int(address) & 0xFFFFFF
    others = (
        f"{number}", f"0x{number:x}", f"0{number:o}", f"{a}.{b}.{last_two}", f"{a}.{last_three}",
        f"0x{a:x}.{b}.{c}.{d}", f"{a}.{b}.{c}.0x{d:x}", f"0{a:o}.{b}.{c}.{d}", f"{a}.{b}.{c}.0{d}",
        f"{a}.{b}.{c}.{d}.0",
    )  # fmt: skip
    assert parse_url(f"http://{address}/").address == address
    for other in others:
        with pytest.raises(ValueError, match="four decimal numbers"):
            parse_url(f"http://{other}/")


@given(hosts, ports, st.sampled_from(["http", "https"]))
def test_the_rule_that_a_refusal_names_grants_what_was_refused(host: str, port: int, scheme: str) -> None:
    target = parse_url(f"{scheme}://{host}:{port}/")
    assert refusal((), target) is not None
    granted = re.fullmatch(r'allow_hosts = \["(.*)"\]', grant(target))
    assert granted is not None
    rule = parse_rule(granted[1])
    assert refusal((rule,), target) is None
    elsewhere = parse_url(f"{scheme}://{host}:{port % 65535 + 1}/")
    assert refusal((rule,), elsewhere) is not None or {target.port, elsewhere.port} <= {80, 443}


@given(names, names)
def test_a_wildcard_needs_the_dot_and_something_before_it(name: str, suffix: str) -> None:
    joined, glued = f"http://{name}.{suffix}/", f"http://{name}{suffix}/"
    assert allowed(joined, f"*.{suffix}")
    assert not allowed(f"http://{suffix}/", f"*.{suffix}")
    if not f"{name}{suffix}".endswith(f".{suffix}"):
        assert not allowed(glued, f"*.{suffix}")


@given(
    st.text(max_size=60) | st.text(alphabet="htps:/@.[]#?%\\0x127aé1", max_size=40).map(lambda text: f"http://{text}")
)
def test_any_text_is_refused_or_has_one_canonical_form(text: str) -> None:
    try:
        target = parse_url(text)
    except ValueError as error:
        refused = str(error)
        target = None
    if target is None:
        assert re.match(r"(the|an) ", refused)
        return
    assert parse_url(target.url) == target
    if target.address is None:
        assert re.fullmatch(r"[a-z0-9_.-]+", target.host)
    assert re.fullmatch(r"/[\x21-\x7e]*", target.path)


@given(st.text(max_size=40))
def test_any_text_is_a_rule_or_a_sentence(text: str) -> None:
    try:
        said = parse_rule(text).text
    except ValueError as error:
        said = str(error)
    assert said == text or said.startswith("expected ")

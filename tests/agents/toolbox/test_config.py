"""`[mcp_servers]`: what it may hold, what tenants get of it, and one line for each mistake."""

from pathlib import Path

import pytest

from engine.config import Config, ConfigError, parse_config
from engine.config.mcp_servers import of_tenant

SERVER = '[mcp_servers.a]\nurl = "https://mcp.example.com/mcp"\n'


def parsed(text: str, **environ: str) -> Config:
    return parse_config(text, environ=environ, cwd=Path("/root"), shown_as="engine.toml")[0]


def test_servers_have_an_address_and_what_goes_along() -> None:
    config = parsed(
        SERVER + 'key = "${KEY}"\nheaders = { X-A = "secret:B", X-None = "${NONE:-}" }\n[mcp_servers.b]\n'
        'url = "HTTP://LocalHost:80/x/?y=1"\ntenants = ["acme", "b"]\nheaders = { Authorization = "Basic eA==" }',
        KEY="sk-1234",
    )
    a, b = config.mcp_servers.values()
    assert (a.url, a.timeout_s, a.sent()) == (
        "https://mcp.example.com/mcp", 30, {"x-a": "secret:B", "authorization": "sk-1234"},
    )  # fmt: skip
    assert (b.url, b.sent()) == ("http://localhost/x/?y=1", {"authorization": "Basic eA=="})
    assert [list(of_tenant(config.mcp_servers, tenant)) for tenant in ("default", "acme", "c")] == [["a"], ["b"], []]
    everywhere = parsed(SERVER + 'tenants = ["*"]').mcp_servers
    assert list(of_tenant(everywhere, "c")) == ["a"]
    assert "sk-1234" not in repr(config)
    assert "Basic" not in repr(config)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mcp_servers = 1", "mcp_servers: expected a table, got 1"),
        ("[mcp_servers.a]", "mcp_servers.a: required key 'url' is missing"),
        ('[mcp_servers.a]\nurl = "stdio:x"', "mcp_servers.a.url: expected the address of an MCP server:"),
        ('[mcp_servers.a]\nurl = "http://me:hidden@x/"', "mcp_servers.a.url: expected the address of an MCP server:"),
        ('[mcp_servers."a b"]\nurl = "http://x/"', "a name of 1 to 64 letters, digits, '_', '.' or '-'"),
        (SERVER + 'ulr = "x"', "mcp_servers.a.ulr: unknown key; did you mean 'url'?"),
        (SERVER + 'key = "hidden key"', "mcp_servers.a.key: expected a key of ASCII characters, without white space"),
        (SERVER + 'key = "secret:a-b"', "mcp_servers.a.key: expected secret: and the name of a secret"),
        (SERVER + 'headers = { X = "hidden\\n" }', "mcp_servers.a.headers.X: expected at most 4,096 printable ASCII"),
        (SERVER + 'headers = { X = "secret:-" }', "mcp_servers.a.headers.X: expected secret: and the name of a secret"),
        (SERVER + 'headers = { Host = "x" }', "'Host' is not the name of a header that can be set"),
        (SERVER + 'headers = { Mcp-Session-Id = "x" }', "'Mcp-Session-Id' is not the name of a header that can be set"),
        (SERVER + 'headers = { "a b" = "x" }', "'a b' is not the name of a header that can be set"),
        (SERVER + 'key = "k"\nheaders = { authorization = "x" }', "key is the header Authorization, which headers has"),
        (SERVER + "timeout_s = 0", "mcp_servers.a.timeout_s: expected"),
    ],
)
def test_a_mistake_is_one_line_without_keys(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    assert said in str(caught.value)
    assert "hidden" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_more_headers_than_a_request_should_have_are_refused() -> None:
    headers = ", ".join(f'X-{number} = "a"' for number in range(17))
    with pytest.raises(ConfigError, match="expected at most 16 headers"):
        parsed(SERVER + f"headers = {{ {headers} }}")

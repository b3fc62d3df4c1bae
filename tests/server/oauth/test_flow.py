"""The official client against a real authorization server and this one: from the first 401 to an answer."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from oauth_support import issuer_table, oauth, opened

pytest.importorskip("authlib")

PROCESS = Path(__file__).with_name("issuer_process.py")


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    """The URL of an authorization server in a process of its own."""
    with subprocess.Popen([sys.executable, str(PROCESS)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url, "the authorization server did not start"
        yield url
        process.kill()


class Storage:
    """What a client keeps."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class Browser:
    """A user who is logged in at the authorization server, and agrees."""

    def __init__(self, user: str) -> None:
        self._user = user
        self._location = ""
        self.opened: list[dict[str, list[str]]] = []

    async def open(self, url: str) -> None:
        self.opened.append(parse_qs(urlsplit(url).query))
        async with httpx2.AsyncClient() as client:
            answer = await client.get(f"{url}&user={self._user}", follow_redirects=False)
        assert answer.status_code == 302, answer.text
        self._location = answer.headers["location"]

    async def come_back(self) -> AuthorizationCodeResult:
        query = parse_qs(urlsplit(self._location).query)
        return AuthorizationCodeResult(code=query["code"][0], state=query["state"][0])


def provider(url: str, browser: Browser, storage: Storage) -> OAuthClientProvider:
    metadata = OAuthClientMetadata.model_validate(
        {
            "redirect_uris": ["http://127.0.0.1:1/callback"],
            "client_name": "a test",
            "token_endpoint_auth_method": "none",
        }
    )
    return OAuthClientProvider(url, metadata, storage, browser.open, browser.come_back)


@asynccontextmanager
async def trusting(issuer: str, folder: Path) -> AsyncIterator[Any]:
    """A server of this engine whose resource is where it listens, and which trusts the issuer."""
    config = oauth(sso=issuer_table(issuer))
    async with opened(folder, config) as server:
        # The port is known only now; tokens are made for the address that clients use.
        real = config.model_copy(update={"resource": f"{server.running.url}/mcp"})
        service: Any = server.running.service
        tenants = service.loaded.config.tenants.model_copy(update={"oauth": real})
        object.__setattr__(service.loaded, "config", service.loaded.config.model_copy(update={"tenants": tenants}))
        server.running.guard.auth._tokens.config = real
        yield server


async def test_the_official_client_logs_in_lists_and_calls(issuer: str, tmp_path: Path) -> None:
    async with trusting(issuer, tmp_path) as server:
        browser, storage = Browser("alice"), Storage()
        url = f"{server.running.url}/mcp"
        async with (
            httpx2.AsyncClient(auth=provider(url, browser, storage), timeout=30) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            listed = await client.list_tools()
            assert "echo" in {tool.name for tool in listed.tools}
            called = await client.call_tool("echo", {"a": 1})
            assert called.is_error is not True
        (asked,) = browser.opened
        assert asked["resource"] == [url]
        assert asked["scope"] == ["engine:use"]
        assert asked["code_challenge_method"] == ["S256"]
        assert storage.client is not None
        assert storage.client.issuer == issuer
        assert storage.tokens is not None
        rotated = await _rotated(server, issuer, storage)
        assert rotated == [200, 200]


async def _rotated(server: Any, issuer: str, storage: Storage) -> list[int]:
    """The statuses of the old token before and after the issuer has another key that is not published yet."""
    assert storage.tokens is not None
    headers = {"authorization": f"Bearer {storage.tokens.access_token}"}
    async with server.running.client(headers=headers) as client, httpx2.AsyncClient() as other:
        before = (await client.get("/agents/list")).status_code
        await other.post(f"{issuer}/rotate")
        return [before, (await client.get("/agents/list")).status_code]


async def test_a_client_steps_up_to_the_scope_that_a_route_needs(issuer: str, tmp_path: Path) -> None:
    async with trusting(issuer, tmp_path) as server:
        browser, storage = Browser("alice"), Storage()
        auth = provider(f"{server.running.url}/mcp", browser, storage)
        async with server.running.client(auth=auth) as client:
            assert (await client.get("/agents/list")).status_code == 200
            # Whatever it answers, it is no longer about scopes.
            assert (await client.get("/agents/x/versions")).status_code not in (401, 403)
        assert [asked["scope"] for asked in browser.opened] == [["engine:use"], ["engine:use engine:publish"]]


async def test_a_user_whose_organization_is_no_tenant_gets_no_access(issuer: str, tmp_path: Path) -> None:
    async with trusting(issuer, tmp_path) as server:
        browser = Browser("mallory")
        auth = provider(f"{server.running.url}/mcp", browser, Storage())
        async with server.running.client(auth=auth) as client:
            answer = await client.get("/agents/list")
        assert answer.status_code == 401
        assert "no active tenant" in answer.json()["error"]["message"]
        assert len(browser.opened) == 1

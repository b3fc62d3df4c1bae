"""What the tests of tokens share: keys, tokens, an issuer in this process whose answers a test decides, a server."""

import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import jwt
import trio
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from keys_support import OPERATOR, SECRETS_KEY, KeyedService
from server_support import Running, serving

from control.store import ControlStore, Settings, open_control
from engine.config import Config, OAuthConfig

RESOURCE = "http://127.0.0.1:7331/mcp"


@cache
def rsa_key(bits: int = 2048, number: int = 0, exponent: int = 65537) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(exponent, bits)


@cache
def ec_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@cache
def ed_key() -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.generate()


def number(value: int) -> str:
    """A number as a JWK has it."""
    raw = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def public(key: Any, **more: Any) -> dict[str, Any]:
    """The public part of a key as a JWK."""
    algorithms = {rsa.RSAPrivateKey: "RSA", ec.EllipticCurvePrivateKey: "EC"}
    kind = next((name for type_, name in algorithms.items() if isinstance(key, type_)), "OKP")
    algorithm: Any = {"RSA": jwt.algorithms.RSAAlgorithm, "EC": jwt.algorithms.ECAlgorithm}.get(
        kind, jwt.algorithms.OKPAlgorithm
    )
    return {"kid": "k1", **algorithm.to_jwk(key.public_key(), as_dict=True), **more}


def keys_of(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys or [public(rsa_key())]}).encode()


def part(value: Any) -> str:
    """A part of a token: JSON, or bytes as they are."""
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def claims(**more: Any) -> dict[str, Any]:
    """Claims that give access; None leaves one out."""
    now = int(time.time())
    base = {
        "iss": "", "aud": RESOURCE, "sub": "alice", "exp": now + 600, "iat": now, "nbf": now,
        "org_id": "org-1", "scope": "openid engine:use",
    }  # fmt: skip
    return {name: value for name, value in {**base, **more}.items() if value is not None}


def signed(payload: dict[str, Any], key: Any = None, algorithm: str = "RS256", **header: Any) -> str:
    """A token with these claims, signed."""
    given = {"kid": "k1", "typ": "at+jwt", **header}
    return jwt.encode(payload, key or rsa_key(), algorithm, {k: v for k, v in given.items() if v is not None})


def raw_signed(header: bytes, payload: bytes, key: Any = None) -> str:
    """A token of these very bytes, signed with RS256."""
    said = f"{part(header)}.{part(payload)}"
    signature = jwt.algorithms.RSAAlgorithm(jwt.algorithms.RSAAlgorithm.SHA256).sign(said.encode(), key or rsa_key())
    return f"{said}.{part(signature)}"


@dataclass
class FakeIssuer:
    """An issuer on a socket. `answers` are by path: a body, or a status; `hang` leaves questions without an answer."""

    url: str = ""
    answers: dict[str, bytes | int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    hang: bool = False
    location: str = ""

    async def _serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            head = b""
            while b"\r\n\r\n" not in head:
                data = await stream.receive_some(65536)
                if not data:
                    return
                head += data
            path = head.split(b" ")[1].decode()
            self.asked.append(path)
            if self.hang:
                await trio.sleep_forever()
            answer = self.answers.get(path, 404)
            status, body = (answer, b"") if isinstance(answer, int) else (200, answer)
            more = f"location: {self.location}\r\n" if status == 302 else ""
            reply = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n{more}connection: close\r\n\r\n"
            with suppress(trio.BrokenResourceError):
                await stream.send_all(reply.encode() + body)

    def set_keys(self, *keys: dict[str, Any]) -> None:
        self.answers["/keys"] = keys_of(*keys)

    def times(self, path: str) -> int:
        return self.asked.count(path)


@asynccontextmanager
async def fake_issuer() -> AsyncIterator[FakeIssuer]:
    """An issuer with metadata and one key."""
    found = FakeIssuer()
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, found._serve, listeners)
        found.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        metadata = {"issuer": found.url, "jwks_uri": f"{found.url}/keys"}
        found.answers["/.well-known/oauth-authorization-server"] = json.dumps(metadata).encode()
        found.set_keys(public(rsa_key()))
        yield found
        nursery.cancel_scope.cancel()


def issuer_table(url: str, **more: Any) -> dict[str, Any]:
    """`[tenants.oauth.issuers.NAME]` for an issuer on loopback."""
    table = {
        "issuer": url, "tenant_claim": "org_id", "tenants": {"org-1": "acme", "org-2": "other"},
        "allow_hosts": [url.removeprefix("http://")],
    }  # fmt: skip
    return {name: value for name, value in {**table, **more}.items() if value is not None}


def oauth(**issuers: dict[str, Any]) -> OAuthConfig:
    return OAuthConfig.model_validate({"resource": RESOURCE, "issuers": issuers})


@dataclass
class Opened:
    """A server that takes keys and tokens."""

    running: Running
    control: ControlStore
    operator: str = OPERATOR


@asynccontextmanager
async def opened(folder: Path, config: OAuthConfig, **options: Any) -> AsyncIterator[Opened]:
    """Serve the tenants `acme` and `other` with the issuers of a configuration."""
    settings = Settings(folder / "engine.sqlite", OPERATOR, SECRETS_KEY)
    async with open_control(folder / "engine.control.sqlite", settings, create=True) as control:
        for tenant in ("acme", "other"):
            await control.tenants.create(tenant, actor="cli")
        service = KeyedService(control=control, **options)
        tenants = {"enabled": True, "oauth": config.model_dump()}
        whole = Config.model_validate({"server": service.server.model_dump(), "tenants": tenants})
        service.loaded = replace(service.loaded, config=whole)
        async with serving(service) as running:
            yield Opened(running, control)

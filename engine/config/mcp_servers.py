"""`[mcp_servers]`: MCP servers whose tools documents may declare. Pure."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from engine.config.fields import Model, Name, Seconds, Strings
from engine.config.language import SECRET, Key
from engine.egress.rules import parse_url

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_VALUE = re.compile(r"[\t\x20-\x7e]{0,4096}")
# What the client of MCP and HTTP itself say.
_OURS = ("accept", "accept-encoding", "connection", "content-length", "content-type", "host", "transfer-encoding")
_MAX_HEADERS = 16


def _phrase(text: str) -> PydanticCustomError:
    return PydanticCustomError("phrase", "{text}", {"text": text})


def _address(value: str) -> str:
    try:
        return parse_url(value).url
    except ValueError as error:  # its text is without the address
        raise _phrase(f"expected the address of an MCP server: {error}") from None


def _value(value: str) -> str:
    if value.startswith("secret:") and not SECRET.fullmatch(value):
        raise _phrase("expected secret: and the name of a secret: letters, digits and '_'")
    if not _VALUE.fullmatch(value):  # never shown
        raise _phrase("expected at most 4,096 printable ASCII characters")
    return value


class McpServerEntry(Model):
    """`[mcp_servers.NAME]`. `key` goes along as `Authorization: Bearer`; an empty value is none, for `${NAME:-}`."""

    url: Annotated[str, AfterValidator(_address)]
    key: Key | None = Field(default=None, repr=False)
    headers: dict[str, Annotated[str, AfterValidator(_value)]] = Field(default_factory=dict, repr=False)
    tenants: Strings | None = None
    timeout_s: Annotated[Seconds, Field(le=3600)] = 30

    @field_validator("headers")
    @classmethod
    def _headers_are_free(cls, headers: dict[str, str]) -> dict[str, str]:
        if len(headers) > _MAX_HEADERS:
            raise _phrase(f"expected at most {_MAX_HEADERS} headers")
        for name in headers:
            lower = name.lower()
            if not _HEADER.fullmatch(name) or lower in _OURS or lower.startswith("mcp-"):
                raise _phrase(f"{name[:64]!r} is not the name of a header that can be set")
        return headers

    @model_validator(mode="after")
    def _one_authorization(self) -> "McpServerEntry":
        if self.key is not None and any(name.lower() == "authorization" for name in self.headers):
            raise _phrase("key is the header Authorization, which headers has, too")
        return self

    def sent(self) -> dict[str, str]:
        """The headers that go along, with `secret:NAME` for the secrets of a tenant."""
        found = {name.lower(): value for name, value in self.headers.items() if value}
        return found | ({"authorization": self.key} if self.key else {})


McpServers = dict[Name, McpServerEntry]


def of_tenant(servers: McpServers, tenant: str) -> dict[str, McpServerEntry]:
    """The servers that a tenant's documents may use."""
    return {name: entry for name, entry in servers.items() if {tenant, "*"} & set(entry.tenants or ("default",))}

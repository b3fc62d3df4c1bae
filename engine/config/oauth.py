"""`[tenants.oauth]`: which issuers' tokens open the server beside keys, and what their claims grant. Pure."""

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from engine.config.fields import HostRules, Labels, Model, Name, Strings, Text, expected
from engine.egress.rules import Target, parse_rules, parse_url, refusal
from knowledge.access import MAX_LABELS, is_label

# Signatures of a public key alone (RFC 7518 section 3.1, RFC 8037): with HMAC the engine could make tokens itself, and
# `none` proves nothing.
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)

# Each costs a fetch at the start and some memory; a server with more is better served by one issuer that federates.
MAX_ISSUERS = 16

_MCP = "/mcp"
_WELL_KNOWN = "/.well-known/oauth-protected-resource"
_URL_HINT = "a URL that begins with https:// (http:// for a loopback address only), without query and fragment"


# Three parts of base64url, the first of which begins with `{"` (RFC 7515 section 7.1).
_TOKEN = re.compile(r"eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")


# RFC 6749 section 3.3.
_SCOPE = re.compile(r"[!#-\[\]-~]+", re.ASCII)


def looks_like_token(text: str) -> bool:
    """Whether a text has the form of a signed token, which no API key has."""
    return text.startswith("eyJ") and _TOKEN.fullmatch(text) is not None


def parse_oauth_url(url: str) -> Target:
    """What a URL of `[tenants.oauth]`, or of an issuer's metadata, names. Raises ValueError with the expectation.

    Keys that come over a connection which others can change are no keys: http is for loopback addresses.
    """
    try:
        target = parse_url(url)
    except ValueError as error:
        raise ValueError(f"{_URL_HINT}; {error}") from None
    loopback = target.address is not None and target.address.is_loopback
    if "?" in url or "#" in url or (target.scheme != "https" and not loopback):
        raise ValueError(_URL_HINT)
    return target


def _check_url(value: str) -> str:
    try:
        parse_oauth_url(value)
    except ValueError as error:
        raise expected(str(error)) from None
    return value


def _check_resource(value: str) -> str:
    target = parse_oauth_url(_check_url(value))
    if target.url != value or not value.endswith(_MCP):
        raise expected("the URL of /mcp as clients have it, such as https://engine.example.com/mcp")
    return value


def _as_path(value: Any) -> Any:
    """A claim by its name, or by the list of names that leads to it: names of claims may have dots."""
    path = (value,) if isinstance(value, str) else value
    if not isinstance(path, list | tuple) or not path or not all(isinstance(name, str) and name for name in path):
        raise expected("the name of a claim, or a list of the names that lead to it")
    return tuple(path)


def _check_scope(value: str) -> str:
    if _SCOPE.fullmatch(value) is None:
        raise expected("the name of a scope: printable ASCII without spaces, quotes and backslashes")
    return value


OAuthUrl = Annotated[str, AfterValidator(_check_url)]
ResourceUrl = Annotated[str, AfterValidator(_check_resource)]
ClaimPath = Annotated[tuple[str, ...], BeforeValidator(_as_path)]
ScopeNames = Annotated[tuple[Annotated[str, AfterValidator(_check_scope)], ...], Field(strict=False)]
GrantedScope = Literal["use", "publish", "admin"]


class OAuthScopes(Model):
    """`[tenants.oauth.issuers.NAME.scopes]`: the scopes of a token that grant each scope of the engine.

    The first of each list is the one that clients are asked to request.
    """

    use: ScopeNames = ("engine:use",)
    publish: ScopeNames = ("engine:publish",)
    admin: ScopeNames = ("engine:admin",)

    def names(self, scope: str) -> tuple[str, ...]:
        """The token's scopes that grant a scope of the engine."""
        return {"use": self.use, "publish": self.publish, "admin": self.admin}[scope]


class IssuerConfig(Model):
    """`[tenants.oauth.issuers.NAME]`: one issuer of tokens, and the rule from its claims to tenant, scopes and key."""

    issuer: OAuthUrl
    audience: Strings = ()
    tenant: Name | None = None
    tenant_claim: ClaimPath | None = None
    tenants: dict[Text, Name] = Field(default_factory=dict)
    scopes_claim: ClaimPath = ("scope",)
    scopes: OAuthScopes = OAuthScopes()
    default_scopes: Annotated[tuple[GrantedScope, ...], Field(strict=False)] = ()
    key_claim: ClaimPath = ("sub",)
    labels_claim: ClaimPath | None = None
    labels: dict[Text, Labels] = Field(default_factory=dict)
    algorithms: Annotated[tuple[Algorithm, ...], Field(strict=False)] = ("RS256", "PS256", "ES256", "EdDSA")
    jwks_uri: OAuthUrl | None = None
    allow_hosts: HostRules = ()

    @model_validator(mode="after")
    def _one_rule_for_the_tenant(self) -> "IssuerConfig":
        if (self.tenant is None) == (self.tenant_claim is None):
            raise PydanticCustomError("phrase", "give one of tenant and tenant_claim")
        if self.tenants and self.tenant_claim is None:
            raise PydanticCustomError("phrase", "tenants needs tenant_claim, whose values it maps")
        if self.labels and self.labels_claim is None:
            raise PydanticCustomError("phrase", "labels needs labels_claim, whose values it maps")
        if not self.algorithms:
            raise PydanticCustomError("phrase", "algorithms needs at least one algorithm")
        for url in filter(None, (self.issuer, self.jwks_uri)):
            if (refused := refused_host(self, parse_oauth_url(url))) is not None:
                raise PydanticCustomError("phrase", "{why}", {"why": refused})
        return self

    def labels_of(self, values: Iterable[str]) -> frozenset[str]:
        """The labels that the values of `labels_claim` name. What names none is left out, and what is too much."""
        if self.labels:
            named = {label for value in values for label in self.labels.get(value, ())}
        else:
            named = {value for value in values if is_label(value)}
        return frozenset(sorted(named)[:MAX_LABELS])


def refused_host(issuer: IssuerConfig, target: Target) -> str | None:
    """Why metadata or keys of an issuer are not fetched from this host; None where they are.

    The issuer's own name is allowed, and what `allow_hosts` lists; an address that is not public has to be listed.
    """
    own = parse_oauth_url(issuer.issuer)
    if target.address is None and (target.host, target.port) == (own.host, own.port):
        return None
    refused = refusal(parse_rules(issuer.allow_hosts), target)
    return None if refused is None else refused.replace("this script", "the keys of this issuer")


class OAuthConfig(Model):
    """`[tenants.oauth]`: the engine as an OAuth 2.1 resource server. It issues no tokens."""

    resource: ResourceUrl
    issuers: dict[Name, IssuerConfig]

    @model_validator(mode="after")
    def _issuers_differ(self) -> "OAuthConfig":
        if not 1 <= len(self.issuers) <= MAX_ISSUERS:
            raise PydanticCustomError("phrase", f"expected 1 to {MAX_ISSUERS} tables [tenants.oauth.issuers.NAME]")
        if len({issuer.issuer for issuer in self.issuers.values()}) < len(self.issuers):
            raise PydanticCustomError("phrase", "two issuers have the same URL; a token could mean either")
        return self

    def audience(self, issuer: IssuerConfig) -> tuple[str, ...]:
        """What `aud` of a token has to name one of (RFC 8707)."""
        return issuer.audience or (self.resource,)

    @property
    def metadata_url(self) -> str:
        """Where clients find the metadata of this resource (RFC 9728 section 3.1), below the prefix of a proxy."""
        return f"{self.resource.removesuffix(_MCP)}{_WELL_KNOWN}{_MCP}"

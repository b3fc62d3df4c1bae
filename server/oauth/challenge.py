"""How clients learn to log in: `WWW-Authenticate` (RFC 6750, RFC 9728) and the metadata of the resource. Pure."""

from typing import Any

from control.identity import Identity
from control.records import SCOPES
from engine.config.oauth import OAuthConfig
from engine.errors import Code, Problem
from server.problems import Answer, Headers

_CHALLENGE = b"www-authenticate"


def resource_metadata(oauth: OAuthConfig) -> dict[str, Any]:
    """The metadata of the protected resource (RFC 9728 section 2)."""
    issuers = oauth.issuers.values()
    names = dict.fromkeys(name for scope in SCOPES for issuer in issuers for name in issuer.scopes.names(scope)[:1])
    return {
        "resource": oauth.resource,
        "authorization_servers": [issuer.issuer for issuer in issuers],
        "scopes_supported": list(names),
        "bearer_methods_supported": ["header"],
        "resource_name": "engine",
    }


def to_request(oauth: OAuthConfig, scopes: frozenset[str], issuer: str | None = None) -> str:
    """The scopes to request for any of these scopes of the engine: of one issuer, or of each. The weakest is enough."""
    scope = next((each for each in SCOPES if each in scopes), None)
    if scope is None:
        return ""
    issuers = oauth.issuers.values() if issuer is None else (oauth.issuers[issuer],)
    return " ".join(dict.fromkeys(name for each in issuers for name in each.scopes.names(scope)[:1]))


def lacking(oauth: OAuthConfig, identity: Identity, scopes: frozenset[str]) -> Problem | None:
    """The challenge to a token without these scopes; None if no scope would help."""
    scope = to_request(oauth, scopes, identity.issuer)
    if not scope:
        return None
    return Problem(Code.FORBIDDEN, f"this token has no scope that grants it; log in with the scope {scope}")


def challenged(
    answer: Answer, oauth: OAuthConfig, scopes: frozenset[str], identity: Identity, *, invalid: bool
) -> Answer:
    """A refusal with how to get past it: 401 says where to log in, and 403 which scope to log in with.

    `invalid` says that the request had a token. Without one there is no `error` (RFC 6750 section 3.1).
    """
    parts = ['realm="engine"']
    if answer.status == 403:
        parts.append('error="insufficient_scope"')
    elif invalid:
        parts.append('error="invalid_token"')
    scope = to_request(oauth, scopes, identity.issuer)
    parts += [f'scope="{scope}"'] if scope else []
    parts.append(f'resource_metadata="{oauth.metadata_url}"')
    headers: Headers = [header for header in answer.headers if header[0] != _CHALLENGE]
    return Answer(answer.status, [*headers, (_CHALLENGE, f"Bearer {', '.join(parts)}".encode("ascii"))], answer.body)

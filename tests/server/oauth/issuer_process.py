"""A real authorization server, for tests: `python issuer_process.py` prints its URL, and serves until it is killed.

Authlib's server on Flask: metadata (RFC 8414), dynamic registration (RFC 7591), the authorization code grant with PKCE
(RFC 7636), tokens as JWTs (RFC 9068) for the requested resource (RFC 8707). The browser is the program that opens
`/authorize`; `user` in that URL is its user. `POST /rotate` replaces the key.
"""

import os
import sys
from dataclasses import dataclass, field
from typing import Any

os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import AuthorizationCodeMixin, ClientMixin, grants
from authlib.oauth2.rfc7591 import ClientRegistrationEndpoint
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator
from flask import Flask, jsonify, request
from joserfc.jwk import KeySet, RSAKey
from werkzeug.serving import WSGIRequestHandler, make_server

SCOPES = ["engine:use", "engine:publish", "engine:admin"]
ORGANIZATIONS = {"alice": "org-1", "bob": "org-2", "mallory": "org-unknown"}


@dataclass
class Client(ClientMixin):  # type: ignore[misc]
    client_id: str
    metadata: dict[str, Any]

    def get_client_id(self) -> str:
        return self.client_id

    def get_default_redirect_uri(self) -> str:
        return str(self.metadata["redirect_uris"][0])

    def get_allowed_scope(self, scope: str) -> str:
        return scope

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return redirect_uri in self.metadata["redirect_uris"]

    def check_client_secret(self, client_secret: str) -> bool:
        return False

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method == "none"

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type == "authorization_code"


@dataclass
class User:
    name: str

    def get_user_id(self) -> str:
        return self.name


@dataclass
class Code(AuthorizationCodeMixin):  # type: ignore[misc]
    code: str
    client_id: str
    redirect_uri: str
    scope: str
    user: User
    code_challenge: str
    code_challenge_method: str

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope


@dataclass
class State:
    keys: KeySet
    clients: dict[str, Client] = field(default_factory=dict)
    codes: dict[str, Code] = field(default_factory=dict)
    fetched: int = 0


def new_keys(number: int) -> KeySet:
    key = RSAKey.generate_key(2048, {"kid": f"key-{number}", "use": "sig", "alg": "RS256"}, private=True)
    return KeySet([key])


def application(state: State, issuer: str) -> Flask:
    app = Flask("issuer")
    app.config["OAUTH2_SCOPES_SUPPORTED"] = SCOPES
    server = AuthorizationServer(app, state.clients.get, lambda token, req: None)

    class Codes(grants.AuthorizationCodeGrant):  # type: ignore[misc]
        TOKEN_ENDPOINT_AUTH_METHODS = ("none",)

        def save_authorization_code(self, code: str, req: Any) -> None:
            given = req.payload.data
            state.codes[code] = Code(
                code, req.client.client_id, req.payload.redirect_uri, req.scope, req.user,
                given["code_challenge"], given["code_challenge_method"],
            )  # fmt: skip

        def query_authorization_code(self, code: str, client: Client) -> Code | None:
            found = state.codes.get(code)
            return found if found is not None and found.client_id == client.client_id else None

        def delete_authorization_code(self, authorization_code: Code) -> None:
            del state.codes[authorization_code.code]

        def authenticate_user(self, authorization_code: Code) -> User:
            return authorization_code.user

    class Registration(ClientRegistrationEndpoint):  # type: ignore[misc]
        def authenticate_token(self, req: Any) -> str:
            return "registration is open"

        def get_server_metadata(self) -> dict[str, Any]:
            return {}

        def generate_client_secret(self, req: Any) -> str:
            return ""

        def save_client(self, client_info: dict[str, Any], client_metadata: dict[str, Any], req: Any) -> Client:
            client = Client(client_info["client_id"], client_metadata)
            state.clients[client.client_id] = client
            return client

    class Generator(JWTBearerTokenGenerator):  # type: ignore[misc]
        def get_jwks(self) -> KeySet:
            return state.keys

        def get_audiences(self, client: Client, user: User, scope: str) -> str:
            return str(request.values["resource"])

        def get_extra_claims(self, client: Client, grant_type: str, user: User, scope: str) -> dict[str, Any]:
            return {"org_id": ORGANIZATIONS[user.name]}

    server.register_grant(Codes, [CodeChallenge(required=True)])
    server.register_endpoint(Registration)
    server.register_token_generator("default", Generator(issuer))

    @app.get("/.well-known/oauth-authorization-server")
    def metadata() -> Any:
        return jsonify(
            issuer=issuer, authorization_endpoint=f"{issuer}/authorize", token_endpoint=f"{issuer}/token",
            registration_endpoint=f"{issuer}/register", jwks_uri=f"{issuer}/keys", scopes_supported=SCOPES,
            response_types_supported=["code"], grant_types_supported=["authorization_code"],
            token_endpoint_auth_methods_supported=["none"], code_challenge_methods_supported=["S256"],
        )  # fmt: skip

    @app.get("/keys")
    def keys() -> Any:
        state.fetched += 1
        return jsonify(state.keys.as_dict(private=False))

    @app.get("/fetched")
    def fetched() -> Any:
        return jsonify(state.fetched)

    @app.post("/rotate")
    def rotate() -> Any:
        state.keys = new_keys(state.fetched + 2)
        return jsonify("done")

    @app.get("/authorize")
    def authorize() -> Any:
        user = User(request.args["user"])
        grant = server.get_consent_grant(end_user=user)
        return server.create_authorization_response(grant_user=user, grant=grant)

    @app.post("/register")
    def register() -> Any:
        return server.create_endpoint_response("client_registration")

    @app.post("/token")
    def token() -> Any:
        return server.create_token_response()

    return app


class _Quiet(WSGIRequestHandler):
    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        pass


def main() -> None:
    app = Flask("not yet")
    listening = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Quiet)
    issuer = f"http://127.0.0.1:{listening.server_port}"
    listening.app = application(State(new_keys(1)), issuer)
    sys.stdout.write(issuer + "\n")
    sys.stdout.flush()
    listening.serve_forever()


if __name__ == "__main__":
    main()

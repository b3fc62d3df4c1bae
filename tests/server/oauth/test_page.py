"""docs/oauth.md says what is true: its errors, headers and figures are those of the code, its examples load."""

import re
from pathlib import Path

import pytest
from oauth_support import RESOURCE, issuer_table
from pages import blocks, read, section

from control.identity import ANONYMOUS
from control.records import SCOPES
from engine.config import OAuthConfig, parse_config
from engine.errors import Code, Problem
from server.http.routes import Need
from server.oauth import attempts, claims, issuers, keys, token
from server.oauth.challenge import challenged, lacking, resource_metadata
from server.oauth.token import Reason
from server.problems import problem_answer

PAGE = "docs/oauth.md"


def configured(text: str) -> OAuthConfig:
    config, _ = parse_config(text, environ={}, cwd=Path())
    assert config.tenants.oauth is not None
    return config.tenants.oauth


def test_every_reason_is_in_the_table_of_errors() -> None:
    assert [row[0] for row in section(PAGE, "Errors").rows()] == [reason.value for reason in Reason]


def test_every_example_is_a_configuration_with_issuers() -> None:
    examples = [configured(block.text) for block in blocks(PAGE) if block.info == "toml"]
    assert len(examples) == 5
    assert examples[0].issuers["sso"].tenants == {"org-1": "acme", "org-2": "globex"}


def test_the_header_of_the_page_is_the_one_that_is_sent() -> None:
    oauth = configured(blocks(PAGE)[0].text)
    problem = Problem(Code.UNAUTHORIZED, "no")
    answer = challenged(problem_answer(problem), oauth, Need.USE.value.scopes, ANONYMOUS, invalid=False)
    shown = re.search(r"WWW-Authenticate: (.*)", read(PAGE))
    assert shown is not None
    assert dict(answer.headers)[b"www-authenticate"].decode() == shown[1]


def test_the_figures_of_the_page_are_those_of_the_code() -> None:
    figures = (
        (claims.LEEWAY_S, "60 seconds"), (issuers.FRESH_S / 60, "10 minutes"), (issuers.STALE_S / 3600, "4 hours"),
        (issuers.REFETCH_S, "every 30 seconds"), (issuers.RETRY_S, "every 5"), (issuers.WAIT_S, "at most 5 seconds"),
        (issuers.FETCH_S, "at most 10"), (keys.MAX_BYTES / 1024, "256 KiB"), (keys.MAX_KEYS, "64 keys"),
        (issuers.METADATA_BYTES / 1024, "64 KiB"), (token.MAX_BYTES / 1024, "8 KiB"), (token.MAX_VALUES, "512 values"),
        (attempts.PER_ADDRESS, "more than 20 tokens a second"), (attempts.ADDRESS_BURST, "(at first 100)"),
        (attempts.IN_ALL, "200 from all"),
    )  # fmt: skip
    page = " ".join(read(PAGE).split())
    for figure, text in figures:
        assert text in page
        assert f"{figure:g}" in text


@pytest.mark.parametrize("need", Need)
def test_a_challenge_asks_for_the_weakest_scope_that_a_route_takes(need: Need) -> None:
    oauth = OAuthConfig.model_validate(
        {
            "resource": RESOURCE,
            "issuers": {"a": issuer_table("http://127.0.0.1:9", scopes={"publish": ["p", "q"], "use": []})},
        }
    )
    scopes = need.value.scopes
    lack = lacking(oauth, ANONYMOUS, scopes)
    weakest = next((scope for scope in SCOPES if scope in scopes), None)
    names = {"use": None, "publish": "p", "admin": "engine:admin", None: None}
    assert (None if lack is None else lack.message.rpartition(" ")[2]) == names[weakest]


def test_the_metadata_names_the_first_scope_of_each_list_once() -> None:
    both = {
        "a": issuer_table("http://127.0.0.1:8"),
        "b": issuer_table("http://127.0.0.1:9", scopes={"use": ["u", "v"]}),
    }
    found = resource_metadata(OAuthConfig.model_validate({"resource": RESOURCE, "issuers": both}))
    assert found["authorization_servers"] == ["http://127.0.0.1:8", "http://127.0.0.1:9"]
    assert found["scopes_supported"] == ["engine:use", "u", "engine:publish", "engine:admin"]

"""The rule from claims to tenant, scopes and key: by example, and by property."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oauth_support import RESOURCE, issuer_table, oauth
from oauth_support import claims as claims_now

from control.records import SCOPES
from engine.config.oauth import OAuthScopes
from server.oauth.claims import LEEWAY_S, Grant, key_name, read_claims
from server.oauth.token import Reason, Refused

URL = "http://127.0.0.1:9"
NOW = 1_800_000_000


def claims(**more: Any) -> dict[str, Any]:
    return claims_now(**{"exp": NOW + 600, "iat": NOW, "nbf": NOW, **more})


def grant(payload: dict[str, Any], name: str = "sso", **table: Any) -> Grant:
    config = oauth(**{name: issuer_table(URL, **table)})
    issuer = config.issuers[name]
    return read_claims(name, issuer, config.audience(issuer), payload)


def reason(payload: dict[str, Any], **table: Any) -> Reason:
    with pytest.raises(Refused) as refused:
        grant(payload, **table).check_time(NOW)
    return refused.value.reason


def test_the_scopes_of_the_configuration_are_those_of_keys() -> None:
    assert tuple(OAuthScopes.model_fields) == SCOPES


def test_claims_lead_to_a_tenant_a_key_and_scopes() -> None:
    found = grant(claims())
    assert (found.issuer, found.tenant, found.key, found.scopes) == ("sso", "acme", "oauth:sso:alice", {"use"})


def test_two_issuers_with_one_subject_are_two_senders() -> None:
    assert grant(claims(), name="one").key != grant(claims(), name="two").key


@pytest.mark.parametrize(
    ("payload", "table", "tenant"),
    [
        ({"org_id": "org-2"}, {}, "other"),
        ({"org_id": ["org-2"]}, {}, "other"),
        ({"org_id": ["nothing", "org-1"]}, {}, "acme"),
        ({"org_id": None}, {"tenant_claim": None, "tenants": None, "tenant": "acme"}, "acme"),
        ({"org_id": "other"}, {"tenants": None}, "other"),
        ({"https://acme.example/org": "org-1"}, {"tenant_claim": "https://acme.example/org"}, "acme"),
        ({"organization": {"id": "org-1"}}, {"tenant_claim": ["organization", "id"]}, "acme"),
    ],
)
def test_a_rule_names_the_tenant(payload: dict[str, Any], table: dict[str, Any], tenant: str) -> None:
    assert grant(claims(**payload), **table).tenant == tenant


@pytest.mark.parametrize("org", [None, "", "org-3", "acme", "ORG-1", [], ["org-1", "org-2"], ["org-3"]], ids=repr)
def test_claims_without_exactly_one_tenant_lead_to_none(org: Any) -> None:
    assert reason(claims(org_id=org)) is Reason.TENANT


@pytest.mark.parametrize("org", ["\ud800", "ä", ["\udfff"], "default", ["default"]], ids=repr)
def test_a_claim_that_can_name_no_tenant_leads_to_none(org: Any) -> None:
    assert reason(claims(org_id=org), tenants=None) is Reason.TENANT


@pytest.mark.parametrize("org", [1, True, {"org-1": 1}, [["org-1"]], [1], 1.5], ids=repr)
def test_a_tenant_claim_of_another_type_is_refused(org: Any) -> None:
    assert reason(claims(org_id=org)) is Reason.CLAIMS


@pytest.mark.parametrize(
    ("payload", "table", "scopes"),
    [
        ({"scope": "engine:publish engine:use"}, {}, {"use", "publish"}),
        ({"scope": ["engine:admin"]}, {}, {"admin"}),
        ({"scope": "engine:use-not engine"}, {}, set()),
        ({"scope": "use"}, {}, set()),
        ({"scope": None}, {}, set()),
        ({"scope": ""}, {}, set()),
        ({"scope": None}, {"default_scopes": ["use"]}, {"use"}),
        ({"scp": ["u"]}, {"scopes_claim": "scp", "scopes": {"use": ["api://engine/u", "u"]}}, {"use"}),
        ({"realm_access": {"roles": ["engine:admin"]}}, {"scopes_claim": ["realm_access", "roles"]}, {"admin"}),
        ({"realm_access": ["roles"]}, {"scopes_claim": ["realm_access", "roles"]}, set()),
    ],
)
def test_scopes_of_the_token_grant_scopes_of_the_engine(
    payload: dict[str, Any], table: dict[str, Any], scopes: set[str]
) -> None:
    assert grant(claims(**payload), **table).scopes == scopes


@pytest.mark.parametrize("scope", [1, {"engine:use": True}, [1], ["engine:use", None], True], ids=repr)
def test_scopes_of_another_type_are_refused_not_guessed(scope: Any) -> None:
    assert reason(claims(scope=scope)) is Reason.CLAIMS


@pytest.mark.parametrize(
    "audience", [None, "", "x", RESOURCE + "/", RESOURCE[:-4], [], ["x"], 1, {RESOURCE: 1}, [[RESOURCE]]], ids=repr
)
def test_a_token_for_another_audience_is_refused(audience: Any) -> None:
    assert reason(claims(aud=audience)) is Reason.AUDIENCE


def test_the_audience_is_the_resource_or_what_is_configured() -> None:
    assert grant(claims(aud=["x", RESOURCE])).tenant == "acme"
    assert grant(claims(aud="api://engine"), audience=["api://engine"]).tenant == "acme"
    assert reason(claims(), audience=["api://engine"]) is Reason.AUDIENCE


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({"exp": NOW - LEEWAY_S - 1}, Reason.EXPIRED),
        ({"exp": 0}, Reason.EXPIRED),
        ({"nbf": NOW + LEEWAY_S + 5}, Reason.EARLY),
        ({"iat": NOW + LEEWAY_S + 5}, Reason.EARLY),
        ({"exp": None}, Reason.CLAIMS),
        ({"exp": "9999999999"}, Reason.CLAIMS),
        ({"exp": True}, Reason.CLAIMS),
        ({"exp": [9999999999]}, Reason.CLAIMS),
        ({"exp": 10**400}, Reason.CLAIMS),
        ({"exp": -1}, Reason.CLAIMS),
        ({"exp": float("inf")}, Reason.CLAIMS),
        ({"exp": float("nan")}, Reason.CLAIMS),
        ({"nbf": "0"}, Reason.CLAIMS),
        ({"nbf": False}, Reason.CLAIMS),
        ({"iat": {}}, Reason.CLAIMS),
        ({"cnf": {"jkt": "x"}}, Reason.BOUND),
        ({"sub": None}, Reason.CLAIMS),
        ({"sub": ""}, Reason.CLAIMS),
        ({"sub": 7}, Reason.CLAIMS),
        ({"sub": ["alice"]}, Reason.CLAIMS),
    ],
    ids=repr,
)
def test_what_is_wrong_with_a_claim_has_its_reason(payload: dict[str, Any], expected: Reason) -> None:
    assert reason(claims(**payload)) is expected


def test_clocks_may_differ_a_little() -> None:
    grant(claims(exp=NOW - LEEWAY_S / 2, nbf=NOW + LEEWAY_S / 2, iat=NOW + LEEWAY_S / 2)).check_time(NOW)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["org-1", "engine:use", RESOURCE]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "iat", "scope", "org_id", "cnf", "x"])


@given(st.dictionaries(NAMES, VALUES))
def test_whatever_the_claims_are_they_are_refused_or_grant_what_the_rule_says(odd: dict[str, Any]) -> None:
    payload = {**claims(), **odd}
    try:
        found = grant(payload)
    except Refused:
        return
    assert found.tenant in {"acme", "other"}
    assert found.scopes <= set(SCOPES)
    assert found.key.startswith("oauth:sso:")
    assert len(found.key) <= 128
    said = payload["scope"].split(" ") if isinstance(payload["scope"], str) else payload["scope"] or []
    assert found.scopes == {scope for scope in SCOPES if f"engine:{scope}" in said}
    assert payload["aud"] == RESOURCE or RESOURCE in payload["aud"]
    assert isinstance(payload["exp"], int | float)


SUBJECTS = st.text() | st.from_regex(r"(sha256-)?[a-z0-9|@.]{0,70}", fullmatch=True)


@given(st.sampled_from(["a", "b", "a.b"]), st.sampled_from(["a", "b", "a.b"]), SUBJECTS, SUBJECTS)
def test_no_two_senders_share_a_name(one: str, two: str, subject: str, other: str) -> None:
    same = (one, subject) == (two, other)
    assert (key_name(one, subject) == key_name(two, other)) is same


@given(SUBJECTS)
def test_a_name_is_short_and_printable_and_a_digest_is_no_ones_name(subject: str) -> None:
    name = key_name("sso", subject)
    assert name.isascii()
    assert name.isprintable()
    assert len(name) <= 80
    assert key_name("sso", name.removeprefix("oauth:sso:")) == name or name.startswith("oauth:sso:sha256-")


LABELLED: list[tuple[dict[str, Any], dict[str, Any], set[str]]] = [
    ({"groups": ["hr", "legal"]}, {}, set()),
    ({"groups": ["hr", "not a label", "legal"]}, {"labels_claim": "groups"}, {"hr", "legal"}),
    ({"groups": "hr"}, {"labels_claim": "groups"}, {"hr"}),
    ({}, {"labels_claim": "groups"}, set()),
    ({"realm": {"groups": ["hr"]}}, {"labels_claim": ["realm", "groups"]}, {"hr"}),
    (
        {"groups": ["HR Team", "hr"]},
        {"labels_claim": "groups", "labels": {"HR Team": ["people", "pay"]}},
        {"people", "pay"},
    ),
]


@pytest.mark.parametrize(("payload", "table", "labels"), LABELLED)
def test_a_claim_leads_to_labels_by_the_issuers_rule(
    payload: dict[str, Any], table: dict[str, Any], labels: set[str]
) -> None:
    assert grant(claims(**payload), **table).labels == labels


def test_a_claim_of_many_labels_is_bounded_and_one_of_another_type_is_refused() -> None:
    many = grant(claims(groups=[f"l{n:03}" for n in range(100)]), labels_claim="groups")
    assert len(many.labels) == 32
    assert reason(claims(groups={"hr": True}), labels_claim="groups") is Reason.CLAIMS

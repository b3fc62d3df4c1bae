"""The table from errors to answers."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import Code, LimitUse, Problem, leaf
from engine.values import drained
from server.problems import (
    STATUS,
    TEXT_AT_ONCE,
    VALUES_AT_ONCE,
    details,
    encode,
    encoding,
    problem_answer,
    rpc_error,
    tool_error_text,
)


def test_every_code_has_a_status() -> None:
    assert set(STATUS) == set(Code)
    assert all(400 <= status < 600 for status in STATUS.values())


@pytest.mark.parametrize("code", Code)
def test_a_status_says_whose_fault_it_is_and_whether_to_retry(code: Code) -> None:
    spec = code.spec
    match spec.fault:
        case "operator" if spec.status == 502:  # as a proxy would say of the server behind it
            assert code is Code.MODEL_ERROR
        case "caller" | "operator":
            assert 400 <= spec.status < 500
        case "script":  # 408 where it took too long, as a proxy would say of a server
            assert spec.status in (408, 500)
        case "engine":
            assert spec.status in (500, 503)
    # RFC 6585 section 4, RFC 9110 sections 15.5.9 and 15.6.4.
    assert (spec.status in (429, 503)) <= spec.retry
    assert (spec.status == 429) == (spec.fault == "caller" and spec.retry and code is not Code.BODY_TIMEOUT)
    assert spec.retry <= (spec.wrong is None)
    assert (spec.wrong is None) or spec.fault in ("caller", "operator")


@pytest.mark.parametrize("code", Code)
def test_every_problem_is_the_envelope_with_its_length(code: Code) -> None:
    answer = problem_answer(Problem(code, "why"))
    headers = dict(answer.headers)
    assert answer.status == STATUS[code]
    assert json.loads(answer.body) == {"error": {"code": code.value, "message": "why"}}
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"content-length"] == str(len(answer.body)).encode()


@pytest.mark.parametrize(("seconds", "header"), [(0, b"1"), (0.2, b"1"), (1.2, b"2"), (60, b"60")])
def test_retry_after_is_in_whole_seconds_rounded_up(seconds: float, header: bytes) -> None:
    answer = problem_answer(Problem(Code.QUEUE_FULL, "full", retry_after_s=seconds))
    assert dict(answer.headers)[b"retry-after"] == header
    assert json.loads(answer.body)["error"]["retry_after_s"] == seconds


def test_a_401_says_how_to_authenticate_and_names_no_authorization_server() -> None:
    challenge = dict(problem_answer(Problem(Code.UNAUTHORIZED, "no")).headers)[b"www-authenticate"]
    assert challenge.startswith(b"Bearer ")
    assert b"resource_metadata" not in challenge


def test_integers_beyond_64_bits_and_lone_surrogates_have_a_form_in_json() -> None:
    assert json.loads(encode({"n": 2**70, "s": "\ud800"})) == {"n": 2**70, "s": "\ud800"}


@pytest.mark.parametrize("value", [object(), {1, 2}, {"n": 2**70, "x": math.nan}])
def test_what_is_not_json_is_refused(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        encode(value)


def test_mcp_data_always_names_code_and_run() -> None:
    assert details(Problem(Code.AGENT_ERROR, "no")) == {"code": "agent_error", "run_id": None}
    limit = LimitUse("cpu_s", 10, 10.1, "s", "tenant")
    problem = Problem(Code.CPU_LIMIT, "no", run_id="r", limit=limit, traceback="t")
    assert details(problem) == {"code": "cpu_limit", "run_id": "r", "limit": limit.as_json(), "traceback": "t"}


@pytest.mark.parametrize(
    ("code", "number"),
    [
        (Code.NOT_FOUND, -32602),
        (Code.BAD_REQUEST, -32602),
        (Code.AGENT_ERROR, -32603),
        (Code.TIMEOUT, -32603),
        (Code.INTERNAL, -32603),
    ],
)
def test_mcp_tells_wrong_requests_from_failures(code: Code, number: int) -> None:
    assert rpc_error(Problem(code, "why"))[:2] == (number, "why")


def test_invalid_params_are_codes_that_ask_for_another_value_or_name() -> None:
    found = {code for code in Code if rpc_error(Problem(code, "why"))[0] == -32602}
    assert found == {Code.BAD_REQUEST, Code.EMBEDDINGS_DISABLED, Code.TOOL_NOT_ALLOWED, Code.NOT_FOUND}


def test_the_text_of_a_failed_tool_holds_the_scripts_own_traceback() -> None:
    assert tool_error_text(Problem(Code.TOOL_ERROR, "no", traceback="tool.lua:1")) == "no\ntool.lua:1"


def test_leaf_looks_into_groups_of_one_only() -> None:
    error = ValueError()
    assert leaf(ExceptionGroup("", [ExceptionGroup("", [error])])) is error
    pair = ExceptionGroup("", [error, KeyError()])
    assert leaf(pair) is pair


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text() | st.sampled_from(["\0\"\\" * 100_000, "é€😀" * 90_000, "\ud800"]),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(), inner, max_size=8),
    max_leaves=12,
)  # fmt: skip


@given(JSON)
def test_an_answer_rendered_in_pieces_is_the_same_bytes(value: Any) -> None:
    assert drained(encoding(value)) == encode(value)


def test_a_large_answer_is_rendered_with_pauses() -> None:
    text, values = list(encoding({"system": "\0" * (8 * TEXT_AT_ONCE)})), list(encoding([1] * (4 * VALUES_AT_ONCE)))
    assert len(text) == 9
    assert len(values) >= 8  # each value and each comma counts

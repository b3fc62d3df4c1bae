"""Some 600 requests that schemathesis makes of the description; `make fuzz` sends 10,000."""

from pathlib import Path

import pytest
from fuzz_http import requests_of, schemathesis, served


@pytest.mark.parametrize(("who", "least"), [("operator", 250), ("all", 100)])
def test_no_request_that_the_description_suggests_gets_an_answer_that_it_does_not_name(
    who: str, least: int, tmp_path: Path
) -> None:
    program = schemathesis()
    if program is None:
        pytest.skip("schemathesis is not installed: make fuzzers")
    with served(tmp_path) as (url, keys):  # each on a server of its own: the operator suspends tenants
        sent, found = requests_of(program, url, keys[who], 7, 1, tmp_path)
    assert found == ""
    assert sent > least

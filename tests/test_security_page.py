"""SECURITY.md says what is true: every test that it names exists, and its tables are the code's lists."""

import re
from pathlib import Path

import pytest

from sandbox.confine import FLEET, OWN
from sandbox.confine.plan import Plan
from sandbox.confine.seccomp import rules
from sandbox.wire.layers import LAYERS, NAMES, REQUIRED

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "SECURITY.md").read_text()
NAMED = sorted(set(re.findall(r"`((?:tests/)?[\w/]*test_\w+\.py)`", PAGE)))


def test_the_page_names_tests_at_all() -> None:
    assert len(NAMED) >= 10


@pytest.mark.parametrize("name", NAMED)
def test_every_test_that_the_page_names_exists(name: str) -> None:
    found = [ROOT / name] if name.startswith("tests/") else list((ROOT / "tests").rglob(name))
    assert found
    assert all(path.is_file() for path in found)


def test_the_table_of_layers_is_the_list_of_layers() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", PAGE, re.MULTILINE))
    assert tuple(rows) == NAMES
    assert {name for name, without in rows.items() if without.strip() == "required"} == set(REQUIRED)


def test_the_steps_of_confinement_are_the_list_of_layers() -> None:
    assert tuple(name for name, _ in (*FLEET, *OWN)) == NAMES == tuple(layer.name for layer in LAYERS)


def test_the_number_of_allowed_calls_is_the_filters() -> None:
    (count,) = re.findall(r"allow-list of (\d+) calls", PAGE)
    assert int(count) == len(rules(Plan(), 1))

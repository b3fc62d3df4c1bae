"""The limits of a run: the smallest of script, tenant and engine wins, and it is known who set it."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import Config
from engine.tenant import DEFAULT_TENANT, LimitSource, Tenant, bind_limits
from sandbox.wire.limits import DEFAULTS, SPECS, Limits, Unit, limits_of

# What the contract promises: default, ceiling, unit.
PROMISED: dict[str, tuple[float, float, Unit]] = {
    "timeout_s": (30, 300, "s"),
    "cpu_s": (10, 60, "s"),
    "memory_bytes": (64 << 20, 512 << 20, "bytes"),
    "output_bytes": (1 << 20, 16 << 20, "bytes"),
    "log_bytes": (64 << 10, 1 << 20, "bytes"),
    "host_calls": (200, 10_000, "count"),
    "http_bytes": (10 << 20, 100 << 20, "bytes"),
    "fs_bytes": (1 << 20, 16 << 20, "bytes"),
    "source_bytes": (1 << 20, 4 << 20, "bytes"),
    "value_depth": (64, 256, "levels"),
    "model_turns": (20, 200, "count"),
    "tool_calls": (50, 1_000, "count"),
    "model_tokens": (200_000, 10_000_000, "count"),
    "cost_usd": (1, 100, "USD"),
}
amounts = st.dictionaries(st.sampled_from(sorted(SPECS)), st.integers(1, 1 << 40) | st.floats(0.001, 1e9), max_size=10)


def test_defaults_ceilings_and_units_are_those_of_the_contract() -> None:
    assert {name: (spec.default, spec.ceiling, spec.unit) for name, spec in SPECS.items()} == PROMISED


def test_every_limit_says_why_by_whom_and_what_a_script_sees() -> None:
    for spec in SPECS.values():
        assert spec.reason
        assert spec.enforced_by
        assert spec.script_sees
        assert spec.unit in get_args(Unit)


def test_limits_have_a_field_for_every_row_of_the_list_and_take_their_defaults_from_it() -> None:
    assert Limits.__struct_fields__ == tuple(SPECS)
    assert not Limits.__struct_defaults__
    assert {name: getattr(DEFAULTS, name) for name in SPECS} == {name: spec.default for name, spec in SPECS.items()}
    assert limits_of({"cpu_s": 1}).cpu_s == 1


def test_a_run_that_asks_for_nothing_gets_the_defaults_from_the_engine() -> None:
    bound = bind_limits({}, DEFAULT_TENANT, {}, {})
    assert bound.values == DEFAULTS
    assert set(bound.sources.values()) == {"engine"}
    assert {name: bound[name] for name in SPECS} == {name: spec.default for name, spec in SPECS.items()}


CASES: list[tuple[dict[str, float], dict[str, float], dict[str, float], dict[str, float], float, LimitSource]] = [
    # asked, tenant, defaults, ceilings -> timeout_s, source
    ({"timeout_s": 5}, {}, {}, {}, 5, "script"),
    ({"timeout_s": 100}, {}, {}, {}, 100, "script"),
    ({"timeout_s": 1000}, {}, {}, {}, 300, "engine"),
    ({"timeout_s": 5}, {"timeout_s": 3}, {}, {}, 3, "tenant"),
    ({"timeout_s": 3}, {"timeout_s": 5}, {}, {}, 3, "script"),
    ({"timeout_s": 5}, {"timeout_s": 5}, {}, {}, 5, "script"),
    ({"timeout_s": 9}, {"timeout_s": 8}, {}, {"timeout_s": 7}, 7, "engine"),
    ({"timeout_s": 9}, {"timeout_s": 7}, {}, {"timeout_s": 7}, 7, "tenant"),
    ({}, {}, {"timeout_s": 4}, {}, 4, "engine"),
    ({}, {"timeout_s": 2}, {"timeout_s": 4}, {}, 2, "tenant"),
    ({}, {"timeout_s": 20}, {}, {}, 20, "tenant"),
    ({}, {}, {"timeout_s": 4}, {"timeout_s": 1}, 1, "engine"),
    ({"timeout_s": 50}, {}, {"timeout_s": 4}, {}, 50, "script"),
]


@pytest.mark.parametrize(("asked", "tenant", "defaults", "ceilings", "value", "source"), CASES)
def test_the_smallest_wins_and_is_named(
    asked: dict[str, float],
    tenant: dict[str, float],
    defaults: dict[str, float],
    ceilings: dict[str, float],
    value: float,
    source: LimitSource,
) -> None:
    bound = bind_limits(asked, Tenant("t", ceilings=tenant), defaults, ceilings)
    assert (bound["timeout_s"], bound.sources["timeout_s"]) == (value, source)


@given(amounts, amounts, amounts, amounts)
def test_no_limit_is_above_any_ceiling_and_none_is_lower_than_it_must_be(
    asked: dict[str, float], tenant: dict[str, float], defaults: dict[str, float], ceilings: dict[str, float]
) -> None:
    bound = bind_limits(asked, Tenant("t", ceilings=tenant), defaults, ceilings)
    for name, spec in SPECS.items():
        wish = asked.get(name, defaults.get(name, spec.default))
        given_by = {"script": wish, "tenant": tenant.get(name), "engine": ceilings.get(name, spec.ceiling)}
        smallest = min(value for value in given_by.values() if value is not None)
        assert bound[name] == (int(smallest) if spec.integral else smallest)
        assert isinstance(bound[name], int if spec.integral else float)
        if bound.sources[name] != "engine":
            assert given_by[bound.sources[name]] == smallest
        if bound.sources[name] == "script":
            assert name in asked


def test_the_configurations_tables_are_complete() -> None:
    config = Config()
    assert set(config.limits.defaults) == set(config.limits.max) == set(SPECS)

"""When requests leave and which: exact, and the same for every split among processes."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import pytest
from bench_support import ASK
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load.schedule import (
    Arrivals,
    Chooser,
    Even,
    Load,
    Share,
    arrivals,
    stepped,
    streams,
    tenant_names,
)
from benchmarks.scenario import Ask, weights


def times(source: Arrivals) -> list[float]:
    found = []
    while (at := source.next()) is not None:
        found.append(at)
    return found


def chooser(load: Load, *asks: Ask, tenants: int = 1, zipf: float = 0.0, share: Share = Share()) -> Chooser:  # noqa: B008
    (stream,) = streams(asks, zipf, load)
    return Chooser(stream, tenant_names(tenants), zipf, load, share, 0)


def test_even_times_are_the_rate_and_end_before_the_end() -> None:
    assert times(Even(4, 0.0, 1.0)) == [0.0, 0.25, 0.5, 0.75]
    assert times(Even(0.1, 0.0, 10.0)) == [0.0]
    assert times(Even(10, 1.0, 1.0)) == []


@given(st.integers(1, 500), st.integers(1, 40).map(lambda tenths: tenths / 10), st.integers(1, 7))
def test_the_parts_of_several_processes_are_together_the_whole(rate: int, seconds: float, count: int) -> None:
    whole = times(Even(rate, 0.0, seconds))
    parts = [at for index in range(count) for at in times(Even(rate, 0.0, seconds, Share(index, count)))]
    assert sorted(parts) == pytest.approx(whole)
    # No fewer and no more than rate times seconds, whatever rounding does.
    assert len(whole) == -(-Fraction(rate) * Fraction(str(seconds)) // 1)


def test_the_rest_is_what_was_not_taken_yet() -> None:
    source = Even(1_000_000, 0.0, 3600.0)
    assert source.next() == 0.0
    assert source.rest(0.0) == 3_599_999_999
    assert source.rest(3599.0) == 1_000_000
    parts = [Even(101, 0.0, 10.0, Share(index, 3)) for index in range(3)]
    assert sum(part.rest(5.0) for part in parts) == 505
    load = Load(rate=100, duration_s=10, warm_up_s=0, spacing="poisson")
    (stream,) = streams((ASK,), 0.0, load)
    assert arrivals(stream, load, Share(), 0).rest(4.0) == 600


def test_random_times_have_the_rate_on_average_and_are_the_same_for_the_same_seed() -> None:
    load = Load(rate=1000, duration_s=10, warm_up_s=0, spacing="poisson", seed=3)
    (stream,) = streams((ASK,), 0.0, load)
    found = times(arrivals(stream, load, Share(), 0))
    assert found == times(arrivals(stream, load, Share(), 0))
    assert found != times(arrivals(stream, stepped(load, 1000, 1), Share(), 0))
    assert found == sorted(found)
    assert 0 < found[0] < found[-1] < 10
    assert len(found) == pytest.approx(10_000, abs=400)  # four standard deviations
    gaps = [b - a for a, b in pairwise(found)]
    # An exponential gap is longer than its mean in 1/e of the cases.
    assert sum(gap > 0.001 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.02)


def test_random_times_of_several_processes_differ_and_have_the_rate_together() -> None:
    load = Load(rate=1000, duration_s=4, warm_up_s=0, spacing="poisson")
    (stream,) = streams((ASK,), 0.0, load)
    one, two = (times(arrivals(stream, load, Share(index, 2), 0)) for index in range(2))
    assert one != two
    assert len(one) + len(two) == pytest.approx(4000, abs=260)


def test_weights_and_the_exponent_decide_what_is_asked() -> None:
    a, b = Ask(name="a", kind="agent", what="a", weight=3), Ask(name="b", kind="agent", what="b")
    assert weights([a, b], 0.0) == [0.75, 0.25]
    assert weights([b, b, b], 1.0) == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    source = chooser(Load(), a, b)
    counted = Counter(source.next().ask.name for _ in range(4000))
    assert counted["a"] / 4000 == pytest.approx(0.75, abs=0.03)


def test_tenants_follow_zipfs_law_and_a_request_may_name_its_own() -> None:
    source = chooser(Load(), ASK, tenants=10, zipf=1.0)
    counted = Counter(source.next().tenant for _ in range(10_000))
    assert counted["tenant-1"] / counted["tenant-2"] == pytest.approx(2, abs=0.25)
    assert set(counted) == set(tenant_names(10))
    fixed = chooser(Load(), Ask(name="x", kind="tool", what="x", tenant="quiet"), tenants=10)
    assert {fixed.next().tenant for _ in range(20)} == {"quiet"}


def test_numbers_are_unique_and_requests_are_the_same_for_the_same_seed() -> None:
    sources = [chooser(Load(), ASK, share=Share(index, 3)) for index in range(3)]
    parts = [[source.next().number for _ in range(5)] for source in sources]
    assert sorted(number for part in parts for number in part) == list(range(15))
    one, two = (chooser(Load(seed=7), ASK, tenants=50) for _ in range(2))
    assert [one.next() for _ in range(50)] == [two.next() for _ in range(50)]


def test_what_comes_beside_has_a_rhythm_of_its_own_and_begins_later() -> None:
    load = Load(rate=10, duration_s=10, warm_up_s=2)
    beside = Ask(name="noisy", kind="agent", what="noisy", beside=4.0, start=0.5)
    main, second = streams((ASK, beside), 0.0, load)
    assert (main.times, main.start, main.main) == (1.0, 0.0, True)
    assert (second.times, second.start, second.main) == (4.0, 7.0, False)
    assert len(times(arrivals(main, load, Share(), 0))) == 120
    found = times(arrivals(second, load, Share(), 1))
    assert (found[0], len(found)) == (7.0, 200)


def test_a_whole_number_is_shared_out_completely() -> None:
    assert [Share(index, 3).part(10) for index in range(3)] == [4, 3, 3]

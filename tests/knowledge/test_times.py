from datetime import UTC, datetime

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from knowledge.times import canonical_time, format_time, from_timestamp, to_timestamp


@given(st.datetimes(timezones=st.just(UTC)))
def test_text_in_the_stores_form_sorts_as_time_does_and_is_kept_as_it_is(moment: datetime) -> None:
    text = format_time(moment)
    assert canonical_time(text) == text
    assert (text < "2000-01-01T00:00:00Z") == (moment < datetime(2000, 1, 1, tzinfo=UTC))


def test_a_date_is_its_first_or_its_last_second() -> None:
    assert canonical_time("2025-02-28") == "2025-02-28T00:00:00Z"
    assert canonical_time("2025-02-28", end_of_day=True) == "2025-02-28T23:59:59Z"


def test_offsets_become_utc_and_fractions_are_dropped() -> None:
    assert canonical_time("2025-01-01T01:30:00.999+02:00") == "2024-12-31T23:30:00Z"
    assert canonical_time("2025-01-01 01:30:00") == "2025-01-01T01:30:00Z"


@given(st.text())
def test_any_other_text_is_a_value_error(text: str) -> None:
    assume(not text[:1].isascii() or not text[:1].isdigit())
    with pytest.raises(ValueError, match="is not a date"):
        canonical_time(text)


@pytest.mark.parametrize(
    "text", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2025-01-01T00:00:00+99:99"]
)
def test_a_time_that_utc_cannot_hold_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="is not a date"):
        canonical_time(text)


def test_timestamps_go_there_and_back_and_impossible_ones_are_none() -> None:
    assert to_timestamp(from_timestamp(1_700_000_000.9)) == 1_700_000_000
    assert from_timestamp(1e30) is None
    assert to_timestamp(None) is None

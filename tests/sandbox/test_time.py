"""`time`: beside Python's calendar and zones."""

import re
import time
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lua_support import error_of, value_of

SECONDS = st.integers(-62135596800, 253402300799)
# Python's calendar ends where it can add no offset.
INNER = st.integers(-62135500000, 253402200000)
UTC = timezone.utc  # noqa: UP017


def at(seconds: int, zone: timezone | ZoneInfo = UTC) -> datetime:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).astimezone(zone)


@given(SECONDS)
def test_every_second_is_written_as_python_writes_it_and_read_back(seconds: int) -> None:
    text = value_of("return time.format((...))", seconds)
    assert text == at(seconds).strftime("%Y-%m-%dT%H:%M:%SZ").rjust(20, "0")
    assert value_of("return time.parse((...))", text) == seconds


@given(INNER, st.sampled_from(["Europe/Berlin", "America/St_Johns", "Asia/Kathmandu", "+05:45", "-03:30", "+00:00"]))
def test_zones_are_those_of_python(seconds: int, zone: str) -> None:
    if "/" in zone:
        expected = at(seconds, ZoneInfo(zone))
    else:
        sign = -1 if zone[0] == "-" else 1
        expected = at(seconds, timezone(sign * timedelta(hours=int(zone[1:3]), minutes=int(zone[4:]))))
    parts = value_of("return time.parts(...)", seconds, zone)
    assert (parts["year"], parts["month"], parts["day"]) == (expected.year, expected.month, expected.day)
    assert (parts["hour"], parts["minute"], parts["second"]) == (expected.hour, expected.minute, expected.second)
    assert (parts["weekday"], parts["yearday"]) == (expected.isoweekday(), expected.timetuple().tm_yday)
    offset = expected.utcoffset()
    assert offset is not None
    assert parts["offset"] == offset.total_seconds()


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("time.format(time.add(time.parse('2024-01-31'), {months = 1}))", "2024-02-29T00:00:00Z"),
        ("time.format(time.add(time.parse('2024-02-29'), {years = 1}))", "2025-02-28T00:00:00Z"),
        ("time.format(time.add(0, {months = -1, days = 1, hours = -1.5}))", "1969-12-01T22:30:00Z"),
        ("time.format(time.add(time.parse('2024-03-30T12:00:00+01:00'), {days = 1}, 'Europe/Berlin'), 'Europe/Berlin')",
         "2024-03-31T12:00:00+02:00"),
        ("time.parse('2024-05-01t10:00:00.25z') - time.parse('2024-05-01 09:59:59Z')", 1.25),
        ("time.parse('2016-12-31T23:59:60Z') - time.parse('2016-12-31T23:59:59Z')", 1),
        ("time.format(0.9996)", "1970-01-01T00:00:01Z"), ("time.format(-0.5)", "1969-12-31T23:59:59.500Z"),
        ("time.duration('1d 2h3m4.5s')", 93784.5), ("time.duration('-2w')", -1209600), ("time.duration('250ms')", 0.25),
        ("time.duration(0)", "0s"), ("time.duration(-90)", "-1m30s"), ("time.duration(0.25)", "0.25s"),
        ("time.duration(86400)", "1d"), ("time.format(0, 'UTC')", "1970-01-01T00:00:00Z"),
    ],
)  # fmt: skip
def test_a_call_returns(call: str, expected: object) -> None:
    assert value_of(f"return {call}") == expected


def test_now_has_a_fraction_and_never_goes_back_even_in_callbacks() -> None:
    before = time.time()
    first, inside = value_of(
        "local first, inside = time.now() table.sort({2, 1}, function() inside = time.now() return false end) "
        "return {first, inside}"
    )
    assert before - 0.001 <= first <= inside <= time.time() + 0.001


@pytest.mark.parametrize(
    "call",
    [
        "time.parse('')", "time.parse('2024-13-01')", "time.parse('2023-02-29')", "time.parse('0000-01-01')",
        "time.parse(5)",
        "time.parse('2024-01-01T00:00:00')", "time.parse('2024-01-01T24:00:00Z')",
        "time.parse('2024-01-01T00:00:00+24:00')",
        "time.parse('0001-01-01T00:00:00+01:00')", "time.format(1e18)", "time.format(0/0)", "time.format('x')",
        "time.format(0, 5)", "time.format(0, 'Nowhere/Land')", "time.format(0, '../../etc/passwd')",
        "time.format(0, ('x'):rep(1000))", "time.add(0)", "time.add(0, {day = 1})", "time.add(0, {days = 1e300})",
        "time.add(0, {days = 0/0})", "time.add(0, {years = 9999})", "time.add(0, {months = 1.5})",
        "time.duration('1 year')",
        "time.duration('')", "time.duration(1/0)", "time.duration({})", "time.parts({})",
        "time.format(253402300799, '+23:59')", "time.format(-62135596800, 'America/New_York')",
        "time.parts(253402300799, 'Pacific/Kiritimati')",
    ],
)  # fmt: skip
def test_a_wrong_argument_is_an_error_at_the_scripts_line(call: str) -> None:
    assert re.match(r"t\.lua:2: time\.\w+: (?!internal)", error_of(f"\n{call}"))


def test_a_name_of_a_zone_in_a_callback_is_refused_and_says_so() -> None:
    call = "time.format(0, 'Europe/Berlin')"
    assert "time.format cannot be called here" in error_of(f"table.sort({{2, 1}}, function() {call} end)")

"""`retry`: tries, waits that grow, and the end of the run."""

from lua_support import error_of, run, value_of


def waits(body: str, **how: float) -> list[float]:
    return [arguments["seconds"] for name, arguments in run(body, **how).calls if name == "sleep"]


def test_what_the_function_returns_is_returned_and_it_gets_the_number_of_the_try() -> None:
    assert value_of("return {retry(function(n) if n < 3 then error('no') end return n, nil, 'x' end)}") == [
        3,
        None,
        "x",
    ]
    assert value_of("return select('#', retry(function() end))") == 0


def test_waits_double_up_to_the_most_and_are_shortened_by_up_to_half() -> None:
    found = waits("pcall(retry, function() error('no') end, {tries = 6, base_s = 1, max_s = 5})", timeout_s=1000)
    assert len(found) == 5
    for wait, full in zip(found, (1, 2, 4, 5, 5), strict=True):
        assert full / 2 <= wait <= full
    assert len({round(wait, 6) for wait in found}) == 5


def test_the_last_error_is_raised_as_it_was_whatever_it_is() -> None:
    assert value_of("local e = {} local ok, caught = pcall(retry, function() error(e) end) return caught == e") is True
    assert error_of("retry(function(n) error('try ' .. n, 0) end, {base_s = 0})") == "try 3"


def test_no_wait_begins_that_the_run_would_not_outlive() -> None:
    body = "retry(function(n) error('try ' .. n, 0) end, {tries = 50, base_s = 4})"
    # The sleeps of this harness take no time. The second wait is 4 to 8 s, by chance; the third is at least 8 s.
    assert error_of(body, timeout_s=5) in ("try 2", "try 3")
    assert error_of(body, timeout_s=1) == "try 1"


def test_host_calls_are_tried_again() -> None:
    answers = iter([(False, "busy"), (True, {"found": 1})])
    ran = run(
        "return retry(function() return context.search('x') end, {base_s = 0})", host=lambda name, given: next(answers)
    )
    assert ran.value == {"found": 1}


def test_wrong_arguments_are_errors_at_the_scripts_line() -> None:
    for call in (
        "retry()",
        "retry(5)",
        "retry(print, 5)",
        "retry(print, {tries = 1.5})",
        "retry(print, {max_s = 0/0})",
    ):
        assert error_of(f"\n{call}").startswith("t.lua:2: retry: "), call
    assert "retry cannot be called here" in error_of("return ('a'):gsub('.', retry)")

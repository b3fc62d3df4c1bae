"""`context.parallel` in the Lua half: order, errors, nesting, and what a script can do to it."""

from pathlib import Path
from typing import Any

import pytest
from lua_support import run, value_of

import sandbox
from engine.workers.protocol import MAX_SIDE_BY_SIDE


def test_results_come_in_the_order_of_the_functions_whatever_is_answered_first() -> None:
    # The test's host answers the last call first.
    ran = run(
        "local r = context.parallel{"
        "  function() return context.search('a').query end,"
        "  function() return context.search('b').query end,"
        "  function() return 'at once' end}"
        " return {r[1], r[2], r[3], r.n}"
    )
    assert ran.value == ["a", "b", "at once", 3]
    assert [arguments["query"] for _, arguments in ran.calls] == ["b", "a"]


def test_a_function_goes_on_as_soon_as_its_own_call_is_answered() -> None:
    ran = run(
        "context.parallel{"
        "  function() context.search('slow') end,"
        "  function() context.search('1') context.search('2') context.search('3') end}"
        " return 1"
    )
    assert [arguments["query"] for _, arguments in ran.calls] == ["1", "2", "3", "slow"]


def test_nothing_to_do_is_no_error_and_nil_leaves_a_hole() -> None:
    assert value_of("return context.parallel{}.n") == 0
    body = "local r = context.parallel{function() end, function() return 2 end} return {r.n, r[2], r[1] == nil}"
    assert value_of(body) == [2, 2, True]


def test_the_first_error_is_raised_after_all_have_ended() -> None:
    body = (
        "local ended = 0"
        " local ok, e = pcall(context.parallel, {"
        "   function() context.search('x') ended = ended + 1 end,"
        "   function() error('second') end,"
        "   function() context.search('y') ended = ended + 1 error({code = 7}) end})"
        " return {ok, e, ended}"
    )
    assert value_of(body) == [False, "t.lua:1: second", 2]


def test_an_error_value_of_any_type_comes_out_as_it_was_raised() -> None:
    assert value_of("local _, e = pcall(context.parallel, {function() error({code = 7}) end}) return e.code") == 7


def test_a_refused_call_is_an_error_of_its_function_alone() -> None:
    def host(name: str, arguments: dict[str, Any]) -> tuple[bool, Any]:
        return (False, "refused") if arguments["query"] == "bad" else (True, arguments)

    body = (
        "local r = context.parallel{"
        "  function() return select(2, pcall(context.search, 'bad')) end,"
        "  function() return context.search('good').query end}"
        " return {r[1], r[2]}"
    )
    assert value_of(body, host=host) == ["refused", "good"]


def test_parallel_inside_of_parallel_and_inside_a_coroutine() -> None:
    body = (
        "local function ask(q) return function() return context.search(q).query end end"
        " local inner = function() local r = context.parallel{ask('a'), ask('b')} return r[1] .. r[2] end"
        " local co = coroutine.wrap(function() return context.parallel{inner, ask('c'), inner} end)"
        " local r = co() return {r[1], r[2], r[3]}"
    )
    assert value_of(body) == ["ab", "c", "ab"]


def test_log_lines_and_progress_of_functions_come_through() -> None:
    ran = run(
        "context.parallel{function() log.info('one') context.search('x') log.info('two') end,"
        " function() context.progress(0.5, 'half') log.warn('three') end} return 1"
    )
    assert ran.lines == [("info", "one"), ("warn", "three"), ("info", "two")]
    assert ran.progress == [(0.5, "half")]


def test_more_functions_than_may_be_under_way_are_all_run() -> None:
    most = 0

    def host(name: str, arguments: dict[str, Any]) -> tuple[bool, Any]:
        nonlocal most
        most = max(most, arguments["limit"])
        return True, arguments

    body = (
        "local fs = {} for i = 1, 300 do fs[i] = function() return context.search('x', {limit = i}).limit end end"
        " local r = context.parallel(fs) local sum = 0 for i = 1, r.n do sum = sum + r[i] end return sum"
    )
    assert value_of(body, host=host) == 300 * 301 // 2
    assert most == 300


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("nil", "a list of functions is expected, got nil"),
        ("print", "a list of functions is expected, got function"),
        ("{f = print}", "a list of functions is expected"),
        ("{print, 1}", "item 2 is not a function but a number value"),
        ("{print, nil, print}", "item 2 is not a function but a nil value"),
    ],
)
def test_what_is_no_list_of_functions_is_refused_at_the_scripts_line(argument: str, said: str) -> None:
    message = value_of(f"return select(2, pcall(context.parallel, {argument}))")
    assert said in message


def test_a_function_cannot_yield_to_the_driver() -> None:
    body = (
        "local r = context.parallel{function() return {pcall(coroutine.yield, 1)} end,"
        " function() local co, main = coroutine.running() return {main, coroutine.isyieldable()} end}"
        " return {r[1][1], r[1][2], r[2][1], r[2][2]}"
    )
    assert value_of(body) == [False, "attempt to yield from outside a coroutine", True, False]


def test_in_a_callback_of_c_it_is_refused_and_the_run_goes_on() -> None:
    body = (
        "local said"
        " table.sort({2, 1}, function(a, b)"
        "   said = select(2, pcall(context.parallel, {function() return context.search('x') end})) return a < b end)"
        " return {said, context.search('next').query}"
    )
    said, following = value_of(body)
    assert "cannot be called here" in said
    assert following == "next"


@pytest.mark.parametrize(
    "deed",
    [
        "coroutine.close(other)",
        "coroutine.resume(other, true)",
        "coroutine.resume(other, false, 99)",
        "for _ = 1, 10 do coroutine.resume(other) end",
    ],
)
def test_a_function_that_meddles_with_another_ends_that_one_at_most(deed: str) -> None:
    body = (
        "local other local r = {pcall(context.parallel, {"
        "  function() other = coroutine.running() context.search('mine') return 'mine' end,"
        f"  function() {deed} return context.search('yours').query end}})}}"
        " return {context.search('next').query}"
    )
    ran = run(body)
    assert ran.value == ["next"], ran.message


@pytest.mark.parametrize("how", ["f()", "coroutine.wrap(f)()", "coroutine.resume(coroutine.create(f))"])
@pytest.mark.parametrize(
    ("deed", "said"),
    [
        ("coroutine.resume", [False, "cannot resume non-suspended coroutine"]),
        ("pcall(coroutine.close", [False, "cannot close a coroutine that waits for the host"]),
    ],
)
def test_what_waits_for_the_host_is_out_of_reach_of_the_others(how: str, deed: str, said: list[Any]) -> None:
    """Else its call would have its answer from a script, and the true answer would find nothing that waits."""
    call = f"{deed}, other)" if deed.startswith("pcall") else f"{deed}(other)"
    body = (
        "local other, answer, said"
        " local f = function() other = coroutine.running() answer = context.search('mine').query"
        "   answer = answer .. context.parallel{function() return context.search('too').query end}[1] end"
        f" context.parallel{{function() {how} end, function() said = {{{call}}} return context.search('x') end}}"
        " return {answer, said, context.search('next').query}"
    )
    assert value_of(body) == ["minetoo", said, "next"]


def test_a_coroutine_that_has_its_answer_can_be_resumed_and_closed_as_any_other() -> None:
    body = (
        "local co = coroutine.create(function() coroutine.yield(context.search('a').query) return 'end' end)"
        " local asked = {coroutine.resume(co)} local went_on = {coroutine.resume(co)}"
        " return {asked, went_on, {coroutine.close(co)}, {pcall(coroutine.close, 1)}}"
    )
    assert value_of(body) == [
        [True, "a"],
        [True, "end"],
        [True],
        [False, "bad argument #1 to 'close' (coroutine expected)"],
    ]


def test_running_out_of_memory_in_a_function_ends_the_run_or_is_caught_and_the_run_goes_on() -> None:
    hungry = "function() local t = {} while true do t[#t + 1] = ('x'):rep(1 << 16) .. #t end end"
    ran = run(f"context.parallel{{{hungry}}} return 1", memory_bytes=4 << 20)
    assert ran.kind == "memory"
    body = (
        f"local ok = pcall(context.parallel, {{function() return context.search('a') end, {hungry}}})"
        " return {ok, context.search('next').query}"
    )
    assert run(body, memory_bytes=4 << 20).value == [False, "next"]


def test_the_prelude_and_the_supervisor_agree_on_how_many_calls_are_under_way() -> None:
    source = (Path(sandbox.__file__).parent / "prelude" / "parallel.lua").read_text()
    assert f"local AT_ONCE = {MAX_SIDE_BY_SIDE} " in source

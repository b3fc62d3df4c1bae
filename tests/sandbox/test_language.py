"""The language as a script has it: what is hidden, what is refused, how errors, coroutines and logging behave."""

import re
from typing import Any
from unittest.mock import ANY

import pytest
from lua_support import MIB, error_of, run, run_source, value_of

ADDRESS = re.compile(r"0x[0-9a-f]{4,}|\b[0-9a-f]{8,16}\b")


# Nothing tells an address ---------------------------------------------------------------------------------------

SHOWN = {
    "tostring({})": "table",
    "tostring(print)": "function",
    "tostring(string.rep)": "function",
    "tostring(coroutine.create(print))": "thread",
    "tostring(setmetatable({}, {}))": "table",
    "tostring(setmetatable({}, {__name = 'Thing'}))": "Thing",
    "tostring(setmetatable({}, {__name = 5}))": "table",
    "tostring(setmetatable({}, {__tostring = function() return 'mine' end}))": "mine",
    "string.format('%s', {})": "table",
    "string.format('%-10s|%5.3s', print, {})": "function  |  tab",
    "('%s %d'):format({}, 3)": "table 3",
    "tostring(nil) .. tostring(true) .. tostring(1.5) .. tostring(7)": "niltrue1.57",
}


@pytest.mark.parametrize("expression", SHOWN)
def test_values_are_shown_without_addresses(expression: str) -> None:
    assert value_of(f"return {expression}") == SHOWN[expression]


def test_no_way_to_text_tells_an_address() -> None:
    ran = run(
        """
        local f, t, c = function() end, {}, coroutine.create(print)
        print(f, t, c, string.rep, json, _G, context, json.null)
        log.error(t, f)
        local texts = {}
        for _, attempt in ipairs{
            function() error(t) end, function() return t + 1 end, function() return t .. "" end,
            function() return t < 1 end, function() return #f end, function() f.x.y = 1 end,
            function() return ("%d"):format(t) end, function() return ("%q"):format(t) end,
            function() return table.concat{t} end, function() string.rep(t) end, function() json.encode(f) end,
            function() context.search{query = f} end, function() setmetatable(f, t) end,
            function() coroutine.resume(t) end, function() return t() end, function() for _ in t do end end,
            function() error(setmetatable({}, {__tostring = function() return t end})) end,
        } do
            local ok, e = pcall(attempt)
            local _, shown = pcall(tostring, e)
            texts[#texts + 1] = tostring(ok) .. shown
        end
        return texts
        """
    )
    assert ran.kind == "done"
    assert len(ran.value) == 17
    for text in [*ran.value, *ran.texts]:
        assert not ADDRESS.search(text), text


@pytest.mark.parametrize("error", ["{}", "print", "coroutine.create(print)", "setmetatable({}, {__name = 'T'})"])
def test_an_error_value_that_is_no_text_ends_a_run_without_an_address(error: str) -> None:
    ran = run(f"error({error})")
    assert ran.kind == "script_error"
    assert not ADDRESS.search(ran.message + ran.traceback)


@pytest.mark.parametrize("fmt", ["%p", "%5p", "%-p", "%%%p", "%s %p", "% p", "%.3p"])
def test_the_pointer_format_is_refused(fmt: str) -> None:
    assert "%p is not available" in error_of("return string.format(..., {}, {})", fmt)


@pytest.mark.parametrize(("fmt", "shown"), [("%%p", "%p"), ("%%%%p", "%%p"), ("100%% p", "100% p"), ("p", "p")])
def test_a_literal_percent_before_a_p_is_not_the_pointer_format(fmt: str, shown: str) -> None:
    assert value_of("return string.format(...)", fmt) == shown


@pytest.mark.parametrize("text", ["string.format('%d', 'x')", "('%d'):format('x')", "string.format('%s')"])
def test_a_bad_argument_of_a_wrapped_function_names_the_line_and_the_function(text: str) -> None:
    message = error_of(f"local text = {text} return text")
    assert message.startswith("t.lua:1: bad argument #")
    assert "'format'" in message


def test_seeding_returns_nothing_that_could_hold_an_address() -> None:
    assert value_of("return select('#', math.randomseed()) + select('#', math.randomseed(7))") == 0


def test_random_numbers_repeat_for_a_seed_and_differ_without() -> None:
    seeded = "math.randomseed(42) local t = {} for i = 1, 5 do t[i] = math.random(1 << 40) end return t"
    fresh = "local t = {} for i = 1, 5 do t[i] = math.random(1 << 40) end return t"
    assert value_of(seeded) == value_of(seeded)
    assert value_of(fresh) != value_of(fresh)
    assert value_of("math.randomseed(1) math.randomseed() return math.random(1 << 50)") != value_of(
        "math.randomseed(1) return math.random(1 << 50)"
    )


# Metatables, the collector, the clock --------------------------------------------------------------------------


@pytest.mark.parametrize("gc", ["true", "false", "function() end", "{}", "0"])
def test_a_finalizer_is_refused_whatever_stands_in_its_place(gc: str) -> None:
    assert "__gc is not available" in error_of(f"setmetatable({{}}, {{__gc = {gc}}})")


def test_a_finalizer_that_is_added_later_never_runs() -> None:
    body = "local m = {} setmetatable({}, m) m.__gc = function() error('ran') end "
    assert value_of(body + "for i = 1, 1e5 do local _ = {} end return 1") == 1


def test_the_metatable_of_strings_is_sealed() -> None:
    assert value_of("return {getmetatable('') == false, pcall(setmetatable, '', {})}")[:2] == [True, False]
    assert value_of("return {pcall(function() local s = '' s.x = 1 end)}")[0] is False


def test_a_script_may_change_its_own_string_table_and_hurts_only_itself() -> None:
    assert value_of("string.shout = function(s) return s:upper() .. '!' end return ('a'):shout()") == "A!"
    ran = run(
        "string.format, string.rep, string.sub, string.gsub, table.concat = nil print('x', {}) return json.encode{1}"
    )
    assert (ran.kind, ran.value, ran.texts) == ("done", "[1]", ["x\ttable"])


def test_a_protected_metatable_stays_protected() -> None:
    body = "local t = setmetatable({}, {__metatable = 'no'}) return {getmetatable(t), pcall(setmetatable, t, {})}"
    assert value_of(body) == ["no", False, "cannot change a protected metatable"]
    assert value_of("return {getmetatable(json.null), pcall(setmetatable, json.null, {})}")[:2] == [False, False]


def test_the_collector_tells_its_count_and_does_nothing_else() -> None:
    assert value_of("return collectgarbage('count') > 0") is True
    options = "{'stop', 'restart', 'collect', 'step', 'incremental', 'generational', 'isrunning', 'nonsense'}"
    assert value_of(f"local s = 0 for _, o in ipairs{options} do s = s + collectgarbage(o) end return s") == 0


def test_dates_are_utc_and_their_format_is_bounded() -> None:
    assert value_of("return os.date('%Y-%m-%d %H:%M', 0)") == "1970-01-01 00:00"
    assert value_of("return {os.date('!%H', 3600), os.date('*t', 0).hour}") == ["01", 0]
    assert value_of("return os.time{year = 2020, month = 1, day = 1, hour = 0}") == 1577836800
    assert value_of("return #os.date(('x'):rep(256))") == 256
    assert "longer than 256 bytes" in error_of("return os.date(('x'):rep(257))")


# Coroutines ------------------------------------------------------------------------------------------------------


def test_a_host_call_passes_up_through_nested_coroutines() -> None:
    ran = run(
        """
        local inner = coroutine.wrap(function()
            coroutine.yield(context.search('deep').query)
            coroutine.yield(2)
        end)
        local outer = coroutine.create(function() coroutine.yield(inner()) coroutine.yield(inner()) end)
        return {select(2, coroutine.resume(outer)), select(2, coroutine.resume(outer)), coroutine.status(outer)}
        """
    )
    assert ran.value == ["deep", 2, "suspended"]
    assert ran.calls == [("context.search", {"query": "deep"})]


def test_a_scripts_own_yields_are_not_host_calls() -> None:
    ran = run(
        """
        local co = coroutine.create(function(a)
            local b = coroutine.yield(a, 'call')
            local found = context.search(b)
            local c = coroutine.yield(found.query)
            return c, nil, 3
        end)
        local r = {}
        for _, value in ipairs{'A', 'B', 'C'} do
            local packed = table.pack(coroutine.resume(co, value))
            r[#r + 1] = {packed.n, packed[1], packed[2]}
        end
        r[#r + 1] = {select('#', coroutine.resume(co)), coroutine.status(co)}
        return r
        """
    )
    assert ran.value == [[3, True, "A"], [2, True, "B"], [4, True, "C"], [2, "dead"]]
    assert ran.calls == [("context.search", {"query": "B"})]


def test_a_generator_may_call_the_host_at_every_step() -> None:
    ran = run(
        """
        local found = {}
        for query in coroutine.wrap(function()
            for i = 1, 3 do coroutine.yield(context.search('q' .. i).query) end
        end) do found[#found + 1] = query end
        return found
        """
    )
    assert ran.value == ["q1", "q2", "q3"]
    assert len(ran.calls) == 3


def test_a_refused_host_call_is_raised_inside_the_coroutine_that_made_it() -> None:
    body = """
        local co = coroutine.create(function() local ok, e = pcall(context.search, 'x') coroutine.yield(ok, e) end)
        return {select(2, coroutine.resume(co))}
    """
    assert value_of(body, host=lambda name, arguments: (False, "refused")) == [False, "refused"]


def test_an_error_of_a_host_call_names_the_line_of_the_call() -> None:
    ran = run("\n\nlocal x = context.search('x')", host=lambda name, arguments: (False, "context.search: no"))
    assert (ran.kind, ran.message) == ("script_error", "t.lua:3: context.search: no")
    assert "t.lua:3:" in ran.traceback


def test_the_coroutine_that_a_run_is_made_of_is_not_seen_to_be_one() -> None:
    assert value_of("return {coroutine.isyieldable(), select(2, coroutine.running())}") == [False, True]
    assert error_of("coroutine.yield(1)") == "t.lua:1: attempt to yield from outside a coroutine"
    inside = "return coroutine.wrap(function() return {coroutine.isyieldable(), select(2, coroutine.running())} end)()"
    assert value_of(inside) == [True, False]


def test_the_main_coroutine_can_be_neither_resumed_nor_closed() -> None:
    body = """
        local main = coroutine.running()
        local inside = coroutine.wrap(function()
            return {coroutine.status(main), (coroutine.resume(main)), (pcall(coroutine.close, main)),
                coroutine.isyieldable(main)}
        end)
        return {coroutine.status(main), (coroutine.resume(main)), (pcall(coroutine.close, main)), inside()}
    """
    assert value_of(body) == ["running", False, False, ["normal", False, False, False]]


def test_errors_come_out_of_resume_as_values_and_out_of_wrap_as_errors() -> None:
    body = """
        local failing = function() error({code = 7}) end
        local ok, e = coroutine.resume(coroutine.create(failing))
        local ok2, e2 = pcall(coroutine.wrap(failing))
        return {ok, e.code, ok2, e2.code}
    """
    assert value_of(body) == [False, 7, False, 7]


def test_closing_a_coroutine_runs_its_pending_close() -> None:
    ran = run(
        """
        local co = coroutine.create(function()
            local x <close> = setmetatable({}, {__close = function() log.info('closed') end})
            coroutine.yield()
        end)
        coroutine.resume(co)
        return {coroutine.close(co), coroutine.status(co)}
        """
    )
    assert (ran.value, ran.texts) == ([True, "dead"], ["closed"])


@pytest.mark.parametrize(
    "call",
    [
        "table.sort({3, 2, 1}, function(a, b) context.search('x') return a < b end)",
        "string.gsub('a', 'a', function() return context.search('x').query end)",
        "return tostring(setmetatable({}, {__tostring = function() return context.search('x').query end}))",
        "table.sort({3, 2, 1}, function(a, b) coroutine.wrap(context.search)('x') return a < b end)",
    ],
)
def test_a_host_call_inside_a_callback_of_c_is_a_catchable_error(call: str) -> None:
    ran = run(f"local ok, e = pcall(function() {call} end) return {{ok, e, context.search('after').query}}")
    assert ran.kind == "done"
    assert ran.value[0] is False
    assert ran.value[2] == "after"
    assert ran.calls == [("context.search", {"query": "after"})]


def test_a_host_call_inside_a_metamethod_that_lua_calls_works() -> None:
    body = "return setmetatable({}, {__index = function(_, key) return context.search(key).query end}).found"
    assert value_of(body) == "found"


# Logging and progress ----------------------------------------------------------------------------------------------


def test_lines_have_their_level_and_keep_their_order() -> None:
    ran = run("print('a', 1, nil, {}) log.debug('b') log.info('c') log.warn('d', true) log.error('e') log.info()")
    assert ran.lines == [
        ("info", "a\t1\tnil\ttable"),
        ("debug", "b"),
        ("info", "c"),
        ("warn", "d\ttrue"),
        ("error", "e"),
        ("info", ""),
    ]


def test_lines_from_inside_callbacks_are_kept_and_come_in_order() -> None:
    ran = run(
        """
        log.info('before')
        table.sort({2, 1}, function(a, b) log.info('sorting') return a < b end);
        ('xy'):gsub('.', function(c) print(c) end)
        tostring(setmetatable({}, {__tostring = function() log.warn('shown') return '' end}))
        coroutine.wrap(function() table.sort({2, 1}, function(a, b) print('nested') return a < b end) end)()
        table.sort({2, 1}, function(a, b) coroutine.wrap(print)('wrapped') return a < b end)
        log.info('after')
        """
    )
    assert ran.kind == "done"
    assert list(dict.fromkeys(ran.texts)) == ["before", "sorting", "x", "y", "shown", "nested", "wrapped", "after"]


def test_lines_that_were_kept_are_sent_even_when_the_script_then_fails() -> None:
    ran = run("('x'):gsub('.', print) error('end')")
    assert (ran.kind, ran.texts) == ("script_error", ["x"])


def test_a_log_at_its_limit_is_cut_and_says_so_once() -> None:
    ran = run("for i = 1, 100 do print(('x'):rep(10)) end return 1", log_bytes=60)
    assert ran.value == 1
    assert ran.texts[:2] == ["x" * 10] * 2
    assert ran.texts[2].endswith("[log truncated: limit reached]")
    assert len(ran.texts) == 3


def test_a_line_that_is_not_utf8_is_logged_all_the_same() -> None:
    assert run("print('a\\xffb')").texts == ["a\N{REPLACEMENT CHARACTER}b", ANY]


def test_progress_is_reported_and_bounded() -> None:
    ran = run("for i = 1, 10 do context.progress(i / 10, 'step ' .. i) end context.progress(1)", progress=3)
    assert (ran.kind, ran.progress) == ("done", [(0.1, "step 1"), (0.2, "step 2"), (0.3, "step 3")])


def test_progress_needs_a_number() -> None:
    for fraction in ("'half'", "'0.5'", "0/0", "1/0", "nil", "{}"):
        assert "the fraction must be a finite number" in error_of(f"context.progress({fraction})")


def test_progress_inside_a_callback_is_dropped() -> None:
    ran = run("table.sort({2, 1}, function(a, b) context.progress(0.5) return a < b end) return 1")
    assert (ran.kind, ran.progress) == ("done", [])


def test_progress_in_a_coroutine_inside_a_callback_is_dropped() -> None:
    ran = run("table.sort({2, 1}, function(a, b) coroutine.wrap(context.progress)(0.5) return a < b end) return 1")
    assert (ran.kind, ran.value) == ("done", 1)


# Errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("error('x')", "t.lua:1: x"),
        ("error('x', 0)", "x"),
        ("local function g() error('x', 2) end\ng()", "t.lua:2: x"),
        ("error(7, 0)", "7"),
        ("error(nil)", "t.lua:1: (the error is a nil value)"),
        ("error()", "t.lua:1: (the error is a nil value)"),
        ("error(true)", "true"),
        ("error({})", "(the error is a table value)"),
        ("error(print)", "(the error is a function value)"),
        ("error(setmetatable({}, {__tostring = function() return 'mine' end}))", "mine"),
        ("error(setmetatable({}, {__tostring = function() error('again') end}))", "(the error is a table value)"),
        ("error(setmetatable({}, {__tostring = function() return {} end}))", "(the error is a table value)"),
        ("assert(false)", "assertion failed!"),
        ("assert(nil, 'because')", "because"),
        ("assert()", "t.lua:1: bad argument #1 to 'assert' (value expected)"),
        ("local x = nil\nx.y = 1", "t.lua:2: attempt to index a nil value (local 'x')"),
        ("undefined()", "t.lua:1: attempt to call a nil value (global 'undefined')"),
        (
            "load('return 1')",
            "t.lua:1: attempt to call a nil value (global 'load') (load is removed in the sandbox; "
            "docs/scripting/standard-library.md)",
        ),
        ("error({code = 5, message = 'no', f = print})", 't.lua:1: (the error is a table: code = 5, message = "no")'),
        ("error('a\\nb\\0c')", "t.lua:1: a\nb\N{REPLACEMENT CHARACTER}c"),
        ("error('\\xff', 0)", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_an_uncaught_error_ends_the_run_with_its_text(body: str, message: str) -> None:
    ran = run(body)
    assert (ran.kind, ran.message) == ("script_error", message)


def test_an_error_text_is_bounded() -> None:
    assert len(error_of("error(('x'):rep(1000000), 0)")) == 8192  # the supervisor shows half of it


def test_a_syntax_error_names_its_line_and_runs_nothing() -> None:
    ran = run_source("print('no')\nagent = {\n\nreturn")
    assert (ran.kind, ran.lines) == ("script_error", [])
    assert ran.message.startswith("t.lua:4: ")


@pytest.mark.parametrize("source", [b"\x1bLua", b"\x1bLuaT\x00\x19\x93\r\n\x1a\n"])
def test_bytecode_is_refused(source: bytes) -> None:
    ran = run_source(source)
    assert ran.kind == "script_error"
    assert "binary" in ran.message


def test_a_traceback_shows_the_scripts_frames_and_none_of_the_prelude() -> None:
    ran = run_source(
        "agent = {}\nlocal function inner() error('deep') end\nlocal function outer() inner() end\n"
        "function agent.resolve()\n  pcall(function() end)\n  outer()\nend"
    )
    assert [line.partition(": ")[0] for line in ran.traceback.splitlines()] == ["t.lua:2", "t.lua:3", "t.lua:6"]
    assert "[engine]" not in ran.traceback


def test_a_handler_of_xpcall_sees_the_error_and_may_fail_itself() -> None:
    assert value_of("return {xpcall(error, function(e) return 'saw ' .. e end, 'x', 0)}") == [False, "saw x"]
    assert value_of("return {xpcall(error, function(e) error('again') end, 'x', 0)}")[0] is False
    assert value_of("return {xpcall(function(...) return ... end, print, 1, nil, 3)}") == [True, 1, None, 3]


@pytest.mark.parametrize(
    "recursion",
    [
        "local function f() return 1 + f() end return {(pcall(f))}",
        "local function f() local ok, e = pcall(f) if not ok then error(e, 0) end end return {(pcall(f))}",
        "local function f() return ('x'):gsub('x', f) end return {(pcall(f))}",
        "local t = setmetatable({}, {}) getmetatable(t).__index = function(t, k) return t[k .. 'x'] end "
        "return {(pcall(function() return t.x end))}",
        "local t = setmetatable({}, {__tostring = tostring}) return {(pcall(tostring, t))}",
        "local function f() return coroutine.wrap(f)() end return {(pcall(f))}",
        "local function f() table.sort({2, 1}, f) end return {(pcall(f))}",
        "local s = ('('):rep(300) return {false}",
    ],
)
def test_recursion_without_end_is_a_catchable_error(recursion: str) -> None:
    assert value_of(recursion) == [False]


def test_a_stack_overflow_is_a_script_error_where_memory_allows_it() -> None:
    assert "stack overflow" in error_of("local function f() return 1 + f() end return f()", memory_bytes=256 * MIB)


# Memory: only the allocator's refusal is one ------------------------------------------------------------------------

EXHAUST = "local t = {} while true do t[#t + 1] = ('x'):rep(100000) end"


@pytest.mark.parametrize(
    "body",
    [
        EXHAUST,
        "return ('x'):rep(100 * 1024 * 1024)",
        f"coroutine.wrap(function() {EXHAUST} end)()",
        "local s = 'x' while true do s = s .. s end",
        "local t = {} while true do t[#t + 1] = {} end",
        "table.sort({2, 1}, function() local t = {} while true do t[#t + 1] = {{}} end end)",
    ],
)
def test_memory_that_runs_out_is_memory(body: str) -> None:
    assert run(body, memory_bytes=8 * MIB).kind == "memory"


@pytest.mark.parametrize("use", ["print('x')", "json.encode({1})", "http.get('u')", "context.parallel({print})"])
def test_memory_that_runs_out_while_a_library_is_loaded_is_memory(use: str) -> None:
    """Libraries are loaded when they are first used, which may be when there is no memory left, and again later."""
    setup = f"local function use() {use} end local list, ok, e = {{tostring(1)}} "  # one is there, others are needed
    fill = "pcall(function() while true do list = {list} end end) "
    for room in range(0, 60, 5):  # how much is left, in tables
        full = f"{setup} {fill} for _ = 1, {room} do list = list[1] end "
        assert run(f"{full} use()", memory_bytes=1 * MIB).kind == "memory"
        again = "ok, e = pcall(use) list = nil use() return {ok, e}"
        assert value_of(f"{full} {again}", memory_bytes=1 * MIB) == [False, "not enough memory"]


@pytest.mark.parametrize(
    "body",
    [
        "error('not enough memory', 0)",
        "error('not enough memory')",
        "assert(false, 'not enough memory')",
        "coroutine.wrap(function() error('not enough memory', 0) end)()",
        "pcall(error, 'not enough memory') error('not enough memory', 0)",
        "xpcall(error, function(e) return e end, 'x') error('not enough memory', 0)",
        "error(setmetatable({}, {__tostring = function() return 'not enough memory' end}))",
    ],
)
def test_a_script_that_says_it_ran_out_of_memory_is_an_error_of_the_script(body: str) -> None:
    ran = run(body)
    assert ran.kind == "script_error"
    assert "not enough memory" in ran.message


def test_a_host_that_answers_with_that_text_does_not_make_it_memory() -> None:
    assert run("context.search('x')", host=lambda name, arguments: (False, "not enough memory")).kind == "script_error"


def test_a_script_may_catch_the_allocators_refusal_and_go_on_below_the_bound() -> None:
    body = f"local ok, e = pcall(function() {EXHAUST} end) return {{ok, e, context.search('on').query}}"
    assert value_of(body, memory_bytes=8 * MIB) == [False, "not enough memory", "on"]


def test_a_large_reply_of_the_host_counts_as_the_scripts_memory_and_kills_nothing() -> None:
    ran = run(
        "local r = context.search('x') return #r.value", host=lambda name, args: (True, {"value": "x" * (8 * MIB)})
    )
    assert ran.value == 8 * MIB
    ran = run(
        "local r = context.search('x') return #r.value",
        host=lambda name, args: (True, {"value": "x" * (8 * MIB)}),
        memory_bytes=4 * MIB,
    )
    assert ran.kind == "memory"


# What a script declares --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "agent = {name = 'x', resolve = function() return 1 end}",
        "return {name = 'x', resolve = function() return 1 end}",
        "local agent = {name = 'x'} function agent.resolve() return 1 end return agent",
        "agent = {name = 'x', resolve = function() return 1 end} return 5",
    ],
)
def test_a_script_declares_by_a_global_or_by_what_it_returns(source: str) -> None:
    assert run_source(source).value == 1
    assert run_source(source, method="").value == {"name": "x", "functions": ["resolve"]}


def test_a_script_that_declares_nothing_is_told_so() -> None:
    ran = run_source("local agent = {}")
    assert ran.kind == "wrong_shape"
    assert "neither sets the global 'agent' to a table nor returns one" in ran.message


def test_a_missing_method_is_told_by_its_name() -> None:
    ran = run_source("agent = {resolve = 5}")
    assert (ran.kind, ran.message) == ("wrong_shape", "agent.resolve is not a function but a number value")


def test_describing_reads_only_plain_fields_and_runs_no_metamethod() -> None:
    ran = run_source(
        "agent = setmetatable({name = 'x', tools = {}, other = print}, "
        "{__index = function() error('ran') end, __pairs = error})",
        method="",
    )
    assert ran.value == {"name": "x", "tools": {}, "functions": ["other"]}


def test_a_description_that_cannot_cross_names_its_path() -> None:
    ran = run_source("agent = {name = 'x', arguments = {{name = print}}}", method="")
    assert (ran.kind, ran.message) == ("wrong_shape", "agent.arguments[1].name is a function")


def test_arguments_and_config_arrive_and_the_context_comes_last() -> None:
    body = "local a, b = ... return {select('#', ...), a.x, b, context.config.k}"
    assert value_of(body, {"x": [1]}, "two", config={"k": "v"}) == [3, [1], "two", "v"]


def test_values_handed_to_the_host_run_no_metamethod() -> None:
    ran = run(
        """
        local ran = false
        local trap = function() ran = true error('ran') end
        local mine = setmetatable({1, 2}, {__index = trap, __len = trap, __pairs = trap, __call = trap, __lt = trap})
        context.search{query = 'x', mine = mine}
        json.encode(mine)
        return {ran, mine}
        """
    )
    assert ran.value == [False, [1, 2]]


@pytest.mark.parametrize("encode", ["return t", "return json.decode(json.encode(t))", "return context.search{v = t}.v"])
def test_a_table_with_an_equality_of_its_own_is_not_taken_for_null(encode: str) -> None:
    ran = run(f"local t = setmetatable({{1}}, {{__eq = function() print('ran') return true end}}) {encode}")
    assert (ran.value, ran.lines) == ([1], [])


@pytest.mark.parametrize("arguments", [(None, "second"), ("first", None), (None, None)])
def test_an_argument_that_is_null_moves_neither_the_others_nor_the_context(arguments: tuple[object, ...]) -> None:
    ran = run_source("agent = {resolve = function(a, b, context) return {a, b, type(context)} end}", *arguments)
    assert ran.value == [*arguments, "table"]


def test_garbage_up_to_the_bound_leaves_room_for_the_answer_of_a_host_call() -> None:
    """Lua collects where the allocator refuses, but not where a stack is to grow."""
    bomb = "local t = {} while true do t[#t + 1] = ('x'):rep(100000) .. #t end"
    answer: list[Any] = []
    for _ in range(30):
        answer = [answer]
    for pad in range(0, 100_000, 1000):  # how much is left of the bound by then
        body = f"local pad, ok = ('p'):rep({pad}), pcall(function() {bomb} end) return {{ok, #context.search('x')}}"
        assert value_of(body, host=lambda name, arguments: (True, answer), memory_bytes=4 * MIB) == [False, 1]

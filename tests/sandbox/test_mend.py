"""Text that a script cuts inside a character: what the host receives of it, and what the log says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lua_support import MIB, run

FFFD = "\N{REPLACEMENT CHARACTER}"


def literal(raw: bytes) -> str:
    return "'" + "".join(f"\\x{byte:02x}" for byte in raw) + "'"


@given(st.binary(max_size=40))
def test_the_broken_parts_of_a_text_are_those_that_python_replaces(raw: bytes) -> None:
    ran = run(f"return {literal(raw)}")
    expected = raw.decode("utf-8", "replace")
    assert (ran.kind, ran.value) == ("done", expected)
    assert ran.replaced == expected.count(FFFD) - raw.count(FFFD.encode())


@pytest.mark.parametrize(
    "raw", [b"\xe2\x82", b"\xf0\x9f\x98", b"\xf0\x9f", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc3a"]
)
def test_a_cut_character_is_one_broken_part_as_in_python(raw: bytes) -> None:
    assert run(f"return {literal(raw)}").value == raw.decode("utf-8", "replace")


def test_an_answer_with_a_cut_text_is_an_answer_and_a_warning_names_its_place() -> None:
    ran = run("return { system = 'a', messages = { { role = 'user', content = ('né'):sub(1, 2) } } }")
    assert ran.value == {"system": "a", "messages": [{"role": "user", "content": "n" + FFFD}]}
    [(level, text)] = ran.lines
    assert level == "warn"
    assert text.startswith(
        "the answer of agent.resolve: value.messages[1].content is not UTF-8: one broken part became U+FFFD"
    )


def test_several_broken_texts_of_an_answer_are_one_warning_with_their_number() -> None:
    ran = run("return { 'ok', '\\xff', { a = '\\xc3', b = '\\xe2\\x82' } }")
    assert ran.value == ["ok", FFFD, {"a": FFFD, "b": FFFD}]
    [(_, text)] = ran.lines
    assert "value[2] is not UTF-8: 3 broken parts became U+FFFD" in text
    assert ran.replaced == 3


def test_a_key_is_mended_too() -> None:
    ran = run("return { a = { ['\\xff'] = 1 } }")
    assert ran.value == {"a": {FFFD: 1}}
    assert "value.a has a key that is not UTF-8" in ran.texts[0]


def test_what_is_no_data_is_refused_beside_a_broken_text() -> None:
    ran = run("return { '\\xff', print }")
    assert (ran.kind, ran.message) == ("wrong_shape", "the answer of agent.resolve: value[2] is a function")


def test_an_argument_of_a_host_call_is_mended_and_the_warning_has_the_line() -> None:
    ran = run("\ncontext.search(('né'):sub(1, 2), { source = 'a' })")
    assert ran.calls == [("context.search", {"query": "n" + FFFD, "source": "a"})]
    assert ran.texts[0].startswith("t.lua:2: context.search: the argument .query is not UTF-8: one broken part")
    assert ran.replaced == 1


def test_the_parameters_of_a_tool_are_text() -> None:
    ran = run("context.call_tool('t', { a = { '\\xff' } })", tools=("t",))
    assert ran.calls == [("context.call_tool", {"name": "t", "params": {"a": [FFFD]}})]
    assert "the argument .params.a[1] is not UTF-8" in ran.texts[0]


@pytest.mark.parametrize("method", ["post", "put", "patch"])
def test_a_body_keeps_its_bytes_and_what_is_beside_it_is_mended(method: str) -> None:
    ran = run(f"http.{method}('http://a/', '\\xff\\0', {{ params = {{ q = '\\xfe' }}, timeout = 5 }})")
    arguments = {"url": "http://a/", "body": b"\xff\0", "params": {"q": FFFD}, "timeout": 5}
    assert ran.calls == [(f"http.{method}", arguments)]
    assert f"http.{method}: the argument .params.q is not UTF-8" in ran.texts[0]
    assert ran.replaced == 1


def test_a_body_of_bytes_alone_is_nothing_to_warn_of() -> None:
    ran = run("http.post('http://a/', '\\xff\\0') fs.read('\\xff') fs.list('\\xff')")
    assert [arguments for _, arguments in ran.calls] == [
        {"url": "http://a/", "body": b"\xff\0"}, {"path": b"\xff"}, {"path": b"\xff"},
    ]  # fmt: skip
    assert (ran.lines, ran.replaced) == ([], 0)


def test_a_table_as_a_body_is_text() -> None:
    ran = run("http.post('http://a/', { a = '\\xff' })")
    assert ran.calls[0][1]["body"] == {"a": FFFD}


def test_arguments_of_calls_side_by_side_are_mended() -> None:
    ran = run("context.parallel{ function() context.get('\\xff') end, function() context.get('b') end }")
    assert sorted(arguments["id"] for _, arguments in ran.calls) == ["b", FFFD]
    assert "context.get: the argument .id is not UTF-8" in ran.texts[0]


def test_a_log_line_is_mended_and_the_warning_has_the_line() -> None:
    ran = run("\n\nlog.info('a\\xffé')")
    assert ran.lines[0] == ("info", f"a{FFFD}é")
    assert ran.lines[1][0] == "warn"
    assert ran.lines[1][1].startswith("t.lua:3: a log line is not UTF-8: one broken part became U+FFFD")


def test_a_line_that_is_cut_at_the_limit_keeps_its_other_characters() -> None:
    ran = run("log.info(('é'):rep(100))", log_bytes=100)
    text = ran.texts[0]
    assert text == "é" * 42 + " [log truncated: limit reached]"
    assert ran.replaced == 0


@pytest.mark.parametrize("length", [100, 65_000, 200_000])
def test_a_log_of_broken_bytes_alone_stays_within_its_limit(length: int) -> None:
    ran = run(f"for _ = 1, 3 do log.info(('\\xff'):rep({length})) end")
    assert sum(len(text.encode()) + 16 for text in ran.texts) <= 64 * 1024 + 64


def test_a_progress_message_stays_within_its_bound() -> None:
    ran = run("context.progress(0.5, ('\\xff'):rep(600)) context.progress(1, ('é'):rep(600))")
    assert all(len(text.encode()) <= 512 for _, text in ran.progress)
    assert ran.progress[0][1] == FFFD * 170
    assert ran.progress[1][1] == "é" * 256


def test_an_error_is_mended_and_counted() -> None:
    ran = run("error('a\\xff', 0)")
    assert (ran.kind, ran.message, ran.replaced) == ("script_error", f"a{FFFD}", 1)


def test_a_run_logs_eight_such_warnings_and_counts_the_rest() -> None:
    ran = run("for i = 1, 20 do log['info']('\\xff')\nend " + "\n".join("log.info('\\xff')" for _ in range(20)))
    warnings = [text for level, text in ran.lines if level == "warn"]
    assert len(warnings) == len(set(warnings)) == 8
    assert ran.replaced == 40


def test_an_answer_that_is_too_large_once_it_is_mended_is_refused() -> None:
    ran = run("return ('\\xff'):rep(500)", output_bytes=1000)
    assert ran.kind == "output_limit"


def test_an_answer_of_broken_bytes_alone_needs_no_more_memory_than_it_may_have() -> None:
    ran = run(f"return ('\\xff'):rep({MIB})", output_bytes=4 * MIB)
    assert (ran.kind, ran.replaced) == ("done", MIB)


def test_a_callback_that_cannot_wait_leaves_its_warning_for_later() -> None:
    ran = run("table.sort({1, 2}, function(a, b) log.info('\\xff') return a < b end) return 1")
    assert ran.value == 1
    assert ran.texts[0] == FFFD
    assert "a log line is not UTF-8" in ran.texts[1]


def test_text_that_is_whole_loads_no_module_for_it() -> None:
    ran = run("log.info('é') context.search('é') return 'é'")
    assert (ran.value, ran.replaced, ran.texts) == ("é", 0, ["é"])

"""`engine test`: test files in real workers, and what they may not break: the report, the other tests, the parent."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from cli_support import Ended, Engine
from test_reports import parsed_tap

SMALL = """
[sandbox]
workers = 2
reserve = 0
[limits]
timeout_s = 5
cpu_s = 0.4
memory_bytes = 16777216
"""


@pytest.fixture
def project(engine: Engine, tmp_path: Path) -> Engine:
    (tmp_path / "engine.toml").write_text(SMALL)
    return engine


def outcomes(ended: Ended) -> dict[str, str]:
    """Each test of a plain report with how it ended."""
    found = re.findall(r"^  (ok  |FAIL|skip)  (.*?)(?:  [\d.]+ ms)?(?:  \(.*\))?$", ended.out, re.MULTILINE)
    return {name: how.strip() for how, name in found}


def run(project: Engine, tmp_path: Path, source: str, *options: str, **files: str) -> Ended:
    for name, text in {"a_test": source, **files}.items():
        (tmp_path / f"{name}.lua").write_text(text)
    return project("test", "a_test.lua", *options)


# ---- what tests can say ---------------------------------------------------------------------------------------------


def test_groups_hooks_and_skips_run_in_their_order(project: Engine, tmp_path: Path) -> None:
    ended = run(
        project,
        tmp_path,
        """
        local trace = {}
        before_each(function() trace[#trace + 1] = "outer before" end)
        after_each(function() trace[#trace + 1] = "outer after"; print(table.concat(trace, ", ")) end)
        describe("outer", function()
            before_each(function() trace[#trace + 1] = "inner before" end)
            after_each(function() trace[#trace + 1] = "inner after" end)
            it("fails", function() trace[#trace + 1] = "test"; error("boom") end)
            it.skip("later", function() error("not run") end)
            it("gives up", function() skip("no network") end)
        end)
        describe.skip("all of these", function() it("one", function() error("not run") end) end)
        pcall(describe, "broken", error)
        it("outside", function() end)
        """,
    )
    assert ended.code == 1
    assert outcomes(ended) == {
        "outer > fails": "FAIL", "outer > later": "skip", "outer > gives up": "skip", "all of these > one": "skip",
        "outside": "ok",
    }  # fmt: skip
    assert "skip  outer > gives up  (no network)" in ended.out
    assert "[info] outer before, inner before, test, inner after, outer after" in ended.out
    assert "a_test.lua:8: boom" in ended.out
    assert ended.out.rstrip().splitlines()[-1].startswith("1 passed, 1 failed, 3 skipped in ")


MATCHERS = [
    ("{ a = { 1, 2 } }", "to_equal({ a = { 1, 2 } })", "to_equal({ a = { 1, 3 } })"),
    ("json.null", "to_equal(json.null)", "to_equal({})"),
    ("1", "to_equal(1.0)", "to_equal('1')"),
    ("0/0", "to_equal(0/0)", "to_equal(1)"),
    ("_G", "to_be(_G)", "to_be({})"),
    ("nil", "to_be_nil()", "to_be_truthy()"),
    ("0", "to_be_truthy()", "to_be_nil()"),
    ("'incident-42'", "to_match('^%a+%-%d+$')", "to_match('^%d')"),
    ("'a.b'", "to_contain('.')", "to_contain('c')"),
    ("{ 'a', { b = 1 } }", "to_contain({ b = 1 })", "to_contain({ b = 2 })"),
    ("{ a = { b = 1, c = 2 } }", "to_contain({ a = { b = 1 } })", "to_contain({ a = { d = 1 } })"),
    ("'abc'", "to_have_length(3)", "to_have_length(2)"),
    ("{ a = 1, b = 2 }", "to_have_length(2)", "to_have_length(0)"),
    ("0.1 + 0.2", "to_be_close_to(0.3)", "to_be_close_to(0.4, 0.01)"),
    ("function() error('no (x)') end", "to_raise('no (x)')", "to_raise('yes')"),
    ("function() error({ code = 5 }) end", "to_raise()", "to_raise('x')"),
]


def test_each_expectation_holds_and_fails_and_can_be_turned(project: Engine, tmp_path: Path) -> None:
    lines, expected = [], {}
    for number, (value, holds, fails) in enumerate(MATCHERS):
        for name, body, ends in (
            ("holds", f"expect({value}).{holds}", "ok"),
            ("fails", f"expect({value}).{fails}", "FAIL"),
            ("never", f"expect({value}).never.{fails}", "ok"),
            ("not", f"expect({value}).not_{fails}", "ok"),
            ("twice", f"expect({value}).never.not_{holds}", "ok"),
            ("turned", f"expect({value}).not_{holds}", "FAIL"),
            ("colon", f"expect({value}):{holds}", "ok"),
        ):
            lines.append(f'it("{number} {name}", function() {body} end)')
            expected[f"{number} {name}"] = ends
    ended = run(project, tmp_path, "\n".join(lines))
    assert outcomes(ended) == expected
    for number, line in enumerate(lines, 1):  # each failure names its line
        if expected[re.findall(r'"(.*?)"', line)[0]] == "FAIL":
            assert f"  a_test.lua:{number}: " in ended.out, line


def test_a_misspelt_expectation_or_a_wrong_argument_is_an_error_at_its_line(project: Engine, tmp_path: Path) -> None:
    ended = run(
        project,
        tmp_path,
        """it("a", function() expect(1).to_equals(1) end)
        it("b", function() expect("x").to_match(5) end)
        it("c", function() expect("x").to_match("[") end)
        it("d", function() mock("http.gett", {}) end)
        it("e", function() mock("http.get", function() end) it("inner", function() end) end)
        it("f", function() mock("context.get", function() return print end) pcall(test_context().get, "x") end)
        it("g", function() mock("http.get", { stats = 503 }) end)
        it("h", function() mock("http.get") end)
        it("i", function() mock("http.get", function() end) pcall(http.get, "https://x.example/") end)
        """,
    )
    for text in (
        "a_test.lua:1: there is no expect(...).to_equals; there are to_be, to_be_close_to,",
        "a_test.lua:2: to_match: a string is expected, got number",
        'a_test.lua:3: to_match: "[" is not a pattern (',
        "a_test.lua:4: mock: there is no host call 'http.gett'; there are context.search context.get",
        "a_test.lua:5: it cannot be called inside a test",
        'a_test.lua:6: mock("context.get"): its reply is a function',
        'a_test.lua:7: mock("http.get"): its reply has the field stats; there are status, headers, body, json, url',
        'a_test.lua:8: mock("http.get"): its reply must be a table or a string, got nil',
        'a_test.lua:9: mock("http.get"): its reply must be a table or a string, got nil',
    ):
        assert text in ended.out, ended.out
    assert set(outcomes(ended).values()) == {"FAIL"}


def test_an_error_that_was_raised_again_has_one_place_and_the_test_a_name(project: Engine, tmp_path: Path) -> None:
    ended = run(
        project,
        tmp_path,
        """
        it("a", function()
            local found = retry(function()
                error("busy")
            end, { tries = 1 })
            expect(found).to_be_nil()
        end)
        """,
    )
    assert "  a_test.lua:4: busy\n    a_test.lua:3: in the test\n" in ended.out, ended.out


def test_a_failed_expectation_shows_what_differs_with_the_line(project: Engine, tmp_path: Path) -> None:
    ended = run(
        project,
        tmp_path,
        """it("tables", function()
            expect({ a = 1, b = { "x", "y" } }).to_equal({ a = 1, b = { "x", "z" } })
        end)
        it("texts", function() expect("one\\ntwo\\nthree").to_be("one\\n2\\nthree") end)
        it("short", function() expect("got\\27[0m").to_be("wanted") end)
        """,
    )
    assert "  a_test.lua:2: - expected  + got\n" in ended.out
    assert '  -     "z",\n  +     "y",\n' in ended.out
    assert "    one\n  - 2\n  + two\n    three\n" in ended.out
    assert '  a_test.lua:5: expected: "wanted"\n       got: "got\\027[0m"\n' in ended.out


# ---- mocks ----------------------------------------------------------------------------------------------------------


def test_mocks_answer_calls_are_recorded_and_end_with_their_test(project: Engine, tmp_path: Path) -> None:
    ended = run(
        project,
        tmp_path,
        """
        local greet = require("./greet")
        it("answers from a table", function()
            mock("http.get", { json = { name = "Ada" }, headers = { ETag = "1" } })
            local answer = greet.fetch("https://x.example/")
            expect(answer.json.name).to_be("Ada")
            expect({ answer.status, answer.ok, answer.headers.etag, answer.url, answer.body })
                .to_equal({ 200, true, "1", "https://x.example/", '{"name":"Ada"}' })
            expect(mock.calls("http.get")).to_equal({ { url = "https://x.example/", headers = { accept = "*/*" } } })
        end)
        it("answers by a function, and its errors are the host's", function()
            mock("http.get", function(arguments)
                if arguments.url:find("bad") then error("no such host") end
                return { status = 404, body = '{"a": [1]}' }
            end)
            expect(greet.fetch("https://x.example/").json).to_equal({ a = { 1 } })
            local ok, message = pcall(greet.fetch, "https://bad.example/")
            expect(message).to_match("^greet.lua:%d+: http.get: no such host$")
        end)
        it("has none of another test", function() greet.fetch("https://x.example/") end)
        it("fails even where the script catches it", function() pcall(greet.fetch, "https://x.example/") end)
        it("has tools, secrets, env and a configuration", function()
            mock("context.tools.search", function(params) return { results = { params.query } } end)
            mock("env.get", "eu")
            mock.secrets { TOKEN = "t" }
            local context = test_context { config = { k = 1 }, tools = { "search" }, arguments = { a = "b" } }
            expect(context.tools.search({ query = "q" })).to_equal({ results = { "q" } })
            expect(context.call_tool("search", { query = "r" }).results[1]).to_be("r")
            expect(mock.calls("context.tools.search")).to_equal({ { query = "q" }, { query = "r" } })
            expect({ env.get("REGION"), secrets.TOKEN, context.config.k, context.arguments.a })
                .to_equal({ "eu", "t", 1, "b" })
        end)
        it("works in context.parallel, coroutines and retry", function()
            local tries = 0
            mock("sleep")
            mock("context.get", function(a)
                tries = tries + 1
                log.info("asked for", a.id)
                if tries < 3 then error("busy") end
                return { body = a.id }
            end)
            local context = test_context()
            local found = retry(function() return context.get("x") end, { tries = 4 })
            expect(found.body).to_be("x")
            local both = context.parallel { function() return context.get("a").body end, function() sleep(1) end }
            expect(both[1]).to_be("a")
            expect(coroutine.wrap(function() return context.get("c").body end)()).to_be("c")
            expect(json.schema(5, { type = "string" })).to_be_nil()
        end)
        """,
        greet="""
        agent = {}
        function agent.fetch(url) local answer = http.get(url, { headers = { accept = "*/*" } }) return answer end
        """,
    )
    assert outcomes(ended) == {
        "answers from a table": "ok",
        "answers by a function, and its errors are the host's": "ok",
        "has none of another test": "FAIL",
        "fails even where the script catches it": "FAIL",
        "has tools, secrets, env and a configuration": "ok",
        "works in context.parallel, coroutines and retry": "ok",
    }, ended.out
    assert ended.out.count('http.get has no mock here; before it: mock("http.get", { status = 200') == 2
    assert "greet.lua:3: " in ended.out


# ---- hostile files --------------------------------------------------------------------------------------------------


def test_an_endless_or_greedy_test_is_stopped_alone(project: Engine, tmp_path: Path) -> None:
    ended = run(
        project,
        tmp_path,
        """
        it("before", function() end)
        it("loops", function() while true do end end)
        it("catches", function() while true do pcall(function() while true do end end) end end)
        it("allocates", function() local t = {} for i = 1, 1e9 do t[i] = ("x"):rep(1000) .. i end end)
        it("recurses", function() local function f() return 1 + f() end f() end)
        it("waits", function() mock("sleep", function() while true do end end) sleep(1) end)
        it("after", function() end)
        """,
        b_test='it("in another file", function() end)',
    )
    again = project("test", ".")
    assert outcomes(ended) == {
        "before": "ok", "loops": "FAIL", "catches": "FAIL", "allocates": "FAIL", "recurses": "FAIL", "waits": "FAIL",
        "after": "ok",
    }  # fmt: skip
    assert outcomes(again) == {**outcomes(ended), "in another file": "ok"}
    assert ended.out.count("cpu_limit: the script used more than 0.4") == 3
    assert ended.out.count("memory_limit: the script needed more than") == 2


def test_a_file_that_does_not_end_or_declares_too_much_fails_and_others_run(project: Engine, tmp_path: Path) -> None:
    files = {
        "endless": "while true do end",
        "many": "for i = 1, 1e5 do it('t' .. i, function() end) end",
        "deep": "local function f() describe('d', f) end f()",
        "syntax": "it(",
        "binary": "\x1bLua",
        "missing": 'require("./nothing")',
        "nothing": "return 1",
        "unnamed": "it(nil, function() end)",
        "good": "it('runs', function() end)",
    }
    for name, text in files.items():
        (tmp_path / f"{name}_test.lua").write_text(text)
    (tmp_path / "huge_test.lua").write_text("--" + "x" * (2 << 20))
    ended = project("test", ".")
    assert ended.code == 1
    assert ended.out.count("FAIL  (the file itself)") == 8
    for text in (
        "cpu_limit: ", "a file may have 1000 tests; put the others into", "describe: nested deeper than 16",
        "syntax_test.lua:1: unexpected symbol near <eof>", "the file is Lua bytecode", "'nothing.lua': no such file",
        "it: the name must be a string, got nil", "larger than 1048576 bytes",
    ):  # fmt: skip
        assert text in ended.out, (text, ended.out)
    assert outcomes(ended)["runs"] == "ok"


NASTY = "a\x00b\x1b[31m\x85\x9b\u2028\u202e\u2066 # SKIP \\ <&>]]> \udcff\n\r\t"
NAMES = r"""
it("a\0b\27[31m\u{85}\u{9b}\u{2028}\u{202e}\u{2066} # SKIP \\ <&>]]>\n\r\tok 2", function()
    error("\0\27]0;x\7\u{85}<&>]]>") end)
it(("n"):rep(1e6), function() end)
it("\xff\xfe", function() error({ code = "\27[2J", message = "\xff" }) end)
it("nil error", function() error() end)
it("an error that cannot be shown", function()
    error(setmetatable({}, { __tostring = function() error("again") end }))
end)
it("an endless __tostring", function()
    error(setmetatable({}, { __tostring = function() while true do end end }))
end)
it("a long error", function() error(("x"):rep(1e6)) end)
it("floods", function() for i = 1, 1e5 do print(("line " .. i):rep(10)) end error("flooded") end)
it("replaces expect", function() expect, it, describe, mock = nil, nil, nil, nil; string.rep = nil end)
it("still has it", function() expect(string.rep("x", 2)).to_be("xx") end)
it("__metatable", function() expect(getmetatable(expect(1))).to_be(false) expect(getmetatable(it)).to_be(false) end)
it("a cycle", function() local t = {} t.t = t expect(t).to_equal({ t = {} }) end)
it("a deep table", function() local t = {} for i = 1, 1e5 do t = { t } end expect(t).to_be(1) end)
it("a wide table", function() local t = {} for i = 1, 1e5 do t[i] = i end expect(t).to_equal({}) end)
it("odd keys", function() expect({ [print] = 1, [1.5] = "\xff", [{}] = {} }).to_equal({ ["a b"] = 1 }) end)
"""


def test_nothing_in_names_and_messages_controls_the_terminal(project: Engine, tmp_path: Path) -> None:
    ended = run(project, tmp_path, NAMES)
    assert ended.code == 1
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", ended.out)
    assert len(ended.out) < 200_000
    ends = list(outcomes(ended).values())
    assert (len(ends), ends.count("ok")) == (15, 4), ended.out
    assert "(the table that this is in)" in ended.out


def test_nothing_in_a_plain_report_that_is_a_file_controls_a_terminal(project: Engine, tmp_path: Path) -> None:
    assert run(project, tmp_path, NAMES, "--output", "out.txt").code == 1
    report = (tmp_path / "out.txt").read_text()
    assert "FAILED" in report
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]", report)


def test_tap_is_what_a_strict_parser_takes(project: Engine, tmp_path: Path) -> None:
    ended = run(project, tmp_path, NAMES + "it.skip('left # out', function() end)", "--format", "tap")
    points = parsed_tap(ended.out)
    assert [ok for ok, *_ in points].count(True) == 5
    assert [directive for _, _, directive, _ in points][-1] == "SKIP skipped"
    assert all(directive == "" for _, _, directive, _ in points[:-1])
    assert points[0][1].startswith("a_test.lua: a\\x00b\\x1b[31m")
    assert points[0][3]["at"] == {"file": "a_test.lua", "line": 2}
    assert ended.code == 1


def test_junit_is_what_a_strict_parser_takes(project: Engine, tmp_path: Path) -> None:
    ended = run(
        project, tmp_path, NAMES + "it.skip('left out', function() end)", "--format", "junit", "--output", "out.xml"
    )
    root = ET.fromstring((tmp_path / "out.xml").read_bytes())
    assert (ended.code, root.tag) == (1, "testsuites")
    (suite,) = root
    cases = list(suite)
    for each in (root, suite):
        assert each.attrib["tests"] == str(len(cases)) == "16"
        assert int(each.attrib["failures"]) == len(root.findall(".//failure"))
        assert int(each.attrib["errors"]) == len(root.findall(".//error"))
        assert int(each.attrib["skipped"]) == len(root.findall(".//skipped")) == 1
    for case in cases:
        assert {"name", "classname", "time"} <= set(case.attrib)
        assert len([child for child in case if child.tag in ("failure", "error", "skipped")]) <= 1
    assert cases[0].attrib["name"].startswith("a\\x00b\\x1b[31m\\x85")
    assert outcomes(ended)["still has it"] == "ok"  # the plain report is on standard output


# ---- which files, which tests, exit codes ---------------------------------------------------------------------------


def test_by_default_the_folders_of_configured_scripts_are_searched_else_this_one(
    project: Engine, tmp_path: Path
) -> None:
    for folder in ("agents/lib", "tools", "other", "agents/.hidden"):
        (tmp_path / folder).mkdir(parents=True)
        name = folder.replace("/", " ")
        (tmp_path / folder / "x_test.lua").write_text(f'it("{name}", function() end)')
    assert set(outcomes(project("test"))) == {"agents lib", "tools", "other"}
    (tmp_path / "agents/greet.lua").write_text("agent = {}")
    with (tmp_path / "engine.toml").open("a") as file:
        file.write('[agents.script.greet]\npath = "agents/greet.lua"\n')
    assert set(outcomes(project("test"))) == {"agents lib"}
    assert set(outcomes(project("test", "tools", "other/x_test.lua", "tools/x_test.lua"))) == {"tools", "other"}


def test_names_of_required_files_begin_at_the_folder_of_the_package(project: Engine, tmp_path: Path) -> None:
    for folder in ("agents/lib", "package/lib"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.lua").write_text('return { name = require("./lib/y") }')
        (tmp_path / folder / "y.lua").write_text(f'return "{folder}"')
        (tmp_path / folder / "x_test.lua").write_text(
            f'it("{folder}", function() expect(require("./lib/x").name).to_be("{folder}") end)'
        )
    (tmp_path / "agents/greet.lua").write_text("agent = {}")
    (tmp_path / "package/manifest.toml").write_text("")
    with (tmp_path / "engine.toml").open("a") as file:
        file.write('[agents.script.greet]\npath = "agents/greet.lua"\n')
    assert outcomes(project("test", "agents", "package")) == {"agents/lib": "ok", "package/lib": "ok"}


def test_a_filter_chooses_by_the_whole_name(project: Engine, tmp_path: Path) -> None:
    source = """describe("a", function() it("x", function() end) it("y", function() error() end) end)
    it("x", function() end)"""
    assert set(outcomes(run(project, tmp_path, source, "--filter", "a > x"))) == {"a > x"}
    nothing = run(project, tmp_path, source, "--filter", "none")
    assert (nothing.code, nothing.err) == (2, "error: no test has 'none' in its name\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("missing_test.lua",), "missing_test.lua: there is no such file or folder"),
        (("empty",), "there is no file *_test.lua in empty"),
        ((), "there is no file *_test.lua in ."),
        (("--jobs", "0"), "--jobs: expected a number from 1 to 64, got 0"),
        (("--timeout", "nan"), "--timeout: expected a number from 0.01 to 86,400, got nan"),
        (("--min-coverage", "101"), "--min-coverage: expected a number from 0 to 100, got 101"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(
    project: Engine, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    ended = project("test", *words)
    assert (ended.code, ended.err) == (2, f"error: {message}\n")


def test_a_time_out_of_its_own_stops_a_test(project: Engine, tmp_path: Path) -> None:
    source = 'it("a", function() while true do end end) it("b", function() end)'
    ended = run(project, tmp_path, source, "--timeout", "0.1")
    assert outcomes(ended) == {"a": "FAIL", "b": "ok"}
    assert "timeout: the script did not end within 0.1 s" in ended.out


def test_many_tests_run_side_by_side_and_are_reported_in_their_order(project: Engine, tmp_path: Path) -> None:
    for name in "abc":
        tests = "".join(f'it("{name}{i:03}", function() end)\n' for i in range(200))
        (tmp_path / f"{name}_test.lua").write_text(tests)
    ended = project("test", "--jobs", "3")
    assert (ended.code, list(outcomes(ended))) == (0, [f"{name}{i:03}" for name in "abc" for i in range(200)])


# ---- coverage -------------------------------------------------------------------------------------------------------

COVERED = """\
local M = {}

function M.sign(n)
    if n < 0 then
        return -1
    elseif n > 0 then
        return 1
    end
    return 0
end

function M.unused(a,
                  ...)
    local function inner()
        return {
            a = a,
        }
    end
    return inner
end

M.lines = coroutine.wrap(function()
    for i = 1, 2 do
        coroutine.yield(i)
    end
end)

return M
"""


def test_coverage_has_the_lines_that_were_executed_and_those_that_could_be(project: Engine, tmp_path: Path) -> None:
    source = """
    local m = require("./covered")
    it("is negative", function() expect(m.sign(-1)).to_be(-1) end)
    it("is positive", function() expect(m.sign(1)).to_be(1) m.lines() m.lines() end)
    """
    ended = run(project, tmp_path, source, "--coverage", "--coverage-lcov", "out.info", covered=COVERED)
    (row,) = re.findall(r"^covered.lua +(\d+) +(\d+) +([\d.]+)% +(.*)$", ended.out, re.MULTILINE)
    counted = dict(re.findall(r"^DA:(\d+),(\d+)$", (tmp_path / "out.info").read_text(), re.MULTILINE))
    hits = {1: 2, 3: 2, 4: 2, 5: 1, 6: 1, 7: 1, 9: 0, 10: 2, 12: 2, 15: 0, 16: 0, 17: 0, 18: 0, 19: 0, 20: 2, 22: 2}
    hits |= {23: 1, 24: 1, 26: 2, 28: 2}  # the end of a function that is a value: where it is made
    assert {int(line): int(count) for line, count in counted.items()} == hits
    executed = sum(count != "0" for count in counted.values())
    assert row[:2] == (str(len(counted)), str(executed))
    assert row[3] == "9, 15-19"
    assert (tmp_path / "out.info").read_text().startswith(f"TN:\nSF:{tmp_path}/covered.lua\n")


def test_too_little_coverage_is_exit_code_1(project: Engine, tmp_path: Path) -> None:
    source = 'local m = require("./covered") it("a", function() m.sign(0) end)'
    enough = run(project, tmp_path, source, "--min-coverage", "30", covered=COVERED)
    less = run(project, tmp_path, source, "--min-coverage", "90", covered=COVERED)
    assert (enough.code, less.code) == (0, 1)
    assert re.fullmatch(
        r"coverage: [\d.]+% of the lines were executed, and 90% are the least \(--min-coverage\)\n", less.err
    )


def test_a_test_cannot_reach_the_hook_or_debug(project: Engine, tmp_path: Path) -> None:
    source = """
    local m = require("./covered")
    it("a", function()
        expect(debug).to_be_nil()
        expect(coroutine.sethook).to_be_nil()
        local seen = {}
        local function walk(value)
            if type(value) ~= "table" or seen[value] then return end
            seen[value] = true
            for key, inner in next, value do
                expect(tostring(key)).not_to_match("hook")
                expect(tostring(key)).not_to_match("getinfo")
                walk(inner)
            end
        end
        walk(_G)
    end)
    """
    ended = run(project, tmp_path, source, "--coverage", covered=COVERED)
    assert outcomes(ended) == {"a": "ok"}, ended.out

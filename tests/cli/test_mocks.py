"""`--mock FILE`: rows of a file answer a script's host calls, without grants, and a wrong file is one clear error."""

import json
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import warm_start
from cli_support import Engine, inherited

CONFIG = """
[agents.script.caller]
path = "caller.lua"
limits = {host_calls = 4}
[tools.script.looker]
path = "looker.lua"
"""
CALLER = """
agent = { description = "Calls", tools = { "looker" }, arguments = { { name = "do" } } }
function agent.resolve(args, config, context)
    if args["do"] == "tool" then return { system = json.encode(context.tools.looker { q = "x" }) } end
    if args["do"] == "many" then for i = 1, 9 do env.get("A") end end
    if args["do"] == "body" then
        local answer = http.post("https://x.example/", { a = 1 }, { headers = { authorization = "t0ken" } })
        return { system = #answer.body .. answer.url .. tostring(answer.json) }
    end
    local ok, answer = pcall(http.get, "https://x.example/", { params = { q = args["do"] } })
    return { system = ok and json.encode(answer.json) or answer }
end
"""
LOOKER = """
tool = { description = "Looks", parameters = { { name = "q" } } }
function tool.execute(params, context)
    return { region = env.get("REGION"), found = context.search(params.q) }
end
"""
ROWS = """
[[call]]
name = "http.get"
with = { params = { q = "one" } }
reply = { json = [1, 2] }
times = 1

[[call]]
name = "http.get"
error = "connection refused"

[[call]]
name = "env.get"
reply = "eu"

[[call]]
name = "context.search"
with = { query = "x" }
reply = [{ id = "1", title = "T" }]
"""


@pytest.fixture
def project(engine: Engine, tmp_path: Path) -> Engine:
    for name, text in {"engine.toml": CONFIG, "caller.lua": CALLER, "looker.lua": LOOKER, "calls.toml": ROWS}.items():
        (tmp_path / name).write_text(text)
    return engine


def test_rows_answer_without_a_grant_and_unused_ones_are_a_warning(project: Engine) -> None:
    ended = project("agent", "test", "caller", "--arg", "do=one", "--mock", "calls.toml", "--json")
    assert (ended.code, ended.json["system"], ended.json["host_calls"]) == (0, "[1,2]", 1)
    assert ended.err == (
        "warning: 3 rows of calls.toml were not used\n"
        "warning: calls.toml:8: http.get answered never\n"
        "warning: calls.toml:12: env.get answered never\n"
        "warning: calls.toml:16: context.search answered never\n"
    )
    other = project("agent", "test", "caller", "--arg", "do=two", "--mock", "calls.toml", "--json")
    assert other.json["system"] == "http.get: connection refused"


def test_calls_of_tools_that_the_script_calls_are_answered_and_so_are_a_tools_own(project: Engine) -> None:
    ended = project("agent", "test", "caller", "--arg", "do=tool", "--mock", "calls.toml", "--json")
    assert json.loads(ended.json["system"]) == {"region": "eu", "found": [{"id": "1", "title": "T"}]}
    tool = project("tool", "test", "looker", "--param", "q=x", "--mock", "calls.toml", "--json")
    assert tool.json["result"] == {"region": "eu", "found": [{"id": "1", "title": "T"}]}


def test_a_call_without_a_row_is_made_for_real_under_the_grants(project: Engine) -> None:
    ended = project("tool", "test", "looker", "--param", "q=other", "--mock", "calls.toml", "--json")
    assert ended.json["result"] == {"region": "eu", "found": []}


def test_with_only_it_is_refused_and_the_row_is_there_to_paste(project: Engine, tmp_path: Path) -> None:
    (tmp_path / "calls.toml").write_text("only = true\n")
    ended = project("agent", "test", "caller", "--arg", "do=one", "--mock", "calls.toml", "--json")
    assert "http.get: no row of the mocks answers this call; one that does begins with [[call]]" in ended.json["system"]
    shown = ended.err.partition("rows to paste:\n")[2]
    (call,) = tomllib.loads(shown)["call"]
    assert call["with"] == {"url": "https://x.example/"}
    (tmp_path / "calls.toml").write_text(f"only = true\n{shown}")
    again = project("agent", "test", "caller", "--arg", "do=one", "--mock", "calls.toml", "--json")
    assert (again.code, again.err) == (0, "")


def test_limits_hold_for_calls_that_rows_answer(project: Engine) -> None:
    ended = project("agent", "test", "caller", "--arg", "do=many", "--mock", "calls.toml")
    assert ended.code == 1
    assert "call_limit: " in ended.err


def test_a_large_reply_arrives_whole(project: Engine, tmp_path: Path) -> None:
    body = "x" * (1 << 20)
    (tmp_path / "calls.toml").write_text(
        f'[[call]]\nname = "http.post"\nwith = {{ body = {{ a = 1 }} }}\nreply = {{ body = "{body}" }}'
    )
    ended = project("agent", "test", "caller", "--arg", "do=body", "--mock", "calls.toml", "--json")
    assert ended.json["system"] == f"{1 << 20}https://x.example/nil"


WRONG = r"""
a = | : not TOML: Invalid value (at end of document)
rows = 1 | : rows: unknown key; there are [[call]] and only
only = 1 | : only: expected true or false, got 1
call = 1 | : call: expected tables, each under [[call]]
call = [{name = "sleep"}] | : call 1: expected one of reply and error, and there is neither
\nROW\nreply = 1 | :2: call 1: name: missing; it is the name of a host call
ROW\nname = "http.gett"\nreply = 1 | :1: call 1: name: there is no host call 'http.gett'; did you mean 'http.get'?
SLEEP\nreply = 1\n\nSLEEP\nrepli = 1 | :5: call 2: repli: unknown key; did you mean 'reply'?
GET\nwith = {ulr = 1}\nreply = {} | :1: call 1: with.ulr: http.get has no such argument; did you mean 'url'?
GET\nwith = 1\nreply = {} | :1: call 1: with: expected a table of arguments, got 1
SLEEP | :1: call 1: expected one of reply and error, and there is neither
SLEEP\nreply = 1\nerror = "x" | :1: call 1: expected one of reply and error
SLEEP\nerror = 5 | :1: call 1: error: expected a text, got 5
SLEEP\nreply = 1\ntimes = 0 | :1: call 1: times: expected a whole number from 1, got 0
SLEEP\nreply = 1979-05-27 | :1: call 1: DATE
SLEEP\nreply = [inf] | :1: call 1: DATE
GET\nreply = "x" | :1: call 1: reply: expected a table with status, headers and body or json, got 'x'
GET\nreply = {stauts = 1} | :1: call 1: reply.stauts: no answer of http has it; did you mean 'status'?
GET\nreply = {status = 7} | :1: call 1: reply.status: expected a status from 100 to 599, got 7
GET\nreply = {headers = {a = 1}} | :1: call 1: reply.headers: expected a table of texts
GET\nreply = {body = {a = 1}} | :1: call 1: reply.body: expected a text, got a table; json = ... writes JSON
"""
SHORT = {
    "GET": 'ROW\nname = "http.get"',
    "SLEEP": 'ROW\nname = "sleep"',
    "ROW": "[[call]]",
    "DATE": "reply: holds a date, a time or a number that is not finite; write it as text",
    "\\n": "\n",
}


def wrong_files() -> Iterator[tuple[str, str]]:
    for line in WRONG.strip().splitlines():
        for short, whole in SHORT.items():
            line = line.replace(short, whole)
        text, _, message = line.rpartition(" | ")
        yield text, message


@pytest.mark.parametrize(("text", "message"), list(wrong_files()))
def test_a_wrong_file_is_one_line_with_the_row_and_the_key(
    project: Engine, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "calls.toml").write_text(text)
    ended = project("agent", "test", "caller", "--mock", "calls.toml")
    assert (ended.code, ended.out, ended.err) == (2, "", f"error: calls.toml{message}\n")


def test_a_file_that_cannot_be_read_is_one_line(project: Engine, tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b'only = "\xff"')
    for name, message in (
        ("none.toml", "No such file or directory"),
        (".", "Is a directory"),
        ("latin.toml", "not UTF-8"),
    ):
        ended = project("tool", "test", "looker", "--mock", name)
        assert (ended.code, ended.err) == (2, f"error: {name}: {message}\n")


def test_dev_runs_again_when_the_file_is_saved(project: Engine, tmp_path: Path) -> None:
    process = warm_start.Popen(
        [sys.executable, "-m", "cli.main", "tool", "dev", "looker", "--param", "q=x", "--mock", "calls.toml"],
        cwd=tmp_path, env=inherited(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    with process:
        lines = iter(process.stdout.readline, "")
        assert any('"region": "eu"' in line for line in lines)
        (tmp_path / "calls.toml").write_text(ROWS.replace('"eu"', '"us"'))
        assert any('"region": "us"' in line for line in lines)
        (tmp_path / "calls.toml").write_text("only = 1")
        assert any("calls.toml: only: expected true or false, got 1" in line for line in lines)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0

"""Mistakes that authors of scripts make, each with the message that it gets: one line that says what to change."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from agents_support import CALL, Project, agent

from agents.service import Service
from engine.errors import Problem


@dataclass(frozen=True)
class Mistake:
    """One script with a mistake: what a run's error, a load failure or the log says of it."""

    source: str | bytes
    said: str
    keys: str = ""


def resolve(body: str, said: str, *, fields: str = "", keys: str = "") -> Mistake:
    return Mistake(agent(body, fields), said, keys)


PROMPT = "return { system = 'S' }"
# The findings of the first users: 27 that were exact, 17 of Lua's own, 12 that were misleading, thin or silent.
EXACT: dict[str, Mistake] = {
    "the answer is nil": resolve("return nil", "the answer of agent.resolve is nil, not a table with named fields"),
    "the answer is a string": resolve(
        "return 'S'", "the answer of agent.resolve is a string, not a table with named fields"
    ),
    "prompt for system": resolve("return { prompt = 'S' }", "the answer of agent.resolve: system is missing"),
    "a number as system": resolve("return { system = 5 }", "the answer of agent.resolve: system "),
    "messages is no list": resolve("return { system = '', messages = { a = 1 } }", "messages "),
    "text for content": resolve(
        "return { system = '', messages = { { role = 'user', text = 'x' } } }", "messages[1].content is missing"
    ),
    "role bot": resolve("return { system = '', messages = { { role = 'bot', content = 'x' } } }", "messages[1].role"),
    "a tool added": resolve("return { system = '', tools = { 'search', 'fly' } }", "fly"),
    "a hole in messages": resolve(
        "local m = { role = 'user', content = 'a' } return { system = '', messages = { m, nil, m } }",
        "messages[2]",
    ),
    "a forbidden host": resolve(
        "http.get('https://api.example.com/x')",
        'api.example.com is not among the hosts that this script may reach; allow_hosts = ["api.example.com"] would',
    ),
    "a private host": resolve("http.get('http://10.0.0.1/')", 'allow_hosts = ["10.0.0.1"] would grant it'),
    "a variable that is not granted": resolve(
        "log.info(tostring(env.get('HOME'))) " + PROMPT, 'is not granted, so it is nil; env = ["HOME"] in the entry'
    ),
    "too much CPU time": resolve(
        "while true do end", "more than 0.1 s of CPU time (limits.cpu_s)", keys="limits = { cpu_s = 0.1 }"
    ),
    "too much time": resolve("sleep(60)", "did not end within 0.2 s (limits.timeout_s)", keys="timeout = 0.2"),
    "too many calls": resolve(
        "for _ = 1, 9 do context.sources() end",
        "more than 5 host calls (limits.host_calls)",
        keys="limits = { host_calls = 5 }",
    ),
    "too large an answer": resolve("return { system = ('x'):rep(2000000) }", "larger than 1048576 bytes"),
    "too much memory": resolve(
        "local t = {} for i = 1, 1e9 do t[i] = i end", "more than 64 MiB of memory (limits.memory_bytes)"
    ),
    "an unknown document": resolve("context.get('none')", "context.get: document not found: none"),
    "a tool that is not in the list": resolve("context.tools.fly()", "'fly' is not in agent.tools"),
    "a host call in sort": resolve(
        "table.sort({ 3, 2, 1 }, function() context.sources() end)",
        "context.sources cannot be called here: inside a callback",
    ),
    "a limit of a search that is no number": resolve(
        "context.search('x', { limit = '5' })", "context.search: limit: expected number or nil, got string"
    ),
    "a limit of a search beyond the bounds": resolve(
        "context.search('x', { limit = 0 }) " + PROMPT, "limit 0 is not from 1 to 100: 1 was used"
    ),
    "bad JSON": resolve("json.decode('{a: 1}')", "json.decode: a key in quotes is missing at byte 2"),
    "a table in itself": resolve("local t = {} t.t = t return t", "value.t contains itself (a cycle)"),
    "a missing argument": resolve(PROMPT, "topic", fields="arguments = { { name = 'topic', required = true } }"),
    "a function in the answer": resolve("return { system = 'S', messages = print }", "value.messages is a function"),
    "an unknown mode": resolve("context.search('x', { mode = 'fuzzy' })", "mode: invalid enum value 'fuzzy'"),
}
# Lua's own words, with the script's name and line.
LUAS_OWN: dict[str, Mistake] = {
    "a typing error in a function": resolve("\nreturn tostrin(5)", ":3: attempt to call a nil value (global 'tostrin'"),
    "a typing error in a method": resolve("\nreturn ('x'):uper()", ":3: attempt to call a nil value (method 'uper')"),
    "an index of nil": resolve("local t = {}\nreturn t.a.b", ":3: attempt to index a nil value (field 'a')"),
    "a concatenation of nil": resolve("\nreturn 'a' .. args.b", ":3: attempt to concatenate a nil value (field 'b')"),
    "no end": Mistake("agent = {}\nfunction agent.resolve()\n", ":3: 'end' expected"),
    "= for ==": resolve("if args.a = 1 then end", ":2: 'then' expected near '='"),
    "!=": resolve("if args.a != 1 then end", ":2: 'then' expected near '!'"),
    "continue": resolve("for i = 1, 2 do\ncontinue\nend", ":4: syntax error near 'end'"),
    "+ on strings": resolve("return 'a' + 'b'", ":2: attempt to add a 'string' with a 'string'"),
    "a backslash d": resolve("return ('1'):match('\\d')", ":2: invalid escape sequence near"),
    "a # comment": Mistake("agent = {}\n# no comment\n", ":2: unexpected symbol near '#'"),
    "recursion without end": resolve(
        "local function f() return 1 + f() end return f()", "more than 64 MiB of memory (limits.memory_bytes)"
    ),
    "%Q": resolve("return ('%Q'):format('x')", "invalid conversion '%Q' to 'format'"),
    "a call of a table": resolve("return args()", ":2: attempt to call a table value (local 'args')"),
    "a comparison of a number with a string": resolve("return 1 < '2'", ":2: attempt to compare number with string"),
    "an unfinished string": resolve("return 'a\n'", ":2: unfinished string"),
    "a length of nil": resolve("return #args.list", ":2: attempt to get length of a nil value (field 'list')"),
}
MISLEADING: dict[str, Mistake] = {
    "a colon for a dot": resolve(
        "context:search('x')", "context.search: call it with a dot, context.search(...), not with a colon"
    ),
    "nil where a text was meant": resolve("context.search(nil)", "context.search: query is nil: it is required"),
    "a host call at the top level": Mistake(
        "local x = http.get('http://a.example/')\n" + agent(PROMPT),
        ":1: http.get cannot be called while a script is loaded, only inside its functions",
    ),
    "a text cut inside a character": resolve(
        "return { system = ('ééé'):sub(1, 5) }",
        "value.system is not UTF-8: one broken part became U+FFFD (string.sub counts bytes; text.sub counts",
    ),
    "an error that is a table": resolve(
        "\nerror({ code = 5, message = 'no' })", ':3: (the error is a table: code = 5, message = "no")'
    ),
    "an error of nothing": resolve("\n\nerror()", ":4: (the error is a nil value)"),
    "a removed function of os": resolve("os.execute('ls')", "os.execute, it is removed in the sandbox"),
    "a removed library": resolve(
        "io.open('a')", "io is removed in the sandbox; instead: files of the script's folder: fs.read, fs.list"
    ),
    "require": resolve("require('json')", 'require("json"): json is a global here (docs/scripting/require.md)'),
    "an unknown option": resolve(
        "context.search('x', { limt = 5 }) " + PROMPT,
        "context.search: unknown option 'limt' is ignored; did you mean 'limit'?",
    ),
    "a byte order mark": Mistake(b"\xef\xbb\xbf" + agent("error('reached')").encode(), "reached"),
    "a typing error in the function's name": Mistake(
        "agent = {}\nfunction agent.resolv() end",
        "agent.resolve is missing or not a function; agent.resolv may be a misspelling of it",
    ),
}
# Of the same kinds, found since.
FOUND_SINCE: dict[str, Mistake] = {
    "a typing error in a field of the answer": resolve(
        "return { sytem = 'x' }", "system is missing; 'sytem' may be a misspelling of it"
    ),
    "UTF-16": Mistake("agent = {}".encode("utf-16"), "the file is UTF-16, by its first two bytes; save it as UTF-8"),
    "a tool among the agents": Mistake("tool = {}", "nor returns one; it sets 'tool'"),
    "a colon for a dot in http": resolve("http:get('http://a.example/')", "http.get: call it with a dot"),
    "a colon for a dot in json": resolve("json:decode('1')", "json.decode: call it with a dot"),
    "an unknown option of http": resolve(
        "pcall(http.get, 'http://a.example/', { timeot = 5 }) " + PROMPT,
        "http.get: unknown option 'timeot' is ignored; did",
    ),
    "a server on this machine": resolve(
        "http.get('http://localhost:41990/')", 'allow_hosts = ["localhost:41990", "127.0.0.1:41990"] would grant it'
    ),
}
# Of names that are not files of the script's own package.
FOUND_SINCE |= {
    "require of another library": resolve(
        "require('socket')", "require(\"socket\"): a name begins with './' and is that of a file of the script's own"
    ),
    "require of a name made at run time": resolve(
        "require('./' .. 'x')", 'require("./x"): only files that a call in the script\'s text names can be required'
    ),
    "unpack of Lua 5.1": resolve("unpack({1})", "(unpack is of Lua 5.1, not of 5.4; instead: table.unpack)"),
    "table.getn": resolve("table.getn({})", "(getn is of Lua 5.1, not of 5.4; instead: the operator #)"),
    "loadstring": resolve("loadstring('return 1')()", "(loadstring is of Lua 5.1, not of 5.4)"),
    "package": resolve("package.path = ''", "package is removed in the sandbox; instead: require('./name') of files"),
    "a file that is missing": resolve(
        "\nreturn require('./x')", ":3: require(\"./x\"): 'x.lua': no such file or directory"
    ),
    "a file outside of the folder": resolve(
        "require '../x'", ":2: require(\"../x\"): leaves the package; names begin at its folder, and have no '..'"
    ),
}
ALL = {**EXACT, **LUAS_OWN, **MISLEADING, **FOUND_SINCE}


def test_there_are_the_56_mistakes_of_the_first_users() -> None:
    assert (len(EXACT), len(LUAS_OWN), len(MISLEADING)) == (27, 17, 12)


Open = Callable[..., AbstractAsyncContextManager[Service]]


async def test_each_mistake_gets_its_message(project: Project, opened: Open) -> None:
    scripts = {f"m{number}": what for number, what in enumerate(ALL)}
    text = "".join(project.script(name, ALL[what].source, ALL[what].keys) for name, what in scripts.items())
    project.configure(text)
    wrong = []
    async with opened() as service:
        failed = {failure.name: f":{failure.line}: {failure.message}" for failure in service.failures}
        for name, what in scripts.items():
            said = failed.get(name)
            if said is None:
                try:
                    resolved = await service.resolve(name, {}, CALL)
                    said = "\n".join(line.text for line in resolved.run.logs) if resolved.run else ""
                except Problem as problem:
                    said = problem.message
            if ALL[what].said not in said:
                wrong.append(f"{what}: {said!r} lacks {ALL[what].said!r}")
    assert not wrong, "\n" + "\n".join(wrong)


def test_a_key_like_one_of_the_engines_is_a_warning_at_load() -> None:
    from pathlib import Path

    from engine.config import parse_config

    def warnings(keys: str) -> tuple[str, ...]:
        text = f"[agents.script.a]\npath = 'a.lua'\n{keys}\n"
        return parse_config(text, environ={}, cwd=Path("/"), shown_as="engine.toml")[1]

    said = "engine.toml: agents.script.a.{}: taken for a key of the script's own; did you mean '{}'?"
    assert warnings("allow_host = ['a']\ntimout = 3") == (
        said.format("allow_host", "allow_hosts"), said.format("timout", "timeout"),
    )  # fmt: skip
    assert warnings("search_limit = 5\nurl = 'x'\nteam = 'y'\napi_token = 'z'\nproject = 'p'\nhost = 'h'") == ()

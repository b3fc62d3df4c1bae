"""Answers: what plain Lua returns, logs and asks of the host, at the default limits and at the largest permitted."""

from typing import Any

from sandbox.wire.limits import MIB
from supervisor.attack import ANSWER, LOG, Attack, answers

_ANSWER, _CALL, _LOG = ("answer", "answer as JSON"), ("arguments", "calls", "table"), ("redaction",)
_HEAD = (
    "local SAID = { system = 'x' }\n"
    "local function many(n, unit) local t = {} for i = 1, n do t[i] = unit end return t end\n"
)
_USUAL: dict[str, Any] = {}
_SEARCH = ("searching", *_CALL)
_KEY, _KEPT = ("key", *_CALL), {"grants": {"kv": True}}


def _lua(name: str, work: tuple[str, ...], body: str, size: int, **how: Any) -> Attack:
    return answers(name, work, body, size, head=_HEAD + how.pop("head", ""), **how)


_TOOLS = "local t = many(20000, 'search') t[#t + 1] = 'sources'\nagent = { tools = t }\n"

ATTACKS = (
    # At the default limits.
    _lua(
        "300,000 messages that are one empty table",
        _ANSWER,
        "return { system = 'x', messages = many(300000, {}) }",
        300_000,
        limits=_USUAL,
    ),
    _lua(
        "a million messages that are one empty table",
        _ANSWER,
        "return { system = 'x', messages = many(1000000, {}) }",
        1_000_000,
        limits=_USUAL,
    ),
    _lua(
        "a million messages that are numbers",
        _ANSWER,
        "return { system = 'x', messages = many(1000000, 1) }",
        1_000_000,
        limits=_USUAL,
    ),
    _lua(
        "30,000 messages that are right",
        _ANSWER,
        "return { system = 'x', messages = many(30000, { role = 'user', content = 'x' }) }",
        750_000,
        limits=_USUAL,
    ),
    _lua("a million empty tables", _ANSWER, "return { system = 'x', other = many(1000000, {}) }", MIB, limits=_USUAL),
    _lua(
        "4,000 tools of 20,001 that are declared",
        _ANSWER,
        "return { system = 'x', tools = many(4000, 'sources') }",
        32_000,
        head=_TOOLS,
        limits=_USUAL,
    ),
    _lua(
        "130,000 tools of 20,001 that are declared",
        _ANSWER,
        "return { system = 'x', tools = many(130000, 'sources') }",
        1_040_000,
        head=_TOOLS,
        limits=_USUAL,
    ),
    # At the limits that a tenant's own admin may approve.
    # (What the prelude needs 20 s of CPU to encode, `frames` sends in full size.)
    *(
        _lua(f"an answer of {name}", _ANSWER, f"return {{ system = 'x', other = {value} }}", size)
        for name, value, size in (
            ("4 million empty tables", "many(1000, many(4000, {}))", 4 * MIB),
            ("4 million small numbers", "many(1000, many(4000, 1))", 4 * MIB),
            ("4 million times true", "many(1000, many(4000, true))", 4 * MIB),
            ("a million fractions", "many(1000, many(1000, 0.1))", 9 * MIB),
            ("3 million short texts", "many(1000, many(3000, 'ab'))", 9 * MIB),
            ("2 million tables with one key", "many(1000, many(2000, { a = 1 }))", 8 * MIB),
            ("half a million lists in lists", "many(1000, many(500, {{{{{{{}}}}}}}))", 4 * MIB),
            ("16,000 texts of a thousand letters", "many(16000, ('x'):rep(1000))", ANSWER),
        )
    ),
    *(
        _lua(
            f"a prompt of 16 MiB of {name}",
            _ANSWER,
            f"return {{ system = ({unit}):rep({ANSWER - 4096} // #{unit}) }}",
            ANSWER,
        )
        for name, unit in (
            ("letters", "'x'"),
            ("NULs", "'\\0'"),
            ("quotes", "'\"'"),
            ("four-byte letters", "'\\u{1f600}'"),
            ("three-byte letters", "'\\u{2028}'"),
            ("bytes that are no text", "'\\xff'"),
        )
    ),
    # What is searched for secrets.
    *(
        _lua(
            f"a log of {name}",
            _LOG,
            f"log.info(({unit}):rep({LOG - 100} // #{unit})) return {{ system = 'x' }}",
            LOG,
            grants={"secrets": ["TOKEN"]},
        )
        for name, unit in (
            ("escaped new lines", "'\\\\n'"),
            ("percents", "'%41'"),
            ("escaped letters", "'\\\\u0041'"),
            ("letters as base64 has them", "'QUJD'"),
            ("backslashes", "'\\\\'"),
            ("beginnings of the secret", "'a-secret-that-'"),
            ("entities", "'&amp;'"),
        )
    ),
    _lua(
        "a log of many lines",
        _LOG,
        "for i = 1, 60000 do log.info('') end return SAID",
        LOG,
        grants={"secrets": ["TOKEN"]},
    ),
    _lua("an error of a million escapes", _LOG, "error(('\\\\n'):rep(500000), 0)", MIB, grants={"secrets": ["TOKEN"]}),
    _lua(
        "progress a thousand times",
        _LOG,
        "for i = 1, 1000 do context.progress(i / 1000, ('\\\\n'):rep(500)) end return SAID",
        MIB,
        grants={"secrets": ["TOKEN"]},
    ),
    # Arguments of host calls.
    _lua(
        "a search for 15 MB of letters",
        _SEARCH,
        "pcall(context.search, ('x '):rep(7500000)) return SAID",
        ANSWER,
    ),
    _lua("a search for 900,000 quotes", _SEARCH, "pcall(context.search, ('\"'):rep(900000)) return SAID", MIB),
    _lua(
        "a search for 150,000 words",
        _SEARCH,
        "pcall(context.search, ('abc de '):rep(150000)) return SAID",
        MIB,
    ),
    _lua(
        "a search with many unknown fields",
        _SEARCH,
        "local t = { query = 'x' } for i = 1, 100000 do t['k' .. i] = 1 end pcall(context.search, t) return SAID",
        MIB,
    ),
    _lua("a document of 900,000 letters", _CALL, "pcall(context.get, ('x'):rep(900000)) return SAID", MIB),
    _lua("a file of 900,000 letters", _CALL, "pcall(fs.read, ('a/'):rep(450000)) return SAID", MIB),
    _lua("a variable of 900,000 letters", _CALL, "pcall(env.get, ('A'):rep(900000)) return SAID", MIB),
    _lua(
        "a URL of 900,000 letters",
        _CALL,
        "pcall(http.get, 'http://127.0.0.1:SILENT_PORT/' .. (' '):rep(900000), { timeout = 0.5 }) return SAID",
        MIB,
        grants={"hosts": ["127.0.0.1:{port}"]},
    ),
    _lua(
        "a URL of 900,000 dots",
        _CALL,
        "pcall(http.get, 'http://' .. ('a.'):rep(450000), { timeout = 0.5 }) return SAID",
        MIB,
        grants={"hosts": ["127.0.0.1:{port}"]},
    ),
    _lua(
        "parameters of a URL beyond number",
        _CALL,
        "local p = {} for i = 1, 100000 do p['k' .. i] = i end "
        "pcall(http.get, 'http://127.0.0.1:SILENT_PORT/', { params = p, timeout = 0.5 }) return SAID",
        MIB,
        grants={"hosts": ["127.0.0.1:{port}"]},
    ),
    _lua(
        "headers beyond number",
        _CALL,
        "local p = {} for i = 1, 100000 do p['k' .. i] = i end "
        "pcall(http.get, 'http://127.0.0.1:SILENT_PORT/', { headers = p, timeout = 0.5 }) return SAID",
        MIB,
        grants={"hosts": ["127.0.0.1:{port}"]},
    ),
    _lua(
        "a body of a million empty tables for a silent host",
        _CALL,
        "pcall(http.post, 'http://127.0.0.1:SILENT_PORT/', many(1000000, {}), { timeout = 0.5 }) return SAID",
        MIB,
        grants={"hosts": ["127.0.0.1:{port}"]},
    ),
    _lua(
        "6 bodies of a million empty tables that wait for a silent host",
        _CALL,
        "local body, calls = many(1000000, {}), {} "
        "local function post() return pcall(http.post, 'http://127.0.0.1:SILENT_PORT/', body, { timeout = 2 }) end "
        "for i = 1, 6 do calls[i] = post end "
        "context.parallel(calls) return SAID",
        6 * MIB,
        grants={"hosts": ["127.0.0.1:{port}"]},
    ),
    _lua(
        "a body of 15 MB for a silent host",
        _CALL,
        "pcall(http.post, 'http://127.0.0.1:SILENT_PORT/', ('x'):rep(15000000), { timeout = 0.5 }) return SAID",
        ANSWER,
        grants={"hosts": ["127.0.0.1:{port}"], "secrets": ["TOKEN"]},
    ),
    _lua(
        "parameters of a tool that are a million tables",
        _CALL,
        "pcall(context.call_tool, 'lists', { a = many(1000000, {}) }) return SAID",
        MIB,
        head="agent = { tools = {'lists'} }\n",
        grants={"tools": ["lists"]},
    ),
    _lua(
        "64 values of 49,000 small numbers at once",
        _KEY,
        "local t, calls = many(49000, 1), {} for i = 1, 64 do calls[i] = function() kv.set('k' .. i, t) end end "
        "context.parallel(calls) return SAID",
        3 * MIB,
        **_KEPT,
    ),
    _lua(
        "a value of 49,000 empty tables",
        _KEY,
        "for i = 1, 10 do kv.set('k', many(49000, {})) end return SAID",
        MIB // 2,
        **_KEPT,
    ),
    _lua("a value of 15 MB of letters", _KEY, "pcall(kv.set, 'k', ('x'):rep(15000000)) return SAID", ANSWER, **_KEPT),
    _lua("a key of 15 MB of letters", _KEY, "pcall(kv.get, ('x'):rep(15000000)) return SAID", ANSWER, **_KEPT),
    _lua(
        "1,200 keys of 500 bytes, and 64 lists of them at once",
        _KEY,
        "local sets, lists = {}, {} for i = 1, 1200 do sets[i] = function() kv.set(('k'):rep(495) .. i, 1) end end "
        "for i = 1, 64 do lists[i] = function() kv.list('k', { limit = 1000 }) end end "
        "context.parallel(sets) context.parallel(lists) return SAID",
        MIB,
        **_KEPT,
    ),
    _lua(
        "500 lists of 1,000 values of 64 KiB",
        _KEY,
        "local v, sets, lists = ('x'):rep(65000), {}, {} "
        "for r = 0, 15 do for i = 1, 63 do sets[i] = function() kv.set(('k%04d'):format(r * 63 + i), v) end end "
        "context.parallel(sets) end "
        "for i = 1, 64 do lists[i] = function() kv.list('k', { limit = 1000 }) end end "
        "for r = 1, 8 do context.parallel(lists) end return SAID",
        2 * MIB,
        **_KEPT,
    ),
    _lua(
        "500 sums to a list of 32,000 empty tables",
        _KEY,
        "kv.set('k', many(32000, {})) local sums = {} "
        "for i = 1, 64 do sums[i] = function() pcall(kv.incr, 'k') end end "
        "for r = 1, 8 do context.parallel(sums) end return SAID",
        MIB // 2,
        **_KEPT,
    ),
)

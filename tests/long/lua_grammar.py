"""Random Lua from a grammar: programs that mostly parse, mostly run, and use what a script can reach."""

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from sandbox.allowlist import ADDED, NAMES

Text = SearchStrategy[str]

_NAMES = st.sampled_from(["a", "b", "c", "i", "s", "t", "f", "co", "args", "config", "context"])
_REACHABLE = st.sampled_from(
    [name.path for name in NAMES] + list(ADDED) + ["context.search", "context.get", "context.config", "_ENV", "nothing"]
)
_NUMBERS = st.sampled_from(
    ["0", "1", "-1", "2", "3.5", "255", "1e308", "-0.0", "0/0", "1/0", "math.maxinteger", "math.mininteger", "2^53"]
)
_STRINGS = st.sampled_from(
    ['""', '"x"', "'%d+'", '"(.-)*b"', '"\\0"', '"\\xff"', '"%s%p"', "('x'):rep(1000)", "'not enough memory'", "'__gc'"]
)
_BINARY = st.sampled_from(
    ["+", "-", "*", "/", "//", "%", "^", "..", "==", "~=", "<", "<=", "and", "or", "&", "|", "<<"]
)
_UNARY = st.sampled_from(["-", "not ", "#", "~"])


def _atoms() -> Text:
    return st.one_of(_NAMES, _NUMBERS, _STRINGS, _REACHABLE, st.sampled_from(["nil", "true", "false", "{}", "..."]))


def _expressions(inner: Text) -> Text:
    arguments = st.lists(inner, max_size=3).map(", ".join)
    return st.one_of(
        st.tuples(inner, _BINARY, inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
        st.tuples(_UNARY, inner).map(lambda p: f"({p[0]}{p[1]})"),
        st.tuples(inner, inner).map(lambda p: f"({p[0]})[{p[1]}]"),
        st.tuples(_REACHABLE, arguments).map(lambda p: f"{p[0]}({p[1]})"),
        st.tuples(inner, arguments).map(lambda p: f"({p[0]})({p[1]})"),
        st.lists(inner, max_size=4).map(lambda items: "{" + ", ".join(items) + "}"),
        st.lists(st.tuples(inner, inner), max_size=3).map(
            lambda items: "{" + ", ".join(f"[{key}] = {value}" for key, value in items) + "}"
        ),
        inner.map(lambda e: f"function(a, ...) return {e} end"),
        st.tuples(_REACHABLE, arguments).map(lambda p: f"pcall({p[0]}{', ' if p[1] else ''}{p[1]})"),
        st.tuples(inner, inner).map(lambda p: f"setmetatable({{}}, {{__index = {p[0]}, __call = {p[1]}}})"),
        inner.map(lambda e: f"coroutine.wrap(function() return {e} end)()"),
    )


expression: Text = st.recursive(_atoms(), _expressions, max_leaves=8)


def _statements(inner: Text) -> Text:
    block = st.lists(inner, max_size=3).map("\n".join)
    return st.one_of(
        st.tuples(_NAMES, expression).map(lambda p: f"local {p[0]} = {p[1]}"),
        st.tuples(_NAMES, expression).map(lambda p: f"{p[0]} = {p[1]}"),
        st.tuples(expression, block).map(lambda p: f"if {p[0]} then\n{p[1]}\nend"),
        st.tuples(expression, block).map(lambda p: f"while {p[0]} do\n{p[1]}\nbreak end"),
        block.map(lambda b: f"for i = 1, 20 do\n{b}\nend"),
        st.tuples(expression, block).map(lambda p: f"for a, b in pairs({p[0]}) do\n{p[1]}\nend"),
        block.map(lambda b: f"pcall(function(...)\n{b}\nend)"),
        st.tuples(_NAMES, block).map(lambda p: f"local function {p[0]}(...)\n{p[1]}\nend\n{p[0]}({p[0]})"),
        expression.map(lambda e: f"print({e})"),
        block.map(lambda b: f"coroutine.wrap(function(...)\n{b}\nend)()"),
        st.just("while true do end"),
    )


statement: Text = st.recursive(expression.map(lambda e: f"local _ = {e}"), _statements, max_leaves=6)

_tried = statement.map(lambda s: f"pcall(function(...)\n{s}\nend, ...)")

program: Text = st.tuples(st.lists(_tried, max_size=6), expression).map(
    lambda p: (
        "agent = {}\nfunction agent.resolve(args, config, context, ...)\n" + "\n".join(p[0]) + f"\nreturn {p[1]}\nend"
    )
)

"""Random Lua that tangles coroutines, `context.parallel` and host calls: each program is one that a script may be.

What it may end in is an outcome. That the sandbox takes one for an attack is a finding: then security events could be
forged at will.
"""

import re

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

Text = SearchStrategy[str]

_SLOTS = st.integers(1, 4).map(lambda n: f"kept[{n}]")
# Numbers of calls are small integers: what a script could guess is among these.
_VALUES = st.sampled_from(["nil", "true", "false", "1", "2", "3", "0/0", "'x'", "{}", "print", "kept[1]", "..."])
_GIVEN = st.lists(_VALUES, max_size=3).map(", ".join)
_SIZES = st.sampled_from([1, 500, 900, 40_000, 65_000, 66_000])
_SIMPLE = st.one_of(
    _SIZES.map(lambda size: f"context.search(('a'):rep({size}))"),
    st.just("context.search('hold')"),
    st.just("context.call_tool('nothing', {})"),
    _VALUES.map(lambda value: f"log.info({value})"),
    _VALUES.map(lambda value: f"log.warn(('\\xff'):rep(3000), {value})"),
    _VALUES.map(lambda value: f"context.progress({value}, ('\\xff'):rep(600))"),
    _SLOTS.map(lambda slot: f"{slot} = coroutine.running()"),
    st.tuples(_SLOTS, _GIVEN).map(lambda p: f"coroutine.resume({p[0]}{', ' if p[1] else ''}{p[1]})"),
    _GIVEN.map(lambda given: f"for _, co in pairs(kept) do coroutine.resume(co{', ' if given else ''}{given}) end"),
    _SLOTS.map(lambda slot: f"pcall(coroutine.close, {slot})"),
    _GIVEN.map(lambda given: f"coroutine.yield({given})"),
    _VALUES.map(lambda value: f"error({value})"),
    st.just("error(('\\xff'):rep(9000), 0)"),
    st.just("error(setmetatable({}, {__tostring = function() log.info('a') return context.search('b') end}))"),
    st.integers(1, 6000).map(lambda n: f"for i = 1, {n} do hoard[#hoard + 1] = ('x'):rep(1000) .. i end"),
    st.just("hoard = {} collectgarbage()"),
    st.just("context.parallel({})"),
)


# Statements that hold others: `F` stands for a function, `G` for one that may be side by side with others.
_HOLDING = st.sampled_from(
    [
        *("context.parallel({G})", "context.parallel({G, G})", "context.parallel({G, F, G})"),
        *("pcall(F, ...)", "coroutine.wrap(F)()", "xpcall(error, F)", "for _ in F do break end"),
        *("SLOT = coroutine.create(F)\ncoroutine.resume(SLOT)", "SLOT = coroutine.create(F)"),
        *("table.sort({3, 1, 2}, F)", "('aa'):gsub('a', F)", "tostring(setmetatable({}, {__tostring = F}))"),
        *("local _ = setmetatable({}, {__index = F}).x", "do local _ <close> = setmetatable({}, {__close = F})\nS end"),
        *("local t = {} t['\\xff\\xfe'] = F t['\\xff\\xfe']()", "for i = 1, 3 do S end"),
        "local fs = {} for i = 1, 3 do fs[i] = G end context.parallel(fs)",
        "local fs = {} for i = 1, 80 do fs[i] = G end context.parallel(fs)",
    ]
)
_PLACE = re.compile(r"\b(F|G|S|SLOT)\b")


@st.composite
def _statement(draw: st.DrawFn, depth: int) -> str:
    if depth == 0 or draw(st.integers(0, 2)) == 0:
        return draw(_SIMPLE)
    slot = draw(_SLOTS)

    def block() -> str:
        return "\n".join(draw(st.lists(_statement(depth - 1), min_size=1, max_size=3)))

    def filled(place: re.Match[str]) -> str:
        match place[0]:
            case "SLOT":
                return slot
            case "S":
                return f"\n{block()}\n"
            case "G":  # it asks the host, and the others know of it
                known = f"{draw(_SLOTS)} = coroutine.running()"
                return f"function(...)\n{known}\npcall(context.search, ('b'):rep({draw(_SIZES)}))\n{block()}\nend"
        return f"function(...)\n{block()}\nend"

    return _PLACE.sub(filled, draw(_HOLDING))


tangle: Text = st.lists(_statement(3), min_size=1, max_size=4).map(
    lambda statements: (
        "agent = {}\nlocal kept, hoard = {}, {}\nfunction agent.resolve(args, config, context, ...)\n"
        + "\n".join(f"pcall(function(...)\n{s}\nend)" for s in statements[:-1])
        + f"\n{statements[-1]}\nend"
    )
)

"""What a worker keeps of scripts: bounded, the last used, and the same on both sides of the pipe."""

from hypothesis import given
from hypothesis import strategies as st
from lua_support import PRELUDE, run_source

from sandbox.vm import Code
from sandbox.wire import script_cache
from sandbox.wire.script_cache import ScriptCache

KEYS = [(f"{n:02}", "t.lua") for n in range(80)]
SIZES = {key: 1000 * n * n for n, key in enumerate(KEYS)}


@given(st.lists(st.sampled_from(KEYS), max_size=300))
def test_both_sides_of_the_pipe_keep_the_same_scripts_within_bounds(runs: list[script_cache.Key]) -> None:
    supervisor, worker = ScriptCache[bool](), ScriptCache[str]()
    last_used: list[script_cache.Key] = []
    for key in runs:
        has = supervisor.use(key) is not None
        if has:
            assert worker.use(key) == f"bytecode of {key}"
        else:
            assert worker.use(key) is None
            supervisor.add(key, SIZES[key], True)
            worker.add(key, SIZES[key], f"bytecode of {key}")
        last_used = [*(each for each in last_used if each != key), key]
    there = [key for key in last_used if supervisor.use(key)]
    assert len(there) <= script_cache.MAX_SCRIPTS
    assert sum(SIZES[key] for key in there) <= script_cache.MAX_BYTES
    # Nothing that was used later than one that is kept was thrown away, unless it is too large to be kept at all.
    after = last_used[last_used.index(there[0]) :] if there else []
    assert [key for key in after if SIZES[key] <= script_cache.MAX_BYTES] == there


def test_a_script_is_the_same_as_text_and_as_it_is_kept() -> None:
    source = """
    agent = {version = "1"}
    local function inner(n) if n == 0 then error("deep") end return inner(n - 1) + 1 end
    function agent.resolve(x, context)
        if x == "fail" then inner(2) end
        local hits = context.search(x)
        print("found", #hits)
        return {hits = hits, format = string.format("%5.1f", 2), self = agent.version}
    end
    """
    for x in ("q", "fail"):
        assert run_source(source, x) == run_source(source, x, compiled=True)
    assert "t.lua:3:" in run_source(source, "fail", compiled=True).traceback
    assert PRELUDE.compile(source.encode(), "t.lua", 1 << 20)[1] == b"b"


def test_what_does_not_compile_is_kept_as_text_and_says_why_in_the_run() -> None:
    for source in ("agent = {", "\x1bLua not bytecode"):
        assert PRELUDE.compile(source.encode(), "t.lua", 1 << 20) == Code(source.encode(), b"t")
        ran = run_source(source, compiled=True)
        assert (ran.kind, ran) == ("script_error", run_source(source))


def test_a_script_that_takes_more_memory_to_compile_than_it_may_is_kept_as_text() -> None:
    source = b"return {" + b"'x', " * 1_000_000 + b"}"
    assert PRELUDE.compile(source, "t.lua", 1 << 20) == Code(source, b"t")
    assert PRELUDE.compile(source, "t.lua", 64 << 20).mode == b"b"

"""Test mode, the additions of `engine test` to a Lua state: `core.lua` with what tests need, and their modules.

No state of an ordinary run has any of it: a worker compiles it when it is given its first test. The hook and the debug
functions behind it stay in the prelude's own locals, in tests too.
"""

from sandbox.wire.surface import HOST_CALLS

# The `root` of a run of a test file.
ROOT = "test"
# Files of the prelude that only tests load.
MODULES = ("testing", "expect", "coverage")

# The places for what test mode adds: comments in every other state.
PREFACE, _ENVIRONMENT, _MAIN = (f"--[[test mode: {place}]]" for place in ("preface", "environment", "main"))

_TEXTS = {
    # The modules, and the interpreter's functions that tests need, taken before the globals are emptied.
    PREFACE: f"""
        {", ".join(f"modules.{name}" for name in MODULES)} = select(-{len(MODULES)}, ...)
        local test = {{
            getinfo = debug.getinfo, sethook = debug.sethook, dump = string.dump, load = load, lower = string.lower,
            rawset = rawset,
        }}
    """,
    _ENVIRONMENT: f"""
        for name, f in next, test do kit[name] = f end
        test = nil
        kit.env, kit.secret_names, kit.build_context, kit.unmocked = env, secret_names, build_context, host_call
        kit.host_names = " {" ".join(HOST_CALLS)} "
        host_call = need("testing").host_call
        kit.host_call = host_call
    """,
    _MAIN: """
        do return need("testing").main(chunk, given[1], method) end
    """,
}


def core(source: bytes) -> bytes:
    """The text of `core.lua` for test mode, from that for other states."""
    for mark, text in _TEXTS.items():
        assert source.count(mark.encode()) == 1
        source = source.replace(mark.encode(), text.encode())
    return source

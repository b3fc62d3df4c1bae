"""One Lua state: made from the trusted prelude, given one script, stepped until it ends.

No Python object and no Python callable is ever reachable from Lua: the host calls three Lua functions and gets byte
strings back (`encoding=None`: a script's bytes never raise UnicodeDecodeError here). The allocator's limit is raised
around each push of bytes, because a push that the allocator refuses aborts the process (lupa 2.8, measured).
"""

import os
from pathlib import Path
from typing import Any, Literal

from lupa.lua54 import LuaError, LuaMemoryError, LuaRuntime

from sandbox import allowlist
from sandbox.messages import Run

_UNBOUNDED = 1 << 50
# What a failed script may use to have its error described: a traceback and a __tostring of its own.
_EPILOGUE_BYTES = 1 << 20
# How frames of the stripped prelude show in a traceback, and how the C functions that it calls do.
_PRELUDE_FRAMES = ("?:", "?", "[C]: in upvalue", "[C]: in ?", "(...tail calls...)")
_MODULES = ("json", "base64", "crypto", "http", "parallel")

Step = tuple[Literal["call", "calls", "log", "progress", "done", "failed", "memory"], Any, Any]


class Prelude:
    """The trusted Lua sources as bytecode, compiled once in the zygote and loaded into every fresh state."""

    def __init__(self) -> None:
        folder = Path(__file__).with_name("prelude")
        state = _new_state()
        # Stripped: half the size, so half the time to load; its frames are filtered from tracebacks anyway.
        dump = state.execute(b"local dump = string.dump; return function(f) return dump(f, true) end")
        self.core: bytes = dump(state.compile((folder / "core.lua").read_bytes(), name=b"=[engine]", mode="t"))
        self.fill: bytes = dump(state.compile(allowlist.render().encode(), name=b"=[engine]", mode="t"))
        self.modules: dict[str, bytes] = {  # in the order of _MODULES
            name: dump(state.compile((folder / f"{name}.lua").read_bytes(), name=b"=[engine]", mode="t"))
            for name in _MODULES
        }


def _new_state() -> LuaRuntime:
    return LuaRuntime(register_eval=False, register_builtins=False, encoding=None, max_memory=_UNBOUNDED)


# Loads what the prelude needs out of bytes, so that only bytes are pushed. Runs before any script exists.
# The collector is stopped for it: everything that is made here stays.
_BOOT = f"""
local core, fill, {", ".join(_MODULES)} = ...
collectgarbage("stop")
return load(core, "=[engine]", "b")(load(fill, "=[engine]", "b")(), {{ {", ".join(f"{m} = {m}" for m in _MODULES)} }})
""".encode()


class VM:
    """A fresh Lua state, good for one run. Made ahead while the worker idles; dropped afterwards."""

    def __init__(self, prelude: Prelude) -> None:
        self._lua = _new_state()
        self._put, self._begin, self._step, self._why = self._lua.execute(
            _BOOT, prelude.core, prelude.fill, *prelude.modules.values(), mode="t"
        )
        self._base = self._lua.get_memory_used()
        self._bound = _UNBOUNDED

    def begin(self, run: Run) -> None:
        """Hand over script and arguments. Runs nothing of the script."""
        seed = os.urandom(16)
        self._begin(
            run.source, run.chunk_name.encode(), run.root.encode(), run.method.encode(), run.args,
            run.output_bytes, run.value_depth, run.log_bytes, run.progress,
            int.from_bytes(seed[:8], "big", signed=True), int.from_bytes(seed[8:], "big", signed=True),
        )  # fmt: skip
        self._bound = self._base + run.memory_bytes
        self._lua.set_max_memory(self._bound)

    def put(self, value: bytes) -> None:
        """Store a host reply for the next step. It counts as the script's memory from the next allocation on."""
        self._lua.set_max_memory(_UNBOUNDED)
        self._put(value)
        self._lua.set_max_memory(self._bound)

    def step(self, reply: bool | None = None, call: int | None = None) -> Step:
        """Go on until the script calls the host, logs, reports progress or ends.

        `reply` says whether the host call that it waited for succeeded; `call` which one it was, of several.
        """
        try:
            answer = self._step(reply, call)
        except LuaMemoryError:  # refused in the driver itself, outside the script's coroutine
            return ("memory", None, None)
        if type(answer) is not tuple:
            answer = (answer,)
        kind = answer[0].decode()
        return (kind, answer[1] if len(answer) > 1 else None, answer[2] if len(answer) > 2 else None)

    def why(self) -> tuple[str, str, str]:
        """Kind, message and traceback of the last failed step. Text is decoded leniently: it is for people."""
        self._lua.set_max_memory(self._bound + _EPILOGUE_BYTES)
        try:
            kind, message, traceback = self._why()
        except LuaError:
            return ("script_error", "(the error could not be described)", "")
        return (kind.decode(), _text(message), _script_frames(_text(traceback)))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")


def _script_frames(traceback: str) -> str:
    """The traceback without the prelude's own frames: the script's lines, in its own numbers."""
    lines = traceback.splitlines()
    return "\n".join(line for line in map(str.strip, lines[1:]) if not line.startswith(_PRELUDE_FRAMES))

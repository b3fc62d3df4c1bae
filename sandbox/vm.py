"""One Lua state: made from the trusted prelude, given one script, stepped until it ends.

No Python object and no Python callable is ever reachable from Lua: the host calls four Lua functions and gets byte
strings back (`encoding=None`: a script's bytes never raise UnicodeDecodeError here). The allocator's limit is raised
around each push of bytes, because a push that the allocator refuses aborts the process (lupa 2.8, measured).
"""

import os
from pathlib import Path
from typing import Any, Literal

from lupa.lua54 import LuaError, LuaMemoryError, LuaRuntime

from sandbox import allowlist, stubs
from sandbox.wire.messages import Run
from sandbox.wire.surface import HOST_CALLS

_UNBOUNDED = 1 << 50
# Lua collects when the allocator refuses, but not where a stack is to grow (ldo.c 5.4.8, luaD_reallocstack): a script
# that has left garbage up to its bound finds room for what the answer of a host call needs.
_STACK_BYTES = 64 << 10
# What a failed script may use to have its error described: a traceback and a __tostring of its own.
_EPILOGUE_BYTES = 1 << 20
# How frames of the stripped prelude show in a traceback, and how the C functions that it calls do.
_PRELUDE_FRAMES = ("?:", "?", "[C]: in upvalue", "[C]: in ?", "(...tail calls...)")
# The parts of the prelude that a run loads when it first needs them: files, but for `host`, which is made of a list.
MODULES = (
    "wrapped", "coroutines", "log", "host", "parallel", "json", "base64", "crypto", "http", "describe", "failure",
    "mend",
)  # fmt: skip

# A script's text or bytecode, and which of the two (the mode of Lua's `load`).
Code = tuple[bytes, Literal[b"t", b"b"]]

_FOLDER = Path(__file__).with_name("prelude")
# Where `core.lua` has the functions that make host calls.
_HOST_CALLS = b"--[[host calls]]"

Step = tuple[Literal["call", "calls", "log", "progress", "done", "failed", "memory"], Any, Any]


class Prelude:
    """The trusted Lua sources as bytecode, compiled once in the zygote and loaded into every fresh state.

    `core` is the chunk that makes a state ready; its arguments are the `modules`, in the order of `MODULES`.
    """

    def __init__(self) -> None:
        state = _new_state()
        # Stripped: half the size, so half the time to load; its frames are filtered from tracebacks anyway.
        dump = state.execute(b"local dump = string.dump; return function(f) return dump(f, true) end")

        def compiled(source: bytes) -> bytes:
            bytecode: bytes = dump(state.compile(source, name=b"=[engine]", mode="t"))
            return bytecode

        self.core = compiled(core_source(state))
        self.modules = tuple(compiled(_module_source(name)) for name in MODULES)
        self._compiler = state
        self._dump = state.execute(b"local dump = string.dump; return function(f) return dump(f) end")

    def compile(self, source: bytes, name: str, memory_bytes: int) -> Code:
        """A script as a state loads it quickest: bytecode with its line numbers and names, or the text as it is where
        that does not compile within `memory_bytes`, so that the run says why.

        Only text goes in, in a state that runs no script: bytecode is as safe as who made it.
        """
        self._compiler.set_max_memory(self._compiler.get_memory_used() + memory_bytes)
        try:
            chunk = self._compiler.compile(source, name=b"=" + name.encode(), mode="t")
        except LuaError:
            return source, b"t"
        finally:
            self._compiler.set_max_memory(_UNBOUNDED)  # ahead of the call below, which pushes
        return self._dump(chunk), b"b"


def core_source(state: LuaRuntime) -> bytes:
    """The text of `core.lua`, for states that have the names of this one.

    What goes before it defines `cut` and `modules`, and stops the collector: everything that is made there stays.
    """
    found = state.execute(allowlist.INVENTORY.encode()).decode().split()
    preface = f"""
        collectgarbage("stop")
        local modules = {{}}
        {", ".join(f"modules.{name}" for name in MODULES)} = ...
        local cut = (function() {allowlist.render(found)} end)()
    """
    before, after = (_FOLDER / "core.lua").read_bytes().split(_HOST_CALLS)
    return preface.encode() + before + stubs.libraries(HOST_CALLS.values()).encode() + after


def _module_source(name: str) -> bytes:
    if name == "host":
        return stubs.module(HOST_CALLS.values()).encode()
    return (_FOLDER / f"{name}.lua").read_bytes()


def _new_state() -> LuaRuntime:
    return LuaRuntime(register_eval=False, register_builtins=False, encoding=None, max_memory=_UNBOUNDED)


class VM:
    """A fresh Lua state, good for one run. Made ahead while the worker idles; dropped afterwards."""

    def __init__(self, prelude: Prelude) -> None:
        self._lua = _new_state()
        self._put, self._begin, self._step, self._why = self._lua.execute(prelude.core, *prelude.modules, mode="b")
        self._base = self._lua.get_memory_used()
        self._bound = _UNBOUNDED

    def begin(self, run: Run, code: Code) -> None:
        """Hand over script and arguments. Runs nothing of the script."""
        seed = os.urandom(16)
        self._begin(
            *code, run.chunk_name.encode(), run.root.encode(), run.method.encode(), run.args,
            run.output_bytes, run.value_depth, run.log_bytes, run.progress,
            int.from_bytes(seed[:8], "big", signed=True), int.from_bytes(seed[8:], "big", signed=True),
        )  # fmt: skip
        self._bound = self._base + run.memory_bytes
        self._lua.set_max_memory(self._bound)

    def put(self, value: bytes) -> None:
        """Store a host reply for the next step. It counts as the script's memory from the next allocation on."""
        if self._lua.get_memory_used() + _STACK_BYTES > self._bound:
            self._lua.gccollect()
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

    def why(self) -> tuple[str, str, str, int]:
        """Kind, message and traceback of the last failed step, and how often a broken part of a text of this run became
        U+FFFD. Text is decoded leniently: it is for people.
        """
        self._lua.set_max_memory(self._bound + _EPILOGUE_BYTES)
        try:
            kind, message, traceback, replaced = self._why()
        except LuaError:
            return ("script_error", "(the error could not be described)", "", 0)
        replaced += message.decode("utf-8", "replace").count("\ufffd") - message.count("\ufffd".encode())
        return (kind.decode(), _text(message), _script_frames(_text(traceback)), replaced)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")


def _script_frames(traceback: str) -> str:
    """The traceback without the prelude's own frames: the script's lines, in its own numbers."""
    lines = traceback.splitlines()
    return "\n".join(line for line in map(str.strip, lines[1:]) if not line.startswith(_PRELUDE_FRAMES))

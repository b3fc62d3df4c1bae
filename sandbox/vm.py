"""One Lua state: made from the trusted prelude, given one script, stepped until it ends.

No Python object and no Python callable is ever reachable from Lua: the host calls four Lua functions and gets byte
strings back (`encoding=None`: a script's bytes never raise UnicodeDecodeError here). The allocator's limit is raised
around each push of bytes, because a push that the allocator refuses aborts the process (lupa 2.8, measured).
"""

import os
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lupa.lua54 import LuaError, LuaMemoryError, LuaRuntime

from sandbox import allowlist, stubs, testing
from sandbox.natives import natives
from sandbox.natives.files import Files
from sandbox.wire.messages import Run
from sandbox.wire.surface import HOST_CALLS

_UNBOUNDED = 1 << 50
# Lua collects garbage when the allocator refuses, but not when a stack grows (ldo.c 5.4.8, luaD_reallocstack): so
# collect first when a script's garbage leaves less than this below its bound.
_STACK_BYTES = 64 << 10
# Extra memory for describing a failed script's error: for a traceback, and for its own __tostring.
_EPILOGUE_BYTES = 1 << 20
# Frames of the stripped prelude in a traceback, and of the C functions that it calls.
_PRELUDE_FRAMES = ("?:", "?", "[C]: in upvalue", "[C]: in ?", "(...tail calls...)")
# Parts of the prelude that a run loads on first use: files, except `host`, which is generated.
MODULES = (
    "wrapped", "coroutines", "log", "host", "parallel", "json", "base64", "crypto", "http", "describe", "failure",
    "mend", "schema",
)  # fmt: skip

# Libraries that a run gets if its script's text contains their names: most scripts use none, and each costs a run a
# copy of its code. A script that computes the name gets the code when it calls the library.
LIBRARIES = (*allowlist.LOADED_WHOLE, "retry", "require", "scan", "team")

# Names of libraries with their code.
Libraries = tuple[tuple[bytes, bytes], ...]


class Code(NamedTuple):
    """A script's text or bytecode, which of the two (the mode of Lua's `load`), the libraries that it names, and the
    files that it requires.
    """

    script: bytes
    mode: Literal[b"t", b"b"]
    libraries: Libraries = ()
    files: Files | None = None


_FOLDER = Path(__file__).with_name("prelude")
# The places in `core.lua` for the functions that make host calls, and for the libraries that are loaded whole.
_HOST_CALLS, _LIBRARIES = b"--[[host calls]]", b"--[[libraries]]"

Step = tuple[Literal["call", "calls", "log", "progress", "done", "failed", "memory"], Any, Any]


class Prelude:
    """The trusted Lua sources as bytecode, compiled once in the zygote and loaded into every fresh state.

    `core` is the chunk that prepares a state; its arguments are the `modules`, in the order of `MODULES`.
    """

    def __init__(self) -> None:
        state = _new_state()
        # Stripped: half the size, so half the time to load; its frames are filtered from tracebacks anyway.
        dump = state.execute(b"local dump = string.dump; return function(f) return dump(f, true) end")

        def compiled(source: bytes) -> bytes:
            bytecode: bytes = dump(state.compile(source, name=b"=[engine]", mode="t"))
            return bytecode

        source = core_source(state)
        self.core = compiled(source)
        self.modules = tuple(compiled(_module_source(name)) for name in MODULES)
        self.natives = natives(self._library)
        self._libraries = {name.encode(): compiled(_module_source(name)) for name in LIBRARIES}
        # Test mode is compiled on its first use: the text, as a worker can open no file.
        self._test_sources = (source, *map(_module_source, testing.MODULES))
        self._tests: tuple[bytes, ...] = ()
        self._trusted = compiled
        self._compiler = state
        self._dump = state.execute(b"local dump = string.dump; return function(f) return dump(f) end")

    def text(self, source: bytes, files: Files | None = None) -> Code:
        """A script as it was sent, with the libraries that its text, or that of a file, names."""
        return Code(source, b"t", self.libraries_in(source, *files.codes.values() if files else ()), files)

    def libraries_in(self, *sources: bytes) -> Libraries:
        """The libraries that these texts name."""
        return tuple(each for each in self._libraries.items() if any(each[0] in source for source in sources))

    def chunks(self, *, tests: bool = False) -> tuple[bytes, ...]:
        """The chunk that prepares a state, and its arguments; for a run of a test file, those of test mode."""
        if not tests:
            return (self.core, *self.modules)
        if not self._tests:
            source, *sources = self._test_sources
            core, *modules = map(self._trusted, (testing.core(source), *sources))
            self._tests = (core, *self.modules, *modules)
        return self._tests

    def _library(self, name: bytes) -> bytes:
        return self._libraries[name]

    def compile(self, source: bytes, name: str, memory_bytes: int, files: Files | None = None) -> Code:
        """The form of a script that loads fastest: bytecode with debug information; or its text if that does not
        compile within `memory_bytes`, so that the run reports why.
        """
        text, bytecode = self.text(source, files), self._compiled(source, name, memory_bytes)
        return text if bytecode is None else text._replace(script=bytecode, mode=b"b")

    def compile_used(self, files: Files, memory_bytes: int) -> None:
        """Likewise for the files that the last run has loaded as text. It compiled each, so this takes no longer."""
        for name in files.used():
            if (bytecode := self._compiled(files.codes[name], name.decode(), memory_bytes)) is not None:
                files.put(name, bytecode)

    def _compiled(self, source: bytes, name: str, memory_bytes: int) -> bytes | None:
        """Bytecode with debug information, or None.

        Only text is compiled, in a state that runs no script: bytecode is only as safe as its compiler.
        """
        self._compiler.set_max_memory(self._compiler.get_memory_used() + memory_bytes)
        try:
            chunk = self._compiler.compile(source, name=b"=" + name.encode(), mode="t")
        except LuaError:
            return None
        finally:
            self._compiler.set_max_memory(_UNBOUNDED)  # before the call below, which pushes
        bytecode: bytes = self._dump(chunk)
        return bytecode


def core_source(state: LuaRuntime) -> bytes:
    """The text of `core.lua`, for states with the same names as this one.

    The preface defines `cut` and `modules`, and stops the collector: all objects made there are permanent.
    """
    found = state.execute(allowlist.INVENTORY.encode()).decode().split()
    preface = f"""
        collectgarbage("stop")
        local modules = {{}}
        {", ".join(f"modules.{name}" for name in MODULES)} = ...
        {testing.PREFACE}
        local cut = (function() {allowlist.render(found)} end)()
    """
    core = (_FOLDER / "core.lua").read_bytes()
    whole = " ".join(f"env.{name} = library({name!r})" for name in allowlist.LOADED_WHOLE)
    core = core.replace(_LIBRARIES, whole.encode())
    return preface.encode() + core.replace(_HOST_CALLS, stubs.libraries(HOST_CALLS.values()).encode())


def _module_source(name: str) -> bytes:
    if name == "host":
        return stubs.module(HOST_CALLS.values()).encode()
    return (_FOLDER / f"{name}.lua").read_bytes()


def _new_state() -> LuaRuntime:
    return LuaRuntime(register_eval=False, register_builtins=False, encoding=None, max_memory=_UNBOUNDED)


class VM:
    """A fresh Lua state for one run. Made in advance while the worker is idle; dropped after the run.

    With `tests`, one for a run of a test file.
    """

    def __init__(self, prelude: Prelude, *, tests: bool = False) -> None:
        self._lua = _new_state()
        self._put, self._begin, self._step, self._why, self._give = self._lua.execute(
            *prelude.chunks(tests=tests), mode="b"
        )
        self.natives = prelude.natives
        self._base = self._lua.get_memory_used()
        self._bound = _UNBOUNDED

    def begin(self, run: Run, code: Code) -> None:
        """Pass the script, its arguments and the libraries that it names. Runs nothing of the script."""
        if code.libraries:
            for name, library in code.libraries:
                self._give(name, library)
            self._base = self._lua.get_memory_used()
        if code.files is not None:
            self.natives = {**self.natives, b"require:code": code.files.code}
        seed = os.urandom(48)
        self._begin(
            code.script, code.mode, run.chunk_name.encode(), run.root.encode(), run.method.encode(), run.args,
            run.output_bytes, run.value_depth, run.log_bytes, run.progress,
            int.from_bytes(seed[:8], "big", signed=True), int.from_bytes(seed[8:16], "big", signed=True), seed[16:],
            time.time() + run.timeout_s,
        )  # fmt: skip
        self._bound = self._base + run.memory_bytes
        self._lua.set_max_memory(self._bound)

    def put(self, value: bytes) -> None:
        """Store a host reply for the next step. From the next allocation on it counts as the script's memory."""
        if self._lua.get_memory_used() + _STACK_BYTES > self._bound:
            self._lua.gccollect()
        self._lua.set_max_memory(_UNBOUNDED)
        self._put(value)
        self._lua.set_max_memory(self._bound)

    def step(self, reply: bool | None = None, call: int | None = None) -> Step:
        """Resume the script until it calls the host, logs, reports progress or ends.

        `reply` says whether the host call that it waited for succeeded; `call` is the number of that call, if numbered.
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
        """Kind, message and traceback of the last failed step, and how many broken parts of texts of this run became
        U+FFFD. Text that is not UTF-8 is replaced: people read it.
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
    """The traceback without the prelude's frames."""
    lines = traceback.splitlines()
    return "\n".join(line for line in map(str.strip, lines[1:]) if not line.startswith(_PRELUDE_FRAMES))

"""The Lua names a script may see, as data: kept, wrapped or removed, each with its reason.

The prelude's environment builder is generated from this table (`render`), so a name that is not in it cannot reach a
script; `tests/sandbox/test_allowlist.py` compares the table with what the interpreter really defines, so that an
upgrade which adds a name fails the build instead of widening the surface.
"""

from dataclasses import dataclass
from typing import Literal

Action = Literal["keep", "wrap", "remove"]


@dataclass(frozen=True, slots=True)
class Name:
    """One name of the interpreter (`string.rep`). `wrap` means: the prelude provides its own function of that name."""

    path: str
    action: Action
    reason: str


def _many(action: Action, reason: str, prefix: str, names: str) -> tuple[Name, ...]:
    return tuple(Name(prefix + name, action, reason) for name in names.split())


_PURE = "pure computation; its time is bounded by the kill, its memory by the allocator"
_HOST = "reaches files, processes or the host's environment"
_CODE = "loads code: bytecode can break memory safety, and scripts rarely need it"

NAMES: tuple[Name, ...] = (
    *_many("keep", _PURE, "", "ipairs next pairs pcall xpcall select type tonumber"),
    *_many("keep", "raw access to the script's own values", "", "rawequal rawget rawlen rawset"),
    Name("_VERSION", "keep", "a constant"),
    Name("error", "wrap", "the text 'not enough memory' must stay the allocator's own"),
    Name("assert", "wrap", "as error"),
    Name("tostring", "wrap", "hides addresses, which would reveal the address space layout"),
    Name("setmetatable", "wrap", "refuses __gc: finalizers run outside every limit but the kill"),
    Name("getmetatable", "wrap", "the metatable of strings is shared with the prelude"),
    Name("print", "wrap", "writes to the run's log, never to a descriptor"),
    Name("collectgarbage", "wrap", "only 'count': the other options change how memory is accounted"),
    Name("_G", "wrap", "the script's own environment, not the interpreter's"),
    *_many("remove", _CODE, "", "load loadfile dofile require package"),
    Name("warn", "remove", "writes to standard error"),
    Name("debug", "remove", "reaches every upvalue and the registry"),
    Name("io", "remove", _HOST),
    Name("python", "remove", "reaches the host interpreter"),
    *_many("keep", _PURE, "string.", "byte char find gmatch gsub len lower match pack packsize rep reverse sub"),
    *_many("keep", _PURE, "string.", "unpack upper"),
    Name("string.format", "wrap", "refuses %p and hides addresses under %s"),
    Name("string.dump", "remove", _CODE),
    *_many("keep", _PURE, "table.", "concat insert move pack remove sort unpack"),
    *_many("keep", _PURE, "math.", "abs acos asin atan ceil cos deg exp floor fmod huge log max maxinteger min"),
    *_many("keep", _PURE, "math.", "mininteger modf pi rad random sin sqrt tan tointeger type ult"),
    Name("math.randomseed", "wrap", "without arguments it returns an address as part of the seed"),
    *_many("keep", _PURE, "utf8.", "char charpattern codepoint codes len offset"),
    *_many("keep", "the clock; the time zone is UTC", "os.", "clock difftime time"),
    Name("os.date", "wrap", "caps the format: a long one multiplies its length"),
    *_many("remove", _HOST, "os.", "execute exit getenv remove rename setlocale tmpname"),
    *_many("keep", "acts on the script's own coroutines", "coroutine.", "create close status"),
    *_many("wrap", "a host call of a nested coroutine passes upward", "coroutine.", "resume wrap"),
    *_many("wrap", "the coroutine that a run is made of must not be seen to be one", "coroutine.", "yield"),
    *_many(
        "wrap", "the coroutine that a run is made of must not be seen to be one", "coroutine.", "isyieldable running"
    ),
)

# What the prelude adds to the interpreter's names. `tests` compare the environment of a real run with both.
ADDED: tuple[str, ...] = (
    "json.parse", "json.decode", "json.encode", "json.null", "json.array",
    "base64.encode", "base64.decode",
    "crypto.sha256", "crypto.hmac_sha256",
    "log.debug", "log.info", "log.warn", "log.error",
    "http.get", "http.post", "http.put", "http.patch", "http.delete", "http.basic_auth",
    "env.get",
    "fs.read", "fs.list",
    "sleep",
    "secrets",
)  # fmt: skip

LIBRARIES = ("string", "table", "math", "utf8", "os", "coroutine")


def render() -> str:
    """Lua source of `function(env, real, wrapped)` that fills `env` with exactly the kept and wrapped names."""
    lines = ["return function(env, real, wrapped)", "local from"]
    for library in ("", *LIBRARIES):
        names = [n for n in NAMES if n.path.rpartition(".")[0] == library and n.action != "remove" and n.path != "_G"]
        table = f"env.{library}" if library else "env"
        if library:
            lines.append(f"env.{library} = {{}}; from = real.{library}")
        else:
            lines.append("env._G = env; from = real")
        into = "local into = " + table
        lines.append("do " + into)
        for name in names:
            short = name.path.rpartition(".")[2]
            source = f"from.{short}" if name.action == "keep" else f"wrapped[{name.path!r}]"
            lines.append(f"into[{short!r}] = {source}")
        lines.append("end")
    lines.append("return env end")
    return "\n".join(lines)

"""The Lua names that a script may see, as data: kept, wrapped or removed, each with its reason.

A script's environment is a table of its own with the interpreter's libraries, from which `render` removes every name
that is not kept here. `render` is given all names that the interpreter defines, so names that are missing in this list
are removed, too; `tests/sandbox/test_allowlist.py` compares the two, and an upgrade that adds a name fails the build.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sandbox.wire.surface import HOST_CALLS

Action = Literal["keep", "wrap", "remove"]


@dataclass(frozen=True, slots=True)
class Name:
    """One name of the interpreter (`string.rep`). `wrap` replaces it by the member `path` of the prelude's `module`."""

    path: str
    action: Action
    reason: str
    module: str = "wrapped"


def _many(action: Action, reason: str, prefix: str, names: str, module: str = "wrapped") -> tuple[Name, ...]:
    return tuple(Name(prefix + name, action, reason, module) for name in names.split())


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
    Name("print", "wrap", "writes to the run's log, never to a descriptor", "log"),
    Name("collectgarbage", "wrap", "only 'count': the other options change how memory is accounted"),
    Name("_G", "wrap", "the script's own environment, not the interpreter's, in which lupa looks for `debug`"),
    Name("require", "wrap", "only files of the script's own package, as source text", "require"),
    *_many("remove", _CODE, "", "load loadfile dofile package"),
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
    *_many("keep", "acts on the script's own coroutines", "coroutine.", "create status"),
    Name("coroutine.close", "wrap", "one that waits for the host must not be taken from under its call", "coroutines"),
    *_many("wrap", "a host call of a nested coroutine passes upward", "coroutine.", "resume wrap", "coroutines"),
    *_many(
        "wrap",
        "the coroutine that a run is made of must not be seen to be one",
        "coroutine.",
        "yield isyieldable running",
        "coroutines",
    ),
)

# Libraries that are loaded whole when one of their members is first read, each a file of the prelude.
LOADED_WHOLE: dict[str, tuple[str, ...]] = {
    "html": ("text", "select"),
    "yaml": ("parse",),
    "gzip": ("compress", "decompress"),
    "template": ("render",),
    "csv": ("parse", "encode"),
    "hash": ("md5", "sha1", "sha512", "blake2"),
    "uuid": ("v4", "v7"),
    "time": ("now", "parse", "format", "parts", "add", "duration"),
    "text": ("sub", "len", "trim", "split", "wrap", "dedent", "upper", "lower", "title", "similarity", "tokens"),
    "url": ("parse", "build", "encode", "decode", "query"),
    "regex": ("find", "match", "gmatch", "gsub", "split"),
    "kv": ("get", "set", "delete", "list", "incr"),
}

# Names that the prelude adds. Tests compare the environment of a real run with both lists.
ADDED: tuple[str, ...] = (
    "json.parse", "json.decode", "json.encode", "json.null", "json.array",
    "base64.encode", "base64.decode",
    "crypto.sha256", "crypto.hmac_sha256",
    "log.debug", "log.info", "log.warn", "log.error",
    "http.basic_auth",
    "retry",
    *(f"{library}.{member}" for library, members in LOADED_WHOLE.items() for member in members),
    "secrets",
    *(call.name for call in HOST_CALLS.values() if call.library not in ("context", "context.team", *LOADED_WHOLE)),
)  # fmt: skip

LIBRARIES = ("string", "table", "math", "utf8", "os", "coroutine")


# Lua source that returns the path of every global of the state, and of every member of its libraries.
INVENTORY = f"""
local names = {{}}
for name, value in next, _G do
    names[#names + 1] = name
    if (" {" ".join(LIBRARIES)} "):find(" " .. name .. " ", 1, true) then
        for member in next, value do names[#names + 1] = name .. "." .. member end
    end
end
return table.concat(names, " ")
"""


def render(found: Iterable[str]) -> str:
    """Lua source of `function(real, stub)`, which returns the environment of a script and empties `real`.

    `found` are the names that the state has (`INVENTORY`): from libraries, every name that is not kept is removed.
    `stub(module, member)` makes a function that calls one of the prelude's. Raises ValueError for a name that is not an
    identifier.
    """
    known = {name.path: name for name in NAMES if name.action != "remove"}
    given, cuts = [], []
    for path in sorted(found):
        if not path.replace(".", "").isidentifier():
            raise ValueError(f"the interpreter has a name that cannot be written down: {path!r}")
        name = known.get(path)
        wrapped = f"stub({name.module!r}, {path!r})" if name is not None and name.action == "wrap" else None
        if "." not in path:
            cuts.append(f"real.{path} = nil")
            if path != "_G" and (name is not None or path in LIBRARIES):  # core.lua sets _G to this table
                given.append(f"{path} = {wrapped or f'real.{path}'}")
        elif name is None or wrapped:
            cuts.insert(0, f"real.{path} = {wrapped or 'nil'}")  # before the library's own global is removed
    lines = ["return function(real, stub)", f"local env = {{ {', '.join(given)} }}", *cuts, "return env", "end"]
    return "\n".join(lines)

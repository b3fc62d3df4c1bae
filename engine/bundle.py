"""The files of its own package that a script requires: found in its text when it is loaded, never while it runs. Pure.

`require("./lib/text")` with one literal text names a file; a name made at run time finds what was found here. The text
is searched in one pass that knows strings and comments and nothing else of Lua, so its time is linear in its length.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

# Bounds of one bundle. Its bytes, the script's among them, are bounded by `limits.source_bytes`.
MAX_FILES = 32
MAX_NAME_BYTES = 512
_SHOWN_BYTES = 128

# The files by their names from the package's folder, in the order of their names.
Modules = tuple[tuple[str, bytes], ...]
# Returns a file's content, of which at most so many bytes are allowed. Raises Unreadable.
Read = Callable[[str, int], bytes]


class Unreadable(Exception):
    """Why a file cannot be required, as a sentence without its name."""


class NotBundled(Exception):
    """A call of `require` that cannot be resolved. `message` begins with its file and line.

    `line` is the line of the script itself, None for a call in another file.
    """

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.message, self.line = message, line


# ---- the text -------------------------------------------------------------------------------------------------------

# Everything that needs no decision, in one step in C. It ends before `require`, a long bracket, and a dot or colon that
# no name follows at once. All repeats are possessive: nothing is tried twice, and no position is kept for it.
_BLANK = rb"(?:[ \t\n\v\f]++|--(?!\[=*+\[)[^\n]*+)*+"
_ESCAPED = rb"\\(?:z[ \t\n\v\f]*+|[\s\S])"
_SHORT = rb'"(?:[^"\\\n]++|' + _ESCAPED + rb')*+"?+|' + rb"'(?:[^'\\\n]++|" + _ESCAPED + rb")*+'?+"
_DULL = re.compile(
    rb"""(?:[^"'\-\[.:\w]++|(?!require\b)\w++|\.\.++|::++|[.:]\w++|-(?!-)|\[(?!=*+\[)|--(?!\[=*+\[)[^\n]*+|"""
    + _SHORT
    + rb")*+"
)
_LONG = re.compile(rb"(?:--)?+\[(=*+)\[")
_SKIPPED, _WORD, _LITERAL = re.compile(_BLANK), re.compile(rb"\w*+"), re.compile(_SHORT)
# Lua takes each of these for one line (llex.c, inclinenumber).
_LINE_END = re.compile(rb"\r\n?|\n\r")


def requires(source: bytes) -> Iterator[tuple[bytes, int]]:
    """The names in calls of `require` with one literal text, and their lines. No name appears twice.

    A call is recognized by its text: a local function of that name is taken for the global one.
    """
    if b"require" not in source:
        return
    if b"\r" in source:
        source = _LINE_END.sub(b"\n", source)
    seen: set[bytes] = set()
    at, line, counted = 0, 1, 0
    while (at := _match(_DULL, source, at)) < len(source):
        begin = at
        if source[at] in b".:":  # of a member or method, whatever its name
            at = _match(_WORD, source, _after_blank(source, at + 1))
        elif source[at] == ord("r"):
            name, at = _argument(source, at + len("require"))
            if name is not None and name not in seen:
                seen.add(name)
                line, counted = line + source.count(b"\n", counted, begin), begin
                yield name, line
        else:
            _, at = _long(source, at)


def _match(pattern: re.Pattern[bytes], source: bytes, at: int) -> int:
    found = pattern.match(source, at)
    return at if found is None else found.end()


def _long(source: bytes, at: int) -> tuple[bytes, int]:
    """The content of the long bracket that opens here, and its end. One that is not closed goes on to the end."""
    opened = _LONG.match(source, at)
    assert opened is not None
    close = b"]" + opened[1] + b"]"
    end = source.find(close, opened.end())
    return (b"", len(source)) if end < 0 else (source[opened.end() : end], end + len(close))


def _after_blank(source: bytes, at: int) -> int:
    """The end of white space and comments."""
    while True:
        at = _match(_SKIPPED, source, at)
        if not source.startswith(b"--", at):
            return at
        _, at = _long(source, at)


def _argument(source: bytes, at: int) -> tuple[bytes | None, int]:
    """The literal text that `require`, which ends here, is called with, or None; and where to go on."""
    at = _after_blank(source, at)
    inside = source.startswith(b"(", at)
    if inside:
        at = _after_blank(source, at + 1)
    name: bytes | None
    if source.startswith((b'"', b"'"), at):
        end = _match(_LITERAL, source, at)
        name = _unescaped(source[at:end])
    elif source.startswith(b"[", at) and _LONG.match(source, at):
        name, end = _long(source, at)
        name = name.removeprefix(b"\n")
    else:
        return None, at
    if inside:
        end = _after_blank(source, end)
        if not source.startswith(b")", end):
            return None, end
    return name, end


# Lua's escapes (manual, 3.1), but for those of line ends and `\u{...}`, which no name of a file needs.
_ESCAPE = re.compile(rb"\\(?:([abfnrtv\\\"'])|x([0-9A-Fa-f]{2})|([0-9]{1,3})|(z)[ \t\n\v\f]*+)?")
_LETTERS = dict(zip(b"abfnrtv\\\"'", b"\a\b\f\n\r\t\v\\\"'", strict=True))


def _unescaped(literal: bytes) -> bytes | None:
    """The value of a short string with its quotation marks, or None if it is none, or too long to name a file."""
    quoted = literal[1:-1]
    if len(literal) < 2 or literal[-1] != literal[0] or len(quoted) > 4 * MAX_NAME_BYTES:
        return None
    if b"\\" not in quoted:
        return quoted
    parts, at = [], 0
    for escape in _ESCAPE.finditer(quoted):
        letter, hexadecimal, decimal, z = escape.groups()
        parts.append(quoted[at : escape.start()])
        at = escape.end()
        if letter:
            parts.append(bytes([_LETTERS[letter[0]]]))
        elif hexadecimal or decimal:
            value = int(hexadecimal, 16) if hexadecimal else int(decimal)
            if value > 255:
                return None
            parts.append(bytes([value]))
        elif not z:
            return None
    return b"".join([*parts, quoted[at:]])


# ---- the files ------------------------------------------------------------------------------------------------------


def bundle(main: str, source: bytes, read: Read, most: int) -> Modules:
    """The files that a script requires, and those that they require. Raises NotBundled.

    `main` is the script's own name from the package's folder; `most` is the bound on the bytes of all, by
    `limits.source_bytes`.
    """
    if b"require" not in source:  # nearly every script
        return ()
    gathering = _Gathering(main, read, most)
    gathering.visit(main, source)
    return tuple(sorted(gathering.found.items()))


def bundle_of(files: Mapping[str, str], main: str, most: int) -> Modules:
    """`bundle` of a published package, whose files are texts. Raises NotBundled."""

    def read(name: str, left: int) -> bytes:
        text = files.get(name)
        if text is None:
            raise Unreadable(f"the package has no file {name}")
        return text.encode()

    return bundle(main, files[main].encode(), read, most)


@dataclass(slots=True)
class _Gathering:
    """The walk from file to file, in depth, at most MAX_FILES deep. `chain` are the files that lead to the present."""

    main: str
    read: Read
    most: int
    found: dict[str, bytes] = field(default_factory=dict)
    chain: list[str] = field(default_factory=list)
    size: int = 0

    def visit(self, file: str, source: bytes) -> None:
        self.chain.append(file)
        self.size += len(source)
        self.check_size(file)
        for raw, line in requires(source):
            if not is_path(raw):
                continue  # of a library or a function of the script's own: the run says what it is
            try:
                name = file_of(raw)
                if name in self.chain:
                    raise Unreadable(f"a cycle: {' -> '.join([*self.chain[self.chain.index(name) :], name])}")
                if name not in self.found:
                    self.add(name)
            except Unreadable as why:
                shown = file.rpartition("/")[2] if file == self.main else file
                message = f'{shown}:{line}: require("{_shown(raw)}"): {why}'
                raise NotBundled(message, line if file == self.main else None) from None
        self.chain.pop()

    def add(self, name: str) -> None:
        if len(self.found) == MAX_FILES:
            raise Unreadable(f"one file too many; a script may require {MAX_FILES}")
        try:
            source = self.read(name, self.most - self.size)
        except Unreadable as why:
            beside = f"; names begin at the package's folder, in {self.chain[-1]} too" if "/" in self.chain[-1] else ""
            raise Unreadable(f"{why}{beside}") from None
        if source.startswith(b"\x1bLua"):
            raise Unreadable("the file is Lua bytecode; only source is accepted")
        self.found[name] = source
        self.visit(name, source)

    def check_size(self, file: str) -> None:
        if self.size > self.most:
            message = f"{file}: the script and what it requires are larger than {self.most} bytes (limits.source_bytes)"
            raise NotBundled(message, None)


def is_path(name: bytes) -> bool:
    """Whether a name is meant for a file: `./x`; also `../x` and `/x`, which are refused."""
    return name.startswith((b".", b"/"))


def file_of(name: bytes) -> str:
    """The file that a name stands for, from the package's folder: `lib/text.lua` for `./lib/text`.

    Raises Unreadable for a name that is not plain, or leaves the package.
    """
    if len(name) > MAX_NAME_BYTES:
        raise Unreadable(f"a name of {len(name)} bytes; the limit is {MAX_NAME_BYTES}")
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise Unreadable("the name is not UTF-8") from None
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise Unreadable("the name has a zero byte or another control character")
    if "\\" in text:
        raise Unreadable("the name has a backslash; the separator is '/'")
    if text.startswith("/"):
        raise Unreadable("an absolute name; names begin with './', at the package's folder")
    first, *parts = text.split("/")
    if first == ".." or ".." in parts:
        raise Unreadable("leaves the package; names begin at its folder, and have no '..'")
    if first != "." or not parts:
        raise Unreadable("a name begins with './'")
    if "" in parts or "." in parts:
        raise Unreadable("the name has an empty part, or '.', after './'")
    path = "/".join(parts)
    return path if path.endswith(".lua") else f"{path}.lua"


def _shown(name: bytes) -> str:
    text = name[:_SHOWN_BYTES].decode(errors="backslashreplace")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text) + "…" * (len(name) > _SHOWN_BYTES)

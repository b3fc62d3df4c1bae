"""The files of its own package that a script requires: found in its text when it is loaded, never while it runs. Pure.

`require("./lib/text")` with one literal text names a file; a name made at run time finds what was found here. The text
is searched in one pass that knows strings and comments and nothing else of Lua, so its time is linear in its length.
"""

import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

# Bounds of one bundle. Its bytes, the script's among them, are bounded by `limits.source_bytes`.
MAX_FILES = 32
MAX_NAME_BYTES = 512
# Of calls of `require`, long texts, comments and the like in all files together, each of which takes some microseconds.
MAX_STEPS = 50_000
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


@dataclass(slots=True)
class Steps:
    """Counts the work in a bundle's texts that is not done in C."""

    left: int = MAX_STEPS

    def take(self) -> None:
        """Raises NotBundled."""
        self.left -= 1
        if self.left < 0:
            raise NotBundled(
                f"files that use require have more than {MAX_STEPS} long texts, comments and calls of it", None
            )


# ---- the text -------------------------------------------------------------------------------------------------------

# What needs no decision, in one step in C; what is left are long strings, words and comments, long brackets, `require`,
# and a dot or colon that no name follows at once. Every repeat is possessive, so that nothing is tried twice, and
# bounded, also in all: a step takes at most 128 strings of 64 parts of 66 bytes, as `re` keeps the interpreter from
# other threads meanwhile. What it leaves to the next step, in strings the longest, costs a step of `Steps` each: those
# of one file of 4 MiB are fewer than there are.
_BLANK = rb"[ \t\n\v\f\r]"
_ESCAPE_SEQUENCE = rb"\\(?:\r\n|\n\r|z" + _BLANK + rb"{0,64}+(?!" + _BLANK + rb")|[^z])"
_INSIDE = {quote: rb"(?:[^" + quote + rb"\\\n\r]{1,32}+|" + _ESCAPE_SEQUENCE + rb")" for quote in (b'"', b"'")}
_DULL = re.compile(
    rb"""(?:[^"'\-\[.:\w]{1,256}+|(?!require\b)\w{1,256}+(?!\w)|\.{2,256}+|:{2,256}+|[.:]\w{1,256}+(?!\w)|-(?!-)|"""
    + rb"\[(?![\[=])|"
    + b"|".join(quote + inside + b"{0,64}+" + quote for quote, inside in _INSIDE.items())
    + rb"|--(?!\[)[^\n\r]{0,512}+[\n\r]){0,128}+"
)
_IN_STRING = {ord(quote): re.compile(inside + b"{0,256}+") for quote, inside in _INSIDE.items()}
_BLANKS, _WORD = re.compile(_BLANK + rb"*+"), re.compile(rb"\w*+")
_LONG, _IN_COMMENT = re.compile(rb"\[(=*+)\["), re.compile(rb"[^\n\r]*+")
_WINDOW = 1 << 16


def requires(source: bytes, steps: Steps | None = None) -> Iterator[tuple[bytes, int]]:
    """The names in calls of `require` with one literal text, and their lines. No name appears twice.

    A call is recognized by its text: a local function of that name is taken for the global one. Raises NotBundled.
    """
    if b"require" not in source:
        return
    text = _Text(source, Steps() if steps is None else steps)
    seen: set[bytes] = set()
    line, counted = 1, 0
    for name, begin in text.calls():
        if name not in seen:
            seen.add(name)
            line, counted = line + _lines(source[counted:begin]), begin
            yield name, line


def _lines(source: bytes) -> int:
    """The ends of lines, of which Lua takes two different ones in a row for one (llex.c, inclinenumber)."""
    if b"\r" not in source:
        return source.count(b"\n")
    count = begin = 0
    while begin < len(source):  # in slices: replacing takes 30 ms a megabyte, in one step in C
        end = begin + _WINDOW
        if source[end - 1 : end + 1] in (b"\r\n", b"\n\r"):
            end += 1
        part = source[begin:end].replace(b"\r\n", b"\n").replace(b"\n\r", b"\n").replace(b"\r", b"\n")
        count, begin = count + part.count(b"\n"), end
    return count


@dataclass(slots=True)
class _Text:
    """A source, read from left to right; `at` is the present place."""

    source: bytes
    steps: Steps
    at: int = 0

    def calls(self) -> Iterator[tuple[bytes, int]]:
        """The name in each call with one literal text, and where the call begins."""
        source = self.source
        while self.at < len(source):
            begin = self.at
            self.match(_DULL)
            if self.at > begin:
                continue
            self.steps.take()
            first = source[begin]
            if first in _IN_STRING:
                self.string()
            elif first in b".:":  # of a member or method, whatever its name
                self.at += 1
                self.blanks()
                self.run(_WORD)
            elif first == ord("-"):
                self.comment()
            elif first == ord("["):
                self.long()
            else:
                self.run(_WORD)
                if source[begin : self.at] == b"require" and (name := self.argument()) is not None:
                    yield name, begin

    def match(self, pattern: re.Pattern[bytes]) -> None:
        found = pattern.match(self.source, self.at)
        if found is not None:
            self.at = found.end()

    def run(self, pattern: re.Pattern[bytes]) -> None:
        """Pass all characters of one kind."""
        end = self.at
        while self.at == end < len(self.source):
            end = self.at + _WINDOW
            found = pattern.match(self.source, self.at, end)
            self.at = self.at if found is None else found.end()

    def blanks(self) -> None:
        """Pass white space and comments."""
        self.run(_BLANKS)
        while self.source.startswith(b"--", self.at):
            self.steps.take()
            self.comment()
            self.run(_BLANKS)

    def comment(self) -> None:
        self.at += 2
        if not self.source.startswith(b"[", self.at) or self.long() is None:
            self.run(_IN_COMMENT)
            self.at = min(self.at + 1, len(self.source))

    def long(self) -> bytes | None:
        """Pass a long bracket; one that is not closed goes on to the end. None for another bracket, which is passed."""
        opened = _LONG.match(self.source, self.at)
        if opened is None:
            self.at += 1
            return None
        begin, close = opened.end(), b"]" + opened[1] + b"]"
        end = self.source.find(close, begin)
        self.at = len(self.source) if end < 0 else end + len(close)
        return self.source[begin:end] if end >= 0 else b""

    def string(self) -> bytes | None:
        """Pass a short string. None if it is too long for a name, or is not closed in its line."""
        begin, quote = self.at + 1, self.source[self.at]
        end = self.at
        self.at += 1
        while self.at > end:
            end = self.at
            self.match(_IN_STRING[quote])
            if self.source.startswith(b"\\z", self.at):
                self.at += 2
                self.run(_BLANKS)
        if self.source[self.at : self.at + 1] != bytes([quote]):
            return None
        self.at += 1
        return None if end - begin > 4 * MAX_NAME_BYTES else self.source[begin:end]

    def argument(self) -> bytes | None:
        """The literal text that `require`, which ends here, is called with, or None."""
        self.blanks()
        inside = self.source.startswith(b"(", self.at)
        if inside:
            self.at += 1
            self.blanks()
        name: bytes | None = None
        if self.source.startswith((b'"', b"'"), self.at):
            quoted = self.string()
            name = None if quoted is None else _unescaped(quoted)
        elif _LONG.match(self.source, self.at):
            name = _FIRST_LINE_END.sub(b"", self.long() or b"", count=1)
        if inside and name is not None:
            self.blanks()
            if not self.source.startswith(b")", self.at):
                return None
        return name


_FIRST_LINE_END = re.compile(rb"\A(?:\r\n?|\n\r?)")


# Lua's escapes (manual, 3.1), but for those of line ends and `\u{...}`, which no name of a file needs.
_ESCAPE = re.compile(rb"\\(?:([abfnrtv\\\"'])|x([0-9A-Fa-f]{2})|([0-9]{1,3})|(z)[ \t\n\v\f\r]*+)?")
_LETTERS = dict(zip(b"abfnrtv\\\"'", b"\a\b\f\n\r\t\v\\\"'", strict=True))


def _unescaped(quoted: bytes) -> bytes | None:
    """The value of what is between quotation marks; None for one with other escapes."""
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
    steps: Steps = field(default_factory=Steps)
    size: int = 0

    def visit(self, file: str, source: bytes) -> None:
        self.chain.append(file)
        self.size += len(source)
        self.check_size(file)
        for raw, line in requires(source, self.steps):
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
        if is_bytecode(source):
            raise Unreadable("the file is Lua bytecode; only source is accepted")
        self.found[name] = source
        self.visit(name, source)

    def check_size(self, file: str) -> None:
        if self.size > self.most:
            message = f"{file}: the script and what it requires are larger than {self.most} bytes (limits.source_bytes)"
            raise NotBundled(message, None)


def is_bytecode(source: bytes) -> bool:
    """Whether a script is no text, also after the byte order mark that `Script.from_source` removes."""
    return source.removeprefix(BOM_UTF8).startswith(b"\x1bLua")


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

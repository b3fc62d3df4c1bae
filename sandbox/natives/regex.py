"""Regular expressions in linear time: RE2, over bytes that are UTF-8 or are not matched by `.` and classes."""

import struct
from array import array
from collections.abc import Iterator
from contextlib import suppress

import re2

from sandbox.natives.refused import Refused

# A pattern of this size takes 15 ms to compile.
MAX_PATTERN_BYTES = 64 * 1024
MAX_GROUPS = 99
# What one compiled pattern may take with the automata built from it during use, and how many are cached: 32 MiB in all.
_PATTERN_MEMORY = 2 * 1024 * 1024
_PATTERNS = 16

_HEAD = struct.Struct(">IiII")
_REPLACE = struct.Struct(">III")
_CONTINUATION = frozenset(bytes((byte,)) for byte in range(0x80, 0xC0))

# Invariant: the patterns of the run under way, at most _PATTERNS; `re2` caches no others.
_compiled: dict[bytes, "re2._Regexp"] = {}


def matches(arguments: bytes) -> bytes:
    """The matches from a place on: big-endian `start, last, most, length of the pattern`, then pattern and text.

    `last` is where the match before ended (-1: none): an empty match is not found there. The answer, in signed integers
    of 32 bits in the machine's order: the number of groups, where to go on (-1: nowhere), and of each match begin and
    end of the whole and of every group, from 0, or -1 for a group that took no part.
    """
    at, last, most, length = _HEAD.unpack_from(arguments)
    text = memoryview(arguments)[_HEAD.size + length :]
    pattern = _pattern(arguments[_HEAD.size : _HEAD.size + length])
    groups = pattern.groups
    found = array("i", (groups, -1))
    each = range(groups + 1)
    for count, match in _each(pattern, text, at, last):
        for group in each:
            found.extend(match.span(group))
        if count >= most:
            found[1] = _next_place(text, *match.span())
            break
    return found.tobytes()


def replace(arguments: bytes) -> bytes:
    """The text with a fixed text for each match: big-endian `most`, length of the pattern, length of the replacement,
    then these and the text. The answer is the number of matches, and the new text. The caller bounds both texts: the
    new one may be as large as their product.
    """
    most, length, with_length = _REPLACE.unpack_from(arguments)
    at = _REPLACE.size
    pattern, at = _pattern(arguments[at : at + length]), at + length
    with_, text = arguments[at : at + with_length], arguments[at + with_length :]
    parts, done = [], 0
    for count, match in _each(pattern, text, 0, -1):
        begin, end = match.span()
        parts.append(text[done:begin])
        done = end
        if count >= most:
            break
    return len(parts).to_bytes(4, "big") + with_.join([*parts, text[done:]])


def _next_place(text: memoryview, begin: int, end: int) -> int:
    """Where to look for the next match: behind an empty one, a character later; -1 beyond the end."""
    if begin == end:
        end += 1
        while text[end : end + 1] in _CONTINUATION:
            end += 1
    return end if end <= len(text) else -1


def _each(pattern: "re2._Regexp", text: bytes | memoryview, at: int, last: int) -> Iterator[tuple[int, "re2._Match"]]:
    """Every match from a place on, with its number from 1. `last` as in `matches`.

    The library finds an empty match a second time where it begins its next search, and may find one inside a character.
    """
    count = 0
    for match in pattern.finditer(text, at):
        begin, end = match.span()
        if begin < end or (begin != last and text[begin : begin + 1] not in _CONTINUATION):
            count += 1
            yield count, match
        last = end


def warm_up() -> None:
    """Import and first use, ahead of confinement."""
    pattern = rb"(?i)\pL(b|\d+)"
    matches(_HEAD.pack(0, -1, 1, len(pattern)) + pattern + b"xa1")
    with suppress(Refused):
        _pattern(b"(")
    forget()


def forget() -> None:
    """Drop the compiled patterns."""
    if _compiled:
        _compiled.clear()
        re2.purge()


def _pattern(source: bytes) -> "re2._Regexp":
    found = _compiled.get(source)
    if found is not None:
        return found
    if len(source) > MAX_PATTERN_BYTES:
        raise Refused(f"the pattern has {len(source)} bytes; the most is {MAX_PATTERN_BYTES}")
    try:
        source.decode()
    except UnicodeDecodeError:
        raise Refused("the pattern is not UTF-8") from None
    if len(_compiled) >= _PATTERNS:
        forget()
    options = re2.Options()
    options.max_mem = _PATTERN_MEMORY
    options.log_errors = False  # it would write to standard error, which is closed
    try:
        pattern = re2.compile(source, options)
    except re2.error as error:
        raise Refused(f"the pattern is not valid: {_reason(error)}") from None
    if pattern.groups > MAX_GROUPS:
        raise Refused(f"the pattern has {pattern.groups} groups; the most is {MAX_GROUPS}")
    _compiled[source] = pattern
    return pattern


def _reason(error: Exception) -> str:
    said = error.args[0] if error.args else ""
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    if "too large" in text:
        text = "it is too large when it is compiled; use smaller counts, or fewer alternatives"
    return text[:200]

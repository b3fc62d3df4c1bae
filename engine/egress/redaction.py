"""Removes secrets from texts that people read: logs, errors, the audit log. Pure.

This is a safety net, not a barrier: a script that may see a value can always write it in a form that is not searched
for (backwards, in two log lines). A value that must not be seen is kept from the script instead.
"""

import base64
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

# A shorter value is likely to occur in other text by chance.
MIN_SECRET_CHARS = 8
# Least length of a value without the white space around it (or of one of its forms, without blurred characters): a
# shorter one would match by coincidence.
MIN_DISTINCT_CHARS = 6
MASK = "[redacted]"
# A text with more of these is redacted in a thread (`Redactor.is_work`).
_MANY_ESCAPES, _MANY_CHARACTERS = 1_000, 128 * 1024


# A long text is searched in pieces of this many characters.
_PIECE = 32 * 1024
# The most characters that one character of a form can take: percent-encoded twice, four bytes of UTF-8 take 20, and an
# escape with its surrogates, percent-encoded, 36.
_WRITTEN = 36


class Redactor:
    """Masks values of at least `MIN_SECRET_CHARS` characters, in every form in which they occur in texts by accident.

    As they are; percent-encoded (UTF-8, either case, any characters, also twice, `+` for a space); with the escapes of
    a JSON, Lua or Python literal (also JSON inside JSON, or percent-encoded); in base64 of either alphabet, alone or at
    any place of a longer text (`base64("user:" .. token)`), and that in turn escaped as above; and with `?` for
    characters that are not ASCII. White space around a value is ignored.

    Not found: a value cut in two, by two log calls or by the limit of the log; letters in another case; ciphers,
    hexadecimal, hashes.

    The time is that of a few searches for a fixed string for each secret, and one pass over the escapes.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        # As given, so that a redactor for these and more can be made.
        self.secrets = tuple(secrets)
        values = {value for secret in self.secrets if (value := _worth_hiding(secret)) is not None}
        # A value that is part of the mask would match in every masked text.
        plain = {form for value in values if value not in MASK for form in _plain_forms(value)}
        self._plain = tuple(map(_Wanted.from_text, plain))
        self._base64 = tuple(map(_Wanted.from_text, {form for value in values for form in base64_forms(value)}))
        self._overlap = _WRITTEN * max((len(form.text) for form in (*self._plain, *self._base64)), default=0)

    def text(self, text: str) -> str:
        """The text with `MASK` for every secret in it; overlapping secrets are masked as one."""
        if not self._base64:  # no secrets
            return text
        parts, done = [], 0
        for start, end in _merged(sorted(self._spans(text))):
            parts += [text[done:start], MASK]
            done = end
        return "".join([*parts, text[done:]])

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Where secrets are. A long text is searched in pieces, as a search takes 50 times the size of its text.

        Pieces overlap by the longest form in its longest spelling, so each secret is whole in one piece.
        """
        if len(text) <= _PIECE + self._overlap:
            for reading in _readings(text):
                yield from self._found(reading)
            return
        for at in range(0, len(text), _PIECE):
            piece = text[max(0, at - self._overlap) : at + _PIECE]
            before = max(0, at - self._overlap)
            for reading in _readings(piece):
                for start, end in self._found(reading):
                    yield before + start, before + end

    def is_work(self, text: str) -> bool:
        """Whether `text` would take more than a few milliseconds: an escape takes 1 to 6 us, a character 30 ns, plus
        1 ns for each form that is searched for (measured)."""
        if not self._base64:
            return False
        forms = len(self._plain) + len(self._base64)
        return len(text) > _MANY_CHARACTERS // (1 + forms // 32) or text.count("%") + text.count("\\") > _MANY_ESCAPES

    def _found(self, reading: "_Reading") -> Iterator[tuple[int, int]]:
        """Where in the original text this reading of it contains a secret."""
        for plain in self._plain:
            yield from reading.spans(plain.spans(reading.text))
        standard = reading.text.translate(_STANDARD_ALPHABET)
        for encoded in self._base64:
            yield from reading.spans(encoded.spans(standard))


def _worth_hiding(secret: str) -> str | None:
    """The part of a value to search for. Scripts trim the newline of values that come from files."""
    trimmed = secret.strip()
    if len(secret) < MIN_SECRET_CHARS or len(trimmed) < MIN_DISTINCT_CHARS:
        return None
    return trimmed if len(trimmed) >= MIN_SECRET_CHARS else secret


def _plain_forms(value: str) -> Iterator[str]:
    yield value
    if " " in value:
        yield value.replace(" ", "+")
    if not value.isascii():
        # Programs that know only ASCII write one `?` for each byte.
        blurred = "".join(chr(byte) if byte < 0x80 else "?" for byte in _raw(value))
        if len(blurred.replace("?", "")) >= MIN_DISTINCT_CHARS:
            yield blurred


def base64_forms(value: str) -> Iterator[str]:
    """The parts of a value's base64 (standard alphabet) that do not depend on the text around the value."""
    escaped = {json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True)}
    for raw in {_raw(value), *map(_raw, escaped)}:
        # In a longer text a value may start at any offset in base64's groups of three bytes. The characters that it
        # shares with its neighbours are unknown: without them, at most four bits at each end are not matched.
        for before, shared in ((0, 0), (1, 2), (2, 3)):
            encoded = base64.b64encode(bytes(before) + raw).decode()
            yield encoded[shared : (before + len(raw)) * 8 // 6]


# The URL-safe alphabet of RFC 4648, section 5, in terms of the standard one.
_STANDARD_ALPHABET = str.maketrans("-_", "+/")


def _raw(value: str) -> bytes:
    try:
        return value.encode("utf-8", "surrogateescape")  # as the environment has it (PEP 383)
    except UnicodeEncodeError:
        return value.encode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A text to search for. `period` is the least distance at which it overlaps itself (its length if it cannot)."""

    text: str
    period: int

    @classmethod
    def from_text(cls, text: str) -> "_Wanted":
        # The failure function of Knuth, Morris and Pratt: the length of the longest border of each prefix.
        borders = [0]
        for character in text[1:]:
            border = borders[-1]
            while border and text[border] != character:
                border = borders[border - 1]
            borders.append(border + (text[border] == character))
        return cls(text, len(text) - borders[-1])

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Where it occurs, in linear time even if the occurrences overlap; overlapping ones may come as one span."""
        length, last_period = len(self.text), self.text[-self.period :]
        start = text.find(self.text)
        while start >= 0:
            end = start + length
            while text.startswith(last_period, end):
                end += self.period
            yield start, end
            start = text.find(self.text, end - length + self.period)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A text after decoding, with the origin of each of its pieces in the original text.

    `starts` are the places in `text` where a piece begins: an escape (one character), or a stretch without any.
    `origins` are the same places in the original text. Both end with the length of their text.
    """

    text: str
    starts: list[int]
    origins: list[int]

    def origin(self, place: int) -> int:
        piece = bisect_right(self.starts, place) - 1
        return self.origins[piece] + place - self.starts[piece]

    def spans(self, spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Spans of this reading as spans of the original."""
        for start, end in spans:
            yield self.origin(start), self.origin(end)


def _readings(text: str) -> Iterator[_Reading]:
    """The text itself, and with its escapes decoded, if it has any: one level of each kind, two of each, both kinds."""
    plain = _Reading(text, [0, len(text)], [0, len(text)])
    yield plain
    percent = _decoded(plain, _PERCENT, _percent_decoded)
    escapes = _decoded(plain, _ESCAPE, _unescaped)
    for once in filter(None, (percent, escapes)):
        yield once
        twice = (_decoded(once, _ESCAPE, _unescaped), once is percent and _decoded(once, _PERCENT, _percent_decoded))
        yield from filter(None, twice)


# A decoder returns the characters that a match encodes, each with the length of its encoding.
_Decoder = Callable[[re.Match[str]], Iterable[tuple[str, int]]]


def _decoded(reading: _Reading, pattern: re.Pattern[str], decode: _Decoder) -> _Reading | None:
    """The reading with every match decoded; None without a match."""
    text, starts, origins = [], [], []
    done = length = 0

    def add(piece: str, place: int) -> None:
        nonlocal length
        text.append(piece)
        starts.append(length)
        origins.append(reading.origin(place))
        length += len(piece)

    for match in pattern.finditer(reading.text):
        if match.start() > done:
            add(reading.text[done : match.start()], done)
        done = match.start()
        for character, written in decode(match):
            add(character, done)
            done += written
    if not text:
        return None
    add(reading.text[done:], done)
    return _Reading("".join(text), [*starts, length], [*origins, reading.origins[-1]])


_PERCENT = re.compile(r"(?:%[0-9A-Fa-f]{2})+")


def _percent_decoded(run: re.Match[str]) -> Iterator[tuple[str, int]]:
    for character in bytes.fromhex(run[0].replace("%", "")).decode("utf-8", "surrogateescape"):
        yield character, 3 * len(character.encode("utf-8", "surrogateescape"))


# JSON (RFC 8259, section 7), Lua's %q (a control character in decimal, a newline as itself), Python's repr.
_ESCAPE = re.compile(
    r"""\\(?:
        u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})
        | u(?P<four>[0-9a-fA-F]{4}) | x(?P<two>[0-9a-fA-F]{2}) | U(?P<eight>00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4})
        | (?P<decimal>0[0-9]{2}|1[01][0-9]|12[0-7]|[0-9]{1,2})
        | (?P<itself>["'\\/\n]) | (?P<letter>[abfnrtv])
    )""",
    re.VERBOSE,
)
_LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def _unescaped(escape: re.Match[str]) -> Iterator[tuple[str, int]]:
    written = len(escape[0])
    match escape.lastgroup:
        case "low":
            high, low = int(escape["high"], 16), int(escape["low"], 16)
            yield chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)), written
        case "two" | "four" | "eight" as digits:
            yield chr(int(escape[digits], 16)), written
        case "decimal":
            yield chr(int(escape["decimal"])), written
        case "itself":
            yield escape["itself"], written
        case _:
            yield _LETTERS[escape["letter"]], written


def _merged(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Sorted spans, with those that touch or overlap merged."""
    current: tuple[int, int] | None = None
    for start, end in spans:
        if current is not None and start <= current[1]:
            current = current[0], max(current[1], end)
        else:
            if current is not None:
                yield current
            current = start, end
    if current is not None:
        yield current


NOTHING_SECRET = Redactor()

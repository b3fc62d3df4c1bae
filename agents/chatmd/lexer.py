"""The characters of ChatMD: which tokens there are, and the attributes of a tag.

Every pattern runs forward once: quantifiers are possessive, and what a tag that turns out to be text has scanned is
remembered, so that tags inside it are not scanned again.
"""

import re

import msgspec

from agents.chatmd.vocabulary import ELEMENTS, LITERAL, Attributes

# White space of the language is ASCII's: a no-break space is text.
BLANK = " \t\n\r\v\f"
_B = rf"[{BLANK}]"
RAW_OPEN, RAW_CLOSE = "RAW|", "|RAW"
COMMENT_OPEN, COMMENT_CLOSE = "<!--", "-->"
# What may stand before `RAW|` without being text.
BEFORE_RAW = " \t\r\n"

# Longest first; a name ends at white space or at the end of its tag, so `<doc/x>` is text.
_NAMES = "|".join(sorted(ELEMENTS, key=len, reverse=True))
_OPEN = rf"<(?P<open>{_NAMES})(?={_B}|/?>)"
# Every alternative begins with `<` itself, not with a group or `RAW|`: that makes the search six times as fast.
_COMMENT = "<!--(?P<comment>)"
TOKEN = re.compile(rf"{_OPEN}|</(?P<close>{_NAMES})>|{_COMMENT}")
# What a strict reader does not take for text in a record. (A comment with an end is none of its text.)
MARKUP = re.compile(rf"{_OPEN}|</(?P<close>{_NAMES})>|<!--")
# What a strict reader takes for the beginning of a tag, whatever its name.
ANY_TAG = re.compile(r"</?[A-Za-z_]")

# What counts inside an element whose text ends at a literal tag.
INSIDE = {
    name: re.compile(
        rf"</{name}>(?P<close>)|{_COMMENT}" + (rf"|<(?P<open>summary)(?={_B}|/?>)" if name == "reasoning" else "")
    )
    for name in LITERAL
}
# A document or image that may be all that a record holds.
PART = re.compile(rf"{_B}*+<(?P<open>doc|img)(?={_B}|/?>)")
PART_END = {name: re.compile(rf"{_B}*+</{name}>") for name in ("doc", "img")}
BLANKS = re.compile(rf"{_B}*+")

# A quotation mark after a backslash does not end a value; the backslash stays in it.
_QUOTED = ('"(?P<double>', '"'), ("'(?P<single>", "'")
_DOUBLE, _SINGLE = (rf"{begin}(?:[^{mark}\\]++|\\{mark}?)*+){mark}" for begin, mark in _QUOTED)
_BARE = rf"(?P<bare>(?!/>)[^{BLANK}<>\"'](?:(?!/>)[^{BLANK}<>])*+)"
_ATTRIBUTE = re.compile(
    rf"{_B}*+(?:(?P<name>[A-Za-z0-9_:\-]++)"
    rf"(?:{_B}*+={_B}*+(?:{_DOUBLE}|{_SINGLE}|(?P<broken>[\"'])|{_BARE}|))?)?+(?:{_B}*+(?P<end>/?>))?+"
)
_BLANKS = tuple(BLANK)
_ENTITY = re.compile("&(amp|lt|gt|quot|apos);")
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}


class Tag(msgspec.Struct, frozen=True, gc=False):
    """A tag that begins an element: its attributes, where it ends, whether it ends its element, too."""

    attributes: Attributes
    end: int
    closed: bool
    repeated: tuple[str, ...]  # the names of attributes that are there twice
    has_angle: bool  # `>` stands in a value, where a strict reader ends the tag


class NotATag(msgspec.Struct, frozen=True, gc=False):
    """What looked like a tag. `open_value`: a value without the quotation mark that ends it; else it is text."""

    open_value: bool
    attributes: Attributes


class Tags:
    """Reads the tags of one text. `values` counts the attributes, also of tags that are text after all."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.values = 0
        # Where a tag that is text had got to between two attributes -> whether a value was open at its end. A tag that
        # gets to the same place ends the same way: without this, tags in values of tags would be quadratic.
        self._failed: dict[int, bool] = {}
        self._next_angle = -1

    def read(self, at: int, most: int) -> Tag | NotATag:
        """The tag whose name ends at `at`. Gives up after `most` attributes; the caller counts `values`."""
        text = self._text
        if text[at] == ">":  # most tags
            return Tag({}, at + 1, False, (), False)
        match = _ATTRIBUTE.match
        attributes: Attributes = {}
        repeated: list[str] = []
        has_angle = False
        passed: list[int] = []
        while True:
            known = self._failed.get(at) if self._failed else None
            found = match(text, at) if known is None else None
            if found is None:
                return self._not_a_tag(passed, bool(known), attributes)
            name, double, single, broken, value, ended = found.groups()
            if name is not None:
                passed.append(at)
                if broken is not None or len(passed) > most:
                    return self._not_a_tag(passed, broken is not None, attributes)
                at = found.end()
                if value is None and (value := single if double is None else double) is not None:
                    if "<" in value and ended is None and not text.startswith(_BLANKS, at):
                        # The mark that ends the value is one that begins another, further on.
                        return self._not_a_tag(passed, True, attributes)
                    has_angle = has_angle or ">" in value
                if name in attributes:
                    repeated.append(name)
                attributes[name] = True if value is None else decoded(value) if "&" in value else value
            if ended is not None:
                self.values += len(passed)
                return Tag(attributes, found.end(), ended == "/>", tuple(repeated), has_angle)
            if name is None:
                return self._not_a_tag(passed, False, attributes)

    def _not_a_tag(self, passed: list[int], open_value: bool, attributes: Attributes) -> NotATag:
        self.values += len(passed)
        self._failed.update(dict.fromkeys(passed, open_value))
        return NotATag(open_value, attributes)

    def angle_after(self, at: int) -> int:
        """Where the next `>` is, or -1."""
        if self._next_angle < at:
            found = self._text.find(">", at)
            self._next_angle = len(self._text) if found < 0 else found
        return -1 if self._next_angle == len(self._text) else self._next_angle


def decoded(value: str) -> str:
    """The value of an attribute, from what is written."""
    return _ENTITY.sub(lambda found: _ENTITIES[found[1]], value)

"""What differs between two texts, as a unified diff. Pure.

The publisher of a version chose both texts, and people read the result before they approve it: the work is bounded,
and nothing in it is invisible.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

# Beyond so many different lines between the first and the last one, all of them are shown as replaced: difflib takes
# 3 s for the worst 1,000 lines, and its time grows with the third power.
MOST_LINES = 1_000
_CONTEXT = 3
# Formatting characters turn writing around, or hide: the code that is read would not be the code that runs.
_UNSEEN = frozenset({"Cf", "Zl", "Zp"})
# Characters of other categories that are drawn as nothing or as a space: Unicode's Default_Ignorable_Code_Point without
# the category Cf, and the blank of Braille.
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")

_Opcode = tuple[str, int, int, int, int]


def unified(old: str, new: str, old_name: str, new_name: str) -> Iterator[str]:
    """The lines of a unified diff (diff(1)); none where the texts are equal."""
    if old == new:
        return
    yield f"--- {old_name}"
    yield f"+++ {new_name}"
    before, after = old.split("\n"), new.split("\n")
    for group in _groups(_opcodes(before, after)):
        yield _range(group)
        for kind, a, b, c, d in group:
            if kind == "equal":
                yield from (f" {seen(line)}" for line in before[a:b])
            else:
                yield from (f"-{seen(line)}" for line in before[a:b])
                yield from (f"+{seen(line)}" for line in after[c:d])


def seen(line: str) -> str:
    """The line with its invisible characters as escapes."""
    if line.isascii():
        return line
    return "".join(f"\\u{ord(c):04x}" if unicodedata.category(c) in _UNSEEN or _BLANK.match(c) else c for c in line)


def _opcodes(before: Sequence[str], after: Sequence[str]) -> list[_Opcode]:
    """As `SequenceMatcher.get_opcodes`, which looks only at what lies between the equal ends."""
    least = min(len(before), len(after))
    head = next((n for n in range(least) if before[n] != after[n]), least)
    tail = next((n for n in range(least - head) if before[-1 - n] != after[-1 - n]), least - head)
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    if max(len(old), len(new)) > MOST_LINES:
        middle: list[_Opcode] = [("replace", 0, len(old), 0, len(new))]
    else:
        middle = list(SequenceMatcher(None, old, new).get_opcodes())
    shifted = [(kind, a + head, b + head, c + head, d + head) for kind, a, b, c, d in middle]
    ends = (
        [("equal", 0, head, 0, head)] if head else [],
        [("equal", len(before) - tail, len(before), len(after) - tail, len(after))] if tail else [],
    )
    return [*ends[0], *shifted, *ends[1]]


def _groups(opcodes: Sequence[_Opcode]) -> Iterator[list[_Opcode]]:
    """The changes with some equal lines around them; far ones are in groups of their own."""
    group: list[_Opcode] = []
    for number, (kind, a, b, c, d) in enumerate(opcodes):
        if kind != "equal":
            group.append((kind, a, b, c, d))
            continue
        last = number == len(opcodes) - 1
        if group and (last or b - a > 2 * _CONTEXT):
            end = min(b, a + _CONTEXT)
            yield [*group, ("equal", a, end, c, c + end - a)]
            group = []
        if not last:
            start = a if group else max(a, b - _CONTEXT)
            group.append(("equal", start, b, c + start - a, d))
    if any(kind != "equal" for kind, *_ in group):
        yield group


def _range(group: Sequence[_Opcode]) -> str:
    first, last = group[0], group[-1]
    parts = []
    for start, end in ((first[1], last[2]), (first[3], last[4])):
        size = end - start
        parts.append(f"{start + (size > 0)}" + (f",{size}" if size != 1 else ""))
    return f"@@ -{parts[0]} +{parts[1]} @@"

"""Patterns of paths as in context-harness: each matches the whole path, and `*` also matches `/`. Pure.

The rules are those of the Rust crate globset in its default form (https://docs.rs/globset/latest/globset/#syntax).
"""

import re

# A piece of a pattern: an escaped character, a set, `**` as a whole component with the slashes beside it, or one
# character. The first character of a set may be a bracket.
_PIECE = re.compile(r"\\(.)|\[([!^]?)(\]?[^\]]*)\]|(^|/)\*\*(/|$)|(.)", re.DOTALL)


def compile_glob(pattern: str) -> re.Pattern[str]:
    """The expression that matches what the pattern does, to be used with `fullmatch`. Raises ValueError.

    `*` and `**` are any characters, `?` one, `[a-z]` one of a set and `[!a-z]` one that is not, `{a,b}` either; `**/`
    is any folders, none included. A backslash makes the next character an ordinary one.
    """
    parts: list[str] = []
    open_braces = place = 0
    while place < len(pattern):
        found = _PIECE.match(pattern, place)
        assert found is not None  # the last alternative takes any character
        place = found.end()
        escaped, negated, members, before, after, character = found.groups()
        if escaped is not None:
            parts.append(re.escape(escaped))
        elif members is not None:
            if not members:
                raise ValueError(f"{pattern!r} has a set without members")
            parts.append(f"[{'^' if negated else ''}{_set(members)}]")
        elif before is not None:
            parts.append(_folders(before, after))
        elif character == "*":
            parts.append(".*")
        elif character == "?":
            parts.append(".")
        elif character == "{":
            open_braces += 1
            parts.append("(?:")
        elif character == "}" and open_braces:
            open_braces -= 1
            parts.append(")")
        elif character == "," and open_braces:
            parts.append("|")
        elif character in "[}":
            raise ValueError(f"{pattern!r} has a {character!r} without its counterpart")
        else:
            parts.append(re.escape(character))
    if open_braces:
        raise ValueError(f"{pattern!r} has a '{{' without its counterpart")
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a pattern: {error}") from None


def _folders(before: str, after: str) -> str:
    """`**` as a component: at the start, at the end, in the middle, or alone."""
    if before and after:
        return "/(?:.*/)?"
    if after:
        return "(?:.*/)?"
    return "/.*" if before else ".*"


def _set(members: str) -> str:
    """What is between brackets, with all but the dash of a range escaped."""
    return "".join(character if character == "-" else re.escape(character) for character in members)

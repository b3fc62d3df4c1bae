"""Patterns of paths as in context-harness: each matches the whole path, and `*` also matches `/`. Pure.

The rules are those of the Rust crate globset in its default form (https://docs.rs/globset/latest/globset/#syntax).
"""

import re

import re2

_OPTIONS = re2.Options()
_OPTIONS.dot_nl = True
_OPTIONS.log_errors = False

# A piece of a pattern: an escaped character, a set, `**` as a whole component with the slashes beside it, or one
# character. The first character of a set may be a bracket.
_PIECE = re.compile(r"\\(.)|\[([!^]?)(\]?[^\]]*)\]|(^|/)\*\*(/|$)|(.)", re.DOTALL)


class Glob:
    """Patterns, of which a path matches one as a whole. Their time is linear in the path, whatever they are."""

    def __init__(self, expression: str) -> None:
        """Raises re2.error."""
        self._expression = re2.compile(expression, _OPTIONS)

    def fullmatch(self, path: str) -> bool:
        """Whether one of them matches the whole path."""
        return self._expression.fullmatch(encodable(path)) is not None


def encodable(path: str) -> str:
    """A path whose bytes are not UTF-8, with other characters in their places: RE2 takes UTF-8 alone."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return path.encode("utf-8", "replace").decode()
    return path


def compile_glob(*patterns: str) -> Glob:
    """What matches a path as a whole if one of the patterns does. Raises ValueError.

    `*` and `**` are any characters, `?` one, `[a-z]` one of a set and `[!a-z]` one that is not, `{a,b}` either; `**/`
    is any folders, none included. A backslash makes the next character an ordinary one.
    """
    expressions = [_expression(pattern) for pattern in patterns]
    for pattern, expression in zip(patterns, expressions, strict=True):
        try:
            Glob(expression)
        except re2.error as error:
            raise ValueError(f"{pattern!r} is not a pattern: {_said(error)}") from None
    return Glob("|".join(f"(?:{each})" for each in expressions) or r"\b\B")  # of no pattern: nothing


def _said(error: Exception) -> str:
    said = error.args[0] if error.args else error
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)


def _expression(pattern: str) -> str:
    parts: list[str] = []
    open_braces = place = 0
    while place < len(pattern):
        found = _PIECE.match(pattern, place)
        assert found is not None  # the last alternative takes any character
        place = found.end()
        escaped, negated, members, before, after, character = found.groups()
        if escaped is not None:
            parts.append(_literal(escaped))
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
            parts.append(_literal(character))
    if open_braces:
        raise ValueError(f"{pattern!r} has a '{{' without its counterpart")
    return "".join(parts)


# A pattern of a query, and the alternatives that it may stand for. SQLite's GLOB takes time in proportion to the length
# of the pattern times that of the path, as it never goes back to the star before the last one.
MAX_PATTERN_CHARACTERS = 512
MAX_ALTERNATIVES = 32


def sqlite_globs(pattern: str) -> tuple[str, ...]:
    """Patterns of SQLite's GLOB, one of which matches what `pattern` does. Raises ValueError.

    It is for patterns of strangers, which the store applies to every path that it holds.
    """
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise ValueError(f"the pattern has {len(pattern)} characters; at most {MAX_PATTERN_CHARACTERS} are allowed")
    compile_glob(pattern)
    # The alternatives so far at each depth of braces: those before the brace, those before its last comma, and those
    # since that comma.
    outer: list[tuple[list[str], list[str]]] = []
    current = [""]
    place = 0
    while place < len(pattern):
        found = _PIECE.match(pattern, place)
        assert found is not None
        place = found.end()
        escaped, negated, members, before, after, character = found.groups()
        if character == "{":
            outer.append((current, []))
            current = [""]
        elif character == "}":
            prefixes, others = outer.pop()
            current = [prefix + each for prefix in prefixes for each in others + current]
        elif character == "," and outer:
            outer[-1][1].extend(current)
            current = [""]
        else:
            choices = _sqlite_piece(escaped, negated, members, before, after, character)
            current = [each + choice for each in current for choice in choices]
        if len(current) + sum(len(others) for _, others in outer) > MAX_ALTERNATIVES:
            raise ValueError(f"{pattern!r} stands for more than {MAX_ALTERNATIVES} patterns")
    return tuple(dict.fromkeys(current))


def _sqlite_piece(
    escaped: str | None, negated: str | None, members: str | None, before: str | None, after: str | None,
    character: str | None,
) -> tuple[str, ...]:  # fmt: skip
    if escaped is not None:
        return (f"[{escaped}]" if escaped in "*?[" else escaped,)
    if members is not None:
        return ("^" if not negated and members == "^" else f"[{'^' if negated else ''}{members}]",)
    if before is not None:
        if before and after:
            return ("/", "/*/")
        if after:
            return ("", "*/")
        return ("/*" if before else "*",)
    return (character or "",)


def _literal(character: str) -> str:
    return str(re2.escape(encodable(character)))


def _folders(before: str, after: str) -> str:
    """`**` as a component: at the start, at the end, in the middle, or alone."""
    if before and after:
        return "/(?:.*/)?"
    if after:
        return "(?:.*/)?"
    return "/.*" if before else ".*"


def _set(members: str) -> str:
    """What is between brackets, with all but the dash of a range escaped."""
    return "".join(character if character == "-" else _literal(character) for character in members)

"""Files of text as documents, for connectors that have files: which are taken, their type, title and text. Pure."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

import re2

from knowledge.extraction import Extracted, Unreadable
from knowledge.globs import compile_glob, encodable

# Both are imported where they are used, a hundred modules: searches need neither.
if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from pathspec import GitIgnoreSpec

DEFAULT_INCLUDE = ("**/*.md", "**/*.txt")
DEFAULT_EXCLUDE = (".git/", "node_modules/", "target/")
# Names are those of strangers, and Python's expressions take time in proportion to the length of a name to the power
# of the stars. So long names, and patterns with more stars, are for RE2, whose time is linear. Each of its calls lets
# go of the interpreter, and may then wait for another thread to do so: too dear for every name.
_STARS = 2
_SHORT = 256

# A pattern for the end of a name, and one for a folder at any depth.
_END = re.compile(r"(\*\*/)?\*(?P<end>[A-Za-z0-9._-]+)")
_FOLDER = re.compile(r"[A-Za-z0-9._-]+/")

# 50 MB, context-harness's default: far above any text that a person wrote, below what a chunker should have to cut.
DEFAULT_MAX_BYTES = 50_000_000

# A title is searched for in this much of a text; parsing more of a large file would cost seconds and find none better.
_TITLE_CHARACTERS = 64 * 1024

_CONTENT_TYPES = {".md": "text/markdown", ".markdown": "text/markdown"}

# Types of texts in which a `#` begins a comment, or a line of a page, as often as a heading.
_NO_HEADINGS = frozenset({"text/plain", "application/pdf"})

_FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(?P<fields>.*?\n)(?:---|\.\.\.)[ \t]*(?:\r?\n|$)", re.DOTALL)
_TITLE_FIELD = re.compile(r"title[ \t]*:[ \t]*(?P<title>\S.*)")

# A line that may be a heading of level one, or the one below it; also in a list or a quotation.
_MAYBE_HEADING = re.compile(r"^[ \t>*+\-0-9.)]*(?:#(?:[ \t].*)?|=+[ \t]*)$", re.MULTILINE)

GlobStyle = Literal["gitignore", "ctx"]


class Globs:
    """Patterns of files: those to take, and of these those to leave out, in addition to `DEFAULT_EXCLUDE`.

    They are patterns of .gitignore; `!` in an exclude negates an earlier one, the defaults included. In the style "ctx"
    they are those of context-harness (`knowledge.globs`), and the default excludes stay.
    """

    def __init__(self, include: Sequence[str], exclude: Sequence[str], style: GlobStyle) -> None:
        """Raises ValueError for an invalid pattern."""
        self._include: Callable[[str], bool]
        self._plain = _Plain.of(include, exclude) if style == "gitignore" else None
        try:
            if style == "ctx":
                default, excluded = _matcher(DEFAULT_EXCLUDE), compile_glob(*exclude).fullmatch
                self._include = compile_glob(*include).fullmatch
                self.excludes: Callable[[str], bool] = lambda path: default(path) or excluded(path)
            else:
                self._include = _matcher(include)
                self.excludes = _matcher([*DEFAULT_EXCLUDE, *exclude])
        except (ValueError, re.error, re2.error) as error:
            raise ValueError(f"a glob is not valid: {error}") from None

    def take(self, path: str) -> bool:
        """Whether the file at `path` is a document."""
        return self._include(path) and not self.excludes(path)

    def taken_in(self, folder: str) -> Callable[[str], bool]:
        """`take`, for the names of files in a folder (`a/b/`, or "") that no exclude pattern matches."""
        plain = self._plain
        # What is said of a folder counts for all that is below it.
        if plain is None or "\n" in folder or (folder and self._include(folder)):
            return lambda name: self.take(folder + name)
        return plain.takes


@dataclass(frozen=True, slots=True)
class _Plain:
    """Patterns that ask for the end of a file's name alone, and for whole folders: in a tenth of their time."""

    include: tuple[str, ...]
    exclude: tuple[str, ...]

    @classmethod
    def of(cls, include: Sequence[str], exclude: Sequence[str]) -> "_Plain | None":
        """The ends of names, of which some are taken and some left out; None where a pattern asks for more."""
        ends = [_END.fullmatch(glob) for glob in include]
        others = [_END.fullmatch(glob) for glob in exclude if not _FOLDER.fullmatch(glob)]
        if None in ends or None in others:
            return None
        # Python's `$` is also before a line feed at the end.
        return cls(*(tuple(end["end"] + more for end in each if end for more in ("", "\n")) for each in (ends, others)))

    def takes(self, name: str) -> bool:
        return name.endswith(self.include) and not (self.exclude and name.endswith(self.exclude))


def _matcher(globs: Sequence[str]) -> Callable[[str], bool]:
    """Patterns of .gitignore."""
    from pathspec import GitIgnoreSpec

    linear = GitIgnoreSpec.from_lines(globs, backend="re2").match_file
    if any(len(re.findall(r"\*+", glob)) > _STARS for glob in globs):
        return lambda path: linear(encodable(path))
    plain = _plain(GitIgnoreSpec.from_lines(globs, backend="simple"))
    return lambda path: plain(path) if len(path) <= _SHORT else linear(encodable(path))


def _plain(spec: "GitIgnoreSpec") -> Callable[[str], bool]:
    """The same by Python's expressions."""
    from pathspec import RegexPattern

    patterns = [each for each in spec.patterns if each.include is not None]
    searches = [each.regex.search for each in patterns if isinstance(each, RegexPattern) and each.regex is not None]
    if len(searches) < len(patterns) or not all(each.include for each in patterns):
        return spec.match_file
    # Where none takes back what another one took, their order does not count: in a sixth of the time (measured). What
    # is at the beginning of a path and no part of it is left to the library, which removes it.
    return lambda path: (
        spec.match_file(path) if path.startswith(("/", "./")) else any(search(path) for search in searches)
    )


def too_large(size: int, bound: int) -> str:
    """The reason for which a file is skipped."""
    return f"too large: {size} bytes; max_extract_bytes is {bound}"


def decoded(data: bytes) -> str:
    """The text of a file. Raises ValueError, whose text is the reason, when it has none."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start})") from error


def text_of(name: str, data: bytes) -> Extracted:
    """A file of text. Raises Unreadable."""
    try:
        body = decoded(data)
    except ValueError as error:
        raise Unreadable(str(error)) from error
    return Extracted(body, title(name, body), content_type(name))


def content_type(path: str) -> str:
    return _CONTENT_TYPES.get(PurePosixPath(path).suffix.lower(), "text/plain")


def is_markdown(content_type: str) -> bool:
    """Whether the body of a document of this type has Markdown's headings. What is extracted has, but for PDF."""
    return content_type not in _NO_HEADINGS


def title(path: str, body: str) -> str:
    """The title of a text that has one, else the file's name."""
    return (markdown_title(body) if content_type(path) == "text/markdown" else None) or PurePosixPath(path).name


def markdown_title(text: str) -> str | None:
    """The front matter's `title`, else the text of the first level-one heading, both near the beginning only."""
    head = text[:_TITLE_CHARACTERS]
    if front := _FRONT_MATTER.match(head):
        for line in front["fields"].splitlines():
            if field := _TITLE_FIELD.fullmatch(line.rstrip()):
                title = field["title"].strip()
                return (
                    title[1:-1] if len(title) > 1 and title[0] == title[-1] and title[0] in "\"'" else title
                ) or None
        head = head[front.end() :]
    head = head.replace("\r\n", "\n").replace("\r", "\n")
    if (maybe := _MAYBE_HEADING.search(head)) is None:
        return None
    # What follows does not change a heading, and to parse it takes longer than all the rest of a sync. Only what stands
    # in brackets can be defined below.
    alone = "=" not in maybe[0] and "[" not in maybe[0]
    return (_first_heading(head[: maybe.end()]) if alone else None) or _first_heading(head)


@cache
def _markdown() -> "MarkdownIt":
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark")


def _first_heading(text: str) -> str | None:
    """The text of the first heading of level one that has any."""
    tokens = _markdown().parse(text)
    for index, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag == "h1":
            inline = tokens[index + 1].children or []
            title = " ".join("".join(child.content or " " * (child.type == "softbreak") for child in inline).split())
            if title:
                return title
    return None

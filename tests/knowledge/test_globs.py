"""Patterns of paths mean what they mean in ctx."""

import re
import time
from pathlib import Path

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec

from knowledge.access import Rule
from knowledge.connectors import Found
from knowledge.connectors.filesystem import FilesystemConnector
from knowledge.globs import MAX_PATTERN_CHARACTERS, compile_glob, sqlite_globs
from knowledge.textfiles import Globs, GlobStyle

# pattern -> paths that it matches, paths that it does not. By the documentation of globset, in its default form.
MATCHES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "README.md": (("README.md",), ("docs/README.md", "README.mdx", "aREADME.md")),
    "*.md": (("a.md", "docs/b.md", ".md"), ("a.txt", "a.md/x")),
    "**/*.md": (("a.md", "docs/b.md", "x/y/c.md"), ("a.mdx",)),
    "docs/*.md": (("docs/a.md", "docs/x/a.md"), ("a.md", "other/docs/a.md")),
    "docs/**": (("docs/a", "docs/x/y"), ("docs", "a/docs/x")),
    "**/drafts/**": (("drafts/a", "x/drafts/y/z"), ("drafts", "mydrafts/a")),
    "a/**/b": (("a/b", "a/x/b", "a/x/y/b"), ("ab", "a/xb")),
    "**": (("a", "a/b"), ()),
    "a?c": (("abc", "a/c"), ("ac", "abbc")),
    "[a-c]x": (("ax", "cx"), ("dx", "x")),
    "[!a-c]x": (("dx",), ("ax",)),
    "[]a]x": (("]x", "ax"), ("bx",)),
    "*.{md,txt}": (("a.md", "b/c.txt"), ("a.rst", "a.{md,txt}")),
    "{a,b{c,d}}": (("a", "bc", "bd"), ("b", "c")),
    r"\*.md": (("*.md",), ("a.md",)),
    "a.b": (("a.b",), ("axb",)),
    "(a|b)+": (("(a|b)+",), ("a", "aa")),
    "a,b": (("a,b",), ("a",)),
    "É*": (("École.md",), ("école.md",)),
}


@pytest.mark.parametrize("pattern", MATCHES)
def test_a_pattern_matches_what_it_matches_in_ctx(pattern: str) -> None:
    expression = compile_glob(pattern)
    matched, others = MATCHES[pattern]
    assert [path for path in matched if not expression.fullmatch(path)] == []
    assert [path for path in others if expression.fullmatch(path)] == []


@pytest.mark.parametrize("pattern", ["[", "a[b", "{a", "a}", "[z-a]", "{a,[}"])
def test_what_is_no_pattern_is_refused_by_name(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"has a|is not a pattern"):
        compile_glob(pattern)


async def test_a_connector_in_the_style_of_ctx_reads_the_files_of_the_root_alone(tmp_path: Path) -> None:
    for name in ("README.md", "docs/README.md", "docs/drafts/a.md", "target/b.md", "docs/c.rst"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")

    async def names(**keys: object) -> list[str]:
        connector = FilesystemConnector(tmp_path, glob_style="ctx", **keys)  # type: ignore[arg-type]
        return [found.source_id async for found in connector.scan() if isinstance(found, Found)]

    assert await names(include_globs=["README.md"]) == ["README.md"]
    assert await names(include_globs=["*.md"], exclude_globs=["**/drafts/**"]) == ["README.md", "docs/README.md"]
    assert await names(include_globs=["docs/*.rst"]) == ["docs/c.rst"]
    with pytest.raises(ValueError, match="a glob is not valid"):
        await names(include_globs=["["])


def matches_in_sqlite(db: apsw.Connection, pattern: str, path: str) -> bool:
    return any(db.execute("SELECT ? GLOB ?", (path, glob)).fetchall()[0][0] for glob in sqlite_globs(pattern))


@pytest.mark.parametrize("pattern", MATCHES)
def test_sqlite_matches_what_the_expression_does(pattern: str) -> None:
    db = apsw.Connection(":memory:")
    for path in (*MATCHES[pattern][0], *MATCHES[pattern][1]):
        assert matches_in_sqlite(db, pattern, path) == bool(compile_glob(pattern).fullmatch(path)), path


# Pieces of patterns.
PIECES = (
    "a",
    "b",
    "/",
    "*",
    "**",
    "**/",
    "/**",
    "?",
    "[ab]",
    "[!a]",
    "[^]",
    "[a-c]",
    "{a,b}",
    "{a,}",
    r"\*",
    "^",
    "]a",
)


@given(st.lists(st.sampled_from(PIECES), max_size=5).map("".join), st.text(alphabet="abc/*^]", max_size=6))
def test_sqlite_matches_what_any_expression_does(pattern: str, path: str) -> None:
    try:
        expression = compile_glob(pattern)
    except ValueError:
        with pytest.raises(ValueError, match=r"counterpart|members|pattern"):
            sqlite_globs(pattern)
        return
    assert matches_in_sqlite(apsw.Connection(":memory:"), pattern, path) == bool(expression.fullmatch(path))


@pytest.mark.parametrize("pattern", ["{a,b}" * 6, "{" * 9 + "a" + "}" * 9 + "{a,b}" * 6, "a/**/" * 6, "a" * 1000])
def test_a_pattern_that_stands_for_too_many_is_refused_at_once(pattern: str) -> None:
    with pytest.raises(ValueError, match=f"more than 32 patterns|at most {MAX_PATTERN_CHARACTERS}"):
        sqlite_globs(pattern)


@pytest.mark.parametrize("style", ["gitignore", "ctx"])
def test_no_name_of_a_stranger_makes_a_pattern_slow_or_fail(style: GlobStyle) -> None:
    globs = Globs(["*a*a*a*a*a*a*a*b"], [], style)
    began_s = time.process_time()
    assert not globs.take("a" * 4_000)
    assert not Rule("**/x*a*a*a*a*a*a*a*b", frozenset()).matches("x" + "a" * 4_000)
    assert time.process_time() - began_s < 5  # expressions that try one way after the other: years
    assert Globs(["**/*.md"], [], style).take("a\udcff/b\ud800.md")  # bytes that are not UTF-8, half a pair
    with pytest.raises(ValueError, match="glob is not valid"):
        Globs(["[z-a]"], [], style)


PATHS = st.lists(st.text("ab.-é/", min_size=1, max_size=8), min_size=1, max_size=4).map("/".join)


@given(st.lists(st.text("ab*?/![]-.é", min_size=1, max_size=8), min_size=1, max_size=3), PATHS)
def test_the_linear_back_end_takes_what_the_plain_one_takes(lines: list[str], path: str) -> None:
    try:
        expected = GitIgnoreSpec.from_lines(lines, backend="simple").match_file(path)
    except (ValueError, re.error):
        return
    assert Globs(lines, [], "gitignore")._include(path) == expected

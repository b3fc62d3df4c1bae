"""The diff that an approver reads: right, bounded, and with nothing invisible in it."""

import difflib
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.scripts.diff import MOST_LINES, unified

lines = st.lists(st.sampled_from(["a", "b", "c", "", "  d", "@@"]), max_size=40)


def patched(old: str, new: str, folder: Path) -> str:
    """What patch(1) makes of the old text."""
    (folder / "old").write_text(old + "\n")
    text = "\n".join(unified(old, new, "old", "old")) + "\n"
    subprocess.run(["patch", "-s", "old"], input=text, cwd=folder, check=True, text=True)
    return (folder / "old").read_text().removesuffix("\n")


@given(lines, lines)
def test_the_lines_of_a_diff_are_both_texts(before: list[str], after: list[str]) -> None:
    found = list(unified("\n".join(before), "\n".join(after), "a", "b"))
    if "\n".join(before) == "\n".join(after):
        assert found == []
        return
    assert found[:2] == ["--- a", "+++ b"]
    theirs = list(difflib.unified_diff(before or [""], after or [""], "a", "b", lineterm=""))
    for sign in "+-":
        ours = sum(line.startswith(sign) for line in found[2:])
        assert abs(ours - sum(line.startswith(sign) for line in theirs[2:])) <= 40
    body = [line for line in found[2:] if not line.startswith("@@ ")]
    assert _within([line[1:] for line in body if line[0] in " -"], before or [""])
    assert _within([line[1:] for line in body if line[0] in " +"], after or [""])


def _within(part: list[str], whole: list[str]) -> bool:
    """Whether these are lines of the text, in its order."""
    left = iter(whole)
    return all(line in left for line in part)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a\nb\nc", "a\nx\nc"),
        ("\n".join(map(str, range(60))), "\n".join(str(n) if n not in (5, 30, 33, 59) else "x" for n in range(60))),
        ("a", "a\nb"),
        ("\n".join(map(str, range(20))), "\n".join(map(str, range(3, 25)))),
    ],
)
def test_patch_makes_the_new_text_of_the_old_one(old: str, new: str, tmp_path: Path) -> None:
    if subprocess.run(["which", "patch"], capture_output=True, check=False).returncode:
        pytest.skip("patch(1) is not installed")
    assert patched(old, new, tmp_path) == new


def test_hostile_texts_take_bounded_time() -> None:
    few = [f"l{n % 90}" for n in range(MOST_LINES - 2)]
    began = time.process_time()
    for old, new in (
        ("\n" * 2_000_000, "x" + "\n" * 2_000_000 + "y"),
        ("\n".join(few), "\n".join(reversed(few))),
        ("a\n" * 500_000, "b\na\n" * 400_000),
    ):
        assert sum(1 for _ in unified(old, new, "a", "b")) > 2
    assert time.process_time() - began < 30


def test_what_cannot_be_seen_is_shown() -> None:
    found = list(unified("if ok then", "if ok\u202e then\u200b \u2028", "a", "b"))
    assert found[-1] == "+if ok\\u202e then\\u200b \\u2028"
    for blank in "\u3164\u115f\u1160\uffa0\u2800\ufe0f\u034f\U000e0101":
        assert list(unified("", f"a{blank}", "a", "b"))[-1] == f"+a\\u{ord(blank):04x}"

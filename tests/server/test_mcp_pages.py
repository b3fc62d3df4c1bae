"""Cursors: opaque, good for one list of one caller, and made by the server alone."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import MCPError

from server.mcp.pages import PAGE, PAGE_CHARS, Cursors

SCOPE = ("tools", "default", "")


@dataclass(frozen=True)
class Thing:
    name: str


def refused(cursors: Cursors, scope: tuple[str, ...], cursor: str) -> bool:
    try:
        cursors.position(scope, cursor)
    except MCPError as error:
        return error.code == -32602
    return False


@given(st.text(), st.lists(st.text(), min_size=1, max_size=3).map(tuple))
def test_a_cursor_gives_back_the_position_that_it_was_made_of(position: str, scope: tuple[str, ...]) -> None:
    cursors = Cursors()
    assert cursors.position(scope, cursors.after(scope, position)) == position


@given(st.text(max_size=40))
def test_a_made_up_cursor_is_refused(cursor: str) -> None:
    assert refused(Cursors(b"k" * 32), SCOPE, cursor)


@given(st.integers(min_value=0), st.integers(min_value=1, max_value=255))
def test_a_cursor_with_one_byte_changed_is_refused(place: int, change: int) -> None:
    cursors = Cursors(b"k" * 32)
    made = bytearray(cursors.after(SCOPE, "echo").encode())
    made[place % len(made)] ^= change
    assert refused(cursors, SCOPE, made.decode("latin-1"))


@pytest.mark.parametrize(
    "scope", [("prompts", "default", ""), ("tools", "acme", ""), ("tools", "default", "helper"), ("tools", "default")]
)
def test_a_cursor_of_another_list_caller_or_agent_is_refused(scope: tuple[str, ...]) -> None:
    cursors = Cursors()
    assert refused(cursors, scope, cursors.after(SCOPE, "echo"))


def test_a_cursor_of_another_process_is_refused() -> None:
    assert refused(Cursors(), SCOPE, Cursors().after(SCOPE, "echo"))
    assert not refused(Cursors(b"shared" * 6), SCOPE, Cursors(b"shared" * 6).after(SCOPE, "echo"))


@given(st.sets(st.text(max_size=4), max_size=20), st.integers(min_value=1, max_value=7))
def test_pages_together_are_the_list(names: set[str], length: int) -> None:
    cursors = Cursors()
    patch = pytest.MonkeyPatch()
    patch.setattr("server.mcp.pages.PAGE", length)
    try:
        seen: list[str] = []
        cursor = None
        while True:
            shown, cursor = cursors.page([Thing(name) for name in names], SCOPE, cursor)
            assert len(shown) <= length
            seen += [thing.name for thing in shown]
            if cursor is None:
                break
    finally:
        patch.undo()
    assert seen == sorted(names)


def test_a_list_that_fits_has_no_cursor() -> None:
    things = [Thing(f"{n:04}") for n in range(PAGE)]
    assert Cursors().page(things, SCOPE, None) == (things, None)
    assert Cursors().page([*things, Thing("z")], SCOPE, None)[1] is not None


@given(st.lists(st.integers(0, PAGE_CHARS * 2), min_size=1, max_size=40))
def test_pages_are_bounded_in_size_and_miss_nothing(sizes: list[int]) -> None:
    sized = {f"{number:03}": size for number, size in enumerate(sizes)}
    cursors, cursor, found = Cursors(), None, []
    while True:
        items, cursor = cursors.page([*map(Thing, sized)], SCOPE, cursor, lambda item: sized[item.name])
        assert sum(sized[item.name] for item in items[1:]) <= PAGE_CHARS
        assert items
        found += [item.name for item in items]
        if cursor is None:
            break
    assert found == sorted(sized)

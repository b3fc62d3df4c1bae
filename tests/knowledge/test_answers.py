"""The answers that are kept, beside a model that is a plain list."""

import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import answers as module
from storage.answers import Answers, CachedAnswer, text_bytes

BOUND, ONCE = 10, 3

QUESTIONS = st.sampled_from("abcde")
GETS = st.tuples(st.just("get"), st.integers(0, 2), QUESTIONS)
SIZES = st.integers(1, BOUND + 2)
KEEPS = st.tuples(st.just("keep"), st.integers(0, 2), QUESTIONS, SIZES, st.just(lambda answer: answer))  # its own size


class Model:
    """The same as a list of (question, answer, size), the one asked last at the end."""

    def __init__(self) -> None:
        self.version: int | None = None
        self.held: list[tuple[str, int, int]] = []
        self.once: list[str] = []

    def get(self, version: int, question: str) -> CachedAnswer | None:
        if version != self.version:
            self.version, self.held, self.once = version, [], []
        found = [each for each in self.held if each[0] == question]
        self.held = [each for each in self.held if each[0] != question] + found
        return CachedAnswer(*found[0][1:]) if found else None

    def keep(self, version: int, question: str, answer: int, bytes_of: Callable[[int], int]) -> None:
        if version != self.version:
            return
        if question not in self.once:
            self.once = [] if len(self.once) == ONCE else self.once
            self.once.append(question)
            return
        self.once.remove(question)
        if bytes_of(answer) <= BOUND:
            self.held = [each for each in self.held if each[0] != question] + [(question, answer, bytes_of(answer))]
            while sum(each[2] for each in self.held) > BOUND:
                del self.held[0]


@given(st.lists(GETS | KEEPS))
def test_what_is_kept_is_what_a_plain_list_keeps(steps: list[tuple[Any, ...]]) -> None:
    answers, model = Answers(BOUND), Model()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "MAX_ONCE", ONCE)
        for verb, *arguments in steps:
            assert getattr(answers, verb)(*arguments) == getattr(model, verb)(*arguments)
            assert answers._bytes == sum(each[2] for each in model.held) <= BOUND
            assert len(answers) == len(model.held)


def test_an_answer_that_was_read_at_an_older_version_is_not_taken_for_one_of_a_newer() -> None:
    answers = Answers(BOUND)
    answers.get(1, "a")
    answers.get(2, "b")  # another reader noticed a change while the answer of the first was read
    for _ in range(2):
        answers.keep(1, "a", "old", len)
    assert answers.get(2, "a") is None
    assert len(answers) == 0


def test_who_asks_everything_once_has_nothing_kept_and_drives_out_nothing() -> None:
    answers = Answers(BOUND)
    answers.get(1, "often")
    for _ in range(2):
        answers.keep(1, "often", "x" * BOUND, len)
    for number in range(5000):
        answers.keep(1, number, "x", len)
        assert len(answers) == 1
        assert len(answers._once) <= module.MAX_ONCE
    assert answers.get(1, "often") == ("x" * BOUND, BOUND)


@pytest.mark.parametrize("text", ["", "a" * 999, "é" * 999, "€" * 999, "😀" * 999, "a" * 99 + "😀", "é"])
def test_a_text_is_counted_with_what_encoding_it_leaves_behind(text: str) -> None:
    before = text_bytes([text, None])
    msgspec.msgpack.encode(text)
    assert before >= sys.getsizeof(text)
    assert not text.isascii() or before == sys.getsizeof(text) + sys.getsizeof(None)

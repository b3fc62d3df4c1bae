"""The static embedder and its tokenizer: real weights, real words."""

import json
import math
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.work import LOOP_S
from knowledge.embedding import MAX_QUERY_CHARACTERS, EmbeddingError, windows
from knowledge.embedding.static import DIMS, FILE, SHA256, StaticEmbedder
from knowledge.embedding.wordpiece import UNKNOWN, WordPiece, words

ROOT = Path(__file__).resolve().parents[2]


def vocabulary() -> list[str]:
    line, _, rest = FILE.read_bytes().partition(b"\n")
    return rest[: json.loads(line)["vocabulary_bytes"]].decode().split("\n")


PIECES = vocabulary()
TOKENIZER = WordPiece(PIECES)


def cosine(one: bytes, other: bytes) -> float:
    pairs = zip(struct.unpack(f"<{DIMS}f", one), struct.unpack(f"<{DIMS}f", other), strict=True)
    return sum(a * b for a, b in pairs)


def pieces(text: str) -> list[str]:
    return [PIECES[index] for index in TOKENIZER.pieces(text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Refunds, unaffable!", ["ref", "##unds", ",", "una", "##ffa", "##ble", "!"]),
        ("Café NAÏVE", ["cafe", "naive"]),
        ("payments.breaker_s", ["payments", ".", "breaker", "_", "s"]),
        ("重跑gen", [UNKNOWN, UNKNOWN, "gen"]),
        ("a\x00b\u200bc\td", ["abc", "d"]),
        ("x" * 101, [UNKNOWN]),
        ("", []),
    ],
)  # fmt: skip
def test_words_are_cut_as_bert_cuts_them(text: str, found: list[str]) -> None:
    assert pieces(text) == found


@given(st.text(max_size=60))
def test_the_pieces_of_a_word_are_the_word_or_it_is_unknown(text: str) -> None:
    for word in words(text):
        found = pieces(word)
        assert found == [UNKNOWN] or "".join(each.removeprefix("##") for each in found) == word
        assert found == [UNKNOWN] or all(each.startswith("##") for each in found[1:])


@given(st.text(max_size=80))
def test_each_piece_is_the_longest_that_the_vocabulary_has(text: str) -> None:
    known = TOKENIZER.ids
    for word in words(text):
        start = 0
        for piece in pieces(word):
            if piece == UNKNOWN:
                break
            stem = piece.removeprefix("##") if start else piece
            lead = "##" if start else ""
            longer = (lead + word[start:end] for end in range(start + len(stem) + 1, len(word) + 1))
            assert not any(each in known for each in longer)
            start += len(stem)


async def test_texts_about_the_same_are_nearer_than_others() -> None:
    question, same, other = await StaticEmbedder().embed(
        ("how do customers get their money back", "refunds are paid to the card of the buyer", "the moon orbits earth")
    )
    assert cosine(question, same) > cosine(question, other) + 0.1


async def test_vectors_have_length_one_and_do_not_depend_on_their_neighbours() -> None:
    embedder = StaticEmbedder()
    texts = ["one text", "another, longer text about nothing in particular", "第三"]
    together = await embedder.embed(texts)
    assert [math.isclose(cosine(each, each), 1, abs_tol=1e-5) for each in together] == [True] * 3
    assert [(await embedder.embed([text]))[0] for text in texts] == together
    assert (await embedder.embed([]), await embedder.embed(["", "\u0b81"])) == ([], [bytes(4 * DIMS)] * 2)


async def test_weights_with_one_byte_changed_are_refused_and_the_right_ones_still_work(tmp_path: Path) -> None:
    data = bytearray(FILE.read_bytes())
    data[-1] ^= 1
    damaged = tmp_path / "static.model"
    damaged.write_bytes(data)
    with pytest.raises(EmbeddingError, match="damaged"):
        await StaticEmbedder(damaged, SHA256).embed(["text"])
    with pytest.raises(EmbeddingError, match="cannot be read: No such file"):
        await StaticEmbedder(tmp_path / "none", SHA256).embed(["text"])
    assert await StaticEmbedder().embed(["text"])


def test_numpy_is_not_loaded_before_a_text_is_embedded() -> None:
    code = "import sys; import agents.service; print('numpy' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"


@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
@pytest.mark.parametrize(
    "text", ["a" * 99 + "\u0b81 ", "ab1 " * 25, "重" * 100, "é\u0301" * 50, "." * 100, "ing" * 33 + "\u0b81 "]
)
def test_the_longest_query_of_the_worst_words_is_cut_in_pieces_in_no_time(text: str) -> None:
    query = (text * MAX_QUERY_CHARACTERS)[:MAX_QUERY_CHARACTERS]
    fresh = WordPiece(PIECES)  # which keeps no words
    begun = time.thread_time()
    assert len(list(fresh.pieces(query))) <= MAX_QUERY_CHARACTERS
    assert time.thread_time() - begun < LOOP_S


# --- windows

TEXTS = st.text(st.sampled_from("abc XYZ019_.#\n\t重跑é"), max_size=6000)


def windows_of(text: str, title: str | None = None, heading: str | None = None) -> list[str]:
    return [windows.window(part, title, heading) for part in windows.parts(text, title, heading)]


@given(TEXTS, st.none() | st.text(max_size=300), st.none() | st.text(max_size=300))
def test_no_window_is_longer_than_its_bound_and_none_of_the_text_is_lost(
    text: str, title: str | None, heading: str | None
) -> None:
    found = windows_of(text, title, heading)
    assert all(windows.tokens(each) <= windows.WINDOW_TOKENS + 1 for each in found)
    lead = windows.window("x", title, heading)[:-1]
    assert all(each.startswith(lead) for each in found)
    assert "".join("".join(each[len(lead) :].split()) for each in found) == "".join(text.split())


@given(TEXTS)
def test_windows_have_no_more_pieces_than_models_read(text: str) -> None:
    assert all(len(pieces(each)) <= 256 for each in windows_of(text, "A title"))


def test_a_window_names_the_title_once() -> None:
    assert windows.window("text", "Alpha", "Alpha > Beta") == "Alpha > Beta\ntext"
    assert windows.window("text", "Alpha", "Beta") == "Alpha > Beta\ntext"
    assert windows.window("text", "Alpha") == "Alpha\ntext"
    assert (windows.window("text"), windows.parts("text"), windows.parts(" \n", "Alpha")) == ("text", ["text"], [])

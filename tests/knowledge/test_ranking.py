import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knowledge.ranking import MAX_TERMS, SNIPPET_CHARACTERS, fold, parse_query, scores, snippet
from knowledge.sqlite import indexing, schema
from knowledge.sqlite.indexing import Worded

NASTY = [
    "NOT foo", "foo AND", "OR", "AND OR NOT", '"', '""', '"unbalanced', 'a "b', "*", "foo*", "^foo", "🎉", "a-b", "-",
    "\0", "foo\0bar", "title:foo", "nosuch : foo", "NEAR(foo bar, 2)", "NEAR(", "{title text}: x", "(", "foo)",
    "a + b", "'; DROP TABLE chunks; --", "\ud800", "foo\ud800", "%", "_", "foo_bar", "a,b;c", "\\", "\u0301",
    "e\u0301", "漢字", "क्षमा", "\ue000", "²", "x" * 5000, " ".join(f"w{n}" for n in range(500)),
    '"' + "p " * 500 + '"', "\n\t ", "", "ﬀ", "İ", "ß",
]  # fmt: skip

FOUND = "SELECT chunks.text FROM words JOIN chunks ON chunk = words.rowid WHERE words"

QUERIES = (
    st.text()
    | st.sampled_from(NASTY)
    | st.lists(st.sampled_from([*NASTY[:35], " ", '"', "alpha", "beta"])).map("".join)
    | st.text(alphabet=st.characters(), max_size=30)  # lone surrogates included
)


@pytest.fixture(scope="module")
def index() -> apsw.Connection:
    db = apsw.Connection(":memory:")
    db.execute(schema.SCHEMA)
    texts = ["foo bar", "bar foo", "NOT AND OR NEAR", "a b", "a x b", "Crème brûlée", "漢字", "क्षमा", "title"]
    for n, text in enumerate(texts):
        db.execute("INSERT INTO chunks VALUES (?, ?)", (n << 24, text))
        indexing.index(db, [Worded(n, "", [text])], "en")
    return db


def matching(index: apsw.Connection, expression: str) -> set[str]:
    return {str(text) for (text,) in index.execute(f"{FOUND} MATCH ?", (expression,))}


@given(query=QUERIES)
def test_no_text_whatever_is_a_syntax_error(index: apsw.Connection, query: str) -> None:
    parsed = parse_query(query, prefix=True, languages=("en", "ru"))
    assert bool(parsed.any) == bool(parsed.required) == bool(parsed.words)
    assert len(parsed.required) <= MAX_TERMS
    for expression in filter(None, (parsed.any, *parsed.required)):
        matching(index, expression)


@pytest.mark.parametrize("query", NASTY)
def test_nasty_queries_are_taken_literally(index: apsw.Connection, query: str) -> None:
    parsed = parse_query(query)
    if parsed.any:
        matching(index, parsed.any)


@pytest.mark.parametrize("query", ["", " ", '"', '""', "*", "🎉", "\0", "-", "\ud800", "\u0301"])
def test_a_query_without_any_word_asks_for_nothing(query: str) -> None:
    assert parse_query(query).any == ""


def test_any_word_matches_and_each_word_is_a_term(index: apsw.Connection) -> None:
    parsed = parse_query("foo crème nowhere")
    assert matching(index, parsed.any) == {"foo bar", "bar foo", "Crème brûlée"}
    assert len(parsed.required) == 3


def test_operators_are_words(index: apsw.Connection) -> None:
    assert matching(index, parse_query("NOT foo").any) == {"foo bar", "bar foo", "NOT AND OR NEAR"}
    assert matching(index, parse_query("NEAR(").any) == {"NOT AND OR NEAR"}
    assert matching(index, parse_query("title:foo").any) == {"foo bar", "bar foo", "title"}


def test_a_balanced_quoted_phrase_matches_as_a_phrase(index: apsw.Connection) -> None:
    parsed = parse_query('"foo bar"')
    assert matching(index, parsed.any) == {"foo bar"}
    assert len(parsed.required) == 1
    assert matching(index, parse_query('"foo bar').any) == {"foo bar", "bar foo"}


def test_parts_of_a_hyphenated_word_match_alone_and_count_more_together(index: apsw.Connection) -> None:
    parsed = parse_query("a-b")
    rows = index.execute(f"{FOUND} MATCH ? ORDER BY rank", (parsed.any,)).fetchall()
    assert [text for (text,) in rows] == ["a b", "a x b"]


def test_a_word_typed_twice_is_one_term() -> None:
    assert len(parse_query("Foo foo FOO").required) == 1


def test_a_query_that_is_too_long_is_cut_and_says_so() -> None:
    parsed = parse_query(" ".join(f"w{n}" for n in range(100)))
    assert parsed.cut
    assert len(parsed.required) == MAX_TERMS
    assert not parse_query("short").cut


@given(st.lists(st.tuples(st.booleans(), st.floats(-50, -1e-9)), max_size=20))
def test_scores_are_in_zero_to_one_and_never_rise(pairs: list[tuple[bool, float]]) -> None:
    ranks = sorted(pairs, key=lambda pair: (not pair[0], pair[1]))
    result = scores(ranks)
    assert all(0 <= score <= 1 for score in result)
    assert result == sorted(result, reverse=True)
    assert not result or result[0] == 1


def test_a_single_hit_scores_one() -> None:
    assert scores([(True, -0.000001)]) == scores([(False, -3.0)]) == [1.0]


def test_a_score_does_not_depend_on_how_many_hits_follow() -> None:
    ranks = [(True, -4.0), (True, -1.0), (False, -9.0), (False, -3.0)]
    assert all(scores(ranks)[:n] == scores(ranks[:n]) for n in range(5))


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])), st.text(min_size=1, max_size=5))
def test_a_snippet_is_bounded_plain_text(text: str, query: str) -> None:
    shown = snippet(text * 20, parse_query(query).words)
    assert len(shown) <= SNIPPET_CHARACTERS
    assert shown == shown.strip()
    assert "\n" not in shown


def test_a_snippet_shows_the_place_with_most_of_the_words() -> None:
    text = "alpha " + "filler " * 200 + "here alpha meets beta at last " + "filler " * 200
    shown = snippet(text, ("alpha", "beta"))
    assert "alpha meets beta" in shown
    assert shown.startswith("…")
    assert shown.endswith("…")


def test_a_snippet_finds_words_regardless_of_case_and_diacritics() -> None:
    text = "filler " * 100 + "the CRÈME of the crop " + "filler " * 100
    assert "CRÈME" in snippet(text, parse_query("creme").words)


def test_a_snippet_without_any_of_the_words_is_the_beginning() -> None:
    assert snippet("Beginning. " + "x " * 500, ("nowhere",)).startswith("Beginning.")
    assert snippet("short\n\ntext", ()) == "short text"


@given(st.text())
def test_folding_keeps_every_character_in_its_place(text: str) -> None:
    assert len(fold(text)) == len(text)

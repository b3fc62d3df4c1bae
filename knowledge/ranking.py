"""From what a user typed to an FTS5 expression, and from FTS5's ranks to scores and excerpts.

Order of hits, the only one there is: documents that hold all words of the query first; then the better rank; then the
newer `updated_at`, documents without one last; then the smaller `id`. Scores follow that order, so they never rise.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# A query is a few words; these bounds keep a pasted file from becoming a query of thousands of index scans.
MAX_QUERY_CHARACTERS = 4096
MAX_TERMS = 32

SNIPPET_CHARACTERS = 240

# How far before the first word of an excerpt's window the excerpt begins, so that it reads in context.
_LEAD_CHARACTERS = 60

_WORDS_AND_PHRASES = re.compile(r'"([^"]*)"|([^\s"]+)')


@dataclass(frozen=True, slots=True)
class MatchQuery:
    """A user's query made safe for FTS5: every expression consists of quoted strings of letters and digits only.

    `any` matches a document with any of the terms; it is empty when the query holds none, so that nothing matches.
    `required` has one expression for each term; a document that matches each of them holds all the words.
    `words` are the folded words, for finding them in a text; a `*` ends one that may be half typed. `cut` is true when
    the query was too long to use whole.
    """

    any: str
    required: tuple[str, ...]
    words: tuple[str, ...]
    cut: bool


# A shorter half of a word matches a good part of all words.
MIN_PREFIX_CHARACTERS = 2


def parse_query(text: str, *, prefix: bool = False) -> MatchQuery:
    """Never fails. `"a b"` is a phrase when its quotes are balanced; everything else is words, taken literally.

    A word with punctuation inside (`a-b`, `module.name`) counts as its parts, each a term, and ranks higher where the
    parts stand together. With `prefix`, the last word may be half typed, unless it is in a phrase or too short.
    """
    cut = len(text) > MAX_QUERY_CHARACTERS
    required: dict[str, str] = {}  # folded -> expression, so that `Rust rust` is one term
    together: dict[str, str] = {}
    words: dict[str, None] = {}
    for phrase, bare in _WORDS_AND_PHRASES.findall(text[:MAX_QUERY_CHARACTERS]):
        tokens = _tokens(phrase or bare)
        if not tokens:
            continue
        terms = [tokens] if phrase else [[token] for token in tokens]
        if len(required) + len(terms) > MAX_TERMS or len(tokens) > MAX_TERMS:
            cut = True
            continue
        for term in terms:
            required.setdefault(fold(_quoted(term)), _quoted(term))
        words.update(dict.fromkeys(fold(token) for token in tokens))
        if len(terms) > 1:
            together[fold(_quoted(tokens))] = _quoted(tokens)
    if prefix and not cut:
        required, together, words = _half_typed(text, required, together, words)
    expressions = tuple(required.values())
    return MatchQuery(" OR ".join((required | together).values()), expressions, tuple(words), cut)


def _half_typed(
    text: str, required: dict[str, str], together: dict[str, str], words: dict[str, None]
) -> tuple[dict[str, str], dict[str, str], dict[str, None]]:
    """The same with the last word of the query as a prefix, which a star marks among the words."""
    tokens = _tokens(text)
    last = fold(_quoted(tokens[-1:])) if tokens else ""
    # In a phrase the word is no term of its own; behind the last word, a quote or a space ends it.
    if last not in required or not text.endswith(tokens[-1]) or len(tokens[-1]) < MIN_PREFIX_CHARACTERS:
        return required, together, words
    word = fold(tokens[-1])
    # An entry of `together` that ends with the word may be half typed with it.
    whole = {key: f"{each} *" if key.endswith(f' {word}"') else each for key, each in together.items()}
    return (
        required | {last: f"{required[last]} *"},
        whole,
        {each: None for each in words if each != word} | {f"{word}*": None},
    )


def title_prefix(text: str) -> str:
    """An expression for titles with all words of `text`, each maybe half typed; empty without words."""
    tokens = _tokens(text[:MAX_QUERY_CHARACTERS])[:MAX_TERMS]
    return "title : (" + " AND ".join(f"{_quoted([token])} *" for token in tokens) + ")" if tokens else ""


def _quoted(tokens: Sequence[str]) -> str:
    return '"' + " ".join(tokens) + '"'


def _tokens(text: str) -> list[str]:
    """The words of `text` by the rule of FTS5's unicode61 (letters, digits, private use), marks kept with them.

    Nothing else gets through: no quote, no operator, no NUL (which would end the expression early), no lone surrogate.
    """
    kept = "".join(char if char.isalnum() or unicodedata.category(char) in _ALSO_WORD else " " for char in text)
    return [token for token in kept.split(" ") if any(map(_starts_token, token))]


_ALSO_WORD = frozenset({"Mn", "Mc", "Me", "Co"})


def _starts_token(char: str) -> bool:
    return char.isalnum() or unicodedata.category(char) == "Co"


class _Fold(dict[int, str]):
    """A table for str.translate: lower case without diacritics, one character for one, filled as characters are met."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        base = "".join(c for c in unicodedata.normalize("NFD", char) if not unicodedata.combining(c)).lower()
        folded = base if len(base) == 1 else char
        if len(self) < 4096:  # a text can hold a million different characters; the table need not
            self[code] = folded
        return folded


_FOLD = _Fold()


def fold(text: str) -> str:
    """`text` as words are compared, each character at its old place: lower case, without diacritics."""
    return text.lower() if text.isascii() else text.translate(_FOLD)


def scores(ranks: Sequence[tuple[bool, float]]) -> list[float]:
    """Scores in 0..1 for (has all words, bm25) pairs in the order of hits; bm25 is negative, smaller is better.

    Each rank is taken relative to the best of its group, so a score does not depend on how many hits were requested.
    With complete documents at the top, those take 0.5..1 and the rest 0..0.5; without any, the best one has 1.
    """
    complete_best = next((rank for complete, rank in ranks if complete), None)
    partial_best = next((rank for complete, rank in ranks if not complete), None)
    result = []
    for complete, rank in ranks:
        relative = _relative(rank, complete_best if complete else partial_best)
        if complete:
            result.append(0.5 + relative / 2)
        else:
            result.append(relative if complete_best is None else relative / 2)
    return result


def _relative(rank: float, best: float | None) -> float:
    return min(1.0, max(0.0, rank / best)) if best else 1.0


def snippet(text: str, words: Sequence[str], limit: int = SNIPPET_CHARACTERS) -> str:
    """An excerpt of at most `limit` characters, white space collapsed, around as many of the folded `words` as fit.

    Without any of them, the beginning of the text. `…` marks an end that was cut.
    """
    if len(text) <= limit:
        return " ".join(text.split())
    start = max(0, _best_place(fold(text), words, limit - _LEAD_CHARACTERS) - _LEAD_CHARACTERS)
    if start:
        start = text.find(" ", start, start + _LEAD_CHARACTERS // 2) + 1 or start
    lead = "…" if start else ""
    # Collapsing white space shortens: twice the limit leaves enough of ordinary text.
    shown = lead + " ".join(text[start : start + 2 * limit].split())
    if len(shown) <= limit and start + 2 * limit >= len(text):
        return shown
    head = shown[: limit - 1]
    whole_words = head.rpartition(" ")[0]
    return (whole_words if len(whole_words) > limit // 2 else head) + "…"


def _best_place(folded: str, words: Sequence[str], width: int) -> int:
    """The earliest of the words' places after which, within `width` characters, most different words stand."""
    if len(words) == 1:
        return next(_places(folded, words[0]), 0)
    found = sorted((place, word) for word in words for place in _places(folded, word))
    best, best_count = 0, 0
    within: dict[str, int] = {}  # how often each word stands in found[first:index + 1], a window of at most `width`
    first = 0
    for place, word in found:
        within[word] = within.get(word, 0) + 1
        while found[first][0] + width < place + len(word) and found[first][0] < place:
            leaving = found[first][1]
            within[leaving] -= 1
            if not within[leaving]:
                del within[leaving]
            first += 1
        if len(within) > best_count:
            best, best_count = found[first][0], len(within)
    return best


def _places(folded: str, word: str) -> Iterator[int]:
    """Where `word` stands as a word of its own: the first few, as an excerpt needs no more."""
    word, half, _ = word.partition("*")
    place = -1
    for _ in range(5):
        place = folded.find(word, place + 1)
        if place < 0:
            return
        end = place + len(word)
        if not folded[place - 1 : place].isalnum() and (half or not folded[end : end + 1].isalnum()):
            yield place

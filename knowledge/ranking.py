"""From what a user typed to an FTS5 expression, and from FTS5's ranks to scores and excerpts.

Order of hits, the only one there is: documents that hold all words of the query first; then the better rank; then the
newer `updated_at`, documents without one last; then the smaller `id`. Scores follow that order, so they never rise.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from knowledge.words import fold, is_cjk, pairs, parts, runs, stems

# A query is a few words; these bounds keep a pasted file from becoming a query of thousands of index scans.
MAX_QUERY_CHARACTERS = 4096
MAX_TERMS = 32

SNIPPET_CHARACTERS = 240

# How far before the first word of an excerpt's window the excerpt begins, so that it reads in context.
_LEAD_CHARACTERS = 60

_WORDS_AND_PHRASES = re.compile(r'"([^"]*)"|([^\s"]+)')


@dataclass(frozen=True, slots=True)
class Term:
    """One word of a query, or a phrase: `word` as it was typed, folded; `expressions` find it, any one of them."""

    word: str
    expressions: tuple[str, ...]

    @property
    def any(self) -> str:
        return " OR ".join(self.expressions)

    @property
    def half(self) -> bool:
        """Whether it may go on: FTS5 collects all rows of all such words before it has the first."""
        return any(expression.endswith((" *", " *)")) for expression in self.expressions)


@dataclass(frozen=True, slots=True)
class MatchQuery:
    """A user's query made safe for FTS5: every expression consists of quoted strings of letters and digits only.

    A document that matches each of `terms` holds all the words. `together` has further expressions, for words that
    stood together in the query. `words` are the folded words, for finding them in a text; a `*` ends one that may go
    on. `cut` is true when the query was too long to use whole.
    """

    terms: tuple[Term, ...]
    together: tuple[str, ...]
    words: tuple[str, ...]
    cut: bool

    @property
    def expressions(self) -> tuple[str, ...]:
        """All expressions, each once."""
        return tuple(dict.fromkeys(chain(*(term.expressions for term in self.terms), self.together)))

    @property
    def phrases(self) -> tuple[str, ...]:
        """The phrases of `any`, in its order, as FTS5 numbers them."""
        return tuple(chain(*(_phrases(expression) for expression in self.expressions)))

    @property
    def any(self) -> str:
        """Matches a document with any of the terms; empty when the query holds none, so that nothing matches."""
        return " OR ".join(self.expressions)

    @property
    def required(self) -> tuple[str, ...]:
        """One expression for each term."""
        return tuple(term.any for term in self.terms)


# A shorter half of a word matches a good part of all words.
MIN_PREFIX_CHARACTERS = 2


def parse_query(text: str, *, prefix: bool = False, languages: Sequence[str] = ()) -> MatchQuery:
    """Never fails. `"a b"` is a phrase when its quotes are balanced; everything else is words, taken literally.

    A word with punctuation inside (`a-b`, `module.name`) counts as its parts, each a term, and ranks higher where the
    parts stand together; so does a run of CJK, as its pairs. A word is also found by its stems in `languages`, and one
    like `getUserName` as the words it is made of. With `prefix`, the last word may be half typed, unless it is in a
    phrase or too short.
    """
    typed = text[:MAX_QUERY_CHARACTERS]
    query = _Query(languages)
    query.cut = len(text) > MAX_QUERY_CHARACTERS
    for found in _WORDS_AND_PHRASES.finditer(typed):
        tokens = _tokens(found[1] or found[2] or "")
        if not tokens:
            continue
        if found[1] and len(tokens) > 1:
            query.add_phrase(tokens)
        else:
            # Behind the last word, a quote or a space ends it.
            ends = found.end() < len(typed) or found[1] or not typed.endswith(tokens[-1])
            query.add_words(tokens, half=prefix and not query.cut and not ends)
    return query.parsed()


class _Query:
    """A query while it is parsed: terms by their folded word, so that `Rust rust` is one."""

    def __init__(self, languages: Sequence[str]) -> None:
        self.cut = False
        self._languages = languages
        self._terms: dict[str, Term] = {}
        self._together: dict[str, None] = {}
        self._words: dict[str, None] = {}

    def parsed(self) -> MatchQuery:
        return MatchQuery(tuple(self._terms.values()), tuple(self._together), tuple(self._words), self.cut)

    def add_phrase(self, tokens: Sequence[str]) -> None:
        if len(tokens) > MAX_TERMS or len(self._terms) >= MAX_TERMS:
            self.cut = True
            return
        expression = f"{{title text}} : {_quoted(tokens)}"
        if any(map(is_cjk, "".join(tokens))):
            # Runs of CJK stand in the index as pairs, so that words around them are no neighbours there.
            expression = f"({' AND '.join(map(_cjk_phrase, tokens))})"
        self._terms.setdefault(fold(_quoted(tokens)), Term(fold(" ".join(tokens)), (expression,)))
        self._words.update(dict.fromkeys(fold(token) for token in tokens))

    def add_words(self, tokens: Sequence[str], *, half: bool) -> None:
        if 1 < len(tokens) <= MAX_TERMS - len(self._terms):
            self._together[_quoted(tokens) + (" *" if half else "")] = None
        for index, token in enumerate(tokens):
            self._add_word(token, half=half and index == len(tokens) - 1)

    def _add_word(self, token: str, *, half: bool) -> None:
        cut = runs(token)
        for index, run in enumerate(cut):
            if is_cjk(run[0]):
                for pair in pairs(run):
                    # A single character is found as the beginning of a pair.
                    self._add(pair, [_quoted([pair]) + (" *" if len(pair) == 1 else "")], f"{pair}*")
                if len(run) > 2 and not self.cut:
                    self._together[_quoted(pairs(run)[:MAX_TERMS])] = None
            else:
                self._add_plain(run, half=half and index == len(cut) - 1)

    def _add_plain(self, word: str, *, half: bool) -> None:
        half = half and len(word) >= MIN_PREFIX_CHARACTERS
        folded, found = fold(word), [_quoted([word]) + (" *" if half else "")]
        shown = [folded + "*" * half]
        for stem in dict.fromkeys(stem for language in self._languages for stem in stems(word, language)):
            found.append(_quoted([stem]))
            shown.append(f"{stem}*")
        if made_of := parts(word, whole=True):
            found.append(_quoted(made_of))
        self._add(folded, found, *shown)

    def _add(self, word: str, expressions: Sequence[str], *shown: str) -> None:
        if word not in self._terms and len(self._terms) >= MAX_TERMS:
            self.cut = True
            return
        term = self._terms.get(word)
        self._terms[word] = Term(word, tuple(dict.fromkeys((*(term.expressions if term else ()), *expressions))))
        self._words.update(dict.fromkeys(shown))


def _cjk_phrase(token: str) -> str:
    """A token with CJK as it stands among the derived forms (`words.forms`), to its last character."""
    found: list[str] = []
    cut = runs(token)
    for index, run in enumerate(cut):
        if not is_cjk(run[0]):
            found.append(run)
            continue
        found += pairs(run)
        if len(run) > 1 and index < len(cut) - 1:
            found.append(run[-1])
    last = cut[-1]
    return _quoted(found) + (" *" if len(last) == 1 and is_cjk(last) else "")


def _phrases(expression: str) -> list[str]:
    # Quoted words have no parentheses.
    return expression[1:-1].split(" AND ") if expression.startswith("(") else [expression]


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


def norms(ranks: Sequence[tuple[bool, float]]) -> list[float]:
    """In 0..1 for (has all words, bm25) pairs in the order of hits; bm25 is negative, smaller is better.

    Each rank is taken relative to the best of its group, so that it does not depend on how many hits were requested.
    """
    complete_best = next((rank for complete, rank in ranks if complete), None)
    partial_best = next((rank for complete, rank in ranks if not complete), None)
    return [_relative(rank, complete_best if complete else partial_best) for complete, rank in ranks]


def scores(ranks: Sequence[tuple[bool, float]]) -> list[float]:
    """Scores in 0..1 for the same pairs.

    With complete documents at the top, those take 0.5..1 and the rest 0..0.5; without any, the best one has 1.
    """
    some_complete = any(complete for complete, _ in ranks)
    return [
        0.5 + norm / 2 if complete else norm / 2 if some_complete else norm
        for (complete, _), norm in zip(ranks, norms(ranks), strict=True)
    ]


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
        if _ends_word(folded[place - 1 : place], word) and (half or _ends_word(folded[end : end + 1], word)):
            yield place


def _ends_word(neighbour: str, word: str) -> bool:
    return not neighbour.isalnum() or is_cjk(neighbour) or is_cjk(word)

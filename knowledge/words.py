"""The words of a text, and the forms under which they are also found: stems, parts of identifiers, pairs of CJK. Pure.

A store's index holds a text as it is, and beside it what this module derives: for `refunds` its stem `refund`; for
`getUserName` the words `get user name`; for `悬空引用` the pairs `悬空 空引 引用` and the last character.
Words that equal their stem have no form, so derived forms are some third of a text.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import MappingProxyType

NO_LANGUAGE = "none"
DEFAULT_LANGUAGE = "en"
LANGUAGES = MappingProxyType({
    "ar": "arabic", "ca": "catalan", "cs": "czech", "da": "danish", "de": "german", "el": "greek", "en": "english",
    "eo": "esperanto", "es": "spanish", "et": "estonian", "eu": "basque", "fa": "persian", "fi": "finnish",
    "fr": "french", "ga": "irish", "hi": "hindi", "hu": "hungarian", "hy": "armenian", "id": "indonesian",
    "it": "italian", "lt": "lithuanian", "ne": "nepali", "nl": "dutch", "no": "norwegian", "pl": "polish",
    "pt": "portuguese", "ro": "romanian", "ru": "russian", "sr": "serbian", "st": "sesotho", "sv": "swedish",
    "ta": "tamil", "tr": "turkish", "yi": "yiddish",
})  # fmt: skip

# Longer words are data, not language: they are found as they stand.
MAX_WORD_CHARACTERS = 64
# More parts than this has a hash or a key, not a name.
MAX_PARTS = 8

# What one document may add to an index: an English text of 48 MB has forms to its end; what is beyond is found by its
# exact words.
MAX_FORM_BYTES = 16 * 1024 * 1024

# Forms that stay in memory, twice as many at most: 8 MB.
_KEPT_PIECES = 32_768
_KEPT_BYTES = 32

# Han, Kana, Hangul and Bopomofo: written without spaces, or with endings that are glued to the word.
_CJK_CLASS = "\u1100-\u11ff\u3005-\u3007\u3040-\u312f\u3130-\u318f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
_CJK_CLASS += "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
_CJK = re.compile(f"[{_CJK_CLASS}]")
_RUNS = re.compile(f"[{_CJK_CLASS}]+|[^{_CJK_CLASS}]+")
# `\w` has no combining marks; these are those of Latin, Arabic and the scripts of India, without their punctuation.
_WORD = re.compile(r"(?:(?!_)[\w\u0300-\u036f\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff])+")
# Everything of ASCII but letters and digits becomes a space.
_SEPARATED = bytes(code if code >= 128 or chr(code).isalnum() else 32 for code in range(256))
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_PLAIN = re.compile(r"[a-z]+|[A-Z][a-z]*|[A-Z]+|[0-9]+")


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


def is_cjk(char: str) -> bool:
    """Whether a character is of a script whose words are found by pairs of characters."""
    return _CJK.match(char) is not None


def runs(word: str) -> list[str]:
    """A word cut where it changes between CJK and anything else."""
    return _RUNS.findall(word)


def pairs(run: str) -> list[str]:
    """Each two neighbours of a run of CJK; the character itself where it is alone."""
    return [run[at : at + 2] for at in range(len(run) - 1)] or [run]


def parts(word: str, *, whole: bool = False) -> list[str]:
    """The words that `getUserName`, `HTTPServer` or `window200` is made of, in lower case; empty for a plain word.

    A letter or a number of two digits is no such word; with `whole`, a word that has one is made of nothing.
    """
    if len(word) > MAX_WORD_CHARACTERS or not word.isascii() or _PLAIN.fullmatch(word):
        return []
    found = _PARTS.findall(word)
    if not 1 < len(found) <= MAX_PARTS:
        return []
    kept = [part.lower() for part in found if len(part) > (2 if part.isdigit() else 1)]
    return [] if whole and len(kept) < len(found) else kept


@lru_cache(maxsize=len(LANGUAGES))
def _stem_word(language: str) -> Callable[[str], str]:
    import Stemmer  # where it is used: the configuration needs the names above only

    stemmer = Stemmer.Stemmer(LANGUAGES[language])
    stemmer.maxCacheSize = 0  # `_Forms` keeps what is needed
    stem_word: Callable[[str], str] = stemmer.stemWord
    return stem_word


def stems(word: str, language: str) -> list[str]:
    """The stems of a word that are not the word itself.

    Two where its diacritics change its ending, so that `cafés` and `cafes` have one in common.
    """
    if language == NO_LANGUAGE or len(word) > MAX_WORD_CHARACTERS:
        return []
    stem_word, lower = _stem_word(language), word.lower()
    if lower.isascii():
        stem = stem_word(lower)
        return [stem] if stem and stem != lower else []
    plain = fold(lower)
    found = {fold(stem_word(lower)), stem_word(plain)} - {plain, ""}
    return sorted(found)


class _Forms(dict[bytes, bytes]):
    """The forms of what stands between two separators of ASCII, computed when it is first met. All in UTF-8."""

    def __init__(self, language: str) -> None:
        self._language = language
        # What was met before this was full. A word that is met again stays, so that most words of a text are here.
        self._before: dict[bytes, bytes] = {}

    def __missing__(self, piece: bytes) -> bytes:
        forms = self._before.get(piece)
        if forms is None:
            if piece.isalpha() and (piece.islower() or piece.istitle() or piece.isupper()):
                # A plain word of ASCII, as most are, in a fifth of the time.
                forms = " ".join(stems(piece.decode(), self._language)).encode()
            else:
                forms = self._made(piece.decode())
        if len(piece) <= _KEPT_BYTES:
            if len(self) >= _KEPT_PIECES:
                self._before = dict(self)
                self.clear()
            self[piece] = forms
        return forms

    def _made(self, text: str) -> bytes:
        if not text.isascii():
            text = unicodedata.normalize("NFC", text)
        return " ".join(form for word in _WORD.findall(text) for form in self._forms(word)).encode()

    def _forms(self, word: str) -> Iterator[str]:
        if not word.isascii() and _CJK.search(word):
            yield from self._cjk(word)
            return
        found = parts(word)
        yield from found  # beside each other, so that they are found as a phrase
        for each in (word, *found):
            yield from stems(each, self._language)

    def _cjk(self, word: str) -> Iterator[str]:
        cut = runs(word)
        for run in cut:
            if is_cjk(run[0]):
                yield from pairs(run)
                if len(run) > 1:
                    yield run[-1]  # a single character is found as the beginning of a pair, or as this
            elif len(cut) > 1:
                yield run
                yield from self._forms(run)


_forms_of = lru_cache(maxsize=4)(_Forms)


def forms(text: str, language: str, room: int = MAX_FORM_BYTES) -> str:
    """The forms of a text's words, of each word once, at most `room` bytes of them in UTF-8."""
    # As bytes: cutting a text at all that is no letter or digit takes a sixth of what a pattern takes (measured).
    pieces = text[: max(room, 0)].encode("utf-8", "replace").translate(_SEPARATED).split()
    found = b" ".join(filter(None, map(_forms_of(language).__getitem__, dict.fromkeys(pieces))))
    return (found if len(found) <= room else found[:room].rpartition(b" ")[0]).decode()

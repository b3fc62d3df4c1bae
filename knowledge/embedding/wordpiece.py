"""Words in pieces, by the rules of BERT's uncased WordPiece: what sentence models were trained on. Pure."""

import unicodedata
from collections.abc import Iterable, Iterator

# As in BERT: a longer word is unknown as a whole.
MAX_WORD_CHARACTERS = 100
# Words whose pieces are kept: most texts repeat a few thousand.
_KEPT_WORDS = 20_000

UNKNOWN = "[UNK]"


class _Cleaned(dict[int, str]):
    """A table for str.translate: spaces around what is a word of its own, nothing for what does not count."""

    def __missing__(self, code: int) -> str:
        cleaned = _cleaned(code)
        if len(self) < 4096:  # as in ranking.fold: a text can hold a million different characters
            self[code] = cleaned
        return cleaned


def _cleaned(code: int) -> str:
    char = chr(code)
    category = unicodedata.category(char)
    if char in "\t\n\r" or category == "Zs":
        return " "
    if code == 0xFFFD or category[0] == "C" or category == "Mn":
        return ""
    if category[0] == "P" or (code < 128 and not char.isalnum()) or _is_cjk(code):
        return f" {char} "
    return char


def _is_cjk(code: int) -> bool:
    return (
        0x4E00 <= code <= 0x9FFF or 0x3400 <= code <= 0x4DBF or 0x20000 <= code <= 0x2CEAF
        or 0xF900 <= code <= 0xFAFF or 0x2F800 <= code <= 0x2FA1F
    )  # fmt: skip


_TABLE = _Cleaned()


def words(text: str) -> list[str]:
    """The words of `text`, in lower case without accents; punctuation and CJK characters are words of their own."""
    lower = text.lower()
    if not lower.isascii():
        lower = unicodedata.normalize("NFD", lower)
    return lower.translate(_TABLE).split()


class WordPiece:
    """Pieces of a vocabulary; a piece that does not begin its word stands there with `##` before it."""

    def __init__(self, vocabulary: Iterable[str]) -> None:
        self.ids = {piece: index for index, piece in enumerate(vocabulary)}
        self._longest = max((len(piece) for piece in self.ids), default=0)
        self._kept: dict[str, tuple[int, ...]] = {}

    def pieces(self, text: str) -> Iterator[int]:
        """The ids of the pieces of `text`. A word that the vocabulary cannot spell is one `[UNK]`."""
        for word in words(text):
            yield from self._kept.get(word) or self._keep(word)

    def _keep(self, word: str) -> tuple[int, ...]:
        found = self._split(word)
        if len(self._kept) >= _KEPT_WORDS:
            self._kept.clear()
        self._kept[word] = found
        return found

    def _split(self, word: str) -> tuple[int, ...]:
        unknown = (self.ids[UNKNOWN],)
        if len(word) > MAX_WORD_CHARACTERS:
            return unknown
        found = []
        start = 0
        while start < len(word):
            lead = "##" if start else ""
            for end in range(min(len(word), start + self._longest), start, -1):
                piece = self.ids.get(lead + word[start:end])
                if piece is not None:
                    break
            else:
                return unknown
            found.append(piece)
            start = end
        return tuple(found)

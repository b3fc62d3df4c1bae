"""A corpus by a seeded generator: Markdown whose words have the frequencies, endings and topics of English.

Words are drawn by Zipf's law: function words, then lemmas made of syllables, a third of them with an ending, so that
words and their stems differ as in English. Each document has a topic: words that it repeats. The same seed makes the
same corpus on every machine.
"""

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from knowledge import chunking

# A section of a document is a chunk: with this bound, two of them are never one.
SECTIONS, SECTION_WORDS, MAX_TOKENS = 10, (80, 100), 200

_FUNCTION_WORDS = re.findall(
    r"\w+",
    "the of and to in is that it for as with on be by this are or from at an not which have can if when will has was "
    "all but one its more other use used may each only no into than then so any same there also after before between "
    "through where while does must should out up over such these those their they you we how what who both most some",
)
_ONSETS = re.findall(r"\w+", "b br c ch d dr f g gr h j k l m n p pl pr r s sh st t th tr v w")
_VOWELS = ["a", "e", "i", "o", "u", "ai", "ea", "io"]
_CODAS = ["ck", "d", "l", "m", "n", "nd", "r", "s", "st", "t"] + [""] * 12
_ENDINGS = {"": 0.66, "s": 0.14, "ed": 0.06, "ing": 0.06, "er": 0.03, "ation": 0.02, "ly": 0.02, "able": 0.01}
_LEMMAS = 12_000
# Of a paragraph's words: those of the topic, identifiers, numbers.
_TOPIC, _NAMES, _NUMBERS = 14, 1, 2


class Page(NamedTuple):
    """A document: its path, title and Markdown, and the chunks of that."""

    path: str
    title: str
    body: str
    chunks: Sequence[str]


def pages(count: int, seed: int = 1) -> Iterator[Page]:
    """So many documents, each of `SECTIONS` chunks."""
    words = _Words(seed)
    for number in range(count):
        topic = words.topic()
        title = " ".join(topic[:3]).capitalize()
        sections = [f"## {' '.join(words.pick(topic, 2))}\n\n{words.paragraph(topic)}" for _ in range(SECTIONS)]
        body = f"# {title}\n\n" + "\n\n".join(sections) + "\n"
        yield Page(f"{number % 100:02}/{number:06}.md", title, body, chunking.split(body, max_tokens=MAX_TOKENS))


def small_pages(count: int, seed: int = 2) -> Iterator[Page]:
    """So many documents of one chunk."""
    words = _Words(seed)
    for number in range(count):
        topic = words.topic()
        title = " ".join(topic[:3]).capitalize()
        body = f"# {title}\n\n{words.paragraph(topic)}"
        yield Page(f"{number % 100:02}/{number:06}.md", title, body, (body,))


def questions(documents: Sequence[Page], count: int, seed: int = 3) -> list[str]:
    """What users could type: three to eight words that stand near each other in a document; each question once."""
    chosen, found = random.Random(seed), dict[str, None]()
    while len(found) < count:
        words = chosen.choice(chosen.choice(documents).chunks).split()
        size = chosen.randint(3, 8)
        start = chosen.randrange(len(words) - 2 * size)
        found[" ".join(chosen.sample(words[start : start + 2 * size], size))] = None
    return list(found)


class _Words:
    """The vocabulary of a seed, and what is drawn from it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lemmas = self._made()
        lemmas = [*_FUNCTION_WORDS, *self._lemmas]
        self._words, weights = list[str](), list[float]()
        for rank, lemma in enumerate(lemmas, 1):
            # By Zipf and Mandelbrot: the first ranks are not as far apart as 1/rank would have it.
            weight = 1 / (rank + 2.7) ** 1.25
            for ending, share in {"": 1.0}.items() if lemma in _FUNCTION_WORDS else _ENDINGS.items():
                self._words.append(lemma + ending)
                weights.append(weight * share)
        self._cumulative = list(itertools.accumulate(weights))

    def topic(self) -> list[str]:
        """Twelve lemmas, common ones more often."""
        return [self._lemmas[int(_LEMMAS * self._random.random() ** 4)] for _ in range(12)]

    def pick(self, words: Sequence[str], count: int) -> list[str]:
        return self._random.sample(words, count)

    def paragraph(self, topic: Sequence[str]) -> str:
        """A paragraph in lines of fourteen words."""
        chosen = self._random
        words = chosen.choices(self._words, cum_weights=self._cumulative, k=chosen.randint(*SECTION_WORDS))
        special = [
            *chosen.choices(topic, k=_TOPIC),
            *(f"{chosen.choice(topic)}.{chosen.choice(topic)}_{number}" for number in range(_NAMES)),
            *(str(chosen.randrange(1_000)) for _ in range(_NUMBERS)),
        ]
        for place, word in zip(chosen.sample(range(len(words)), len(special)), special, strict=True):
            words[place] = word
        lines = [" ".join(words[start : start + 14]) for start in range(0, len(words), 14)]
        return ".\n".join(lines) + "."

    def _made(self) -> list[str]:
        found = dict.fromkeys(_FUNCTION_WORDS)
        while len(found) < _LEMMAS + len(_FUNCTION_WORDS):
            # Common words are short.
            syllables = self._random.choices((1, 2, 3), (3, 5, 1 if len(found) < 3000 else 3))[0]
            found["".join(self._syllable() for _ in range(syllables))] = None
        return list(found)[len(_FUNCTION_WORDS) :]

    def _syllable(self) -> str:
        return "".join(map(self._random.choice, (_ONSETS, _VOWELS, _CODAS)))

"""Who may read which documents: labels of documents, what a source gives its documents, and readers. Pure.

A document has a set of labels, which is empty for most. A reader has conditions, each of which must hold: the labels of
its key, those granted to the script that asks, those of the script that called that one.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from knowledge.globs import Glob, compile_glob

MAX_LABEL_CHARACTERS = 64
MAX_LABELS = 32
# No comma, which separates labels on the command line, and no space.
_LABEL = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.:-]{{0,{MAX_LABEL_CHARACTERS - 1}}}", re.ASCII)


def is_label(text: str) -> bool:
    """Whether the text can be a label."""
    return _LABEL.fullmatch(text) is not None


def check_labels(given: Iterable[str]) -> frozenset[str]:
    """A set of labels. Raises ValueError for a text that is none, and for too many."""
    found: set[str] = set()
    for label in given:
        if not is_label(label):
            raise ValueError(
                f"{label[:80]!r} is no label; a label is 1 to {MAX_LABEL_CHARACTERS} letters, digits, '_', '.', ':' or "
                "'-', not beginning with '.', ':' or '-'"
            )
        found.add(label)
        if len(found) > MAX_LABELS:
            raise ValueError(f"there are more than {MAX_LABELS} labels")
    return frozenset(found)


def parse_labels(text: str) -> frozenset[str]:
    """Labels between commas, as the command line takes them; an empty text is none. Raises ValueError."""
    return check_labels(label for part in text.split(",") if (label := part.strip()))


# Labels of documents as the store keeps them: JSON of the sorted names.
def labels_text(labels: Iterable[str]) -> str:
    return json.dumps(sorted(labels))


@dataclass(frozen=True, slots=True)
class Reader:
    """Which documents may be read. Without conditions, all of them.

    A document must meet each set in `labels` (have one of them, or have no labels), and its source must be named by
    each set in `sources`: as its label (`git:runbooks`), its name or its type.
    """

    labels: tuple[frozenset[str], ...] = ()
    sources: tuple[frozenset[str], ...] = ()

    @classmethod
    def of(cls, labels: Iterable[str] | None, sources: Iterable[str] | None = None) -> "Reader":
        """The reader with these labels, from these sources. None: any."""
        return cls().within(labels, sources)

    def within(self, labels: Iterable[str] | None, sources: Iterable[str] | None = None) -> "Reader":
        """The reader that meets the conditions of this one, and these. None: no further one."""
        return Reader(_with(self.labels, labels), _with(self.sources, sources))

    @property
    def unlimited(self) -> bool:
        """Whether it may read everything."""
        return not self.labels and not self.sources

    def meets(self, labels: Iterable[str]) -> bool:
        """Whether it may read what has these labels."""
        held = frozenset(labels)
        return not held or all(not held.isdisjoint(each) for each in self.labels)

    def may_read(self, source: str) -> bool:
        """Whether it may read from a source, by its label `TYPE:NAME`."""
        kind, colon, name = source.partition(":")
        named = (source, kind, name) if colon else (source,)
        return all(not each.isdisjoint(named) for each in self.sources)

    def sees(self, source: str, labels: Iterable[str]) -> bool:
        """Whether it may read a document of this source with these labels."""
        return self.may_read(source) and self.meets(labels)


def _with(before: tuple[frozenset[str], ...], more: Iterable[str] | None) -> tuple[frozenset[str], ...]:
    if more is None or (added := frozenset(more)) in before:
        return before
    # What meets a set meets every larger one: those add nothing. Sorted, so that equal readers are equal.
    kept = [each for each in before if not each >= added]
    if not any(each <= added for each in kept):
        kept.append(added)
    return tuple(sorted(kept, key=sorted))


EVERYTHING = Reader()


@dataclass(frozen=True, slots=True)
class Rule:
    """The labels of the documents of a source whose source_id matches a pattern."""

    glob: str
    labels: frozenset[str]
    _patterns: Glob = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Raises ValueError for an invalid pattern."""
        compile_glob(self.glob)  # an error shows it as it was written
        object.__setattr__(self, "_patterns", compile_glob(*_spellings(self.glob)))

    def matches(self, source_id: str) -> bool:
        return self._patterns.fullmatch(source_id)


def _spellings(glob: str) -> tuple[str, ...]:
    """The pattern, and everything below what it names; without a slash it may stand for any part of a path.

    So `hr`, `hr/` and `/hr/**` name a folder, as in .gitignore: a rule that matches less than it seems to leaves open
    what it should close.
    """
    whole = glob.removesuffix("/**").rstrip("/")
    if whole in ("", "**"):
        return ("**",)
    if whole.startswith("/"):  # from the top, also where names begin with a slash
        named: tuple[str, ...] = (whole, whole.removeprefix("/"))
    else:
        named = (whole if "/" in glob.rstrip("/") else f"**/{whole}",)
    return tuple(each for name in named for each in (name, f"{name}/**"))


@dataclass(frozen=True, slots=True)
class Access:
    """The labels that a source gives its documents: those of the first rule that matches, else `labels`.

    An item's own labels take precedence over both; `own`: its items may have some. `untrusted`: strangers can write
    what is in it.
    """

    labels: frozenset[str] = frozenset()
    rules: tuple[Rule, ...] = ()
    own: bool = False
    untrusted: bool = False

    @classmethod
    def of(
        cls,
        labels: Iterable[str] = (),
        rules: Iterable[tuple[str, Sequence[str]]] = (),
        *,
        own: bool = False,
        untrusted: bool = False,
    ) -> "Access":
        """Raises ValueError for a text that is no label, and an invalid pattern."""
        made = tuple(Rule(glob, check_labels(given)) for glob, given in rules)
        return cls(check_labels(labels), made, own, untrusted)

    def labels_of(self, source_id: str) -> frozenset[str]:
        """The labels of an item that has none of its own."""
        for rule in self.rules:
            if rule.matches(source_id):
                return rule.labels
        return self.labels

    @property
    def digest(self) -> str:
        """A hash that changes with the labels that it gives; empty where it gives none."""
        if not self.labels and not any(rule.labels for rule in self.rules):
            return ""
        text = json.dumps([sorted(self.labels), [[rule.glob, sorted(rule.labels)] for rule in self.rules]])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def open_to(self, reader: Reader) -> bool:
        """Whether the reader meets every set of labels that it may give."""
        return reader.meets(self.labels) and all(reader.meets(rule.labels) for rule in self.rules)


PUBLIC = Access()


@dataclass(frozen=True, slots=True)
class SourceAccess:
    """The labels that the configuration gives the documents of each source, by its label, and when it was read.

    Of a source that is not here nothing is known. `at` is in seconds since the epoch;
    without it, this is the newest configuration.
    """

    sources: Mapping[str, Access] = field(default_factory=dict)
    at: float = math.inf

    def distrusts(self, source: str) -> bool:
        """Whether strangers can write what is in a source."""
        return self.sources.get(source, PUBLIC).untrusted

    def closed_to(self, reader: Reader) -> dict[str, str]:
        """The sources of which the reader may not read what was last labelled otherwise, each with its digest."""
        if not reader.labels:
            return {}
        return {label: access.digest for label, access in self.sources.items() if not access.open_to(reader)}


NOTHING_KNOWN = SourceAccess()

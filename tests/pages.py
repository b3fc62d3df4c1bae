"""The pages of the documentation, read: blocks, headings, tables. What they say is checked in `test_docs*.py`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def _in(folder: str) -> tuple[str, ...]:
    return tuple(sorted(f"{folder}/{path.name}" for path in (ROOT / folder).glob("*.md")))


# One page for each thing that a script sees, and two that are about all of them.
SCRIPT_PAGES = _in("docs/scripting")
PAGES = ("README.md", *_in("docs"), *SCRIPT_PAGES)
SCRIPTING, CONFIGURATION, HTTP, CLI = (f"docs/{name}.md" for name in ("scripting", "configuration", "http-api", "cli"))


@dataclass(frozen=True)
class Block:
    """One fenced block: where it is, its info string, its text."""

    where: str
    info: str
    text: str


@dataclass(frozen=True)
class Section:
    """One heading and what stands under it, up to the next heading of any level."""

    title: str
    level: int
    text: str

    @property
    def code(self) -> list[str]:
        """What the heading has in backticks."""
        return re.findall(r"`([^`]+)`", self.title)

    def rows(self, table: int = 0) -> list[list[str]]:
        """The cells of a table's rows, without its heading."""
        found: list[list[list[str]]] = []
        inside = False
        for line in self.text.splitlines():
            if not line.startswith("|"):
                inside = False
                continue
            if not inside:
                found.append([])
                inside = True
            found[-1].append([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]])
        return found[table][2:]


@cache
def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@cache
def blocks(page: str) -> tuple[Block, ...]:
    found = re.finditer(r"^```([^\n`]*)\n(.*?)^```$", read(page), re.MULTILINE | re.DOTALL)
    return tuple(Block(f"{page}:{read(page)[: m.start()].count(chr(10)) + 1}", m[1].strip(), m[2]) for m in found)


@cache
def sections(page: str) -> tuple[Section, ...]:
    prose = re.sub(r"^```.*?^```$", "", read(page), flags=re.MULTILINE | re.DOTALL)
    parts = re.split(r"^(#+) (.*)$", prose, flags=re.MULTILINE)
    return tuple(Section(parts[i + 1], len(parts[i]), parts[i + 2]) for i in range(1, len(parts), 3))


def section(page: str, title: str) -> Section:
    return next(found for found in sections(page) if found.title.replace("`", "") == title)


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def first_quoted(rows: list[list[str]]) -> list[str]:
    return [name for row in rows for name in quoted(row[0])]


def slug(title: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def every_block(*infos: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.info in infos]


def followed(info: str, then: str, *, page: str) -> Iterator[tuple[Block, Block]]:
    """Blocks of one kind, each with the block after it, which is of the other kind."""
    for block, after in zip(blocks(page), blocks(page)[1:], strict=False):
        if block.info == info:
            assert after.info == then, after.where
            yield block, after

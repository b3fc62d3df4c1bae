"""Word documents, by python-docx: paragraphs with their headings, lists, tables."""

import io
import re
from collections.abc import Iterator
from typing import Any

import docx
from docx.oxml.ns import qn
from docx.text.paragraph import Paragraph

from sandbox.extraction import office
from sandbox.extraction.text import Text, plain

_P, _TBL, _TR, _TC, _SDT, _CONTENT = (qn(f"w:{tag}") for tag in ("p", "tbl", "tr", "tc", "sdt", "sdtContent"))
_HEADING = re.compile(r"heading (\d)", re.IGNORECASE)


def warm_up() -> None:
    file = io.BytesIO()
    document = docx.Document()
    document.add_heading("a")
    document.add_table(1, 1)
    document.save(file)
    read(file.getvalue())


def read(data: bytes) -> Text:
    office.check(data)
    document = docx.Document(io.BytesIO(data))
    text = Text()
    text.set_title(document.core_properties.title)
    styles: dict[str, str] = {}
    items: list[str] = []
    titled = 0  # 1 below a title, which is a heading above all
    for element in _blocks(document.element.body):
        if element.tag == _TBL:
            _flush(text, items)
            text.table([[_words(cell) for cell in row.iterchildren(_TC)] for row in element.iterchildren(_TR)])
            continue
        paragraph = Paragraph(element, document)
        style = _style(paragraph, styles)
        if found := _HEADING.match(style):
            _flush(text, items)
            if found[1] == "1":
                text.set_title(paragraph.text)
            text.heading(int(found[1]) + titled, paragraph.text)
        elif style == "Title":
            _flush(text, items)
            text.set_title(paragraph.text)
            text.heading(1, paragraph.text)
            titled = 1
        elif style.startswith("List"):
            items.append("- " + plain(paragraph.text))
        else:
            _flush(text, items)
            text.add(plain(paragraph.text))
    _flush(text, items)
    return text


def _flush(text: Text, items: list[str]) -> None:
    text.add("\n".join(items))
    items.clear()


def _blocks(parent: Any) -> Iterator[Any]:
    """Paragraphs and tables in their order, also those in content controls."""
    for child in parent:
        if child.tag in (_P, _TBL):
            yield child
        elif child.tag == _SDT:
            for content in child.iterchildren(_CONTENT):
                yield from _blocks(content)


def _style(paragraph: Paragraph, known: dict[str, str]) -> str:
    """The name of its style; looking one up takes longer than all else of a paragraph."""
    key = paragraph._p.style or ""
    if key not in known:
        style = paragraph.style
        known[key] = (style.name or "") if style is not None else ""
    return known[key]


def _words(cell: Any) -> str:
    return " ".join(Paragraph(element, cell).text for element in cell.iter(_P))

"""Presentations, by python-pptx: each slide with its title, texts, tables and notes. A slide is a page."""

import io
from collections.abc import Iterator
from typing import Any

import pptx

from sandbox.extraction import office
from sandbox.extraction.text import Text, plain


def warm_up() -> None:
    file = io.BytesIO()
    slides = pptx.Presentation()
    slide = slides.slides.add_slide(slides.slide_layouts[0])
    slide.notes_slide.notes_text_frame.text = "a"
    slides.save(file)
    read(file.getvalue())


def read(data: bytes) -> Text:
    office.check(data)
    presentation = pptx.Presentation(io.BytesIO(data))
    text = Text()
    text.set_title(presentation.core_properties.title)
    for slide in presentation.slides:
        text.page()
        title = slide.shapes.title
        if title is not None:
            text.set_title(title.text_frame.text)
            text.heading(1, title.text_frame.text)
        for shape in _shapes(slide.shapes):
            if title is not None and shape.shape_id == title.shape_id:
                continue
            if shape.has_text_frame:
                text.add(plain(shape.text_frame.text))
            if getattr(shape, "has_table", False):
                text.table([[cell.text_frame.text for cell in row.cells] for row in shape.table.rows])
        notes = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
        if notes is not None and notes.text.strip():
            text.add("Notes: " + plain(notes.text))
    return text


def _shapes(shapes: Any) -> Iterator[Any]:
    """All shapes, those in groups too."""
    for shape in shapes:
        if hasattr(shape, "shapes"):
            yield from _shapes(shape.shapes)
        else:
            yield shape

"""Files of PDF and Office for tests, made by the libraries of these formats; whole ones, broken ones and bombs.

The libraries are imported where they are used: most processes that run tests make none of these files.
"""

import io
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import docx.document
    import openpyxl
    import pptx.presentation

MIB = 1 << 20


def pdf(pages: list[str], *, title: str | None = None, password: str | None = None) -> bytes:
    from fpdf import FPDF

    made = FPDF()
    made.set_font("helvetica")
    if title is not None:
        made.set_title(title)
    if password is not None:
        made.set_encryption(owner_password=password, user_password=password)
    for text in pages:
        made.add_page()
        made.multi_cell(0, 6, text)
    return bytes(made.output())


def scan() -> bytes:
    from fpdf import FPDF
    from PIL import Image

    made = FPDF()
    made.add_page()
    made.image(Image.new("RGB", (40, 40), "gray"), 10, 10)
    return bytes(made.output())


def word(*, title: str = "") -> bytes:
    """Title, two levels of headings, a list, a table."""
    import docx

    made = docx.Document()
    made.core_properties.title = title
    made.add_heading("Handbook", 0)
    made.add_heading("Deploy", 1)
    made.add_paragraph("Ship on Tuesdays.")
    made.add_paragraph("# not a heading")
    made.add_heading("Rollback", 2)
    made.add_paragraph("first", style="List Bullet")
    made.add_paragraph("second", style="List Bullet")
    table = made.add_table(2, 2)
    for row, cells in zip(table.rows, (("name", "a|b"), ("port", "8080")), strict=True):
        for cell, text in zip(row.cells, cells, strict=True):
            cell.text = text
    return _saved(made)


def slides() -> bytes:
    import pptx

    made = pptx.Presentation()
    for title, body, notes in (("Plan", "Three steps", "speak slowly"), ("End", "Questions", "")):
        slide = made.slides.add_slide(made.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text = body
        if notes:
            slide.notes_slide.notes_text_frame.text = notes
    return _saved(made)


def workbook() -> bytes:
    import openpyxl

    made = openpyxl.Workbook()
    made.active.title = "Ports"
    made.active.append(["service", "port", "share"])
    made.active.append(["api", 8080, 0.5])
    made.create_sheet("Empty")
    return _saved(made)


def pdf_bomb(size: int) -> bytes:
    """A page whose content is `size` spaces, some thousandth of which is the file."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = packer.compress(b" " * (16 * MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    content = b"\x78\xda" + piece * (size // (16 * MIB)) + b"\x03\x00" + bytes(4)
    return (
        b"%%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n"
        b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]/Contents 4 0 R>>endobj\n"
        b"4 0 obj<</Filter/FlateDecode/Length %d>>stream\n%s\nendstream endobj\ntrailer<</Root 1 0 R>>\n%%%%EOF\n"
        % (len(content), content)
    )


def replaced(file: bytes, name: str, part: bytes, *, claim: int | None = None) -> bytes:
    """An Office file with another content of one part, which claims to be `claim` bytes long."""
    made = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(file)) as old,
        zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new,
    ):
        for each in old.infolist():
            new.writestr(each.filename, part if each.filename == name else old.read(each))
    data = made.getvalue()
    return data if claim is None else data.replace(struct.pack("<I", len(part)), struct.pack("<I", claim))


def entities(file: bytes, name: str, *, path: str | None = None) -> bytes:
    """An Office file with a part whose entities are 10**9 words, or the content of a file of the host."""
    with zipfile.ZipFile(io.BytesIO(file)) as old:
        part = old.read(name)
    if path is not None:
        declared = f'<!ENTITY e9 SYSTEM "file://{path}">'
    else:
        declared = '<!ENTITY e0 "laugh">' + "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
    head, end, rest = part.partition(b"?>")
    root = rest.lstrip()[1:].split()[0]
    text = rest.replace(b"Ship on Tuesdays.", b"before &e9; after")
    return replaced(file, name, head + end + b"<!DOCTYPE %s [%s]>" % (root, declared.encode()) + text)


def _saved(document: "docx.document.Document | pptx.presentation.Presentation | openpyxl.Workbook") -> bytes:
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()

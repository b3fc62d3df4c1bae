"""The wire between the supervisor and an extractor: one file in, its text or a reason out. Plain numbers and bytes.

An extractor sends a frame with `Ready` once it is confined, reads a request (`REQUEST`, then the file's bytes), and
answers with a head (`ANSWER`) that says how many bytes of title, page offsets and text follow. Then it ends. Nothing in
an answer is more than a number or UTF-8, so checking one takes as long as its bytes are many, and no longer.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

# Format by its number, bytes of the file.
REQUEST = struct.Struct(">BQ")
# A Reason; bytes of the title; page offsets, four bytes each; bytes of the text.
ANSWER = struct.Struct(">BIIQ")

# 16 MiB of text is a book of 5,000 pages. The supervisor joins it in one step: 20 ms.
MAX_TEXT_BYTES = 16 << 20
MAX_PAGES = 100_000
MAX_TITLE_BYTES = 2048


class Reason(IntEnum):
    """What an extractor says of a file. All but `OK` are reasons to skip it."""

    OK = 0
    DAMAGED = 1
    ENCRYPTED = 2
    NO_TEXT = 3
    MEMORY = 4
    TOO_MUCH_TEXT = 5
    TOO_MANY_PAGES = 6
    OTHER = 7
    INFLATES = 8
    MISSING = 9


@dataclass(frozen=True, slots=True)
class Format:
    """One format. `library` is the module that reads it; `title` names it in reports.

    One without suffixes and a type is asked for by its name, whatever the file is called.
    """

    number: int
    name: str
    title: str
    library: str
    suffixes: tuple[str, ...]
    content_type: str


# The one list of formats. Each has a file of this name in `sandbox/extraction/`.
FORMATS: tuple[Format, ...] = (
    Format(1, "pdf", "PDF", "pypdfium2", (".pdf",), "application/pdf"),
    Format(
        2,
        "docx",
        "Word document",
        "docx",
        (".docx", ".docm"),
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ),
    Format(
        3,
        "pptx",
        "presentation",
        "pptx",
        (".pptx", ".pptm"),
        "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ),
    Format(
        4,
        "xlsx",
        "workbook",
        "python_calamine",
        (".xlsx", ".xlsm"),
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ),
    Format(5, "html", "HTML page", "html_to_markdown", (".html", ".htm", ".xhtml"), "text/html"),
    Format(6, "html_text", "HTML page", "html_to_markdown", (), ""),
)

"""Workbooks, by calamine: each sheet with its name as a heading, and its rows as those of a table."""

import io
from datetime import date, datetime, time, timedelta

from python_calamine import CalamineError, CalamineWorkbook, PasswordError

from sandbox.extraction import office
from sandbox.extraction.text import Refused, Text, row_of
from sandbox.wire.extraction import Reason

# Rows of one block of text.
_ROWS = 64


def warm_up() -> None:
    pass


def read(data: bytes) -> Text:
    office.check(data)
    text = Text()
    try:
        book = CalamineWorkbook.from_filelike(io.BytesIO(data))
        for name in book.sheet_names:
            _sheet(text, name, book)
    except PasswordError:
        raise Refused(Reason.ENCRYPTED) from None
    except CalamineError:
        raise Refused(Reason.DAMAGED) from None
    return text


def _sheet(text: Text, name: str, book: CalamineWorkbook) -> None:
    try:
        rows = book.get_sheet_by_name(name).iter_rows()
    except CalamineError:  # a sheet of charts has no cells
        return
    lines: list[str] = []
    named = False
    for row in rows:
        cells = [_shown(cell) for cell in row]
        while cells and not cells[-1]:
            cells.pop()
        if not cells:
            continue
        if not named:
            text.heading(1, name)
            named = True
        lines.append(row_of(cells))
        if len(lines) == _ROWS:
            text.add("\n".join(lines))
            lines = []
    text.add("\n".join(lines))


def _shown(cell: object) -> str:
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 1e15:
        return str(int(cell))
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, datetime | date | time | timedelta):
        return cell.isoformat(" ") if isinstance(cell, datetime) else str(cell)
    return str(cell)

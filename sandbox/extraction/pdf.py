"""PDF, by PDFium: the text of each page."""

import pypdfium2
import pypdfium2.raw

from sandbox.extraction.text import Refused, Text, clean
from sandbox.wire.extraction import Reason

# A page with one word in a font that is not in the file: PDFium looks for it in the system once.
_SAMPLE = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj "
    b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>>endobj "
    b"4 0 obj<</Length 27>>stream\nBT /F 9 Tf 9 9 Td (a) Tj ET\nendstream endobj "
    b"5 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"
)
_HEAD_BYTES = 1024


def warm_up() -> None:
    read(_SAMPLE)


def read(data: bytes) -> Text:
    if b"%PDF-" not in data[:_HEAD_BYTES]:
        raise Refused(Reason.DAMAGED)
    try:
        document = pypdfium2.PdfDocument(data)
        count = len(document)
    except pypdfium2.PdfiumError as error:
        locked = error.err_code == pypdfium2.raw.FPDF_ERR_PASSWORD
        raise Refused(Reason.ENCRYPTED if locked else Reason.DAMAGED) from None
    text, broken = Text(), 0
    text.set_title(document.get_metadata_value("Title"))
    for number in range(count):
        text.page()
        try:
            page = document[number]
            words = page.get_textpage()
            text.add(clean(words.get_text_bounded()))
            words.close()
            page.close()
        except pypdfium2.PdfiumError:
            broken += 1
    if not count or broken == count:
        raise Refused(Reason.DAMAGED)
    return text

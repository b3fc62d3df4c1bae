"""HTML pages as plain text, by html-to-markdown: for documents in ChatMD that ask for it (`strip`)."""

import html_to_markdown

from sandbox.extraction.html import FURNITURE, decoded
from sandbox.extraction.text import Text, clean

_OPTIONS = html_to_markdown.ConversionOptions(
    output_format="plain", autolinks=False, skip_images=True, exclude_selectors=FURNITURE, extract_metadata=False,
    wrap=False,
)  # fmt: skip


def warm_up() -> None:
    read(b"<title>a</title><h1>a</h1><table><tr><td>b</table>")


def read(data: bytes) -> Text:
    text = Text()
    text.add(clean(html_to_markdown.convert(decoded(data), _OPTIONS).content or ""))
    return text

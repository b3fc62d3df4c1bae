"""HTML pages as Markdown, by html-to-markdown: headings, lists, tables, code; without the furniture of pages."""

import re

import html_to_markdown

from sandbox.extraction.text import Text, clean

# What is not the content of a page.
FURNITURE = ["script", "style", "noscript", "template", "nav", "footer", "aside", "form", "svg", "iframe"]
_OPTIONS = html_to_markdown.ConversionOptions(
    autolinks=False, skip_images=True, exclude_selectors=FURNITURE, extract_metadata=False, wrap=False
)
_TITLE = re.compile(r"<title[^>]*>(.{0,2000}?)</title", re.IGNORECASE | re.DOTALL)
_HEADING = re.compile(r"^# (.+)", re.MULTILINE)
_CHARSET = re.compile(rb"""<meta[^>]{0,200}charset\s*=\s*["']?([A-Za-z0-9_-]{1,40})""", re.IGNORECASE)
_HEAD_BYTES = 64 * 1024


def warm_up() -> None:
    read(b"<title>a</title><h1>a</h1><table><tr><td>b</table>")
    b"a".decode("cp1252")


def read(data: bytes) -> Text:
    page = decoded(data)
    text = Text()
    if found := _TITLE.search(page[:_HEAD_BYTES]):
        converted = html_to_markdown.convert(f"<p>{found[1]}</p>", _OPTIONS)
        text.set_title(converted.content)
    body = clean(html_to_markdown.convert(page, _OPTIONS).content or "")
    if found := _HEADING.search(body):
        text.set_title(found[1])
    text.add(body)
    return text


def decoded(data: bytes) -> str:
    """The page's text: by its byte order mark, as UTF-8, by what it says of itself, or as browsers guess."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        pass
    found = _CHARSET.search(data[:_HEAD_BYTES])
    try:
        return data.decode(found[1].decode() if found else "cp1252", "replace")
    except LookupError:
        return data.decode("cp1252", "replace")

"""A web site for tests, on a local port: pages with ETags, redirects, robots.txt, and answers that no site gives."""

import hashlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Page:
    """One answer. `etag` None means one made of the body, and empty none; a body that is an iterator has no length."""

    body: str | bytes | Iterator[bytes] = ""
    type: str = "text/html; charset=utf-8"
    status: int = 200
    etag: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def markdown(body: str, **how: Any) -> Page:
    return Page(body, "text/markdown", **how)


def redirect(location: str) -> Page:
    return Page(status=302, headers={"Location": location})


def page(title: str, *links: str, text: str = "") -> Page:
    """A page of HTML with links."""
    found = "".join(f'<a href="{link}">link</a> ' for link in links)
    return Page(f"<html><head><title>{title}</title></head><body><h1>{title}</h1><p>{text}</p>{found}</body></html>")


def sitemap(*urls: str, index: bool = False, changed: str | None = None) -> Page:
    root, each = ("sitemapindex", "sitemap") if index else ("urlset", "url")
    time = f"<lastmod>{changed}</lastmod>" if changed else ""
    inner = "".join(f"<{each}><loc>{url}</loc>{time}</{each}>" for url in urls)
    return Page(f'<{root} xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{inner}</{root}>', "application/xml")


class Site(ThreadingHTTPServer):
    """The site. `pages` are its answers by path with query; a list of answers is given one by one, the last for ever.

    `asked` are the paths of requests with the answers' status, `headers` those of the requests.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pages: dict[str, Page | list[Page]] = {}
        self.asked: list[tuple[str, int]] = []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def paths(self, status: int | None = None) -> list[str]:
        """What was asked for, robots.txt aside, since the last call."""
        found = [path for path, code in self.asked if path != "/robots.txt" and status in (None, code)]
        self.asked.clear()
        return found


class _Handler(BaseHTTPRequestHandler):
    server: Site
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each body waits 40 ms for the acknowledgement of its head

    def do_GET(self) -> None:
        found = self.server.pages.get(self.path, Page("not found", "text/plain", 404))
        if isinstance(found, list):
            found = found.pop(0) if len(found) > 1 else found[0]
        body = found.body.encode() if isinstance(found.body, str) else found.body
        etag = found.etag
        if etag is None:
            etag = f'"{hashlib.sha256(body).hexdigest()[:8]}"' if isinstance(body, bytes) else ""
        status = found.status
        if status == 200 and self._unchanged(etag, found.headers.get("Last-Modified")):
            status, body = 304, b""
        self.server.asked.append((self.path, status))
        self.server.headers.append(dict(self.headers))
        self.send_response(status)
        if etag:
            self.send_header("ETag", etag)
        self.send_header("Content-Type", found.type)
        for name, value in found.headers.items():
            self.send_header(name, value)
        if isinstance(body, bytes):
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.close_connection = True
        self.end_headers()
        for piece in body:
            try:
                self.wfile.write(piece)
            except OSError:
                return

    def _unchanged(self, etag: str, modified: str | None) -> bool:
        wanted = self.headers.get("If-None-Match")
        if wanted is not None:
            return wanted == etag
        return modified is not None and self.headers.get("If-Modified-Since") == modified

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def site() -> Iterator[Site]:
    server = Site()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

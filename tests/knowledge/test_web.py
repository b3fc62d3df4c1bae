"""Documents of web sites: what is found, what is asked for again, and sites that do what they should not."""

import gzip
import itertools
import re
import time
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import document_files
import pytest
import trio
from web_support import Page, Site, markdown, page, redirect, site, sitemap

from engine.config import parse_config
from engine.egress import outbound
from engine.egress.fetching import open_fetcher
from engine.egress.rules import is_internal
from engine.extraction import open_extractor
from knowledge.connectors import ConnectorError, Found, Item, Partial, Skipped, Unreadable, opened, web
from knowledge.connectors.web import WebConnector
from knowledge.extraction import Extracted
from knowledge.sqlite.store import open_store
from knowledge.sync import SyncReport, sync


class Tags:
    """An Extractor that takes HTML and removes its tags."""

    def takes(self, name: str, data: bytes, content_type: str | None = None) -> bool:
        return content_type == "text/html"

    async def extract(self, name: str, data: bytes, content_type: str | None = None) -> Extracted:
        text = data.decode()
        title = re.search("<title>(.*?)</title>", text)
        return Extracted(re.sub("<[^<>]*>", " ", text), title[1] if title else name, "text/html")


@pytest.fixture
def server() -> Iterator[Site]:
    with site() as found:
        yield found


@pytest.fixture
def other() -> Iterator[Site]:
    """A site at another port, which is another host."""
    with site() as found:
        yield found


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "_PAUSE_S", 0.01)


def source(*urls: str, **keys: Any) -> WebConnector:
    return WebConnector(urls, **({"delay_s": 0, "fetching": open_fetcher, "extractor": Tags()} | keys))


async def read(*urls: str, **keys: Any) -> dict[str, Item | str]:
    """Every page of a source, by its address: its item, or the reason it was skipped."""
    found: dict[str, Item | str] = {}
    async with opened(source(*urls, **keys)) as connector:
        async for entry in connector.scan():
            if isinstance(entry, Found):
                try:
                    found[entry.source_id] = await connector.read(entry)
                except Unreadable as error:
                    found[entry.source_id] = str(error)
            elif isinstance(entry, Skipped):
                found[entry.source_id] = entry.reason
            else:
                assert isinstance(entry, Partial)
                found["partial"] = ""
    return found


async def paths(server: Site, *urls: str, **keys: Any) -> set[str]:
    """The paths of the pages of a source; all were read."""
    found = await read(*(server.url + url for url in urls), **keys)
    assert [item for item in found.values() if not isinstance(item, Item)] == []
    return {url.removeprefix(server.url) for url in found}


async def reason(server: Site, answer: Page, **keys: Any) -> str:
    """Why a page with this answer is skipped, while the one beside it is read."""
    server.pages |= {"/bad": answer, "/good": page("Good")}
    found = await read(server.url + "/bad", server.url + "/good", **keys)
    assert isinstance(found[server.url + "/good"], Item)
    bad = found[server.url + "/bad"]
    assert isinstance(bad, str)
    return bad


async def synced(tmp_path: Path, connector: WebConnector, **options: Any) -> SyncReport:
    async with open_store(tmp_path / "store.sqlite", create=True) as store:
        return await sync(store, "web:site", connector, **options)


# ---- what is found ------------------------------------------------------------------------------------------------


async def test_a_page_is_a_document_with_its_title_time_and_address(server: Site) -> None:
    server.pages["/a?b=1"] = page("Alpha", text="first")
    server.pages["/a?b=1"].headers = {"Last-Modified": "Thu, 01 Jan 2026 02:03:04 GMT"}  # type: ignore[union-attr]
    server.pages["/notes"] = markdown("# Beta\n")
    server.pages["/plain.txt"] = Page("some text", "text/plain")
    found = await read(*(server.url + path for path in ("/a?b=1#part", "/notes", "/plain.txt")))
    first, second, third = found.values()
    assert isinstance(first, Item)
    assert "Alpha" in first.body
    assert (first.title, first.source_url) == ("Alpha", server.url + "/a?b=1")
    assert (first.created_at, first.updated_at) == ("2026-01-01T02:03:04Z", "2026-01-01T02:03:04Z")
    assert isinstance(second, Item)
    assert (second.body, second.title, second.content_type, second.updated_at) == (
        "# Beta\n", "Beta", "text/markdown", None,
    )  # fmt: skip
    assert isinstance(third, Item)
    assert (third.body, third.title, third.content_type) == ("some text", "plain.txt", "text/plain")
    assert {headers["user-agent"] for headers in server.headers} == {"engine"}


async def test_a_sitemap_lists_pages_with_their_times_and_an_index_lists_sitemaps(server: Site) -> None:
    url = server.url
    server.pages = {
        "/index.xml": sitemap(f"{url}/one.xml", f"{url}/two.xml.gz", index=True),
        "/one.xml": sitemap(f"{url}/a", f"{url}/b", changed="2026-01-02"),
        "/two.xml.gz": Page(gzip.compress(str(sitemap("/c").body).encode()), "application/gzip"),
        **{f"/{name}": page(name) for name in "abc"},
    }
    for how in ({"urls": [f"{url}/index.xml"]}, {"sitemaps": [f"{url}/index.xml"]}):
        found = await read(*how.pop("urls", ()), **how)
        assert set(found) == {f"{url}/a", f"{url}/b", f"{url}/c"}
        first = found[f"{url}/a"]
        assert isinstance(first, Item)
        assert first.updated_at == "2026-01-02T00:00:00Z"


async def test_an_llms_txt_lists_the_pages_of_its_own_site(server: Site, other: Site) -> None:
    text = f'# Site\n\n> About\n\n## Docs\n- [A](/a.md): first\n- [B]({server.url}/b.md "t")\n- [C]({other.url}/c)\n'
    server.pages = {"/llms.txt": Page(text, "text/plain"), "/a.md": markdown("a"), "/b.md": markdown("b")}
    found = await read(server.url + "/llms.txt")
    assert found.pop(other.url + "/c") == "at another host; `urls` has to name one of its pages"
    assert set(found) == {server.url + "/a.md", server.url + "/b.md"}
    assert other.asked == []


async def test_links_are_followed_within_the_folder_of_a_given_page_only(server: Site, other: Site) -> None:
    server.pages = {
        "/docs/": page(
            "Docs", "a", "../blog", "/docs/b?x=1", f"{other.url}/docs/", "mailto:x@example.com", "c.pdf", "#x"
        ),
        "/docs/a": page("A", "deep/er"),
        "/docs/b?x=1": page("B", "a", "/docs/out"),
        "/docs/deep/er": page("C", "est"),
        "/docs/deep/est": page("D"),
        "/docs/out": redirect("/blog"),
        "/docs/c.pdf": Page(b"%PDF-", "application/pdf"),
        "/blog": page("Blog"),
    }
    assert await paths(server, "/docs/") == {"/docs/"}
    follow = {"follow": True, "exclude_globs": ["*.pdf"]}
    near, deep = {"/docs/", "/docs/a", "/docs/b?x=1"}, {"/docs/deep/er", "/docs/deep/est"}
    assert await paths(server, "/docs/", **follow) == near | deep
    assert await paths(server, "/docs/", **follow, max_depth=1) == near
    assert await paths(server, "/docs/", include_globs=["docs/deep/"], **follow) == deep
    assert other.asked == []


async def test_links_are_relative_to_the_base_of_a_page(server: Site) -> None:
    server.pages = {"/x/y": Page('<base href="/x/z/"><a href="w">'), "/x/z/w": page("W")}
    assert await paths(server, "/x/y", follow=True) == {"/x/y", "/x/z/w"}


async def test_two_addresses_of_one_page_are_one_document(server: Site) -> None:
    server.pages = {"/a": redirect("/c"), "/b": redirect(server.url + "/c"), "/c": page("C")}
    assert await paths(server, "/a", "/b", "/c") == {"/c"}


async def test_pages_keep_their_headings_and_files_their_pages(server: Site) -> None:
    text = "<title>Ports</title><nav>Home</nav><h1>Ports</h1><p>The API has <b>8080</b>.<h2>More</h2><ul><li>one</ul>"
    guide_pdf = document_files.pdf(["first", "second"], title="A guide")
    server.pages = {"/docs/": Page(text), "/guide": Page(guide_pdf, "application/pdf")}
    async with open_extractor(parse_config("", environ={}, cwd=Path("/nonexistent"))[0]) as extractor:
        found = await read(server.url + "/docs/", server.url + "/guide", extractor=extractor)
    docs, guide = found.values()
    assert isinstance(docs, Item)
    assert docs.title == "Ports"
    assert "# Ports\n" in docs.body
    assert "## More\n" in docs.body
    assert "Home" not in docs.body
    assert isinstance(guide, Item)
    assert (guide.title, len(guide.pages)) == ("A guide", 2)


# ---- a second time ------------------------------------------------------------------------------------------------


async def test_what_has_not_changed_is_not_sent_again(tmp_path: Path, server: Site) -> None:
    dated = {"Last-Modified": "Thu, 01 Jan 2026 02:03:04 GMT"}
    server.pages = {
        "/a": page("A"), "/b": markdown("b", etag="", headers=dated), "/c": markdown("c", etag=""), "/d": page("D"),
    }  # fmt: skip
    connector = source(*(server.url + path for path in server.pages))
    assert (await synced(tmp_path, connector)).upserted == 4
    server.paths()
    assert (await synced(tmp_path, connector)).unchanged == 4
    assert server.paths(304) == ["/a", "/b", "/d"]  # and /c is sent and compared
    server.pages["/a"] = page("A2")
    report = await synced(tmp_path, connector)
    assert (report.upserted, report.unchanged) == (1, 3)
    assert (await synced(tmp_path, connector, max_tokens=100)).upserted == 4  # cut anew, so needed anew
    server.paths()
    assert (await synced(tmp_path, connector, max_tokens=100, full=True)).upserted == 4
    assert server.paths(304) == []


async def test_pages_whose_links_are_followed_are_read_only_when_they_changed(tmp_path: Path, server: Site) -> None:
    server.pages = {"/": page("Top", "a"), "/a": page("A", "b"), "/b": page("B")}
    connector = source(server.url + "/", follow=True, max_depth=2)
    assert (await synced(tmp_path, connector)).upserted == 3
    server.paths()
    assert (await synced(tmp_path, connector)).unchanged == 3
    assert server.paths(304) == ["/b"]  # no link of it is followed


async def test_a_page_that_is_gone_is_deleted_and_one_that_fails_is_kept(tmp_path: Path, server: Site) -> None:
    server.pages = {"/list.xml": sitemap("/a", "/b", "/c"), **{f"/{name}": page(name) for name in "abc"}}
    connector = source(server.url + "/list.xml")
    assert (await synced(tmp_path, connector)).upserted == 3
    del server.pages["/a"]
    server.pages["/b"] = Page(status=500)
    report = await synced(tmp_path, connector)
    assert (report.deleted, report.unchanged) == (1, 1)
    assert report.skipped == [(server.url + "/b", "its server answers with HTTP 500")]
    server.pages |= {"/list.xml": sitemap("/c"), "/b": page("b")}
    assert (await synced(tmp_path, connector)).deleted == 1
    server.pages["/list.xml"] = Page(status=503)
    with pytest.raises(ConnectorError, match="its server answers with HTTP 503"):
        await synced(tmp_path, connector)
    server.pages["/list.xml"] = sitemap("/c")
    assert (await synced(tmp_path, connector)).unchanged == 1


async def test_a_page_that_never_was_is_told(server: Site) -> None:
    server.pages["/a"] = page("A")
    found = await read(server.url + "/a", server.url + "/typo")
    assert found[server.url + "/typo"] == "not found (HTTP 404)"
    with pytest.raises(ConnectorError, match=r"^not found \(HTTP 404\)$"):
        await read(server.url + "/typo")


# ---- what sites ask of robots -------------------------------------------------------------------------------------


async def test_robots_txt_is_kept_for_the_agent_that_it_names(server: Site) -> None:
    rules = "User-agent: *\nDisallow: /private\n\nUser-agent: special\nDisallow: /open\n"
    server.pages = {
        "/robots.txt": Page(rules, "text/plain"),
        "/private/a": page("A"),
        "/open": page("O"),
        "/to": redirect("/private/a"),
    }
    urls = [server.url + path for path in ("/private/a", "/open", "/to")]
    refused = "its site forbids it to robots (robots.txt)"
    found = await read(*urls)
    assert [found[url] for url in (urls[0], urls[2])] == [refused] * 2
    assert isinstance(found[urls[1]], Item)
    assert server.paths() == ["/open", "/to"]
    found = await read(*urls, user_agent="Special/1.0 (+https://example.com)")
    assert found[urls[1]] == refused
    assert server.paths() == ["/private/a", "/to", "/private/a"]


async def test_a_crawl_delay_is_kept(server: Site) -> None:
    server.pages = {
        "/robots.txt": Page("User-agent: *\nCrawl-delay: 0.2", "text/plain"),
        "/a": page("A"),
        "/b": page("B"),
    }
    began = time.monotonic()
    await read(server.url + "/a", server.url + "/b")
    assert time.monotonic() - began >= 0.4


async def test_a_crawl_delay_of_a_day_is_not(server: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "MAX_PAUSE_S", 0.1)
    late = {"Retry-After": "86400"}
    server.pages = {
        "/robots.txt": Page("User-agent: *\nCrawl-delay: 86400", "text/plain"),
        "/a": [Page(status=429, headers=late), page("A")],
    }
    assert await paths(server, "/a") == {"/a"}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Page(status=500), "its robots.txt cannot be read: HTTP 500"),
        (redirect("http://10.0.0.1/robots.txt"), "its robots.txt cannot be read: redirected to another host"),
        (
            Page("\n".join(f"User-agent: a{n}" for n in range(600)), "text/plain"),
            "its robots.txt cannot be read: too many rules",
        ),
        (Page("x" * 600_000, "text/plain"), "its robots.txt cannot be read: the answer is larger than 524288 bytes"),
    ],
    ids=["fails", "elsewhere", "agents", "large"],
)
async def test_a_site_whose_robots_txt_cannot_be_read_is_closed(server: Site, answer: Page, told: str) -> None:
    server.pages = {"/robots.txt": answer, "/a": page("A")}
    with pytest.raises(ConnectorError, match=told):
        await read(server.url + "/a")
    assert server.paths() == []
    server.pages["/robots.txt"] = Page(status=403)  # no rules at all
    assert await paths(server, "/a") == {"/a"}


async def test_pages_that_ask_not_to_be_indexed_or_followed_are_not(server: Site) -> None:
    meta = '<meta content="{}" name="ROBOTS"><a href="/b">'
    server.pages |= {"/a": Page(meta.format("NoFollow, x")), "/b": page("B")}
    assert await paths(server, "/a", follow=True) == {"/a"}
    server.pages["/a"] = Page(meta.format("noindex"))
    found = await read(server.url + "/a", follow=True)
    assert found.pop(server.url + "/a") == "it asks not to be indexed (noindex)"
    assert set(found) == {server.url + "/b"}
    told = await reason(server, markdown("x", headers={"X-Robots-Tag": "none"}))
    assert told == "it asks not to be indexed (noindex)"


# ---- sites that do what they should not ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest",
        "http://10.0.0.1/",
        "http://localhost/",
        "//127.0.0.1:1/",
        "http://[::1]/",
        "ftp://x/",
    ],
)
async def test_a_redirect_to_a_host_that_is_not_given_is_refused(server: Site, location: str) -> None:
    told = await reason(server, redirect(location))
    assert told in ("redirected to another host", "redirected to what is no address")
    assert "169.254" not in told


async def test_a_redirect_to_the_host_of_another_given_page_is_followed(server: Site, other: Site) -> None:
    server.pages["/a"] = redirect(other.url + "/b")
    other.pages |= {"/b": page("B"), "/c": page("C")}
    assert set(await read(server.url + "/a", other.url + "/c")) == {other.url + "/b", other.url + "/c"}


async def test_a_redirect_in_a_circle_ends(server: Site) -> None:
    assert await reason(server, redirect("/bad")) == "more than 5 redirects"


async def test_what_is_too_large_is_cut_off(server: Site) -> None:
    sent = itertools.count()

    def endless() -> Iterator[bytes]:
        while True:
            next(sent)
            yield b"x" * 65536

    bound = {"max_extract_bytes": 1_000_000}
    told = "the answer is larger than 1000000 bytes (max_extract_bytes)"
    assert await reason(server, Page(endless()), **bound) == told
    assert next(sent) < 500
    bomb = Page(gzip.compress(b"\0" * 50_000_000), headers={"Content-Encoding": "gzip"})
    assert await reason(server, bomb, **bound) == told
    coded = Page(b"x", headers={"Content-Encoding": "br"})
    assert await reason(server, coded) == "in a coding that is not decoded (Content-Encoding)"


async def test_an_answer_that_stops_half_way_is_tried_again_if_nothing_came(server: Site) -> None:
    server.pages["/a"] = [Page(status=503), Page(status=502), page("A")]
    assert await paths(server, "/a") == {"/a"}
    short = Page(b"half", headers={"Content-Length": "100"})
    assert "sent something that is not" in await reason(server, short)


async def test_a_site_that_fails_five_times_in_a_row_is_not_asked_for_the_rest(server: Site) -> None:
    server.pages = {"/list.xml": sitemap(*(f"/{n}" for n in range(20))), "/0": page("0")}
    server.pages |= {f"/{n}": Page(status=500) for n in range(1, 20)}
    found = await read(server.url + "/list.xml")
    assert found.pop("partial") == ""
    assert isinstance(found.pop(server.url + "/0"), Item)
    told = list(found.values())
    assert told[:5] == ["its server answers with HTTP 500"] * 5
    assert told[5:] == ["not tried: 5 pages in a row failed, the last: its server answers with HTTP 500"]


async def test_bounds_end_a_site_without_an_end_and_keep_what_was_stored(tmp_path: Path, server: Site) -> None:
    server.pages = {f"/{n}": page(f"Page {n}", f"/{n + 1}") for n in range(30)}
    for bounds, why, pages in (
        ({"max_pages": 7}, "max_pages is 7", 7),
        ({"max_total_bytes": 500}, "max_total_bytes is 500", 5),
        ({"timeout_s": 0.5, "delay_s": 0.2}, "timeout_s is 0.5", 3),
    ):
        connector = source(server.url + "/0", follow=True, max_depth=100, **bounds)
        report = await synced(tmp_path, connector)
        assert 0 < report.fetched <= pages
        assert report.skipped[-1][1] == f"not tried: {why}"
        assert report.deleted == 0
    assert (await synced(tmp_path, source(server.url + "/0", follow=True, max_depth=100))).fetched == 30


async def test_links_to_pages_that_there_are_not_are_not_tried_without_an_end(
    server: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "_OTHERS", 5)
    server.pages["/"] = page("Top", *(f"/{n}" for n in range(100)))
    found = await read(server.url + "/", follow=True, max_pages=3)
    assert "not tried: 11 addresses were asked for; max_pages is 3" in found.values()
    assert "partial" in found
    assert len(server.paths()) == 11


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("<html></html>", "XML that is no sitemap"),
        ("<urlset><url>", "not well-formed XML"),
        ("", "empty|not well-formed XML"),
        ('<!DOCTYPE x [<!ENTITY a "aaaa">]><urlset><url><loc>&a;</loc></url></urlset>', "XML with a document type"),
        ("<urlset>" + "<a>" * 1000, "XML that is nested too deep"),
    ],
)
async def test_a_sitemap_that_is_none_is_told(server: Site, text: str, told: str) -> None:
    assert re.match(f"its sitemap cannot be read: ({told})$", await reason(server, Page(text, "application/xml")))


async def test_a_sitemap_that_unpacks_to_gigabytes_is_refused(server: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web.webpages, "MAX_SITEMAP_BYTES", 1_000_000)
    bomb = Page(gzip.compress(b"<urlset>" + b" " * 10_000_000), "application/gzip")
    assert await reason(server, bomb) == "its sitemap cannot be read: larger than 1000000 bytes"


async def test_a_type_without_text_is_skipped(server: Site) -> None:
    assert await reason(server, Page(b"\x89PNG", "image/png")) == "of the type 'image/png'"
    assert await reason(server, Page(b"\xff\xfe\xff", "text/plain")) == "not UTF-8 (byte 0)"


async def test_a_site_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConnectorError, match=r"does not accept connections at port 1$"):
        await read("http://127.0.0.1:1/")


async def test_a_name_may_lead_into_the_own_network_and_never_to_metadata(
    server: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.pages["/a"] = page("A")
    port = server.server_address[1]
    monkeypatch.setattr(outbound, "system_lookup", lambda host: ["127.0.0.1"])
    assert len(await read(f"http://wiki.internal:{port}/a")) == 1
    monkeypatch.setattr(outbound, "system_lookup", lambda host: ["169.254.169.254"])
    with pytest.raises(ConnectorError, match="at an address that is never reached"):
        await read(f"http://wiki.internal:{port}/a")


@pytest.mark.parametrize(
    ("address", "internal"),
    [("127.0.0.1", True), ("10.1.2.3", True), ("172.31.0.1", True), ("192.168.0.1", True), ("100.64.0.1", True),
     ("::1", True), ("fd12::1", True), ("169.254.169.254", False), ("100.100.100.200", False), ("fd00:ec2::254", False),
     ("0.0.0.0", False), ("172.32.0.1", False), ("fe80::1", False), ("fd12::1%eth0", False), ("93.184.216.34", False)],
)  # fmt: skip
def test_internal_addresses_are_those_of_organisations_and_not_of_clouds(address: str, internal: bool) -> None:
    assert is_internal(ip_address(address)) is internal


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"urls": []}, "there are no urls and no sitemaps"),
        ({"user_agent": "a\r\nX: y"}, "user_agent must be printable ASCII"),
        ({"include_globs": ["!"]}, "a glob is not valid"),
    ],
)
def test_what_cannot_be_used_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        source(*keys.pop("urls", ["http://h/"]), **keys)


async def test_a_full_disk_ends_the_scan_and_the_next_one_is_right(
    tmp_path: Path, server: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.pages["/a"] = page("A")

    class Full:
        def seek(self, *_: object) -> int:
            return 0

        def write(self, _: object) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            pass

    with monkeypatch.context() as patched:
        patched.setattr(web.tempfile, "TemporaryFile", Full)
        with pytest.raises(ConnectorError, match="No space left on device"):
            await synced(tmp_path, source(server.url + "/a"))
    assert (await synced(tmp_path, source(server.url + "/a"))).upserted == 1
    await trio.lowlevel.checkpoint()


async def test_not_modified_for_a_page_that_the_store_does_not_have_is_an_error_of_that_page(server: Site) -> None:
    for follow in (False, True):
        assert await reason(server, Page("", status=304), follow=follow) == "its server answers with HTTP 304"

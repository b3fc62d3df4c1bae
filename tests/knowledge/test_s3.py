"""Documents of buckets: every key that S3 has, and servers that answer what they should not."""

import itertools
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import document_files
import pytest
import sync_kills
import sync_sources
import trio
from s3_support import KEYS, Server, client, failure, moto, page, served, versitygw

from engine.config import parse_config
from engine.extraction import open_extractor
from knowledge.access import EVERYTHING
from knowledge.connectors import ConnectorError, Found, Item, Skipped, Unreadable, opened, s3
from knowledge.connectors.s3 import S3Connector
from knowledge.sqlite.store import open_store
from knowledge.sync import SyncReport, sync

# `make soak` sets it.
BESIDE_MOTO = os.environ.get("S3_SERVER") == "versitygw"
# Every key that botocore sends and moto keeps.
ODD = ("a/../b.md", "x//y.md", "tab\there.md", "/lead.md", "..", "sp ace+plus%20.md", "ü/ß€😀.md",
       "q?a=b#c&d.md", "./dot.md", "x" * 1021 + ".md", "<&>'\".md", "\x01.md", "back\\slash.md")  # fmt: skip
# versitygw keeps an object as a file: it has keys that are paths as they would be written, of ordinary length. It lists
# a control character as U+FFFD.
if BESIDE_MOTO:
    ODD = tuple(key for key in ODD if key == os.path.normpath(key).lstrip("/.\x01") and len(key) < 256)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with versitygw() if BESIDE_MOTO else moto() as url:
        yield url


@pytest.fixture
def bucket(endpoint: str, request: pytest.FixtureRequest) -> str:
    """An empty bucket of the test's own."""
    name = f"b{abs(hash(request.node.nodeid)):x}"
    client(endpoint).create_bucket(Bucket=name)
    return name


@pytest.fixture
def server() -> Iterator[Server]:
    with served() as found:
        yield found


@pytest.fixture(autouse=True)
def _no_keys_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")


def fill(endpoint: str, bucket: str, **objects: bytes | str) -> None:
    own = client(endpoint)
    for key, data in objects.items():
        own.put_object(Bucket=bucket, Key=key, Body=data)


def source(endpoint: str, bucket: str = "bucket", **keys: Any) -> S3Connector:
    return S3Connector(bucket, endpoint_url=endpoint, **(KEYS | keys))


async def read(endpoint: str, bucket: str = "bucket", **keys: Any) -> dict[str, Item | str]:
    """Every object of a source: its item, or the reason it was skipped."""
    found: dict[str, Item | str] = {}
    async with opened(source(endpoint, bucket, **keys)) as connector:
        async for entry in connector.scan():
            if isinstance(entry, Skipped):
                found[entry.source_id] = entry.reason
            else:
                assert isinstance(entry, Found)
                try:
                    found[entry.source_id] = await connector.read(entry)
                except Unreadable as error:
                    found[entry.source_id] = str(error)
    return found


async def synced(tmp_path: Path, connector: S3Connector, **options: Any) -> SyncReport:
    async with open_store(tmp_path / "store.sqlite", create=True) as store:
        return await sync(store, "s3:b", connector, **options)


async def fails(server: Server, message: str) -> None:
    """The listing fails with exactly this text; when the server is right again, so is the next."""
    with pytest.raises(ConnectorError) as caught:
        await read(server.url)
    assert str(caught.value) == message
    server.listing = lambda token: page({"a.md": 1})
    assert set(await read(server.url)) == {"a.md"}


# ---- what moto has ------------------------------------------------------------------------------------------------


async def test_an_object_is_a_document_with_its_time_and_address(endpoint: str, bucket: str) -> None:
    fill(endpoint, bucket, **{"docs/a b.md": "# Alpha\n", "docs/c.bin": b"\0"})
    ((key, item),) = (await read(endpoint, bucket)).items()
    assert key == "docs/a b.md"
    assert isinstance(item, Item)
    assert item.updated_at is not None
    assert item == Item(
        body="# Alpha\n",
        title="Alpha",
        source_url=f"s3://{bucket}/docs/a%20b.md",
        created_at=item.updated_at,
        updated_at=item.updated_at,
        content_type="text/markdown",
        metadata={"bucket": bucket, "etag": item.metadata["etag"], "size": 8},
    )
    assert len(item.metadata["etag"]) == 32
    (item,) = (await read(endpoint, bucket, url_prefix="https://docs.example.com/")).values()
    assert isinstance(item, Item)
    assert item.source_url == "https://docs.example.com/docs/a%20b.md"


async def test_any_key_that_s3_allows_is_read_and_stored(tmp_path: Path, endpoint: str, bucket: str) -> None:
    fill(endpoint, bucket, **{key: f"text of {n}" for n, key in enumerate(ODD)})
    found = await read(endpoint, bucket, include_globs=["**"])
    assert {key: item.body for key, item in found.items() if isinstance(item, Item)} == {
        key: f"text of {n}" for n, key in enumerate(ODD)
    }
    connector = source(endpoint, bucket, include_globs=["**"])
    assert (await synced(tmp_path, connector)).upserted == len(ODD)
    assert (await synced(tmp_path, connector)).unchanged == len(ODD)
    async with open_store(tmp_path / "store.sqlite", readonly=True) as store:
        assert {each.source_id for each in await store.documents(EVERYTHING, limit=100)} == set(ODD)


async def test_a_listing_of_several_pages_is_read_to_its_end(endpoint: str, bucket: str) -> None:
    fill(endpoint, bucket, **{f"{n}.md": "" for n in range(8)})
    async with opened(source(endpoint, bucket)) as connector:
        assert len([entry async for entry in connector.scan()]) == 8


async def test_a_prefix_and_globs_select_and_folders_are_no_objects(endpoint: str, bucket: str) -> None:
    fill(
        endpoint, bucket, **{"docs/": "", "docs/a.md": "a", "docs/draft/b.md": "b", "docs/c.rst": "c", "other.md": "o"}
    )
    assert set(await read(endpoint, bucket, prefix="docs/")) == {"docs/a.md", "docs/draft/b.md"}
    assert set(await read(endpoint, bucket, prefix="docs/", include_globs=["/c*"])) == {"docs/c.rst"}
    assert set(await read(endpoint, bucket, exclude_globs=["draft/", "other*"])) == {"docs/a.md"}
    style = {"prefix": "docs/", "include_globs": ["*.{md,rst}"], "glob_style": "ctx"}
    assert set(await read(endpoint, bucket, **style)) == {"docs/a.md", "docs/draft/b.md", "docs/c.rst"}
    assert set(await read(endpoint, bucket, include_globs=["**"], prefix="docs/d")) == {"docs/draft/b.md"}


async def test_a_sync_reads_what_changed_and_deletes_what_is_gone(tmp_path: Path, endpoint: str, bucket: str) -> None:
    fill(endpoint, bucket, **{"a.md": "a", "b.md": "b", "c.md": "c"})
    connector = source(endpoint, bucket)
    assert (await synced(tmp_path, connector)).upserted == 3
    fill(endpoint, bucket, **{"a.md": "A"})
    client(endpoint).delete_object(Bucket=bucket, Key="c.md")
    report = await synced(tmp_path, connector)
    assert (report.upserted, report.unchanged, report.deleted, report.skipped) == (1, 1, 1, [])


async def test_what_is_no_text_is_skipped_with_a_reason(tmp_path: Path, endpoint: str, bucket: str) -> None:
    own = client(endpoint)
    fill(endpoint, bucket, **{"binary.md": b"\xff\xfe\x00", "large.md": "x" * 2000, "fine.md": "f"})
    own.put_object(Bucket=bucket, Key="zipped.md", Body=b"\x1f\x8b", ContentEncoding="gzip")
    own.put_object(Bucket=bucket, Key="cold.md", Body=b"c", StorageClass="GLACIER")
    report = await synced(tmp_path, source(endpoint, bucket, max_extract_bytes=1000))
    reasons = {
        "binary.md": "not UTF-8 (byte 0)",
        "large.md": "too large: 2000 bytes; max_extract_bytes is 1000",
        "zipped.md": "compressed (it has a Content-Encoding)",
        "cold.md": "archived (GLACIER); restore it to have it read",
    }
    if BESIDE_MOTO:  # which has no classes of storage
        del reasons["cold.md"]
    assert dict(report.skipped) == reasons
    assert report.upserted == 5 - len(reasons)


async def test_a_file_that_is_no_text_is_read_by_the_extractor(server: Server) -> None:
    server.listing = lambda token: page({"guide.pdf": 1, "broken.pdf": 1, "a.md": 1})
    given = {"guide.pdf": document_files.pdf(["first page", "second"], title="The guide"), "broken.pdf": b"%PDF-1.7 x"}
    server.object_ = lambda key: given.get(key, b"text")
    async with open_extractor(parse_config("", environ={}, cwd=Path("/nonexistent"))[0]) as extractor:
        found = await read(server.url, include_globs=["**"], extractor=extractor)
    guide, broken, text = (found[key] for key in ("guide.pdf", "broken.pdf", "a.md"))
    assert isinstance(guide, Item)
    assert (guide.title, guide.content_type, len(guide.pages)) == ("The guide", "application/pdf", 2)
    assert isinstance(broken, str)
    assert "damaged" in broken
    assert isinstance(text, Item)
    assert (text.body, text.pages) == ("text", ())


async def test_a_bucket_that_is_not_there_is_named_as_such_and_costs_no_document(
    tmp_path: Path, endpoint: str, bucket: str
) -> None:
    fill(endpoint, bucket, **{"a.md": "a"})
    await synced(tmp_path, source(endpoint, bucket))
    with pytest.raises(ConnectorError, match=r"^there is no such bucket$"):
        await synced(tmp_path, source(endpoint, "nosuch"))
    assert (await synced(tmp_path, source(endpoint, bucket))).unchanged == 1


async def test_a_key_with_a_line_break_or_a_null_is_one_document(tmp_path: Path, server: Server) -> None:
    keys = ("a\nb.md", "a\0b.md", "a\r.md")
    server.listing = lambda token: page(dict.fromkeys(keys, 1))
    server.object_ = lambda key: key.encode()
    report = await synced(tmp_path, source(server.url))
    assert (report.upserted, report.skipped) == (3, [])
    async with open_store(tmp_path / "store.sqlite", readonly=True) as store:
        ids = {each.source_id: each.id for each in await store.documents(EVERYTHING, limit=9)}
        assert set(ids) == set(keys)
        for key, id_ in ids.items():
            document = await store.get(id_, EVERYTHING)
            assert document is not None
            assert (document.source_id, document.body) == (key, key)


# ---- keys and addresses -------------------------------------------------------------------------------------------


async def test_keys_come_from_the_table_or_the_environment_and_are_in_no_text(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    connector = source(server.url, session_token="t0ken-of-session")
    async with opened(connector) as objects:
        assert [type(entry) async for entry in objects.scan()] == [Found, Found]
    assert "Credential=test-id/" in server.seen[0]["Authorization"]
    assert server.seen[0]["X-Amz-Security-Token"] == "t0ken-of-session"
    for name, value in {"AWS_ACCESS_KEY_ID": "env-id", "AWS_SECRET_ACCESS_KEY": "3nv-secret-key"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    await read(server.url, access_key_id="", secret_access_key="")
    assert "Credential=env-id/" in server.seen[-1]["Authorization"]
    assert "/eu-central-1/s3/" in server.seen[-1]["Authorization"]
    shown = caplog.text + repr(vars(connector)) + repr(vars(connector._connect)) + repr(objects)
    for secret in ("t3st-secret-key", "3nv-secret-key", "t0ken-of-session", "AWS4-HMAC"):
        assert secret not in shown


async def test_without_keys_it_says_which_are_missing_and_anonymous_needs_none(server: Server) -> None:
    with pytest.raises(ConnectorError, match="there are no keys for it: set `access_key_id`"):
        await read(server.url, access_key_id=None, secret_access_key=None)
    assert server.requests == []
    assert set(await read(server.url, access_key_id=None, secret_access_key=None, anonymous=True)) == {"a.md", "b.md"}
    assert "Authorization" not in server.seen[0]


async def test_an_endpoint_is_reached_by_paths_or_by_names_of_buckets(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await read(server.url)
    assert server.requests[0].startswith("/bucket?")
    port = server.server_address[1]
    found = socket.getaddrinfo("127.0.0.1", port, type=socket.SOCK_STREAM)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    await read(f"http://s3.test:{port}", path_style=False)
    assert server.requests[-1].startswith("/b.md")
    assert server.seen[-1]["Host"] == f"bucket.s3.test:{port}"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"bucket": "a/b"}, "bucket 'a/b' is neither a name of a bucket nor an ARN"),
        ({"bucket": "a b\n"}, "is neither a name"),
        ({"region": "us east"}, "region 'us east' is not a name of a region"),
        ({"secret_access_key": None}, "access_key_id and secret_access_key belong together"),
        ({"anonymous": True}, "anonymous and access_key_id exclude one another"),
        ({"endpoint_url": "ftp://x"}, "endpoint_url must be http://HOST or https://HOST"),
        ({"endpoint_url": "minio:9000"}, "endpoint_url must be http://HOST or https://HOST"),
        ({"endpoint_url": "http://u:pa55@h"}, "endpoint_url holds a user or password"),
        ({"endpoint_url": "http://h:port"}, "endpoint_url is not an address"),
        ({"endpoint_url": "http://h/\n"}, "a space or a control character"),
        ({"endpoint_url": "http://h/?q"}, "neither"),
        ({"include_globs": ["!"]}, "a glob is not valid"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        S3Connector(**({"bucket": "b", "endpoint_url": "http://h"} | KEYS | keys))
    assert "pa55" not in str(caught.value)


# ---- servers that fail --------------------------------------------------------------------------------------------


async def test_a_listing_without_end_ends(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "MAX_OBJECTS", 50)
    count = itertools.count()
    server.listing = lambda token: page({f"{next(count):08}.md": 1 for _ in range(10)}, f"t{next(count)}")
    await fails(server, "it has more than 50 objects; a longer `prefix` takes a part of them")
    monkeypatch.setattr(s3, "MAX_PAGES", 5)
    server.listing = lambda token: page({}, f"t{next(count)}")
    await fails(server, "it has more than 0 objects; a longer `prefix` takes a part of them")
    server.listing = lambda token: page({"a.md": 1}, "again")
    await fails(server, "its listing has no end: its server repeats itself")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (page({"a.md": 1}, " ").replace(b"<NextContinuationToken> </NextContinuationToken>", b""),
         "its server stops in the middle of the listing"),
        (failure(403, "AccessDenied"),
         "its keys are refused; check `access_key_id`, `secret_access_key`, and what they may read"),
        (failure(400, "secret.internal.example"), "its server answers with an error (HTTP 400)"),
        ((301, {"x-amz-bucket-region": "eu-west-1"}, failure(301, "PermanentRedirect")[2]),
         "its bucket is in another region; set `region`"),
        (page({"a.md": "9" * 5000}), "its server sent what is no answer of S3"),
        (page({"a.md": "many"}), "its server sent what is no answer of S3"),
        (page({"a.md": 1}, LastModified="yesterday"), "its server sent what is no answer of S3"),
        (b"<html>not found</html", "its server sent what is no answer of S3"),
        (b'<!DOCTYPE x [<!ENTITY a "aaaaaaaa">]>' + page({"a.md": 1})[21:], "its server sent what is no answer of S3"),
    ],
    ids=["no token", "denied", "an unknown code", "another region", "a long number", "no number", "no time",
         "a page of the web", "entities"],
)  # fmt: skip
async def test_an_answer_that_is_no_listing_is_told_without_a_word_of_the_server(
    server: Server, answer: Any, message: str
) -> None:
    server.listing = lambda token: answer
    await fails(server, message)


async def test_a_server_that_fails_now_and_then_is_tried_again(server: Server) -> None:
    answers: list[Any] = [failure(500, "InternalError")]
    server.listing = lambda token: answers.pop() if answers else page({"a.md": 1})
    assert set(await read(server.url)) == {"a.md"}
    assert sum("list-type" in path for path in server.requests) == 2


async def test_a_server_that_always_fails_is_tried_three_times(server: Server) -> None:
    server.listing = lambda token: failure(503, "SlowDown")
    await fails(server, "its server answers with an error (HTTP 503)")
    assert sum("list-type" in path for path in server.requests) == s3.ATTEMPTS + 1


async def test_a_listing_that_stops_half_way_is_no_short_listing(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "ATTEMPTS", 1)
    connector = source(server.url)
    assert (await synced(tmp_path, connector)).upserted == 2
    whole = page({"a.md": 1})
    server.listing = lambda token: (200, {"Content-Length": str(len(whole) + 100)}, whole)
    with pytest.raises(ConnectorError, match=r"^its server cannot be reached, or ended the connection$"):
        await synced(tmp_path, connector)
    server.listing = lambda token: page({"a.md": 1}, "next") if not token else failure(500, "InternalError")
    with pytest.raises(ConnectorError, match="HTTP 500"):
        await synced(tmp_path, connector)
    server.listing = lambda token: page({"a.md": 1, "b.md": 1})
    report = await synced(tmp_path, connector)
    assert (report.unchanged, report.deleted) == (2, 0)


async def test_an_answer_that_goes_on_and_on_is_cut_off(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = itertools.count()

    def endless() -> Iterator[bytes]:
        yield b"<ListBucketResult>"
        while True:
            next(sent)
            yield b" " * 65536

    monkeypatch.setattr(s3, "_PAGE_BYTES", 1024 * 1024)
    monkeypatch.setattr(s3, "ATTEMPTS", 1)
    server.listing = lambda token: (200, {}, endless())
    await fails(server, "its server sent more than 1048576 bytes for one page of the listing")
    assert next(sent) < 200
    server.object_ = lambda key: (200, {}, endless())
    assert set((await read(server.url, max_extract_bytes=100_000)).values()) == {
        "too large: 100001 bytes; max_extract_bytes is 100000"
    }


async def test_a_byte_now_and_then_is_no_answer(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def dripping() -> Iterator[bytes]:
        for _ in range(100):
            trio.run(trio.sleep, 0.05)
            yield b" "

    monkeypatch.setattr(s3, "_REQUEST_S", 0.3)
    server.listing = lambda token: (200, {}, dripping())
    with pytest.raises(ConnectorError, match=r"its server takes longer than 0.3 s for an answer"):
        await read(server.url)


async def test_objects_that_are_not_as_they_were_listed_are_skipped_one_by_one(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "ATTEMPTS", 2)
    answers: dict[str, Any] = {
        "gone.md": failure(404, "NoSuchKey"),
        "denied.md": failure(403, "AccessDenied"),
        "short.md": (200, {"Content-Length": "1000"}, b"only this"),
        "long.md": b"y" * 500,
        "cold.md": failure(403, "InvalidObjectState"),
        "fine.md": b"fine",
    }
    server.listing = lambda token: page({**dict.fromkeys(answers, 4), "huge.md": 10**15})
    server.object_ = answers.__getitem__
    found = await read(server.url, max_extract_bytes=100)
    fine = found.pop("fine.md")
    assert isinstance(fine, Item)
    assert fine.body == "fine"
    assert found == {
        "gone.md": "gone since it was listed",
        "denied.md": "its server refuses it: the keys may list it and not read it",
        "short.md": "its server cannot be reached, or ended the connection",
        "long.md": "too large: 500 bytes; max_extract_bytes is 100",
        "cold.md": "archived; restore it to have it read",
        "huge.md": f"too large: {10**15} bytes; max_extract_bytes is 100",
    }


async def test_a_server_that_is_gone_while_objects_are_read_is_not_asked_for_each(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "ATTEMPTS", 1)
    server.listing = lambda token: page({f"{n:02}.md": 1 for n in range(20)})
    server.object_ = lambda key: failure(500, "InternalError")
    reasons = list((await read(server.url)).values())
    assert reasons[:5] == ["its server answers with an error (HTTP 500)"] * 5
    assert reasons[5:] == ["not tried: its server failed for others before it"] * 15
    server.object_ = lambda key: b"x"
    assert all(isinstance(item, Item) for item in (await read(server.url)).values())


async def test_a_server_that_is_not_there_is_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "ATTEMPTS", 1)
    with pytest.raises(ConnectorError, match=r"^its server cannot be reached, or ended the connection$"):
        await read("http://127.0.0.1:1")


async def test_an_object_without_an_etag_is_read_and_compared_each_time(tmp_path: Path, server: Server) -> None:
    server.listing = lambda token: page({"a.md": 1}, ETag="")
    connector = source(server.url)
    assert (await synced(tmp_path, connector)).upserted == 1
    before = len(server.requests)
    assert (await synced(tmp_path, connector)).unchanged == 1
    assert [path.partition("?")[0] for path in server.requests[before:]] == ["/bucket", "/bucket/a.md"]


def test_a_sync_of_a_bucket_that_is_killed_twice_ends_as_an_undisturbed_one(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = partial(sync_sources.s3, server=lambda: nullcontext(endpoint))
    monkeypatch.setattr(sync_kills, "KINDS", {"s3": running})
    figures = sync_kills.kill_often("s3", points=2, seed=5, count=12, by_line=True)
    assert figures.killed == 2
    assert figures.problems == []

"""Documents from the objects of a bucket of S3, or of a service that speaks its protocol.

Requests are signed and sent by botocore, an extra of the installation, in threads. Its answers are read here: botocore
would keep as much of an answer as a server sends, for as long as it sends.
"""

import hashlib
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from datetime import datetime
from functools import cache, partial
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, urlsplit

import trio

from knowledge.connectors import ConnectorError, Found, Item, Skipped, Unreadable
from knowledge.extraction import TEXT_ONLY, Extractor
from knowledge.textfiles import DEFAULT_INCLUDE, DEFAULT_MAX_BYTES, Globs, GlobStyle, text_of, too_large
from knowledge.times import from_timestamp
from storage.metering import in_thread

# Bounds on a listing: an endpoint can list for ever. A page has at most 1,000 keys of 1,024 bytes, three times as many
# once they are escaped.
MAX_OBJECTS = 1_000_000
MAX_PAGES = 20_000
_PAGE_BYTES = 8 * 1024 * 1024
_KEY_BYTES = 1024

# Tries of a request, with a pause of up to 1 and 2 seconds between them; also tries to read an object to its end.
ATTEMPTS = 3
_CONNECT_S = 10
_READ_S = 30
# Bound on one request with its tries, and on one answer: a server can send a byte every 29 seconds.
_REQUEST_S = 300
# After so many objects in a row that its server did not send, the others are not tried.
_FAILURES_IN_A_ROW = 5
_PIECE = 64 * 1024

# A bucket, or the ARN of an access point.
_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}|arn:[A-Za-z0-9:/._-]{1,1000}")
_REGION = re.compile(r"[a-z0-9-]{1,63}")
# Classes whose objects must be restored before they can be read.
_ARCHIVED = frozenset({"GLACIER", "DEEP_ARCHIVE"})

# Codes of errors (https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html), and what we say.
_REFUSED = "its keys are refused; check `access_key_id`, `secret_access_key`, and what they may read"
_REASONS: Mapping[str, str] = {
    **dict.fromkeys(("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"), _REFUSED),
    **dict.fromkeys(("AllAccessDisabled", "AccountProblem", "403", "401"), _REFUSED),
    **dict.fromkeys(("ExpiredToken", "TokenRefreshRequired"), "its session token has expired"),
    "NoSuchBucket": "there is no such bucket",
    "404": "there is no such bucket",
    "InvalidBucketName": "the name of its bucket is not valid",
    **dict.fromkeys(
        ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301"),
        "its bucket is in another region; set `region`",
    ),
    "RequestTimeTooSkewed": "the clock of this machine differs from the server's",
}

_ROOTS = (b"<ListBucketResult", b"<Error")  # an error can have the status 200

_Result = TypeVar("_Result")

# It logs signed headers at debug level, and a program that embeds the engine may log at that level.
for _name in ("botocore", "urllib3"):
    logging.getLogger(_name).setLevel(logging.WARNING)


class _Client(Protocol):
    """What is used of botocore's client."""

    def list_objects_v2(self, **keys: object) -> Mapping[str, Any]: ...
    def get_object(self, **keys: object) -> Mapping[str, Any]: ...
    def close(self) -> None: ...


class S3Connector:
    """Objects whose key begins with `prefix`, and whose key after it is taken by the globs. A source_id is the key.

    A document's source_url is `s3://BUCKET/KEY`, or with `url_prefix` this and the key. Without `access_key_id` and
    `secret_access_key`, botocore looks for keys where AWS's own programs do: `AWS_*` of the environment, shared files,
    the machine's role; with `anonymous` requests are not signed. Without a `region`, the environment's `AWS_REGION` or
    `AWS_DEFAULT_REGION`, else us-east-1. `path_style` is the form of addresses, `ENDPOINT/BUCKET` instead of
    `BUCKET.ENDPOINT`; None takes it for an `endpoint_url` alone.
    """

    def __init__(
        self,
        bucket: str,
        *,
        prefix: str = "",
        region: str | None = None,
        endpoint_url: str | None = None,
        path_style: bool | None = None,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        session_token: str | None = None,
        anonymous: bool = False,
        include_globs: Sequence[str] = DEFAULT_INCLUDE,
        exclude_globs: Sequence[str] = (),
        glob_style: GlobStyle = "gitignore",
        max_extract_bytes: int = DEFAULT_MAX_BYTES,
        url_prefix: str | None = None,
        extractor: Extractor = TEXT_ONLY,
    ) -> None:
        """Raises ValueError for a bucket, region, endpoint, set of keys or pattern that cannot be used."""
        if not _BUCKET.fullmatch(bucket):
            raise ValueError(f"bucket {bucket!r} is neither a name of a bucket nor an ARN")
        if region is not None and not _REGION.fullmatch(region):
            raise ValueError(f"region {region!r} is not a name of a region")
        if bool(access_key_id) != bool(secret_access_key):
            raise ValueError("access_key_id and secret_access_key belong together; give both, or neither")
        if anonymous and access_key_id:
            raise ValueError("anonymous and access_key_id exclude one another")
        self._extractor = extractor
        self._bucket = bucket
        self._prefix = prefix
        self._globs = Globs(include_globs, exclude_globs, glob_style)
        self._max_bytes = max_extract_bytes
        self._urls = f"s3://{quote(bucket)}/" if url_prefix is None else url_prefix
        self._connect = _Connect(
            region=region,
            endpoint=None if endpoint_url is None else _endpoint(endpoint_url),
            path_style=path_style,
            anonymous=anonymous,
            keys=(access_key_id or None, secret_access_key or None, session_token or None),
        )

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["_Objects"]:
        """The objects, for one synchronisation. Raises ConnectorError when there are no keys to sign requests with."""
        with _in_words():
            client = await _in_thread(self._connect.client)
        try:
            # The same object at another place is written again: its source_url and metadata differ.
            place = f"{self._urls}\n{self._bucket}"
            mark = hashlib.sha256(place.encode()).hexdigest()[:8]
            yield _Objects(
                client, self._bucket, self._prefix, self._globs, self._max_bytes, self._urls, mark, self._extractor
            )
        finally:
            client.close()


class _Objects:
    """The objects of a bucket: a Connector."""

    def __init__(
        self,
        client: _Client,
        bucket: str,
        prefix: str,
        globs: Globs,
        max_bytes: int,
        urls: str,
        mark: str,
        extractor: Extractor,
    ) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix
        self._globs = globs
        self._max_bytes = max_bytes
        self._urls = urls
        self._mark = mark
        self._extractor = extractor
        self._failures = 0  # in a row

    async def scan(self) -> AsyncIterator[Found | Skipped]:
        """Every object that the globs take, in the order of the listing. Raises ConnectorError when it has no end."""
        token: str | None = None
        seen: set[str] = set()
        listed = 0
        while True:
            with _in_words():
                count, entries, token = await _in_thread(self._page, token)
            for entry in entries:
                yield entry
            if token is None:
                return
            listed += count
            if token in seen:
                raise ConnectorError("its listing has no end: its server repeats itself")
            seen.add(token)
            if listed >= MAX_OBJECTS or len(seen) >= MAX_PAGES:
                raise ConnectorError(f"it has more than {listed:,} objects; a longer `prefix` takes a part of them")

    async def read(self, found: Found) -> Item:
        """One object's text. Raises Unreadable when it is gone, archived, too large, or has no text."""
        if self._failures >= _FAILURES_IN_A_ROW:
            raise Unreadable("not tried: its server failed for others before it")
        try:
            with _in_words(of_object=True):
                answer, data = await _in_thread(self._get, found.source_id)
        except ConnectorError as error:
            self._failures += 1
            raise Unreadable(str(error)) from error
        self._failures = 0
        if len(data) > self._max_bytes:
            raise Unreadable(too_large(max(len(data), _whole(answer.get("ContentLength"))), self._max_bytes))
        coding = str(answer.get("ContentEncoding", "")).replace("aws-chunked", "").strip(" ,").lower()
        if coding not in ("", "identity"):
            raise Unreadable("compressed (it has a Content-Encoding)")
        key, changed = found.source_id, _moment(answer.get("LastModified"))
        if self._extractor.takes(key, data):
            text = await self._extractor.extract(key, data)
        else:
            text = await in_thread(text_of, key, data)
        etag = str(answer.get("ETag", "")).strip('"')
        return Item(
            body=text.body,
            title=text.title or key,
            source_url=self._urls + quote(key),
            created_at=changed,
            updated_at=changed,
            content_type=text.content_type,
            pages=text.pages,
            metadata={"bucket": self._bucket, "etag": etag, "size": len(data)},
        )

    def _page(self, token: str | None) -> tuple[int, list[Found | Skipped], str | None]:
        """The number of objects of a page of the listing, those that the globs take, and the token of the next."""
        following = {} if token is None else {"ContinuationToken": token}
        # Keys may hold characters that XML cannot: botocore asks for escapes, and takes them away again.
        page = self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, **following)
        contents = page.get("Contents", ())
        entries = [entry for each in contents if (entry := self._entry(each)) is not None]
        if not page.get("IsTruncated"):
            return len(contents), entries, None
        if not page.get("NextContinuationToken"):
            raise ConnectorError("its server stops in the middle of the listing")
        return len(contents), entries, page["NextContinuationToken"]

    def _entry(self, listed: Mapping[str, Any]) -> Found | Skipped | None:
        key: str = listed["Key"]
        size: int = listed["Size"]
        # A program that shows folders stores an empty object with a slash at its end for each.
        if not key.startswith(self._prefix) or (key.endswith("/") and size == 0):
            return None
        if not self._globs.take(key.removeprefix(self._prefix)):
            return None
        if len(key.encode()) > _KEY_BYTES:
            return Skipped(source_id=key[:_KEY_BYTES], reason=f"its key is longer than {_KEY_BYTES} bytes")
        if size > self._max_bytes:
            return Skipped(source_id=key, reason=too_large(size, self._max_bytes))
        if (archived := listed.get("StorageClass")) in _ARCHIVED:
            return Skipped(source_id=key, reason=f"archived ({archived}); restore it to have it read")
        etag = str(listed.get("ETag", "")).strip('"')
        version = f"{etag[:128]}.{size}.{self._mark}" if etag else ""
        return Found(source_id=key, version=version, updated_at=_moment(listed.get("LastModified")))

    def _get(self, key: str) -> tuple[Mapping[str, Any], bytes]:
        """What is said of an object, and its content, at most one byte more than the limit."""
        from botocore.exceptions import IncompleteReadError, ReadTimeoutError, ResponseStreamingError

        attempt = 1
        while True:
            answer = self._client.get_object(Bucket=self._bucket, Key=key)
            try:
                with closing(answer["Body"]) as body:
                    data = bytearray()
                    while len(data) <= self._max_bytes:
                        piece = body.read(min(_PIECE, self._max_bytes + 1 - len(data)))
                        if not piece:
                            break
                        data += piece
                return answer, bytes(data)
            except (IncompleteReadError, ReadTimeoutError, ResponseStreamingError):
                if attempt == ATTEMPTS:
                    raise
                attempt += 1


# ---- requests -----------------------------------------------------------------------------------------------------


class _Connect:
    """How to reach the bucket. Its text shows no key."""

    def __init__(
        self,
        *,
        region: str | None,
        endpoint: str | None,
        path_style: bool | None,
        anonymous: bool,
        keys: tuple[str | None, str | None, str | None],
    ) -> None:
        self._region = region
        self._endpoint = endpoint
        self._style = {None: {}, True: {"addressing_style": "path"}, False: {"addressing_style": "virtual"}}[path_style]
        self._anonymous = anonymous
        self._keys: Callable[[], tuple[str | None, ...]] = lambda: keys  # a function has no text that shows them

    def client(self) -> _Client:
        """A client of botocore's, which takes 0.2 s. Raises errors of botocore's."""
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.session import get_session

        session = get_session()
        session.register_component("data_loader", _descriptions())
        region = self._region or os.environ.get("AWS_REGION") or session.get_config_variable("region") or "us-east-1"
        access, secret, token = self._keys()
        settings: dict[str, Any] = {"signature_version": UNSIGNED} if self._anonymous else {}
        if not self._anonymous and access is None and session.get_credentials() is None:
            raise ConnectorError(
                "there are no keys for it: set `access_key_id` and `secret_access_key`, or AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY in the environment, or `anonymous = true`"
            )
        client = session.create_client(
            "s3",
            region_name=region,
            endpoint_url=self._endpoint,
            aws_access_key_id=access,
            aws_secret_access_key=secret,
            aws_session_token=token,
            config=Config(
                connect_timeout=_CONNECT_S,
                read_timeout=_READ_S,
                retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
                s3=self._style,
                # Other servers do not know AWS's newer checksums.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                **settings,
            ),
        )
        client.meta.events.register("before-send.s3", _sender(session.get_config_variable("ca_bundle")))
        found: _Client = client
        return found


@cache
def _descriptions() -> Any:
    """What botocore loads from its files, once: most of the time it takes to make a client."""
    from botocore.session import get_session

    return get_session().get_component("data_loader")


def _sender(ca_bundle: str | None) -> Callable[..., Any]:
    """What sends requests in botocore's place: its own HTTP, with bounds on the answer in bytes and in time."""
    from botocore.awsrequest import AWSResponse
    from botocore.exceptions import ConnectionClosedError, ReadTimeoutError
    from botocore.httpsession import URLLib3Session
    from botocore.utils import get_environ_proxies
    from urllib3.exceptions import HTTPError, TimeoutError

    sessions: dict[str, Any] = {}

    def send(request: Any, **_: object) -> Any:
        host = urlsplit(request.url).netloc
        if host not in sessions:
            proxies = get_environ_proxies(request.url)
            sessions[host] = URLLib3Session(
                verify=ca_bundle or True, proxies=proxies, timeout=(_CONNECT_S, _READ_S), max_pool_connections=2
            )
        streamed, request.stream_output = request.stream_output, True
        answer = sessions[host].send(request)
        bounded = AWSResponse(answer.url, answer.status_code, answer.headers, _Bounded(answer.raw))
        if streamed and answer.status_code < 300:
            return bounded
        try:
            content = bounded.content  # keeps it
        except TimeoutError as error:
            raise ReadTimeoutError(endpoint_url=None, error=error) from None
        except HTTPError as error:
            raise ConnectionClosedError(endpoint_url=None, error=error) from None
        length = answer.headers.get("Content-Length", "")
        if length.isascii() and length.isdigit() and len(length) < 20 and len(content) < int(length):
            raise ConnectionClosedError(endpoint_url=None)
        # No answer of S3 declares entities, which can stand for a hundred times their size. botocore takes a page of
        # another program for an error with status 500.
        is_known = answer.status_code >= 300 or any(root in content[:1024] for root in _ROOTS)
        if b"<!DOCTYPE" in content or b"\0" in content or not is_known:
            raise ConnectorError("its server sent what is no answer of S3")
        return bounded

    return send


class _Bounded:
    """The body of an answer, as botocore reads it: in pieces as they arrive, until a deadline."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._until = time.monotonic() + _REQUEST_S

    def read(self, amount: int | None = None) -> bytes:
        if time.monotonic() > self._until:
            raise ConnectorError(f"its server takes longer than {_REQUEST_S} s for an answer")
        # read() would wait until the whole amount is there.
        data: bytes = self._raw.read1(_PIECE if amount is None else amount, decode_content=False)
        return data

    def stream(self, *_: object, **__: object) -> Iterator[bytes]:
        size = 0
        while piece := self.read(_PIECE):
            size += len(piece)
            if size > _PAGE_BYTES:
                self.close()
                raise ConnectorError(f"its server sent more than {_PAGE_BYTES} bytes for one page of the listing")
            yield piece

    def close(self) -> None:
        self._raw.close()


async def _in_thread(function: Callable[..., _Result], *args: object) -> _Result:
    """The function's result, from a thread. Raises ConnectorError when it takes too long."""
    with trio.move_on_after(_REQUEST_S):
        # Abandoned when cancelled: nothing is changed, and its bounds end it.
        return await in_thread(partial(function, *args), abandon_on_cancel=True)
    raise ConnectorError(f"its server takes longer than {_REQUEST_S} s for an answer")


class _in_words:
    """Turn errors of botocore into ConnectorError, with texts that quote neither it nor the server.

    With `of_object`, what is wrong with one object alone becomes Unreadable.
    """

    def __init__(self, *, of_object: bool = False) -> None:
        self._of_object = of_object

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None or isinstance(error, ConnectorError | Unreadable) or not isinstance(error, Exception):
            return
        from botocore import exceptions as of
        from botocore.parsers import ResponseParserError

        if isinstance(error, of.ClientError):
            self._answered(error)
        if isinstance(error, of.NoCredentialsError | of.PartialCredentialsError | of.CredentialRetrievalError):
            raise ConnectorError("there are no keys for it, or they could not be fetched") from None
        if isinstance(error, of.SSLError):
            raise ConnectorError("no TLS connection to its server could be made; check the certificate") from None
        if isinstance(error, of.ConnectionError | of.HTTPClientError | of.IncompleteReadError):
            raise ConnectorError("its server cannot be reached, or ended the connection") from None
        if isinstance(error, ResponseParserError | KeyError | ValueError | TypeError | OverflowError):
            raise ConnectorError("its server sent what is no answer of S3") from None
        raise ConnectorError(f"botocore failed with {type(error).__name__}") from None

    def _answered(self, error: Any) -> None:
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if self._of_object and (code in ("NoSuchKey", "404") or (status == 404 and code != "NoSuchBucket")):
            raise Unreadable("gone since it was listed") from None
        if self._of_object and code == "InvalidObjectState":
            raise Unreadable("archived; restore it to have it read") from None
        if self._of_object and status == 403:
            raise Unreadable("its server refuses it: the keys may list it and not read it") from None
        if (reason := _REASONS.get(code) or _REASONS.get(str(status))) is not None:
            raise ConnectorError(reason) from None
        raise ConnectorError(f"its server answers with an error (HTTP {status})") from None


# ---- values -------------------------------------------------------------------------------------------------------


def _endpoint(url: str) -> str:
    """The address of a server. Raises ValueError, whose text does not repeat it: it may hold a password."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises ValueError
    except ValueError:
        raise ValueError("endpoint_url is not an address") from None
    if any(character <= " " or character == "\x7f" for character in url):
        raise ValueError("endpoint_url holds a space or a control character")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("endpoint_url must be http://HOST or https://HOST")
    if "@" in parts.netloc:
        raise ValueError("endpoint_url holds a user or password; give access_key_id and secret_access_key")
    if parts.query or parts.fragment:
        raise ValueError("endpoint_url must have neither ? nor #")
    return url


def _moment(value: object) -> str | None:
    try:
        return from_timestamp(value.timestamp()) if isinstance(value, datetime) else None
    except OverflowError:  # it has a time zone, which moves it beyond the year 9999
        return None


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


CONNECTOR = S3Connector

"""Servers of S3 for tests: moto and versitygw in processes of their own, and one that answers what a test says."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

KEYS = {"access_key_id": "test-id", "secret_access_key": "t3st-secret-key"}

_FUZZERS = Path(__file__).resolve().parents[1] / ".fuzzers/bin"
VERSITYGW_MISSING = (
    "versitygw is not installed: "
    "GOBIN=$PWD/.fuzzers/bin go install github.com/versity/versitygw/cmd/versitygw@v1.8.0 (five minutes)"
)

_MOTO = """
import sys
import os
os.environ["MOTO_S3_DEFAULT_MAX_KEYS"] = "3"  # a listing has several pages
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def moto() -> Iterator[str]:
    """The address of a running server of moto's."""
    process = subprocess.Popen(
        [sys.executable, "-c", _MOTO],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def versitygw_path() -> str | None:
    """Where versitygw is: on PATH, or in `.fuzzers/bin`."""
    return shutil.which("versitygw", path=os.pathsep.join((os.environ["PATH"], str(_FUZZERS))))


@contextmanager
def versitygw() -> Iterator[str]:
    """The address of a running versitygw, whose objects are files of a folder."""
    program = versitygw_path()
    assert program is not None, VERSITYGW_MISSING
    with tempfile.TemporaryDirectory() as folder, socket.socket() as reserved:
        for name in ("objects", "metadata"):
            os.mkdir(f"{folder}/{name}")
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))  # not listening: another socket with the option may
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        process = subprocess.Popen(
            [program, "--quiet", "--port", address, "--keep-alive", "posix", "--sidecar", f"{folder}/metadata",
             f"{folder}/objects"],
            env={"PATH": os.environ["PATH"], "ROOT_ACCESS_KEY": KEYS["access_key_id"],
                 "ROOT_SECRET_KEY": KEYS["secret_access_key"]},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _wait_for(process, address)
            yield f"http://{address}"
        finally:
            process.kill()
            process.wait()


def _wait_for(process: "subprocess.Popen[bytes]", address: str) -> None:
    host, _, port = address.partition(":")
    for _ in range(200):
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
            return
        assert process.poll() is None, f"versitygw ended with status {process.returncode}"
        time.sleep(0.05)
    raise AssertionError("versitygw does not answer")


@cache
def client(endpoint: str) -> Any:
    """botocore's own client, to fill a bucket: 0.2 s of CPU."""
    from botocore.session import get_session

    return get_session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=endpoint,
        aws_access_key_id=KEYS["access_key_id"],
        aws_secret_access_key=KEYS["secret_access_key"],
    )


class Server(ThreadingHTTPServer):
    """A server that answers a listing and objects from two functions, which may lie.

    `listing` is called with the token of a page, `object_` with a key; each returns a body, or a whole answer: status,
    headers, body. `requests` are the paths that came, `seen` their headers.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.listing: Callable[[str], Answer] = lambda token: page({"a.md": 1, "b.md": 1})
        self.object_: Callable[[str], Answer] = lambda key: b"x"
        self.requests: list[str] = []
        self.seen: list[Mapping[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


Answer = bytes | tuple[int, Mapping[str, str], bytes | Iterator[bytes]]


def page(objects: Mapping[str, int | str], following: str | None = None, **more: str) -> bytes:
    """One page of a listing, of keys and sizes."""
    fields = {"LastModified": "2026-01-02T03:04:05.000Z", "ETag": '"e1"', "StorageClass": "STANDARD"} | more
    inner = "".join(f"<{name}>{value}</{name}>" for name, value in fields.items())
    contents = "".join(
        f"<Contents><Key>{quote(key)}</Key><Size>{size}</Size>{inner}</Contents>" for key, size in objects.items()
    )
    rest = f"<NextContinuationToken>{following}</NextContinuationToken>" if following else ""
    return (
        f'<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<IsTruncated>{str(following is not None).lower()}</IsTruncated><EncodingType>url</EncodingType>{rest}"
        f"{contents}</ListBucketResult>"
    ).encode()


def failure(status: int, code: str) -> Answer:
    text = f"<Error><Code>{code}</Code><Message>secret.internal.example said no</Message></Error>"
    return status, {}, text.encode()


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        self.server.seen.append(dict(self.headers))
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        if "list-type" in query:
            answer = self.server.listing(query.get("continuation-token", [""])[0])
        else:
            answer = self.server.object_(unquote(parts.path.split("/", 2)[-1]))
        status, headers, body = (200, {}, answer) if isinstance(answer, bytes) else answer
        self.send_response(status)
        if isinstance(body, bytes):
            self.send_header("Content-Length", headers.get("Content-Length", str(len(body))))
        for name, value in headers.items():
            if name != "Content-Length" or not isinstance(body, bytes):
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for piece in (body,) if isinstance(body, bytes) else body:
            try:
                self.wfile.write(piece)
            except OSError:
                return

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def served() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

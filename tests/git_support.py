"""Repositories for tests, made by git itself, and a server of them over HTTP."""

import base64
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_COMMITTER_NAME": "Committer",
    "GIT_COMMITTER_EMAIL": "c@example.com",
    "GIT_AUTHOR_EMAIL": "a@example.com",
}


class Repository:
    """A repository with a work tree, whose commits are a minute apart."""

    def __init__(self, path: Path, *, filters: bool = True) -> None:
        self.path = path
        self.minute = 0
        path.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")
        if filters:
            self.git("config", "uploadpack.allowFilter", "true")
        self.git("config", "http.receivepack", "false")

    @property
    def url(self) -> str:
        return f"file://{self.path}"

    def git(self, *args: str, author: str = "Ann") -> str:
        when = f"2026-01-01T00:{self.minute // 60:02}:{self.minute % 60:02}Z"
        names = {"GIT_AUTHOR_NAME": author, "GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when}
        done = subprocess.run(
            ["git", *args], cwd=self.path, env=_ENVIRONMENT | names, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def write(self, name: str, text: str | bytes) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    def commit(self, author: str = "Ann", /, **files: str | bytes) -> str:
        """Write files (`a_md` is a.md, `docs__a_md` docs/a.md) and commit everything. Returns the commit."""
        self.minute += 1
        for name, text in files.items():
            self.write(name.replace("__", "/").replace("_", "."), text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "a commit", author=author)
        return self.git("rev-parse", "HEAD")


class Server(ThreadingHTTPServer):
    """`git http-backend` over HTTP. `password` is wanted when set; `requests` are the headers that came."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.password: str | None = None
        self.redirect: str | None = None
        self.requests: list[dict[str, str]] = []
        self.stalled = threading.Event()
        self.stall = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(body)

    def _answer(self, body: bytes) -> None:
        self.server.requests.append(dict(self.headers))
        if self.server.stall:
            self.server.stalled.set()
            self.rfile.read(1)  # until the client is gone
            return
        if self.server.redirect:
            self.send_response(302)
            self.send_header("Location", self.server.redirect + self.path)
            self.end_headers()
            return
        if self.server.password is not None:
            login = base64.b64encode(f"x-access-token:{self.server.password}".encode()).decode()
            if self.headers.get("Authorization") != f"Basic {login}":
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="git"')
                self.end_headers()
                return
        path, _, query = self.path.partition("?")
        environment = _ENVIRONMENT | {
            "GIT_PROJECT_ROOT": str(self.server.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REMOTE_ADDR": "127.0.0.1",
        }
        done = subprocess.run(["git", "http-backend"], input=body, env=environment, capture_output=True, check=False)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
        self.send_response(int(headers.pop("Status", "200").split()[0]))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[Server]:
    """The repositories below a folder, served."""
    server = Server(folder)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""Sources of each connector whose documents a test changes: real folders, repositories, servers and scripts."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from git_support import Repository
from s3_support import KEYS, client, moto
from web_support import Page, page, site, sitemap

# Reads a log of events, a page at a time, and keeps the number of the last one as its checkpoint.
_SCAN = """
connector = {}
function connector.scan(config, context)
    local n = context.checkpoint or 0
    while true do
        local answer = http.get(config.base .. "/events/" .. n // 20 .. ".json")
        if answer.status == 404 then break end
        for place, event in ipairs(answer.json) do
            if place > n % 20 then
                if event.gone then context.deleted(event.id) else
                    context.emit({ source_id = event.id, body = event.body }, n - n % 20 + place)
                end
            end
        end
        n = n - n % 20 + #answer.json
        if #answer.json < 20 then break end
    end
    return { checkpoint = n }
end
"""
_EVENTS = 20


@dataclass
class Source:
    """A source of documents: its table of the configuration, and how it is changed (None: the document is gone).

    `changed` is called after some changes. `extra` are documents that the source has of its own.
    """

    table: str
    put: Callable[[int, str | None], None]
    changed: Callable[[], object] = lambda: None
    extra: int = 0


def _name(n: int) -> str:
    return f"d{n % 7}/f{n}"


@contextmanager
def filesystem(folder: Path) -> Iterator[Source]:
    def put(n: int, body: str | None) -> None:
        file = folder / f"{_name(n)}.md"
        file.parent.mkdir(exist_ok=True)
        file.unlink(missing_ok=True) if body is None else file.write_text(body)

    yield Source(f'[connectors.filesystem.x]\nroot = "{folder}"\n', put)


@contextmanager
def git(folder: Path) -> Iterator[Source]:
    repository = Repository(folder / "repository")

    def put(n: int, body: str | None) -> None:
        if body is None:
            (repository.path / f"{_name(n)}.md").unlink(missing_ok=True)
        else:
            repository.write(f"{_name(n)}.md", body)

    yield Source(f'[connectors.git.x]\nurl = "{repository.url}"\n', put, repository.commit)


@contextmanager
def s3(folder: Path, server: Callable[[], AbstractContextManager[str]] = moto) -> Iterator[Source]:
    with server() as endpoint:
        own = client(endpoint)
        own.create_bucket(Bucket="papers")

        def put(n: int, body: str | None) -> None:
            if body is None:
                own.delete_object(Bucket="papers", Key=f"{_name(n)}.md")
            else:
                own.put_object(Bucket="papers", Key=f"{_name(n)}.md", Body=body.encode())

        keys = "".join(f'{name} = "{value}"\n' for name, value in KEYS.items())
        yield Source(f'[connectors.s3.x]\nbucket = "papers"\nendpoint_url = "{endpoint}"\n{keys}', put)


@contextmanager
def web(folder: Path) -> Iterator[Source]:
    """A site with ETags: half of its pages are linked, the others in its sitemap; robots.txt forbids one that is."""
    with site() as server:
        there: set[int] = set()

        def put(n: int, body: str | None) -> None:
            there.discard(n) if body is None else there.add(n)
            if body is None:
                server.pages.pop(f"/{_name(n)}", None)
            else:
                server.pages[f"/{_name(n)}"] = page(f"Document {n}", text=body)

        def changed() -> None:
            listed = [f"/{_name(n)}" for n in sorted(there)]
            server.pages["/"] = page("Home", "/private", *listed[::2])
            server.pages["/sitemap.xml"] = sitemap(*(server.url + path for path in listed[1::2]))

        server.pages["/robots.txt"] = Page("User-agent: *\nDisallow: /private\n", "text/plain")
        server.pages["/private"] = page("Private", text="not for robots")
        keys = f'urls = ["{server.url}/", "{server.url}/sitemap.xml"]\nfollow = true\ndelay_s = 0.0\n'
        yield Source(f"[connectors.web.x]\n{keys}", put, changed, extra=1)


@contextmanager
def script(folder: Path) -> Iterator[Source]:
    """A script that follows the events of an API."""
    log: list[dict[str, Any]] = []

    def put(n: int, body: str | None) -> None:
        log.append({"id": f"f{n}", "gone": True} if body is None else {"id": f"f{n}", "body": body})

    with site() as server:

        def changed() -> None:
            for first in range(0, len(log), _EVENTS):
                body = json.dumps(log[first : first + _EVENTS])
                server.pages[f"/events/{first // _EVENTS}.json"] = Page(body, "application/json")

        (folder / "scan.lua").write_text(_SCAN)
        host = server.url.removeprefix("http://")
        keys = f'base = "{server.url}"\nallow_hosts = ["{host}"]\nlimits = {{ http_bytes = 67108864 }}\n'
        yield Source(f'[connectors.script.x]\npath = "{folder}/scan.lua"\n{keys}', put, changed)


KINDS: Mapping[str, Callable[[Path], AbstractContextManager[Source]]] = {
    "filesystem": filesystem, "git": git, "s3": s3, "web": web, "script": script,
}  # fmt: skip

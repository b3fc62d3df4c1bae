"""In a mount namespace of its own: `data` is a tiny disk, which fills up and has room again. Prints what commands said.

python full_disk.py PROJECT blocks|inodes fresh|used|open
"""

import contextlib
import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import trio
import warm_start
import warm_zygote
from every_command import begin

DISK = {"blocks": "size=24m", "inodes": "size=24m,nr_inodes=40"}
# Each writes to the disk, in an order in which each has what it needs.
WRITING = (
    "init", "sync all", "tenant create acme", "key create acme", "secret set acme TOKEN --host api.example.com",
    "agent publish agent --tenant acme", "tool publish tool --tenant acme", "tenant change acme --weight 2",
    "tenant export acme -o data/acme.tar", "tenant backup data/copies", "serve --bind 127.0.0.1:0",
)  # fmt: skip
# Enough to stay behind a full disk: one that is read and written again must not find room by chance.
WORDS = " ".join(f"word{number}" for number in range(60_000))


def command(words: str) -> "dict[str, Any]":
    from cli.application import run

    sys.stdin = SimpleNamespace(isatty=lambda: False, buffer=io.BytesIO(b"value"))  # type: ignore[assignment]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words.split())
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def served(words: str) -> "dict[str, Any]":
    """How a server starts: it is ended as soon as it listens."""
    with warm_start.Popen(
        [sys.executable, "-m", "cli.main", *words.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "http://" in line:
                process.terminate()
                break
        _, err = process.communicate(timeout=60)
    return {"code": process.returncode, "out": "", "err": err}


def fill_blocks() -> None:
    with open("data/filler", "wb", buffering=0) as file:
        for size in (65536, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def fill_inodes() -> None:
    os.makedirs("data/filler.d", exist_ok=True)
    try:
        for number in range(1000):
            open(f"data/filler.d/{number}", "w").close()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def make_room() -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink("data/filler")
    if os.path.isdir("data/filler.d"):
        for name in os.listdir("data/filler.d"):
            os.unlink(f"data/filler.d/{name}")
        os.rmdir("data/filler.d")


async def while_open(fill: Callable[[], None], found: "list[dict[str, Any]]") -> None:
    """What a server does that has everything open already when the disk fills up."""
    from agents.service import open_service
    from cli.scripts.package import read_package
    from cli.scripts.publish import _console
    from engine.config import load_config
    from engine.errors import Problem
    from engine.run import Usage
    from knowledge.sqlite.store import open_store
    from knowledge.store import Batch, NewDocument, StoreError
    from sandbox.wire.outcome import Outcome

    loaded = load_config(None, environ={}, cwd=Path.cwd())
    async with open_service(loaded) as service, open_store(loaded.config.db.path) as store:
        control = service.control
        await control.tenants.create("acme", actor="cli")
        acme = await control.tenants.for_runs("acme")
        documents = [NewDocument(source_id=f"{n}", body=WORDS, chunks=(WORDS,), digest="d") for n in range(3)]
        packages = {kind: read_package(Path(kind)) for kind in ("agent", "tool")}
        console, publish = _console(acme), service.publishing.publish
        doings: dict[str, Callable[[], Awaitable[object]]] = {
            "key": lambda: control.keys.create("acme", actor="cli"),
            "tenant": lambda: control.tenants.change("acme", weight=3, actor="cli"),
            "secret": lambda: control.secrets.set("acme", "TOKEN", "v" * 9000, ["a.example"], actor="cli"),
            "agent": lambda: publish(acme, console, "agent", "greeter", packages["agent"]),
            "tool": lambda: publish(acme, console, "tool", "counter", packages["tool"]),
            "usage": service.usage.flush,
            "documents": lambda: store.apply(Batch(source="filesystem:docs", upserts=documents)),
        }

        async def tried(name: str) -> "dict[str, Any]":
            if name == "usage":
                service.engine.book.note(acme, "agent:a", Outcome.OK, Usage())
            try:
                await doings[name]()
            except (Problem, StoreError) as error:
                return {"code": error.code.value if isinstance(error, Problem) else "store", "err": str(error)}
            return {"code": 0, "err": ""}

        for name in doings:
            # A log that was emptied is written from its beginning, and takes no room that it has not yet.
            await control._database.outside(lambda db: db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE))
            fill()
            full = await tried(name)
            make_room()
            found.append({"words": name, "full": full, "room": await tried(name)})


def main(project: Path, kind: str, state: str) -> None:
    os.chdir(project)
    begin(project)
    os.mkdir("data")
    warm_zygote.ready()
    subprocess.run(["mount", "-t", "tmpfs", "-o", DISK[kind], "none", "data"], check=True)
    fill: Callable[[], None] = fill_blocks if kind == "blocks" else fill_inodes
    found: list[dict[str, Any]] = []
    if state == "open":
        trio.run(while_open, fill, found)
        json.dump(found, sys.stdout)
        return
    if state == "used":
        for words in ("init", "sync all", "tenant list"):
            assert command(words)["code"] == 0
        Path("docs/large.md").write_text(WORDS)
    for words in WRITING:
        does = served if words.startswith("serve") else command
        fill()
        full = does(words)
        make_room()
        found.append({"words": words, "full": full, "room": does(words)})
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

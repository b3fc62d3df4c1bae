"""Published versions of a tenant that is moved: the export is a stranger's file until it was looked at."""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from agents_support import Project, problem
from publish_support import package
from test_publishing import ACME, publish, system
from test_publishing_costs import READS

from agents.publishing.manifest import parse_package
from agents.service import Service
from control.moving import _plain, export_tenant, import_tenant
from control.versions.records import head_of
from control.versions.rows import active as active_versions
from engine.errors import Code

Open = Callable[..., AbstractAsyncContextManager[Service]]


def _changed(file: Path, change: Callable[[Any], None]) -> None:
    with tarfile.open(file) as tar:
        content = tar.extractfile("tenant.json")
        assert content is not None
        everything = json.load(content)
    change(everything["tables"])
    text = json.dumps(everything).encode()
    with tarfile.open(file, "w") as tar:
        member = tarfile.TarInfo("tenant.json")
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text))


async def _export(service: Service, file: Path) -> None:
    db = service.loaded.config.db.path
    await service.control.tenants.create("acme", actor="cli")
    await publish(service, READS, "reader", tenant=ACME)
    await publish(service, package("alone"), "alone", tenant=ACME)
    await export_tenant(service.control, db, "acme", file, actor="cli")
    await service.control.tenants.delete("acme", actor="cli")
    assert await service.control._database.read(lambda db: db.execute("SELECT count(*) FROM heads").get) == 0


def _digests(tables: Any, digest: str) -> None:
    for table in ("packages", "heads", "versions"):
        at = tables[table]["columns"].index("digest")
        for row in tables[table]["rows"][:1]:
            row[at] = digest


def _column(tables: Any, table: str, name: str, value: Any) -> None:
    tables[table]["rows"][0][tables[table]["columns"].index(name)] = value


def _no_content(tables: Any) -> None:
    text = b'{"files": 5}'
    _column(tables, "packages", "content", _plain([(text,)])[0][0])
    _column(tables, "packages", "size", len(text))
    _column(tables, "packages", "digest", hashlib.sha256(text).hexdigest())


@pytest.mark.parametrize(
    "change",
    [
        lambda tables: _digests(tables, "/etc"),
        lambda tables: _digests(tables, "../.."),
        lambda tables: _digests(tables, "0" * 64),
        lambda tables: _column(tables, "packages", "size", 1),
        lambda tables: _column(tables, "packages", "content", "text"),
        lambda tables: tables["packages"].pop("columns"),
        _no_content,
    ],
)
async def test_a_package_that_is_not_what_its_digest_says_is_not_imported(
    project: Project, opened: Open, tmp_path: Path, change: Callable[[Any], None]
) -> None:
    project.configure("[tenants]\nenabled = true\n")
    async with opened() as service:
        await _export(service, tmp_path / "acme.tar")
        _changed(tmp_path / "acme.tar", change)
        async with problem(Code.BAD_REQUEST, "a package is not what its digest says"):
            await import_tenant(service.control, service.loaded.config.db.path, tmp_path / "acme.tar", actor="cli")
        assert [tenant.name for tenant in await service.control.tenants.all()] == ["default"]


@pytest.mark.parametrize("heads", ["forged", "none", "as they were"])
async def test_heads_are_made_anew_by_an_import(project: Project, opened: Open, tmp_path: Path, heads: str) -> None:
    def change(tables: Any) -> None:
        if heads == "forged":
            _column(tables, "heads", "head", _plain([(b'{"root": "agent"}',)])[0][0])
        elif heads == "none":
            del tables["heads"]

    project.configure("[tenants]\nenabled = true\n")
    async with opened() as service:
        await _export(service, tmp_path / "acme.tar")
        _changed(tmp_path / "acme.tar", change)
        await import_tenant(service.control, service.loaded.config.db.path, tmp_path / "acme.tar", actor="cli")
        assert await system(service, "reader", ACME) == "big"
        assert await system(service, "alone", ACME) == "alone for you"
        active = await service.control._database.read(lambda db: active_versions(db, "acme"))
        assert [each.size < 1_000 for each in active] == [True, True]


@pytest.mark.parametrize("body", [READS, package("größe", config={"a": [1, 2.5, None, "ü"]}), package()])
def test_a_head_that_is_made_of_the_content_is_that_of_the_package(body: Any) -> None:
    made = parse_package("agent", "helper", {**body, "files": {**body["files"], "ä.md": "ö"}})
    assert head_of(made.content) == made.head
    assert made.head is not None
    assert head_of(made.head) is None

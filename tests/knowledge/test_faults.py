"""What SQLite's errors mean: every row of the table, and what only the file system knows."""

import errno
import os
import resource
from pathlib import Path
from types import SimpleNamespace

import apsw
import psutil
import pytest

from knowledge.access import EVERYTHING
from knowledge.sqlite import store as sqlite
from knowledge.sqlite.store import open_store
from knowledge.store import StoreError
from storage import faults
from storage.faults import Fault, Named, answer_text, fault_of, opening_text

KNOWLEDGE = sqlite.NAMED
CONTROL = Named("the control store", "[tenants] store", "restore it from a back-up", "nothing was changed")
ROWS = faults._TABLE


def test_every_error_of_sqlite_has_one_meaning_and_every_fault_but_one_a_row() -> None:
    errors = [kind for row in ROWS for kind in row.errors]
    numbers = [number for row in ROWS for number in row.errnos]
    assert len(set(errors)) == len(errors)
    assert len(set(numbers)) == len(numbers)
    assert {row.fault for row in ROWS} == set(Fault) - {Fault.OTHER}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.fault.value)
def test_a_fault_is_found_by_its_errors_and_by_the_errno_of_a_vague_one(row: faults._Told) -> None:
    for kind in row.errors:
        assert fault_of(kind("x")) is row.fault
    for number in row.errnos:
        for kind in (apsw.IOError, apsw.CantOpenError):
            error = kind("x")
            error.system_errno = number
            assert fault_of(error) is row.fault


@pytest.mark.parametrize("store", [KNOWLEDGE, CONTROL], ids=lambda store: store.noun)
@pytest.mark.parametrize("fault", Fault)
def test_every_fault_is_told_with_the_store_and_clients_are_shown_no_path(fault: Fault, store: Named) -> None:
    opening = opening_text(fault, store, Path("/srv/data/x.sqlite"), apsw.SQLError("near x"))
    answer = answer_text(fault, store, apsw.SQLError("near x"))
    for text in (opening, answer):
        assert not set("{}\n") & set(text)
        assert "near x" not in text
    assert "/srv/data/x.sqlite" in opening or fault is Fault.NO_DATABASE
    assert "/" not in answer.replace("ulimit -", "")
    assert store.noun in answer
    if store is CONTROL and fault not in (Fault.LOCKED, Fault.DAMAGED, Fault.NO_DATABASE, Fault.CLOSED, Fault.TOO_BIG):
        assert fault is Fault.OTHER or answer.endswith("; nothing was changed")


@pytest.mark.parametrize(
    ("disk", "fault"),
    [
        ({}, Fault.OTHER),
        ({"f_bavail": 3, "f_bfree": 3}, Fault.DISK_FULL),
        ({"f_favail": 0}, Fault.DISK_FULL),
        ({"f_files": 0, "f_favail": 0}, Fault.OTHER),  # a file system that does not count them, such as btrfs
        ({"f_blocks": 0, "f_bavail": 0, "f_bfree": 0}, Fault.OTHER),  # nor blocks, such as some of FUSE
    ],
)
def test_what_fts5_calls_an_error_of_sql_is_a_full_disk_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: dict[str, int], fault: Fault
) -> None:
    whole = {"f_flag": 0, "f_frsize": 4096, "f_blocks": 9999, "f_bavail": 999, "f_bfree": 999} | {
        "f_files": 99, "f_favail": 9,
    }  # fmt: skip
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(**whole | disk))
    assert fault_of(apsw.SQLError("SQL logic error"), tmp_path / "store.sqlite") is fault


def test_a_read_only_file_system_is_told_apart_from_missing_permissions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "store.sqlite"
    assert fault_of(apsw.CantOpenError("x"), file) is Fault.FORBIDDEN
    found = os.statvfs(tmp_path)
    read_only = {name: getattr(found, name) for name in dir(found) if name.startswith("f_")} | {"f_flag": os.ST_RDONLY}
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(**read_only))
    for kind in (apsw.CantOpenError, apsw.ReadOnlyError, apsw.IOError):
        assert fault_of(kind("x"), file) is Fault.READ_ONLY_DISK


async def test_too_few_descriptors_are_called_that_and_with_enough_the_next_one_opens(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    async with open_store(path, create=True):
        pass
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    told = []
    for spare in range(12):
        resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds() + spare, hard))
        try:
            async with open_store(path):
                break
        except StoreError as error:
            told.append(str(error))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert told
    assert all("permissions" not in text for text in told), told
    assert any("too many files are open" in text for text in told), told
    async with open_store(path) as store:
        assert (await store.stats(EVERYTHING)).documents == 0


def test_an_errno_that_is_none_of_the_table_says_nothing() -> None:
    error = apsw.IOError("x")
    error.system_errno = errno.ENOENT
    assert fault_of(error) is Fault.DISK_FAILED

"""Export, import and back-up of tenants, while the engine serves them.

An export is a tar with `tenant.json` (every row of the control store that is the tenant's; keys as digests and secrets
as sealed, so that both work where `secrets_key` is the same), `knowledge.sqlite`, `kv.jsonl`, the keys of its scripts
with their values, one a line, and `teams.sqlite`. Each is a snapshot, although other connections write meanwhile:
SQLite's backup copies the knowledge. Teams are imported by their events alone.
"""

import base64
import binascii
import errno
import hashlib
import io
import json
import os
import secrets
import tarfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import msgspec
import trio

from control import tables
from control.files import knowledge_path, kv_path
from control.records import check_tenant_name
from control.store import ControlStore
from control.versions.records import head_of
from engine.errors import Code, Problem
from engine.names import valid_name
from engine.values import encode_value, is_plain
from knowledge.access import EVERYTHING
from knowledge.sqlite.store import open_store
from knowledge.store import StoreError
from storage.kv import KvUnavailable, read_keys, write_keys
from storage.kv_rows import Entry
from storage.lanes import rows
from storage.teams.moving import make_anew
from storage.teams.store import teams_path
from storage.teams.tables import NotTeams

FORMAT = 1
_ROWS, _KNOWLEDGE, _KEYS, _TEAMS = "tenant.json", "knowledge.sqlite", "kv.jsonl", "teams.sqlite"
_MAX_ROWS_BYTES = 512 * 1024 * 1024
_PAGES_A_STEP = 4096
_CHUNK = 1024 * 1024


# ---- out --------------------------------------------------------------------------------------------------------


async def export_tenant(control: ControlStore, db_path: Path, tenant: str, to: Path, *, actor: str) -> None:
    """Write all data of a tenant into a new tar, readable by its owner only. The tenant may be served meanwhile.

    Raises Problem: not_found; conflict, if the file exists; and OSError.
    """
    if await trio.to_thread.run_sync(to.exists):
        raise Problem(Code.CONFLICT, f"{to.name} exists already; an export never overwrites")

    def collect(db: apsw.Connection) -> dict[str, Any]:
        found = rows(db, "SELECT * FROM tenants WHERE name = ?", (tenant,))
        if not found or found[0][0] != tenant:
            raise Problem(Code.NOT_FOUND, f"there is no tenant {tenant[:64]!r}")
        held = {"tenants": {"columns": _columns(db, "tenants"), "rows": _plain(found)}}
        for table in tables.tenant_tables(db):
            found = rows(db, f'SELECT * FROM "{table}" WHERE tenant = ?', (tenant,))
            held[table] = {"columns": _columns(db, table), "rows": _plain(found)}
        return {"format": FORMAT, "tenant": tenant, "tables": held}

    everything = await control.audit.act(actor, "tenant.export", tenant, tenant, collect)
    text = json.dumps(everything).encode()
    await trio.to_thread.run_sync(_write_tar, to, text, db_path, tenant)


def _write_tar(to: Path, text: bytes, db_path: Path, tenant: str) -> None:
    knowledge = knowledge_path(db_path, tenant)
    beside = to.with_name(f".{to.name}.{secrets.token_hex(6)}")
    copied = beside.with_name(beside.name + ".sqlite")
    lines = beside.with_name(beside.name + ".jsonl")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
            _add(tar, _ROWS, len(text), io.BytesIO(text))
            if knowledge.exists():
                copy_database(knowledge, copied)
                with copied.open("rb") as database:
                    _add(tar, _KNOWLEDGE, copied.stat().st_size, database)
            if (teams := teams_path(db_path, tenant)).exists():
                copied.unlink(missing_ok=True)
                copy_database(teams, copied)
                with copied.open("rb") as database:
                    _add(tar, _TEAMS, copied.stat().st_size, database)
            if _export_keys(kv_path(db_path), tenant, lines):
                with lines.open("rb") as keys:
                    _add(tar, _KEYS, lines.stat().st_size, keys)
        os.link(beside, to)  # fails if the name was taken meanwhile
    finally:
        beside.unlink(missing_ok=True)
        copied.unlink(missing_ok=True)
        lines.unlink(missing_ok=True)


def _add(tar: tarfile.TarFile, name: str, size: int, content: Any) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    tar.addfile(member, content)


def copy_database(source: Path, to: Path) -> None:
    """Copy a snapshot of a SQLite file that others may write to. Only its owner may read `to`. Raises OSError."""
    to.touch(mode=0o600)
    reading = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)
    writing = apsw.Connection(str(to))
    try:
        reading.set_busy_timeout(5_000)
        with writing.backup("main", reading, "main") as backup:
            while not backup.done:
                backup.step(_PAGES_A_STEP)
        writing.pragma("journal_mode", "delete")  # one file, without a log beside it
    except apsw.FullError:  # SQLite's own text is "not an error": the system call that failed is not in it
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(to)) from None
    finally:
        writing.close()
        reading.close()


async def back_up(control: ControlStore, db_path: Path, folder: Path, *, actor: str) -> list[str]:
    """Copy the control store, all knowledge, the keys of scripts and all teams into a new folder; returns the names of
    the copies.

    To restore, put the copies at the paths that the configuration names. Raises Problem conflict if the folder exists,
    and OSError.
    """
    names = [record.name for record in await control.tenants.all()]
    await trio.to_thread.run_sync(_new_folder, folder)
    await control.audit.act(actor, "backup", folder.name, None, lambda db: None)
    written = []
    keys = kv_path(db_path)
    sources = [(control.path, control.path.name), (keys, keys.name)]
    for name in names:
        path = knowledge_path(db_path, name)
        sources.append((path, path.name if path == db_path else f"tenants/{path.name}"))
        sources.append((teams_path(db_path, name), f"teams/{name}.sqlite"))
    for source, name in sources:
        if await trio.to_thread.run_sync(source.exists):
            target = folder / name
            await trio.to_thread.run_sync(partial(target.parent.mkdir, exist_ok=True, mode=0o700))
            await trio.to_thread.run_sync(copy_database, source, target)
            written.append(name)
    return written


def _new_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise Problem(Code.CONFLICT, f"{folder.name} exists already; a back-up never overwrites") from None


# ---- in ---------------------------------------------------------------------------------------------------------


async def import_tenant(control: ControlStore, db_path: Path, file: Path, *, actor: str) -> str:
    """Create a tenant from an export; returns its name. Keys, secrets and usage are imported, the audit log is not.

    The tenant is suspended until everything is in place: an import that stops midway leaves a suspended tenant to
    delete. Raises Problem: bad_request (not an export, or not consistent), conflict (the tenant, or one of its keys,
    exists here), unavailable (its secrets do not open with the secrets key of this machine), and OSError.
    """
    folder = db_path.parent / "tenants"
    await trio.to_thread.run_sync(partial(folder.mkdir, parents=True, exist_ok=True))
    beside = folder / f".import.{secrets.token_hex(6)}"
    lines, teams = beside.with_name(beside.name + ".jsonl"), beside.with_name(beside.name + ".teams")
    made = teams.with_name(teams.name + ".new")
    try:
        places = {_KNOWLEDGE: beside, _KEYS: lines, _TEAMS: teams}
        everything, members = await trio.to_thread.run_sync(_read_tar, file, places)
        name, has_knowledge = _name_of(everything), _KNOWLEDGE in members
        if has_knowledge:
            await _check_knowledge(beside)
        if _KEYS in members:
            await _check_lines(lines)
        if _TEAMS in members:
            await _make_teams(teams, made)
        held = await trio.to_thread.run_sync(_with_heads, name, everything["tables"])
        state = "active"

        def insert(db: apsw.Connection) -> None:
            nonlocal state
            if rows(db, "SELECT 1 FROM tenants WHERE name = ?", (name,)):
                raise Problem(Code.CONFLICT, f"tenant {name!r} exists already; delete it before the import")
            _insert(db, name, held)
            state = rows(db, "SELECT state FROM tenants WHERE name = ?", (name,))[0][0]
            db.execute("UPDATE tenants SET state = 'suspended' WHERE name = ?", (name,))

        await control.audit.act(actor, "tenant.import", name, name, insert)
        try:
            await control.secrets.opened(name)
            if has_knowledge:
                await trio.to_thread.run_sync(os.replace, beside, knowledge_path(db_path, name))
            if _KEYS in members:
                await trio.to_thread.run_sync(_import_keys, kv_path(db_path), name, lines)
            if _TEAMS in members:
                await trio.to_thread.run_sync(_place, made, teams_path(db_path, name))
        except BaseException:
            with trio.CancelScope(shield=True):
                await control.tenants.delete(name, actor=actor)
            raise
        await control.tenants.set_state(name, "active" if state == "active" else "suspended", actor=actor)
        return name
    finally:
        await trio.to_thread.run_sync(partial(beside.unlink, missing_ok=True))
        for each in (lines, teams, made):
            await trio.to_thread.run_sync(partial(each.unlink, missing_ok=True))


def _read_tar(file: Path, places: Mapping[str, Path]) -> tuple[dict[str, Any], set[str]]:
    """The content of an export; the members in `places` are written there, if it has them. Any other is an error."""
    try:
        with tarfile.open(file, mode="r:") as tar:
            return _members(tar, places)
    except (tarfile.TarError, EOFError, UnicodeDecodeError, ValueError, RecursionError):
        raise _no_export("it is not a tar with tenant.json") from None


def _members(tar: tarfile.TarFile, places: Mapping[str, Path]) -> tuple[dict[str, Any], set[str]]:
    everything: Any = None
    found: set[str] = set()
    for member in tar:
        content = tar.extractfile(member) if member.isreg() else None
        if content is None or (member.name != _ROWS and member.name not in places):
            raise _no_export(f"it holds {member.name[:80]!r}")
        if member.name == _ROWS:
            if member.size > _MAX_ROWS_BYTES:
                raise _no_export(f"tenant.json is larger than {_MAX_ROWS_BYTES} bytes")
            everything = json.load(content)
        else:
            place = places[member.name]
            descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as copy:
                while part := content.read(_CHUNK):
                    copy.write(part)
            found.add(member.name)
    if not isinstance(everything, dict) or everything.get("format") != FORMAT:
        raise _no_export(f"tenant.json is missing, or not of format {FORMAT}")
    return everything, found


async def _check_knowledge(path: Path) -> None:
    try:
        async with open_store(path, readonly=True) as store:
            await store.stats(EVERYTHING)
    except StoreError:
        raise _no_export("knowledge.sqlite is not a knowledge store of this version") from None
    for ending in ("-wal", "-shm"):
        await trio.to_thread.run_sync(partial(path.with_name(path.name + ending).unlink, missing_ok=True))


async def _check_lines(lines: Path) -> None:
    try:
        await trio.to_thread.run_sync(_check_keys, lines)
    except ValueError as wrong:
        raise _no_export(str(wrong)) from None


async def _make_teams(given: Path, made: Path) -> None:
    try:
        await trio.to_thread.run_sync(make_anew, given, made)
    except (NotTeams, apsw.Error) as wrong:
        why = wrong if isinstance(wrong, NotTeams) else "is damaged"
        raise _no_export(f"teams.sqlite {why}") from None
    finally:
        for ending in ("-wal", "-shm"):
            await trio.to_thread.run_sync(partial(given.with_name(given.name + ending).unlink, missing_ok=True))


def _place(made: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.replace(made, path)


def _no_export(why: str) -> Problem:
    return Problem(Code.BAD_REQUEST, f"the file is not an export of a tenant: {why}")


def _name_of(everything: Mapping[str, Any]) -> str:
    name, held = everything.get("tenant"), everything.get("tables")
    if not isinstance(name, str) or not isinstance(held, dict) or "tenants" not in held:
        raise _no_export("tenant.json names no tenant")
    return check_tenant_name(name)


def _with_heads(name: str, held: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of an export, with its heads computed again: only content that matches its digest may be called.

    A digest names a folder, and an approval is of this content: the file must not choose either.
    """
    heads = []
    packages = held.get("packages") or {}
    try:
        for row in packages.get("rows") or ():
            package = dict(zip(packages["columns"], row, strict=True))
            content, digest = _value(package["content"]), package["digest"]
            if hashlib.sha256(content).hexdigest() != digest or package["size"] != len(content):
                raise ValueError("another content")
            if (head := head_of(content)) is not None:
                heads.append([name, digest, *_plain([(head,)])[0]])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _no_export("a package is not what its digest says") from None
    return {**held, "heads": {"columns": ["tenant", "digest", "head"], "rows": heads}}


def _insert(db: apsw.Connection, name: str, held: Mapping[str, Any]) -> None:
    """Insert the rows. Every table, column and owner is checked: until then the file is not trusted."""
    known = ("tenants", *tables.tenant_tables(db))
    for table, found in held.items():
        if table not in known:
            raise _no_export(f"this version has no table {table[:40]!r}")
        columns = found.get("columns") if isinstance(found, dict) else None
        if not isinstance(columns, list) or not set(columns) <= set(_columns(db, table)):
            raise _no_export(f"{table} has other columns here")
        owner = "name" if table == "tenants" else "tenant"
        names = ", ".join(f'"{column}"' for column in columns)
        sql = f'INSERT INTO "{table}"({names}) VALUES ({", ".join("?" * len(columns))})'
        for row in found.get("rows") or ():
            whole = isinstance(row, list) and len(row) == len(columns)
            if not whole or dict(zip(columns, row, strict=True)).get(owner) != name:
                raise _no_export(f"a row of {table} is not the tenant's")
            try:
                db.execute(sql, [_value(each) for each in row])
            except apsw.ConstraintError:
                raise Problem(Code.CONFLICT, f"{table}: a row of the export belongs to another tenant here") from None
            except (TypeError, ValueError, binascii.Error):
                raise _no_export(f"a value of {table} is not valid") from None


def _columns(db: apsw.Connection, table: str) -> list[str]:
    return [name for (name,) in rows(db, "SELECT name FROM pragma_table_info(?)", (table,))]


def _plain(found: list[tuple[Any, ...]]) -> list[list[Any]]:
    """Rows as JSON holds them: bytes as `{"base64": ...}`."""
    return [
        [{"base64": base64.b64encode(each).decode()} if isinstance(each, bytes) else each for each in row]
        for row in found
    ]


def _value(each: Any) -> Any:
    if isinstance(each, dict):
        if set(each) != {"base64"}:
            raise ValueError("no bytes")
        return base64.b64decode(each["base64"], validate=True)
    if isinstance(each, list):
        raise ValueError("a list is no value of a row")
    return each


# ---- the keys of scripts ----------------------------------------------------------------------------------------

# What scripts may set (engine/bridge/kv.py), and a line with the worst of it: every byte escaped.
_KEY_BYTES, _VALUE_BYTES, _DEPTH = 512, 64 * 1024, 512
_LINE_BYTES = 1024 * 1024


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """One key. `space` is `agent:NAME` or `tool:NAME`, `expires_at` in seconds since the epoch."""

    space: str
    key: str
    value: Any
    expires_at: float | None = None


_decode = msgspec.json.Decoder(_Line).decode


def _export_keys(store: Path, tenant: str, to: Path) -> int:
    """Write the keys of a tenant into a new file, readable by its owner only; returns how many. Raises Problem."""
    to.touch(mode=0o600)
    count = 0
    with to.open("wb") as file:
        try:
            for space, key, entry in read_keys(store, tenant):
                line = _Line(space, key.decode(), msgspec.msgpack.decode(entry.value), entry.expires_at)
                file.write(msgspec.json.encode(line) + b"\n")
                count += 1
        except KvUnavailable as error:
            raise Problem(Code.UNAVAILABLE, str(error)) from None
    return count


def _check_keys(lines: Path) -> None:
    """Raises ValueError, with the line's number, for a file that no export has written."""
    for _ in _entries(lines):
        pass


def _import_keys(store: Path, tenant: str, lines: Path) -> int:
    """Set the keys of a tenant that has none; returns how many. Raises Problem, and ValueError as `_check_keys`."""
    try:
        return write_keys(store, tenant, _entries(lines), time.time())
    except KvUnavailable as error:
        raise Problem(Code.UNAVAILABLE, str(error)) from None


def _entries(lines: Path) -> Iterator[tuple[str, bytes, Entry]]:
    with lines.open("rb") as file:
        number = 0
        while line := file.readline(_LINE_BYTES + 1):
            number += 1
            try:
                yield _entry(line)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                raise ValueError(f"line {number} of kv.jsonl is not a key with its value") from None


def _entry(line: bytes) -> tuple[str, bytes, Entry]:
    if len(line) > _LINE_BYTES:
        raise ValueError
    found = _decode(line)
    root, _, name = found.space.partition(":")
    key = found.key.encode()
    if root not in ("agent", "tool") or not valid_name(name) or not 1 <= len(key) <= _KEY_BYTES:
        raise ValueError
    if found.value is None or not is_plain(found.value, _DEPTH):
        raise ValueError
    value = encode_value(found.value)
    if len(value) > _VALUE_BYTES:
        raise ValueError
    return found.space, key, Entry(value, 0, found.expires_at)

"""The path of the control store, and the files of tenants that lie outside it."""

import shutil
from contextlib import suppress
from pathlib import Path

from engine.config import Config
from engine.tenant import DEFAULT_TENANT
from knowledge.stores import remove_store, store_files, store_path
from storage.teams.store import teams_files, teams_folder


def control_path(config: Config) -> Path:
    """The file of the control store: `[tenants] store`, else beside the knowledge store (`engine.control.sqlite`)."""
    if config.tenants.store is not None:
        return config.tenants.store
    return config.db.path.with_name(f"{config.db.path.stem}.control.sqlite")


def knowledge_path(db_path: Path, tenant: str) -> Path:
    """The knowledge store of a tenant; `db_path` is `[db] path`. Raises ValueError for an invalid name."""
    return store_path(db_path, tenant)


def kv_path(db_path: Path) -> Path:
    """The file with the keys of all tenants' scripts (`engine.kv.sqlite`)."""
    return db_path.with_name(f"{db_path.stem}.kv.sqlite")


def packages_path(db_path: Path, tenant: str) -> Path:
    """The folder with the files of a tenant's published packages, for their scripts to read.

    Copies of what the control store holds: `engine.sqlite.packages` for `default`, `tenants/NAME.packages` for others.
    """
    if tenant == DEFAULT_TENANT.id:
        return db_path.with_name(f"{db_path.name}.packages")
    return db_path.parent / "tenants" / f"{tenant}.packages"


def tenant_files(db_path: Path, tenant: str) -> list[Path]:
    """Every existing file of a tenant: of its knowledge store, of its packages, and of its teams."""
    packages = packages_path(db_path, tenant)
    return [
        *store_files(knowledge_path(db_path, tenant)),
        *sorted(each for each in packages.rglob("*") if each.is_file()),
        *teams_files(db_path, tenant),
    ]


def owners_of_files(db_path: Path) -> set[str]:
    """The tenants that own files here, by the files' names. Raises OSError.

    For `default` only packages count: its knowledge store and its teams exist without any control store.
    """
    found: set[str] = set()
    with suppress(FileNotFoundError):
        for each in store_path(db_path, "any").parent.iterdir():
            if each.suffix in (".sqlite", ".packages") and not each.name.startswith("."):
                found.add(each.stem)
    with suppress(FileNotFoundError):
        for each in teams_folder(db_path).iterdir():
            if each.suffix == ".sqlite" and each.stem != DEFAULT_TENANT.id:
                found.add(each.stem)
    with suppress(FileNotFoundError):
        if any(packages_path(db_path, DEFAULT_TENANT.id).iterdir()):
            found.add(DEFAULT_TENANT.id)
    return found


def remove_tenant_files(db_path: Path, tenant: str) -> int:
    """Remove a tenant's files, and return their number. Raises OSError. Open descriptors keep the unlinked files."""
    found = len(tenant_files(db_path, tenant))
    remove_store(knowledge_path(db_path, tenant))
    packages = packages_path(db_path, tenant)
    if packages.exists():
        shutil.rmtree(packages)
    for each in teams_files(db_path, tenant):
        each.unlink(missing_ok=True)
    return found

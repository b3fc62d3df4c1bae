"""Published versions as data. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from control.records import shown_time
from control.versions.grants import Grants, meaning
from engine.bundle import Modules, NotBundled, bundle_of

_UNBOUNDED = 1 << 62


class VersionId(NamedTuple):
    """The key of one version: its tenant, its root (`agent` or `tool`), its name and its version text."""

    tenant: str
    root: str
    name: str
    version: str

    def __str__(self) -> str:
        """Its name in the audit log, bounded in length."""
        return f"{self.name[:64]} {self.version[:64]}"


@dataclass(frozen=True, slots=True)
class Version:
    """One published version. `root` is `agent` or `tool`; `grants` are those it requests; `size` is in bytes.

    `percent` is the share of the callers that get it: 100 for an active version, less if it has a canary beside it.
    """

    root: str
    name: str
    version: str
    digest: str
    size: int
    grants: Grants
    published_at: float
    published_by: str
    approved_by: str | None
    active: bool
    deprecated: bool
    percent: int


@dataclass(frozen=True, slots=True)
class Standing:
    """A version, and the grants that it requests and that were not approved; until they are, it cannot be activated."""

    version: Version
    asks: Grants

    def as_json(self) -> dict[str, Any]:
        """The entry in lists."""
        version = self.version
        return {
            "name": version.name,
            "version": version.version,
            "digest": version.digest,
            "size": version.size,
            "active": version.active,
            "percent": version.percent,
            "approved": version.approved_by is not None,
            "deprecated": version.deprecated,
            "published_at": shown_time(version.published_at),
            "published_by": version.published_by,
            "approved_by": version.approved_by,
            "grants": version.grants.as_json(),
            "asks": self.asks.non_empty(),
            "means": meaning(version.grants),
        }


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A version to store. `said` is the script's declaration as JSON, so that no worker has to read it again.

    `head` is the content without the files beside the script, None if there are none.
    """

    root: str
    name: str
    version: str
    digest: str
    content: bytes
    head: bytes | None
    grants: Grants
    said: Any
    at: float
    by: str


@dataclass(frozen=True, slots=True)
class Added:
    """The result of publishing: the version as it is stored, and whether it is new."""

    standing: Standing
    created: bool


@dataclass(frozen=True, slots=True)
class ActiveVersion:
    """A version that is called: an active one, or a canary. No other one ever has its number `n`.

    `size` counts what is needed to call it, `whole` its content with the files beside the script, both in bytes.
    `percent` is the share of the callers that a canary serves; 0 for the active version, which serves the others.
    """

    n: int
    root: str
    name: str
    version: str
    digest: str
    size: int
    whole: int
    percent: int


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """What is stored of a version and needed to call it. With `partial`, its `content` is the head."""

    content: bytes
    partial: bool
    said: Any


def head_of(content: bytes) -> bytes | None:
    """The content of a package without the files beside its script and what that requires; None if there are none.

    Raises ValueError, TypeError, KeyError or AttributeError for bytes that are not the content of a package.
    """
    said = json.loads(content)
    files, main = said["files"], said["main"]
    needed = {main, *(name for name, _ in required(said["kind"], main, files))}
    if len(needed) == len(files):
        return None
    said["files"] = {name: text for name, text in files.items() if name in needed}
    return spelled(said)


def required(kind: str, main: str, files: Mapping[str, str]) -> Modules:
    """The files that the script of a stored package requires; none where they cannot be resolved.

    That was checked when the package was published, unless it is from before scripts could require files.
    """
    try:
        return bundle_of(files, main, _UNBOUNDED) if kind == "lua" else ()
    except NotBundled:
        return ()


def spelled(said: Mapping[str, Any]) -> bytes:
    """The canonical spelling of a package's content, from which its digest is computed."""
    return json.dumps(said, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

"""Validation of an uploaded package: its manifest and its files. Pure."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from agents import kinds, tools
from agents.agent import Agent, AgentArgument
from agents.code.kind import Packages, packages
from agents.package import Package, Root
from agents.shapes.shape import MAX_ITEMS, AgentDeclaration, WrongShape, check_texts
from agents.tool import Tool
from agents.tools.builtin import NAMES as BUILTIN_NAMES
from control.records import hint
from control.versions.grants import parse_grants
from control.versions.records import required
from engine.bundle import Modules, NotBundled, bundle_of, is_bytecode
from engine.config import Agents, Tools
from engine.errors import Code, Problem
from engine.names import valid_name
from sandbox.wire.limits import MIB

# Bounds of one upload. More is a data set, which belongs in the knowledge store.
MAX_FILES = 256
MAX_PACKAGE_BYTES = 16 * MIB
# Bounds of a path, in bytes of UTF-8: file systems allow 255 for one name.
MAX_PATH_BYTES = 512
MAX_PART_BYTES = 200
MAX_DEPTH = 8
MAX_ARGUMENTS = 64
# Bounds of `config`, which stays in memory, decoded, for every active version: an empty list takes 64 bytes there, and
# three as JSON with its comma.
MAX_CONFIG_BYTES = 64 * 1024
MAX_CONFIG_VALUES = 1_024

_KEYS = ("name", "version", "kind", "main", "files", "tools", "arguments", "grants", "config")
# Control, formatting (which reverses text, or hides it), lone surrogates, private and unassigned characters, and line
# separators: a reader cannot distinguish them.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_DIGEST = re.compile("[0-9a-f]{64}")


def restored(name: str, version: str, digest: str, content: bytes, *, partial: bool = False) -> Package:
    """The published package with this `content`, which with `partial` is only its `head`.

    Takes 5 ms of CPU a megabyte. Also raises Problem if the content does not match the digest: the digest names a
    folder, and rows may come from another machine.
    """
    if not _DIGEST.fullmatch(digest) or not (partial or hashlib.sha256(content).hexdigest() == digest):
        raise _bad("its content does not match its digest")
    manifest = json.loads(content)
    return parse_package(manifest.pop("root"), name, {"version": version, **manifest}, digest=digest, partial=partial)


def parse_package(
    root: Root,
    name: str,
    body: Mapping[str, Any],
    *,
    digest: str = "",
    partial: bool = False,
    source_bytes: int = MAX_PACKAGE_BYTES,
) -> Package:
    """The package in an upload for this name. Raises Problem: bad_request, too_large, conflict (a builtin's name).

    `digest` is that of the content, if known. `source_bytes` bounds the script together with what it requires.
    """
    check_name(root, name)
    for key in body:
        if key not in _KEYS:
            raise _bad(f"a manifest has no key {key[:64]!r}; {hint(key, _KEYS)}")
    if body.get("name") not in (None, name):
        raise _bad(f"the manifest names {brief(body['name'])!r}, but was sent for '{name}'")
    files = _files(body.get("files"))
    main = body.get("main")
    if not isinstance(main, str):
        raise _bad("main must be the path of the script, one of files")
    if main not in files:
        raise _bad(f"main is {main[:80]!r}, which is not one of files")
    if is_bytecode(files[main][:8].encode()):
        raise _bad("main is Lua bytecode; only source is accepted")
    kind = _kind(root, body.get("kind", "lua"))
    grants = parse_grants(body.get("grants"))
    if grants.models and kind != "chatmd":
        raise _bad(f"grants.models is for packages of kind 'chatmd'; one of kind '{kind}' asks no model")
    return Package(
        root=root,
        name=name,
        version=check_version(body.get("version")),
        kind=kind,
        main=main,
        files=files,
        tools=_tools(body.get("tools")),
        arguments=_arguments(body.get("arguments")),
        grants=grants,
        config=_config(body.get("config")),
        digest=digest,
        partial=partial,
        modules=required(kind, main, files) if digest else _modules(kind, main, files, source_bytes),
    )


def _modules(kind: str, main: str, files: Mapping[str, str], most: int) -> Modules:
    try:
        return bundle_of(files, main, most) if kind == "lua" else ()
    except NotBundled as wrong:
        raise _bad(f"the script does not load: {wrong.message}") from None


def packages_of(root: Root) -> Mapping[str, Packages[Agent]] | Mapping[str, Packages[Tool]]:
    """How packages of agents or of tools are published, by the manifest's `kind`."""
    return packages(kinds.found()) if root == "agent" else packages(tools.found())


def check_name(root: Root, name: str) -> None:
    """Raises Problem for a name that cannot be published."""
    if not valid_name(name) or not name.strip("."):
        raise _bad(
            f"{name[:80]!r} cannot name {'an agent' if root == 'agent' else 'a tool'}; "
            "names are 1 to 64 of the letters A to Z, digits, '_', '.' and '-'"
        )
    if root == "tool" and folded(name) in BUILTIN_NAMES:
        raise Problem(Code.CONFLICT, f"'{name}' is the name of a builtin tool")


def check_version(version: Any) -> str:
    """The text of a version, which is also a part of URLs. Raises Problem (400)."""
    if not isinstance(version, str):
        raise _bad("version must be a text, like '1.0.0'")
    if not valid_name(version.replace("+", "-")) or not version.strip("."):
        raise _bad(f"version is {version[:80]!r}; it must be 1 to 64 letters, digits, '_', '.', '-' or '+'")
    return version


def folded(text: str) -> str:
    """The text with differences of letter case and of Unicode normalization removed.

    Two paths with the same folded form are one file on some file systems.
    """
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def check_path(path: str) -> None:
    """Raises Problem unless the path is plain, below the package, and the same on every machine."""

    def refused(why: str) -> Problem:
        return _bad(f"files: the path {path[:120]!r} {why}")

    if len(path.encode("utf-8", "surrogatepass")) > MAX_PATH_BYTES:
        raise refused(f"is longer than {MAX_PATH_BYTES} bytes")
    if any(unicodedata.category(character) in _UNSEEN for character in path):
        raise refused("holds characters that cannot be seen")
    if path.startswith("/"):
        raise refused("is absolute; paths are relative to the package")
    if "\\" in path or ":" in path:
        raise refused("holds '\\' or ':', which have other meanings on some machines; separate parts by '/'")
    parts = path.split("/")
    if len(parts) > MAX_DEPTH:
        raise refused(f"is deeper than {MAX_DEPTH} folders")
    for part in parts:
        if part in ("", ".", ".."):
            raise refused(f"has {part!r} as a part" if part else "has an empty part")
        if part != part.strip() or part.endswith("."):
            raise refused("has a part that begins or ends with a space, or ends with a dot")
        if len(part.encode()) > MAX_PART_BYTES:
            raise refused(f"has a part longer than {MAX_PART_BYTES} bytes")


def brief(value: Any) -> str:
    """A value as a short text for an error message. Lists and objects, which may be large, are not rendered."""
    if isinstance(value, str):
        return value[:64]
    return str(value)[:64] if isinstance(value, int | float | None) else "..."


def _bad(message: str) -> Problem:
    return Problem(Code.BAD_REQUEST, message)


def _files(given: Any) -> dict[str, str]:
    if not isinstance(given, dict) or not given:
        raise _bad("files must be an object with the text of every file by its path")
    if len(given) > MAX_FILES:
        raise Problem(Code.TOO_LARGE, f"the package holds {len(given)} files; the most is {MAX_FILES}")
    size = 0
    # Every path and every folder above one: folded, to its spelling and whether it is a file.
    taken: dict[str, tuple[str, bool]] = {}
    for path, text in sorted(given.items()):
        check_path(path)
        if not isinstance(text, str):
            raise _bad(f"files: {path[:120]!r} must be a text")
        size += len(text.encode())
        if size > MAX_PACKAGE_BYTES:
            raise Problem(Code.TOO_LARGE, f"the files of the package are larger than {MAX_PACKAGE_BYTES} bytes")
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            here, is_file = "/".join(parts[:count]), count == len(parts)
            before, was_file = taken.setdefault(folded(here), (here, is_file))
            # Two spellings of one name, or one name for a file and a folder.
            if before != here or ((is_file or was_file) and (before, was_file) != (path, is_file)):
                raise _bad(f"files: {before[:120]!r} and {path[:120]!r} would be one name on some machines")
    return dict(given)


def _kind(root: Root, kind: Any) -> str:
    possible = packages_of(root)
    known = (*possible, *_not_yet(root))
    if not isinstance(kind, str) or kind not in known:
        raise _bad(f"kind is {brief(kind)!r}; for {root}s it must be one of: {', '.join(known)}")
    if kind not in possible:
        raise _bad(f"{root}s of kind '{kind}' are not supported by this version")
    return kind


def _not_yet(root: Root) -> list[str]:
    """The kinds that have a table in the configuration, but no file in this version."""
    section, found = (Agents, set(kinds.found())) if root == "agent" else (Tools, set(tools.found()))
    return [table for table in section.model_fields if table not in found]


def _tools(given: Any) -> tuple[str, ...] | None:
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise _bad("tools must be a list of names")
    if len(given) > MAX_FILES:
        raise _bad(f"tools lists {len(given)} names; the most is {MAX_FILES}")
    if wrong := next((name for name in given if not valid_name(name)), None):
        raise _bad(f"tools: {wrong[:80]!r} cannot name a tool")
    return tuple(dict.fromkeys(given))


def _arguments(given: Any) -> tuple[AgentArgument, ...] | None:
    if given is None:
        return None
    if not isinstance(given, list):
        raise _bad("arguments must be a list of {name, description, required}")
    if len(given) > MAX_ARGUMENTS:
        raise _bad(f"arguments lists {len(given)}; the most is {MAX_ARGUMENTS}")
    found: list[AgentArgument] = []
    for position, each in enumerate(given):
        if not isinstance(each, dict) or (extra := set(each) - set(AgentArgument.model_fields)):
            what = "must be an object" if not isinstance(each, dict) else f"has no key {min(extra)[:64]!r}"
            raise _bad(f"arguments[{position}] {what}")
        if isinstance(options := each.get("enum"), list) and len(options) > MAX_ITEMS["enum"]:
            raise _bad(f"arguments[{position}].enum has {len(options)} items; the most is {MAX_ITEMS['enum']}")
        try:
            found.append(AgentArgument.model_validate(each))
        except ValidationError as invalid:
            error = invalid.errors(include_url=False, include_context=False)[0]
            raise _bad(f"arguments[{position}].{'.'.join(map(str, error['loc']))}: {error['msg']}") from None
    if len({argument.name for argument in found}) < len(found):
        raise _bad("arguments: two have one name")
    try:
        check_texts(AgentDeclaration(), "manifest", found)
    except WrongShape as wrong:
        raise _bad(str(wrong)) from None
    return tuple(found)


def _config(given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise _bad("config must be an object")
    text = json.dumps(given, ensure_ascii=False).encode()
    if len(text) > MAX_CONFIG_BYTES:
        raise _bad(f"config takes {len(text)} bytes as JSON; the most is {MAX_CONFIG_BYTES}: put data into files")
    if (count := _values(given)) > MAX_CONFIG_VALUES:
        raise _bad(f"config has {count} values; the most is {MAX_CONFIG_VALUES}: put data into files")
    return dict(given)


def _values(given: Any) -> int:
    """The number of values in JSON data, itself included."""
    count, pending = 0, [given]
    while pending:
        value = pending.pop()
        count += 1
        if isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return count

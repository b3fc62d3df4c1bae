"""An uploaded package: what a manifest may say, which files it may hold, and the address of its content. Pure."""

import hashlib
import json
import re
import tomllib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from pydantic import ValidationError

from agents.agent import AgentArgument
from agents.shape import MAX_DESCRIPTION_BYTES, MAX_ITEMS, AgentDeclaration, WrongShape, check_texts
from agents.tools.builtin import NAMES as BUILTIN_NAMES
from engine.config import InlineAgent, nearest, valid_name
from engine.control.grants import Grants, parse_grants
from engine.control.versions import spelled
from engine.errors import Code, Problem
from sandbox.limits import MIB

Root = Literal["agent", "tool"]
PackageKind = Literal["lua", "toml", "chatmd"]

# What one upload may hold. More is a data set, which belongs into the knowledge store.
MAX_FILES = 256
MAX_PACKAGE_BYTES = 16 * MIB
# Of a path, in bytes of UTF-8: file systems end at 255 for one name.
MAX_PATH_BYTES = 512
MAX_PART_BYTES = 200
MAX_DEPTH = 8
MAX_ARGUMENTS = 64
# Of every active version it is in memory, decoded: a list takes 64 bytes there, and three as JSON.
MAX_CONFIG_BYTES = 64 * 1024
MAX_CONFIG_VALUES = 1_024

_KEYS = ("name", "version", "kind", "main", "files", "tools", "arguments", "grants", "config")
# Agents' kinds; a tool is a script.
_KINDS: dict[Root, tuple[PackageKind, ...]] = {"agent": get_args(PackageKind), "tool": ("lua",)}
# Control, formatting (which turns writing round, or hides), lone surrogates, private and unassigned characters, and
# those that break lines: none of them can be told apart by eye.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_LUA_BYTECODE = "\x1bLua"
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Package:
    """A manifest that was checked. `files` are texts by path, the script `main` among them; with `partial`, it alone.

    `tools` narrows the list that the script declares, `arguments` stands in place of those that it declares; None
    where the manifest does not say.
    """

    root: Root
    name: str
    version: str
    kind: PackageKind
    main: str
    files: Mapping[str, str]
    tools: tuple[str, ...] | None
    arguments: tuple[AgentArgument, ...] | None
    grants: Grants
    config: Mapping[str, Any]

    # SHA-256 of the content, equal for equal packages, whatever they are called.
    digest: str = field(default="", compare=False)
    partial: bool = field(default=False, compare=False)
    # Everything that the version is, in one spelling, without the name and version that it is published under. Made
    # once, when a package is uploaded: it takes 10 ms a megabyte. Empty of one that was restored.
    content: bytes = field(init=False, repr=False, compare=False)
    # The content without the files beside the script: what it takes to call it. None where there are none, and of a
    # package that was restored. Made with the content, not on the event loop: a script may be as large as a package.
    head: bytes | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        content, head = b"", None
        if not self.digest:
            content = self._content(self.files)
            head = self._content({self.main: self.files[self.main]}) if len(self.files) > 1 else None
            object.__setattr__(self, "digest", hashlib.sha256(content).hexdigest())
        object.__setattr__(self, "content", content)
        object.__setattr__(self, "head", head)

    @property
    def has_data(self) -> bool:
        """Whether there are files beside the script, for it to read."""
        return self.partial or len(self.files) > 1

    def _content(self, files: Mapping[str, str]) -> bytes:
        arguments = None if self.arguments is None else [argument.model_dump() for argument in self.arguments]
        return spelled(
            {
                "root": self.root,
                "kind": self.kind,
                "main": self.main,
                "files": dict(files),
                "tools": self.tools,
                "arguments": arguments,
                "grants": self.grants.as_json(),
                "config": self.config,
            }
        )

    @property
    def source(self) -> bytes:
        """The script."""
        return self.files[self.main].encode()


def restored(name: str, version: str, digest: str, kept: bytes, *, partial: bool = False) -> Package:
    """The package of which this is the `content`, or with `partial` the `head`, as it was published.

    Takes 5 ms of CPU a megabyte. Raises Problem also where the content is not what the digest says: the digest names a
    folder, and rows may come from another machine.
    """
    if not _DIGEST.fullmatch(digest) or not (partial or hashlib.sha256(kept).hexdigest() == digest):
        raise _bad("its content is not what its digest says")
    said = json.loads(kept)
    return parse_package(said.pop("root"), name, {"version": version, **said}, digest=digest, partial=partial)


def parse_package(
    root: Root, name: str, body: Mapping[str, Any], *, digest: str = "", partial: bool = False
) -> Package:
    """The package in an upload for this name. Raises Problem: bad_request, too_large, conflict (a builtin's name).

    `digest` is that of the content where it is known.
    """
    check_name(root, name)
    for key in body:
        if key not in _KEYS:
            near = nearest(key, list(_KEYS))
            hint = f"did you mean {near!r}?" if near else f"known: {', '.join(_KEYS)}"
            raise _bad(f"a manifest has no key {key[:64]!r}; {hint}")
    if body.get("name") not in (None, name):
        raise _bad(f"the manifest is of {brief(body['name'])!r}, but was sent for '{name}'")
    files = _files(body.get("files"))
    main = body.get("main")
    if not isinstance(main, str):
        raise _bad("main must be the path of the script, one of files")
    if main not in files:
        raise _bad(f"main is {main[:80]!r}, which is not one of files")
    if files[main].startswith(_LUA_BYTECODE):
        raise _bad("main is Lua bytecode; only source is accepted")
    return Package(
        root=root,
        name=name,
        version=check_version(body.get("version")),
        kind=_kind(root, body.get("kind", "lua")),
        main=main,
        files=files,
        tools=_tools(body.get("tools")),
        arguments=_arguments(body.get("arguments")),
        grants=parse_grants(body.get("grants")),
        config=_config(body.get("config")),
        digest=digest,
        partial=partial,
    )


def check_name(root: Root, name: str) -> None:
    """Raises Problem for a name that nothing can be published under."""
    if not valid_name(name) or not name.strip("."):
        raise _bad(
            f"{name[:80]!r} cannot name {'an agent' if root == 'agent' else 'a tool'}; "
            "names are 1 to 64 of the letters A to Z, digits, '_', '.' and '-'"
        )
    if root == "tool" and folded(name) in BUILTIN_NAMES:
        raise Problem(Code.CONFLICT, f"'{name}' is the name of a builtin tool")


def check_version(version: Any) -> str:
    """A version's name, which is also a part of addresses. Raises Problem (400)."""
    if not isinstance(version, str):
        raise _bad("version must be a text, like '1.0.0'")
    if not valid_name(version.replace("+", "-")) or not version.strip("."):
        raise _bad(f"version is {version[:80]!r}; it must be 1 to 64 letters, digits, '_', '.', '-' or '+'")
    return version


def folded(text: str) -> str:
    """The text as somebody sees it who does not tell letter case or ways of writing the same letters apart.

    Two paths that are one in this form are one file on some disks.
    """
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def check_path(path: str) -> None:
    """Raises Problem for a path that is not a plain one, below the package, which means the same on every machine."""

    def refused(why: str) -> Problem:
        return _bad(f"files: the path {path[:120]!r} {why}")

    if len(path.encode("utf-8", "surrogatepass")) > MAX_PATH_BYTES:
        raise refused(f"is longer than {MAX_PATH_BYTES} bytes")
    if any(unicodedata.category(character) in _UNSEEN for character in path):
        raise refused("holds characters that cannot be seen")
    if path.startswith("/"):
        raise refused("is absolute; paths are relative to the package")
    if "\\" in path or ":" in path:
        raise refused("holds '\\' or ':', which mean something else on other machines; parts are separated by '/'")
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
    """What stood in place of a text, for a message: a value of any size is not rendered to be cut."""
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
    # Every path and every folder above one, as somebody sees it who cannot tell case or spelling apart.
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
            if before != here or ((is_file or was_file) and (before, was_file) != (path, is_file)):
                raise _bad(f"files: {before[:120]!r} and {path[:120]!r} would be one name on some machines")
    return dict(given)


def _kind(root: Root, kind: Any) -> PackageKind:
    if not isinstance(kind, str) or kind not in _KINDS[root]:
        raise _bad(f"kind is {brief(kind)!r}; for {root}s it must be one of: {', '.join(_KINDS[root])}")
    if kind == "chatmd":
        raise _bad("agents of kind 'chatmd' are not supported by this version")
    return cast(PackageKind, kind)


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
    """How many values JSON data has, itself among them."""
    count, pending = 0, [given]
    while pending:
        value = pending.pop()
        count += 1
        if isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return count


# Of a `toml` package. The parser is Python and takes 0.2 us a character, and more for dotted names: their time
# grows with the square of their parts, 8.5 s for 200 KB. Three keys need little beside their texts.
MAX_TOML_BYTES = 256 * 1024
_MAX_TOML_STRUCTURE = 16 * 1024
_MAX_TOML_DOTS = 64
# Each escape in a text takes the parser a microsecond or two, and 80 bytes meanwhile.
_MAX_TOML_ESCAPES = 4 * 1024
# Texts and comments, as TOML 1.0 reads them from left to right. One that is not closed goes to the end of its line or
# of the file: were it passed over, each quotation mark in it would be tried as the beginning of another one.
_TOML_TEXTS = re.compile(
    r'''"""(?:[^"\\]|\\.|"{1,2}(?!"))*(?:"{3,5})?|'{3}(?:[^']|'{1,2}(?!'))*(?:'{3,5})?'''
    r"""|"(?:[^"\\\n]|\\.)*"?|'[^'\n]*'?|#[^\n]*""",
    re.DOTALL,
)


def _check_toml(path: str, source: str) -> None:
    """Raises Problem for what takes the parser long."""
    if len(source.encode()) > MAX_TOML_BYTES:
        raise Problem(Code.TOO_LARGE, f"{path} is larger than {MAX_TOML_BYTES} bytes, the most for an agent in TOML")
    if (escapes := source.count("\\")) > _MAX_TOML_ESCAPES:
        raise _bad(f"{path}: has {escapes} backslashes; the most is {_MAX_TOML_ESCAPES}")
    structure = _TOML_TEXTS.sub("", source)
    if len(structure) > _MAX_TOML_STRUCTURE or structure.count(".") > _MAX_TOML_DOTS:
        raise _bad(
            f"{path}: beside its texts it has {len(structure)} characters and {structure.count('.')} dots; the most is "
            f"{_MAX_TOML_STRUCTURE} and {_MAX_TOML_DOTS}"
        )


def inline_agent(package: Package) -> InlineAgent:
    """The agent in a `toml` package: `description`, `system_prompt` and `tools`, as in `[agents.NAME]`.

    Either at the top of the file or in one table of that name. Nothing is taken from the environment: `${VAR}` is
    text. Raises Problem (400).
    """
    _check_toml(package.main, package.files[package.main])
    try:
        said = tomllib.loads(package.files[package.main])
    except tomllib.TOMLDecodeError as wrong:
        raise _bad(f"{package.main}: not valid TOML: {wrong}") from None
    except RecursionError:
        raise _bad(f"{package.main}: not valid TOML: nested too deeply") from None
    except ValueError:  # the parser leaves this one to Python
        raise _bad(f"{package.main}: not valid TOML: a number has too many digits") from None
    if set(said) == {"agents"} and isinstance(said["agents"], dict) and set(said["agents"]) == {package.name}:
        said = said["agents"][package.name]
    known = ("description", "system_prompt", "tools")
    if unknown := next((key for key in said if key not in known), None):
        raise _bad(f"{package.main}: unknown key {unknown[:64]!r}; known: {', '.join(known)}")
    if isinstance(tools := said.get("tools"), list) and len(tools) > MAX_ITEMS["tools"]:
        raise _bad(f"{package.main}: tools has {len(tools)} items; the most is {MAX_ITEMS['tools']}")
    description = said.get("description")
    if isinstance(description, str) and len(description.encode()) > MAX_DESCRIPTION_BYTES:
        raise _bad(f"{package.main}: description is longer than {MAX_DESCRIPTION_BYTES} bytes")
    try:
        return InlineAgent.model_validate(said)
    except ValidationError as invalid:
        error = invalid.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, error["loc"]))
        raise _bad(f"{package.main}: {where}: {error['msg'][:1].lower()}{error['msg'][1:]}") from None

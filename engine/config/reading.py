"""Reading the configuration file.

The text goes through four steps: TOML, the models' form (`shape`), `${VAR}`, and validation (`models`). Only
`load_config` touches a file.
"""

import ast
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from engine.config import ctx
from engine.config.errors import ConfigError, Table, Wrong, as_seen, dotted
from engine.config.models import Config
from engine.config.shape import expand_tree, reshape
from engine.config.signatures import Files, signature
from engine.config.wording import explain

# Where to look for a configuration when neither --config nor the environment names one.
LOOKED_UP = ("engine.toml", *ctx.WORKSPACE)
ENVIRONMENT = ("ENGINE_CONFIG", "CTX_CONFIG")

# Written by `engine init`. It is valid as it is, and also with all lines that start with "#" and a key uncommented.
TEMPLATE = Path(__file__).with_name("template.toml")
# The keys of a table in an error of tomllib: a tuple.
_KEYS = re.compile(r"\((?:'[^'\\]*',? ?)+\)")
# Strings and comments of TOML: a line of a multi-line string may look like a table header.
_OPAQUE = re.compile(
    r'"""(?:\\.|[^\\])*?"""' r"|'''.*?'''" r'|"(?:\\.|[^"\\\n])*"' r"|'[^'\n]*'" r"|\#[^\n]*",
    re.DOTALL,
)


def _table_order(text: str) -> dict[tuple[str, ...], int]:
    """The line of each table header of a TOML text that is known to be valid."""
    opaque = _OPAQUE.sub(lambda m: m[0] if m[0][:3] not in ('"""', "'''") else "\n" * m[0].count("\n"), text)
    lines: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(opaque.splitlines(), 1):
        if not line.lstrip().startswith("["):
            continue
        try:
            node: Any = tomllib.loads(line)
        except tomllib.TOMLDecodeError:
            continue  # a line of an array
        path: list[str] = []
        while isinstance(node, dict) and node:
            key, node = next(iter(node.items()))
            path.append(key)
        lines.setdefault(tuple(path), number)
    return lines


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration and where it came from. `path` is None for the built-in defaults; `root` is `config.root`.

    `below` is the user's own file of ctx, of which `path` replaces keys. `files` is the state of both before they were
    read, so that a later change is seen as one. `of_ctx`: they are read as files of ctx's. `found` are those
    warnings that say which files are read.
    """

    config: Config
    path: Path | None
    root: Path
    warnings: tuple[str, ...] = ()
    below: Path | None = None
    files: Files = field(default_factory=dict)
    of_ctx: bool = False
    found: tuple[str, ...] = ()


def parse_config(
    text: str,
    *,
    environ: Mapping[str, str],
    cwd: Path,
    shown_as: str = "the configuration",
    of_ctx: bool = False,
    below: str = "",
) -> tuple[Config, tuple[str, ...]]:
    """Parse a configuration in TOML; also returns warnings.

    A relative `root` is resolved against `cwd`; `shown_as` names the text in errors. With `of_ctx` the text is read as
    a file of ctx's (`engine.config.ctx`); `below` is the text of a file whose keys it replaces. Raises ConfigError.
    """
    raw = _tables(text, shown_as)
    if below:
        raw = ctx.merged(_tables(below, f"{shown_as} (the user's own file below it)"), raw)
    config, warnings = check_tables(raw, environ=environ, cwd=cwd, shown_as=shown_as, of_ctx=of_ctx)
    first = _table_order(text)
    lines = {table: len(text) + line for table, line in _table_order(below).items()} | first
    config.agents._lines.update(lines)
    config.tools._lines.update(lines)
    return config, warnings


def _tables(text: str, shown_as: str) -> Table:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        plain = _KEYS.sub(lambda keys: f"[{'.'.join(ast.literal_eval(keys[0]))}]", str(error))
        raise ConfigError(f"{shown_as}: not valid TOML: {plain}") from None
    except RecursionError:
        raise ConfigError(f"{shown_as}: not valid TOML: nested too deeply") from None


def check_tables(
    raw: Table,
    *,
    environ: Mapping[str, str],
    cwd: Path,
    shown_as: str = "the configuration",
    of_ctx: bool = False,
) -> tuple[Config, tuple[str, ...]]:
    """As `parse_config`, for tables as `tomllib` returns them, which a program may make itself.

    Entries are ordered by kind, then as in the tables, which decides between two of one name.
    """
    try:
        shape = reshape(raw)
        if of_ctx:
            ctx.adapt(shape)
        tree = expand_tree(shape.tree, (), environ, shape)
        tree.setdefault("db", {})  # its default is a path, which only validation resolves
        root = tree.setdefault("root", ".")
        if not isinstance(root, str) or not root or "\0" in root:
            raise Wrong(("root",), f"expected a path, got {as_seen(root)}")
        try:
            config = Config.model_validate(tree | {"root": cwd / root}, context={"root": cwd / root})
        except ValidationError as invalid:
            # A misspelt key explains a missing one, so it is reported first.
            errors = sorted(invalid.errors(), key=lambda error: error["type"] != "extra_forbidden")
            raise explain(errors[0], shape, raw) from None
    except Wrong as wrong:
        raise ConfigError(f"{shown_as}: {dotted(wrong.loc)}: {wrong.phrase}") from None
    return config, tuple(f"{shown_as}: {warning}" for warning in shape.warnings)


def read_tables(path: Path, shown_as: str, bound: int) -> Table:
    """The tables of a file of TOML beside the configuration, of at most `bound` bytes. Raises ConfigError."""
    try:
        if not path.is_file():  # a FIFO would block for ever
            raise ConfigError(f"{shown_as}: not a regular file")
        with path.open("rb") as file:
            data = file.read(bound + 1)
        if len(data) > bound:
            raise ConfigError(f"{shown_as}: larger than {bound:,} bytes")
        return _tables(data.decode("utf-8-sig"), shown_as)
    except OSError as error:
        raise ConfigError(f"{shown_as}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{shown_as}: not valid TOML: not UTF-8 text") from None


def find_config(
    explicit: Path | None, environ: Mapping[str, str], cwd: Path, *, exists: Callable[[Path], bool] = Path.is_file
) -> Path | None:
    """The configuration file to use: `--config`, `$ENGINE_CONFIG` or `$CTX_CONFIG`, then the known places below `cwd`.

    None means the built-in defaults. A file that is named is returned even if it does not exist, which is an error.
    """
    if explicit is not None:
        return cwd / explicit
    for variable in ENVIRONMENT:
        if environ.get(variable):
            return cwd / environ[variable]
    return next((cwd / place for place in LOOKED_UP if exists(cwd / place)), None)


def load_config(explicit: Path | None, *, environ: Mapping[str, str], cwd: Path) -> LoadedConfig:
    """Find, read and check the configuration. Raises ConfigError.

    A file of ctx in the workspace replaces keys of the user's own (`~/.config/ctx/config.toml`), as in ctx.
    """
    path = find_config(explicit, environ, cwd)
    places = [cwd / place for place in ctx.WORKSPACE]
    named = explicit is not None or any(map(environ.get, ENVIRONMENT))
    below: Path | None = None
    found: list[str] = []
    if not named and (path is None or path in places):
        below, found = ctx.global_config(environ)
        if below is not None and not below.is_file():
            below = None
        if path == places[0] and places[1].is_file():
            found.append(f"{ctx.WORKSPACE[1]} is not read: {ctx.WORKSPACE[0]} comes first")
    if path is None:
        path, below = below, None
    if path is None:
        config, warnings = parse_config("", environ=environ, cwd=cwd)
        return LoadedConfig(config, None, config.root, (*found, *warnings))
    by_ctx = explicit is None and not environ.get(ENVIRONMENT[0]) and bool(environ.get(ENVIRONMENT[1]))
    place = LoadedConfig(Config(), path, cwd, (), below, {}, by_ctx or ctx.is_of_ctx(path), tuple(found))
    return reload_config(place, environ=environ, cwd=cwd)


def reload_config(loaded: LoadedConfig, *, environ: Mapping[str, str], cwd: Path) -> LoadedConfig:
    """Read and check the files of a configuration again; one without files stays as it is. Raises ConfigError."""
    path, below = loaded.path, loaded.below
    if path is None:
        return loaded
    files = {file: signature(file) for file in (path, below) if file is not None}
    config, warnings = parse_config(
        _text(path, cwd),
        environ=environ,
        cwd=cwd,
        shown_as=_shown(path, cwd),
        of_ctx=loaded.of_ctx,
        below="" if below is None else _text(below, cwd),
    )
    return replace(loaded, config=config, root=config.root, warnings=(*loaded.found, *warnings), files=files)


def _shown(path: Path, cwd: Path) -> str:
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)


def _text(path: Path, cwd: Path) -> str:
    """The text of a configuration file. Raises ConfigError."""
    try:
        return path.read_text(encoding="utf-8-sig")  # some editors write a byte order mark, which is not TOML
    except FileNotFoundError:
        raise ConfigError(f"{_shown(path, cwd)}: no such configuration file") from None
    except OSError as error:
        raise ConfigError(f"{_shown(path, cwd)}: cannot read the configuration file: {error.strerror}") from None
    except ValueError:
        raise ConfigError(f"{_shown(path, cwd)}: not valid TOML: not UTF-8 text") from None

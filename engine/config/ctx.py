"""Files of context-harness (`ctx`): where they are, and what differs in reading one. Pure.

`ctx` ignores keys that it does not know, and its patterns match whole paths. In the engine's own files an unknown key
is an error, as it is most often a mistyped one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from engine.config.errors import Loc, Table, dotted
from engine.config.fields import Model
from engine.config.models import Config
from engine.config.shape import Shape
from engine.names import nearest

# Where `ctx` has its configuration of a workspace, the first before the second.
WORKSPACE = (".ctx/config.toml", "config/ctx.toml")
DIRECTORY = "CTX_CONFIG_DIR"


def is_of_ctx(path: Path) -> bool:
    """Whether a file is ctx's: `ctx.toml`, `ctx.NAME.toml`, or `config.toml` in a folder `.ctx` or `ctx`."""
    return path.name.startswith("ctx.") or (path.name == "config.toml" and path.parent.name in (".ctx", "ctx"))


def global_config(environ: Mapping[str, str]) -> tuple[Path | None, list[str]]:
    """Where a user's configuration for all workspaces would be, and warnings about variables that are ignored.

    A relative path in a variable is invalid and ignored (XDG Base Directory Specification, section 2).
    """
    warnings: list[str] = []
    for variable, below in ((DIRECTORY, ""), ("XDG_CONFIG_HOME", "ctx"), ("HOME", ".config/ctx")):
        folder = environ.get(variable)
        if not folder:
            continue
        if folder.startswith("/"):
            return Path(folder) / below / "config.toml", warnings
        if variable == DIRECTORY:
            warnings.append(f"{variable} = {folder!r} is ignored: it is not an absolute path")
    return None, warnings


def merged(base: Table, over: Table) -> Table:
    """`over` on `base`: tables are merged by key, everything else is replaced."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def adapt(shape: Shape) -> None:
    """Take unknown keys out of the tree, with a warning each, and give patterns the meaning that they have in ctx.

    This comes before `${VAR}`: a variable in a key that nothing reads need not be set.
    """
    _prune(shape.tree, Config, (), shape)
    connectors = shape.tree.get("connectors")
    for entries in connectors.values() if isinstance(connectors, dict) else ():
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            if isinstance(entry, dict) and {"include_globs", "exclude_globs"} & set(entry):
                entries[name] = {"glob_style": "ctx", **entry}


def _prune(tree: Table, model: type[Model], loc: Loc, shape: Shape) -> None:
    for key in list(tree):
        field = model.model_fields.get(key)
        if field is None:
            near = nearest(key, list(model.model_fields))
            hint = f"; did you mean {near!r}?" if near else ""
            shape.warnings.append(f"{dotted(shape.in_file((*loc, key)))}: unknown key, ignored as in ctx{hint}")
            del tree[key]
        else:
            tree[key] = _pruned_value(tree[key], field.annotation, (*loc, key), shape)


def _pruned_value(value: Any, annotation: Any, loc: Loc, shape: Shape) -> Any:
    """A value by its type: a model, or names and models. Other tables are the entry's own, or checked elsewhere."""
    if not isinstance(value, dict):
        return value
    if isinstance(annotation, type) and issubclass(annotation, Model):
        value = dict(value)
        _prune(value, annotation, loc, shape)
    elif get_origin(annotation) is dict:
        model = get_args(annotation)[1]
        if isinstance(model, type) and issubclass(model, Model):
            return {name: _pruned_value(entry, model, (*loc, name), shape) for name, entry in value.items()}
    return value

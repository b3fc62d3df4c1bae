"""From TOML's tables to the models' form: extras and inline agents moved to their place, `${VAR}` expanded. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from typing import Any, get_args

from engine.config.entries import READING, Agents, CodeEntry, Connectors, Tools
from engine.config.errors import Loc, Table, Wrong, as_seen, dotted, unknown_key
from engine.config.fields import INT64, Model
from engine.names import nearest

# Keys of ctx that are accepted and have no effect.
_NO_EFFECT_TABLES = ("vector_index", "registries")
# Keys of `[teams]` that bound no team.
_TEAMS_KEYS = ("enabled", "a2a", "lease_s", "keep_days")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class UnsetVariable(Exception):
    """`${NAME}` has no value in the environment and no default. `name` is the variable."""

    def __init__(self, name: str) -> None:
        super().__init__(f"environment variable {name} is not set")
        self.name = name


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Replace `${VAR}` and `${VAR:-default}` in `text`, once: values are not expanded again.

    As in a shell, the default also replaces an empty value. A dollar in any other place stays as it is.
    Raises UnsetVariable for a variable that has neither value nor default.
    """

    def value(match: re.Match[str]) -> str:
        name, default = match.groups()
        found = environ.get(name)
        if default is not None:
            return found or default
        if found is None:
            raise UnsetVariable(name)
        return found

    return _VARIABLE.sub(value, text)


class Extra(dict[str, Any]):
    """A script's or class's own keys: an unset variable in them fails this entry, not the whole file."""


@dataclass(slots=True)
class Shape:
    """The tree in the models' form. `origin` maps a moved place to its place in the file."""

    tree: Table
    origin: dict[Loc, Loc] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def in_file(self, loc: Loc) -> Loc:
        """A place of the tree in the file's terms."""
        for length in range(len(loc), 0, -1):
            if loc[:length] in self.origin:
                return self.origin[loc[:length]] + loc[length:]
        return loc


def reshape(raw: Table) -> Shape:
    """Move tables from their place in the file to that in the models. Wrong types are left to validation."""
    shape = Shape(dict(raw))
    tree = shape.tree
    for name in _NO_EFFECT_TABLES:
        if name in tree:
            del tree[name]
            shape.warnings.append(f"{name} has no effect here")
    if isinstance(limits := tree.get("limits"), dict):
        own = {key: limits[key] for key in ("max", "queue_timeout_s") if key in limits}
        tree["limits"] = own | {"defaults": {key: value for key, value in limits.items() if key not in own}}
        shape.origin["limits", "defaults"] = ("limits",)
    if isinstance(teams := tree.get("teams"), dict):
        own = {key: value for key, value in teams.items() if key in _TEAMS_KEYS}
        tree["teams"] = own | {"limits": {key: value for key, value in teams.items() if key not in own}}
        shape.origin["teams", "limits"] = ("teams",)
    if isinstance(models := tree.get("models"), dict):
        tree["models"] = _with_entries(models, ("models",), "default", "the name of a model", "model", shape)
    if isinstance(agents := tree.get("agents"), dict):
        tree["agents"] = _reshape_agents(agents, shape)
    sections: tuple[tuple[str, type[Model]], ...] = (("connectors", Connectors), ("tools", Tools), ("agents", Agents))
    for section, model in sections:
        if not isinstance(tree.get(section), dict):
            continue
        tree[section] = dict(tree[section])
        for kind, code in _code_entries(model):
            if isinstance(entries := tree[section].get(kind), dict):
                tree[section][kind] = {
                    name: _reshape_entry(entry, (section, kind, name), code, shape) for name, entry in entries.items()
                }
    return shape


def _code_entries(section: type[Model]) -> Iterator[tuple[str, type[CodeEntry]]]:
    """The kinds of a section whose entries have code, each with its model."""
    for kind, table in section.model_fields.items():
        _, model = get_args(table.annotation) or (None, Model)
        if issubclass(model, CodeEntry):
            yield kind, model


def _with_entries(table: Table, loc: Loc, own: str, what: str, kind: str, shape: Shape) -> Table:
    """The key `own` of a table, and every table in it as one of its entries."""
    found: Table = {key: value for key, value in table.items() if key == own and not isinstance(value, dict)}
    found["entries"] = {}
    for name, entry in table.items():
        if name == own and name in found:
            continue
        if not isinstance(entry, dict):
            raise unknown_key((*loc, name), [own])
        if name == own:
            raise Wrong((*loc, name), f"expected {what}, got a table; no {kind} can have this name")
        found["entries"][name] = entry
        shape.origin[(*loc, "entries", name)] = (*loc, name)
    return found


def _reshape_agents(agents: Table, shape: Shape) -> Table:
    known = list(Agents.model_fields)
    kinds: Table = {kind: agents[kind] for kind in known if kind in agents}
    if isinstance(chatmd := kinds.get("chatmd"), dict):
        kinds["chatmd"] = _with_entries(chatmd, ("agents", "chatmd"), "dir", "a path", "agent", shape)
    inline = kinds.get("inline", {})
    if not isinstance(inline, dict):
        return kinds
    inline = kinds["inline"] = dict(inline)
    for name, entry in agents.items():
        if name in known:
            continue
        if name in inline:
            raise Wrong(("agents", name), f"defined twice, here and as {dotted(('agents', 'inline', name))}")
        # [agents.scripts.x] would be an agent called "scripts" with a key "x": suggest the kind that was probably
        # meant.
        meant = nearest(name, known)
        if meant and isinstance(entry, dict) and entry and all(isinstance(value, dict) for value in entry.values()):
            raise Wrong(("agents", name), f"unknown table; did you mean {dotted(('agents', meant))}?")
        inline[name] = entry
        shape.origin["agents", "inline", name] = ("agents", name)
    return kinds


def _reshape_entry(entry: Any, loc: Loc, model: type[CodeEntry], shape: Shape) -> Any:
    if not isinstance(entry, dict):
        return entry
    ours = model.keys_in(str(loc[0]))
    extra = Extra((key, value) for key, value in entry.items() if key not in ours)
    if model.own_keys == "beside":
        _share(entry, loc, ours, extra, shape)
    else:
        if extra:
            raise unknown_key((*loc, next(iter(extra))), list(ours))
        own = entry.get("config", {})
        return {**entry, "config": Extra(own) if isinstance(own, dict) else own}
    shape.origin[(*loc, "extra")] = loc
    for key in extra:
        # The script's own keys may resemble a key of the engine a little; a mistyped key resembles it closely.
        likely = [name for name in ours if name not in READING]
        if (near := nearest(key, likely, cutoff=0.75)) is not None and near not in entry:
            shape.warnings.append(f"{dotted((*loc, key))}: taken for a key of the script's own; did you mean {near!r}?")
    return {key: value for key, value in entry.items() if key in ours} | {"extra": extra}


def _share(entry: dict[str, Any], loc: Loc, ours: Iterable[str], extra: Extra, shape: Shape) -> None:
    """`sources` and `labels` are likely names of a script's own keys, too: it gets them in any case.

    They are the engine's where they are lists of names.
    """
    for key in READING:
        if key in ours and key in entry:
            extra[key] = entry[key]
            if not isinstance(entry[key], list) or not all(isinstance(each, str) for each in entry[key]):
                del entry[key]
                shape.warnings.append(
                    f"{dotted((*loc, key))}: taken for a key of the script's own: it is no list of texts"
                )


def expand_tree(value: Any, loc: Loc, environ: Mapping[str, str], shape: Shape) -> Any:
    """Expand every text below `value`; an unset variable in a script's own keys is recorded in its entry."""
    if isinstance(value, dict):
        expanded: Table = {}
        for key, inner in value.items():
            if type(inner) is Extra:
                expanded |= _expand_extra(inner, key, (*loc, key), environ, shape)
            else:
                expanded[key] = expand_tree(inner, (*loc, key), environ, shape)
        return expanded
    if isinstance(value, list):
        return [expand_tree(item, (*loc, i), environ, shape) for i, item in enumerate(value)]
    if isinstance(value, str):
        try:
            return expand(value, environ)
        except UnsetVariable as unset:
            raise Wrong(shape.in_file(loc), str(unset)) from None
    return value


def _expand_extra(extra: Extra, name: str, loc: Loc, environ: Mapping[str, str], shape: Shape) -> Table:
    unset: list[str] = []
    used: dict[str, None] = {}  # an ordered set

    def plain(value: Any, at: Loc) -> Any:
        match value:
            case dict():
                return {k: plain(v, (*at, k)) for k, v in value.items()}
            case list():
                return [plain(item, (*at, i)) for i, item in enumerate(value)]
            case str():
                used.update((environ[m[1]], None) for m in _VARIABLE.finditer(value) if environ.get(m[1]))
                try:
                    return expand(value, environ)
                except UnsetVariable as error:
                    unset.append(f"{dotted(shape.in_file(at))}: {error}")
                    return value
            case datetime() | date() | time():
                return value.isoformat()
            case int() if abs(value) > INT64:
                raise Wrong(shape.in_file(at), f"expected a whole number of 64 bits, got {as_seen(value)}")
        return value

    values = {key: plain(value, (*loc, key)) for key, value in extra.items()}
    return {name: values, "unset": unset[0] if unset else None, "from_environment": list(used)}

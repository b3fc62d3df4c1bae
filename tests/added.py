"""Kinds that a test adds on the fly: a file in a folder of the test's own, and a table of the configuration."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import Field
from pydantic.fields import FieldInfo

from engine.config import Agents, Config, LimitsConfig, PythonEntry, ScriptEntry, Tools
from engine.config.entries import Connectors
from engine.config.fields import Model, Name


@contextmanager
def added_file(package: ModuleType, folder: Path, name: str, source: str) -> Iterator[None]:
    """A package that has one more module, which is nowhere but in this folder."""
    (folder / f"{name}.py").write_text(source)
    module = f"{package.__name__}.{name}"
    assert module not in sys.modules
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(package, "__path__", [*package.__path__, str(folder)])
        try:
            yield
        finally:
            if sys.modules.pop(module, None) is not None:
                delattr(package, name)


@contextmanager
def added_table(section: type[Model], name: str, entry: type[Model]) -> Iterator[None]:
    """A section of the configuration that has one more table, as if its class had this field."""
    fields = section.__pydantic_fields__
    assert name not in fields
    table = dict[Name, entry]
    fields[name] = FieldInfo.from_annotated_attribute(table, Field(default_factory=dict))
    _rebuild(section)
    try:
        yield
    finally:
        del fields[name]
        _rebuild(section)


@contextmanager
def rebuilt() -> Iterator[pytest.MonkeyPatch]:
    """Patches that the models of the configuration read when they are made; afterwards they are made once more."""
    try:
        with pytest.MonkeyPatch.context() as changed:
            yield changed
    finally:
        rebuild()


def rebuild() -> None:
    """Make the models of the configuration once more, of the lists that they read."""
    for model in (ScriptEntry, PythonEntry, Agents, Tools, Connectors, LimitsConfig):
        _rebuild(model)


def _rebuild(section: type[Model]) -> None:
    section.model_rebuild(force=True)
    Config.model_rebuild(force=True)

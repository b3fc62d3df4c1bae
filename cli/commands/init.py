"""`engine init`."""

import os
from pathlib import Path

from cli.options import ConfigPath, load, shown
from cli.output import say
from engine.config import TEMPLATE, find_config
from knowledge.sqlite.store import open_store


async def init(*, config: ConfigPath = None) -> None:
    """Write a commented engine.toml and an empty store. What exists is left as it is."""
    cwd = Path.cwd()
    # A configuration under another name counts too: a new engine.toml would take precedence over it.
    path = find_config(config, os.environ, cwd) or cwd / "engine.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(TEMPLATE.read_text(encoding="utf-8"))
        say(f"Created: {shown(path)}")
    except FileExistsError:
        say(f"Exists, left as it is: {shown(path)}")
    configuration = load(path).config
    store = configuration.db.path
    existed = store.exists()
    async with open_store(store, create=True, language=configuration.retrieval.language):
        pass
    say(f"Exists, left as it is: {shown(store)}" if existed else f"Created: {shown(store)} (an empty store)")

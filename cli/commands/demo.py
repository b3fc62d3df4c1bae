"""`engine demo`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cli.commands.serve import serve
from cli.output import UNUSABLE, Exit, say

# In an installation the files are package data (pyproject.toml); in a checkout they are those that `make serve` uses.
_FILES = next(
    path
    for path in (Path(__file__).resolve().parents[1] / "demo", Path(__file__).resolve().parents[2] / "examples")
    if path.is_dir()
)
_FOLDERS = ("agents", "knowledge", "prompts", "tools")
_CONFIG = "engine.toml"
# Written by `engine serve --demo`: the store, whose place the configuration names.
_STORE = ".data"


async def demo(
    directory: Path = Path("engine-demo"),
    /,
    *,
    bind: Annotated[str | None, Parameter(help="Listen here (HOST:PORT) instead of [server] bind.")] = None,
) -> int:
    """Write the demo to a folder (engine-demo), fill its store, and serve it. What exists is left as it is."""
    written = write(directory)
    say(f"{'Wrote' if written else 'Found'} the demo: {directory} ({_CONFIG} says what is in it)")
    return await serve(bind=bind, demo=True, directory=directory, config=Path(_CONFIG))


def write(directory: Path) -> bool:
    """Write the files of the demo that are missing; whether there were any. Raises Exit for a folder of other things.

    The configuration is written last: where it exists, the others were written, and one that was deleted since is meant
    to be gone.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / _CONFIG
    if config.exists():
        return False
    known = {*_FOLDERS, _STORE}
    if other := sorted(path.name for path in directory.iterdir() if path.name not in known):
        raise Exit(UNUSABLE, f"{directory} is no folder of the demo: it has {other[0]}; name an empty one")
    for source in sorted(path for folder in _FOLDERS for path in (_FILES / folder).rglob("*") if path.is_file()):
        target = directory / source.relative_to(_FILES)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    config.write_text(configuration((_FILES / _CONFIG).read_text(encoding="utf-8")), encoding="utf-8")
    return True


def configuration(text: str) -> str:
    """The demo's configuration for a folder of its own: paths start there, not in the repository."""
    return text.replace("examples/", "").replace("here, the repository root", "here, this folder")

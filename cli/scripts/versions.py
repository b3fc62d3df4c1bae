"""`engine agent show|diff`, and the same for `engine tool`: what a version is, and what it changes."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from cli.options import AsJson, ConfigPath, TenantName
from cli.output import note, say, say_json
from cli.scripts.publish import deciding, described

if TYPE_CHECKING:
    from agents.package import Root
    from agents.publishing.publish import Deciding
    from control.identity import Identity
    from engine.tenant import Tenant

# What of a version is shown as its manifest, beside its files.
_MANIFEST = ("kind", "main", "tools", "arguments", "grants", "config")

File = Annotated[str | None, Parameter(help="Print this file of the version, and nothing else.")]


def add_to(app: App, root: "Root") -> None:
    """Add the two commands to the commands of agents or of tools."""
    one = "an agent" if root == "agent" else "a tool"

    async def show(
        name: str,
        version: str,
        /,
        *,
        file: File = None,
        tenant: TenantName = "default",
        config: ConfigPath = None,
        as_json: AsJson = False,
    ) -> None:
        async with deciding(config, tenant) as (decisions, whose, who):
            await _show(_Versions(decisions, whose, who, root, name), version, file, as_json=as_json)

    async def diff(
        name: str, old: str, new: str, /, *, tenant: TenantName = "default", config: ConfigPath = None
    ) -> None:
        async with deciding(config, tenant) as (decisions, whose, who):
            for line in await _Versions(decisions, whose, who, root, name).diff(old, new):
                say(line)

    app.command(show, help=f"Show a published version of {one}: what it asks for, its files, and what it changes.")
    app.command(diff, help=f"Show what differs between two published versions of {one}.")


class _Versions:
    """The published versions of one name."""

    def __init__(self, decisions: "Deciding", whose: "Tenant", who: "Identity", root: "Root", name: str) -> None:
        self._decisions = decisions
        self._of = (whose, who, root, name)
        self.root = root

    async def show(self, version: str) -> dict[str, Any]:
        return await self._decisions.show(*self._of, version)

    async def file(self, version: str, path: str) -> str:
        _, text = await self._decisions.file(*self._of, version, path)
        return text.decode("utf-8", "replace")

    async def diff(self, old: str, new: str) -> list[str]:
        """What differs, manifest first, as lines of a unified diff."""
        from cli.scripts.diff import unified

        before, after = await self.show(old), await self.show(new)
        changes = await self._decisions.changes(*self._of, new, old)
        found = list(unified(_manifest(before), _manifest(after), f"{old}/manifest", f"{new}/manifest"))
        for path in sorted([*changes["added"], *changes["removed"], *changes["changed"]]):
            texts = [
                "" if path in missing else await self.file(version, path)
                for version, missing in ((old, changes["added"]), (new, changes["removed"]))
            ]
            names = [
                "/dev/null" if path in missing else f"{version}/{path}"
                for version, missing in ((old, changes["added"]), (new, changes["removed"]))
            ]
            found += unified(*texts, *names)
        return found


def _manifest(version: dict[str, Any]) -> str:
    return json.dumps({key: version[key] for key in _MANIFEST}, ensure_ascii=False, indent=2, sort_keys=True)


async def _show(versions: _Versions, version: str, file: str | None, *, as_json: bool) -> None:
    if file is not None:
        say((await versions.file(version, file)).removesuffix("\n"))
        return
    found = await versions.show(version)
    if as_json:
        say_json(found)
        return
    for line in _lines(versions.root, found):
        say(line)
    if found["changes"] is not None:
        against = found["changes"]["against"]
        say()
        for line in await versions.diff(against, version) or [f"The same as {against}."]:
            say(line)
    if found["asks"]:
        note(f"To approve what it asks for: engine {versions.root} approve {found['name']} {found['version']}")


def _lines(root: "Root", version: dict[str, Any]) -> Iterator[str]:
    yield described(root, version)
    yield f"Published: {version['published_at']} by {version['published_by']}"
    if version["approved_by"] is not None:
        yield f"Approved by: {version['approved_by']}"
    if version["means"]:
        yield version["means"]
    yield ""
    yield _manifest(version)
    yield ""
    yield "Files:"
    yield from (f"  {each['path']} ({each['size']:,} bytes)" for each in version["files"])

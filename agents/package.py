"""An uploaded package whose manifest was checked: script, files, and the grants that it requests. Pure."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agents.agent import AgentArgument
from control.versions.grants import Grants
from control.versions.records import spelled
from engine.bundle import Modules

Root = Literal["agent", "tool"]


@dataclass(frozen=True, slots=True)
class Package:
    """A checked manifest. `files` are texts by path, the script `main` among them; with `partial`, only what a call
    needs: the script and `modules`, the files that it requires.

    `tools` narrows the list that the script declares, `arguments` replaces those that it declares; None if the manifest
    does not have the key.
    """

    root: Root
    name: str
    version: str
    kind: str
    main: str
    files: Mapping[str, str]
    tools: tuple[str, ...] | None
    arguments: tuple[AgentArgument, ...] | None
    grants: Grants
    config: Mapping[str, Any]

    # SHA-256 of the content, equal for equal packages under any name.
    digest: str = field(default="", compare=False)
    partial: bool = field(default=False, compare=False)
    modules: Modules = field(default=(), compare=False)
    # The whole version in its canonical spelling, without the name and version that it is published under. Made once,
    # when a package is uploaded: it takes 10 ms a megabyte. Empty in a package that was restored.
    content: bytes = field(init=False, repr=False, compare=False)

    # The content with the files that a call needs alone. None if there are no others, and in a package that was
    # restored. Made with the content, not on the event loop: a script may be as large as a package.
    head: bytes | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        content, head = b"", None
        if not self.digest:
            content = self._content(self.files)
            needed = {name: self.files[name] for name in (self.main, *(name for name, _ in self.modules))}
            if self.kind == "chatmd":  # a document is made of the files that it names, each time it is loaded
                needed = dict(self.files)
            head = self._content(needed) if len(self.files) > len(needed) else None
            object.__setattr__(self, "digest", hashlib.sha256(content).hexdigest())
        object.__setattr__(self, "content", content)
        object.__setattr__(self, "head", head)

    @property
    def has_data(self) -> bool:
        """Whether there are files beside the script, which it may read."""
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

"""The tasks of MCP (extension `io.modelcontextprotocol/tasks`, SEP-2663): states, bounds, expiry. Pure.

A client of 2026-07-28 that declares the extension gets a call that takes long as a task, and asks for its answer later.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

EXTENSION = "io.modelcontextprotocol/tasks"
# A call that takes longer becomes a task.
LATE_S = 2.0
# A tenant has at most this many, and each is kept this long from its creation. A call that would be one more stays a
# call. No run takes longer than the ceiling of `timeout_s`, 300 s.
TASKS = 64
KEPT_S = 3600.0
# How often a client should ask for its state.
POLL_S = 1.0

Status = Literal["working", "input_required", "completed", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Owner:
    """To whom a call belongs: for others its ids are unknown.

    `agent` is the one that the request was limited to, `reader` what the caller may read.
    """

    tenant: str
    agent: str | None
    reader: Hashable


@dataclass(slots=True)
class Task:
    """One task. Times are seconds of the system's clock."""

    id: str
    owner: Owner
    created: float
    updated: float
    status: Status = "working"
    message: str | None = None

    @property
    def ended(self) -> bool:
        return self.status in ("completed", "failed", "cancelled")

    def move(self, status: Status, now: float, message: str | None = None) -> bool:
        """Move to a state; False if it is in that state, or has ended, which is for good."""
        if self.ended or self.status == status:
            return False
        self.status, self.updated, self.message = status, now, message
        return True

    def told(self) -> dict[str, Any]:
        """What every message about it says."""
        told = {
            "taskId": self.id,
            "status": self.status,
            "createdAt": _stamp(self.created),
            "lastUpdatedAt": _stamp(self.updated),
            "ttlMs": int(KEPT_S * 1000),
            "pollIntervalMs": int(POLL_S * 1000),
        }
        return told if self.message is None else {**told, "statusMessage": self.message}


class Table:
    """The tasks of one server."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    def __iter__(self) -> Iterator[Task]:
        return iter(list(self._tasks.values()))

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, id: str, owner: Owner, now: float) -> Task | None:
        """A new task, or None if its tenant has as many as it may."""
        if sum(each.owner.tenant == owner.tenant for each in self._tasks.values()) >= TASKS:
            return None
        task = self._tasks[id] = Task(id, owner, now, now)
        return task

    def find(self, id: str, owner: Owner) -> Task | None:
        """This owner's task; None for an unknown one, and for that of another owner."""
        task = self._tasks.get(id)
        return task if task is not None and task.owner == owner else None

    def remove(self, task: Task) -> None:
        self._tasks.pop(task.id, None)


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

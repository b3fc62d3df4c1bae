"""`subscriptions/listen` (MCP 2026-07-28): one long answer that notifies a client when one of its lists changes.

An event carries no data but "fetch this again", so a listener queues each kind at most once: a client that never reads
costs a few bytes, however much changes. A stream ends when the client disconnects, when it reads nothing for too long
(`server.transport.http1`), or, with a final result, when the server shuts down.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import mcp_types as t
import trio
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import (
    SUBSCRIPTION_ID_META_KEY,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
    event_matches,
    event_to_notification,
)

from agents.changes import Change
from agents.documents import Documents
from engine.errors import Code, Problem
from engine.tenant import Tenant
from server.logs import log
from server.mcp.caller import Caller, Context
from server.mcp.shapes import document_id

# Bound on the streams of all tenants together; each holds a connection and a few tasks.
LISTENERS = 2048
# Bound on the documents that one stream watches. Of more, the first ones are watched: the acknowledgement lists them.
WATCHED = 100
# Interval for polling the store for changes, while a stream watches documents. A poll takes 0.1 ms.
LOOK_EVERY_S = 0.4

TOOLS_CHANGED = ToolsListChanged()
PROMPTS_CHANGED = PromptsListChanged()


@dataclass(frozen=True, slots=True)
class TaskChanged:
    """A task that a stream watches is in another state."""

    id: str


@dataclass(frozen=True, slots=True)
class Watching:
    """The tasks that a stream watches, and their state, which raises MCPError for one that has expired."""

    ids: Iterable[str] = ()
    detail: Callable[[str], dict[str, Any]] = lambda id: {}


class _TaskNotification(t.Notification[dict[str, Any], Literal["notifications/tasks"]]):
    method: Literal["notifications/tasks"] = "notifications/tasks"
    params: dict[str, Any]


_Event = ServerEvent | TaskChanged


class _Listener:
    """One open stream: its subscriptions, and the events that are not sent yet."""

    def __init__(
        self, tenant: Tenant, asked: t.SubscriptionFilter, documents: Documents | None, tasks: Iterable[str]
    ) -> None:
        self.tasks = frozenset(tasks)
        self.tenant = tenant
        self.documents = documents
        # Address -> id of the watched documents.
        self.watched = _watched(asked.resource_subscriptions or ()) if documents is not None else {}
        self.honored = t.SubscriptionFilter(
            tools_list_changed=asked.tools_list_changed or None,
            prompts_list_changed=asked.prompts_list_changed or None,
            resources_list_changed=(asked.resources_list_changed or None) if documents is not None else None,
            resource_subscriptions=list(self.watched) or None,
            **({"taskIds": sorted(self.tasks)} if self.tasks else {}),
        )
        self._uris = frozenset(self.watched)
        # The revision of the store at the last event, and the digests of the watched documents then.
        self._revision: int | None = None
        self._digests: dict[str, str] = {}
        # Tasks may have changed before the stream was open.
        self._pending: dict[_Event, None] = {TaskChanged(each): None for each in sorted(self.tasks)}
        self._ended = False
        self._news = trio.Event()

    @property
    def of_documents(self) -> bool:
        return bool(self.honored.resources_list_changed or self.watched)

    @property
    def watching(self) -> bool:
        """Whether it subscribes to documents, and has taken their initial state."""
        return self.of_documents and self._revision is not None

    def offer(self, event: ServerEvent) -> None:
        """Queue an event if the client subscribed to it."""
        if event_matches(self.honored, self._uris, event):
            self._pending[event] = None
            self._news.set()

    def offer_task(self, event: TaskChanged) -> None:
        """Queue a task's change if the client watches it."""
        if event.id in self.tasks:
            self._pending[event] = None
            self._news.set()

    def end(self) -> None:
        """Accept no more events; queued ones are still sent."""
        self._ended = True
        self._news.set()

    async def next(self) -> _Event | None:
        """Wait for the next event; None at the end."""
        while not self._pending:
            if self._ended:
                return None
            self._news = trio.Event()
            await self._news.wait()
        event = next(iter(self._pending))
        del self._pending[event]
        return event

    async def look(self, *, tell: bool = True) -> None:
        """Read the store's revision and queue what changed. Raises Problem if the store is unavailable."""
        assert self.documents is not None
        revision = await self.documents.revision()
        if revision == self._revision:
            return
        digests = await self.documents.digests(tuple(self.watched.values())) if self.watched else {}
        changed = [uri for uri, each in self.watched.items() if digests.get(each) != self._digests.get(each)]
        self._revision, self._digests = revision, digests
        if tell:
            self.offer(ResourcesListChanged())
            for uri in changed:
                self.offer(ResourceUpdated(uri))


def _watched(uris: Iterable[str]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for uri in uris:
        each = document_id(uri)
        if each is not None and len(found) < WATCHED:
            found[uri] = each
    return found


class Listeners:
    """The open streams of one server. `watch` must run while they are served."""

    def __init__(self, bound: int = LISTENERS) -> None:
        self._bound = bound
        self._open: set[_Listener] = set()
        self._subscribed = trio.Event()  # set when a stream of documents was opened

    def __len__(self) -> int:
        return len(self._open)

    def tell(self, *events: ServerEvent, tenant_id: str | None = None) -> None:
        """Offer events to the streams of a tenant, or of all tenants."""
        for listener in self._open:
            if tenant_id is None or listener.tenant.id == tenant_id:
                for event in events:
                    listener.offer(event)

    def hear(self, change: Change) -> None:
        """Offer the events for a change of the agents and tools."""
        events = [
            event for changed, event in ((change.tools, TOOLS_CHANGED), (change.agents, PROMPTS_CHANGED)) if changed
        ]
        self.tell(*events, tenant_id=change.tenant)

    def tell_task(self, id: str) -> None:
        """Offer a task's change to the streams that watch it."""
        event = TaskChanged(id)
        for listener in self._open:
            listener.offer_task(event)

    async def serve(
        self,
        ctx: Context,
        params: t.SubscriptionsListenRequestParams,
        caller: Caller,
        documents: Documents | None,
        tasks: Watching = Watching(),
    ) -> t.SubscriptionsListenResult:
        """Serve one stream; without `documents` it carries no events about them.

        Raises Problem `unavailable` if there are too many streams, or if the store is unavailable.
        """
        meta = {SUBSCRIPTION_ID_META_KEY: ctx.request_id}
        async with self.opened(caller.tenant, params.notifications, documents, tasks.ids) as listener:
            caller.when_draining(listener.end)
            acknowledged = t.SubscriptionsAcknowledgedNotification(
                params=t.SubscriptionsAcknowledgedNotificationParams(notifications=listener.honored, _meta=meta)
            )
            await ctx.session.send_notification(acknowledged, related_request_id=ctx.request_id)
            while (event := await listener.next()) is not None:
                if isinstance(event, TaskChanged):
                    await _send_task(ctx, tasks, event.id, meta)
                    continue
                told = event_to_notification(event, meta)
                await ctx.session.send_notification(told, related_request_id=ctx.request_id)
        return t.SubscriptionsListenResult(_meta=meta)

    @asynccontextmanager
    async def opened(
        self,
        tenant: Tenant,
        asked: t.SubscriptionFilter,
        documents: Documents | None,
        tasks: Iterable[str] = (),
    ) -> AsyncIterator[_Listener]:
        """One stream, for as long as the block lasts. Transports that notify without a subscription use it directly.

        Raises Problem as `serve` does.
        """
        listener = _Listener(tenant, asked, documents, tasks)
        self._admit(listener)
        try:
            if listener.of_documents:
                await listener.look(tell=False)
                self._subscribed.set()
            yield listener
        finally:
            self._open.discard(listener)

    def _admit(self, listener: _Listener) -> None:
        """Admit it while its tenant holds fewer places than are free, so that no tenant can take all of them."""
        held = sum(each.tenant.id == listener.tenant.id for each in self._open)
        if held >= self._bound - len(self._open):
            raise Problem(Code.UNAVAILABLE, "too many subscriptions are open", retry_after_s=30)
        self._open.add(listener)

    async def watch(self) -> None:
        """Poll for changed documents while a stream watches them. Runs until cancelled."""
        while True:
            await self._subscribed.wait()
            await trio.sleep(LOOK_EVERY_S)
            watching = [listener for listener in self._open if listener.watching]
            if not watching:
                self._subscribed = trio.Event()
            for listener in watching:
                try:
                    await listener.look()
                except Problem as problem:
                    log.warning("cannot look for changed documents", reason=problem.message)
                    break


async def _send_task(ctx: Context, tasks: Watching, id: str, meta: Mapping[str, Any]) -> None:
    """Send what `tasks/get` would answer now, unless the task has expired."""
    try:
        detail = tasks.detail(id)
    except MCPError:
        return
    told = _TaskNotification(params={**detail, "_meta": dict(meta)})
    # The SDK's type lists the notifications of the core; it sends any.
    await ctx.session.send_notification(told, related_request_id=ctx.request_id)  # type: ignore[arg-type]

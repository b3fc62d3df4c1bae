"""`context.emit`, `context.deleted`: what a connector finds, one item at a time. An answer means room for the next."""

from typing import Annotated, Any

import msgspec

from engine.bridge import CallDenied, HostContext, HostFunction
from engine.bridge.families import Family
from engine.run import Scan

EMIT, DELETED = "context.emit", "context.deleted"
GRANTS = frozenset({EMIT, DELETED})


class EmitArguments(msgspec.Struct):
    """`size` is that of a body which is too large to be sent; the item then has only its source_id."""

    item: dict[str, Any]
    checkpoint: Any = None
    size: Annotated[int, msgspec.Meta(ge=0)] | None = None


class DeletedArguments(msgspec.Struct):
    source_id: Any


def functions() -> tuple[HostFunction, ...]:
    """The family."""

    async def emit(context: HostContext, arguments: EmitArguments) -> None:
        await _scan(context).emit(arguments.item, arguments.checkpoint, arguments.size, context.worked)

    async def deleted(context: HostContext, arguments: DeletedArguments) -> None:
        await _scan(context).deleted(arguments.source_id)

    return (HostFunction(EMIT, EmitArguments, emit), HostFunction(DELETED, DeletedArguments, deleted))


def _scan(context: HostContext) -> Scan:
    if context.hearers.scan is None:
        raise CallDenied("only a connector has this call, while a synchronisation runs its scan")
    return context.hearers.scan


FAMILY = Family.plain(lambda host: functions())

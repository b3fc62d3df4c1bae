"""`kv.get`, `kv.set`, `kv.delete`, `kv.list`, `kv.incr`: the keys of a script, which outlive its runs."""

import time
from typing import Any

import msgspec

from engine.bridge import CallDenied, CallRefused, HostContext, HostFunction
from engine.bridge.families import Family, Host
from engine.quota import Exceeded
from engine.run import RunRequest
from engine.values import encode_value, is_plain
from storage.kv import KvStore, count_keys, open_kv
from storage.kv_rows import INT64, Changed, KvError, KvFull, Listed, Place

# The store comes through here for what is above: none of that knows where it is kept.
__all__ = ["FAMILY", "GRANTS", "KvError", "KvStore", "Listed", "Place", "count_keys", "functions", "open_kv"]

GET, SET, DELETE, LIST, INCR = "kv.get", "kv.set", "kv.delete", "kv.list", "kv.incr"
GRANTS = frozenset({GET, SET, DELETE, LIST, INCR})

MAX_KEY_BYTES = 512
# Bound on a value as msgpack.
MAX_VALUE_BYTES = 64 * 1024
# Ten years. A larger figure is a mistake (milliseconds, a date), and an error at once.
MAX_TTL_S = 315_360_000
MAX_LISTED = 1000
LISTED = 100
# Bound on one tenant's calls under way: a transaction has places for the changes of several tenants.
AT_ONCE = 64
# CPU time for a value up to this is within the flat charge for each call.
SMALL_S = 50e-6
# CPU time for each key of a list: read, and made into a table (measured).
LISTED_KEY_S = 4e-6


class GetArguments(msgspec.Struct):
    key: str


class SetArguments(msgspec.Struct):
    key: str
    value: Any
    ttl_s: int | float | None = None
    if_version: int | float | None = None


class DeleteArguments(msgspec.Struct):
    key: str
    if_version: int | float | None = None


class ListArguments(msgspec.Struct):
    prefix: str = ""
    limit: int | float = LISTED
    after: str | None = None


class IncrArguments(msgspec.Struct):
    key: str
    by: int | float = 1


def functions(host: Host) -> tuple[HostFunction, ...]:
    """The family. A script's namespace is `authority.kv` of its tenant."""

    async def get(context: HostContext, arguments: GetArguments) -> Any:
        place = _place(context.request, arguments.key)
        entry = await _of(host).get(place.tenant, place.space, place.key)
        # The value is not decoded here: it was checked when it was set.
        return None if entry is None else (msgspec.Raw(entry.value), entry.version)

    async def set_(context: HostContext, arguments: SetArguments) -> Changed:
        place = _place(context.request, arguments.key)
        value = _encoded(context, arguments.value)
        ttl_s, if_version = _ttl(arguments.ttl_s), _version(arguments.if_version)
        hold = context.hold()
        hold.take(len(value))
        try:
            bound = _bound(host, context.request)
            return await _of(host).set(place, value, ttl_s=ttl_s, if_version=if_version, max_bytes=bound)
        except KvFull as full:
            raise _full(host, context.request, full) from None
        finally:
            hold.release()

    async def delete(context: HostContext, arguments: DeleteArguments) -> Changed:
        place = _place(context.request, arguments.key)
        return await _of(host).delete(place, if_version=_version(arguments.if_version))

    async def list_(context: HostContext, arguments: ListArguments) -> Any:
        space, prefix = _space(context.request), _bytes("prefix", arguments.prefix)
        after = b"" if arguments.after is None else _bytes("after", arguments.after)
        limit = _whole("limit", arguments.limit, 1, MAX_LISTED)
        found, more = await _of(host).listed(context.request.tenant.id, space, prefix, after=after, limit=limit)
        context.worked(len(found) * LISTED_KEY_S)
        keys = [{"key": each.key.decode(), "version": each.version, "bytes": each.size} for each in found]
        return keys, None if more is None else more.decode()

    async def incr(context: HostContext, arguments: IncrArguments) -> tuple[int, int]:
        place = _place(context.request, arguments.key)
        by = _whole("by", arguments.by, -INT64, INT64 - 1)
        try:
            return await _of(host).increment(place, by, max_bytes=_bound(host, context.request))
        except KvFull as full:
            raise _full(host, context.request, full) from None

    def call(name: str, arguments: type[msgspec.Struct], handler: Any) -> HostFunction:
        async def answered(context: HostContext, given: Any) -> Any:
            try:
                return await handler(context, given)
            except KvError as error:
                raise CallRefused(str(error)) from None

        return HostFunction(name, arguments, answered, at_once=AT_ONCE)

    return (
        call(GET, GetArguments, get),
        call(SET, SetArguments, set_),
        call(DELETE, DeleteArguments, delete),
        call(LIST, ListArguments, list_),
        call(INCR, IncrArguments, incr),
    )


def _of(host: Host) -> KvStore:
    if host.kv is None:
        raise CallRefused("this engine has no key-value store")
    return host.kv


def _space(request: RunRequest) -> str:
    space = request.authority.kv
    if space is None:
        raise CallDenied(
            f"{request.name!r} is not granted keys; kv = true in its entry grants them, or among the grants of its "
            "manifest"
        )
    return space


def _place(request: RunRequest, key: str) -> Place:
    space = _space(request)
    found = _bytes("key", key)
    if not found:
        raise CallRefused(f"key is empty; a key has 1 to {MAX_KEY_BYTES} bytes")
    return Place(request.tenant.id, space, found)


def _bytes(name: str, text: str) -> bytes:
    found = text.encode()
    if len(found) > MAX_KEY_BYTES:
        raise CallRefused(f"{name} has {len(found)} bytes; a key has at most {MAX_KEY_BYTES}")
    return found


def _encoded(context: HostContext, value: Any) -> bytes:
    """The value as it is stored: plain data within its bound."""
    if value is None:
        raise CallRefused("value is null, which a key cannot have; kv.delete removes a key")
    began_s = time.thread_time()
    plain = is_plain(value, context.request.limits.values.value_depth)
    encoded = encode_value(value) if plain else b""
    if (took_s := time.thread_time() - began_s) > SMALL_S:
        context.worked(took_s)
    if not plain:
        raise CallRefused("value is not JSON data, or is nested too deep")
    if len(encoded) > MAX_VALUE_BYTES:
        raise CallRefused(f"value has {len(encoded)} bytes, encoded as MessagePack; the most is {MAX_VALUE_BYTES}")
    return encoded


def _ttl(ttl_s: float | None) -> float | None:
    if ttl_s is not None and not 0 < ttl_s <= MAX_TTL_S:  # NaN fails it too
        raise CallRefused(f"ttl_s must be a number of seconds above 0, at most {MAX_TTL_S}, got {ttl_s:g}")
    return ttl_s


def _version(if_version: float | None) -> int | None:
    return None if if_version is None else _whole("if_version", if_version, 0, INT64 - 1)


def _whole(name: str, number: float, least: int, most: int) -> int:
    # `number % 1` is NaN for NaN and infinity.
    if not (least <= number <= most and number % 1 == 0):
        between = f" from {least} to {most}" if most < INT64 - 1 else f" of at least {least}" if least == 0 else ""
        raise CallRefused(f"{name} must be a whole number{between}, got {number:g}")
    return int(number)


def _bound(host: Host, request: RunRequest) -> int:
    return int(host.quotas_of(request.tenant)["kv_bytes"])


def _full(host: Host, request: RunRequest, full: KvFull) -> CallRefused:
    source = host.quotas_of(request.tenant).sources["kv_bytes"]
    return CallRefused(Exceeded("kv_bytes", full.bound, full.used, source, 0).message)


FAMILY = Family.plain(functions)

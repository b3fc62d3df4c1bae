"""`kv`: what a script may keep, and what is refused; the namespace, the quota and the worker's claims."""

import math
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from engine_support import ALL_GRANTS, run, small_config
from host_call_support import Caller
from hypothesis import given
from hypothesis import strategies as st

from engine.bridge import Bridge, HostContext, kv
from engine.bridge.families import Host
from engine.engine import open_engine
from engine.run import Authority, RunRequest
from engine.tenant import Tenant
from sandbox.wire.outcome import Outcome
from storage.kv import KvStore, open_kv

GRANTED = Authority(kv="agent:test")


def no_store(tenant: str) -> Any:
    raise AssertionError("no documents are read here")


def host_of(store: KvStore | None) -> Host:
    return Host(no_store, 12, {}, kv=store)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[KvStore]:
    async with open_kv(tmp_path / "kv.sqlite") as found:
        yield found


@pytest.fixture
def caller(store: KvStore) -> Caller:
    return Caller.of(kv.functions(host_of(store)), GRANTED)


async def test_a_value_comes_back_with_its_version(caller: Caller) -> None:
    for value in ("text", "", 0, -(2**63), 2**63 - 1, 1.5, True, [], {}, [1, [None]], {"a": {"b": []}}, "é\0"):
        done, version = await caller.value("kv.set", key="a", value=value)
        assert done
        for _ in range(3):
            assert await caller.value("kv.get", key="a") == [value, version]
    assert await caller.value("kv.get", key="b") is None
    assert await caller.value("kv.incr", key="n", by=2) == [2, version + 1]
    assert await caller.value("kv.list") == [
        [{"key": "a", "version": version, "bytes": 4}, {"key": "n", "version": version + 1, "bytes": 1}], None,
    ]  # fmt: skip
    assert await caller.value("kv.delete", key="a", if_version=1) == [False, version]
    assert await caller.value("kv.delete", key="a") == [True, 0]


@pytest.mark.parametrize(
    ("call", "arguments", "told"),
    [
        ("kv.get", {}, "key is nil: it is required"),
        ("kv.get", {"key": 5}, "key: expected string, got number"),
        ("kv.get", {"key": ""}, "key is empty; a key has 1 to 512 bytes"),
        ("kv.get", {"key": "é" * 257}, "key has 514 bytes; a key has at most 512"),
        ("kv.set", {"key": "k" * 10_240, "value": 1}, "key has 10240 bytes; a key has at most 512"),
        ("kv.list", {"prefix": "k" * 513}, "prefix has 513 bytes; a key has at most 512"),
        ("kv.list", {"after": "k" * 513}, "after has 513 bytes; a key has at most 512"),
        ("kv.set", {"key": "a"}, "value is nil: it is required"),
        ("kv.set", {"key": "a", "value": None}, "value is null, which a key cannot have; kv.delete removes a key"),
        ("kv.set", {"key": "a", "value": math.nan}, "value is not JSON data, or is nested too deep"),
        ("kv.set", {"key": "a", "value": [-math.inf]}, "value is not JSON data, or is nested too deep"),
        ("kv.set", {"key": "a", "value": b"bytes"}, "value is not JSON data, or is nested too deep"),
        ("kv.set", {"key": "a", "value": msgspec.msgpack.Ext(1, b"x")}, "value is not JSON data, or is nested too"),
        ("kv.set", {"key": "a", "value": "x" * 65_534}, "value has 65537 bytes, encoded as MessagePack; the most is"),
        ("kv.set", {"key": "a", "value": "x" * 200_000}, "value has 200005 bytes, encoded as MessagePack; the most is"),
        ("kv.set", {"key": "a", "value": [[]] * 60_000}, "the arguments hold more than 50000 values"),
        ("kv.set", {"key": "a", "value": 1, "ttl_s": 0}, "ttl_s must be a number of seconds above 0"),
        ("kv.set", {"key": "a", "value": 1, "ttl_s": -1.5}, "at most 315360000, got -1.5"),
        ("kv.set", {"key": "a", "value": 1, "ttl_s": math.inf}, "at most 315360000, got inf"),
        ("kv.set", {"key": "a", "value": 1, "ttl_s": math.nan}, "at most 315360000, got nan"),
        ("kv.set", {"key": "a", "value": 1, "ttl_s": "1"}, "ttl_s: expected number or nil, got string"),
        ("kv.set", {"key": "a", "value": 1, "if_version": 1.5}, "if_version must be a whole number of at least 0"),
        ("kv.set", {"key": "a", "value": 1, "if_version": -1}, "if_version must be a whole number of at least 0"),
        ("kv.set", {"key": "a", "value": 1, "if_version": math.nan}, "whole number of at least 0, got nan"),
        ("kv.set", {"key": "a", "value": 1, "if_version": math.inf}, "whole number of at least 0, got inf"),
        ("kv.set", {"key": "a", "value": 1, "if_version": 2**64 - 1}, "whole number of at least 0, got 1.84467e+19"),
        ("kv.delete", {"key": "a", "if_version": True}, "if_version: expected number or nil, got boolean"),
        ("kv.list", {"limit": 0}, "limit must be a whole number from 1 to 1000, got 0"),
        ("kv.list", {"limit": 1001}, "limit must be a whole number from 1 to 1000, got 1001"),
        ("kv.list", {"limit": 1e300}, "limit must be a whole number from 1 to 1000, got 1e+300"),
        ("kv.incr", {"key": "a", "by": 0.5}, "by must be a whole number, got 0.5"),
        ("kv.incr", {"key": "a", "by": math.nan}, "by must be a whole number, got nan"),
        ("kv.incr", {"key": "a", "by": 1e19}, "by must be a whole number, got 1e+19"),
        ("kv.incr", {"key": "a", "by": "1"}, "by: expected number, got string"),
    ],
)
async def test_what_is_no_key_value_or_option_is_refused_and_changes_nothing(
    caller: Caller, call: str, arguments: dict[str, Any], told: str
) -> None:
    await caller.value("kv.set", key="a", value="before")
    text = await caller.refusal(call, **arguments)
    assert text.startswith(f"{call}: "), text
    assert told in text, text
    assert (await caller.value("kv.get", key="a"))[0] == "before"
    assert len((await caller.value("kv.list"))[0]) == 1


async def test_a_value_may_be_nested_as_deep_as_values_are(caller: Caller) -> None:
    deep: Any = 1
    for _ in range(64):
        deep = [deep]
    await caller.value("kv.set", key="a", value=deep)
    assert "nested too deep" in await caller.refusal("kv.set", key="a", value=[deep])


async def test_whole_numbers_may_be_written_as_fractions_as_lua_does(caller: Caller) -> None:
    _, version = await caller.value("kv.set", key="a", value=1, if_version=0.0, ttl_s=1e3)
    assert await caller.value("kv.incr", key="a", by=2.0) == [3, version + 1]
    assert len((await caller.value("kv.list", limit=5.0))[0]) == 1


async def test_without_the_grant_every_call_is_refused_and_noted(store: KvStore) -> None:
    bridge = Bridge(kv.functions(host_of(store)))
    denied: list[str] = []
    bridge.on_denied = lambda request, name: denied.append(name)
    caller = Caller(bridge, Authority())
    calls = [("kv.get", {}), ("kv.set", {"value": 1}), ("kv.delete", {}), ("kv.list", {}), ("kv.incr", {})]
    for name, more in calls:
        key = {} if name == "kv.list" else {"key": "a"}
        told = await caller.refusal(name, **key, **more)
        assert told.startswith(f"{name}: 'test' is not granted keys; kv = true in its entry grants them")
    assert denied == [name for name, _ in calls]
    assert not store.path.exists()


async def test_without_a_store_a_call_says_so() -> None:
    caller = Caller.of(kv.functions(host_of(None)), GRANTED)
    assert await caller.refusal("kv.get", key="a") == "kv.get: this engine has no key-value store"


async def test_the_namespace_is_the_tenant_and_the_space_of_the_run(store: KvStore) -> None:
    spaces = [(Tenant(tenant), space) for tenant in ("a", "b") for space in ("agent:x", "agent:y", "tool:x")]
    callers = [Caller.of(kv.functions(host_of(store)), Authority(kv=space), tenant=who) for who, space in spaces]
    for number, caller in enumerate(callers):
        await caller.value("kv.set", key="k", value=number)
    for number, caller in enumerate(callers):
        assert (await caller.value("kv.get", key="k"))[0] == number
        assert len((await caller.value("kv.list"))[0]) == 1


async def test_the_quota_is_that_of_the_tenant_and_its_refusal_names_it(store: KvStore) -> None:
    tenant = Tenant("small", quotas={"kv_bytes": 500})
    caller = Caller.of(kv.functions(host_of(store)), GRANTED, tenant=tenant)
    await caller.value("kv.set", key="a", value="x" * 200)
    await caller.value("kv.set", key="c", value="x" * 20)
    used = await store.used_bytes("small")
    for name, more in (("kv.set", {"value": "x" * 200}), ("kv.incr", {"by": 1})):
        told = await caller.refusal(name, key="b", **more)
        assert told == f"{name}: this tenant's keys have {used} bytes; the limit is 500 (quota.kv_bytes)"
    await caller.value("kv.delete", key="a")
    await caller.value("kv.set", key="b", value="x" * 200)


async def test_bytes_that_a_broken_worker_sends_are_never_stored(caller: Caller, store: KvStore) -> None:
    """What is not MessagePack, or not text where text is due."""
    request = RunRequest(
        tenant=caller.tenant, name="test", script=None, root="agent", method="resolve",  # type: ignore[arg-type]
        limits=None, grants=caller.bridge.names, authority=GRANTED,  # type: ignore[arg-type]
    )  # fmt: skip
    context = HostContext(request, "r", lambda level, text: None, dict, lambda usage: None)
    for raw in (
        b"", b"\x82\xa3key\xa1a\xa5value", b"\x82\xa3key\xa1a\xa5value\xc1", b"\x82\xa3key\xa2\xff\xfe\xa5value\x01",
        b"\x82\xa3key\xa1a\xa5value\xa2\xff\xfe", b"\x82\xa3key\xc4\x01a\xa5value\x01",
        b"\x82\xa3key\xa1a\xa5value" + b"\x91" * 5000 + b"\x01", b"\x82\xa3key\xa1a\xa5value\xd7\xff" + bytes(8),
    ):  # fmt: skip
        reply = await caller.bridge.call(context, "kv.set", raw)
        assert not reply.ok, raw[:40]
    assert await caller.value("kv.get", key="a") is None


_LEAVES = (
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner | st.none(), max_size=4) | st.dictionaries(st.text(), inner | st.none(), max_size=4),
    max_leaves=20,
)


@given(_VALUES)
def test_every_json_value_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    async def check() -> None:
        async with open_kv(tmp_path_factory.mktemp("kv") / "kv.sqlite") as store:
            caller = Caller.of(kv.functions(host_of(store)), GRANTED)
            await caller.value("kv.set", key="a", value=value)
            found, _ = await caller.value("kv.get", key="a")
            assert repr(found) == repr(value)

    trio.run(check)


# ---- with a worker ------------------------------------------------------------------------------------------------


async def test_a_script_in_a_worker_keeps_its_keys_over_runs(store: KvStore) -> None:
    grants = ALL_GRANTS | kv.GRANTS
    async with open_engine(small_config(), kv.functions(host_of(store))) as engine:

        async def ran(body: str, **how: Any) -> Any:
            result = await run(engine, body, grants=grants, **{"authority": GRANTED, **how})
            assert result.outcome is Outcome.OK, result.failure
            return result.value

        assert await ran("kv.set('a', {x = {1, 2}}) return (kv.get('a')).x[2]") == 2
        assert await ran("return (kv.get('a')).x[1]") == 1
        assert await ran("return select('#', kv.get('missing'))") == 1
        assert await ran("local v = kv.set('b', 1) return kv.set('b', 2, {if_version = v}) == v + 1") is True
        assert await ran("return {kv.set('b', 3, {if_version = 0})}") == [None, 3]
        assert await ran("local v, n = kv.set('b', 3, {if_version = 0}) return {v == nil, n}") == [True, 3]
        assert await ran("return {kv.delete('b', {if_version = 1})}") == [False, 3]
        assert await ran("return {kv.delete('b'), kv.delete('b')}") == [True, False, 0]
        # A thousand increments, in functions side by side of several runs.
        body = """
            local fs = {}
            for i = 1, 50 do fs[i] = function() kv.incr("n") end end
            context.parallel(fs)
            return 1
        """
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(ran, body)
        assert await ran("return (kv.get('n'))") == 1000
        assert await ran("return (kv.get('n'))", authority=replace(GRANTED, kv="agent:other")) is None


HOSTILE = {
    "a cycle": ("local t = {} t.t = t kv.set('a', t)", "the argument .value.t contains itself"),
    "a function": ("kv.set('a', {f = print})", "the argument .value.f is a function"),
    "NaN": ("kv.set('a', 0/0)", "the argument .value is not a number (NaN)"),
    "infinity": ("kv.set('a', 1, {ttl_s = 1/0})", "the argument .ttl_s is an infinite number"),
    "a huge value": ("kv.set('a', ('x'):rep(5000000))", "is larger than"),
    "a key of 10 KB": ("kv.set(('k'):rep(10240), 1)", "key has 10240 bytes"),
    "a colon": ("kv:get('a')", "call it with a dot, kv.get(...), not with a colon"),
    "options that are none": ("kv.set('a', 1, 60)", "kv.set: the options must be a table, got number"),
    "an option of another type": ("kv.set('a', 1, {ttl_s = {}})", "ttl_s: expected number or nil, got table"),
    "inside sort": ("table.sort({2, 1}, function() local x = kv.get('a') end)", "kv.get cannot be called here"),
}


async def test_what_a_script_does_wrong_is_an_error_with_its_line(store: KvStore) -> None:
    grants = ALL_GRANTS | kv.GRANTS
    async with open_engine(small_config(), kv.functions(host_of(store))) as engine:
        for name, (body, told) in HOSTILE.items():
            result = await run(engine, f"\n{body}", grants=grants, authority=GRANTED, limits={"output_bytes": 1 << 20})
            assert result.outcome is Outcome.SCRIPT_ERROR, name
            assert result.failure is not None
            assert told in result.failure.message, name
            assert ":2: " in result.failure.message, name
        after = await run(engine, "kv.set('a', 1) return (kv.get('a'))", grants=grants, authority=GRANTED)
        assert after.value == 1


async def test_an_option_that_does_not_exist_is_a_warning_with_the_one_that_was_meant(caller: Caller) -> None:
    await caller.value("kv.set", key="a", value=1, ttl=5)
    assert caller.lines == [("warn", "kv.set: unknown option 'ttl' is ignored; did you mean 'ttl_s'?")]

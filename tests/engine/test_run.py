"""A request and a result are plain data: what crosses a wire as bytes is run as it was asked."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from engine_support import FakeStore, script_of, small_config

from engine.bridge import env, knowledge
from engine.egress.secrets import BoundSecret, MissingSecret, Vault
from engine.engine import Engine, open_engine
from engine.run import Authority, Hearers, LogLine, RunRequest, RunResult, Script
from engine.tenant import Tenant, bind_limits
from sandbox.wire.outcome import Outcome

OPERATORS = "the-operators-own-value"


class Vaults:
    """One secret for every tenant."""

    async def vault(self, tenant: str) -> Vault:
        return Vault([BoundSecret.from_rules("TOKEN", "the-real-value", ["api.example.com"])])


def request(engine: Engine, body: str, **how: Any) -> RunRequest:
    """A request with something in every field."""
    tenant = Tenant("acme", weight=2.5, ceilings={"cpu_s": 3}, quotas={"burst": 7}, key="k1")
    return RunRequest(
        tenant=tenant, name="mine", script=Script.from_source("t.lua", script_of(body)), root="agent", method="resolve",
        args=({"n": 1, "list": [1.5, None, True]}, "two"), config={"auth": "secret:TOKEN", "deep": {"a": [1]}},
        config_last=True, limits=engine.limits_for({"timeout_s": 5.0, "host_calls": 3}, tenant),
        grants=knowledge.GRANTS | env.GRANTS,
        authority=Authority(
            hosts=("api.example.com", "10.0.0.5:8080"), env=frozenset({"HOME"}), folder=str(Path("/srv/scripts")),
            tools=("search",), secrets=frozenset({"TOKEN"}),
        ),
        masked=(OPERATORS,), callers=(), **how,
    )  # fmt: skip


async def test_a_request_and_its_result_cross_a_wire_as_bytes() -> None:
    store = FakeStore()
    lines: list[LogLine] = []
    body = f"""
        local given, two, config, context = ...
        log.info('{OPERATORS}')
        context.search('x')
        return {{given, two, config.deep.a[1], config.auth == secrets.TOKEN, #config.auth > 32}}
    """
    async with open_engine(small_config(), knowledge.functions(lambda tenant: store, default_limit=5)) as engine:
        engine.secrets = Vaults()
        asked = request(engine, body)
        arrived = msgspec.msgpack.decode(msgspec.msgpack.encode(asked), type=RunRequest)
        assert arrived == asked
        with trio.fail_after(20):
            result = await engine.execute(arrived, hearers=Hearers(log=lines.append))
    assert (result.outcome, result.failure) == (Outcome.OK, None)
    assert result.value == [{"n": 1, "list": [1.5, None, True]}, "two", 1, True, True]
    assert [line.text for line in lines] == ["[redacted]"]
    assert result.usage.host_calls == {"context.search": 1}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(result), type=RunResult) == result


async def test_a_secret_that_the_keys_name_and_the_tenant_has_not_is_found_where_the_request_is_run() -> None:
    async with open_engine(small_config()) as engine:
        with pytest.raises(MissingSecret, match="auth names the secret 'TOKEN'"):
            await engine.execute(request(engine, "return 1"))


def test_a_request_does_not_show_what_it_holds() -> None:
    tenant = Tenant("acme")
    held = RunRequest(
        tenant=tenant, name="mine", script=Script.from_source("t.lua", b""), root="tool", method="execute",
        limits=bind_limits({}, tenant, {}, {}), masked=(OPERATORS,), config={"a": OPERATORS},
    )  # fmt: skip
    assert repr(held) == "<RunRequest tool:mine of acme>"

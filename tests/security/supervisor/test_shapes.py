"""Attacks at random, and the harness itself: every kind of work is attacked, and what breaks a bound is found."""

import json
import math
import random
from pathlib import Path

import msgspec
import pytest
from effort import effort, part
from hypothesis import given
from hypothesis import strategies as st

from engine.work import GROWTH, LOOP_S, WORK
from sandbox.wire.limits import MIB
from supervisor import answers, declarations, frames, requests, uploads
from supervisor.attack import BODY, Ask, Attack, Place, Plan
from supervisor.driver import Cost, Driver, problems
from supervisor.shapes import KINDS, attack, genome, mutated, of

TABLES = (requests, uploads, declarations, answers, frames)
TESTS = Path(__file__).parents[2]
EVERY = [each for table in TABLES for each in table.ATTACKS]
# Of each kind, so many at random.
AT_RANDOM = effort(4)


@pytest.mark.whole
@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
async def test_no_input_at_random_keeps_the_loop_swells_the_supervisor_or_goes_unpaid() -> None:
    chance = random.Random(11)
    genomes = [genome(kind, chance) for kind in KINDS for _ in range(AT_RANDOM)]
    assert await problems(map(attack, part(genomes, lambda each: each.kind, one_in=2))) == []


# What takes a peer of another kind than a client with a key, and the tests that are one.
ELSEWHERE = {
    "chunks": "server/test_framing.py",  # a body in pieces on a raw socket
    "json": "engine/test_call_room.py",  # a host that answers a script
    "veil": "engine/test_secrets.py",
    "token": "server/oauth/test_keys.py",  # an issuer that signs it
    "issuer keys": "server/oauth/test_issuers.py",
    "document": "engine/test_extraction.py",  # a file of a source
    "source of a prompt": "agents/chatmd/test_agents.py",  # a host that a document names
    "emitted item": "cli/test_scanning.py",  # only a source's script emits
    "checkpoint": "cli/test_scanning.py",
    "query": "knowledge/test_embedding.py",  # a model and its vectors
    "model answer": "models/test_wires.py",  # a server of models
    "conversation": "agents/chatmd/test_run.py",  # what a model makes of a run
    "published document": "agents/chatmd/test_published.py",
    "tool server's answer": "agents/toolbox/test_servers.py",
}


def test_every_kind_of_work_for_strangers_is_attacked() -> None:
    attacked = {work for each in EVERY for work in each.work}
    assert attacked | set(ELSEWHERE) == set(WORK), "an attack names the rows of engine.work.WORK that it drives"
    for file in ELSEWHERE.values():
        assert (TESTS / file).is_file()


def test_every_attack_has_a_name_of_its_own_and_tells_its_size() -> None:
    assert len({each.name for each in EVERY}) == len(EVERY)
    for each in EVERY:
        plan = each.plan(Place(1, 9))
        assert plan.asks
        assert 0 < plan.size <= 16 * MIB
        assert all(len(ask.body) <= BODY for ask in (*plan.asks, *plan.before) if not ask.operator), each.name


@given(st.integers(0, 10_000), st.sampled_from(KINDS))
def test_whatever_is_mutated_is_an_attack_that_can_be_told_and_made_again(seed: int, kind: str) -> None:
    chance = random.Random(seed)
    one = genome(kind, chance)
    for _ in range(chance.randrange(6)):
        one = mutated(one, chance)
    again = of(json.loads(json.dumps(one.told())))
    assert again == one
    plan, same = (attack(each, 10_000).plan(Place(1, 9)) for each in (one, again))
    assert plan == same
    for ask in plan.asks:
        json.loads(ask.body)
        assert len(ask.body) <= 10_000
    msgspec.msgpack.encode(one.unit)


@pytest.mark.parametrize(
    ("cost", "says"),
    [
        (Cost("x", 1000, kept_s=LOOP_S * 2, paid_s=1), "kept the loop"),
        (Cost("x", 1000, kept_s=0, held_s=LOOP_S * 2), "kept the loop"),
        (Cost("x", MIB, kept_s=0, growth=(GROWTH + 16) * MIB), "grew by"),
        (Cost("x", 1000, kept_s=LOOP_S, paid_s=0.001), "the tenant paid 1"),
        (Cost("x", 1000, kept_s=math.inf), "no answer within"),
        (Cost("x", 1000, kept_s=0, wrong=("another tenant's run",)), "another tenant's run"),
    ],
)  # fmt: skip
def test_what_keeps_no_bound_is_a_problem(cost: Cost, says: str) -> None:
    assert any(says in problem for problem in cost.problems())


def test_what_keeps_every_bound_is_none_also_on_a_machine_that_is_slower_meanwhile() -> None:
    assert Cost("x", MIB, kept_s=LOOP_S, growth=GROWTH * MIB, paid_s=LOOP_S).problems() == []
    assert Cost("x", MIB, kept_s=2 * LOOP_S, slow=2.0, paid_s=LOOP_S).problems() == []
    assert Cost("x", MIB, kept_s=2 * LOOP_S, slow=1.0, paid_s=LOOP_S).problems() != []


@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
async def test_the_driver_measures_nothing_where_nothing_is_done_and_the_time_of_what_is() -> None:
    nothing = Attack("nothing", ("body",), lambda place: Plan((Ask("GET", "/limits"),), 1))
    body = b'{"q":[' + b",".join([b"1"] * 20_000) + b"]}"
    some = Attack("some", ("body",), lambda place: Plan((Ask("POST", "/agents/echo/prompt", body),), len(body)))
    async with Driver() as driver:
        idle = await driver.cost(nothing)
        busy = await driver.once(some)
    assert idle.problems() == []
    assert idle.answers == busy.answers == ("200",)
    assert idle.cpu_s < busy.cpu_s < 1
    assert busy.paid_s > 0


@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
async def test_a_server_that_hangs_is_found_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.driver.TIMEOUT_S", 3.0)
    async with Driver() as driver:
        (await driver.target()).process.send_signal(19)  # SIGSTOP
        stopped = await driver.once(Attack("x", ("body",), lambda place: Plan((Ask("GET", "/limits"),), 1)))
        again = await driver.once(Attack("x", ("body",), lambda place: Plan((Ask("GET", "/limits"),), 1)))
    assert stopped.problems()
    assert again.problems() == []

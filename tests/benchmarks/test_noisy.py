"""The noisy neighbour: its configuration loads, its sender keeps its rate, and its table says what was found."""

from collections import Counter
from pathlib import Path

import pytest
import trio
import trio.testing

from benchmarks.aims import noisy
from benchmarks.aims.noisy import SCRIPTS, Sender, Used, configuration, keep_sending, report
from benchmarks.targets.address import Address
from engine.config import parse_config


def test_its_configuration_loads_with_every_script_for_every_tenant(tmp_path: Path) -> None:
    config, warnings = parse_config(configuration(tmp_path), environ={}, cwd=tmp_path)
    assert warnings == ()
    assert config.tenants.enabled
    assert {name: entry.tenants for name, entry in config.agents.script.items()} == dict.fromkeys(SCRIPTS, ("*",))
    assert all((tmp_path / f"{name}.lua").exists() for name in SCRIPTS)


async def test_requests_leave_when_they_are_due_however_slow_the_answers_are(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[float] = []

    async def slow(client: object, sender: Sender, number: int, outcomes: Counter[str]) -> None:
        sent.append(trio.current_time())
        await trio.sleep(5)
        outcomes["200"] += 1

    monkeypatch.setattr(noisy, "send", slow)
    outcomes: Counter[str] = Counter()
    begin = trio.current_time()
    taken = await keep_sending(Address("127.0.0.1", 1, "x"), Sender("k", ("a",), 10), outcomes, begin + 1)
    assert [round(at - begin, 3) for at in sent] == [number / 10 for number in range(10)]
    assert [round(each, 3) for each in taken] == [5.0] * 10
    assert outcomes == {"200": 10}


def test_what_was_used_is_a_difference_of_two_looks() -> None:
    assert Used(5, 3.0, 9.0, 4.0).since(Used(2, 1.0, 4.0, 4.0)) == Used(3, 2.0, 5.0, 0.0)


def test_the_table_has_every_turn_and_tells_the_rise_and_the_aim() -> None:
    rows = [
        {
            "turn": name, "requests": 10, "failed": 0, "p50_ms": 1.0, "p99_ms": p99, "queue_ms": 0.1, "run_ms": 0.9,
            "machine_busy": 0.5, "others": {"200": 3, "429": 7},
        }
        for name, p99 in (("alone", 2.0), ("well-behaved", 10.0), ("hostile", 12.0))
    ]  # fmt: skip
    facts = {"cores": 2, "processor": "p", "kernel": "k", "python": "3", "lupa": "2", "trio": "0", "load": 0.1}
    text = report(
        {
            "machine": facts, "rounds": 1, "seconds": 1.0, "rows": rows, "rise": 0.2,
            "hostile_cpu_share": {"most_cores": 0.4, "fair_cores": 0.5},
        }
    )  # fmt: skip
    assert all(name in text for name in ("alone", "well-behaved", "hostile", "+20%", "+50%", "3x200 7x429"))

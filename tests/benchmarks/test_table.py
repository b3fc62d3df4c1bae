"""The table of aims says what was measured and no more, and the contest behind it runs. No time is asserted."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.aims import contest, peers, table
from benchmarks.aims.contest import EIGHT, ONE, Contest, Seen
from benchmarks.aims.peers import Peer
from benchmarks.aims.peers.turns import Job
from benchmarks.aims.rows import Aim, Better, Found, counted, replaced, shown


@pytest.mark.parametrize(
    ("better", "least", "aim", "figure", "verdict"),
    [
        ("less", 1.5, 1.2, 1.2, "aim met"),
        ("less", 1.5, 1.2, 1.3, "pass"),
        ("less", 1.5, 1.2, 1.51, "FALLS SHORT"),
        ("more", 1.0, 2.0, 2.5, "aim met"),
        ("more", 1.0, 2.0, 1.0, "pass"),
        ("more", 1.0, 2.0, 0.99, "FALLS SHORT"),
        ("more", None, 1.0, 0.9, "FALLS SHORT"),
        ("less", 0.25, None, 0.2, "pass"),
        ("less", 0.25, None, None, "not measured"),
    ],
)
def test_a_verdict_follows_from_the_figure_and_both_bounds(
    better: Better, least: float | None, aim: float | None, figure: float | None, verdict: str
) -> None:
    found = Found(aim=Aim(what="a", beside="b", better=better, least=least, aim=aim), figure=figure)
    assert found.verdict == verdict


def test_a_row_without_a_figure_says_why_below_the_table() -> None:
    found = [Found(aim=Aim(what="rate", beside="a peer"), why="a peer is not installed: make peers")]
    text = shown(found)
    assert "not measured" in text
    assert "rate, beside a peer: a peer is not installed: make peers" in text
    assert counted(found) == "1 not measured"


def test_a_part_that_breaks_costs_its_own_rows_only(capsys: pytest.CaptureFixture[str]) -> None:
    def breaks() -> Sequence[Found]:
        raise RuntimeError("no such machine")

    found = table.attempt([table.MEMORY, table.MANY_IDLE], breaks)
    assert [(each.verdict, each.why) for each in found] == [("not measured", "RuntimeError: no such machine")] * 2
    assert "no such machine" in capsys.readouterr().err


def test_writing_replaces_what_stands_between_the_markers_and_nothing_else(tmp_path: Path) -> None:
    text = "before\n<!-- t -->\nold\n<!-- end of t -->\nafter\n"
    assert replaced(text, "t", "new\n") == "before\n<!-- t -->\nnew\n<!-- end of t -->\nafter\n"
    with pytest.raises(ValueError, match="other"):
        replaced(text, "other", "new")


@pytest.mark.parametrize(
    ("name", "path"),
    [(table.AIMS_TABLE, table.RESULTS), (table.PEERS_TABLE, table.README), (table.STORE_TABLE, table.STORE)],
)
def test_there_is_a_place_for_every_table_that_is_written(name: str, path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name
    copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    table.write(name, "the-new-table", copy)
    assert "the-new-table" in copy.read_text(encoding="utf-8")


def test_every_aim_of_the_contest_is_judged_and_names_its_absent_peer() -> None:
    held = Contest(1, absent={peers.MONTY: "not here", peers.MONTY_ASYNC: "not here", peers.BUBBLEWRAP: "no bwrap"})
    for name in (peers.ENGINE, peers.ENGINE_EXECUTION, peers.FLOOR, peers.PROCESS_POOL):
        for kind in contest.kinds(1):
            held.seen[name, kind.name] = Seen([300.0], [900.0], [3000.0], [400.0])
    found = {(each.aim.what, each.aim.beside): each for each in table.judged(held)}
    assert found[table.FLOOR_RATE.what, "floor"].figure == 1.0
    assert found[table.MONTY_RATE.what, "pydantic-monty"].why == "not here"
    assert found[table.TENANT_RATE.what, "bwrap lua5.4"].why == "no bwrap"


def test_of_a_peer_with_two_interfaces_the_better_one_is_compared() -> None:
    held = Contest(1)
    held.seen[peers.MONTY, EIGHT] = Seen([1.0], [5.0], [100.0], [1.0])
    held.seen[peers.MONTY_ASYNC, EIGHT] = Seen([1.0], [9.0], [200.0], [1.0])
    names = (peers.MONTY, peers.MONTY_ASYNC)
    assert held.better(EIGHT, "per_s", names) == peers.MONTY_ASYNC
    assert held.better(EIGHT, "p99_us", names) == peers.MONTY


def _peer(name: str, module: str, **needs: str) -> Peer:
    return Peer(name=name, module=module, needs=needs, host_call="", isolation="")


def test_the_contest_measures_who_is_here_and_says_of_the_others_how_to_have_them() -> None:
    who = [
        *(peer for peer in peers.PEERS if peer.name in (peers.ENGINE, peers.FLOOR, peers.PROCESS_POOL)),
        _peer("not installed", "process_pool", **{"no-such-program": "apt install it"}),
        _peer("broken", "no_such_module"),
    ]
    # Long enough for a run of each on a machine that is busy: one that makes none is left out.
    held = contest.hold(2, 0.5, Path(sys.prefix), who)
    assert held.absent["not installed"] == "no-such-program is not installed: apt install it"
    assert "no_such_module" in held.absent["broken"]
    for peer in who[:3]:
        for kind in (ONE, EIGHT):
            seen = held.of(peer.name, kind)
            assert seen is not None
            assert len(seen.per_s) == len(seen.p99_us) == 2
            assert all(0 < p50 <= p99 for p50, p99 in zip(seen.p50_us, seen.p99_us, strict=True))
    assert held.ratio(ONE, "p50_us", peers.ENGINE, peers.ENGINE) == 1.0
    assert held.ratio(ONE, "p50_us", peers.ENGINE, "broken") is None


def test_a_contestant_that_answers_wrongly_is_not_measured() -> None:
    job = Job({"id": "1", "title": "T", "body": "four"}, 1)
    job.check("Read T", 4)
    with pytest.raises(RuntimeError, match="wrong answer"):
        job.check("Read T", 5)

"""Usage: sums are exactly the sums of the runs, however they are cut up, and nothing is lost on the way to disk."""

import csv
import io
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from engine.run import Usage
from engine.tenant import Tenant
from engine.usage import Account, Book, Sums, as_csv, report, together
from sandbox.wire.outcome import Outcome

seconds = st.floats(0, 1e4)
usages = st.builds(
    Usage, queue_s=seconds, wall_s=seconds, cpu_s=seconds, peak_memory_bytes=st.integers(0, 1 << 40),
    bytes_in=st.integers(0, 1 << 40), bytes_out=st.integers(0, 1 << 40),
    host_calls=st.dictionaries(st.sampled_from(["context.search", "http.get"]), st.integers(1, 100)),
)  # fmt: skip
runs = st.lists(
    st.tuples(
        st.sampled_from(["acme", "other"]), st.sampled_from(["one", "two", "two@1", "two@2"]),
        st.sampled_from([None, "k1", "k2"]), st.sampled_from(list(Outcome)), usages, st.integers(0, 3 * 86_400),
    )
)  # fmt: skip


def noted(book: Book, tenant: str, name: str, key: str | None, outcome: Outcome, usage: Usage) -> None:
    book.note(Tenant(tenant, key=key), f"agent:{name}", outcome, usage)


def summed(outcome: Outcome, usage: Usage) -> Sums:
    sums = Sums()
    sums.count(outcome, usage)
    return sums


@given(runs, st.integers(0, 10))
def test_every_cut_through_the_sums_is_the_sum_of_the_runs(
    given_runs: list[tuple[str, str, str | None, Outcome, Usage, int]], every: int
) -> None:
    now = 0.0
    book, written = Book(lambda: now), dict[Account, Sums]()
    for number, (tenant, name, key, outcome, usage, at) in enumerate(given_runs):
        now = float(at)
        noted(book, tenant, name, key, outcome, usage)
        if every and number % every == 0:
            written = together(written, book.take())
    whole = together(written, book.take())
    for tenant in ("acme", "other"):
        mine = {account: sums for account, sums in whole.items() if account.tenant == tenant}
        own = [run for run in given_runs if run[0] == tenant]
        shown = report(mine)
        assert shown["total"]["runs"] == len(own)
        assert round(shown["total"]["cpu_ms"] * 1e3) == sum(round(usage.cpu_s * 1e6) for *_, usage, _ in own)
        assert shown["total"]["bytes_out"] == sum(usage.bytes_out for *_, usage, _ in own)
        assert shown["total"]["host_calls"] == sum(usage.host_call_count for *_, usage, _ in own)
        assert shown["total"]["peak_memory_bytes"] == max((usage.peak_memory_bytes for *_, usage, _ in own), default=0)
        for cut in ("by_agent", "by_day"):
            assert sum(row["runs"] for row in shown[cut]) == len(own)
            assert sum(row["bytes_in"] for row in shown[cut]) == shown["total"]["bytes_in"]
        assert {row["agent"] for row in shown["by_agent"]} <= {"agent:one", "agent:two"}
        versions = {row["version"]: row["runs"] for row in shown["by_version"]}
        assert versions == Counter(f"agent:{run[1]}" for run in own if "@" in run[1])
        assert sum(row["runs"] for row in shown["by_key"]) == sum(run[2] is not None for run in own)


def test_what_was_taken_and_given_back_is_there_again_beside_what_came_meanwhile() -> None:
    book = Book(lambda: 0.0)
    noted(book, "acme", "one", None, Outcome.OK, Usage(cpu_s=1.0))
    taken = book.take()
    noted(book, "acme", "one", None, Outcome.TIMEOUT, Usage(cpu_s=2.0))
    book.give_back(taken)
    (sums,) = book.take().values()
    assert (sums.runs, sums.cpu_us, dict(sums.outcomes)) == (2, 3_000_000, {"ok": 1, "timeout": 1})


def test_a_deleted_tenants_sums_are_forgotten_and_no_others() -> None:
    book = Book(lambda: 0.0)
    for tenant in ("acme", "other"):
        noted(book, tenant, "one", None, Outcome.OK, Usage())
    book.forget("acme")
    assert [account.tenant for account in book.take()] == ["other"]


def test_together_leaves_what_it_is_given_as_it_was() -> None:
    account = Account("acme", "agent:one", "", "1970-01-01")
    first, second = {account: Sums(runs=1)}, {account: Sums(runs=2)}
    assert together(first, second)[account].runs == 3
    assert (first[account].runs, second[account].runs) == (1, 2)


def test_the_table_has_a_line_for_everything_and_no_cell_that_a_spreadsheet_would_run() -> None:
    sheet = {
        Account("=cmd()", "agent:-x", "", "2026-01-31"): summed(Outcome.OK, Usage(cpu_s=0.5)),
        Account("acme", "agent:one@-2", "k1", "2026-01-31"): summed(Outcome.TIMEOUT, Usage()),
    }
    rows = list(csv.DictReader(io.StringIO(as_csv(sheet))))
    assert [row["tenant"] for row in rows] == ["'=cmd()", "acme"]
    assert [(row["agent"], row["version"]) for row in rows] == [("agent:-x", ""), ("agent:one", "'-2")]
    assert (rows[0]["cpu_ms"], rows[0]["outcome_ok"], rows[1]["outcome_timeout"]) == ("500.0", "1", "1")

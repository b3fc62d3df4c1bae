"""The cost of runs, summed by tenant, agent, key and day. Pure; whole numbers, so that sums are exact.

Every run counts once, whatever its outcome: also one that was cancelled, refused before its start, or nested in another
run; so do calls of Python code, and runs with a model. The CPU time, calls and tokens of a nested run are counted for
itself, not for its caller. Work of the engine for a tenant that is no run, such as a synchronisation, counts with its
CPU time only.
"""

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from engine.metrics import Metrics
from engine.run import Usage
from engine.tenant import Tenant
from sandbox.wire.outcome import Outcome


class Account(NamedTuple):
    """The key of a sum. `agent` is `agent:NAME` or `tool:NAME`, with `@VERSION` if it was published; for work without
    a run `sync:SOURCE` or `embedding`. `key` is the API key's id (empty without keys), `day` a date in UTC.
    """

    tenant: str
    agent: str
    key: str
    day: str


MICRO = 1_000_000


@dataclass(slots=True)
class ModelSums:
    """What calls of models used, in tokens and micro-dollars. `calls` were answered; `input` includes `cached`."""

    calls: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0
    cost: int = 0

    def add(self, other: "ModelSums") -> None:
        """Add the sums of `other`."""
        self.calls += other.calls
        self.input += other.input
        self.cached += other.cached
        self.output += other.output
        self.cost += other.cost

    def as_json(self) -> dict[str, Any]:
        """As `GET /usage` shows them."""
        return {
            "model_calls": self.calls,
            "input_tokens": self.input,
            "cached_tokens": self.cached,
            "output_tokens": self.output,
            "cost_usd": self.cost / MICRO,
        }


# The amounts of `Sums` that are added; of the peak the maximum is taken, and the two counters are added by name.
AMOUNTS = ("runs", "queue_us", "wall_us", "cpu_us", "bytes_in", "bytes_out")


@dataclass(slots=True)
class Sums:
    """The sum of some runs. Times in microseconds; `host_calls` by name, `outcomes` by outcome, `models` by name."""

    runs: int = 0
    queue_us: int = 0
    wall_us: int = 0
    cpu_us: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    peak_memory_bytes: int = 0
    host_calls: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    models: dict[str, ModelSums] = field(default_factory=dict)

    def count(self, outcome: Outcome, usage: Usage) -> None:
        """Count one run."""
        self.runs += 1
        self.queue_us += _us(usage.queue_s)
        self.wall_us += _us(usage.wall_s)
        self.cpu_us += _us(usage.cpu_s)
        self.bytes_in += usage.bytes_in
        self.bytes_out += usage.bytes_out
        if usage.peak_memory_bytes > self.peak_memory_bytes:
            self.peak_memory_bytes = usage.peak_memory_bytes
        for name, calls in usage.host_calls.items():
            self.host_calls[name] += calls
        self.outcomes[outcome.value] += 1

    def add(self, other: "Sums") -> None:
        """Add the sums of `other`."""
        for name in AMOUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.peak_memory_bytes = max(self.peak_memory_bytes, other.peak_memory_bytes)
        self.host_calls.update(other.host_calls)
        self.outcomes.update(other.outcomes)
        for model, sums in other.models.items():
            self.spend(model, sums)

    def spend(self, model: str, sums: ModelSums) -> None:
        """Add what calls of this model used."""
        self.models.setdefault(model, ModelSums()).add(sums)

    def as_json(self) -> dict[str, Any]:
        """As `GET /usage` shows it: times in milliseconds, the rest in bytes and numbers."""
        return {
            "runs": self.runs,
            "outcomes": dict(sorted(self.outcomes.items())),
            "queue_ms": self.queue_us / 1e3,
            "wall_ms": self.wall_us / 1e3,
            "cpu_ms": self.cpu_us / 1e3,
            "peak_memory_bytes": self.peak_memory_bytes,
            "host_calls": self.host_calls.total(),
            "host_calls_by_name": dict(sorted(self.host_calls.items())),
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            **_summed(self.models.values()).as_json(),
        }


def _summed(models: Iterable[ModelSums]) -> ModelSums:
    total = ModelSums()
    for sums in models:
        total.add(sums)
    return total


_DAY_S = 86_400.0


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


Sheet = Mapping[Account, Sums]


class Book:
    """The sums that are not on disk yet. `now` returns the time in seconds since the epoch, for the day."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._sheet: dict[Account, Sums] = {}
        self._day, self._day_ends = "", 0.0

    def note(self, tenant: Tenant, agent: str, outcome: Outcome, usage: Usage) -> None:
        """A run of `agent:NAME` or `tool:NAME` has ended, or was refused."""
        self._sums(Account(tenant.id, agent, tenant.key or "", self._today())).count(outcome, usage)

    def model(self, tenant: Tenant, agent: str, model: str, sums: ModelSums) -> None:
        """A run has called a model."""
        self._sums(Account(tenant.id, agent, tenant.key or "", self._today())).spend(model, sums)

    def worked(self, tenant: str, work: str, cpu_s: float) -> None:
        """The engine has worked for a tenant without a run: `work` is in the place of an agent."""
        if cpu_us := _us(cpu_s):
            self._sums(Account(tenant, work, "", self._today())).cpu_us += cpu_us

    def _today(self) -> str:
        now = self._now()
        if not self._day_ends - _DAY_S <= now < self._day_ends:  # also when the clock was set back
            self._day = datetime.fromtimestamp(now, UTC).date().isoformat()
            self._day_ends = (now // _DAY_S + 1) * _DAY_S
        return self._day

    def take(self) -> dict[Account, Sums]:
        """Remove and return all sums. The caller stores them, or gives them back."""
        taken, self._sheet = self._sheet, {}
        return taken

    def give_back(self, sheet: Sheet) -> None:
        """Add sums that were taken but could not be stored."""
        for account, sums in sheet.items():
            self._sums(account).add(sums)

    def sums_of(self, tenant: str) -> dict[Account, Sums]:
        """The sums of one tenant that are not taken yet."""
        return {account: sums for account, sums in self._sheet.items() if account.tenant == tenant}

    def forget(self, tenant: str) -> None:
        """The tenant was deleted."""
        self._sheet = {account: sums for account, sums in self._sheet.items() if account.tenant != tenant}

    def _sums(self, account: Account) -> Sums:
        found = self._sheet.get(account)
        if found is None:
            found = self._sheet[account] = Sums()
        return found


# Outcomes that say nothing of how long runs take.
_CUT_SHORT = frozenset({Outcome.CANCELLED, Outcome.REJECTED})


class Accounts:
    """The one place where the ends of runs and of calls of models are booked: in the engine's metrics and its book."""

    def __init__(self, metrics: Metrics, book: Book) -> None:
        self.metrics = metrics
        self.book = book

    def ended(self, tenant: Tenant, agent: str, outcome: Outcome, usage: Usage) -> None:
        """A run of `agent:NAME` or `tool:NAME` has ended, or was refused before it began. Called once for each."""
        metrics = self.metrics
        metrics.ended[outcome] += 1
        if outcome not in _CUT_SHORT:
            metrics.run_seconds.observe(usage.wall_s)
            metrics.cpu_s += usage.cpu_s
            for name, count in usage.host_calls.items():
                metrics.host_calls[name] += count
        self.book.note(tenant, agent, outcome, usage)

    def model_called(
        self, tenant: Tenant, agent: str, model: str, outcome: str, seconds: float, input: int, cached: int,
        output: int, cost: int,
    ) -> None:  # fmt: skip
        """A call of a model has ended: `ok` if it was answered, else the code of its error, `cancelled` or `failed`."""
        self.metrics.model_called(model, outcome, seconds, {"input": input, "cached": cached, "output": output})
        sums = ModelSums(int(outcome == "ok"), input, cached, output, cost)
        if sums != ModelSums():
            self.book.model(tenant, agent, model, sums)


def together(*sheets: Sheet) -> dict[Account, Sums]:
    """Several sheets merged into a new one."""
    found: dict[Account, Sums] = {}
    for sheet in sheets:
        for account, sums in sheet.items():
            found.setdefault(account, Sums()).add(sums)
    return found


def report(sheet: Sheet) -> dict[str, Any]:
    """One tenant's sums as `GET /usage` shows them: `total`, a list `by_` each of `CUTS`, in order, and `by_model`."""
    total = Sums()
    for sums in sheet.values():
        total.add(sums)
    by_model = [{"model": name, **total.models[name].as_json()} for name in sorted(total.models)]
    return {"total": total.as_json(), **{f"by_{cut}": _by(sheet, cut) for cut in CUTS}, "by_model": by_model}


def _agent(account: Account) -> str:
    return account.agent.partition("@")[0]


def _version(account: Account) -> str:
    return account.agent if "@" in account.agent else ""


# How sums are cut up. Those with an empty name, runs without a version or without a key, are in no row.
CUTS: Mapping[str, Callable[[Account], str]] = {
    "agent": _agent,
    "version": _version,
    "key": lambda account: account.key,
    "day": lambda account: account.day,
}


def _by(sheet: Sheet, cut: str) -> list[dict[str, Any]]:
    found: dict[str, Sums] = {}
    for account, sums in sheet.items():
        found.setdefault(CUTS[cut](account), Sums()).add(sums)
    return [{cut: name, **found[name].as_json()} for name in sorted(found) if name]


def as_csv(sheet: Sheet) -> str:
    """The sums as a table for a spreadsheet: a line for every tenant, agent, version, key and day (RFC 4180).

    Columns that were added later come last: programs may know the others by their places.
    """
    of_models = tuple(ModelSums().as_json())
    amounts = [
        name for name, value in Sums().as_json().items() if not isinstance(value, dict) and name not in of_models
    ]
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(
        (*Account._fields, *amounts, *(f"outcome_{outcome.value}" for outcome in Outcome), "version", *of_models)
    )
    for account in sorted(sheet):
        shown = sheet[account].as_json()
        outcomes = (shown["outcomes"].get(outcome.value, 0) for outcome in Outcome)
        named = account._replace(agent=_agent(account))
        version = account.agent.partition("@")[2]
        used = (shown[name] for name in of_models)
        writer.writerow((*map(_cell, named), *(shown[name] for name in amounts), *outcomes, _cell(version), *used))
    return out.getvalue()


def _cell(text: str) -> str:
    # A spreadsheet would evaluate it as a formula; names of agents may begin with a minus.
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def rows(sheet: Iterable[tuple[Account, Sums]]) -> list[dict[str, Any]]:
    """The sums as JSON, one object for every tenant, agent, version (null for one that was not published), key, day."""
    return [
        {
            **account._asdict(),
            "agent": _agent(account),
            "version": account.agent.partition("@")[2] or None,
            **sums.as_json(),
        }
        for account, sums in sorted(sheet, key=lambda pair: pair[0])
    ]

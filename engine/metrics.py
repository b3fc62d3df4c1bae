"""The Prometheus metrics of an engine.

Runs are counted in plain numbers, which become metric families at each scrape: a counter of the client library takes a
lock at each step (measured: 9 us a run). The library is loaded by the server's routes: commands make no family.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

from engine.host.lag import Lag
from sandbox.wire.outcome import Outcome

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
# Models answer within seconds or minutes.
_MODEL_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Times:
    """A histogram of seconds."""

    def __init__(self, bounds: tuple[float, ...] = _SECONDS) -> None:
        self._bounds = bounds
        # Invariant: observations by bucket, not cumulative; the last bucket is for those above all bounds.
        self._counts = [0] * (len(bounds) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum_s += seconds

    def family(self, name: str, documentation: str) -> "Metric":
        from prometheus_client.metrics_core import HistogramMetricFamily
        from prometheus_client.utils import floatToGoString

        bounds = (*self._bounds, float("inf"))
        buckets = list(zip(map(floatToGoString, bounds), accumulate(self._counts), strict=True))
        return HistogramMetricFamily(name, documentation, buckets, self._sum_s)


class Metrics:
    """Figures of one engine. Labels have few values: outcomes, worker states, names of host calls and layers.

    The caller of `render` first sets `workers`, `queued`, `lag`, `spawned` and `layers`; all others are counted as
    events occur.
    """

    def __init__(self) -> None:
        self.workers: dict[str, int] = {}
        self.queued = 0
        self.lag = Lag(0.0, 0.0)
        self.spawned = 0
        self.layers: dict[str, bool] = {}
        self.worker_memory_bytes = 0
        self.ended = dict.fromkeys(Outcome, 0)
        self.run_seconds = Times()
        self.queue_seconds = Times()
        self.cpu_s = 0.0
        self.host_calls: Counter[str] = Counter()
        self.security_events = 0
        # By model and outcome, and by model and kind.
        self.model_calls: Counter[tuple[str, str]] = Counter()
        self.model_tokens: Counter[tuple[str, str]] = Counter()
        self.model_seconds = Times(_MODEL_SECONDS)

        # Turns of teams that ended, by outcome; those that wait, by tenant, with the reason.
        self.team_turns: Counter[str] = Counter()
        self.team_waits: dict[str, dict[str, int]] = {}

    def team_turned(self, outcome: str) -> None:
        """A turn of a team has ended."""
        self.team_turns[outcome] += 1

    def teams_wait(self, tenant: str, counts: Mapping[str, int]) -> None:
        """So many turns of the tenant's teams wait, by the reason."""
        if counts:
            self.team_waits[tenant] = dict(counts)
        else:
            self.team_waits.pop(tenant, None)

    def model_called(self, model: str, outcome: str, seconds: float, tokens: dict[str, int]) -> None:
        """A call of a model has ended; `tokens` by kind."""
        self.model_calls[model, outcome] += 1
        for kind, count in tokens.items():
            self.model_tokens[model, kind] += count
        self.model_seconds.observe(seconds)

    def collect(self) -> Iterator["Metric"]:
        """The families."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        yield _labelled(GaugeMetricFamily, "engine_workers", "Live workers by state", "state", self.workers)
        yield GaugeMetricFamily(
            "engine_worker_memory_bytes", "Resident memory of all workers", self.worker_memory_bytes
        )
        yield GaugeMetricFamily("engine_queued_runs", "Admitted runs that wait for a worker", self.queued)
        lag = "Longest time within the last minute in which the event loop looked at no input"
        clocks = {"wall": self.lag.wall_s, "cpu": self.lag.cpu_s}
        yield _labelled(GaugeMetricFamily, "engine_loop_lag_seconds", lag, "clock", clocks)
        ended = {outcome.value: count for outcome, count in self.ended.items()}
        yield _labelled(CounterMetricFamily, "engine_runs", "Ended runs by outcome", "outcome", ended)
        yield self.run_seconds.family("engine_run_seconds", "Wall time of a run")
        yield self.queue_seconds.family("engine_queue_seconds", "Time between admission and start")
        yield CounterMetricFamily("engine_cpu_seconds", "CPU time of scripts", self.cpu_s)
        yield _labelled(CounterMetricFamily, "engine_host_calls", "Host calls by name", "call", self.host_calls)
        yield CounterMetricFamily("engine_workers_spawned", "Workers made since the start", self.spawned)
        yield CounterMetricFamily("engine_security_events", "Runs that the sandbox stopped", self.security_events)
        yield _of_models("engine_model_calls", "Calls of models by outcome", "outcome", self.model_calls)
        yield _of_models("engine_model_tokens", "Tokens by kind; input includes cached", "kind", self.model_tokens)
        yield self.model_seconds.family("engine_model_seconds", "Wall time of a call of a model, retries included")
        yield _labelled(
            CounterMetricFamily, "engine_team_turns", "Ended turns of teams by outcome", "outcome", self.team_turns
        )
        waits: Counter[str] = Counter()
        for each in self.team_waits.values():
            waits.update(each)
        yield _labelled(
            GaugeMetricFamily, "engine_team_turns_waiting", "Turns of teams that wait, by reason", "why", waits
        )
        active = "1 where a layer of confinement is in effect"
        yield _labelled(GaugeMetricFamily, "sandbox_layer_active", active, "layer", self.layers)

    def render(self) -> bytes:
        """The text exposition format."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)


def _of_models(name: str, documentation: str, label: str, values: Counter[tuple[str, str]]) -> "Metric":
    from prometheus_client.metrics_core import CounterMetricFamily

    family = CounterMetricFamily(name, documentation, labels=["model", label])
    for pair, amount in values.items():
        family.add_metric(pair, amount)
    return family


def _labelled(
    kind: "type[GaugeMetricFamily] | type[CounterMetricFamily]",
    name: str,
    documentation: str,
    label: str,
    values: dict[str, int] | dict[str, float] | dict[str, bool] | Counter[str],
) -> "Metric":
    family = kind(name, documentation, labels=[label])
    for value, amount in values.items():
        family.add_metric([value], amount)
    return family

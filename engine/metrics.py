"""What an operator may want to graph, in Prometheus' terms. One registry an engine, so that tests can hold two."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from sandbox.outcome import Outcome

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Counters of one engine. Labels have few values: outcomes, worker states, names of host calls and layers."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.workers = Gauge("engine_workers", "Live workers by state", ["state"], registry=self.registry)
        self.worker_memory = Gauge(
            "engine_worker_memory_bytes", "Resident memory of all workers", registry=self.registry
        )
        self.queued = Gauge("engine_queued_runs", "Admitted runs that wait for a worker", registry=self.registry)
        self.runs = Counter("engine_runs", "Ended runs by outcome", ["outcome"], registry=self.registry)
        # Bound ahead: looking a child up by its labels costs as much as counting (1 us).
        self.ended = {outcome: self.runs.labels(outcome.value) for outcome in Outcome}
        self.run_seconds = Histogram(
            "engine_run_seconds", "Wall time on a worker", buckets=_SECONDS, registry=self.registry
        )
        self.queue_seconds = Histogram(
            "engine_queue_seconds", "Time between admission and start", buckets=_SECONDS, registry=self.registry
        )
        self.cpu_seconds = Counter("engine_cpu_seconds", "CPU time of scripts", registry=self.registry)
        self.host_calls = Counter("engine_host_calls", "Host calls by name", ["call"], registry=self.registry)
        self.spawned = Counter("engine_workers_spawned", "Workers made since the start", registry=self.registry)
        self.security_events = Counter(
            "engine_security_events", "Runs that the sandbox stopped", registry=self.registry
        )
        self.layer = Gauge(
            "sandbox_layer_active", "1 where a layer of confinement is in effect", ["layer"], registry=self.registry
        )

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)

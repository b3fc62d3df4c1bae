"""An engine's own figures during a load: its layers and version, and times and memory from `/metrics`.

Read only from a server that answers like this engine, and only if it answers: `/metrics` is for its own machine.
"""

from dataclasses import dataclass, field
from typing import Any

import orjson
import trio
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.targets.address import Address
from benchmarks.targets.client import Client, Failed

_POLL_S = 1.0
_TIMEOUT_S = 5.0

# Histogram or counter of the server -> the name of the mean computed from its growth, in milliseconds.
_MEANS = {"engine_queue_seconds": "queue_mean_ms", "engine_run_seconds": "run_mean_ms"}
_CPU = "engine_cpu_seconds_total"
_RUNS = "engine_run_seconds_count"
_MEMORY = "engine_worker_memory_bytes"


@dataclass(slots=True)
class ServerFigures:
    """One server's figures around a load."""

    address: Address
    known: bool = False
    health: dict[str, Any] = field(default_factory=dict)
    memory_peak_bytes: int = 0
    _before: dict[str, float] | None = None

    async def begin(self) -> None:
        """Read the figures before the load. Never raises for an error of the server."""
        client = Client(Address(self.address.host, self.address.port, self.address.authority))
        try:
            with trio.move_on_after(_TIMEOUT_S):
                try:
                    found = orjson.loads((await client.request("GET", "/health")).body)
                    self.health = found if isinstance(found, dict) else {}
                except (Failed, orjson.JSONDecodeError):
                    self.health = {}
                self._before = await _samples(client)
                self.known = self._before is not None
        finally:
            client.close()

    async def watch(self) -> None:
        """Track the peak of the workers' memory. Runs until cancelled."""
        if not self.known:
            return
        client = Client(Address(self.address.host, self.address.port, self.address.authority))
        try:
            while True:
                with trio.move_on_after(_TIMEOUT_S):
                    samples = await _samples(client)
                    self.memory_peak_bytes = max(self.memory_peak_bytes, int((samples or {}).get(_MEMORY, 0)))
                await trio.sleep(_POLL_S)
        finally:
            client.close()

    async def figures(self) -> dict[str, Any] | None:
        """The server's figures: version, layers, and the means of all runs since `begin`, warm-up included."""
        if not self.known:
            return None
        after = None
        client = Client(Address(self.address.host, self.address.port, self.address.authority))
        try:
            with trio.move_on_after(_TIMEOUT_S):
                after = await _samples(client)
        finally:
            client.close()
        told = {key: self.health[key] for key in ("version", "workers", "scripts_failing") if key in self.health}
        return told | means(self._before or {}, after or {})

    def layers(self) -> list[str] | None:
        """The active layers, as `/health` names them."""
        found = self.health.get("layers")
        if not isinstance(found, list):
            return None
        return [str(each.get("name")) for each in found if isinstance(each, dict) and each.get("state") == "active"]


def means(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """The means between two readings, in milliseconds a run; empty without runs."""
    found = {}
    for name, key in _MEANS.items():
        count = after.get(f"{name}_count", 0) - before.get(f"{name}_count", 0)
        if count > 0:
            found[key] = round((after[f"{name}_sum"] - before.get(f"{name}_sum", 0)) / count * 1e3, 3)
    runs = after.get(_RUNS, 0) - before.get(_RUNS, 0)
    if runs > 0 and _CPU in after:
        found["cpu_mean_ms"] = round((after[_CPU] - before.get(_CPU, 0)) / runs * 1e3, 3)
        found["runs"] = runs
    return found


async def _samples(client: Client) -> dict[str, float] | None:
    """The samples of `/metrics` without labels; None if the server has none of ours."""
    try:
        response = await client.request("GET", "/metrics")
        if response.status != 200:
            return None
        families = list(text_string_to_metric_families(response.body.decode()))
    except (Failed, ValueError):
        return None
    samples = {
        sample.name: float(sample.value) for family in families for sample in family.samples if not sample.labels
    }
    return samples if _RUNS in samples else None

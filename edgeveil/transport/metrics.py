"""Prometheus registry of a process, collected on each scrape (extras `cloud` and `proxy`)."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from edgeveil.protocol import effects as fx
from edgeveil.transport.http import Request, Response
from edgeveil.transport.mqtt_link import RuntimeLink
from edgeveil.transport.runtime import Host, Runtime

KNOWN_REASONS = ("forged", "unknown_signer", "forked_manifest", "malformed", "rate", "link_down")
"""Refusals with a series that starts at 0, so that the first one is an increase."""
REASONS = 64  # reasons with a series of their own; further ones are summed as `other`
WORK_BUCKETS_S = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0)
_SLUG = re.compile(r"[a-z][a-z0-9_]{0,39}")


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        text = "The most resident memory since the process began."
        peak = Gauge("edgeveil_peak_resident_memory_bytes", text, registry=self.registry)
        peak.set_function(lambda: peak_rss_bytes() or math.nan)

    async def page(self, _request: Request) -> Response:
        return self.shown()

    def shown(self) -> Response:
        return Response(generate_latest(self.registry), CONTENT_TYPE_LATEST)


def gauge(
    name: str, text: str, values: Mapping[str, float] | float, label: str = ""
) -> GaugeMetricFamily:
    """Return `edgeveil_<name>`: one value, or one for each value of `label`."""
    if isinstance(values, Mapping):
        family = GaugeMetricFamily(f"edgeveil_{name}", text, labels=[label])
        for key, value in values.items():
            family.add_metric([key], value)
        return family
    return GaugeMetricFamily(f"edgeveil_{name}", text, value=values)


def counter(
    name: str, text: str, counts: Iterable[tuple[Sequence[str], float]], *labels: str
) -> CounterMetricFamily:
    """Return `edgeveil_<name>_total`: one count for each combination of label values."""
    family = CounterMetricFamily(f"edgeveil_{name}", text, labels=labels)
    for key, count in counts:
        family.add_metric(key, count)
    return family


class StateDisk(Collector):
    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    def collect(self) -> Iterator[Metric]:
        with suppress(OSError):
            found = os.statvfs(self._state_dir)
            free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
            yield gauge("state_free_bytes", "Free disk space for this process.", free)
            yield gauge("state_size_bytes", "Size of the file system of its state.", size)


def peak_rss_bytes(pid: int | None = None) -> int | None:
    """Return a process's peak resident memory (default: this one's), or None if unknown."""
    with suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid or 'self'}/status").read_text("ascii", "replace")
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


class Linked(Collector):
    def __init__(self, runtime: Runtime, sessions: Mapping[str, RuntimeLink]) -> None:
        self._runtime, self._sessions = runtime, sessions

    def collect(self) -> Iterator[Metric]:
        runtime, hops = self._runtime, self._sessions.items()
        yield gauge("inbox_events", "Events that wait for the machine.", runtime.waiting_events)
        yield gauge("inbox_bytes", "Bytes of messages that wait for it.", runtime.waiting_bytes)
        counts = {**dict.fromkeys(KNOWN_REASONS, 0), **runtime.refusals.counts}
        refused = [([reason], n) for reason, n in bounded(counts).items()]
        yield counter("refused", "Messages and packets refused.", refused, "reason")
        up = {hop: float(s.connected) for hop, s in hops}
        yield gauge("link_up", "1 while the broker of this hop is connected.", up, "hop")
        waiting = {hop: float(s.unacknowledged) for hop, s in hops}
        text = "Messages that the broker of this hop has not acknowledged."
        yield gauge("link_unacknowledged_messages", text, waiting, "hop")
        connections = [([hop], s.connections) for hop, s in hops]
        yield counter(
            "link_connections", "Connections to a broker since the start.", connections, "hop"
        )
        moved = [([hop, way], s.bytes[way]) for hop, s in hops for way in ("in", "out")]
        yield counter("bytes", "Payload bytes moved over a hop.", moved, "hop", "direction")


def bounded(counts: Mapping[str, int]) -> dict[str, int]:
    """Limit the counts to REASONS well-formed names; others are summed as `other`."""
    result: dict[str, int] = {}
    for reason, count in list(counts.items()):
        known = _SLUG.fullmatch(reason) and len(result) < REASONS
        name = reason if known else "other"
        result[name] = result.get(name, 0) + count
    return result


class MeteredHost:
    """Host wrapper that times work; `watch` gets each stored item, report and `fx.WorkDone`."""

    def __init__(
        self, host: Host, metrics: Metrics, watch: Callable[[object], None] = lambda _thing: None
    ) -> None:
        self._host, self._watch = host, watch
        self._seconds = Histogram(
            "edgeveil_work_seconds",
            "Time that one task of the machine took its host.",
            ["task"],
            registry=metrics.registry,
            buckets=WORK_BUCKETS_S,
        )

    def store(self, item: object) -> None:
        self._host.store(item)
        self._watch(item)

    def together(self) -> AbstractContextManager[None]:
        return self._host.together()

    def perform(self, task: object) -> object:
        started_s = time.perf_counter()
        try:
            result = self._host.perform(task)
        finally:
            name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(task).__name__).lower()
            self._seconds.labels(name).observe(time.perf_counter() - started_s)
        self._watch(fx.WorkDone(task, result))
        return result

    def report(self, report: fx.Report) -> None:
        self._host.report(report)
        self._watch(report)

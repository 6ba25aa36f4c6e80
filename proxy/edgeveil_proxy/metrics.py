"""The proxy's numbers for Prometheus: counts and bytes, never who or when."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import Counter as Count
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from edgeveil.protocol.proxy import ProxyMachine
from edgeveil.protocol.proxy_tasks import BatchDelivered, BatchKept, KeptBroadcast, UploadKept
from edgeveil.transport.metrics import Metrics, gauge
from edgeveil_proxy.host import ProxyHost


class ProxyMetrics(Collector):
    """Counts what was made durable, and reads the rest at each scrape."""

    def __init__(
        self,
        metrics: Metrics,
        host: ProxyHost,
        machine: ProxyMachine,
        enrolled: Callable[[], int],
    ) -> None:
        self._host, self._machine, self._enrolled = host, machine, enrolled
        self._rounds = Count(
            "edgeveil_rounds",
            "Rounds by how far they came: opened, closed with a batch, delivered to the cloud.",
            ["result"],
            registry=metrics.registry,
        )
        for result in ("opened", "closed", "delivered"):
            self._rounds.labels(result)
        text = "Uploads taken and acknowledged."
        self._uploads = Count("edgeveil_uploads", text, registry=metrics.registry)
        metrics.registry.register(self)

    def watch(self, thing: object) -> None:
        """Hear what passes the machine's host."""
        match thing:
            case UploadKept():
                self._uploads.inc()
            case KeptBroadcast(header=header) if getattr(header, "kind", "") == "round":
                self._rounds.labels("opened").inc()
            case BatchKept():
                self._rounds.labels("closed").inc()
            case BatchDelivered():
                self._rounds.labels("delivered").inc()

    def collect(self) -> Iterator[Metric]:
        """Read at each scrape."""
        states = {"enrolled": float(self._enrolled()), "online": float(self._host.online)}
        yield gauge("devices", "Devices by state.", states, "state")
        machine = self._machine
        yield gauge("spool_bytes", "Disk held by uploads and batches.", machine.spool_bytes)
        yield gauge("cache_bytes", "Disk held by broadcasts.", machine.cache_bytes)
        text = "Bytes that devices were asked for and that have not come yet."
        yield gauge("credit_bytes", text, machine.credit_bytes)
        yield gauge("open_rounds", "Rounds that take uploads.", machine.open_rounds)
        at = machine.at
        yield gauge("current_round", "Round opened last; 0: none.", at.exchange if at else 0)

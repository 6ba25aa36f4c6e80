"""Live figures of a load test for Prometheus: `edgeveil_load_…` on /metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from edgeveil.errors import UsageError

LOOPBACK = "127.0.0.1"
_PLAIN = {
    "connected": "Devices connected now.",
    "uploads": "Uploads acknowledged by the proxy.",
    "uploads_per_s": "Uploads acknowledged a second.",
    "bytes_up": "Bytes that devices send a second.",
    "bytes_down": "Bytes that devices get a second.",
    "rounds_done": "Rounds committed by the cloud.",
}


class Metrics:
    """Serves the newest sample at `address`, HOST:PORT or a port of this machine alone.

    Raises UsageError if it cannot be had.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        registry = CollectorRegistry()
        self._plain = {
            key: Gauge(f"edgeveil_load_{key}", text, registry=registry)
            for key, text in _PLAIN.items()
        }
        self._latency = Gauge(
            "edgeveil_load_latency_seconds",
            "From an upload's offer to the commit record that counts it.",
            ["percentile"],
            registry=registry,
        )
        self._refused = Gauge(
            "edgeveil_load_refused", "Refusals so far.", ["reason"], registry=registry
        )
        self._memory = Gauge(
            "edgeveil_load_rss_bytes", "Memory of a process.", ["process"], registry=registry
        )
        try:
            self._server, self._thread = start_http_server(
                int(port), addr=host.strip("[]") or LOOPBACK, registry=registry
            )
        except OSError as error:
            raise UsageError(
                f"{address} cannot be had ({error.strerror})",
                where="--prometheus",
                fix="name another port, or an address of this machine",
            ) from None

    def update(self, sample: Mapping[str, Any]) -> None:
        """Show this sample from now on."""
        for key, gauge in self._plain.items():
            gauge.set(sample[key])
        for name, value_s in sample["latency_s"].items():
            self._latency.labels(name).set(value_s)
        for reason, count in sample["refused"].items():
            self._refused.labels(reason).set(count)
        for process, size in sample["rss_bytes"].items():
            self._memory.labels(process).set(size)

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

"""The cloud's Prometheus metrics of rounds, jobs, devices and ε; no device, key or model."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import lru_cache

from prometheus_client import Counter as Count
from prometheus_client import Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from edgeveil.privacy.guarantee import Guarantee
from edgeveil.privacy.policy import Quote
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud import CloudMachine
from edgeveil.protocol.cloud_job import CellBroadcasts, JobStatus, RoundCommit, SealRound
from edgeveil.protocol.messages import ReleaseOutcome
from edgeveil.transport.metrics import Metrics, gauge
from edgeveil_cloud.host import CloudHost
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import TRANSITIONS

ROUND_BUCKETS_S = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0, 86400.0)
JOBS_KEPT = 16  # whose ε is shown
_EPSILON = (
    "Largest cost of the job's releases to a device, if the job ended now. NaN: no proven "
    "guarantee. Training and inference count together; neither alone is the job's epsilon."
)
_REPORTS = "Devices by their report on a job's release; only the canary until it is promoted."


class CloudMetrics(Collector):
    def __init__(
        self, metrics: Metrics, store: Store, host: CloudHost, machine: CloudMachine
    ) -> None:
        self._store, self._host, self._machine = store, host, machine
        self._rounds_since: dict[bytes, tuple[int, float]] = {}  # job -> (round, start)
        self._asked: dict[bytes, int] = {}  # job -> newest round sent to devices
        self._drifted: dict[bytes, int] = {}  # job -> columns, by its newest answers
        self._spent = lru_cache(JOBS_KEPT)(self._priced)
        registry = metrics.registry
        self._rounds = Count(
            "edgeveil_rounds", "Rounds by how their attempts ended.", ["result"], registry=registry
        )
        for result in ("committed", "repeated"):
            self._rounds.labels(result)
        self._seconds = Histogram(
            "edgeveil_round_seconds",
            "From a round's first sealed attempt to its commit.",
            registry=registry,
            buckets=ROUND_BUCKETS_S,
        )
        text = "Encrypted segments that committed rounds counted."
        self._segments = Count("edgeveil_segments_counted", text, registry=registry)
        registry.register(self)

    def watch(self, thing: object) -> None:
        match thing:
            case fx.WorkDone(task=SealRound(job_id=job_id, round=number), result=CellBroadcasts()):
                if self._rounds_since.get(job_id, (-1,))[0] != number:
                    self._rounds_since[job_id] = number, time.monotonic()
                    self._ask(job_id, number)
            case fx.WorkDone(result=RoundCommit(commit=commit, drifted=drifted)):  # of any task
                self._rounds.labels("committed").inc()
                self._segments.inc(commit.accepted)
                if drifted is not None:
                    self._drifted[commit.at.job_id] = drifted
                number, since_s = self._rounds_since.pop(commit.at.job_id, (-1, 0.0))
                if number == commit.at.round:
                    self._seconds.observe(time.monotonic() - since_s)
            case JobStatus(job_id=job_id):
                self._rounds_since.pop(job_id, None)
            case fx.Report(kind="round_repeated"):
                self._rounds.labels("repeated").inc()

    def _ask(self, job_id: bytes, number: int) -> None:
        self._asked.pop(job_id, None)
        self._asked[job_id] = number
        if len(self._asked) > JOBS_KEPT:
            oldest = next(iter(self._asked))
            del self._asked[oldest]
            self._drifted.pop(oldest, None)

    def _priced(self, job_id: bytes, asked: int) -> tuple[str, Quote]:
        entry = self._host.jobs.entry(job_id)
        return entry.id, self._host.jobs.plan(entry).spent(asked)

    def collect(self) -> Iterator[Metric]:
        counts = self._store.counts()
        by_status: dict[str, float] = {status: counts.jobs.get(status, 0) for status in TRANSITIONS}
        yield gauge("jobs", "Jobs by status.", by_status, "status")
        enrolled = {"enrolled": float(counts.enrolled)}
        yield gauge("devices", "Devices by state.", enrolled, "state")
        family = GaugeMetricFamily("edgeveil_release_reports", _REPORTS, labels=["job", "outcome"])
        for rollout in self._store.rollouts.all()[-JOBS_KEPT:]:
            outcomes = rollout.reports.get("all") or rollout.reports.get("canary", {})
            for outcome in ReleaseOutcome:
                family.add_metric([rollout.job, outcome.value], outcomes.get(outcome.value, 0))
        yield family
        runs = list(self._machine.runs.values())
        oldest = runs[0].round if runs else 0
        yield gauge("current_round", "Round of the job that has run longest; 0: no job.", oldest)
        rounds = {self._host.jobs.name(one.job_id): float(one.round) for one in runs}
        yield gauge("job_round", "Round of each job that runs.", rounds, "job")
        drifted = {self._host.jobs.name(job): float(of) for job, of in self._drifted.items()}
        text = "Columns that drifted since the release in use, by a job's newest statistics."
        yield gauge("drifted_columns", text, drifted, "job")
        family = GaugeMetricFamily("edgeveil_epsilon_spent", _EPSILON, labels=["job", "kind"])
        for job, quote in [self._spent(*asked) for asked in list(self._asked.items())]:
            family.add_metric([job, "training"], _shown(quote.training))
            family.add_metric([job, "inference"], _shown(quote.inference))
            if (colluding := quote.training.if_colluding) is not None:
                shown = colluding if quote.training.proven else math.nan
                family.add_metric([job, "collusion"], shown)
        yield family


def _shown(guarantee: Guarantee) -> float:
    return guarantee.epsilon if guarantee.proven else math.nan

"""A device's computing, in the process that calls it: sessions, records and what is made of them.

What is checked before a record is read is the same for all records. From there on nothing may fail
for what a record holds: whatever a computation raises then, the answer is that of a device without
records, noised and priced like any other.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import numpy as np

from edgeveil.data.records import Records
from edgeveil.errors import EdgeVeilError
from edgeveil.evaluation.inference import InferenceSession
from edgeveil.jobs.plan import Plan
from edgeveil.parts.exchange import Answer
from edgeveil.parts.own_records import device_records, of_shape
from edgeveil.protocol.sealed import unpack_tensors
from edgeveil.sites.edge import EdgeSite
from edgeveil.subnormals import flushed
from edgeveil_edge.answer import softmax_answer, training_answer
from edgeveil_edge.computation import Computation, Computed, Half, JobTrial, TaughtJob

Load = Callable[[EdgeSite, bytes, float], tuple[Records, Records]]


def load_own(site: EdgeSite, split_key: bytes, share: float) -> tuple[Records, Records]:
    """(training, evaluation) records of this device."""
    return device_records(site.data, split_key, evaluation_share=share)


def no_records(plan: Plan) -> Records:
    """An empty data set of the job's form."""
    return Records(np.zeros((0, *plan.job.data.input_shape), np.float32), np.zeros(0, np.int64))


class Computer:
    """One device's records and sessions, kept between rounds."""

    def __init__(self, site: EdgeSite, split_key: bytes, load: Load = load_own) -> None:
        self._site, self._split_key, self._load = site, split_key, load
        self._session: InferenceSession | None = None
        self._records: dict[float, tuple[Records, Records]] = {}  # of one share at most

    def try_job(self, job: TaughtJob, *, trains: bool) -> JobTrial:
        """Nothing: who computes in this process has no limit to keep."""
        return JobTrial()

    def read_ahead(self, share: float) -> None:
        """Nothing: here records are read when they are asked for."""

    def forget(self, job: TaughtJob) -> None:
        """Nothing is kept of a job."""

    def answer(self, one: Computation) -> Computed:
        """See `Compute.answer`; takes the time that it takes."""
        with flushed():
            return self._answer(one)

    def _answer(self, one: Computation) -> Computed:
        self.prepare(one)
        records = self.halves(one.job.plan)
        parts: list[Answer] = []
        without: list[str] = []
        for half in self.order(one)[::-1]:
            try:
                parts.append(self.compute(one, half, *records))
            except Exception as error:  # whatever it was, the records made it: it must not show
                parts.append(self.blank(one, half))
                without.append(failure(error))
        return Computed(tuple(parts), "; ".join(without))

    def order(self, one: Computation) -> tuple[Half, ...]:
        """The halves of an answer, training first: no evaluation record may decide its fate."""
        halves: tuple[tuple[Half, bool], ...] = (
            ("train", one.trains),
            ("infer", one.exchange.infer),
        )
        return tuple(half for half, wanted in halves if wanted)

    def prepare(self, one: Computation) -> None:
        """Check and load what the answer needs beside records."""
        plan = one.job.plan
        if one.trains:
            plan.check_backbones()
        if one.exchange.infer:
            self._inference(one.job.graph, plan.job.data.classes)

    def blank(self, one: Computation, half: Half) -> Answer:
        """What a device without records answers. Raises what the package's form is to blame for."""
        empty = no_records(one.job.plan)
        return self.compute(one, half, empty, empty)

    def records(self, share: float) -> tuple[Records, Records]:
        """This device's halves, loaded once. Raises DataError."""
        if share not in self._records:
            self._records = {share: self._load(self._site, self._split_key, share)}
        return self._records[share]

    def halves(self, plan: Plan) -> tuple[Records, Records]:
        """What a job is answered from. Raises DataError for records of another form."""
        data = plan.job.data
        training, evaluation = self.records(data.evaluation_share)
        return of_shape(training, data.input_shape), of_shape(evaluation, data.input_shape)

    def compute(
        self, one: Computation, half: Half, training: Records, evaluation: Records
    ) -> Answer:
        """One half of the answer from these records."""
        plan, package, noise = one.job.plan, one.package, one.fresh_noise()
        if half == "train":
            processor, exchange = self._site.device, one.exchange
            return training_answer(plan, exchange, package, one.own, training, noise, processor)
        session = self._inference(one.job.graph, plan.job.data.classes)
        weights, samples = unpack_tensors(package.model), plan.softmax_samples
        row_s = one.allowed_s / (2 * samples) if samples else math.inf
        key = self._split_key
        return softmax_answer(plan, session, weights, evaluation.x, noise, key, row_s)

    def _inference(self, graph: bytes, classes: int) -> InferenceSession:
        digest = hashlib.sha256(graph).digest()
        if self._session is None or self._session.digest != digest:
            self._session = InferenceSession(graph, digest, classes=classes)
        return self._session


def failure(error: Exception) -> str:
    """What the owner reads on the console; of an unexpected error, whose text may be anything, only
    its type."""
    why = str(error) if isinstance(error, EdgeVeilError) else type(error).__name__
    return f"computing with the records failed ({why})"

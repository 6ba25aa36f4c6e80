"""Federated evaluation: figures on devices' own evaluation records, by noised sums.

A separate round after a training round carries the model: phase `evaluate` for `record_counts`,
`cluster` for `cluster_sums`; phase `ask` asks statistics of all records, without a model. The noise
is calibrated to all rounds of a phase together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import Records, grouped
from edgeveil.errors import ProtocolError
from edgeveil.evaluation.cluster_sums import ClusterSums
from edgeveil.evaluation.inference import InferenceSession
from edgeveil.evaluation.record_counts import RecordCounts
from edgeveil.parts.round import Answer, Array, SegmentSpec, Tensors, summed_spec
from edgeveil.privacy.events import GaussianEvent, SharedGaussian, noise_of
from edgeveil.privacy.gaussian_mechanism import gaussian
from edgeveil.privacy.policy import ASK
from edgeveil.privacy.sampler import RandomBytes, os_random
from edgeveil.statistics.answers import Sums, answered
from edgeveil.statistics.blocks import BlockVector

Counts = RecordCounts | ClusterSums
COUNTS = "counts"
CENTROIDS = "clusters/centroids"  # of the next round: in the cloud's state and its packages
ABOUT = "clusters/about"  # in the state: centroids of the last sums
_ROOM_SIGMAS = 12  # bound on the noise, as Q(12) < 2^-108


@dataclass(frozen=True)
class FederatedEvaluation:
    """One evaluation, at the price `event` for a device; `summed`: most uploads in a masked sum."""

    counts: Counts
    event: GaussianEvent | SharedGaussian
    nominal_records: int
    summed: int = 0

    @property
    def spec(self) -> SegmentSpec:
        shape = (self.counts.cells,)
        noise = math.ceil(_ROOM_SIGMAS * math.sqrt(self._own.sigma_squared))
        largest = (self._room << self._own.grid_bits) + noise
        if not self.summed:
            return SegmentSpec(COUNTS, shape, "int64", largest=largest)
        return summed_spec(COUNTS, shape, largest, self.summed)

    def about(self, tensors: Tensors) -> FederatedEvaluation:
        """Return the evaluation about the centroids in `tensors`. Raises ProtocolError."""
        if not isinstance(self.counts, ClusterSums):
            return self
        if CENTROIDS not in tensors:
            raise ProtocolError("bad_package", "the centroids are missing")
        return replace(self, counts=self.counts.of_broadcast(tensors[CENTROIDS]))

    @property
    def _own(self) -> GaussianEvent:
        return noise_of(self.event)

    @property
    def _room(self) -> int:
        return self.nominal_records * self.counts.largest

    def answer(
        self,
        session: InferenceSession,
        weights: Tensors,
        records: Records,
        random_bytes: RandomBytes = os_random,
        row_s: float = math.inf,
    ) -> Answer:
        """Return a device's answer over its evaluation records. Raises DataError."""
        outputs = session.single_outputs(records.x, weights, self.counts.outputs, row_s)
        return self._released(self._steps(outputs, records), random_bytes)

    def _steps(self, outputs: NDArray[np.float64], records: Records) -> NDArray[np.int64]:
        """Return the counts in steps; each person's, or the device's, are the mean of its records'.

        So one adds as much as one record can, whatever the number of its records."""
        owners, bits = records.owners(self._own.unit), self._own.grid_bits
        if owners is None:
            return self.counts.of(outputs, records.y) << bits
        total = np.zeros(self.counts.cells, np.int64)
        for own in grouped(owners):
            total += (self.counts.of(outputs[own], records.y[own]) << bits) // len(own)
        return total

    def noised(self, counts: NDArray[np.int64], random_bytes: RandomBytes = os_random) -> Answer:
        """Return a device's answer from exact counts (cells,), each clipped before the noise."""
        return self._released(counts << self._own.grid_bits, random_bytes)

    def _released(self, steps: NDArray[np.int64], random_bytes: RandomBytes) -> Answer:
        within = np.clip(steps, 0, self._room << self._own.grid_bits)
        noised, _ = gaussian(within, self._own, random_bytes)
        return Answer({COUNTS: noised}, (self.event,))

    def deviation(self, uploads: int) -> float:
        """Return the noise's standard deviation in each count of `uploads` devices, in records."""
        steps = math.sqrt(uploads * self._own.sigma_squared)
        return steps * 2.0**-self._own.grid_bits / self.counts.whole

    def figures(self, sums: Sequence[Array], uploads: int) -> Mapping[str, Any]:
        """Return JSON figures of the noised counts of `uploads` devices, single or summed."""
        return {**self.counts.figures(*self._summed(sums, uploads)), "uploads": uploads}

    def next_centroids(self, sums: Sequence[Array], uploads: int) -> NDArray[np.int64]:
        """Return the centroids of the next round; see `about`."""
        if not isinstance(self.counts, ClusterSums):
            raise TypeError("counts are about no centroids")
        return self.counts.moved(*self._summed(sums, uploads))

    def _summed(self, sums: Sequence[Array], uploads: int) -> tuple[NDArray[np.float64], float]:
        unit = 2.0**-self._own.grid_bits
        steps = sum((one.astype(np.int64) for one in sums), np.zeros(self.counts.cells, np.int64))
        return steps.astype(np.float64) * unit, self.deviation(uploads) * self.counts.whole


def asking(event: GaussianEvent | SharedGaussian) -> GaussianEvent | SharedGaussian:
    """Return the event of a question, which reads all records whatever their split."""
    own = replace(noise_of(event), purpose=ASK)
    return replace(event, own=own) if isinstance(event, SharedGaussian) else own


@dataclass(frozen=True)
class FleetQuestion:
    """Statistics beside training, one exchange each, at the price `event` for a device."""

    vector: BlockVector
    event: GaussianEvent | SharedGaussian
    nominal_records: int
    facts: Mapping[str, Any]  # of the answers: ε, δ, unit
    summed: int = 0

    @property
    def spec(self) -> SegmentSpec:
        own, shape = noise_of(self.event), (self.vector.cells,)
        noise = math.ceil(_ROOM_SIGMAS * math.sqrt(own.sigma_squared))
        largest = self.vector.room(own, self.nominal_records) + noise
        if not self.summed:
            return SegmentSpec(COUNTS, shape, "int64", largest=largest)
        return summed_spec(COUNTS, shape, largest, self.summed)

    def answer(self, records: Records, random_bytes: RandomBytes = os_random) -> Answer:
        """Return a device's answer over its raw records."""
        own = noise_of(self.event)
        room = self.vector.room(own, self.nominal_records)
        noised, _ = gaussian(self.vector.steps(records, own, room), own, random_bytes)
        return Answer({COUNTS: noised}, (self.event,))

    def answers(self, sums: Sequence[Array], uploads: int) -> dict[str, Any]:
        """Return JSON answers from the noised sums of `uploads` devices, single or summed."""
        own = noise_of(self.event)
        unit, total = 2.0**-own.grid_bits, np.zeros(self.vector.cells, np.int64)
        for one in sums:
            total += one.astype(np.int64)
        deviation = math.sqrt(uploads * own.sigma_squared) * unit
        found = Sums(self.vector, total.astype(np.float64) * unit, deviation, uploads)
        return answered(self.vector.questions, [found], self.facts)

"""Device half of `fm`: exact sums over records, noise, then steps on the noised polynomial."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import Records
from edgeveil.parts.exchange import TRAIN, Answer, Array, Exchange, Tensors
from edgeveil.parts.methods.fm_budget import Budget, budget
from edgeveil.parts.methods.fm_features import Bounded, FeatureCache, Features, bounded, projected
from edgeveil.parts.methods.fm_noise import noised
from edgeveil.parts.methods.fm_package import check_package
from edgeveil.parts.methods.fm_parameters import FmParameters
from edgeveil.parts.methods.fm_released import CENTRE, COVARIANCE, QUADRATIC
from edgeveil.parts.methods.fm_sums import (
    PRODUCT_BITS,
    centre_sum,
    covariance_sum,
    linear_sum,
    quadratic_sum,
)
from edgeveil.parts.methods.local_steps import minimise_quadratic
from edgeveil.parts.methods.pca_basis import top_basis
from edgeveil.parts.methods.triangle import unpacked
from edgeveil.parts.setting import Setting
from edgeveil.privacy.events import Event
from edgeveil.privacy.grid import Int64
from edgeveil.privacy.sampler import RandomBytes, os_random
from edgeveil.subnormals import flushed

HEAD = "head.weight"


class FmDevice:
    """Built from public facts alone; keeps only features, for as long as their records live."""

    def __init__(self, parameters: FmParameters, setting: Setting) -> None:
        self.parameters, self.setting = parameters, setting
        self.budget: Budget = budget(parameters, setting)
        self._cache = FeatureCache(setting)

    def job_events(self) -> tuple[Event, ...]:
        """All events of this device's part in the job; never reads a record."""
        return self.budget.job_events()

    def price(self, exchange: Exchange) -> tuple[Event, ...]:
        """The events of this exchange; never reads a record."""
        return self.budget.price(exchange)

    def prepare(self, records: Records) -> None:
        """Compute the features of `records` ahead of the first exchange."""
        self._cache.features(records)

    @flushed()
    def answer(
        self,
        exchange: Exchange,
        tensors: Tensors,
        records: Records,
        random_bytes: RandomBytes = os_random,
        processor: str = "auto",
    ) -> Answer:
        """Noised sums (preparatory phases, in steps) or ΔW (training), float32.

        Raises `ProtocolError` for a package of wrong form, before any record is read.
        """
        check_package(exchange, tensors, self.parameters, self.setting)
        total = self.sums(exchange, tensors, records)
        result = noised(total, self.budget.events[exchange.phase], random_bytes)
        segments = self.finish(exchange, tensors, result, processor)
        return Answer(segments, self.price(exchange))

    @flushed()
    def sums(self, exchange: Exchange, tensors: Tensors, records: Records) -> Int64:
        """The exact sum over records, before any noise, in steps of the phase's grid.

        Never leaves the device.
        """
        shift = self.budget.grid_bits(exchange.phase) - PRODUCT_BITS
        return self._sums(exchange, tensors, records) << shift

    def _sums(self, exchange: Exchange, tensors: Tensors, records: Records) -> Int64:
        if exchange.phase == COVARIANCE:
            return covariance_sum(self._cache.features(records))
        if exchange.phase == CENTRE:
            return centre_sum(self._projected(self._cache.features(records), tensors))
        z = self.bounded(records, tensors)
        if exchange.phase == QUADRATIC:
            return quadratic_sum(z)
        return linear_sum(z, tensors["iterate"].astype(np.int64), self.parameters.clip)

    def _projected(self, phi: Features, tensors: Tensors) -> Features:
        """φ, or φ·B: by the broadcast basis, by that of the device's own noised covariance
        (`ldp_pca`), or by that of its records (`local_pca`)."""
        projection, d = self.setting.projection, self.setting.dimension
        if projection is None:
            return phi
        if projection.name == "ldp_fpca":
            return projected(phi, np.asarray(tensors["basis"], np.int16))
        own = tensors[COVARIANCE] if projection.name == "ldp_pca" else covariance_sum(phi)
        return projected(phi, top_basis(own, self.setting.feature_dimension, d))

    def bounded(self, records: Records, tensors: Tensors) -> Bounded:
        """z of the valid records, from a training package that has its form; kept beside them."""
        d, radius = self.setting.dimension, self.parameters.radius
        centre = tensors["centre"] if self.parameters.centre else np.zeros(d, np.float32)
        bases = [tensors[name].tobytes() for name in ("basis", COVARIANCE) if name in tensors]
        return self._cache.bounded(
            records,
            (centre.tobytes(), *bases),
            lambda phi: bounded(self._projected(phi, tensors), centre, radius),
        )

    def finish(
        self,
        exchange: Exchange,
        tensors: Tensors,
        noised_sum: NDArray[np.generic],
        processor: str = "auto",
    ) -> Mapping[str, Array]:
        """The segment to upload, by post-processing the noised sum: in training, local steps."""
        if exchange.phase != TRAIN:
            return {exchange.phase: noised_sum.astype(np.float32)}
        step = 2.0 ** -self.budget.grid_bits(TRAIN)
        linear = noised_sum.astype(np.float64) * (step / self.setting.nominal_records)
        low, high = (float(v) for v in tensors["spectrum"])
        if self.parameters.quadratic == "never":  # the same curvature everywhere: one step is all
            return {HEAD: (linear / -high).astype(np.float32)}
        curvature = unpacked(np.asarray(tensors["curvature"], np.float32), self.setting.dimension)
        steps = self.parameters.local_steps
        return {HEAD: minimise_quadratic(linear, curvature, (low, high), steps, processor)}

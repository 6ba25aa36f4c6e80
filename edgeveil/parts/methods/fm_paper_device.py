"""Device half of `fm_paper`: gradient steps on polynomials that are noised anew."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import Records
from edgeveil.parts.exchange import TRAIN, Answer, Exchange, Tensors
from edgeveil.parts.methods.fm_device import FmDevice
from edgeveil.parts.methods.fm_features import Bounded
from edgeveil.parts.methods.fm_paper import (
    HIDDEN,
    OUTPUT,
    FmPaperParameters,
    check_package,
    noise_scale,
    projecting,
    round_event,
)
from edgeveil.parts.setting import Setting
from edgeveil.privacy.derived import bound
from edgeveil.privacy.events import Event
from edgeveil.privacy.grid import GRID_BITS, Float64, exact_gram, exact_matmul
from edgeveil.privacy.sampler import RandomBytes, discrete_laplace, os_random
from edgeveil.subnormals import flushed

NOISE_STEPS = 1 << 20  # Laplace noise is drawn at this scale, in whole steps, then scaled


class FmPaperDevice:
    """Built from public facts alone; features and a PCA are those of `fm`."""

    def __init__(self, parameters: FmPaperParameters, setting: Setting) -> None:
        self.parameters, self.setting = parameters, setting
        self._fm = FmDevice(projecting(), setting)
        self._scale = noise_scale(parameters, setting)

    def price(self, exchange: Exchange) -> tuple[Event, ...]:
        """A training round's part of the claim, or a covariance's event; reads no record."""
        if exchange.phase != TRAIN:
            return self._fm.price(exchange)
        event = round_event(self.parameters, self.setting)
        return (event, *self._fm.budget.tainted)

    def prepare(self, records: Records) -> None:
        """Compute the features of `records` ahead of the first exchange."""
        self._fm.prepare(records)

    @flushed()
    def answer(
        self,
        exchange: Exchange,
        tensors: Tensors,
        records: Records,
        random_bytes: RandomBytes = os_random,
        processor: str = "auto",
    ) -> Answer:
        """W₁ (d, hidden) and W₂ (hidden, c) after the local steps, float32.

        Raises `ProtocolError` for a package of wrong form, before any record is read.
        """
        if exchange.phase != TRAIN:
            return self._fm.answer(exchange, tensors, records, random_bytes, processor)
        check_package(exchange, tensors, self.parameters, self.setting)
        linear, quadratic = coefficients(self._fm.bounded(records, tensors), self.setting.classes)
        law = round_event(self.parameters, self.setting)
        total = np.concatenate([linear.ravel(), quadratic.ravel()])
        hidden, output = tensors[HIDDEN].astype(np.float64), tensors[OUTPUT].astype(np.float64)
        for _ in range(self.parameters.local_steps):
            noisy = self._noised(linear, quadratic, bound(random_bytes, law, total))
            slope = (noisy[0] + 2 * noisy[1] @ (hidden @ output)) / self.setting.nominal_records
            hidden, output = (
                self._stepped(hidden, slope @ output.T),
                self._stepped(output, hidden.T @ slope),
            )
        weights = {HIDDEN: hidden.astype(np.float32), OUTPUT: output.astype(np.float32)}
        return Answer(weights, self.price(exchange))

    def _noised(
        self, linear: Float64, quadratic: Float64, random_bytes: RandomBytes
    ) -> tuple[Float64, Float64]:
        """The coefficients + Lap(Δ/ε) each; the matrix made symmetric, which is the same form."""

        def laplace(shape: tuple[int, ...]) -> Float64:
            steps = discrete_laplace(NOISE_STEPS, shape, random_bytes)
            return steps.astype(np.float64) * (self._scale / NOISE_STEPS)

        noise = laplace(quadratic.shape)
        return linear + laplace(linear.shape), quadratic + (noise + noise.T) / 2

    def _stepped(self, weight: Float64, gradient: Float64) -> Float64:
        p = self.parameters
        moved = np.nan_to_num(weight - p.learning_rate * gradient)
        return np.asarray(np.clip(moved, -p.max_weight, p.max_weight), dtype=np.float64)


def coefficients(z: Bounded, classes: int) -> tuple[Float64, Float64]:
    """Σ -½·y·x (d, c), y = 1 for a record's class and -1 for the others, and ⅛·Σxxᵀ (d, d)."""
    signs: NDArray[np.int64] = np.where(z.labels[:, None] == np.arange(classes), 1, -1)
    linear = exact_matmul(z.steps.T, signs).astype(np.float64) * (-(2.0**-GRID_BITS) / 2)
    return linear, exact_gram(z.steps).astype(np.float64) * (4.0**-GRID_BITS / 8)

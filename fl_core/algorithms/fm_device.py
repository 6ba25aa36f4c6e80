"""Device half of `fm`: exact sums over records, noise, then steps on the noised polynomial."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fl_core.algorithms.base import TRAIN, Answer, Array, Exchange, Records, Tensors
from fl_core.algorithms.fm_parameters import (
    CENTRE,
    HEAD,
    QUADRATIC,
    STEP,
    Budget,
    FmParameters,
    budget,
    symmetric,
)
from fl_core.algorithms.fm_sums import bounded, centre_sum, kept, linear_sum, quadratic_sum
from fl_core.algorithms.local_steps import minimise_quadratic
from fl_core.algorithms.setting import Setting
from fl_core.errors import ProtocolError
from fl_core.privacy.events import Event
from fl_core.privacy.grid import Int64
from fl_core.privacy.mechanisms import gaussian
from fl_core.privacy.sampler import RandomBytes, os_random


class FmDevice:
    """Built from public facts alone; keeps nothing between exchanges."""

    def __init__(self, parameters: FmParameters, setting: Setting) -> None:
        self.parameters, self.setting = parameters, setting
        self.budget: Budget = budget(parameters, setting)

    def job_events(self) -> tuple[Event, ...]:
        """All events of this device's part in the job; never reads a record."""
        return self.budget.job_events()

    def price(self, exchange: Exchange) -> tuple[Event, ...]:
        """The one Gaussian event of this exchange; never reads a record."""
        return (self.budget.event(exchange),)

    def answer(
        self,
        exchange: Exchange,
        tensors: Tensors,
        records: Records,
        random_bytes: RandomBytes = os_random,
        processor: str = "auto",
    ) -> Answer:
        """Noised sums (preparatory phases, int64 steps) or ΔW (training, float32).

        Raises `ProtocolError` for a package of wrong form, before any record is read.
        """
        check_package(exchange, tensors, self.setting)
        total = self.sums(exchange, tensors, records)
        noised, event = gaussian(total, self.budget.event(exchange), random_bytes)
        return Answer(self.finish(exchange, tensors, noised, processor), (event,))

    def sums(self, exchange: Exchange, tensors: Tensors, records: Records) -> Int64:
        """The exact sum over records, before any noise, in steps of 2**-28. Never leaves."""
        p, s = self.parameters, self.setting
        phi, labels = kept(records, s.features, s.classes)
        if exchange.phase == CENTRE:
            return centre_sum(phi)
        z = bounded(phi, tensors["centre"], p.radius)
        if exchange.phase == QUADRATIC:
            return quadratic_sum(z)
        return linear_sum(z, labels, tensors["iterate"].astype(np.int64), p.clip)

    def finish(
        self,
        exchange: Exchange,
        tensors: Tensors,
        noised: NDArray[np.generic],
        processor: str = "auto",
    ) -> Mapping[str, Array]:
        """The segment to upload, by post-processing the noised sum: in training, local steps."""
        if exchange.phase != TRAIN:
            return {exchange.phase: noised}
        linear = noised.astype(np.float64) * (STEP / self.setting.nominal_records)
        low, high = (float(v) for v in tensors["spectrum"])
        curvature = symmetric(tensors["curvature"].astype(np.float64), self.setting.dimension)
        steps = self.parameters.local_steps
        return {HEAD: minimise_quadratic(linear, curvature, (low, high), steps, processor)}


def check_package(exchange: Exchange, tensors: Tensors, setting: Setting) -> None:
    """Raise `ProtocolError` unless the broadcast tensors have their public form.

    Past it an answer's form cannot depend on records: nothing later raises.
    """
    d, c = setting.dimension, setting.classes
    needed: dict[str, tuple[tuple[int, ...], str]] = {}
    if exchange.phase != CENTRE:
        needed["centre"] = ((d,), "float32")
    if exchange.phase == TRAIN:
        needed["iterate"] = ((d, c), "int32")
        needed["curvature"] = ((d * (d + 1) // 2,), "float32")
        needed["spectrum"] = ((2,), "float64")
        # For the device's own inference with the current model.
        needed["radius"], needed["weight"] = ((1,), "float32"), ((d, c), "float32")
    for name, form in needed.items():
        tensor = tensors.get(name)
        if tensor is None or (tensor.shape, str(tensor.dtype)) != form:
            raise ProtocolError("bad_package", f"tensor '{name}' is not of form {form}")
        if not np.isfinite(tensor.astype(np.float64)).all():
            raise ProtocolError("bad_package", f"tensor '{name}' is not finite")
    if exchange.phase == TRAIN:
        low, high = tensors["spectrum"].astype(np.float64)
        if not 0 < low <= high:
            raise ProtocolError("bad_package", "the spectrum must satisfy 0 < low <= high")

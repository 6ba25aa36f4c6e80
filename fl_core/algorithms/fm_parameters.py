"""Parameters of the re-expanded functional mechanism, and how its budget is shared."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fl_core.algorithms.base import TRAIN, Exchange
from fl_core.algorithms.setting import Setting
from fl_core.errors import PrivacyError
from fl_core.privacy.accountant import discreteness_tv, epsilon, mu_for
from fl_core.privacy.events import GaussianEvent
from fl_core.privacy.mechanisms import Layout, gaussian_event

CENTRE, QUADRATIC, HEAD = "centre", "quadratic", "head.weight"
SUM_BITS = 28  # sums stand on the grid 2**-28, fine enough for noise of 2**20 steps and more
STEP = 2.0**-SUM_BITS


class Shares(BaseModel):
    """Shares of μ² for the two preparatory sums; the training rounds get the rest."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    centre: float = Field(default=0.02, gt=0, lt=1)
    """Share for the sum of the features."""
    quadratic: float = Field(default=0.2, gt=0, lt=1)
    """Share for the sum of the quadratic terms."""

    @model_validator(mode="after")
    def _leave_a_rest(self) -> Self:
        if self.centre + self.quadratic >= 1:
            raise ValueError("centre and quadratic must leave a share for the training rounds")
        return self

    @property
    def linear(self) -> float:
        """The share of all training rounds together."""
        return 1.0 - self.centre - self.quadratic


class FmParameters(BaseModel):
    """The `train` block of a job with `method: fm`. Hessian bound: Böhning (1992)."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    method: Literal["fm"] = "fm"
    """The re-expanded functional mechanism for a softmax head."""
    rounds: int = Field(default=15, ge=1, le=10_000)
    """Training rounds; the two preparatory exchanges are not counted."""
    clip: float = Field(default=0.6, gt=0, le=2.0)
    """L2 bound on one record's linear coefficients; smaller: less noise, more bias."""
    radius: float = Field(default=0.7, gt=0, le=2.0)
    """L2 bound on one record's centred features; public, never taken from the data."""
    ridge: float = Field(default=0.3, gt=0, le=1e3)
    """Ridge, as a multiple of the noise level in the averaged sums."""
    curvature: float = Field(default=0.5, gt=0, le=1.0)
    """Bound on the softmax Hessian; 0.5 is Böhning's, smaller takes longer steps."""
    shares: Shares = Shares()
    """Shares of the budget for the preparatory sums."""
    local_steps: int = Field(default=20, ge=1, le=1000)
    """Steps each device takes on its own noised polynomial in a round; they cost no ε."""
    average_from: float = Field(default=0.7, ge=0, lt=1)
    """Part of the rounds after which the model is the average of the iterates."""
    max_weight: float = Field(default=1024.0, gt=0, le=65536.0)
    """Largest absolute value of a weight."""


@dataclass(frozen=True)
class Budget:
    """The event of each phase: what a device pays for one answer."""

    centre: GaussianEvent
    quadratic: GaussianEvent
    linear: GaussianEvent
    participations: int

    def job_events(self) -> tuple[GaussianEvent, ...]:
        """All events of one device's part in the whole job."""
        return (self.centre, self.quadratic, *[self.linear] * self.participations)

    def event(self, exchange: Exchange) -> GaussianEvent:
        """The event of one exchange."""
        if exchange.phase == TRAIN:
            return self.linear
        return self.centre if exchange.phase == CENTRE else self.quadratic


def budget(parameters: FmParameters, setting: Setting) -> Budget:
    """Noise such that a device's whole part in the job is (ε, δ)-DP per record.

    Part of δ is set aside for the discreteness of the noise, which in turn depends on the noise:
    a few rounds settle it, and the accountant then prices the result. Raises `PrivacyError` if
    the grid is too coarse for (ε, δ).
    """
    reserve = 0.0
    for _ in range(8):
        if reserve < setting.delta:
            result = _share_out(
                parameters, setting, mu_for(setting.epsilon, setting.delta - reserve)
            )
            if _costs(result, setting.delta) <= setting.epsilon:
                return result
            tv = math.fsum(discreteness_tv(event) for event in result.job_events())
            reserve = 1.1 * (1 + math.exp(setting.epsilon)) * tv + 1e-6 * setting.delta
    raise PrivacyError(
        f"the noise grid is too coarse for ε = {setting.epsilon:g}, δ = {setting.delta:g}",
        where="privacy.epsilon",
        fix="lower epsilon or raise delta",
    )


def _costs(result: Budget, delta: float) -> float:
    """ε of the whole part; infinite while the discreteness of the noise uses up δ alone."""
    try:
        return epsilon(result.job_events(), delta).epsilon
    except PrivacyError:
        return math.inf


def _share_out(parameters: FmParameters, setting: Setting, mu: float) -> Budget:
    """The three events at their shares of μ² (Gaussian DP composes by Σμ²)."""
    times, d = min(setting.max_participations, parameters.rounds), setting.dimension
    shares = parameters.shares

    def event(what: str, bound: float, share: float, size: int, layout: Layout) -> GaussianEvent:
        steps, level = int(bound * 2.0**SUM_BITS), mu * math.sqrt(share)
        return gaussian_event(what, steps, level, size, grid_bits=SUM_BITS, layout=layout)

    size = d * (d + 1) // 2
    each = shares.linear / times
    return Budget(
        centre=event("sum of features", 1.0, shares.centre, d, "vector"),
        quadratic=event("sum of quadratic terms", 1.0, shares.quadratic, size, "symmetric"),
        linear=event("sum of linear terms", parameters.clip, each, d * setting.classes, "vector"),
        participations=times,
    )


def symmetric(triangle: NDArray[np.floating], d: int) -> NDArray[np.float64]:
    """The symmetric (d, d) matrix of a flat upper triangle."""
    matrix = np.zeros((d, d))
    matrix[np.triu_indices(d)] = triangle
    return matrix + np.triu(matrix, 1).T

"""Parameters of the re-expanded functional mechanism: the `train` block of a job."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Shares(BaseModel):
    """Shares of the budget for the preparatory sums; the training rounds get the rest.

    Of μ² where the noise is Gaussian, of ε where it is Laplace. The share of a sum that is not
    released goes to the rounds as well; a PCA takes its own share first.
    """

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


class FmParameters(BaseModel):
    """The `train` block of a job with `method: fm`. Hessian bound: Böhning (1992)."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    method: Literal["fm"] = "fm"
    """The re-expanded functional mechanism for a softmax head."""
    rounds: int = Field(default=15, ge=1, le=10_000)
    """Training rounds, one Taylor expansion each; preparatory exchanges are not counted."""
    noise: Literal["gaussian", "laplace"] = "gaussian"
    """`gaussian`: (ε, δ). `laplace`: pure ε, with far more noise where there are many features."""
    centre: bool = True
    """Release the sum of the features, so that they can be centred; false: the centre is 0."""
    quadratic: Literal["once", "never"] = "once"
    """`once`: the curvature comes from a released sum. `never`: it is alike in all directions."""
    clip: float = Field(default=0.6, gt=0, le=2.0)
    """L2 bound on one record's linear coefficients; smaller: less noise, more bias."""
    radius: float = Field(default=0.7, ge=1e-3, le=2.0)
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

"""The functional mechanism for a three-layer perceptron, as its text has it (`fm_paper`, claimed).

DELM (Cao et al. 2023, eq. 1 to 10): one-vs-rest logits h = uᵀx with u = W₁w₂, y in {-1, 1}, and for
each class the Taylor polynomial whose coefficients are perturbed,

    Σ (log 2 - ½·y·h + ⅛·h²) + ηᵀu + uᵀNu,    η, N ~ Lap(Δ/ε),   Δ = d + d²/4  (eq. 9),

drawn anew at each local step; SGD on W₁ and W₂; the cloud averages the weights (FedAvg). The text
claims ε for the whole training. That does not hold: the noise is redrawn at each step and charged
once, so averaging the steps removes it; every class perturbs sums over the same records; and W₁ and
W₂ are read beside it. Every release is a `ClaimedEvent`.

Where the text leaves no polynomial, or contradicts itself:

- ReLU is left out, as in eq. 9: with it the coefficients are not sums over public monomials;
- eq. 6 drops the label; here it stands with the odd term, where the expansion has it;
- ⅛·Σxxᵀ is the same for every class, so N is drawn once a step, η once a step and class;
- a batch is all of the device's records, divided by the public `nominal_records`;
- weights are kept within ±`max_weight`, so that no step overflows;
- ε is what a PCA leaves of it; each round's event carries its part, so that the sum is ε.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from edgeveil.errors import ProtocolError
from edgeveil.parts.exchange import TRAIN, Exchange, Tensors
from edgeveil.parts.methods.fm_package import forms
from edgeveil.parts.methods.fm_parameters import FmParameters
from edgeveil.parts.methods.fm_released import COVARIANCE, phases
from edgeveil.parts.setting import Setting
from edgeveil.privacy.accountant import HAIR
from edgeveil.privacy.events import ClaimedEvent

HIDDEN, OUTPUT = "hidden.weight", "output.weight"


class FmPaperParameters(BaseModel):
    """The `train` block of a job with `method: fm_paper`. No guarantee is proven for it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    method: Literal["fm_paper"] = "fm_paper"
    """The functional mechanism as its text has it; claimed, not proven."""
    rounds: int = Field(default=15, ge=1, le=10_000)
    """Training rounds."""
    hidden: int = Field(default=32, ge=1, le=4096)
    """Width of the hidden layer."""
    local_steps: int = Field(default=20, ge=1, le=1000)
    """Gradient steps of a device in a round, each on a polynomial noised anew."""
    learning_rate: float = Field(default=0.03, gt=0, le=100)
    """Step size, for a loss that is a mean over `nominal_records`."""
    max_weight: float = Field(default=100.0, gt=0, le=65536.0)
    """Largest absolute value of a weight."""


def projecting() -> FmParameters:
    """The part of `fm` that bounds and projects features; of its releases only the covariance.

    One round: its own training never comes, and must not make a budget look too small.
    """
    return FmParameters(rounds=1, noise="laplace", centre=False, quadratic="never", radius=1.0)


def noise_scale(parameters: FmPaperParameters, setting: Setting) -> float:
    """Δ/ε (eq. 9, 10), Δ = d + d²/4, in units of the coefficients."""
    d = setting.dimension
    return (d + d * d / 4) / claimed_epsilon(parameters, setting)


def claimed_epsilon(parameters: FmPaperParameters, setting: Setting) -> float:
    """The ε that the text claims for all training rounds together."""
    projection = setting.projection
    released = COVARIANCE in phases(projecting(), projection)
    share = projection.share if projection is not None and released else 0.0
    return setting.epsilon * (1 - share) * HAIR


def round_event(parameters: FmPaperParameters, setting: Setting) -> ClaimedEvent:
    """One training round's part of the claim."""
    times = min(setting.max_participations, parameters.rounds)
    return ClaimedEvent(
        what="perturbed polynomial, noise redrawn each step",
        unit="record",
        claimed_epsilon=claimed_epsilon(parameters, setting) / times,
        source="DELM (Cao et al. 2023), eq. 6 to 10: one charge for all steps, which does not hold",
    )


def check_package(
    exchange: Exchange, tensors: Tensors, parameters: FmPaperParameters, setting: Setting
) -> None:
    """Raise `ProtocolError` unless a training round's tensors have their public form."""
    d, k, c = setting.dimension, parameters.hidden, setting.classes
    basis = forms(exchange, projecting(), setting)
    needed = {name: form for name, form in basis.items() if name in ("basis", COVARIANCE)}
    needed |= {HIDDEN: ((d, k), "float32"), OUTPUT: ((k, c), "float32")}
    if exchange.phase != TRAIN:
        raise ProtocolError("bad_package", f"no training round: '{exchange.phase}'")
    for name, form in needed.items():
        tensor = tensors.get(name)
        if tensor is None or (tensor.shape, str(tensor.dtype)) != form:
            raise ProtocolError("bad_package", f"tensor '{name}' is not of form {form}")
        if not np.isfinite(tensor).all():
            raise ProtocolError("bad_package", f"tensor '{name}' is not finite")

"""What was released: frozen facts that the accountant prices.

An event states the mathematics (sensitivity and noise in integer steps), not a price. It is
plain data: `to_dict` and `event_from_dict` carry it over the wire and into the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any, Literal

from fl_core.errors import PrivacyError

Unit = Literal["record", "device"]
Status = Literal["proven", "claimed", "none"]
ADD_OR_REMOVE = "add_or_remove"

SELECTIONS = ("exponential", "report_noisy_max")

_UNITS = ("record", "device")
_STATUSES = ("proven", "claimed", "none")


@dataclass(frozen=True, kw_only=True)
class _Event:
    """Common to all events.

    `what` names the release. `unit` is whose presence is hidden: one record, or one device's
    whole data set. `purpose` is `train` or `infer`. `source` cites the theorem.
    """

    what: str
    unit: Unit
    purpose: str = "train"
    neighbours: str = ADD_OR_REMOVE
    status: Status = "proven"
    source: str = ""

    def __post_init__(self) -> None:
        if self.unit not in _UNITS or self.status not in _STATUSES:
            raise PrivacyError(f"event '{self.what}': unknown unit or status")
        if self.neighbours != ADD_OR_REMOVE:
            raise PrivacyError(f"event '{self.what}': unknown relation '{self.neighbours}'")


@dataclass(frozen=True, kw_only=True)
class GaussianEvent(_Event):
    """A sum of integer vectors plus independent discrete Gaussian noise.

    `sensitivity_steps` is the L2 change one unit can make, in the metric in which the noise has
    variance `sigma_squared` steps². `finest_sigma_squared` is the least variance of any one
    coordinate as sampled (half of it for the off-diagonals of a symmetric matrix).
    """

    sensitivity_steps: int
    sigma_squared: int
    finest_sigma_squared: int
    coordinates: int
    grid_bits: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sensitivity_steps < 0 or self.coordinates < 0:
            raise PrivacyError(f"event '{self.what}': negative sensitivity or size")
        if not 0 < self.finest_sigma_squared <= self.sigma_squared:
            raise PrivacyError(f"event '{self.what}': needs 0 < finest σ² <= σ²")

    @property
    def mu(self) -> float:
        """Gaussian-DP parameter: sensitivity over σ, rounded up."""
        ratio = Fraction(self.sensitivity_steps**2, self.sigma_squared)
        return math.nextafter(math.sqrt(math.nextafter(float(ratio), math.inf)), math.inf)

    @property
    def sensitivity(self) -> float:
        """The sensitivity in the units of the data."""
        return self.sensitivity_steps * 2.0**-self.grid_bits

    @property
    def sigma_steps(self) -> float:
        """The least standard deviation of any coordinate, in steps."""
        return math.sqrt(self.finest_sigma_squared)


@dataclass(frozen=True, kw_only=True)
class LaplaceEvent(_Event):
    """An integer vector plus independent discrete Laplace noise of an exact rational scale.

    `sensitivity_steps` is the proven L1 change one unit can make, whatever figure the scale was
    chosen with, so `epsilon` is always the proven one.
    """

    sensitivity_steps: int
    scale_numerator: int
    scale_denominator: int
    coordinates: int
    grid_bits: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sensitivity_steps < 0 or self.scale_numerator <= 0 or self.scale_denominator <= 0:
            raise PrivacyError(f"event '{self.what}': needs a sensitivity >= 0 and a scale > 0")

    @property
    def epsilon(self) -> Fraction:
        """The exact pure ε: sensitivity over scale."""
        return Fraction(self.sensitivity_steps * self.scale_denominator, self.scale_numerator)

    @property
    def sensitivity(self) -> float:
        """The sensitivity in the units of the data."""
        return self.sensitivity_steps * 2.0**-self.grid_bits


@dataclass(frozen=True, kw_only=True)
class SelectionEvent(_Event):
    """The index of one of `candidates` public candidates, chosen by integer scores.

    One unit changes any score by at most `sensitivity_steps`; where it moves all scores the same
    way the selection is `monotonic`. `mechanism` is `exponential`, P(i) ∝ exp(score/scale), or
    `report_noisy_max`, exponential noise of that scale. The scale, in steps, is an exact rational.
    """

    mechanism: str
    candidates: int
    sensitivity_steps: int
    scale_numerator: int
    scale_denominator: int
    grid_bits: int
    monotonic: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mechanism not in SELECTIONS or self.candidates < 1:
            raise PrivacyError(f"event '{self.what}': unknown mechanism, or no candidates")
        if self.sensitivity_steps < 0 or self.scale_numerator <= 0 or self.scale_denominator <= 0:
            raise PrivacyError(f"event '{self.what}': needs a sensitivity >= 0 and a scale > 0")

    @property
    def epsilon(self) -> Fraction:
        """The exact pure ε: twice the sensitivity over the scale; once, where monotonic."""
        times = 1 if self.monotonic else 2
        return Fraction(
            times * self.sensitivity_steps * self.scale_denominator, self.scale_numerator
        )

    @property
    def sensitivity(self) -> float:
        """The sensitivity of a score in the units of the data."""
        return self.sensitivity_steps * 2.0**-self.grid_bits


@dataclass(frozen=True, kw_only=True)
class ClaimedEvent(_Event):
    """A release whose text claims `claimed_epsilon` without a proof that holds."""

    claimed_epsilon: float
    status: Status = "claimed"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.status != "claimed":
            raise PrivacyError(f"event '{self.what}': a claimed event cannot be '{self.status}'")

    @property
    def sensitivity(self) -> float:
        """No bound is proven."""
        return math.inf


@dataclass(frozen=True, kw_only=True)
class UnprotectedEvent(_Event):
    """A release without noise: no guarantee of any size."""

    status: Status = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.status != "none":
            raise PrivacyError(f"event '{self.what}': an unprotected event has status none")

    @property
    def sensitivity(self) -> float:
        """No bound is enforced."""
        return math.inf


PureEvent = LaplaceEvent | SelectionEvent  # those with an exact pure ε
Event = GaussianEvent | PureEvent | ClaimedEvent | UnprotectedEvent

KINDS: dict[str, type[Event]] = {
    "gaussian": GaussianEvent,
    "laplace": LaplaceEvent,
    "selection": SelectionEvent,
    "claimed": ClaimedEvent,
    "unprotected": UnprotectedEvent,
}
# Steps may exceed 64 bits, which JSON and MessagePack readers need not carry: sent as text.
_WIDE = {"sigma_squared", "finest_sigma_squared", "scale_numerator", "scale_denominator"}


def to_dict(event: Event) -> dict[str, Any]:
    """Plain values of an event, with its `kind`; the inverse of `event_from_dict`."""
    kind = next(name for name, known in KINDS.items() if type(event) is known)
    plain = {k: str(v) if k in _WIDE else v for k, v in asdict(event).items()}
    return {"kind": kind, **plain}


def event_from_dict(plain: Mapping[str, Any]) -> Event:
    """The event of `to_dict`. Unknown kinds, unknown fields and wrong values raise."""
    values = dict(plain)
    kind = values.pop("kind", None)
    if kind not in KINDS:
        raise PrivacyError(f"unknown privacy event '{kind}'", fix="update this device")
    cls = KINDS[kind]
    known = {f.name: f.type for f in fields(cls)}
    if set(values) - set(known):
        raise PrivacyError(f"{kind} event: unknown fields {sorted(set(values) - set(known))}")
    try:
        typed = {k: _typed(known[k], k, v) for k, v in values.items()}
        return cls(**typed)
    except (TypeError, ValueError) as error:
        raise PrivacyError(f"{kind} event: {error}") from None


def _typed(kind: object, name: str, value: Any) -> Any:
    if name in _WIDE and isinstance(value, str):
        return int(value)
    want: tuple[type, ...] = {"int": (int,), "float": (int, float), "bool": (bool,)}.get(
        str(kind), (str,)
    )
    if isinstance(value, bool) != (kind == "bool") or not isinstance(value, want):
        raise TypeError(f"{name} has a wrong type")
    return value

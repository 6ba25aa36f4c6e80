"""Events: releases that the accountant prices, with sensitivity and noise in integer steps.

The plain form (`to_dict`) is in messages, ledgers and noise keys, so it never changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from fractions import Fraction
from typing import Any, ClassVar, Literal, get_args

from edgeveil.errors import PrivacyError
from edgeveil.privacy.correlation import Correlation

Unit = Literal["record", "person", "device"]  # each is part of the next
Status = Literal["proven", "claimed", "none"]
ADD_OR_REMOVE = "add_or_remove"

UNITS: tuple[Unit, ...] = get_args(Unit)
_STATUSES: tuple[Status, ...] = ("proven", "claimed", "none")
_LEAST = {  # least value of integer fields
    **dict.fromkeys(("sensitivity_steps", "coordinates"), 0),
    **dict.fromkeys(("scale_numerator", "scale_denominator"), 1),
    **dict.fromkeys(("epsilon_numerator", "epsilon_denominator", "candidates"), 1),
}


@dataclass(frozen=True, kw_only=True)
class _Event:
    """A release named `what` that hides one `unit`; `source` cites the theorem."""

    what: str
    unit: Unit
    purpose: str = "train"
    neighbours: str = ADD_OR_REMOVE
    status: Status = "proven"
    source: str = ""
    may_be: ClassVar[tuple[Status, ...]] = _STATUSES

    def __post_init__(self) -> None:
        if self.unit not in UNITS or self.status not in self.may_be:
            raise PrivacyError(f"event '{self.what}': cannot be '{self.unit}' and '{self.status}'")
        for name, least in _LEAST.items():
            if getattr(self, name, least) < least:
                raise PrivacyError(f"event '{self.what}': {name} must be at least {least}")
        if self.neighbours != ADD_OR_REMOVE:
            raise PrivacyError(f"event '{self.what}': unknown relation '{self.neighbours}'")


@dataclass(frozen=True, kw_only=True)
class GaussianEvent(_Event):
    """A sum of integer vectors plus independent discrete Gaussian noise.

    `sensitivity_steps`: L2 change of one unit; `finest_sigma_squared`: least variance of a
    coordinate (half of `sigma_squared` for off-diagonals of a symmetric matrix);
    `record_sensitivity_steps`: change of a device's record, 0 for twice that of the device."""

    sensitivity_steps: int
    sigma_squared: int
    finest_sigma_squared: int
    coordinates: int
    grid_bits: int
    record_sensitivity_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.record_sensitivity_steps and self.unit != "device":
            raise PrivacyError(f"event '{self.what}': has one sensitivity, of one {self.unit}")
        if not 0 < self.finest_sigma_squared <= self.sigma_squared:
            raise PrivacyError(f"event '{self.what}': needs 0 < finest σ² <= σ²")

    @property
    def mu(self) -> float:
        """Gaussian-DP parameter: sensitivity over σ, rounded up."""
        ratio = Fraction(self.sensitivity_steps**2, self.sigma_squared)
        return math.nextafter(math.sqrt(math.nextafter(float(ratio), math.inf)), math.inf)

    @property
    def noise_multiplier(self) -> float:
        """σ over sensitivity, 1/μ, rounded down; the usual parameter of other libraries."""
        return math.nextafter(1 / self.mu, 0.0)

    @property
    def sensitivity(self) -> float:
        return self.sensitivity_steps * 2.0**-self.grid_bits

    @property
    def sigma_steps(self) -> float:
        """Least standard deviation of any coordinate, in steps."""
        return math.sqrt(self.finest_sigma_squared)


class _Wrapping:
    """An event around a Gaussian one, with that one's name, unit, purpose, status and source."""

    _wrapped: Any
    what = property(lambda self: self._wrapped.what)
    unit = property(lambda self: self._wrapped.unit)
    purpose = property(lambda self: self._wrapped.purpose)
    status = property(lambda self: self._wrapped.status)
    source = property(lambda self: self._wrapped.source)


@dataclass(frozen=True, kw_only=True)
class PoissonSampled(_Wrapping):
    """`steps` releases of `event`, each over a fresh secret sample at `sampling_probability`.

    `of_part`: for a part of what is sampled, which changes its vector but not the sample."""

    event: GaussianEvent
    sampling_probability: float
    steps: int
    of_part: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 < self.sampling_probability <= 1:
            raise PrivacyError(f"event '{self.what}': needs a step and a probability in (0, 1]")
        if self.event.finest_sigma_squared != self.event.sigma_squared:
            raise PrivacyError(f"event '{self.what}': a sampled sum has one σ² on all coordinates")

    _wrapped = property(lambda self: self.event)


NoisyEvent = GaussianEvent | PoissonSampled  # those with a δ


@dataclass(frozen=True, kw_only=True)
class SharedGaussian(_Wrapping):
    """A device's `own` part in a sum to which `honest` devices or more add as much noise.

    If `own` is sampled, each device samples its own records."""

    own: NoisyEvent
    honest: int

    def __post_init__(self) -> None:
        if self.honest < 1:
            raise PrivacyError(f"event '{self.what}': needs an honest device")

    @property
    def together(self) -> NoisyEvent:
        one = noise_of(self.own)
        return with_noise(
            self.own,
            sigma_squared=self.honest * one.sigma_squared,
            finest_sigma_squared=self.honest * one.finest_sigma_squared,
        )

    @property
    def alone(self) -> Event:
        """The release as visible if all others collude."""
        return self.own

    _wrapped = property(lambda self: self.own)


@dataclass(frozen=True, kw_only=True)
class CorrelatedGaussian(SharedGaussian):
    """A device's part of one round's correlated noise, `own` as if each round had its own noise.

    `local_sigma_squared`: variance of noise that stays in the upload, so that nobody takes it back.
    """

    correlation: Correlation
    local_sigma_squared: int = 0

    @property
    def together(self) -> GaussianEvent:
        """One participation's share of the job: k of them have the price of all T rounds."""
        summed, of = noise_of(super().together), self.correlation
        steps = of.sensitivity_steps(summed.sensitivity_steps, summed.coordinates)
        drawn = -(-summed.coordinates * of.rounds // of.participations)
        return replace(summed, sensitivity_steps=steps, coordinates=drawn)

    @property
    def local(self) -> GaussianEvent | None:
        """The noise left if cloud and proxy collude; None: none."""
        variance = self.local_sigma_squared
        if not variance:
            return None
        one = noise_of(self)
        return replace(one, sigma_squared=variance, finest_sigma_squared=variance)

    @property
    def alone(self) -> Event:
        return self.local or UnprotectedEvent(what=self.what, unit=self.unit, purpose=self.purpose)


@dataclass(frozen=True, kw_only=True)
class LaplaceEvent(_Event):
    """An integer vector plus independent discrete Laplace noise of an exact rational scale.

    `sensitivity_steps`: proven L1 change of one unit; `record_sensitivity_steps`: of a device's
    record; 0: the same."""

    sensitivity_steps: int
    scale_numerator: int
    scale_denominator: int
    coordinates: int
    grid_bits: int
    record_sensitivity_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.record_sensitivity_steps <= self.sensitivity_steps:
            raise PrivacyError(f"event '{self.what}': a record changes no more than its device")
        if self.record_sensitivity_steps and self.unit != "device":
            raise PrivacyError(f"event '{self.what}': has one sensitivity, of one record")

    @property
    def epsilon(self) -> Fraction:
        return Fraction(self.sensitivity_steps * self.scale_denominator, self.scale_numerator)


@dataclass(frozen=True, kw_only=True)
class SelectionEvent(_Event):
    """The index of one of `candidates` public candidates, P(i) ∝ exp(score/scale)."""

    mechanism: str
    candidates: int
    sensitivity_steps: int
    scale_numerator: int
    scale_denominator: int
    grid_bits: int
    monotonic: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        # report_noisy_max, which old ledgers hold, has the same price.
        if self.mechanism not in ("exponential", "report_noisy_max"):
            raise PrivacyError(f"event '{self.what}': unknown mechanism")

    @property
    def epsilon(self) -> Fraction:
        """Exact pure ε: twice the sensitivity over the scale, or once if monotonic."""
        steps = self.sensitivity_steps * (1 if self.monotonic else 2)
        return Fraction(steps * self.scale_denominator, self.scale_numerator)


@dataclass(frozen=True, kw_only=True)
class TwoValueEvent(_Event):
    """`coordinates` values of one unit, each sent as one of two public values at an exact ε."""

    coordinates: int
    epsilon_numerator: int
    epsilon_denominator: int

    @property
    def epsilon(self) -> Fraction:
        return Fraction(self.coordinates * self.epsilon_numerator, self.epsilon_denominator)


@dataclass(frozen=True, kw_only=True)
class ClaimedEvent(_Event):
    """A release whose paper claims `claimed_epsilon` without a valid proof."""

    claimed_epsilon: float
    status: Status = "claimed"
    may_be = ("claimed",)


@dataclass(frozen=True, kw_only=True)
class UnprotectedEvent(_Event):
    """A release without noise."""

    status: Status = "none"
    may_be = ("none",)


PureEvent = LaplaceEvent | SelectionEvent | TwoValueEvent  # those with an exact pure ε
Event = NoisyEvent | SharedGaussian | PureEvent | ClaimedEvent | UnprotectedEvent


def as_summed(event: Event) -> Event:
    return event.together if isinstance(event, SharedGaussian) else event


def as_single(event: Event) -> Event:
    """Return the release as visible if all others collude: with the device's own noise alone."""
    return event.alone if isinstance(event, SharedGaussian) else event


def noise_of(event: NoisyEvent | SharedGaussian) -> GaussianEvent:
    """Return the Gaussian release whose noise a device adds itself, in each step if sampled."""
    own = event.own if isinstance(event, SharedGaussian) else event
    return own.event if isinstance(own, PoissonSampled) else own


def with_noise(event: NoisyEvent, **changes: Any) -> NoisyEvent:
    """Return the event with other fields of its Gaussian release."""
    one = replace(noise_of(event), **changes)
    return replace(event, event=one) if isinstance(event, PoissonSampled) else one


def for_one_record(event: Event) -> Event:
    return for_one("record", event)


def for_one(unit: Unit, event: Event) -> Event:
    """Return the event for one `unit` that is part of the event's own.

    A device's update may have twice the sensitivity, as both neighbours are within its bound."""
    if event.unit == unit:
        return event
    if isinstance(event, PoissonSampled):
        part = event.of_part or (event.unit != unit and event.sampling_probability < 1)
        return replace(event, event=replace(event.event, unit=unit), of_part=part)
    if isinstance(event, SharedGaussian):
        own = for_one(unit, event.own)
        return replace(event, own=own) if isinstance(own, NoisyEvent) else event
    if event.unit == "device" and isinstance(event, LaplaceEvent | GaussianEvent):
        steps = event.record_sensitivity_steps if unit == "record" else 0
        twice = 2 if isinstance(event, GaussianEvent) else 1
        steps = steps or twice * event.sensitivity_steps
        return replace(event, unit=unit, sensitivity_steps=steps, record_sensitivity_steps=0)
    return replace(event, unit=unit)


_KINDS: dict[str, type[Event]] = {
    "gaussian": GaussianEvent,
    "sampled_gaussian": PoissonSampled,
    "correlated_gaussian": CorrelatedGaussian,
    "laplace": LaplaceEvent,
    "selection": SelectionEvent,
    "two_value": TwoValueEvent,
    "claimed": ClaimedEvent,
    "unprotected": UnprotectedEvent,
}
_SHARED = "shared_"  # before the kind of a device's own part
# Steps may exceed 64 bits, which JSON and MessagePack readers need not support: sent as text.
_WIDE = {
    "sigma_squared",
    "finest_sigma_squared",
    "local_sigma_squared",
    "scale_numerator",
    "scale_denominator",
    "epsilon_numerator",
    "epsilon_denominator",
}


def to_dict(event: Event) -> dict[str, Any]:
    if isinstance(event, SharedGaussian):
        own = {**to_dict(event.own), "honest": event.honest}
        if not isinstance(event, CorrelatedGaussian):
            return {**own, "kind": f"{_SHARED}{own['kind']}"}
        local = str(event.local_sigma_squared)
        matrix = {**asdict(event.correlation), "local_sigma_squared": local}
        return {**own, "kind": "correlated_gaussian", **matrix}
    kind = next(name for name, known in _KINDS.items() if type(event) is known)
    if isinstance(event, PoissonSampled):
        values = asdict(event.event)
        size = {name: values.pop(name) for name in ("coordinates", "grid_bits")}
        del values["finest_sigma_squared"]
        sampling = {"sampling_probability": event.sampling_probability, "steps": event.steps}
        values |= sampling | size
    else:
        values = asdict(event)
    plain = {k: str(v) if k in _WIDE else v for k, v in values.items()}
    if not plain.get("record_sensitivity_steps"):  # the form before this field existed
        plain.pop("record_sensitivity_steps", None)
    return {"kind": kind, **plain}


def event_from_dict(plain: Mapping[str, Any]) -> Event:
    """Invert `to_dict`. Raises PrivacyError for unknown kinds, unknown fields and wrong values."""
    values = dict(plain)
    kind = str(values.pop("kind", None))
    cls, shared = _KINDS.get(kind.removeprefix(_SHARED)), kind.startswith(_SHARED)
    if cls is None or (shared and not issubclass(cls, NoisyEvent)):
        raise PrivacyError(f"unknown privacy event '{kind}'", fix="update this device")
    wrapped = ("event", "own", "correlation")
    known = {f.name: f.type for f in fields(cls) if f.name not in wrapped}
    if cls is CorrelatedGaussian:
        known |= {f.name: f.type for of in (GaussianEvent, Correlation) for f in fields(of)}
    if cls is PoissonSampled:
        known |= {f.name: f.type for f in fields(GaussianEvent)}
        del known["finest_sigma_squared"]
    if shared:
        known["honest"] = "int"
    if set(values) - set(known):
        raise PrivacyError(f"{kind} event: unknown fields {sorted(set(values) - set(known))}")
    try:
        typed = {k: _typed(known[k], k, v) for k, v in values.items()}
        if cls is CorrelatedGaussian:
            more = {name: typed.pop(name) for name in ("honest", "local_sigma_squared")}
            matrix = Correlation(**{f.name: typed.pop(f.name) for f in fields(Correlation)})
            return CorrelatedGaussian(own=GaussianEvent(**typed), correlation=matrix, **more)
        honest = typed.pop("honest") if shared else 0
        if cls is PoissonSampled:
            sampling = {name: typed.pop(name) for name in ("sampling_probability", "steps")}
            one = GaussianEvent(finest_sigma_squared=typed["sigma_squared"], **typed)
            own: Event = PoissonSampled(event=one, **sampling)
        else:
            own = cls(**typed)
        return (
            SharedGaussian(own=own, honest=honest)
            if isinstance(own, NoisyEvent) and shared
            else own
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PrivacyError(f"{kind} event: {error}") from None


def _typed(kind: object, name: str, value: Any) -> Any:
    if name in _WIDE and isinstance(value, str):
        return int(value)
    kinds: dict[object, tuple[type, ...]]
    kinds = {"int": (int,), "float": (int, float), "bool": (bool,)}
    want = kinds.get(kind, (str,))
    if isinstance(value, bool) != (kind == "bool") or not isinstance(value, want):
        raise TypeError(f"{name} has a wrong type")
    return value

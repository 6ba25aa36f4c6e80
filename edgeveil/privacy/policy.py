"""A job's total price, checked against the owner's limits before any record is read."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from edgeveil.errors import PrivacyError
from edgeveil.privacy.accountant import epsilon, weakest
from edgeveil.privacy.events import (
    UNITS,
    Event,
    PureEvent,
    Unit,
    UnprotectedEvent,
    event_from_dict,
    for_one,
    to_dict,
)
from edgeveil.privacy.guarantee import Guarantee, up

TRAIN, INFER = "train", "infer"


@dataclass(frozen=True)
class Limits:
    """The owner's limits for one data set; for None see `Policy`."""

    max_epsilon_per_job: float
    lifetime_epsilon: float
    lifetime_delta: float
    max_inference_epsilon: float
    accept_unproven: bool = False
    accept_unprotected: bool = False
    max_collusion_epsilon_per_job: float | None = None
    lifetime_collusion_epsilon: float | None = None
    max_inference_record_epsilon: float | None = None
    max_jobs: int | None = None


@dataclass(frozen=True)
class JobRequest:
    """All events that a job may ever release; training events `max_participations` times."""

    job_id: str
    delta: float
    events: tuple[Event, ...]

    def to_json(self) -> str:
        counts = [[to_dict(event), count] for event, count in Counter(self.events).items()]
        return json.dumps({"job_id": self.job_id, "delta": self.delta, "events": counts})

    @classmethod
    def from_json(cls, text: str) -> JobRequest:
        plain = json.loads(text)
        pairs = [(event_from_dict(event), count) for event, count in plain["events"]]
        events = tuple(event for event, count in pairs for _ in range(count))
        return cls(plain["job_id"], plain["delta"], events)

    def same_as(self, other: JobRequest) -> bool:
        same = (self.job_id, self.delta) == (other.job_id, other.delta)
        return same and Counter(self.events) == Counter(other.events)

    def admit(self, released: Iterable[Event], new: Iterable[Event]) -> None:
        """Raise `PrivacyError` if `new` events exceed the plan, given the `released` ones."""
        planned, used = Counter(self.events), Counter(released)
        for event, count in Counter(new).items():
            if used[event] + count > planned[event]:
                what = f"reserved {planned[event]} times and released {used[event]} times"
                fix = "raise privacy.max_participations, or start a new job"
                raise PrivacyError(f"job {self.job_id}: '{event.what}' was {what}", fix=fix)

    def counted(self, released: Iterable[Event]) -> tuple[Event, ...]:
        """Return the events that count permanently once `released` were released, by purpose.

        Pure ε counts as released. After any other event the whole proven plan counts: (ε, δ) holds
        for a budget fixed beforehand (Rogers et al. 2016; Smith and Thakurta 2022)."""
        found = tuple(released)
        fixed = {event.purpose for event in found if not isinstance(event, PureEvent)}
        planned = (e for e in self.events if e.status == "proven" or e in found)
        return (
            *(event for event in planned if event.purpose in fixed),
            *(event for event in found if event.purpose not in fixed),
        )


@dataclass(frozen=True)
class Quote:
    """The two guarantees of one job; neither alone is "the" ε."""

    training: Guarantee
    inference: Guarantee


def price(events: Iterable[Event], delta: float) -> Quote:
    """Price training and inference events separately; of mixed units per smallest one."""
    listed = tuple(events)
    training = epsilon([e for e in listed if e.purpose == TRAIN], delta)
    inferred = [e for e in listed if e.purpose != TRAIN]
    of_devices = [e for e in inferred if e.unit == "device"]
    if len(of_devices) in (0, len(inferred)):
        return Quote(training, epsilon(inferred, delta))
    least = min((e.unit for e in inferred), key=UNITS.index)
    whole = epsilon([for_one(least, e) for e in inferred], delta)
    return Quote(training, replace(whole, of_device=epsilon(of_devices, delta).collusion_epsilon))


def total(parts: Iterable[Guarantee]) -> Guarantee:
    """Return the basic composition of several jobs: per record for mixed units, weakest status."""
    listed = tuple(parts)
    units = {p.unit for p in listed if max(p.record_epsilon, p.collusion_epsilon) > 0}
    whole = _composed(listed, units)
    if all(part.colluding is None for part in listed):
        return whole
    alone = _composed(tuple(part.colluding or part for part in listed), units)
    return replace(whole, colluding=alone, honest=max(part.honest for part in listed))


def _composed(parts: tuple[Guarantee, ...], units: set[Unit]) -> Guarantee:
    of_records = _added(part.record_epsilon for part in parts)
    delta, status = math.fsum(part.delta for part in parts), weakest(part.status for part in parts)
    if len(units) > 1 or any(part.of_device is not None for part in parts):
        devices = [part for part in parts if part.unit == "device" or part.of_device is not None]
        of_devices = _added(part.device_epsilon for part in devices) if devices else None
        return Guarantee(of_records, delta, "record", status, of_device=of_devices)
    unit: Unit = min(units, default="record")
    among = of_records if any(part.among_others is not None for part in parts) else None
    return Guarantee(_added(part.epsilon for part in parts), delta, unit, status, among)


def _added(epsilons: Iterable[float]) -> float:
    listed = tuple(epsilons)
    if not all(map(math.isfinite, listed)):
        return math.inf
    exact = sum(map(Fraction, listed), Fraction(0))
    return math.nextafter(float(exact), math.inf) if len(listed) > 1 and exact else float(exact)


def check_job(request: JobRequest, limits: Limits, others: Iterable[Quote]) -> Quote:
    """Return the job's quote. Raises `PrivacyError` if it exceeds the limits with `others`."""
    _check_status(request, limits)
    priced = countable_quote(request)
    quotes = [priced, *others]
    training = total([quote.training for quote in quotes])
    inference = total([quote.inference for quote in quotes])
    of_device, of_record = inference_epsilons(quotes)
    record_key = "max_inference_record_epsilon"
    if limits.max_inference_record_epsilon is None:
        record_key = "max_inference_epsilon"
    colluding, all_colluding = "max_collusion_epsilon_per_job", "lifetime_collusion_epsilon"
    for name, asked, otherwise in (
        ("max_epsilon_per_job", priced.training.epsilon, 0.0),
        (colluding, priced.training.if_colluding, limits.max_epsilon_per_job),
        ("lifetime_epsilon", training.epsilon, 0.0),
        (all_colluding, training.if_colluding, limits.lifetime_epsilon),
        ("lifetime_delta", training.delta, 0.0),
        ("max_inference_epsilon", of_device, 0.0),
        (record_key, of_record, 0.0),
        (all_colluding, inference.if_colluding, limits.max_inference_epsilon),
        ("lifetime_delta", inference.delta, 0.0),
    ):
        limit = getattr(limits, name)
        most = otherwise if limit is None else limit
        if asked is not None and not asked <= most:  # None: noise is not shared
            what = f"it would take {up(asked, 6)}, the owner allows {most:.6g}"
            raise PrivacyError(f"job {request.job_id} refused: {what}", where=f"policy.{name}")
    return price(request.events, request.delta)


def inference_epsilons(quotes: Iterable[Quote]) -> tuple[float, float]:
    """Return several jobs' inference ε: (per device, of events that have one; per record)."""
    parts = [quote.inference for quote in quotes]
    of_devices = _added(part.device_epsilon for part in parts)
    return of_devices, total(parts).record_epsilon


def countable_quote(request: JobRequest) -> Quote:
    """Return the quote that counts against the limits: without unprotected releases."""
    events = (event for event in request.events if not isinstance(event, UnprotectedEvent))
    return price(events, request.delta)


def _check_status(request: JobRequest, limits: Limits) -> None:
    for status, allowed, key in (
        ("claimed", limits.accept_unproven, "accept_unproven"),
        ("none", limits.accept_unprotected, "accept_unprotected"),
    ):
        found = next((e for e in request.events if e.status == status), None)
        if found is not None and not allowed:
            what = f"job {request.job_id} refused: '{found.what}' has no proven guarantee"
            raise PrivacyError(what, where=f"policy.{key}")

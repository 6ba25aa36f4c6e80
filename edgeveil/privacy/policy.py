"""A job's total price, checked against the owner's limits before any record is read."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from edgeveil.errors import PrivacyError
from edgeveil.privacy.accountant import epsilon, weakest
from edgeveil.privacy.composition import least_limit
from edgeveil.privacy.events import (
    UNITS,
    Event,
    PureEvent,
    Unit,
    UnprotectedEvent,
    as_single,
    as_summed,
    event_from_dict,
    for_one,
    to_dict,
)
from edgeveil.privacy.guarantee import Guarantee, up

TRAIN, INFER = "train", "infer"
ASK = "ask"  # of all records, whatever their split: in the accounts of both others


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
    statistics_epsilon: float | None = None


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
        """Return the events that count permanently once `released` were released, by account.

        Pure ε counts as released. After any other event the whole proven plan counts: (ε, δ) holds
        for a budget fixed beforehand (Rogers et al. 2016; Smith and Thakurta 2022)."""
        found = tuple(released)
        fixed = {event.purpose for event in found if not isinstance(event, PureEvent)}
        if fixed:  # whether a question follows may depend on what was released before it
            fixed |= {TRAIN, INFER} if ASK in fixed else {ASK}
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
    return Quote(*(_account(of_account(one, listed), delta) for one in (TRAIN, INFER)))


def _account(events: list[Event], delta: float) -> Guarantee:
    of_devices = [e for e in events if e.unit == "device"]
    if len(of_devices) in (0, len(events)):
        return epsilon(events, delta)
    least = min((e.unit for e in events), key=UNITS.index)
    whole = epsilon([for_one(least, e) for e in events], delta)
    return replace(whole, of_device=epsilon(of_devices, delta).collusion_epsilon)


def of_account(purpose: str, events: Iterable[Event]) -> list[Event]:
    """Return the events that read training records (TRAIN), or evaluation records (INFER)."""
    return [event for event in events if event.purpose in (purpose, ASK)]


def told(events: Sequence[Event], delta: float) -> Quote:
    """Return `price` as a person reads it: of a job that only asks once, as a record pays once."""
    quote = price(events, delta)
    asks = all(event.purpose == ASK for event in events)
    return replace(quote, inference=epsilon([], delta)) if asks else quote


def total(jobs: Iterable[JobRequest], delta: float | None = None) -> Quote:
    """Return what several jobs cost together: the least limit ε that admits them at `delta`.

    `delta`: the owner's lifetime δ; default: the sum of the jobs' own. One job alone has its own
    price, and no total is below it. Per record for mixed units; weakest status, and without a
    proof for each job their ε and δ add up as well."""
    training, inference = [], []
    for job in jobs:
        quote = price(job.events, job.delta)
        training.append((of_account(TRAIN, job.events), quote.training))
        inference.append((of_account(INFER, job.events), quote.inference))
    return Quote(_total(training, delta), _total(inference, delta))


def asked_in(jobs: Iterable[JobRequest], delta: float) -> Guarantee:
    """Return what the statistics of several jobs cost together, as `total` does."""
    own = ([event for event in job.events if event.purpose == ASK] for job in jobs)
    return total([JobRequest("", delta, tuple(events)) for events in own if events], delta).training


def _total(jobs: Iterable[tuple[list[Event], Guarantee]], delta: float | None) -> Guarantee:
    listed = [(events, part) for events, part in jobs if events]
    parts = [part for _, part in listed]
    if len(parts) == 1:
        return parts[0]
    counts = Counter(event for events, _ in listed for event in events)
    units = {p.unit for p in parts if max(p.record_epsilon, p.collusion_epsilon) > 0}
    whole = _composed(parts, units, _mapped(as_summed, counts), delta)
    if all(part.colluding is None for part in parts):
        return whole
    own = [part.colluding or part for part in parts]
    alone = _composed(own, units, _mapped(as_single, counts), delta)
    return replace(whole, colluding=alone, honest=max(part.honest for part in parts))


def _mapped(change: Callable[[Event], Event], counts: Mapping[Event, int]) -> Counter[Event]:
    found: Counter[Event] = Counter()
    for event, count in counts.items():
        found[change(event)] += count
    return found


def _composed(
    parts: list[Guarantee], units: set[Unit], counts: Mapping[Event, int], delta: float | None
) -> Guarantee:
    status, added = weakest(part.status for part in parts), math.fsum(part.delta for part in parts)
    proven = {event: count for event, count in counts.items() if event.status == "proven"}
    all_proven = status == "proven"

    def composed(unit: Unit, own: list[float]) -> tuple[float, float]:
        inside = UNITS.index(unit)
        events = {e: count for e, count in proven.items() if UNITS.index(e.unit) >= inside}
        found = _mapped(partial(for_one, unit), events)
        least, spent = least_limit(found, added if delta is None else delta)
        return max(least, max(own, default=0.0) if all_proven else _added(own)), spent

    of: dict[Unit, tuple[float, float]] = {
        "record": composed("record", [part.record_epsilon for part in parts]),
        "person": composed("person", [p.epsilon for p in parts if p.unit == "person"]),
        "device": composed("device", [part.device_epsilon for part in parts]),
    }
    spent = max(delta for _, delta in of.values()) if all_proven else added
    if len(units) > 1 or any(part.of_device is not None for part in parts):
        device = of["device"][0] if any(part.device_epsilon for part in parts) else None
        person = of["person"][0] if "person" in units else None
        record = of["record"][0]
        return Guarantee(record, spent, "record", status, of_device=device, of_person=person)
    unit: Unit = min(units, default="record")
    among = of["record"][0] if any(part.among_others is not None for part in parts) else None
    return Guarantee(of[unit][0], spent, unit, status, among)


def _added(epsilons: Iterable[float]) -> float:
    listed = tuple(epsilons)
    if not all(map(math.isfinite, listed)):
        return math.inf
    exact = sum(map(Fraction, listed), Fraction(0))
    return math.nextafter(float(exact), math.inf) if len(listed) > 1 and exact else float(exact)


def check_job(request: JobRequest, limits: Limits, others: Iterable[JobRequest]) -> Quote:
    """Return the job's quote. Raises `PrivacyError` if it exceeds the limits with `others`."""
    _check_status(request, limits)
    jobs = [countable(job) for job in (request, *others)]
    priced, life = total(jobs[:1]), total(jobs, limits.lifetime_delta)
    training, inference = life.training, life.inference
    record_key = "max_inference_record_epsilon"
    if limits.max_inference_record_epsilon is None:
        record_key = "max_inference_epsilon"
    colluding, all_colluding = "max_collusion_epsilon_per_job", "lifetime_collusion_epsilon"
    for name, asked, otherwise in (
        ("max_epsilon_per_job", priced.training.epsilon, 0.0),
        (colluding, priced.training.if_colluding, limits.max_epsilon_per_job),
        ("lifetime_epsilon", training.limited, 0.0),
        (all_colluding, training.limited_if_colluding, limits.lifetime_epsilon),
        ("lifetime_delta", max(training.delta, priced.training.delta), 0.0),
        ("max_inference_epsilon", inference.device_epsilon, 0.0),
        (record_key, inference.record_epsilon, 0.0),
        (record_key, inference.of_person, 0.0),
        (all_colluding, inference.limited_if_colluding, limits.max_inference_epsilon),
        ("lifetime_delta", max(inference.delta, priced.inference.delta), 0.0),
        ("statistics_epsilon", asked_in(jobs, limits.lifetime_delta).limited, math.inf),
    ):
        limit = getattr(limits, name)
        most = otherwise if limit is None else limit
        if asked is not None and not asked <= most:  # None: noise is not shared
            what = f"it would take {up(asked, 6)}, the owner allows {most:.6g}"
            raise PrivacyError(f"job {request.job_id} refused: {what}", where=f"policy.{name}")
    return price(request.events, request.delta)


def countable(request: JobRequest) -> JobRequest:
    """Return what of a job counts against the limits: all but unprotected releases."""
    events = (event for event in request.events if not isinstance(event, UnprotectedEvent))
    return replace(request, events=tuple(events))


def _check_status(request: JobRequest, limits: Limits) -> None:
    for status, allowed, key in (
        ("claimed", limits.accept_unproven, "accept_unproven"),
        ("none", limits.accept_unprotected, "accept_unprotected"),
    ):
        found = next((e for e in request.events if e.status == status), None)
        if found is not None and not allowed:
            what = f"job {request.job_id} refused: '{found.what}' has no proven guarantee"
            raise PrivacyError(what, where=f"policy.{key}")

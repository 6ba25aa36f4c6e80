"""What each party sees of a job's uploads and models, in words that reports and consoles show."""

from __future__ import annotations

from dataclasses import dataclass

from edgeveil.jobs.plan import Plan
from edgeveil.parts.exchange import TRAIN

_PROXY = "ciphertext of one size, who sent it and when"
_SUMMED = f"{_PROXY}; the seeds of masks, without what they hide"


@dataclass(frozen=True)
class Sight:
    """What cloud and proxy each see of one thing, while they do not work together."""

    what: str
    cloud: str
    proxy: str


def who_sees(plan: Plan) -> tuple[Sight, ...]:
    """Of a job's training uploads, its inferences, and the models it sends."""
    rows = [_training(plan)]
    if plan.job.infer_every:
        rows.append(_inference(plan))
    models = Sight("models sent to devices", "all: it makes them", "ciphertext")
    return (*rows, models)


def _training(plan: Plan) -> Sight:
    train = next(one for one in plan.planned if one.phase == TRAIN)
    noised = "noised" if plan.adds_noise else "unprotected"
    if plan.masked(train):
        return Sight("training uploads", _sums(plan, noised, "sum"), _SUMMED)
    return Sight("training uploads", f"each {noised} upload, {_order(plan)}", _PROXY)


def _inference(plan: Plan) -> Sight:
    noised = "unprotected" if plan.softmax_epsilon is None else "noised"
    if plan.sums_inferences:
        return Sight("inferences", _sums(plan, f"{noised} softmax", "mean"), _SUMMED)
    rows = "mean softmax of a device" if plan.softmax_samples is None else "softmax of a record"
    alone = ", not under masks: clusters need each" if plan.job.aggregation.secure else ""
    return Sight("inferences", f"each {noised} {rows}, {_order(plan)}{alone}", _PROXY)


def _sums(plan: Plan, what: str, kind: str) -> str:
    """What the cloud sees of uploads under masks."""
    least = plan.job.round.min_batch // plan.sets
    of = f"{kind} of each round" if plan.sets == 1 else f"{kind}s of {plan.sets} groups a round"
    return f"the {what} {of}, of {least} uploads or more; no single upload"


def _order(plan: Plan) -> str:
    if plan.job.proxy.shuffle == "none":
        return "without its sender, in the order of arrival"
    return "without its sender, in random order"

"""Texts of each party's view of a job's uploads and models, for reports and consoles."""

from __future__ import annotations

from dataclasses import dataclass

from edgeveil.jobs.plan import Plan
from edgeveil.parts.round import TRAIN

EVALUATION_COUNTS, CLUSTER_SUMS = "evaluation counts", "cluster sums"
ANSWERS = "answers to statistics"
_PROXY = "ciphertext of one size, who sent it and when"
_SUMMED = f"{_PROXY}; the seeds of masks, without the masked values"


@dataclass(frozen=True)
class Visibility:
    """The cloud's and the proxy's view of one thing, if they do not collude."""

    what: str
    cloud: str
    proxy: str


def who_sees(plan: Plan, cells: int = 1) -> tuple[Visibility, ...]:
    """Return the views of a job's training uploads, inferences and models, with `cells` cells."""
    train = next(one for one in plan.planned if one.phase == TRAIN)
    noised = "noised" if plan.adds_noise else "unprotected"
    what = "training uploads" if plan.releases else ANSWERS
    rows = [Visibility(what, f"each {noised} upload, {_order(plan, cells)}", _PROXY)]
    if plan.masked(train):
        rows = [Visibility(what, _sums(plan, noised, "sum", cells), _SUMMED)]
    if plan.job.infer_every:
        rows.append(_inference(plan, cells))
    if plan.job.federated_evaluation is not None:
        what = "noised counts of evaluation records"
        rows.append(_evaluation(plan, cells, EVALUATION_COUNTS, what))
    if plan.job.cluster_every:
        what = "noised by-cluster totals of evaluation records"
        rows.append(_evaluation(plan, cells, CLUSTER_SUMS, what))
    if plan.job.statistics is not None:
        rows.append(_evaluation(plan, cells, ANSWERS, "noised counts of all records"))
    if plan.releases:
        rows.append(Visibility("models sent to devices", "all: it creates them", "ciphertext"))
    return tuple(rows)


def _inference(plan: Plan, cells: int) -> Visibility:
    noised = "unprotected" if plan.softmax_epsilon is None else "noised"
    if plan.sums_inferences:
        return Visibility("inferences", _sums(plan, f"{noised} softmax", "mean", cells), _SUMMED)
    rows = "mean softmax of a device" if plan.softmax_samples is None else "softmax of a record"
    alone = ", not under masks: clusters need each" if plan.job.aggregation.secure else ""
    return Visibility("inferences", f"each {noised} {rows}, {_order(plan, cells)}{alone}", _PROXY)


def _evaluation(plan: Plan, cells: int, name: str, what: str) -> Visibility:
    if plan.context.summed:
        return Visibility(name, _sums(plan, what, "sum", cells, sets=1), _SUMMED)
    return Visibility(name, f"each device's {what}, {_order(plan, cells)}", _PROXY)


def _sums(plan: Plan, what: str, kind: str, cells: int, sets: int = 0) -> str:
    sets = sets or plan.sets
    least, each = plan.job.round.min_batch // sets, " and cell" if cells > 1 else ""
    of = f"{kind} of each round" if sets == 1 else f"{kind}s of {sets} groups a round"
    return f"the {what} {of}{each}, of {least} uploads or more; no single upload"


def _order(plan: Plan, cells: int) -> str:
    sender = "without its sender, cell by cell" if cells > 1 else "without its sender"
    order = "the order of arrival" if plan.job.proxy.shuffle == "none" else "random order"
    return f"{sender}, in {order}"

"""Early stopping by the cloud's test or federated evaluation, and release of the best round.

Its facts are part of the job's stored state, so a restart changes nothing. The figures are public
or priced already, so it costs nothing; devices only see that the job completed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from edgeveil.evaluation.figures import METRIC
from edgeveil.jobs.plan import Plan
from edgeveil.parts.models.heads import THRESHOLD
from edgeveil.parts.round import EVALUATE, TRAIN, Array
from edgeveil_cloud.evaluation import as_federated
from edgeveil_cloud.store_tables import RoundRecord

FACTS = "early-stopping"  # (4,) float64: best figure, its round's index and number, rounds since
BEST = "best/"  # before a name of the best round's model
_LESS_IS_BETTER = ("rmse", "false_alarm_rate")


def judged(
    plan: Plan, before: Mapping[str, Array], after: Mapping[str, Array], record: RoundRecord
) -> dict[str, Array]:
    """Return the state `after` a round with the facts of early stopping; as it is without."""
    state, asked = dict(after), plan.job.early_stopping
    if asked is None:
        return state
    own = {n: a for n, a in before.items() if n == FACTS or n.startswith(BEST)}
    state |= own
    figure = _figure(plan, record)
    if figure is None or math.isnan(figure):
        return state
    best, index, number, since = own.get(FACTS, np.array([-math.inf, 0, 0, 0.0])).tolist()
    if figure > best + asked.min_delta or not index:
        best, index, number, since = figure, record.index, record.number, -1
        model = {**plan.cloud.model(after), **{n: after[n] for n in (THRESHOLD,) if n in after}}
        state |= {BEST + name: array for name, array in model.items()}
    return state | {FACTS: np.array([best, index, number, since + 1], np.float64)}


def _figure(plan: Plan, record: RoundRecord) -> float | None:
    """Return the figure that a round gives, larger if better; None if it gives none."""
    asked = plan.job.early_stopping
    if asked is not None and asked.mode is not None:
        own = (record.scores or {}).get(METRIC)
        return None if not isinstance(own, float) else own if asked.mode == "max" else -own
    if plan.job.federated_evaluation is None:
        figure = record.accuracy
        if figure is None and record.loss is not None:
            figure = -record.loss
        return figure if record.phase == TRAIN else None
    found = as_federated(record.scores) or {}
    name = found.get("leading", "")
    figure = found.get(name) if record.phase == EVALUATE else None
    return -figure if figure is not None and name in _LESS_IS_BETTER else figure


def is_over(plan: Plan, state: Mapping[str, Array]) -> bool:
    asked = plan.job.early_stopping
    if asked is None or asked.patience is None or FACTS not in state:
        return False
    return float(np.asarray(state[FACTS], np.float64)[3]) >= asked.patience


def released(plan: Plan, state: Mapping[str, Array]) -> Mapping[str, Array]:
    """Return the state whose model is released: that of the best round, if the job asks for it."""
    asked = plan.job.early_stopping
    if asked is None or asked.release == "last" or FACTS not in state:
        return state
    best = {n.removeprefix(BEST): a for n, a in state.items() if n.startswith(BEST)}
    return {name: array for name, array in state.items() if name != THRESHOLD} | best


def is_newest(plan: Plan, state: Mapping[str, Array]) -> bool:
    """Return whether the released model is that of the newest figure."""
    since = shown(plan, state).get("early_stopping", {}).get("rounds_since", 0)
    return released(plan, state) is state or not since


def shown(plan: Plan, state: Mapping[str, Array]) -> dict[str, Any]:
    """Return the event data of a round or an end: the best round, and rounds since; {} without."""
    if plan.job.early_stopping is None or FACTS not in state:
        return {}
    _, _, number, since = np.asarray(state[FACTS], np.float64).tolist()
    by = "cloud's test" if plan.job.federated_evaluation is None else "federated evaluation"
    facts = {"best_round": int(number), "rounds_since": int(since), "judged_by": by}
    return {"early_stopping": {**facts, "releases": plan.job.early_stopping.release}}

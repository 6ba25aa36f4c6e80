"""`edgeveil check JOB --estimate` of a job that asks: the ± of each answer, before it is paid for.

Noise depends on the job and the number of devices alone; made-up records, uniform in the public
ranges and lists, stand in for what else an answer's ± depends on, such as a mean's number of
records, of which a filter takes its share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from edgeveil.jobs import Plan
from edgeveil.pages.parts import counted
from edgeveil.parts.methods.statistics import SUMS, StatisticsCloud, StatisticsParameters
from edgeveil.parts.round import Array
from edgeveil.privacy.events import noise_of
from edgeveil.privacy.guarantee import guarantee_lines
from edgeveil.statistics.answer_text import TOO_NOISY, columns_of, number_text, padded
from edgeveil.statistics.answers import Sums, answered
from edgeveil.statistics.blocks import made_up
from edgeveil_cloud.round_report import summary_of

_DRAWN = 20_000  # made-up records, whose sums are scaled to the fleet's
_OF_RECORDS = ("count", "missing", "clipped", "categories", "table", "values")


def foreseen(plan: Plan, devices: int) -> dict[str, Any]:
    """Return `devices`, `nominal_records`, `privacy` and `answers`: with ±, without values."""
    train, cloud = plan.job.train, plan.cloud
    if not isinstance(train, StatisticsParameters) or not isinstance(cloud, StatisticsCloud):
        raise TypeError("the job asks nothing")
    nominal = plan.job.data.nominal_records
    units = devices if plan.job.privacy.unit == "device" else devices * nominal
    x = made_up(train, _DRAWN, np.random.default_rng(20))
    state: dict[str, Array] = cloud.initial_state()
    for round in plan.all_rounds:
        bits = noise_of(cloud.asking.event(round)).grid_bits
        vector = cloud.asking.vector(round).about(state)
        mean = vector.of(x) * (units / len(x) / devices) * 2.0**bits
        state = cloud.absorb(state, round, {SUMS: mean}, devices)
    whole = cloud.shown(state)["statistics"]
    privacy = summary_of(plan, len(plan.all_rounds), None)["privacy"]
    return _without_values(plan, devices, len(plan.all_rounds), whole) | {"privacy": privacy}


def foreseen_beside(plan: Plan, devices: int) -> dict[str, Any]:
    """Return the same of each question beside training, without the job's price."""
    vector, own = plan.question.vector, noise_of(plan.question.event)
    x = made_up(vector.questions, _DRAWN, np.random.default_rng(20))
    units = devices * (1 if own.unit == "device" else plan.job.data.nominal_records)
    off = math.sqrt(devices * own.sigma_squared) * 2.0**-own.grid_bits
    found = vector.of(x).astype(np.float64) * (units / len(x))
    whole = answered(vector.questions, [Sums(vector, found, off, devices)], plan.question.facts)
    return _without_values(plan, devices, 1, whole)


def _without_values(
    plan: Plan, devices: int, exchanges: int, whole: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "devices": devices,
        "nominal_records": plan.job.data.nominal_records,
        "exchanges": exchanges,
        "answers": [{**answer, "value": None} for answer in whole["answers"]],
    }


def estimate_lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield (
        f"{found['devices']:,} devices of {found['nominal_records']:,} records answer in"
        f" {counted(found['exchanges'], 'round')}; each answer's ±, 95 % of the noise, for values"
        " spread over their ranges:"
    )
    yield ""
    rows = [("column", "statistic", "±")]
    answers = [one for one in found["answers"] if one["statistic"] not in ("missing", "clipped")]
    rows += [(columns_of(one), str(one["statistic"]), _text(one)) for one in answers]
    yield from padded(rows)
    yield ""
    for name, words in guarantee_lines(found["privacy"]) if "privacy" in found else ():
        yield f"{name:<16} {words}"
    if any(one["too_noisy"] for one in found["answers"]):
        yield "What helps: more devices (--devices N), fewer questions, wider bins, a larger ε."


def _text(answer: Mapping[str, Any]) -> str:
    off, name = answer["plus_minus"], answer["statistic"]
    if answer["too_noisy"]:
        return TOO_NOISY
    if name == "quantiles":
        return f"{number_text(100 * answer['rank_plus_minus'])} % in rank"
    most = max(off) if isinstance(off, list) else off
    if name == "histogram":
        return f"{number_text(100 * most)} % of records in a bin"
    above = f", all above {number_text(answer['threshold'])}" if name == "values" else ""
    return f"{number_text(most)}{' records' if name in _OF_RECORDS else ''}{above}"

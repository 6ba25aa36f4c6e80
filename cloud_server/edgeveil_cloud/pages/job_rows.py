"""A job as one row of the list: how far it is, both ε, and where it waits, why and what to do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

from edgeveil.errors import EdgeVeilError
from edgeveil.evaluation.figures import (
    ACCURACY,
    evaluation_text,
    leading_stored,
    leading_text,
)
from edgeveil.jobs import compile_canonical
from edgeveil.privacy.guarantee import record_text, shared_text, up, worth_of
from edgeveil.protocol.cloud_reasons import OTHERWISE, RESUME, pause_advice, resume_follows
from edgeveil_cloud.evaluation import told_federated
from edgeveil_cloud.round_report import summary_of
from edgeveil_cloud.store_tables import ExchangeRecord, JobEntry, JobGlimpse


@dataclass(frozen=True)
class PlannedJob:
    """What a job's own text says of it."""

    rounds: int
    exchanges: int
    method: str
    privacy: Mapping[str, Any]
    half: float | None = None  # of the range of a label that is a number
    measure: str = ACCURACY


UNREADABLE = PlannedJob(0, 0, "", {})


@lru_cache(maxsize=512)
def planned(canonical: bytes) -> PlannedJob:
    """By a job's canonical bytes; `UNREADABLE` where this version cannot plan it (any more)."""
    try:
        plan = compile_canonical(canonical)
        privacy = summary_of(plan, len(plan.exchanges), None)["privacy"]
    except (EdgeVeilError, ValueError, LookupError, TypeError, AttributeError):
        return UNREADABLE
    half = None if plan.job.data.target is None else plan.job.data.target.half
    method, measure = plan.job.train.method, plan.job.measure
    return PlannedJob(plan.rounds, len(plan.exchanges), method, privacy, half, measure)


def row_of(glimpse: JobGlimpse, running: int, most_running: int) -> dict[str, Any]:
    """JSON-able. Both guarantees are as planned until the job has ended, then what was spent."""
    entry, newest = glimpse.entry, glimpse.newest
    plan, told = planned(entry.canonical), glimpse.life.data if glimpse.life else {}
    spent = told.get("privacy") if entry.ended else None
    reason, advice = why_it_stands(glimpse, running, most_running)
    led = plan.measure
    value = leading_stored(led, glimpse.accuracy, glimpse.loss, plan.half)
    times = ("submitted_at", "started_at", "ended_at")
    return {
        "id": entry.id,
        "name": entry.name,
        "status": entry.status,
        "priority": entry.priority,
        **{name: getattr(entry, name) for name in times},
        "reason": reason,
        "advice": advice,
        "method": plan.method,
        "exchange": newest.index if newest else 0,
        "exchanges": plan.exchanges,
        "round": newest.number if newest else 0,
        "rounds": plan.rounds,
        "figure": {
            "name": led,
            "text": None if value is None else leading_text(led, value, glimpse.scores),
        },
        "guarantees": guarantee_cells(spent or plan.privacy, planned=spent is None),
    }


def figure_text(canonical: bytes, record: ExchangeRecord) -> str:
    """What leads the figures of one exchange of a job, by name, or ""."""
    told = evaluation_text({"federated": told_federated(record.scores), "clusters": record.scores})
    if told:
        return told
    plan = planned(canonical)
    value = leading_stored(plan.measure, record.accuracy, record.loss, plan.half)
    return (
        ""
        if value is None
        else f"{plan.measure} {leading_text(plan.measure, value, record.scores)}"
    )


def guarantee_cells(privacy: Mapping[str, Any], *, planned: bool) -> list[dict[str, str]]:
    """Both guarantees in few words, as {name, value, note, tone}: an ε only where it is proven."""
    return [
        {"name": f"ε {which}", **_cell(privacy[which], planned)}
        for which in ("training", "inference")
        if privacy
    ]


def _cell(part: Mapping[str, Any], planned: bool) -> dict[str, str]:
    if part["status"] != "proven" or part["epsilon"] is None:
        return {"value": "none", "note": "no proven guarantee", "tone": "bad"}
    if not part["epsilon"]:
        return {"value": "0", "note": "nothing is released", "tone": ""}
    delta = f", δ = {up(part['delta'])}" if part["delta"] else ""
    note = f"per {part['unit']}{delta}{', as planned' if planned else ''}"
    unworthy = worth_of(part)
    note += record_text(part) + unworthy + shared_text(part)
    return {"value": up(part["epsilon"]), "note": note, "tone": "bad" if unworthy else ""}


def why_it_stands(glimpse: JobGlimpse, running: int, most_running: int) -> tuple[str, str]:
    """Why a job does not go on, and what to do; ("", "") where it runs or is done."""
    entry = glimpse.entry
    if entry.status == "paused":
        return _paused(entry)
    if entry.status == "queued":
        life = glimpse.life
        if life is not None and life.type == "job_waiting":
            found, wanted = life.data.get("enrolled"), life.data.get("wanted")
            why = f"{found} devices are enrolled, the job wants {wanted}"
            return why, "admit devices at the proxy: edgeveil proxy admit --config proxy.yaml"
        if running >= most_running:
            why = f"{running} jobs run, and no more than {most_running} may at once"
            return why, "it starts by itself; limits.jobs_running of the cloud's file allows more"
        return "its turn comes in a moment", ""
    return entry.reason, ""


def _paused(entry: JobEntry) -> tuple[str, str]:
    """The reason of a pause without the way out that stands behind it, and that way out."""
    why = entry.reason.removesuffix(f"{RESUME}{entry.id}").rstrip(" ,;")
    for advice in (pause_advice(why), OTHERWISE):
        if why.endswith(f"; {advice}"):
            then = ", then resume it" if resume_follows(advice) else ""
            return why.removesuffix(f"; {advice}"), f"{advice}{then}"
    return why, "do that, then resume it"


def job_text(entry: JobEntry) -> str:
    """A job as YAML that makes the same one again: all that it says, in the order of job files; as
    it stands where this version does not know it."""
    try:
        plain = compile_canonical(entry.canonical).job.model_dump(mode="json")
    except (EdgeVeilError, ValueError, LookupError, TypeError, AttributeError):
        plain = json.loads(entry.canonical)
    if entry.priority != "normal":
        plain["priority"] = entry.priority
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def encoded(value: object) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()

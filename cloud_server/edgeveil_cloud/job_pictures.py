"""The pictures of a job's page, and its events in words: parts of `edgeveil.pages.parts`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgeveil.evaluation.clustering import project_2d
from edgeveil.evaluation.figures import evaluation_text, leading_text
from edgeveil.pages.parts import (
    Json,
    Tone,
    figure_text,
    gantt,
    lines,
    rounded,
    scatter,
    series,
    table,
)
from edgeveil.parts.exchange import exchange_label, short_label
from edgeveil.privacy.guarantee import up
from edgeveil_cloud.job_history import EvaluationPoints

NUMBERED = 60  # more points than this stay without their cluster's number
FIRST_ROWS = 25  # of a table, until somebody asks for more
STEPS = (
    ("seal_s", "seal", "purple"),
    ("broadcast_s", "broadcast", "blue"),
    ("wait_s", "wait for devices", "orange"),
    ("absorb_s", "open, aggregate, test", "green"),
)
TONES: Mapping[str, Tone] = {"completed": "good", "failed": "bad", "paused": "warn"}


def per_class(found: Sequence[Mapping[str, Any]], called: Sequence[str] = ()) -> Json | None:
    """Precision, recall and F1, a row for each class, by name as far as they are `called` so."""
    if not found:
        return None
    head = ["class", "precision", "recall", "F1", "records"]
    names = ("precision", "recall", "f1")
    rows = [
        [
            called[one["class"]] if one["class"] < len(called) else str(one["class"]),
            *(figure_text(one.get(name)) for name in names),
            count_text(one["records"]),
        ]
        for one in found
    ]
    return table("Precision, recall and F1 of each class", head, rows, first=FIRST_ROWS)


def calibration(found: Mapping[str, Any]) -> Json | None:
    """How often the model is right where it is so sure, by bins of confidence."""
    bins = found.get("bins") or []
    if len(bins) < 2:
        return None
    x = [rounded(one["confidence"], 4) or 0.0 for one in bins]
    right = [rounded(one["accuracy"], 4) for one in bins]
    counts = [one["records"] for one in bins]
    shown = [
        series("share that is right", right, "blue"),
        series("as sure as it is right", x, "grey", dash=True),
        series("records", counts, "grey", "count", quiet=True),
    ]
    error = figure_text(found.get("error"))
    label = f"Calibration: expected error {error}"
    return lines(label, x, shown, x_name="confidence", low=0.0, high=1.0)


def by_score(found: Mapping[str, Any]) -> Json | None:
    """How normal and anomalous records spread over scores, a share of each in bins of its
    logarithm."""
    normal, anomalous = found.get("normal") or [], found.get("anomalous") or []
    if len(normal) < 2:
        return None
    low, high = found["from"] * math.log10(2), found["to"] * math.log10(2)
    width = (high - low) / len(normal)
    x = [round(low + (k + 0.5) * width, 3) for k in range(len(normal))]
    shown = [
        series(name, [rounded(one / max(1, sum(of)), 4) for one in of], colour)
        for name, of, colour in (("normal", normal, "blue"), ("anomalous", anomalous, "orange"))
    ]
    label = "Share of the records by score"
    return lines(label, x, shown, x_name="score, as a power of ten", low=0.0)


def cluster_picture(shown: Sequence[EvaluationPoints]) -> Json | None:
    """The points of all evaluations in one projection, so that they can be compared."""
    if not shown:
        return None
    stacked = np.concatenate([np.asarray(one.points, np.float64) for one in shown])
    points, panels, start = project_2d(stacked), [], 0
    for one in shown:
        part = points[start : start + len(one.points)]
        start += len(one.points)
        there = np.flatnonzero(np.isfinite(part).all(axis=1))
        panels.append(
            {
                "title": _panel_title(one),
                "points": [[round(float(v), 4) for v in row] for row in part[there]],
                "labels": [int(one.labels[k]) for k in there],
                "numbered": one.rows <= NUMBERED,
            }
        )
    return scatter("Softmax uploads by cluster", panels, _limits(points))


def _limits(points: Any) -> list[tuple[float, float]]:
    finite = points[np.isfinite(points).all(axis=1)]
    if not len(finite):
        return [(-1.0, 1.0), (-1.0, 1.0)]
    low, high = finite.min(axis=0), finite.max(axis=0)
    margin = np.maximum(0.12 * (high - low), 1e-6)
    return [(float(a), float(b)) for a, b in zip(low - margin, high + margin, strict=True)]


def score_kind(scores: Mapping[str, Any]) -> str:
    """`calinski-harabasz`."""
    return str(scores.get("eval_type", "")).removesuffix("_SCORE").replace("_", "-").lower()


def _panel_title(one: EvaluationPoints) -> str:
    score = one.scores.get("score")
    kind = score_kind(one.scores)
    shown = "no score" if score is None else f"{kind} {score:.2f}".replace("-0", "−0")
    return f"round {one.round} · {shown}"


def time_picture(rows: Sequence[Mapping[str, Any]]) -> Json:
    """Bars from the moments of the commits; an idle time longer than the longest exchange, as of a
    paused job, is cut short."""
    longest = max(sum(step(row, key) for key, _, _ in STEPS) for row in rows)
    found, whole, drawn_s, real_s = list[Json](), True, 0.0, None
    first_s = 0.0
    for row in rows:
        parts = [step(row, key) for key, _, _ in STEPS]
        begun_s = row["ended_at"] - sum(parts)
        if real_s is None:
            first_s = begun_s
        idle_s = max(0.0, begun_s - real_s) if real_s is not None else 0.0
        whole &= idle_s <= longest
        drawn_s += min(idle_s, longest)
        found.append(
            {
                "name": short_label(row["phase"], row["number"]),
                "start_s": round(drawn_s, 4),
                "begun_s": round(max(0.0, begun_s - first_s), 4),
                "parts_s": parts,
            }
        )
        drawn_s += sum(parts)
        real_s = row["ended_at"]
    steps = [(name, colour) for _, name, colour in STEPS]
    return gantt("Seconds by exchange, in time", steps, found, whole=whole)


def step(row: Mapping[str, Any], key: str) -> float:
    """Seconds of one step of an exchange."""
    return round(float(row["timeline"].get(key) or 0.0), 4)


def event_line(kind: str, data: Mapping[str, Any], units: Mapping[str, str]) -> Json:
    """An event in a line; `units` of the guarantees that are proven."""
    tone: Tone = ""
    if kind == "exchange_committed":
        name = exchange_label(data["phase"], data["number"])
        text = f"{name} committed: {data['uploads']} answered"
        text += f", {data['declined']} declined" if data["declined"] else ""
        led, value = data["led"]
        if told := evaluation_text(data):
            text += f"; {told}"
        if value is not None:
            epsilon = data["epsilon"]
            spent = ", ".join(
                f"{which} {up_text(epsilon.get(which))} per {units[which]}"
                if which in units
                else f"{which} none proven"
                for which in ("training", "inference")
            )
            text += f", {led} {leading_text(led, value, data)}; ε by plan: {spent}"
    elif kind == "broadcast":
        what = (
            data.get("round") if data.get("kind") == "round" else f"the {data.get('kind', 'job')}"
        )
        text = f"{what} sent to {count_text(data.get('selected'))} devices"
    elif kind == "batch":
        text = f"exchange {data.get('round')}: {count_text(data.get('uploads'))} uploads came"
    elif kind == "round_repeated":
        text, tone = f"exchange {data.get('round')} again: {data.get('why', '')}", "warn"
    elif kind == "job_waiting":
        enrolled, wanted = data.get("enrolled"), data.get("wanted")
        text, tone = f"waits for devices: {enrolled} are enrolled, it asks for {wanted}", "warn"
    else:
        text = words(kind)
        text += f": {data['reason']}" if data.get("reason") else ""
        tone = TONES.get(kind.removeprefix("job_"), "")
    return {"text": text, "tone": tone}


# --- texts ---


def up_text(value: float | None) -> str:
    """An ε that is shown."""
    return "–" if value is None else up(value)


def count_text(value: int | None) -> str:
    """How many."""
    return "–" if value is None else f"{value:,}"


_NAMES = {"macro_f1": "macro-F1", "auc": "AUC", "mae": "MAE", "rmse": "RMSE", "r2": "R²"}


def words(name: str) -> str:
    """A figure's or an event's name, for a person."""
    return _NAMES.get(name, name.replace("_", " "))

"""The page of one job: live at the cloud, beside a local run, or frozen as a report.

All privacy statements of pages are made here: ε only if proven, accuracy only with both guarantees,
and guarantees with δ, unit and status. `static/job_view.js` draws the JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from edgeveil.errors import EdgeVeilError
from edgeveil.evaluation.clustering import project_2d
from edgeveil.evaluation.figures import (
    ACCURACY,
    AUC,
    RMSE,
    baseline_text,
    cluster_text,
    evaluation_text,
    leading_stored,
    leading_text,
)
from edgeveil.jobs import compile_canonical
from edgeveil.jobs.plan import Plan
from edgeveil.jobs.shuffle_amplification import shuffled
from edgeveil.jobs.who_sees import ANSWERS, CLUSTER_SUMS, EVALUATION_COUNTS, who_sees
from edgeveil.pages.parts import (
    Json,
    Tone,
    bars,
    card,
    counted,
    events,
    figure_text,
    heat,
    least,
    lines,
    paragraph,
    rounded,
    scatter,
    section,
    series,
    table,
    terms,
)
from edgeveil.parts.round import EVALUATIONS, round_label, short_label
from edgeveil.privacy.guarantee import (
    colluding_text,
    guarantee_bounds,
    guarantee_text,
    shared_text,
    up,
    worth_of,
)
from edgeveil.protocol.cloud_reasons import declined_text
from edgeveil.units import byte_text, seconds_text
from edgeveil_cloud.evaluation import as_federated
from edgeveil_cloud.job_history import EvaluationPoints, JobHistory
from edgeveil_cloud.round_report import summary_of
from edgeveil_cloud.statistics_view import statistics_sections
from edgeveil_cloud.store_tables import ENDED, JobEntry, JobGlimpse, RoundRecord

NUMBERED = 60  # largest panel whose points show their cluster's number
FIRST_ROWS = 25  # of a table before it is expanded
MOST_ROWS = 200  # of the table of rounds
COLLUSION = "collusion"  # key of training's ε if all others collude
TONES: Mapping[str, Tone] = {"completed": "good", "failed": "bad", "paused": "warn"}
HOPS = (
    ("cloud_to_proxy", "cloud → proxy"),
    ("proxy_to_devices", "proxy → devices"),
    ("devices_to_proxy", "devices → proxy"),
    ("proxy_to_cloud", "proxy → cloud"),
)
STEPS = (
    ("seal_s", "seal", "purple"),
    ("broadcast_s", "broadcast", "blue"),
    ("wait_s", "wait for devices", "orange"),
    ("absorb_s", "open, aggregate, test", "green"),
)
_CLOUDS_RECORDS = "on records the cloud holds"
# Counts, and figures that no model changes.
_NO_FIGURES = ("unusable", "normal", "anomalous", "largest_class_rate", "rmse_of_mean")
_BY_DEVICES = (  # figures that devices' counts can yield
    *("accuracy", "balanced_accuracy", "macro_f1", "rmse", "mae"),
    *("auc", "detection_rate", "false_alarm_rate", "precision", "f1", "threshold"),
)
_UNUSABLE = {  # of a record without a usable answer: what is missing, and how it counts
    ACCURACY: ("probability", "wrong"),
    RMSE: ("value", "far off"),
    AUC: ("score", "wrong"),
}


@dataclass(frozen=True)
class RunPart:
    """Facts known only to a run on one machine, as in `result.json`.

    `measured_on` is "" for published test records, else why figures are for the owner only."""

    devices: int = 0
    infer_only: int = 0
    seconds: float | None = None
    broker: str = ""
    simulated: bool = False
    engine: str = ""
    reference: Sequence[float] = ()
    reference_note: str = ""
    measured_on: str = ""
    memory_bytes: int | None = None
    hops: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    held: Json | None = None
    audit: str = ""


@dataclass(frozen=True)
class JobDetails:
    """A job without its events; `privacy` is planned while `planned`, otherwise spent."""

    name: str
    status: str
    reason: str = ""
    id: str = ""
    method: str = ""
    rounds: int = 0
    all_rounds: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    privacy: Mapping[str, Any] | None = None
    planned: bool = True
    seen: Sequence[Mapping[str, str]] = ()
    shuffle: Sequence[str] = ()
    aggregation_note: str = ""
    measure: str = ACCURACY  # leads its figures
    half: float | None = None  # half of the range of a numeric label
    run: RunPart = RunPart()

    @classmethod
    def of_entry(cls, entry: JobEntry, cells: int = 1) -> JobDetails:
        names = ("name", "id", "status", "reason", "started_at", "ended_at")
        own = {name: getattr(entry, name) for name in names}
        return replace(facts_of(entry.canonical, cells), **own)


@lru_cache(maxsize=512)
def facts_of(canonical: bytes, cells: int = 1) -> JobDetails:
    """Return details from canonical bytes; the name is "" if this version cannot plan them."""
    try:
        return facts_of_plan(compile_canonical(canonical), cells)
    except (EdgeVeilError, ValueError, LookupError, TypeError, AttributeError):
        return JobDetails("", "queued")


def facts_of_plan(plan: Plan, cells: int = 1) -> JobDetails:
    whole = len(plan.all_rounds)
    return JobDetails(
        plan.job.job,
        "queued",
        method=plan.job.train.method,
        rounds=plan.rounds,
        all_rounds=whole,
        privacy=summary_of(plan, whole, None)["privacy"],
        seen=[asdict(row) for row in who_sees(plan, cells)],
        shuffle=[str(credit) for credit in shuffled(plan)],
        aggregation_note=plan.aggregation_note,
        measure=plan.job.measure,
        half=None if plan.job.data.target is None else plan.job.data.target.half,
    )


def planned_of_shared(canonical: bytes) -> Mapping[str, Any]:
    """Return planned `privacy` of a job with shared noise, whose events lack both ε of training."""
    try:
        shared = json.loads(canonical)["privacy"].get("noise") == "shared"
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}
    privacy = facts_of(canonical).privacy if shared else None
    return {"privacy": privacy} if privacy else {}


# --- a row of the list ---


def row_of(glimpse: JobGlimpse) -> dict[str, Any]:
    """Return the job's list row; guarantees are planned until the job has ended, then spent."""
    entry, newest = glimpse.entry, glimpse.newest
    facts, end = facts_of(entry.canonical), glimpse.life.data if glimpse.life else {}
    spent = end.get("privacy") if entry.ended else None
    names = ("id", "name", "status", "priority", "submitted_at", "started_at", "ended_at")
    privacy = spent or facts.privacy or {}
    return {
        **{name: getattr(entry, name) for name in names},
        "reason": status_reason(glimpse),
        "method": facts.method,
        "exchange": newest.index if newest else 0,
        "exchanges": facts.all_rounds,
        "round": newest.number if newest else 0,
        "rounds": facts.rounds,
        "figure": {"name": facts.measure, "text": _led(facts, glimpse.tested) or None},
        "guarantees": [
            _guarantee_card(f"ε {which}", _Guarantee(privacy, which), planned=spent is None)
            for which in ("training", "inference")
            if privacy
        ],
    }


def record_figure(canonical: bytes, record: RoundRecord) -> str:
    """Return name and value of a committed round's leading figure, or ""."""
    text = evaluation_text({"federated": as_federated(record.scores), "clusters": record.scores})
    if text:
        return text
    facts = facts_of(canonical)
    led = _led(facts, record)
    return f"{facts.measure} {led}" if led else ""


def _led(facts: JobDetails, record: RoundRecord | None) -> str:
    if record is None:
        return ""
    value = leading_stored(facts.measure, record.accuracy, record.loss, facts.half)
    return "" if value is None else leading_text(facts.measure, value, record.scores)


def status_reason(glimpse: JobGlimpse) -> str:
    """Return why a job is not running and the fix, or ""."""
    entry, life = glimpse.entry, glimpse.life
    if entry.status != "queued":
        return entry.reason
    if life is not None and life.type == "job_waiting":
        found, wanted = life.data.get("enrolled"), life.data.get("wanted")
        return (
            f"{found} devices are enrolled, the job needs {wanted}: admit devices at the proxy,"
            " edgeveil proxy admit --config proxy.yaml"
        )
    return (
        "it starts automatically when a running job ends; to run more jobs at once, raise"
        " limits.jobs_running in the cloud's site file"
    )


# --- the page ---


def job_view(facts: JobDetails, events: Iterable[Mapping[str, Any]] | JobHistory) -> Json:
    if isinstance(events, JobHistory):
        return _View(facts, events).whole()
    history = JobHistory()
    history.take_all(events)
    return _View(facts, history).whole()


class _Guarantee:
    def __init__(self, privacy: Mapping[str, Any], which: str) -> None:
        part = self.part = privacy[which]
        self.text, self.unit = guarantee_text(privacy, which), str(part["unit"])
        self.epsilon = float(part["epsilon"] or 0.0)
        self.proven = part["status"] == "proven" and part["epsilon"] is not None


def _guarantee_card(name: str, one: _Guarantee, *, planned: bool, simulated: bool = False) -> Json:
    if not (one.proven and one.epsilon):
        tone: Tone = "" if one.proven else "bad"
        note = f"per {one.unit}" + (", planned" if planned else "")
        return card(name, one.text, note, tone=tone, words=True)
    lead, behind = guarantee_bounds(one.part)
    whole = "whole job, planned" if planned else "whole job"
    real = " for a real run" if simulated else ""
    each = one.part.get("epsilon_per_round")
    note = f"{behind}; {whole}, proven{real}{shared_text(one.part)}"
    note += f"; ε = {up(each)} per {one.unit} and evaluation" if each else ""
    return card(name, lead, note, tone="bad" if worth_of(one.part) else "")


class _View:
    def __init__(self, facts: JobDetails, history: JobHistory) -> None:
        self._facts, self._history, self._run = facts, history, facts.run
        self._ended = facts.status in ENDED
        privacy, self._planned = facts.privacy, facts.planned
        if self._planned and history.privacy is not None:
            privacy, self._planned = history.privacy, False
        self._guarantees = {
            which: _Guarantee(privacy, which)
            for which in ("training", "inference")
            if privacy is not None
        }
        self._rows = [self._proven(row) for row in history.rows]
        self._before = history.phases  # names of rounds outside the numbering
        if any(row["phase"] in EVALUATIONS for row in history.rows):
            self._before = [short_label(row["phase"], row["number"]) for row in history.rows]
        measures = [row["led"][0] for row in history.rounds if row["led"][1] is not None]
        self._measure = facts.measure if facts.measure != ACCURACY or not measures else measures[-1]
        self._tested = [row for row in history.rounds if self._measured(row) is not None]
        self._simulated = facts.run.simulated
        self._shared = any(COLLUSION in row["epsilon"] for row in self._rows)

    def whole(self) -> Json:
        facts, run = self._facts, self._run
        how = {"planned": self._planned, "simulated": self._simulated}
        guarantees = [
            _guarantee_card(f"{which} guarantee", one, **how)
            for which, one in self._guarantees.items()
        ]
        learned = (self._accuracy, self._figures, self._federated, lambda: run.held)
        others = (
            self._epsilon,
            self._answers,
            self._clusters,
            self._averages,
            self._time,
            self._bytes,
            self._seen,
            self._meaning,
            self._rounds,
            self._events,
        )
        return {
            "title": facts.name,
            "badge": {"text": facts.status, "tone": TONES.get(facts.status, "")},
            "lines": self._lines(),
            "progress": self._progress(),
            "cards": [self._cards(), guarantees],
            "sections": [
                *(made for one in learned if (made := one()) is not None),
                *statistics_sections(self._history.statistics, self._history.drift),
                *(made for one in others if (made := one()) is not None),
            ],
            "footer": " · ".join(f"{name} {text}" for name, text in run.versions.items())
            or facts.id,
        }

    # --- the top ---

    def _lines(self) -> list[Json]:
        run, facts, parts = self._run, self._facts, list[str]()
        if run.devices:
            only = f", {run.infer_only} of them only evaluate" if run.infer_only else ""
            parts.append(f"{run.devices} devices{only}")
        rounds, phases = counted(len(self._history.rounds), "round"), len(self._history.phases)
        after = f" after {counted(phases, 'preparation round')}" if phases else ""
        parts.append(rounds + after)
        seconds = run.seconds
        if facts.started_at is not None and facts.ended_at is not None:
            seconds = facts.ended_at - facts.started_at
        if seconds is not None:
            parts.append(seconds_text(seconds))
        if run.broker and not run.simulated:
            parts.append(f"over {run.broker}")
        found = [paragraph(" · ".join(parts))]
        if run.simulated:
            engine = f" (engine {run.engine})" if run.engine else ""
            text = f"Simulated{engine}, without encryption, with seeded noise: it protects nobody"
            found.append(paragraph(text, "warn"))
        found += [paragraph(f"Release: {reason}") for reason in self._history.release]
        if facts.reason:
            found.append(paragraph(facts.reason, "soft" if facts.status == "completed" else "bad"))
        return found

    def _progress(self) -> Json | None:
        if self._ended or not self._facts.all_rounds:
            return None
        done, of, doing = len(self._rows), self._facts.all_rounds, self._history.doing
        rounds = f"round {len(self._history.rounds)} of {self._facts.rounds}"
        return {"done": done, "of": of, "text": f"{rounds}: {doing}" if doing else rounds}

    def _cards(self) -> list[Json]:
        run, history, rounds = self._run, self._history, self._history.rounds
        last = rounds[-1] if rounds else None
        measured = f"on {run.measured_on}" if run.measured_on else _CLOUDS_RECORDS
        name = f"final {self._measure}" if self._ended else f"{self._measure} now"
        if self._measure == RMSE:
            measured = f"in the label's unit, {measured}"
        value = self._measured(last) if last else None
        if value is not None and (guess := baseline_text(self._measure, value, history.baselines)):
            measured = f"{guess}; {measured}"
        found = [] if history.only_asks else [card(name, self._text(value), measured)]
        if history.federated:
            found.append(self._federated_card(history.federated[-1]))
        if run.reference:
            note = "same records, no noise"
            note += f": {run.reference_note}" if run.reference_note else ""
            found.append(card("without noise", self._text(run.reference[-1]), note))
        if last is not None and last["loss"] is not None and self._measure == ACCURACY:
            found.append(card("loss", figure_text(last["loss"]), "mean cross-entropy in nats"))
        if self._rows:
            row = self._rows[-1]
            of = f" of {row['selected']}" if row.get("selected") else ""
            note = "devices in the last round"
            if row["declined"]:
                note += f", {declined_text(row['declined'], row['causes'])}"
            found.append(card("answered", f"{row['uploads']}{of}", note))
        if run.memory_bytes:
            memory = byte_text(run.memory_bytes)
            found.append(card("memory, peak", memory, "of all processes"))
        return found

    def _federated_card(self, own: Mapping[str, Any]) -> Json:
        name = "{} on the devices' own records"
        if "leading" not in own:
            note = f"round {own['round']}: noise exceeds every figure"
            return card(name.format(self._measure), "–", note)
        note = (
            f"from noised counts of about {own['records']:,.0f} records after round"
            f" {own['round']}; ± one standard error of the noise"
        )
        key = str(own["leading"])
        if guess := _baseline(own, key, own):
            note = f"{guess}; {note}"
        return card(name.format(display_name(key)), _with_error(own, key), note)

    # --- accuracy ---

    def _measured(self, row: Mapping[str, Any]) -> float | None:
        """Return a round's leading figure; RMSE and AUC may follow from the loss."""
        name, found = row["led"]
        value: float | None = found if name == self._measure else None
        if value is not None:
            return value
        return leading_stored(self._measure, None, row["loss"], self._facts.half)

    def _text(self, value: float | None) -> str:
        return "–" if value is None else leading_text(self._measure, value)

    def _accuracy(self) -> Json | None:
        if self._history.only_asks:
            return None
        measure, run = self._measure[0].upper() + self._measure[1:], self._run
        title, reference = f"{measure} by round", run.reference
        federated = {
            one["round"]: (one[one["leading"]], one[f"{one['leading']}_deviation"])
            for one in self._history.federated
            if one.get("leading") == self._measure.lower()
        }
        tested = {row["number"]: self._measured(row) for row in self._tested}
        x = sorted(tested.keys() | federated.keys())
        if not x:
            return section(
                "accuracy", title, [], before=[paragraph("No round has been tested yet.")]
            )
        text, note, shown = "On test records, after each committed round.", None, []
        if tested:
            own = [rounded(tested.get(number)) for number in x]
            shown.append(series("this run" if run.devices else self._measure, own, "blue"))
        if federated:
            text += " Points with bars: devices' evaluation records, ± one standard error."
            pairs = [federated.get(number, (None, None)) for number in x]
            points, off = ([rounded(pair[k]) for pair in pairs] for k in (0, 1))
            shown.append(series("on the devices' own records", points, "green", off=off))
        if reference:
            text += " Without noise: trained on the same records outside the federation."
            note = paragraph(f"It was {run.reference_note}.", "bad") if run.reference_note else None
            known = [reference[k - 1] if k <= len(reference) else None for k in x]
            shown.append(series("without noise", known, "orange", dash=True))
        lowest = least([value for one in shown for value in one["values"]])
        spent = {row["number"]: row["epsilon"] for row in self._rows}
        for which, guarantee in self._guarantees.items():
            values = [spent.get(number, {}).get(which) for number in x]
            if any(values):  # to be read with the figures
                name = f"ε {which}, planned, per {guarantee.unit}"
                shown.append(series(name, _ups(values), "grey", "up", quiet=True))
        low = max(0.0, math.floor(lowest * 20 - 0.5) / 20)
        ends = (0.0, None) if self._measure == RMSE else (low, 1.0)
        name = f"{measure} on the test records" if tested else measure
        parts = [lines(name, x, shown, low=ends[0], high=ends[1])]
        losses = [rounded(row["loss"]) for row in self._tested]
        if any(value is not None for value in losses) and self._measure == ACCURACY:
            loss = [series("loss", losses, "purple")]
            parts.append(lines("Loss on the test records", list(tested), loss, low=0.0))
        return section("accuracy", title, parts, before=[paragraph(text), note])

    def _figures(self) -> Json | None:
        found = self._history.figures
        if not found:
            return None
        text_of = "{:.4g}".format if "rmse" in found else figure_text
        rows = [
            [display_name(name), text_of(value)]
            for name, value in found.items()
            if type(value) in (int, float) and name not in _NO_FIGURES
        ]
        called = found.get("classes") or []
        parts = [
            table("Figures", ["figure", "value"], rows) if rows else None,
            _per_class(found.get("per_class") or [], called),
        ]
        if crossed := found.get("confusion"):
            of = [*called, *map(str, range(len(called), len(crossed)))]
            label, axes = "Records by true and predicted class", ("true class", "predicted class")
            parts.append(heat(label, crossed, of, of, axes))
        at = self._history.figures_round
        text = f"The model after round {at}, on the test records."
        unusable = int(found.get("unusable") or 0)
        answer, count = _UNUSABLE[self._measure]
        bad = f"{counted(unusable, 'record')} without a usable {answer} counted as {count}."
        before = [paragraph(text), paragraph(bad, "bad") if unusable else None]
        title = "Class by class" if found.get("per_class") else "Further figures"
        return section("figures", title, parts, before=before)

    def _federated(self) -> Json | None:
        if not self._history.federated:
            return None
        own, title = self._history.federated[-1], "Devices' evaluation records"
        number = own["round"]
        if "leading" not in own:
            text = f"After round {number} noise exceeds all counts: no figure is shown."
            return section("federated", title, [], before=[paragraph(text, "warn")])
        by_cloud = dict(self._history.figures)
        rounds = {row["number"]: row for row in self._history.rounds}
        by_cloud["accuracy"] = rounds.get(number, {}).get("accuracy")
        guessed = self._history.baselines
        rows = [
            [display_name(name), _compared(own, name, own), _compared(by_cloud, name, guessed)]
            for name in _BY_DEVICES
            if name in own
        ]
        rows.append(["records", f"about {own['records']:,.0f}", "–"])
        text = (
            f"The model after round {number}, from counts on the devices' evaluation records. Each"
            f" sum of counts has noise of standard deviation {own['count_deviation']:.3g} records;"
            " ± is one standard error of this noise. Figures smaller than the noise are left out."
        )
        if "threshold" in own:
            text += (
                f" A score above the threshold is an alarm, here for {own['alarm_rate']:.3g} of the"
                " records that are normal or without a label."
            )
            if own["far"]:
                text += " The threshold is extrapolated from a quantile that exceeds the noise."
        classes = [
            {**one, "records": round(one["records"])}
            for one in own.get("per_class") or []
            if any(one[name] is not None for name in ("precision", "recall"))
        ]
        parts = [
            table("Figures", ["figure", "devices' own records", "the cloud's test"], rows),
            _per_class(classes, self._history.figures.get("classes") or []),
        ]
        return section("federated", title, parts, before=[paragraph(text)])

    # --- privacy ---

    def _proven(self, row: Mapping[str, Any]) -> dict[str, Any]:
        proven = {name for name, one in self._guarantees.items() if one.part["status"] == "proven"}
        if "training" in proven and "collusion_epsilon" in self._guarantees["training"].part:
            proven.add(COLLUSION)
        return {**row, "epsilon": {key: row["epsilon"].get(key) for key in proven}}

    def _by_row(self, label: str, shown: Sequence[Json]) -> Json:
        x = range(1, len(self._rows) + 1)
        return lines(label, x, shown, x_name="round", before=self._before, low=0.0)

    def _epsilon(self) -> Json | None:
        epsilons, parts = [row["epsilon"] for row in self._rows], []
        for which, one in self._guarantees.items():
            values = _ups([epsilon.get(which) for epsilon in epsilons])
            if not any(values):
                continue
            colour = "blue" if which == "training" else "red"
            drawn = [series(which, values, colour, "up", steps=True)]
            if which == "training" and self._shared:
                alone = _ups([epsilon.get(COLLUSION) for epsilon in epsilons])
                name = "if all others collude"
                drawn.append(series(name, alone, "orange", "up", dash=True, steps=True))
            parts.append(self._by_row(f"ε {which}, planned, per {one.unit}", drawn))
        if not parts:
            return None
        text = (
            "Planned ε of all rounds up to each round. The guarantees of the job are at the top of"
            " the page."
        )
        return section("epsilon", "Planned privacy budget", parts, before=[paragraph(text)])

    # --- answers ---

    def _answers(self) -> Json | None:
        if not self._rows:
            return None
        found = [series("answered", [row["uploads"] for row in self._rows], "blue", "count")]
        for name, colour in (("selected", "grey"), ("declined", "red")):
            values = [row.get(name) for row in self._rows]
            if any(values):
                found.append(series(name, values, colour, "count", dash=name == "selected"))
        parts = [self._by_row("Devices by round", found)]
        void = {why.replace("_", " "): n for why, n in self._history.void.most_common(12)}
        for label, counts, colour in (
            ("Refused segments, by reason", void, "red"),
            ("Declined rounds, by cause", dict(self._history.causes.most_common()), "red"),
            ("Uploads of each cell in the last round", self._rows[-1].get("cells"), "blue"),
        ):
            if counts:
                names = sorted(counts) if colour == "blue" else list(counts)
                rows = [(name, float(counts[name]), f"{counts[name]:,}") for name in names]
                parts.append(bars(label, rows, colour))
        if attempts := self._history.attempts:
            columns = ("selected", "uploaded", "declined", "absent")
            body = [
                [str(one["round"]), *(_count(one.get(name)) for name in columns), str(one["why"])]
                for one in attempts
            ]
            head = ["round", "selected", "uploaded", "declined", "late or absent", "why"]
            label = "Repeated attempts"
            parts.append(table(label, head, body, text=[5], first=FIRST_ROWS))
        text = "Only the proxy knows which devices these are."
        return section("answers", "Answers by round", parts, before=[paragraph(text)])

    # --- evaluation ---

    def _clusters(self) -> Json | None:
        scores = self._history.scores
        if not scores:
            return None
        rows = [[str(one["round"]), cluster_text(one)] for one in scores[-MOST_ROWS:]]
        by_round = table("Scores", ["round", "scores"], rows, text=[1], first=FIRST_ROWS)
        newest = scores[-1]
        if newest.get("upload") == "sums":
            text = (
                "Each device summed its evaluation records by the nearest public centroid, a mean"
                " of the previous sums, and added noise: each count of the sum has standard"
                f" deviation {newest['count_deviation']:.3g} records; ± is one standard error. The"
                f" newest sums hold {newest['clusters']} clusters of about"
                f" {newest['records']:,.0f} records. The silhouette is the simplified one, from"
                " distances to centroids."
            )
            title = "Clusters of the devices' records"
            return section("clusters", title, [by_round], before=[paragraph(text)])
        shown, text = self._history.evaluations, ""
        if shown:
            text = (
                "Each point is one noised softmax vector, projected to two principal directions;"
                " the colour shows its cluster. All panels use the same projection."
            )
        if any(one["eval_type"] == "SILHOUETTE_SCORE" for one in scores):
            text += " A silhouette near 0 means that noise exceeds the structure."
        parts = [_cluster_picture(shown), by_round]
        title = "Clusters of inferences"
        return section("clusters", title, parts, before=[paragraph(text.strip()) if text else None])

    def _averages(self) -> Json | None:
        means = self._history.means
        if not means:
            return None
        text = (
            "Mean softmax of the devices' evaluation records by class, averaged over all accepted"
            " uploads, and the standard deviation of the noise in each figure."
        )
        rows = [
            [
                str(one["round"]),
                *map(figure_text, one["mean"]),
                f"± {figure_text(one.get('noise_deviation'))}",
                str(one["uploads"]),
            ]
            for one in means[-MOST_ROWS:]
        ]
        classes = [f"class {k}" for k in range(len(means[0]["mean"]))]
        head = ["round", *classes, "noise", "uploads"]
        found = table("Mean softmax by class", head, rows, first=FIRST_ROWS)
        title = "Mean inferences"
        return section("averages", title, [found], before=[paragraph(text)])

    # --- time and bytes ---

    def _time(self) -> Json | None:
        timed = [row["timeline"] for row in self._rows]
        if not any(timed):
            return None
        shown = [
            series(name, [rounded(one.get(key)) for one in timed], colour, "seconds")
            for key, name, colour in STEPS
        ]
        text = paragraph("Duration of each round by step.")
        parts = [self._by_row("Seconds by round", shown)]
        return section("time", "Time by step", parts, before=[text])

    def _bytes(self) -> Json | None:
        if self._simulated:
            return None
        hops = dict(self._run.hops) if any(self._run.hops.values()) else {}
        text = "Payload at the proxy in the whole job. A broadcast to all devices counts once."
        if not hops:
            text = "Payload sent and received by the cloud in all committed rounds."
            for hop, key in (("cloud_to_proxy", "cloud_out"), ("proxy_to_cloud", "cloud_in")):
                hops[hop] = sum(row["bytes"].get(key, 0) for row in self._rows)
        if not any(hops.values()):
            return None
        rows = [(name, float(hops[key]), byte_text(hops[key])) for key, name in HOPS if key in hops]
        return section(
            "bytes", "Bytes by hop", [bars("Bytes by hop", rows)], before=[paragraph(text)]
        )

    # --- meaning ---

    def _seen(self) -> Json | None:
        if not self._facts.seen:
            return None
        verb = "would see" if self._simulated else "saw" if self._ended else "sees"
        title = f"What each party {verb}"
        rows = [[row["what"], row["cloud"], row["proxy"]] for row in self._facts.seen]
        found = table(title, ["data", "cloud", "proxy"], rows, text=[0, 1, 2])
        text = (
            "Assumes that cloud and proxy do not collude. Brokers see only ciphertext; devices see"
            " only the models sealed to them."
        )
        return section("seen", title, [found], after=[paragraph(text)])

    def _meaning(self) -> Json | None:
        if not self._guarantees:
            return None
        training, inference = self._guarantees["training"], self._guarantees["inference"]
        sums = (EVALUATION_COUNTS, CLUSTER_SUMS)
        counted_too = any(row["what"] in sums for row in self._facts.seen)
        asked = any(row["what"] == ANSWERS for row in self._facts.seen)
        found = [("Simulated", _SIMULATED)] if self._simulated else []
        planned = ", planned" if self._planned else ""
        found += [
            (f"Training: {training.text}{planned}", self._training_meaning(training)),
            (
                f"Inference: {inference.text}{planned}",
                _inference_meaning(inference, counted_too, asked),
            ),
        ]
        if self._run.audit:
            found.append(("Audit in this run", f"{self._run.audit}."))
        if self._facts.aggregation_note:
            found.append(("Aggregation", f"{self._facts.aggregation_note}."))
        if self._facts.shuffle:
            credits = " ".join(f"{line}." for line in self._facts.shuffle)
            found.append(("After the shuffle", f"{credits} {_SHUFFLE}"))
        named = self._measure[0].upper() + self._measure[1:]
        found += [("Total", _TOGETHER), (named, self._accuracy_meaning())]
        return section("meaning", "Meaning of these figures", [terms(found)])

    def _training_meaning(self, training: _Guarantee) -> str:
        if not training.proven:
            return "At least one mechanism of this job has no proof, so no ε is printed."
        real = "in a real run " if self._simulated else ""
        against = "cloud and proxy, even if they collude."
        if shared_text(training.part):
            against = (
                "a cloud that colludes with devices, if the proxy does not collude and at least"
                f" {training.part['honest_devices']} devices in each sum follow the protocol (an"
                " assumption that cannot be checked). If all others collude, the device's own noise"
                f" remains: {colluding_text(training.part)}."
            )
        record = (
            " Per device: all records of the device are added or removed. Per record: a single"
            " record; no ε is printed if no bound is proven."
        )
        return (
            f"Adding or removing one {training.unit} changes the probability of everything that"
            " training released by at most a factor e^ε, up to δ. This covers all rounds together"
            f" and {real}holds against {against}{record * ('record_epsilon' in training.part)}"
        )

    def _accuracy_meaning(self) -> str:
        run, found = self._run, _MEASURES[self._measure]
        if run.measured_on:
            found += (
                f" These are {run.measured_on}; the guarantees above apply to the devices'"
                " records only."
            )
        if run.reference:
            found += " The difference to the run without noise is the cost of privacy in this job."
        return found

    # --- tables ---

    def _rounds(self) -> Json | None:
        if not self._rows:
            return None
        head = ["round", self._measure, "loss", "uploads", "declined", "attempt"]
        units = {which: f" per {one.unit}" for which, one in self._guarantees.items()}
        head.append(f"planned ε training{units.get('training', '')}")
        head += ["if all others collude"] * self._shared
        head.append(f"planned ε inference{units.get('inference', '')}")
        hops = [] if self._simulated else [("from cloud", "cloud_out"), ("to cloud", "cloud_in")]
        head += [name for name, _ in hops] + ["seconds"]
        keys = ["training", *[COLLUSION] * self._shared, "inference"]
        rows = [
            [
                short_label(row["phase"], row["number"]),
                self._text(self._measured(row)),
                figure_text(row["loss"]),
                *(_count(row[name]) for name in ("uploads", "declined", "attempt")),
                *(_up(row["epsilon"].get(key)) for key in keys),
                *(byte_text(row["bytes"].get(key, 0)) for _, key in hops),
                f"{row['seconds']:.2f}",
            ]
            for row in self._rows[-MOST_ROWS:]
        ]
        more = len(self._rows) - len(rows)
        note = (
            paragraph(f"The last {MOST_ROWS} rounds; {more} earlier ones are not shown.")
            if more
            else None
        )
        found = table("Rounds", head, rows, first=FIRST_ROWS)
        return section("rounds", "Rounds", [found], before=[note])

    def _events(self) -> Json | None:
        last = self._history.last
        if not last:
            return None
        proven = set(self._rows[-1]["epsilon"]) if self._rows else set()
        units = {which: one.unit for which, one in self._guarantees.items() if which in proven}
        rows = [
            {"time": one["time"] or None, **_event_line(one["type"], one["data"], units)}
            for one in reversed(last)
        ]
        found = events(rows, self._history.events - len(last))
        return section("events", "Events", [found])


# --- pictures ---


def _per_class(found: Sequence[Mapping[str, Any]], called: Sequence[str]) -> Json | None:
    if not found:
        return None
    rows = [
        [
            called[one["class"]] if one["class"] < len(called) else str(one["class"]),
            *(figure_text(one.get(name)) for name in ("precision", "recall", "f1")),
            _count(one["records"]),
        ]
        for one in found
    ]
    head = ["class", "precision", "recall", "F1", "records"]
    return table("Precision, recall and F1 of each class", head, rows, first=FIRST_ROWS)


def _cluster_picture(shown: Sequence[EvaluationPoints]) -> Json | None:
    """Draw all evaluations in one projection, so that they can be compared."""
    if not shown:
        return None
    stacked = np.concatenate([np.asarray(one.points, np.float64) for one in shown])
    points, panels, start = project_2d(stacked), [], 0
    for one in shown:
        part = points[start : start + len(one.points)]
        start += len(one.points)
        there, score = np.flatnonzero(np.isfinite(part).all(axis=1)), one.scores.get("score")
        value = "no score" if score is None else f"{score:.2f}".replace("-0", "−0")
        few = "" if len(part) == one.rows else f", {len(part)} of {one.rows} points"
        panels.append(
            {
                "title": f"round {one.round} · {value}{few}",
                "points": [[round(float(v), 4) for v in row] for row in part[there]],
                "labels": [int(one.labels[k]) for k in there],
                "numbered": one.rows <= NUMBERED,
            }
        )
    finite = points[np.isfinite(points).all(axis=1)]
    if not len(finite):
        return scatter("Softmax uploads by cluster", panels, [(-1.0, 1.0), (-1.0, 1.0)])
    low, high = finite.min(axis=0), finite.max(axis=0)
    margin = np.maximum(0.12 * (high - low), 1e-6)
    ends = zip((low - margin).tolist(), (high + margin).tolist(), strict=True)
    return scatter("Softmax uploads by cluster", panels, list(ends))


def _event_line(kind: str, data: Mapping[str, Any], units: Mapping[str, str]) -> Json:
    tone: Tone = ""
    if kind == "exchange_committed":
        text = _committed_text(data, units)
    elif kind == "broadcast":
        of = str(data.get("kind", "job"))
        name = data.get("round") if of == "round" else f"the {of}"
        text = f"{name} sent to {_count(data.get('selected'))} devices"
    elif kind == "batch":
        text = f"round {data.get('round')}: {_count(data.get('uploads'))} uploads received"
    elif kind == "round_repeated":
        text, tone = f"round {data.get('round')} repeated: {data.get('why', '')}", "warn"
    elif kind == "job_waiting":
        enrolled, wanted = data.get("enrolled"), data.get("wanted")
        text, tone = f"waits for devices: {enrolled} of {wanted} are enrolled", "warn"
    else:
        text = display_name(kind)
        text += f": {data['reason']}" if data.get("reason") else ""
        tone = TONES.get(kind.removeprefix("job_"), "")
    return {"text": text, "tone": tone}


def _committed_text(data: Mapping[str, Any], units: Mapping[str, str]) -> str:
    name = round_label(data["phase"], data["number"])
    text = f"{name} committed: {data['uploads']} answered"
    text += f", {data['declined']} declined" if data["declined"] else ""
    if figures := evaluation_text(data):
        text += f"; {figures}"
    led, value = data["led"]
    if value is None:
        return text
    spent = ", ".join(
        f"{which} {_up(data['epsilon'].get(which))} per {units[which]}"
        if which in units
        else f"{which} no proven ε"
        for which in ("training", "inference")
    )
    return f"{text}, {led} {leading_text(led, value, data)}; planned ε: {spent}"


# --- texts ---

_SIMULATED = (
    "This run protects nobody: its noise came from a seed, and anyone who knows the seed can remove"
    " it. Each ε is the cost of a real run of this job."
)
_SHUFFLE = (
    "This assumes that the cloud follows the protocol and does not collude with the proxy; the"
    " guarantees above do not."
)
_TOGETHER = (
    "Neither ε alone is the total. Training and evaluation records are disjoint, so for one record"
    " the two do not add up; for a whole device they do. A smaller ε is a stronger guarantee."
)
_MEASURES = {
    ACCURACY: "Share of the cloud's test records that the model classifies correctly; the loss is"
    " the mean cross-entropy on them.",
    AUC: "Area under the ROC curve: the probability that an anomalous test record of the cloud"
    " scores above a normal one; 0.5 is chance. With a threshold from the devices' counts, a score"
    " above 1 is an alarm.",
    RMSE: "Root of the mean squared error on the cloud's test records, in the label's unit; the"
    " loss is the mean squared error with the label's range scaled to [-1, 1].",
}


def _inference_meaning(inference: _Guarantee, counted_too: bool, asked: bool) -> str:
    if not inference.proven:
        return "Devices uploaded inferences without a proven guarantee."
    if not inference.epsilon:
        return "No device uploaded an inference."
    uploads = "noised counts and sums of the model's results, and inferences"
    kind = uploads if counted_too else "noised softmax vectors"
    kind = "answers to statistics, of all records" if asked else kind
    one = "one record" if inference.unit == "record" else "the whole evaluation set of one device"
    one += ", or one record of it" * ("record_epsilon" in inference.part)
    return (
        f"This covers all uploads about a device's evaluation records: {kind}. It holds for"
        f" {one}, added or removed{shared_text(inference.part)}. Training uses other records and"
        " has its own ε" + (", in which the same answers count." if asked else ".")
    )


def _with_error(own: Mapping[str, Any], key: str) -> str:
    """Format `0.918 ± 0.018`, without the error if it is unknown."""
    value, off = own.get(key), own.get(f"{key}_deviation")
    if value is None:
        return "–"
    measure = RMSE if key in ("rmse", "mae", "threshold") else ACCURACY
    text = leading_text(measure, value)
    return text if off is None else f"{text} ± {leading_text(measure, off)}"


def _baseline(found: Mapping[str, Any], key: str, figures: Mapping[str, Any]) -> str:
    """Return `baseline_text` for accuracy or RMSE, otherwise ""."""
    measure, value = {"accuracy": ACCURACY, "rmse": RMSE}.get(key, ""), found.get(key)
    return "" if value is None else baseline_text(measure, value, figures)


def _compared(own: Mapping[str, Any], key: str, figures: Mapping[str, Any]) -> str:
    """Format `0.918 ± 0.018 (majority class 0.866)`, from the records' `figures`."""
    baseline = _baseline(own, key, figures)
    return _with_error(own, key) + (f" ({baseline})" if baseline else "")


def _ups(values: Sequence[float | None]) -> list[float | None]:
    """Round each ε up to six digits."""
    return [None if value is None else float(up(value, 6)) for value in values]


def _up(value: float | None) -> str:
    return "–" if value is None else up(value)


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


_NAMES = {"macro_f1": "macro-F1", "auc": "AUC", "mae": "MAE", "rmse": "RMSE", "r2": "R²"}


def display_name(name: str) -> str:
    """Return the display name of a figure or event."""
    return _NAMES.get(name, name.replace("_", " "))

"""Some jobs beside each other, as a page: accuracy or RMSE by round, and figures beside both
guarantees."""

from __future__ import annotations

from collections.abc import Sequence

from edgeveil.evaluation.figures import leading_stored, leading_text
from edgeveil.pages.parts import Json, lines, said, section, series, table
from edgeveil.privacy.guarantee import guarantee_text
from edgeveil.units import byte_text, seconds_text
from edgeveil_cloud.pages.job_rows import planned
from edgeveil_cloud.store_tables import ExchangeRecord, JobGlimpse

_COLOURS = ("blue", "orange", "green", "purple", "red", "olive")
MOST = len(_COLOURS)
Compared = tuple[JobGlimpse, Sequence[ExchangeRecord]]


def comparison(jobs: Sequence[Compared]) -> Json:
    """The page of up to MOST jobs, each with its committed exchanges."""
    return {
        "title": "",
        "badge": None,
        "lines": [],
        "progress": None,
        "cards": [],
        "sections": [_by_round(jobs), _figures(jobs)],
        "footer": "",
    }


def _by_round(jobs: Sequence[Compared]) -> Json:
    """A picture for each kind of figure: accuracies, RMSE of numbers, AUC of anomalies."""
    drawn: dict[str, list[tuple[dict[int, float], Json]]] = {}
    for index, ((job, records), colour) in enumerate(zip(jobs, _COLOURS, strict=False)):
        name, curve = _curve(job, records)
        if curve:
            drawn.setdefault(name, []).append(
                (curve, series(job.entry.id, [], colour, dash=index >= 3))
            )
    none = said("None of them was tested: no round is done, or the cloud holds no test records.")
    parts = [_picture(name, of_it) for name, of_it in sorted(drawn.items(), reverse=True)]
    return section("accuracy", "By round", parts, before=[None if drawn else none])


def _curve(job: JobGlimpse, records: Sequence[ExchangeRecord]) -> tuple[str, dict[int, float]]:
    plan, found = planned(job.entry.canonical), dict[int, float]()
    for one in records:
        value = leading_stored(plan.measure, one.accuracy, one.loss, plan.half)
        if one.number and value is not None:
            found[one.number] = value
    return plan.measure, found


def _picture(name: str, drawn: Sequence[tuple[dict[int, float], Json]]) -> Json:
    rounds = sorted(set().union(*(curve for curve, _ in drawn)))
    shown = [{**one, "values": [curve.get(x) for x in rounds]} for curve, one in drawn]
    title = f"{name[0].upper()}{name[1:]} on records the cloud holds"
    return lines(title, rounds, shown, x_name="round")


def _figures(jobs: Sequence[Compared]) -> Json:
    head = ("job", "status", "figure", "training guarantee", "inference guarantee", "rounds")
    rows = [_row(glimpse, records) for glimpse, records in jobs]
    cells = table("The jobs in figures", (*head, "time of rounds", "bytes"), rows, text=(1, 3, 4))
    beside = said("A figure is worth comparing beside both guarantees alone.")
    return section("figures", "In figures", [cells], after=[beside])


def _row(glimpse: JobGlimpse, records: Sequence[ExchangeRecord]) -> list[str]:
    entry, plan = glimpse.entry, planned(glimpse.entry.canonical)
    spent = glimpse.life.data.get("privacy") if glimpse.life and entry.ended else None
    privacy, how = spent or plan.privacy, "" if spent else "; as planned"
    told = [f"{guarantee_text(privacy, one)}{how}" for one in ("training", "inference") if privacy]
    led = plan.measure
    value = leading_stored(led, glimpse.accuracy, glimpse.loss, plan.half)
    moved = sum(sum(one.bytes.values()) for one in records)
    return [
        entry.id,
        entry.status,
        "–" if value is None else f"{led} {leading_text(led, value, glimpse.scores)}",
        *(told or ["–", "–"]),
        f"{glimpse.newest.number if glimpse.newest else 0} of {plan.rounds}",
        seconds_text(sum(one.seconds for one in records)),
        byte_text(moved),
    ]

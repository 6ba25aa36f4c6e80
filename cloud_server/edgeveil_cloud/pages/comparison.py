"""Some jobs beside each other, as a page: accuracy by round, and figures beside both guarantees."""

from __future__ import annotations

from collections.abc import Sequence

from edgeveil.pages.parts import Json, figure_text, lines, said, section, series, table
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
        "sections": [_accuracy(jobs), _figures(jobs)],
        "footer": "",
    }


def _accuracy(jobs: Sequence[Compared]) -> Json:
    curves = [
        {one.number: one.accuracy for one in records if one.number and one.accuracy is not None}
        for _, records in jobs
    ]
    rounds = sorted(set().union(*curves))
    shown = [
        series(job.entry.id, [curve.get(x) for x in rounds], colour, dash=index >= 3)
        for index, ((job, _), curve, colour) in enumerate(zip(jobs, curves, _COLOURS, strict=False))
    ]
    none = said("None of them was tested: no round is done, or the cloud holds no test records.")
    picture = lines("Accuracy on records the cloud holds", rounds, shown, x_name="round")
    return section(
        "accuracy", "Accuracy", [picture if rounds else None], before=[None if rounds else none]
    )


def _figures(jobs: Sequence[Compared]) -> Json:
    head = ("job", "status", "accuracy", "training guarantee", "inference guarantee", "rounds")
    rows = [_row(glimpse, records) for glimpse, records in jobs]
    cells = table("The jobs in figures", (*head, "time of rounds", "bytes"), rows, text=(1, 3, 4))
    beside = said("An accuracy is worth comparing beside both guarantees alone.")
    return section("figures", "In figures", [cells], after=[beside])


def _row(glimpse: JobGlimpse, records: Sequence[ExchangeRecord]) -> list[str]:
    entry, plan = glimpse.entry, planned(glimpse.entry.canonical)
    spent = glimpse.life.data.get("privacy") if glimpse.life and entry.ended else None
    privacy, how = spent or plan.privacy, "" if spent else "; as planned"
    told = [f"{guarantee_text(privacy, one)}{how}" for one in ("training", "inference") if privacy]
    moved = sum(sum(one.bytes.values()) for one in records)
    return [
        entry.id,
        entry.status,
        figure_text(glimpse.accuracy),
        *(told or ["–", "–"]),
        f"{glimpse.newest.number if glimpse.newest else 0} of {plan.rounds}",
        seconds_text(sum(one.seconds for one in records)),
        byte_text(moved),
    ]

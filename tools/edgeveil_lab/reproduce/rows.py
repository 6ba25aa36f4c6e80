"""The rows of an experiment's table, from the runs that are kept."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Any

from edgeveil_lab.reproduce.base import Experiment, Point, Result, Trial
from edgeveil_lab.table.command import Asked, Study, done
from edgeveil_tools.result import guarantee_text


@dataclass(frozen=True)
class Played:
    """A trial with its job as it is run; `full_rounds` are those that `--rounds` may cut."""

    trial: Trial
    study: Study
    asked: Asked
    full_rounds: int

    def results(self) -> list[Result]:
        """Of all seeds that have completed, from the first on."""
        found = (done(self.study, self.study.run.seed + n) for n in count())
        return [one for one in takewhile(bool, found) if one is not None]


def rows_of(experiment: Experiment, played: Played, command: str) -> list[dict[str, Any]]:
    """One row for each point of the trial; all values are JSON's."""
    results = played.results()
    privacy = results[0]["privacy"] if results else None
    shared = {
        "proven_privacy": guarantee_text(privacy, experiment.guarantee) if privacy else None,
        "rounds": played.study.job.rounds,
        "full_rounds": played.full_rounds,
        "seconds": statistics.median(r["seconds"] for r in results) if results else None,
        "curve": _curve(results[0]) if results else [],
        "scores": scores(results[0]) if results else [],
        "command": command,
    }
    return [
        {**_begun(played.trial, p), **_measured(p, results), **shared} for p in played.trial.points
    ]


def not_run(trial: Trial, lacking: Mapping[str, str]) -> list[dict[str, Any]]:
    """Rows that have the text's figures alone; `lacking` names data sets without files."""
    why = f"not run: no files of {trial.source}" if trial.source in lacking else None
    shared: dict[str, Any] = {
        "values": [],
        "ours": None,
        "proven_privacy": why,
        "rounds": None,
        "full_rounds": None,
        "seconds": None,
        "curve": [],
        "scores": [],
        "command": None,
    }
    return [{**_begun(trial, point), **shared} for point in trial.points]


def _begun(trial: Trial, point: Point) -> dict[str, Any]:
    return {
        "trial": trial.name,
        "label": f"{trial.label}, {point.label}" if point.label else trial.label,
        "series": point.series,
        "x": point.x,
        "claimed": point.claimed,
        "claimed_privacy": trial.claimed_privacy,
    }


def _measured(point: Point, results: list[Result]) -> dict[str, Any]:
    values = [value for found in results if (value := point.measure(found)) is not None]
    return {"values": values, "ours": statistics.median(values) if values else None}


def _curve(result: Result) -> list[list[float]]:
    """Round and accuracy of the first seed, where the cloud tested."""
    return [[r["round"], r["accuracy"]] for r in result["rounds"] if r["accuracy"] is not None]


def scores(result: Result) -> list[list[float]]:
    """Round, cluster score and test loss, of the rounds that have both."""
    return [
        [row["round"], row["cluster_scores"]["score"], row["loss"]]
        for row in result["rounds"]
        if row["cluster_scores"] and None not in (row["cluster_scores"]["score"], row["loss"])
    ]

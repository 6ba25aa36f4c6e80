"""What an experiment of a text is: trials, each a job, with the figures that the text has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Result = Mapping[str, Any]  # a run's result.json
Measure = Callable[[Result], float | None]


def final_accuracy(result: Result) -> float | None:
    """Of the global model on the test records."""
    value: float | None = result["final"]["accuracy"]
    return value


def scores(result: Result) -> list[list[float]]:
    """Round, cluster score and test loss, of the rounds that have both."""
    return [
        [row["round"], row["cluster_scores"]["score"], row["loss"]]
        for row in result["rounds"]
        if row["cluster_scores"] and None not in (row["cluster_scores"]["score"], row["loss"])
    ]


@dataclass(frozen=True)
class Point:
    """A row of the table: the text's figure, None where it prints none, and how to measure ours.

    `series` and `x` place it in a picture of lines; `label` follows the trial's own, to tell
    several points of one trial apart.
    """

    claimed: float | None = None
    measure: Measure = final_accuracy
    series: str = ""
    x: float | None = None
    label: str = ""


@dataclass(frozen=True)
class Trial:
    """A job (its YAML as plain values), run once for each seed, and the figures taken from it.

    `claimed_privacy` is the guarantee as the text has it.
    """

    name: str
    label: str
    job: Mapping[str, Any] = field(repr=False)
    points: tuple[Point, ...]
    claimed_privacy: str

    @property
    def source(self) -> str:
        """The data set's name, as in `data.source`."""
        return str(self.job["data"]["source"])


@dataclass(frozen=True)
class Experiment:
    """One figure or table of a text. `trials(quick)` gives its rows.

    `quick` rows learn the digits that are always there, in a few rounds: they show that all runs,
    and their figures are no answer to the text's. `remark` is what a reader must know.

    `picture`: `rows`, one line of the picture for each row; `lines`, the figure against `x`
    (named `x_label`), a line for each series; `rounds`, the test accuracy after each round, a line
    for each trial, with the text's figure at its last round; `scores`, cluster score and test loss
    after each round, one below the other.
    """

    title: str
    source: str
    figure: str
    trials: Callable[[bool], tuple[Trial, ...]]
    remark: str
    guarantee: Literal["training", "inference"] = "training"
    picture: Literal["rows", "lines", "rounds", "scores"] = "rows"
    x_label: str = ""
    x_log: bool = False
    needs_gpu: bool = False  # but for its quick rows
    shows_settings: bool = False  # in a column: what each row learns on, and the values it sets

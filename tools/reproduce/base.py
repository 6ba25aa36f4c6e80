"""What an experiment of a text is: trials, each a job, with the figure that the text has for it."""

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


@dataclass(frozen=True)
class Trial:
    """One row: a job (its YAML as plain values), and what the text says of it.

    `claimed` is the text's figure, None where it prints none; `claimed_privacy` the guarantee as
    the text has it.
    """

    name: str
    label: str
    job: Mapping[str, Any] = field(repr=False)
    claimed: float | None
    claimed_privacy: str


@dataclass(frozen=True)
class Experiment:
    """One figure or table of a text. `trials(quick)` gives its rows.

    `quick` rows learn the digits that are always there, in a few rounds: they show that all runs,
    and their figures are no answer to the text's. `remark` is what a reader must know.
    """

    title: str
    source: str
    figure: str
    trials: Callable[[bool], tuple[Trial, ...]]
    remark: str
    measure: Measure = final_accuracy
    guarantee: Literal["training", "inference"] = "training"

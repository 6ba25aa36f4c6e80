"""A run in a folder of Weights & Biases, offline: nothing leaves the machine until `wandb sync`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # nor do its own errors

import wandb

from edgeveil_tools.tracking.tracker import Metrics, RunOutcome, TrackedRun


class WandbRun:
    """A run of the project `edgeveil`, without facts of the machine and its user."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run: Any = None

    def begin(self, run: TrackedRun) -> None:
        """See `Tracker`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project="edgeveil",
            name=run.name,
            id=run.key or None,
            dir=str(self._folder),
            config=dict(run.parameters),
            settings=wandb.Settings(
                mode="offline",
                console="off",
                silent=True,
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
                host="",
            ),
        )
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")

    def log(self, metrics: Metrics, step: int) -> None:
        """See `Tracker`."""
        self._run.log({"round": step, **metrics})

    def end(self, outcome: RunOutcome) -> None:
        """See `Tracker`."""
        facts = {"status": outcome.status, **outcome.facts, **outcome.metrics}
        self._run.summary.update(facts)
        for path in outcome.files:
            shutil.copyfile(path, Path(self._run.dir) / path.name)
        self._run.finish(exit_code=0 if outcome.status == "completed" else 1)


def open_tracker(where: str) -> WandbRun:
    """For the folder that gets `wandb/offline-run-…`."""
    return WandbRun(Path(where))

"""A run in MLflow, by its client: no global state, no automatic logging."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from itertools import islice

from edgeveil_tools.tracking.tracker import Metrics, RunOutcome, TrackedRun

EXPERIMENT = "edgeveil"
_KEY = "edgeveil.id"  # the tag by which a job of a cloud is found again
_LONGEST = 500  # characters of a parameter
_BATCH = 100  # parameters of one request
_ENDS = {"completed": "FINISHED", "cancelled": "KILLED"}
# What a server may take before it counts as away; the user's own settings come first.
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


class MlflowRun:
    """A run of the experiment `edgeveil`, or of MLFLOW_EXPERIMENT_NAME."""

    def __init__(self, uri: str) -> None:
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # of its tries we tell the last
        self._client = MlflowClient(tracking_uri=uri)
        self._run, self._done = "", 0  # steps that an earlier process logged

    def begin(self, run: TrackedRun) -> None:
        """See `Tracker`; a job of a cloud goes on with the run that it has."""
        from mlflow.entities import Param

        experiment = self._experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT))
        if run.key and self._found(experiment, run.key):
            return
        tags = {_KEY: run.key} if run.key else {}
        made = self._client.create_run(experiment, run_name=run.name, tags=tags)
        self._run = made.info.run_id
        given = iter(run.parameters.items())
        while batch := list(islice(given, _BATCH)):
            params = [Param(key, str(value)[:_LONGEST]) for key, value in batch]
            self._client.log_batch(self._run, params=params)

    def log(self, metrics: Metrics, step: int) -> None:
        """See `Tracker`."""
        if step >= self._done:
            self._client.log_batch(self._run, metrics=list(self._entities(metrics, step)))

    def end(self, outcome: RunOutcome) -> None:
        """See `Tracker`."""
        from mlflow.entities import RunTag

        self._client.log_batch(
            self._run,
            metrics=list(self._entities(outcome.metrics, 0)),
            tags=[RunTag(key, value) for key, value in outcome.facts.items()],
        )
        for path in outcome.files:
            self._client.log_artifact(self._run, str(path))
        self._client.set_terminated(self._run, _ENDS.get(outcome.status, "FAILED"))

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException:  # another process was first
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _found(self, experiment: str, key: str) -> bool:
        """Whether an earlier process began this run; then it is gone on with."""
        found = self._client.search_runs([experiment], f"tags.`{_KEY}` = '{key}'", max_results=1)
        if not found:
            return False
        self._run = found[0].info.run_id
        steps = [one.step for one in self._client.get_metric_history(self._run, "seconds")]
        self._done = max(steps, default=-1) + 1
        return True

    @staticmethod
    def _entities(metrics: Metrics, step: int) -> Iterator[object]:
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        return (Metric(key, value, now_ms, step) for key, value in metrics.items())


def open_tracker(where: str) -> MlflowRun:
    """For a tracking URI: http(s)://, sqlite:///FILE, or whatever MLflow takes."""
    return MlflowRun(where)

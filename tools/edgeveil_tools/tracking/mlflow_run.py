"""A run in MLflow, by its client, without global state or automatic logging."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Time until a server counts as absent; the user's own settings take precedence.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

_LONGEST = 500  # characters of a parameter
_BATCH = 100  # parameters of one request
_ENDS = {"completed": "FINISHED", "cancelled": "KILLED"}


class MlflowTracker:
    """A run of the experiment `edgeveil`, or of MLFLOW_EXPERIMENT_NAME, at a tracking URI."""

    def __init__(self, where: str, name: str, parameters: Mapping[str, Any]) -> None:
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # only the last attempt is reported
        self._client = MlflowClient(tracking_uri=where)
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "edgeveil")
        try:
            number = self._client.create_experiment(experiment)
        except MlflowException:  # it is there
            number = self._client.get_experiment_by_name(experiment).experiment_id
        self._run = self._client.create_run(number, run_name=name).info.run_id
        params = [Param(key, str(value)[:_LONGEST]) for key, value in parameters.items()]
        for start in range(0, len(params), _BATCH):
            self._client.log_batch(self._run, params=params[start : start + _BATCH])

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        now_ms = int(time.time() * 1000)
        found = [Metric(key, value, now_ms, step) for key, value in metrics.items()]
        self._client.log_batch(self._run, metrics=found)

    def end(self, status: str, facts: Mapping[str, str], files: Sequence[Path]) -> None:
        tags = [RunTag(key, value) for key, value in facts.items()]
        self._client.log_batch(self._run, tags=tags)
        for path in files:
            self._client.log_artifact(self._run, str(path))
        self._client.set_terminated(self._run, _ENDS.get(status, "FAILED"))

"""Models of EdgeVeil in MLflow: a flavour that `mlflow.pyfunc` loads and serves."""

from __future__ import annotations

import platform
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from edgeveil.errors import UsageError, needs_extra
from edgeveil_edge.predict import Predictions, run_on_records
from edgeveil_edge.release_trial import released_session
from edgeveil_tools.result import Result

FLAVOR = "edgeveil"
_FILE = "model.onnx"
_NEEDS = "requirements.txt"


class LoadedModel:
    """A released model whose ONNX graph passed the checks of a device.

    `predict` returns a DataFrame, as MLflow expects; `predictions` an `edgeveil.Predictions`."""

    def __init__(self, path: Path) -> None:
        self._session, self._name = released_session(path.read_bytes(), str(path)), path.name

    def predictions(self, records: Any) -> Predictions:
        """Run the model on arrays, dicts or a DataFrame; raises DataError."""
        return run_on_records(self._session, self._name, records)

    def predict(self, model_input: Any, params: Any = None) -> Any:
        """Return a row per record; `params` of MLflow are not used."""
        return self.predictions(model_input).frame()


@needs_extra("track")
def save_model(model: Result | str | Path, path: str | Path, mlflow_model: Any = None) -> None:
    """Write a run's model, or an ONNX file, as a folder in MLflow's format.

    Both guarantees are in its metadata. Raises UsageError if `path` exists."""
    from mlflow import pyfunc
    from mlflow.models import Model

    folder = Path(path)
    if folder.exists() and any(folder.iterdir()):
        raise UsageError("is not empty", where=str(folder), fix="name a new folder")
    source = model.model if isinstance(model, Result) else Path(model)
    session = released_session(source.read_bytes(), str(source))
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, folder / _FILE)
    version = metadata.version("edgeveil")
    (folder / _NEEDS).write_text(f"edgeveil[infer,frames,track]=={version}\n", "utf-8")
    env = {"python": platform.python_version(), "dependencies": [f"-r {_NEEDS}"]}
    (folder / "python_env.yaml").write_text(yaml.safe_dump(env), "utf-8")
    described = Model() if mlflow_model is None else mlflow_model
    described.metadata = {
        **(described.metadata or {}),
        **{key: text for key, text in session.metadata.items() if key.startswith("edgeveil.")},
    }
    described.add_flavor(FLAVOR, edgeveil_version=version, model=_FILE)
    pyfunc.add_to_model(
        described, loader_module=__name__, data=_FILE, env={"virtualenv": "python_env.yaml"}
    )
    described.save(str(folder / "MLmodel"))


@needs_extra("track")
def log_model(model: Result | str | Path, name: str = "model", **options: Any) -> Any:
    """Log a run's model, or an ONNX file, to MLflow's active run; returns its ModelInfo.

    `options` are those of `mlflow.models.Model.log`, such as `registered_model_name`."""
    from mlflow.models import Model

    flavor = sys.modules[__name__]
    return Model.log(None, flavor, name=name, model=model, **options)


@needs_extra("track")
def load_model(uri: str | Path) -> LoadedModel:
    """Load a model by a path or a URI of MLflow (`models:/…`, `runs:/…`); raises DataError."""
    from mlflow.artifacts import download_artifacts

    return LoadedModel(Path(download_artifacts(artifact_uri=str(uri))) / _FILE)


def _load_pyfunc(path: str) -> LoadedModel:
    return LoadedModel(Path(path))

"""scikit-learn's estimators over a simulated fleet, or over the fleet of a running cloud."""

from __future__ import annotations

import math
import shutil
import warnings
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from edgeveil.data.encoding import cell_text
from edgeveil.data.schema import schema_in
from edgeveil.jobs import Job
from edgeveil_edge.predict import Predictions, run_on_records
from edgeveil_edge.release_trial import released_session
from edgeveil_tools.cloud_client import Cloud
from edgeveil_tools.local.job import changed, job_of
from edgeveil_tools.local.local_run import LocalJob, load_job
from edgeveil_tools.local.run import simulate

Range = tuple[float, float]
_LARGEST = 1e30  # of a public range's ends
_HARDLY_ANY_NOISE = 1e5  # an ε: too little to matter, enough for the ridge that follows from it


class _Federated(BaseEstimator):  # type: ignore[misc]
    """What both estimators share; their docstrings describe the parameters."""

    def __init__(
        self,
        *,
        epsilon: float | None = 1.0,
        delta: float = 1e-5,
        noise: Literal["local", "shared"] = "shared",
        features: Literal["identity", "random"] = "identity",
        rounds: int = 10,
        devices: int = 5,
        ranges: Any = None,
        nominal_records: int | None = None,
        job: str | Path | Job | None = None,
        cloud: Cloud | None = None,
        random_state: Any = None,
    ) -> None:
        self.epsilon, self.delta, self.noise = epsilon, delta, noise
        self.features, self.rounds, self.devices = features, rounds, devices
        self.ranges, self.nominal_records = ranges, nominal_records
        self.job, self.cloud, self.random_state = job, cloud, random_state

    def fit(self, X: Any = None, y: Any = None, groups: Any = None) -> Self:
        """Train on a simulated fleet, or with `cloud` on its devices' own records.

        Args:
            X: records (n, features): an array or a DataFrame; with `cloud` None.
            y: labels (n,); with `cloud` None.
            groups: holder of each record (n,), each a device; default: `devices` at random.

        Raises:
            ValueError: X, y or groups are not of a form that can be learned from.
            EdgeVeilError: the job is refused, or ended without a model.
        """
        if self.cloud is not None:
            return self._fit_on_cloud(X, y, groups)
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        if groups is not None:
            check_consistent_length(X, groups)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        data: Any
        if self.job is not None:
            data, job = (X, y), self._own_job(groups is not None)
            self._note_names(X)
        else:
            X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=self._numeric)
            data, job = self._made_up(X, self._labels(y), groups)
        fleet = None if groups is None else np.asarray(groups)
        how: dict[str, Any] = {"report": False, "reference": False, "workers": 0, "seed": seed}
        self.result_ = simulate(job, data=data, fleet=fleet, **how)
        self.model_ = self.result_.model.read_bytes()
        weakref.finalize(self.result_, shutil.rmtree, self.result_.folder, ignore_errors=True)
        if self.job is not None:
            self._note_classes()
        return self

    def _fit_on_cloud(self, *given: Any) -> Self:
        if any(one is not None for one in given) or self.job is None or self.cloud is None:
            raise ValueError("with cloud pass a job, and neither X nor y: records stay on devices")
        self.job_id_ = self.cloud.submit(self.job)
        self.cloud.wait(self.job_id_)
        self.model_ = self.cloud.model(self.job_id_)
        self._note_classes()
        return self

    # --- the job ---

    def _loaded(self) -> Job:
        return self.job if isinstance(self.job, Job) else load_job(str(self.job))

    def _own_job(self, grouped: bool) -> Job:
        job = self._loaded()
        if grouped or not isinstance(job, LocalJob) or job.local_run is not None:
            return job
        return changed(job, {"local_run.devices": self.devices})

    def _made_up(self, X: NDArray[Any], labels: Any, groups: Any) -> tuple[dict[str, Any], Job]:
        """Return the records by column, and a job whose schema has the public ranges."""
        names = [str(name) for name in getattr(self, "feature_names_in_", ())]
        names = names or [f"x{at}" for at in range(X.shape[1])]
        label = "label"
        while label in names:
            label += "_"
        devices = self.devices if groups is None else len(np.unique(np.asarray(groups)))
        if len(X) < devices:
            raise ValueError(f"Found array with {len(X)} sample(s), fewer than {devices} devices")
        ranges, own = _column_ranges(self.ranges, names, X)
        form, own_labels = self._label_form(labels)
        own += own_labels
        nominal = self.nominal_records
        if nominal is None:
            nominal, own = math.ceil(len(X) / devices), [*own, "nominal_records"]
        if own and self.epsilon is not None:
            warnings.warn(
                f"{', '.join(own)} were taken from the records themselves: the printed ε does not"
                " cover them. Pass public values.",
                UserWarning,
                stacklevel=3,
            )
        columns = [
            {"name": name, "number": list(one)} for name, one in zip(names, ranges, strict=True)
        ]
        schema = {"origin": "public", "label": {"column": label, **form}, "columns": columns}
        data = {name: X[:, at] for at, name in enumerate(names)} | {label: self._texts(labels)}
        return data, job_of(self._plain_job(schema, nominal, devices))

    def _plain_job(self, schema: Any, nominal: int, devices: int) -> dict[str, Any]:
        hardly = self.epsilon is None  # any noise: pure ε, whose noise has no least size
        shared = self.noise == "shared" and not hardly
        features: dict[str, Any] = {"name": self.features}
        features |= {"dimension": 256} if self.features == "random" else {"norm": "bounded"}
        return {
            "job": "federated_regressor" if self._numeric else "federated_classifier",
            "data": {
                "source": "memory",
                "nominal_records": nominal,
                "evaluation_share": 0,
                "schema": schema,
            },
            "features": [features],
            "train": {
                "method": "fm",
                "rounds": self.rounds,
                "noise": "laplace" if hardly else "gaussian",
            },
            "privacy": {
                "epsilon": _HARDLY_ANY_NOISE if hardly else self.epsilon,
                "delta": self.delta,
                "noise": "shared" if shared else "local",
            },
            "aggregation": {"name": "fedavg", "secure": shared},
            "round": {"min_batch": devices},
            "unsupervised": {"eval_type": "NOT_EVAL"},
            "local_run": {"devices": devices, "simulate": True, "test_share": 0},
        }

    # --- prediction ---

    def _predicted(self, X: Any) -> Predictions:
        check_is_fitted(self, "model_")
        session = released_session(self.model_, "model_")
        if self.job is not None:
            return run_on_records(session, "model_", X)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        names = [str(name) for name in getattr(self, "feature_names_in_", ())]
        names = names or [f"x{at}" for at in range(X.shape[1])]
        return run_on_records(session, "model_", {n: X[:, at] for at, n in enumerate(names)})

    def _note_classes(self) -> None:
        """Take the classes of the user's own job in the model's order."""
        if not self._numeric:
            session = released_session(self.model_, "model_")
            schema = schema_in(session.metadata, session.input_shape)
            classes = self._loaded().data.classes
            self.classes_ = np.array(range(classes) if schema is None else schema.label.names)

    def _note_names(self, X: Any) -> None:
        if len(shape := np.shape(X)) > 1:
            self.n_features_in_ = shape[1]
        if hasattr(X, "columns"):
            self.feature_names_in_ = np.array([str(name) for name in X.columns], object)


class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """A classifier that a fleet of devices trains together, each on its own records.

    `fit(X, y, groups)` simulates the fleet in this process: the accuracy is that of a real one, ε
    is what a real run costs, and nothing is protected. With `cloud` and `job`, `fit()` submits the
    job to a running cloud and waits: its devices train on records of their own.

    Args:
        epsilon: ε of the whole training per record, by the method `fm`; None: no noise and no
            guarantee, a perceptron trained by federated averaging.
        delta: δ of the whole training.
        noise: `shared`: devices add parts of one noise under secure sums, with two figures of ε;
            `local`: each device adds all of it.
        features: public map of `fm`: `random`, ReLU of a random projection, or `identity`.
        rounds: training rounds.
        devices: devices that share the records, where `groups` does not say who holds what.
        ranges: public range (low, high) of all columns, a list of one for each, or a mapping by
            name; None: taken from X with a warning, since the printed ε does not cover it.
        nominal_records: public number of records of a device, as a divisor; None: taken from X.
        job: job file or loaded job in place of all parameters above.
        cloud: running cloud, with `job`.
        random_state: seed of partition and simulated noise; see scikit-learn's glossary.

    Attributes:
        classes_: the class labels, sorted; those of `job` in its order.
        n_features_in_: number of columns seen in `fit`.
        feature_names_in_: their names, of a DataFrame.
        result_: `Result` of the simulation; its folder is removed with it.
        model_: the model, bytes of an ONNX file.
        job_id_: with `cloud`, the job's id.
    """

    _numeric = False

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the likeliest class of each record (n,)."""
        likeliest = np.argmax(self.predict_proba(X), axis=1)
        return np.asarray(self.classes_[likeliest])

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return probabilities (n, classes), in the order of `classes_`."""
        return self._predicted(X).probabilities

    def _labels(self, y: Any) -> NDArray[Any]:
        y = np.asarray(y)
        check_classification_targets(y)
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            raise ValueError(f"y has only one class, {self.classes_[:1]}; two are needed")
        return np.asarray(y)

    def _label_form(self, _y: Any) -> tuple[dict[str, Any], list[str]]:
        return {"classes": self._names()}, []

    def _texts(self, y: Any) -> list[str]:
        names = self._names()
        return [names[at] for at in np.searchsorted(self.classes_, y)]

    def _names(self) -> list[str]:
        names = [cell_text(one).strip() for one in self.classes_.tolist()]
        usable = all(names) and len(set(names)) == len(names)
        return names if usable else [str(at) for at in range(len(names))]


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """A regressor that a fleet of devices trains together; see `FederatedClassifier`.

    Args:
        target_range: public range (low, high) of y; None: taken from y with a warning.
        epsilon: as the other parameters and attributes, see `FederatedClassifier`.
    """

    _numeric = True

    def __init__(
        self,
        *,
        epsilon: float | None = 1.0,
        delta: float = 1e-5,
        noise: Literal["local", "shared"] = "shared",
        features: Literal["identity", "random"] = "identity",
        rounds: int = 10,
        devices: int = 5,
        ranges: Any = None,
        target_range: Range | None = None,
        nominal_records: int | None = None,
        job: str | Path | Job | None = None,
        cloud: Cloud | None = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            noise=noise,
            features=features,
            rounds=rounds,
            devices=devices,
            ranges=ranges,
            nominal_records=nominal_records,
            job=job,
            cloud=cloud,
            random_state=random_state,
        )
        self.target_range = target_range

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the number of each record (n,), within the target's range."""
        found = self._predicted(X).values
        if found is None:
            raise ValueError("the job's label is a class; use FederatedClassifier")
        return found

    def _labels(self, y: Any) -> NDArray[np.float64]:
        return np.asarray(y, np.float64)

    def _label_form(self, y: NDArray[np.float64]) -> tuple[dict[str, Any], list[str]]:
        if self.target_range is not None:
            return {"number": list(map(float, self.target_range))}, []
        return {"number": list(_wide(y.min(), y.max()))}, ["target_range"]

    def _texts(self, y: NDArray[np.float64]) -> list[float]:
        return list(y.tolist())


def _column_ranges(
    given: Any, names: Sequence[str], X: NDArray[np.float64]
) -> tuple[list[Range], list[str]]:
    """Return the range of each column, and `["ranges"]` if taken from the records."""
    if given is None:
        return [_wide(low, high) for low, high in zip(X.min(0), X.max(0), strict=True)], ["ranges"]
    if hasattr(given, "keys"):
        if lacking := [name for name in names if name not in given]:
            raise ValueError(f"ranges lacks the column '{lacking[0]}'")
        given = [given[name] for name in names]
    ends = np.asarray(given, np.float64)
    ends = np.tile(ends, (len(names), 1)) if ends.shape == (2,) else ends
    if ends.shape != (len(names), 2):
        raise ValueError(
            f"ranges has shape {ends.shape}, X has {len(names)} columns: pass (low, "
            "high), or one for each column"
        )
    return [(float(low), float(high)) for low, high in ends], []


def _wide(low: float, high: float) -> Range:
    """Return a range, widened if both ends are one."""
    low, high = (float(min(max(end, -_LARGEST), _LARGEST)) for end in (low, high))
    room = max(0.5, abs(low) * 1e-3) if low == high else 0.0
    return low - room, high + room

"""scikit-learn's estimators over a simulated fleet, or over the fleet of a running cloud."""

from __future__ import annotations

import math
import shutil
import warnings
import weakref
from typing import Any, Self

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
from edgeveil_tools.local.job import job_of
from edgeveil_tools.local.local_run import load_job
from edgeveil_tools.local.run import simulate

_LARGEST = 1e30  # of a public range's ends
_HARDLY_ANY_NOISE = 1e5  # an ε: too little to matter, enough for the ridge that follows from it


class _Federated(BaseEstimator):  # type: ignore[misc]
    _numeric = False

    def fit(self, X: Any = None, y: Any = None, groups: Any = None) -> Self:
        """Train on a simulated fleet, or with `cloud` on its devices' own records.

        With `cloud` it returns when the job has ended: while it is paused, it waits.

        Args:
            X: records (n, features): an array or a DataFrame; with `cloud` None.
            y: labels (n,); with `cloud` None.
            groups: holder of each record (n,), each a device; default: `devices` at random.

        Raises:
            ValueError: X, y or groups are not of a form that can be learned from.
            EdgeVeilError: the job is refused, or ended without a model.
        """
        job = self.job if self.job is None or isinstance(self.job, Job) else load_job(self.job)
        if self.cloud is not None:
            if job is None or any(one is not None for one in (X, y, groups)):
                raise ValueError("over a cloud pass a job, not X or y: records stay on devices")
            self.job_id_ = self.cloud.submit(self.job)
            self.cloud.wait(self.job_id_)
            self.model_ = self.cloud.model(self.job_id_)
            return self._of_job(job)
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        if groups is not None:
            check_consistent_length(X, groups)
        chance = check_random_state(self.random_state)
        seed, fleet = int(chance.randint(2**31 - 1)), groups
        data: Any = (X, y)
        if job is None:
            X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=self._numeric)
            data, played = self._made_up(X, y, groups)
            if groups is None:  # evenly: none then holds more than the nominal number
                fleet = chance.permutation(len(X)) % self.devices
        else:
            self.n_features_in_, played = np.shape(X)[1], job
        fleet = None if fleet is None else np.asarray(fleet)
        how: dict[str, Any] = {"report": False, "reference": False, "workers": 0, "seed": seed}
        self.result_ = simulate(played, data=data, fleet=fleet, **how)
        self.model_ = self.result_.model.read_bytes()
        weakref.finalize(self.result_, shutil.rmtree, self.result_.folder, ignore_errors=True)
        return self if job is None else self._of_job(job)

    def _of_job(self, job: Job) -> Self:
        """Take the classes of the user's own job, in the model's order."""
        if not self._numeric:
            session = released_session(self.model_, "model_")
            schema = schema_in(session.metadata, session.input_shape)
            names = range(job.data.classes) if schema is None else schema.label.names
            self.classes_ = np.array(names)
        return self

    def _names(self, X: NDArray[Any]) -> list[str]:
        seen = getattr(self, "feature_names_in_", [f"x{at}" for at in range(X.shape[1])])
        return [str(name) for name in seen]

    def _made_up(self, X: NDArray[Any], y: Any, groups: Any) -> tuple[dict[str, Any], Job]:
        """Return the records by column, and a job whose schema has the public ranges."""
        devices = self.devices if groups is None else len(np.unique(np.asarray(groups)))
        if len(X) < devices:
            raise ValueError(f"Found array with {len(X)} sample(s), fewer than {devices} devices")
        names, label = self._names(X), "label"
        while label in names:
            label += "_"
        form, cells = self._label(y)
        public = "ranges", "target_range", "nominal_records"
        own = [key for key in public if getattr(self, key, self) is None]
        if own and self.epsilon is not None:
            what = f"{', '.join(own)} were taken from the records: the printed ε does not cover"
            warnings.warn(f"{what} them. Pass public values.", UserWarning, stacklevel=3)
        columns = [
            {"name": name, "number": ends}
            for name, ends in zip(names, _column_ranges(self.ranges, names, X), strict=True)
        ]
        schema = {"origin": "public", "label": {"column": label, **form}, "columns": columns}
        nominal = self.nominal_records or math.ceil(len(X) / devices)
        data = {**dict(zip(names, X.T, strict=True)), label: cells}
        return data, job_of(self._plain_job(schema, nominal, devices))

    def _plain_job(self, schema: Any, nominal: int, devices: int) -> dict[str, Any]:
        hardly = self.epsilon is None  # any noise: pure ε, whose noise has no least size
        shared = self.noise == "shared" and not hardly
        more: dict[str, Any] = {"random": {"dimension": 256}, "identity": {"norm": "bounded"}}
        privacy = {"epsilon": _HARDLY_ANY_NOISE if hardly else self.epsilon, "delta": self.delta}
        noise = "laplace" if hardly else "gaussian"
        records = {"source": "memory", "nominal_records": nominal, "evaluation_share": 0}
        return {
            "job": "federated_regressor" if self._numeric else "federated_classifier",
            "data": {**records, "schema": schema},
            "features": [{"name": self.features, **more.get(self.features, {})}],
            "train": {"method": "fm", "rounds": self.rounds, "noise": noise},
            "privacy": {**privacy, "noise": "shared" if shared else "local"},
            "aggregation": {"name": "fedavg", "secure": shared},
            "round": {"min_batch": devices},
            "unsupervised": {"eval_type": "NOT_EVAL"},
            "local_run": {"devices": devices, "simulate": True, "test_share": 0},
        }

    def _predicted(self, X: Any) -> Predictions:
        check_is_fitted(self, "model_")
        if self.job is None:
            X = validate_data(self, X, dtype=np.float64, reset=False)
            X = dict(zip(self._names(X), X.T, strict=True))
        return run_on_records(released_session(self.model_, "model_"), "model_", X)


class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """A classifier that a fleet of devices trains together, each on its own records.

    `fit(X, y, groups)` simulates the fleet in this process: the accuracy is that of a real one, ε
    is what a real run costs, and nothing is protected. With `cloud` and `job`, `fit()` submits the
    job to a running cloud and waits: its devices train on records of their own.

    Args:
        epsilon: ε of the whole training per record; None: hardly any noise, and no guarantee.
        delta: δ of the whole training.
        noise: `shared`: devices add parts of one noise under secure sums, with two figures of ε;
            `local`: each device adds all of it.
        features: public map of the records: `identity`, or `random`, ReLU of a random projection.
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
        n_features_in_, feature_names_in_: number and names of the columns seen in `fit`.
        result_: `Result` of the simulation; its folder is removed with it.
        model_: the model, bytes of an ONNX file.
        job_id_: with `cloud`, the job's id.
    """

    def __init__(
        self,
        *,
        epsilon: float | None = 1.0,
        delta: float = 1e-5,
        noise: str = "shared",
        features: str = "identity",
        rounds: int = 10,
        devices: int = 5,
        ranges: Any = None,
        nominal_records: int | None = None,
        job: Any = None,
        cloud: Any = None,
        random_state: Any = None,
    ) -> None:
        self.__dict__.update({key: one for key, one in locals().items() if key in _PARAMETERS})

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the likeliest class of each record (n,)."""
        likeliest = np.argmax(self.predict_proba(X), axis=1)
        return np.asarray(self.classes_[likeliest])

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return probabilities (n, classes), in the order of `classes_`."""
        return self._predicted(X).probabilities

    def _label(self, y: NDArray[Any]) -> tuple[dict[str, Any], list[str]]:
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has only one class, {self.classes_}; two are needed")
        names = [cell_text(one).strip() for one in self.classes_.tolist()]
        if not all(names) or len(set(names)) < len(names):
            names = [str(at) for at in range(len(names))]
        return {"classes": names}, [names[at] for at in numbers]


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """A regressor that a fleet of devices trains together.

    Args:
        target_range: public range (low, high) of y; None: taken from y with a warning.
        epsilon: as all other parameters and attributes, see `FederatedClassifier`.
    """

    _numeric = True

    def __init__(
        self,
        *,
        epsilon: float | None = 1.0,
        delta: float = 1e-5,
        noise: str = "shared",
        features: str = "identity",
        rounds: int = 10,
        devices: int = 5,
        ranges: Any = None,
        target_range: tuple[float, float] | None = None,
        nominal_records: int | None = None,
        job: Any = None,
        cloud: Any = None,
        random_state: Any = None,
    ) -> None:
        self.__dict__.update({key: one for key, one in locals().items() if key in _PARAMETERS})

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the number of each record (n,), within the target's range."""
        found = self._predicted(X).values
        if found is None:
            raise ValueError("the job's label is a class; use FederatedClassifier")
        return found

    def _label(self, y: NDArray[np.float64]) -> tuple[dict[str, Any], list[float]]:
        ends = self.target_range or _wide(y.min(), y.max())
        return {"number": [float(end) for end in ends]}, y.tolist()


_PARAMETERS = FederatedRegressor.__init__.__annotations__.keys() - {"return"}


def _column_ranges(given: Any, names: list[str], X: NDArray[np.float64]) -> list[list[float]]:
    if given is None:
        return [_wide(*ends) for ends in zip(X.min(0), X.max(0), strict=True)]
    if hasattr(given, "keys"):
        if lacking := [name for name in names if name not in given]:
            raise ValueError(f"ranges lacks the column '{lacking[0]}'")
        given = [given[name] for name in names]
    ends = np.asarray(given, np.float64)
    if ends.shape not in ((2,), (len(names), 2)):
        what = f"ranges has shape {ends.shape}, X has {len(names)} columns"
        raise ValueError(f"{what}: pass (low, high), or one for each column")
    return list(np.broadcast_to(ends, (len(names), 2)).tolist())


def _wide(low: float, high: float) -> list[float]:
    """Return a range within the limits of a schema, widened if both ends are one."""
    low, high = (float(np.clip(end, -_LARGEST, _LARGEST)) for end in (low, high))
    room = max(0.5, abs(low) * 1e-3) if low == high else 0.0
    return [low - room, high + room]

"""`FederatedClassifier` and `FederatedRegressor`: checks of scikit-learn, fleets, ranges, jobs."""

import gc
import pickle
import tempfile
import warnings

import numpy as np
import pandas as pd
import pytest
import yaml
from sklearn.base import clone
from sklearn.datasets import load_iris, make_regression
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import check_estimator

import edgeveil
from edgeveil import FederatedClassifier, FederatedRegressor
from edgeveil.errors import ConfigError
from edgeveil_tools.local.children import scratch
from tests.unit.edgeveil_tools.test_in_memory import BY_NAME, SCHEMA, people

# docs/python.md lists them with their reason
EXCEPTIONS = {
    "FederatedClassifier": {},
    "FederatedRegressor": {
        "check_regressors_train": "R² above 0.5 of 200 records is too much for ε = 1",
    },
}
X, Y = load_iris(return_X_y=True)
PUBLIC = {"ranges": (0, 8), "nominal_records": 30, "random_state": 0, "rounds": 3}


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, None])
@pytest.mark.parametrize("kind", [FederatedClassifier, FederatedRegressor])
def test_scikit_learns_own_checks_pass_but_for_the_listed_ones(kind, epsilon):
    expected = EXCEPTIONS[kind.__name__] if epsilon else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(
            kind(epsilon=epsilon, rounds=3, random_state=0),
            expected_failed_checks=expected,
            on_skip=None,
            on_fail=None,
        )
    failed = {row["check_name"] for row in found if row["status"] not in ("passed", "skipped")}
    assert failed == set(expected) and len(expected) <= 10
    assert sum(row["status"] == "passed" for row in found) > 45


def test_few_records_are_dealt_evenly_so_that_no_device_exceeds_its_bound():
    x = np.random.RandomState(0).normal(size=(10, 4))
    found = FederatedRegressor(epsilon=None, rounds=1, random_state=1605).fit(x, x[:, 0])
    assert found.result_.status == "completed"


def test_a_classifier_learns_scores_and_survives_clone_and_pickle():
    found = FederatedClassifier(epsilon=None, **PUBLIC).fit(X, Y)
    assert found.score(X, Y) > 0.8 and found.classes_.tolist() == [0, 1, 2]
    assert found.result_.status == "completed" and found.result_.content["devices"] == 5
    probabilities = found.predict_proba(X[:7])
    assert probabilities.shape == (7, 3) and np.allclose(probabilities.sum(1), 1)
    again = pickle.loads(pickle.dumps(found))
    assert np.array_equal(again.predict_proba(X[:7]), probabilities)
    fresh = clone(found)
    assert fresh.get_params() == found.get_params()
    with pytest.raises(NotFittedError):
        fresh.predict(X)
    assert fresh.fit(X, Y).model_ == found.model_  # the same seed


def test_a_fit_leaves_no_file_open(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch(keep=False, parent=tmp_path), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        FederatedClassifier(epsilon=None, **PUBLIC).fit(X, Y)
        gc.collect()
    assert not [one for one in seen if one.category is ResourceWarning]


def test_the_price_is_that_of_the_parameters_and_the_seed_decides_the_noise():
    found = [
        FederatedClassifier(epsilon=2.0, noise=noise, **{**PUBLIC, "random_state": seed}).fit(X, Y)
        for noise, seed in (("shared", 0), ("local", 0), ("shared", 1))
    ]
    training = [one.result_.privacy["training"] for one in found]
    assert all(1.9 < one["epsilon"] <= 2 and one["status"] == "proven" for one in training)
    assert ["collusion_epsilon" in one for one in training] == [True, False, True]
    assert len({one.model_ for one in found}) == 3


def test_groups_say_who_holds_what_and_work_with_scikit_learns_tools():
    groups = np.array(["a", "b", "c"])[np.arange(len(X)) % 3]
    found = FederatedClassifier(epsilon=8, **PUBLIC).fit(X, Y, groups=groups)
    assert found.result_.content["devices"] == 3
    whole = make_pipeline(MinMaxScaler(), FederatedClassifier(epsilon=None, ranges=(0, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert cross_val_score(whole, X, Y, cv=3).mean() > 0.8


def test_ranges_read_from_the_records_are_warned_of_and_public_ones_are_not():
    with pytest.warns(UserWarning) as seen:
        FederatedRegressor(epsilon=8, rounds=1).fit(X[:, :3], X[:, 3])
    (warned,) = [str(one.message) for one in seen if one.category is UserWarning]
    assert all(name in warned for name in ("ranges", "target_range", "nominal_records"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        by_name = {"a": (4, 8), "b": [2, 5], "c": (1, 7)}
        frame = pd.DataFrame(X[:, :3], columns=list("abc"))
        options = {**PUBLIC, "ranges": by_name, "target_range": (0, 3)}
        found = FederatedRegressor(epsilon=8, **options).fit(frame, X[:, 3])
        FederatedRegressor(epsilon=None, rounds=1).fit(frame, X[:, 3])  # no ε to cover them
    assert found.feature_names_in_.tolist() == ["a", "b", "c"]
    assert found.predict(frame).max() <= 3
    # the model has the names and ranges, so that predict reads frames by name
    path = found.result_.folder / "model.onnx"
    assert (
        edgeveil.predict(path, frame[["c", "a", "b"]]).values.tolist()
        == found.predict(frame).tolist()
    )


def test_a_regressor_fits_numbers():
    x, y = make_regression(200, 5, n_informative=2, noise=5, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert FederatedRegressor(epsilon=None, random_state=0).fit(x, y).score(x, y) > 0.9
        noisy = FederatedRegressor(epsilon=8, features="random", random_state=0).fit(x, y)
    assert noisy.score(x, y) > 0.4


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "names.yaml"
    path.write_text(yaml.safe_dump(BY_NAME))
    return path


def test_a_job_of_ones_own_reads_texts_and_gaps_by_name(job):
    frame = people().dropna(subset="rich")
    records = frame.drop(columns="rich")
    found = FederatedClassifier(job=job, random_state=0).fit(records, frame["rich"])
    assert found.classes_.tolist() == ["no", "yes"] and found.n_features_in_ == 3
    schema = {**SCHEMA, "label": {"column": "rich", "classes": ["yes", "no"]}}
    turned = edgeveil.load_job(job).with_(**{"data.schema": schema})
    other = FederatedClassifier(job=turned, random_state=0).fit(records, frame["rich"].to_numpy())
    assert other.classes_.tolist() == ["yes", "no"]
    assert (other.predict(records) == found.predict(records)).mean() > 0.8
    assert found.score(records, frame["rich"]) > 0.6
    loaded = edgeveil.load_job(job).with_(epsilon=1)
    cheaper = FederatedClassifier(job=loaded, random_state=0).fit(
        records, frame["rich"], groups=np.arange(len(frame)) % 4
    )
    assert cheaper.result_.privacy["training"]["epsilon"] <= 1
    assert cheaper.result_.content["devices"] == 4


QUICKSTART = "configs/jobs/quickstart.yaml"
REFUSED = {
    "records beside a cloud": (
        lambda: FederatedClassifier(cloud=1, job=QUICKSTART).fit(X, Y),
        ValueError,
        "stay on devices",
    ),
    "a cloud alone": (lambda: FederatedClassifier(cloud=1).fit(), ValueError, "pass a job"),
    "no labels": (lambda: FederatedClassifier().fit(X), ValueError, "y to be passed"),
    "one class": (lambda: FederatedClassifier().fit(X, Y * 0), ValueError, "class"),
    "fewer records than devices": (
        lambda: FederatedClassifier(devices=9).fit(X[46:54], Y[46:54]),
        ValueError,
        "9 devices",
    ),
    "groups of another length": (
        lambda: FederatedClassifier().fit(X, Y, groups=[1, 2]),
        ValueError,
        "inconsistent",
    ),
    "ranges of another length": (
        lambda: FederatedClassifier(ranges=[(0, 1)] * 3).fit(X, Y),
        ValueError,
        "4 columns",
    ),
    "a range without a column": (
        lambda: FederatedClassifier(ranges={"x0": (0, 1)}).fit(X, Y),
        ValueError,
        "'x1'",
    ),
    "an empty range": (
        lambda: FederatedClassifier(**{**PUBLIC, "ranges": (1, 1)}).fit(X, Y),
        ConfigError,
        "number",
    ),
    "an impossible ε": (
        lambda: FederatedClassifier(**PUBLIC, epsilon=-1).fit(X, Y),
        ConfigError,
        "privacy.epsilon",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_learned_from_is_named(why):
    call, kind, what = REFUSED[why]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(kind, match=what):
            call()

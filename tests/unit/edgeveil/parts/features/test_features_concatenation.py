import numpy as np
import pytest

from edgeveil.errors import ConfigError
from edgeveil.jobs import Job, compile_job
from edgeveil.parts.features import (
    Concatenation,
    IdentityParameters,
    PcaParameters,
    build_features,
    projection_of,
)
from edgeveil.parts.features.gabor import GaborParameters
from edgeveil.parts.features.random_relu import RandomParameters

ONE = IdentityParameters(input_scale=2.0, weight=3.0)
TWO = RandomParameters(name="random", dimension=5, weight=1.0)
PCA = PcaParameters(name="ldp_pca")
X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


def test_maps_stand_side_by_side_by_the_roots_of_their_weights():
    both = build_features([ONE, TWO])
    found = both(X)
    assert both.output_dim((4,)) == found.shape[1] == 9
    np.testing.assert_allclose(found[:, :4], np.sqrt(0.75) * build_features([ONE])(X), rtol=1e-15)
    np.testing.assert_allclose(found[:, 4:], np.sqrt(0.25) * build_features([TWO])(X), rtol=1e-15)


def test_weights_count_by_their_ratio():
    heavy = [entry.model_copy(update={"weight": 1000 * entry.weight}) for entry in (ONE, TWO)]
    np.testing.assert_allclose(build_features(heavy)(X), build_features([ONE, TWO])(X), rtol=1e-12)


def test_one_map_is_itself_whatever_its_weight():
    alone = build_features([ONE])
    assert not isinstance(alone, Concatenation)
    np.testing.assert_array_equal(
        alone(X), build_features([IdentityParameters(input_scale=2.0)])(X)
    )


def test_a_pca_is_no_map_but_a_projection():
    np.testing.assert_array_equal(build_features([ONE, PCA])(X), build_features([ONE])(X))
    assert projection_of([ONE, PCA]) == PCA
    assert projection_of([ONE, TWO]) is None


def job(*features, shape=(4,)):
    made = Job.model_validate(
        {
            "job": "mix",
            "data": {
                "source": "digits",
                "classes": 3,
                "input_shape": shape,
                "nominal_records": 50,
            },
            "features": features,
            "train": {"method": "fm", "rounds": 1},
            "privacy": {"epsilon": 8.0},
        }
    )
    return compile_job(made).job


def test_a_job_takes_several_maps_and_a_pca_behind_them():
    found = job(ONE, TWO, PCA)
    assert Job.from_canonical(found.canonical()) == found
    assert [entry.name for entry in found.features] == ["identity", "random", "ldp_pca"]


@pytest.mark.parametrize("order", [(PCA,), (PCA, ONE), (ONE, PCA, TWO), (ONE, PCA, PCA)])
def test_a_pca_elsewhere_is_refused_when_the_job_is_made(order):
    with pytest.raises(ConfigError, match="make it the last of the features"):
        job(*order)


def test_a_map_that_does_not_take_the_records_is_refused_when_the_job_is_made():
    with pytest.raises(ConfigError, match="gabor takes one image"):
        job(ONE, GaborParameters(name="gabor"))

"""Features for pictures: what they are made of, what they tell apart, and from which records."""

import numpy as np
import pytest

from edgeveil.errors import DataError
from edgeveil.parts.features import build_features
from edgeveil.parts.features.pictures import (
    DRAWN,
    STEPS,
    Pictures,
    PicturesParameters,
    axes_of,
    pooled,
    procedural_pictures,
    roots,
)

PIXELS = [255, 0, 111, 164, 211, 142, 56, 209, 22, 214, 0, 231]


def phi(**changes):
    return build_features([PicturesParameters(name="pictures", **changes)])


def strokes():
    x = np.zeros((1, 8, 8), np.float32)
    x[0, 2:6, 3], x[0, 5, 4:7] = 16, 9
    return x


def test_golden_features_of_two_strokes():
    found = phi(input_scale=16.0)(strokes())[0]
    golden = {1: 0.2767, 2: -0.3329, 6: -0.287, 12: 0.242}
    # Axes are drawn by sines, which machines round differently.
    np.testing.assert_allclose([found[k] for k in golden], list(golden.values()), atol=2e-3)


def test_golden_pictures():
    drawn = procedural_pictures(40, (1, 8, 8))
    assert drawn[:12, 0, 3, 3].tolist() == pytest.approx(PIXELS, abs=1)
    np.testing.assert_array_equal(drawn, procedural_pictures(40, (1, 8, 8)))


def test_an_axis_has_the_variance_that_narrowing_leaves():
    raster = Pictures(PicturesParameters(name="pictures")).raster((8, 8))
    common = axes_of(raster, 60)
    drawn = procedural_pictures(DRAWN, (1, 8, 8))
    steps = roots(pooled(drawn, raster), common.units) - common.middle
    values = steps @ common.axes
    spread = values.std(axis=0)
    assert np.all(np.diff(spread) < 0.02 * spread[0])  # widest first
    wide = np.linalg.svd(steps / STEPS, compute_uv=False)[:60] / np.sqrt(DRAWN)
    floor = 0.01 * np.square(wide).mean()
    narrow = wide * (np.square(wide) + floor) ** -0.25
    np.testing.assert_allclose(spread / spread[0], narrow / narrow[0], rtol=0.01)
    cosines = np.corrcoef(values.T) - np.eye(60)
    assert np.abs(cosines).max() < 0.02


def test_a_flat_record_is_the_picture_that_it_says():
    x = procedural_pictures(4, (3, 8, 8))
    shaped = phi(dimension=40)(x)
    np.testing.assert_array_equal(phi(dimension=40, image=(8, 8))(x.reshape(4, -1)), shaped)
    grey = strokes()
    flat = phi(dimension=40, image=(8, 8))(grey.reshape(1, -1))
    np.testing.assert_array_equal(flat, phi(dimension=40)(grey))


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((64,), {}),
        ((2, 8, 8), {}),
        ((3, 2, 8), {}),
        ((64,), {"image": (7, 7)}),
        ((128,), {"image": (8, 8)}),
        ((1, 1, 8, 8), {}),
    ],
)
def test_what_is_no_picture_is_refused(shape, options):
    with pytest.raises(DataError, match="pictures takes one picture a record") as caught:
        phi(**options).output_dim(shape)
    assert "image: [rows, columns]" in str(caught.value)


def test_more_features_than_there_are_is_refused():
    with pytest.raises(DataError, match="have 272 features, not 273"):
        phi(dimension=273).output_dim((8, 8))

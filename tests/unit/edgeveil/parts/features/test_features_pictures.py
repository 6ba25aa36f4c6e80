"""Gabor and picture features: golden values, exact sums, and the records they take."""

import numpy as np
import pytest

from edgeveil.errors import DataError
from edgeveil.parts.features import build_features
from edgeveil.parts.features.pictures import (
    LEVELS,
    PicturesParameters,
    filters,
    modulus,
    procedural_pictures,
)

PIXELS = [255, 0, 111, 164, 211, 142, 56, 209, 22, 214, 0, 231]
SMALL = {"name": "gabor", "pool": 4, "input_scale": 16.0}


def phi(name="pictures", **changes):
    return build_features([PicturesParameters(name=name, **changes)])


def strokes():
    x = np.zeros((1, 8, 8), np.float32)
    x[0, 2:6, 3], x[0, 5, 4:7] = 16, 9
    return x


GABOR = {0: -0.0596705, 5: 0.0663417, 17: 0.0240043, 40: 0.0127805, 100: -0.0538013}


@pytest.mark.parametrize(
    ("given", "golden", "atol"),
    [
        (SMALL, GABOR, 1e-7),
        # Axes are drawn by sines, which machines round differently.
        ({"input_scale": 16.0}, {1: 0.2767, 2: -0.3329, 6: -0.287, 12: 0.242}, 2e-3),
    ],
)
def test_golden_features_of_two_strokes(given, golden, atol):
    found = phi(**given)(strokes())[0]
    np.testing.assert_allclose([found[k] for k in golden], list(golden.values()), atol=atol)
    drawn = procedural_pictures(40, (1, 8, 8))
    assert drawn[:12, 0, 3, 3].tolist() == pytest.approx(PIXELS, abs=1)


@pytest.mark.parametrize("orientations", [1, 8, 32])
def test_no_sum_leaves_the_integers_that_float32_holds(orientations):
    for bank in filters(orientations, 3):
        size = np.hypot(bank.even, bank.odd).sum(axis=(1, 2)).max() * LEVELS
        assert size < 2**24
        assert np.abs(bank.even.sum(axis=(1, 2))).max() <= bank.even[0].size / 2  # no mean


def test_the_largest_sums_are_exact_too():
    """Images that are bright where a filter is positive, at the full number of levels."""
    for bank in filters(8, 3):
        r = bank.radius
        for k, part in enumerate(bank.even):
            image = np.where(part > 0, np.float32(LEVELS), np.float32(0))
            pair = (bank.even[k], bank.odd[k])
            exact = [int((image.astype(np.int64) * f.astype(np.int64)).sum()) for f in pair]
            squares = [np.float32(v) * np.float32(v) for v in exact]
            assert exact[0] > 1_500_000
            assert modulus(image[None], bank)[0, k, r, r] == np.sqrt(squares[0] + squares[1])


def test_pooling_windows_overlap_by_half_and_lose_no_pixel():
    gabor = phi("gabor")
    shapes = [(28, 28), (1, 28, 28), (30, 28), (1, 1)]
    assert [gabor.output_dim(one) for one in shapes] == [17 * 49, 17 * 49, 17 * 8 * 7, 17]
    for side in (1, 3, 5, 29):
        x = np.zeros((1, side, side), np.float32)
        x[0, -1, -1] = 255
        assert gabor(x).any() or side < 5


def test_a_colour_image_is_three_grey_ones():
    x = np.random.default_rng(1).integers(0, 17, (70, 3, 8, 8)).astype(np.float32)
    gabor = phi(**SMALL)
    grey, third = [gabor(x[:, colour]) for colour in range(3)], gabor.output_dim((8, 8))
    np.testing.assert_allclose(gabor(x), np.concatenate(grey, axis=1) / np.sqrt(3), atol=0.02)
    x[:, 1:] = 0
    np.testing.assert_allclose(gabor(x)[:, :third], grey[0], atol=1e-12)
    assert not gabor(x)[:, third:].any()


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
        ((8, 8), {"dimension": 273}),  # more features than there are
    ],
)
def test_what_is_no_picture_is_refused(shape, options):
    with pytest.raises(DataError):
        phi(**options).output_dim(shape)

import numpy as np
import pytest

from edgeveil.parts.features import build_features
from edgeveil.parts.features.pictures import LEVELS, PicturesParameters, filters, modulus

SMALL = PicturesParameters(name="gabor", pool=4, input_scale=16.0)


def strokes():
    x = np.zeros((1, 8, 8), np.float32)
    x[0, 2:6, 3], x[0, 5, 4:7] = 16, 9
    return x


def test_golden_features_of_two_strokes():
    found = build_features([SMALL])(strokes())[0]
    golden = {
        0: -0.059670476331,
        5: 0.066341709709,
        17: 0.024004321388,
        40: 0.012780520842,
        100: -0.053801276902,
        271: -0.050393930208,
    }
    np.testing.assert_allclose([found[k] for k in golden], list(golden.values()), atol=1e-11)


@pytest.mark.parametrize("orientations", [1, 8, 32])
def test_no_sum_leaves_the_integers_that_float32_holds(orientations):
    for bank in filters(orientations, 3):
        size = np.hypot(bank.even, bank.odd).sum(axis=(1, 2)).max() * LEVELS
        assert size < 2**24
        assert np.abs(bank.even.sum(axis=(1, 2))).max() <= bank.even[0].size / 2  # no mean


def test_the_largest_sums_are_exact_too():
    """Images that are bright where a filter is positive, at the full number of levels."""
    for bank in filters(8, 3):
        r, side = bank.radius, 2 * bank.radius + 1
        for k, part in enumerate(bank.even):
            image = np.where(part > 0, np.float32(LEVELS), np.float32(0))[None]
            exact = [
                int((image[0].astype(np.int64) * f[k].astype(np.int64)).sum())
                for f in (bank.even, bank.odd)
            ]
            squares = [np.float32(v) * np.float32(v) for v in exact]
            assert exact[0] > 1_500_000
            assert modulus(image, bank)[0, k, r, r] == np.sqrt(squares[0] + squares[1])
            assert image.shape == (1, side, side)


def test_pooling_windows_overlap_by_half_and_lose_no_pixel():
    phi = build_features([PicturesParameters(name="gabor")])
    assert phi.output_dim((28, 28)) == phi.output_dim((1, 28, 28)) == 17 * 49
    assert phi.output_dim((30, 28)) == 17 * 8 * 7
    assert phi.output_dim((1, 1)) == 17
    for side in (1, 3, 5, 29):
        x = np.zeros((1, side, side), np.float32)
        x[0, -1, -1] = 255
        assert phi(x).any() or side < 5


def test_a_colour_image_is_three_grey_ones():
    rng = np.random.default_rng(1)
    x = rng.integers(0, 17, (70, 3, 8, 8)).astype(np.float32)
    phi = build_features([SMALL])
    grey = [phi(x[:, colour]) for colour in range(3)]
    assert phi.output_dim((3, 8, 8)) == 3 * phi.output_dim((8, 8))
    np.testing.assert_allclose(phi(x), np.concatenate(grey, axis=1) / np.sqrt(3), atol=0.02)
    np.testing.assert_array_equal(phi(x[33:]), phi(x)[33:])
    one = x.copy()
    one[:, 1:] = 0
    third = phi.output_dim((8, 8))
    np.testing.assert_allclose(phi(one)[:, :third], grey[0], atol=1e-12)
    assert not phi(one)[:, third:].any()

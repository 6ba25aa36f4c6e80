"""Feature maps: values, random projections, Gabor and pictures, side by side."""

import hashlib

import numpy as np
import pytest
from pydantic import ValidationError

from edgeveil.errors import ConfigError, DataError
from edgeveil.jobs import Job, compile_job
from edgeveil.parts.features import IdentityParameters, PcaParameters, build_features, projection_of
from edgeveil.parts.features.patches import FLAT, GRID, SIDE, patch_sums, windows
from edgeveil.parts.features.pictures import (
    LEVELS,
    PicturesParameters,
    _Raster,
    filters,
    patches_of,
    procedural_pictures,
)
from edgeveil.parts.features.values import projection


def test_each_value_is_brought_from_its_own_range_and_clipped():
    phi = build_features([IdentityParameters(ranges=((0.0, 10.0), (-1.0, 1.0)))])
    found = phi(np.array([[10, 0], [5, 1], [99, -7], [np.nan, 0]], np.float32))
    half = 0.5**0.5
    assert np.allclose(found, [[1, 0], [0, 1], [half, -half], [0, 0]])
    with pytest.raises(DataError):
        phi.output_dim((3,))
    for wrong in ({"ranges": ((1.0, 0.0),)}, {"ranges": ((0.0, 1.0),), "input_scale": 3.0}):
        with pytest.raises(ValidationError):
            IdentityParameters(**wrong)


def test_bounded_keeps_how_large_a_record_is():
    features = build_features([IdentityParameters(norm="bounded", input_scale=2.0)])
    x = np.array([[1, 1, 1, 1], [2, 2, 2, 2], [9, -9, 0, 0], [np.nan, 0, 0, 0]], np.float32)
    found = features(x)
    wanted = [[0.25] * 4, [0.5] * 4, [0.5, -0.5, 0, 0], [0] * 4]
    np.testing.assert_array_equal(found, wanted)
    assert (np.linalg.norm(found, axis=1) <= 1).all()
    assert "norm" not in IdentityParameters().model_dump()  # earlier jobs keep their bytes


ONE = IdentityParameters(input_scale=2.0, weight=3.0)
TWO = IdentityParameters(name="random", dimension=5, weight=1.0)
PCA = PcaParameters(name="ldp_pca")
X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


def test_maps_stand_side_by_side_by_the_roots_of_their_weights():
    both = build_features([ONE, TWO])
    found = both(X)
    assert both.output_dim((4,)) == found.shape[1] == 9
    np.testing.assert_allclose(found[:, :4], np.sqrt(0.75) * build_features([ONE])(X), rtol=1e-15)
    np.testing.assert_allclose(found[:, 4:], np.sqrt(0.25) * build_features([TWO])(X), rtol=1e-15)


@pytest.mark.parametrize("order", [(PCA,), (PCA, ONE), (ONE, PCA, TWO), (ONE, PCA, PCA)])
def test_a_pca_is_no_map_but_a_projection_and_refused_elsewhere(order):
    np.testing.assert_array_equal(build_features([ONE, PCA])(X), build_features([ONE])(X))
    assert (projection_of([ONE, PCA]), projection_of([ONE, TWO])) == (PCA, None)
    data = {"source": "digits", "classes": 3, "input_shape": (4,), "nominal_records": 50}
    job = {"job": "mix", "data": data, "features": order, "privacy": {"epsilon": 8.0}}
    with pytest.raises(ConfigError, match="put it last"):
        compile_job(Job.model_validate({**job, "train": {"method": "fm", "rounds": 1}}))


def test_the_projection_is_the_same_everywhere():
    assert projection(7, 3, 4).tolist() == [[-1, 4, -3, 2], [3, 2, 4, 1], [-3, -5, -3, 4]]
    bits = hashlib.shake_256(b"edgeveil/v1/random-features/7/3/4").digest(8)
    assert sum(byte.bit_count() for byte in bits) - 32 == -1


def test_a_matrix_that_would_not_fit_is_refused():
    phi = build_features([IdentityParameters(name="random", dimension=1 << 14)])
    with pytest.raises(DataError, match="too large"):
        phi.output_dim((1025, 1))


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


def test_a_colour_image_is_three_grey_ones():
    x = np.random.default_rng(1).integers(0, 17, (70, 3, 8, 8)).astype(np.float32)
    gabor = phi(**SMALL)
    grey, third = [gabor(x[:, colour]) for colour in range(3)], gabor.output_dim((8, 8))
    np.testing.assert_allclose(gabor(x), np.concatenate(grey, axis=1) / np.sqrt(3), atol=0.02)
    x[:, 1:] = 0
    np.testing.assert_allclose(gabor(x)[:, :third], grey[0], atol=1e-12)
    assert not gabor(x)[:, third:].any()


@pytest.mark.parametrize("shape", [(28, 28), (3, 32, 32), (12, 16)])
def test_a_picture_and_its_mirror_image_have_the_same_features_if_asked(shape):
    x = procedural_pictures(5, shape if len(shape) == 3 else (1, *shape)).reshape(5, *shape)
    turned = np.ascontiguousarray(x[..., ::-1])
    found = phi(dimension=60, mirror=True, patches=16 if shape == (12, 16) else None)
    np.testing.assert_array_equal(found(x), found(turned))
    assert np.linalg.norm(found(x), axis=1) == pytest.approx(1)
    plain = phi(dimension=60)
    assert np.abs(plain(x) - plain(turned)).max() > 0.05


@pytest.mark.parametrize(
    "raster", [_Raster(1, 12, 13, 4, 8, 2, 10), _Raster(3, 9, 10, 4, 8, 2, 10)]
)
def test_sums_of_likenesses_by_hand(raster):
    found, levels = patches_of(raster), procedural_pictures(4, raster.shape, series=3)
    sums, taps = patch_sums(levels, found), found.taps.astype(np.int64)
    assert np.array_equal(found.taps, taps)
    assert 255 * np.abs(taps).sum(axis=0).max() < 2**24  # so float32 holds every sum exactly
    picture, likenesses = levels[1].astype(np.int64), []
    for i in range(raster.rows - SIDE + 1):
        for j in range(raster.columns - SIDE + 1):
            patch = picture[:, i : i + SIDE, j : j + SIDE].ravel()
            over = (patch @ taps) / np.sqrt(patch.var() + FLAT) - found.threshold
            likenesses.append(np.maximum(over, 0))
    places = np.array(likenesses).reshape(raster.rows - SIDE + 1, raster.columns - SIDE + 1, 10)
    (tall, down), (wide, across) = (windows(n) for n in places.shape[:2])
    for i, j in np.ndindex(GRID, GRID):
        wanted = places[i * down : i * down + tall, j * across : j * across + wide].sum(axis=(0, 1))
        np.testing.assert_allclose(sums[1, :, GRID * i + j], wanted, rtol=1e-4, atol=tall * wide)
    assert (sums.sum(axis=(0, 2)) > 0).all()  # no entry of the dictionary is idle


@pytest.mark.parametrize("places", range(3, 60))
def test_windows_of_patches_lie_symmetrically_within(places):
    size, stride = windows(places)
    assert size + (GRID - 1) * stride == places


def test_half_of_a_dictionary_mirrors_the_other_and_brightness_has_no_part():
    taps = patches_of(_Raster(3, 12, 12, 4, 8, 2, 20)).taps
    first, second = np.split(taps.T.reshape(20, 3, SIDE, SIDE), 2)
    np.testing.assert_array_equal(first[..., ::-1], second)
    assert np.abs(taps.sum(axis=0)).max() <= len(taps) / 2  # each tap was rounded by itself


def test_a_flat_record_is_the_picture_that_it_says():
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
        ((8, 8), {"dimension": 141, "mirror": True}),
        ((8, 8), {"patches": 10}),
    ],
)
def test_what_is_no_picture_is_refused(shape, options):
    with pytest.raises(DataError):
        phi(**options).output_dim(shape)

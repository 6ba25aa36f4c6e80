"""Whitened patches: what they are made of, what they tell apart, and from which records."""

from __future__ import annotations

import numpy as np
import pytest

from edgeveil.errors import DataError
from edgeveil.parts.features import build_features
from edgeveil.parts.features.pictures import (
    ENTRIES,
    TAP_STEPS,
    Dictionary,
    PatchesParameters,
    Raster,
    dictionary_of,
    procedural_pictures,
    quarter_sums,
    quarters,
    side_of,
)

GREY, COLOUR, SMALL = Raster(1, 8, 8), Raster(3, 10, 9), Raster(3, 5, 4)
SIDE = 6


def phi(**changes):
    return build_features([PatchesParameters(name="patches", **changes)])


def strokes():
    x = np.zeros((1, 8, 8), np.float32)
    x[0, 2:6, 3], x[0, 5, 4:7] = 16, 9
    return x


def test_golden_features_of_two_strokes():
    found = phi(input_scale=16.0)(strokes())[0]
    golden = {0: 0.2503, 6: 0.2080, 9: 0.2037, 55: -0.1852}
    # Axes are drawn by sines, which machines round differently.
    np.testing.assert_allclose([found[k] for k in golden], [*golden.values()], atol=5e-3)


@pytest.mark.parametrize("raster", [GREY, COLOUR])
def test_taps_are_whole_and_blind_to_brightness(raster):
    made = dictionary_of(raster)
    assert made.taps.shape == (raster.colours * SIDE * SIDE, ENTRIES)
    for array in (made.taps, made.threshold):
        assert np.array_equal(array, np.rint(array))
    assert np.abs(made.taps).max(axis=0).tolist() == [TAP_STEPS] * ENTRIES
    sums = np.abs(made.taps.sum(axis=0))
    assert (sums <= raster.colours * SIDE * SIDE / 2).all()  # each tap was rounded by itself
    assert (made.threshold > 0).all()
    assert len({column.tobytes() for column in made.taps.T}) == ENTRIES


def test_entries_of_the_dictionary_are_whitened():
    """Compared with drawn patches they are about as large, and each of them is found about half
    of the time in either sign."""
    made, drawn = dictionary_of(GREY), procedural_pictures(300, (1, 8, 8), series=2)
    sums = quarter_sums(drawn, made)
    met = (sums > 0).any(axis=2).mean(axis=0)
    assert met.min() > 0.2 and met.max() < 0.9


@pytest.mark.parametrize("raster", [GREY, COLOUR])
def test_sums_by_hand(raster):
    planes = procedural_pictures(2, (raster.colours, raster.rows, raster.columns))
    made = dictionary_of(raster)
    found = quarter_sums(planes, made)
    taps = made.taps.astype(np.int64).T.reshape(ENTRIES, raster.colours, SIDE, SIDE)
    for at, (down, across) in enumerate(quarters(raster)):
        for sign, first in ((1, 0), (-1, ENTRIES)):
            entry = 7
            by_hand = 0
            for i in range(down.start, down.stop):
                for j in range(across.start, across.stop):
                    patch = planes[1, :, i : i + SIDE, j : j + SIDE].astype(np.int64)
                    likeness = int((patch * taps[entry]).sum())
                    by_hand += max(0, sign * likeness - int(made.threshold[entry]))
            assert found[1, first + entry, at] == by_hand


def test_every_place_of_a_patch_is_in_one_quarter():
    for raster in (GREY, COLOUR, SMALL, Raster(1, 28, 28)):
        side = side_of(raster)
        count = np.zeros((raster.rows - side + 1, raster.columns - side + 1), int)
        for down, across in quarters(raster):
            count[down, across] += 1
        assert (count == 1).all()


def test_no_sum_leaves_what_float32_holds_exactly():
    values = 3 * SIDE * SIDE
    taps = np.full((values, ENTRIES), TAP_STEPS, np.float32)
    planes = np.full((1, 3, 8, 8), 255, np.float32)
    found = quarter_sums(planes, Dictionary(taps, np.ones(ENTRIES, np.float32)))
    assert values * TAP_STEPS * 255 < 2**24
    sizes = [(d.stop - d.start) * (a.stop - a.start) for d, a in quarters(Raster(3, 8, 8))]
    assert found[0, 0].tolist() == [n * (values * TAP_STEPS * 255 - 1) for n in sizes]
    assert not found[0, ENTRIES:].any()


def test_colours_are_told_apart_at_one_brightness():
    red, blue = np.zeros((2, 1, 3, 10, 9), np.float32)
    red[:, 0, 2:8, 2:6], blue[:, 2, 2:8, 2:6] = 200, 200
    map_ = phi()
    assert (map_(red) @ map_(blue).T).item() < 0.95
    assert (map_(red) @ map_(red * np.float32(1.05)).T).item() > 0.98


def test_a_flat_record_is_the_picture_that_it_says():
    x = procedural_pictures(3, (3, 8, 8))
    shaped = phi(dimension=40)(x)
    np.testing.assert_array_equal(phi(dimension=40, image=(8, 8))(x.reshape(3, -1)), shaped)


@pytest.mark.parametrize(("shape", "options"), [((64,), {}), ((2, 8, 8), {}), ((3, 9), {})])
def test_what_is_no_picture_is_refused(shape, options):
    with pytest.raises(DataError, match=r"patches takes one picture a record, .* at least 4 × 4"):
        phi(**options).output_dim(shape)


def test_there_is_a_default_and_a_most():
    assert phi().output_dim((28, 28)) == 400
    assert phi().output_dim((3, 32, 32)) == 600
    with pytest.raises(DataError, match=r"patches of shape \[8, 8\] have 1024 features, not 1025"):
        phi(dimension=1025).output_dim((8, 8))

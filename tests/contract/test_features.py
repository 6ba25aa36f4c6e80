"""Laws that every feature map of the table keeps, alone and side by side."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgeveil.parts.features import FEATURES, IdentityParameters, OnnxParameters, build_features
from edgeveil.parts.features.onnx import sha256_hex
from edgeveil.parts.features.pictures import PicturesParameters
from edgeveil.parts.features.spectra import SpectraParameters
from edgeveil.parts.laws import graph_fault
from edgeveil.subnormals import flushed
from tests.kits.backbone_files import centring_backbone, small_backbone

SHAPE = (8, 8)
BACKBONE = small_backbone()
FOUND = {sha256_hex(BACKBONE): BACKBONE}
ENTRIES = {
    "identity": IdentityParameters(input_scale=16.0, shift=-0.3),
    "random": IdentityParameters(name="random", dimension=40, input_scale=16.0, shift=-0.3),
    "gabor": PicturesParameters(name="gabor", pool=4, input_scale=16.0, weight=2.0),
    "pictures": PicturesParameters(name="pictures", dimension=60, input_scale=16.0),
    "spectra": SpectraParameters(input_scale=16.0),
    "onnx": OnnxParameters(
        name="onnx",
        sha256=sha256_hex(BACKBONE),
        input_form=(1, 8, 8),
        output_dim=6,
        input_scale=16.0,
        weight=0.5,
    ),
}
MIXES = {name: [entry] for name, entry in ENTRIES.items()}
MIXES |= {
    "all": list(ENTRIES.values()),
    "gabor in colour": MIXES["gabor"],
    "pictures in colour": MIXES["pictures"],
    "mirrored in colour": [ENTRIES["pictures"].model_copy(update={"mirror": True})],
    "patches in colour": [ENTRIES["pictures"].model_copy(update={"mirror": True, "patches": 24})],
    "identity with ranges": [IdentityParameters(ranges=tuple((0.0, 4.0 + k) for k in range(64)))],
}
SHAPES = {name: (3, 8, 8) if "colour" in name else SHAPE for name in MIXES}
SHAPES["patches in colour"] = (3, 10, 11)
ANY = st.floats(allow_nan=True, allow_infinity=True, width=32)
HUGE = np.float32(3e38)


@pytest.fixture(params=list(MIXES), scope="module")
def name(request):
    return request.param


@pytest.fixture(scope="module")
def phi(name):
    return build_features(MIXES[name], FOUND)


@pytest.fixture(scope="module")
def images(name):
    def made(n, seed=0):
        return np.random.default_rng(seed).integers(0, 17, (n, *SHAPES[name])).astype(np.float32)

    return made


def test_every_map_of_the_table_is_here():
    assert set(ENTRIES) == {name for name in FEATURES if FEATURES[name].build is not None}
    assert all(type(ENTRIES[name]) is FEATURES[name].parameters for name in ENTRIES)


def test_the_dimension_needs_neither_records_nor_backbones(phi, name, images):
    shape = SHAPES[name]
    assert phi(images(3)).shape == (3, build_features(MIXES[name]).output_dim(shape))
    assert phi(np.zeros((0, *shape), np.float32)).shape == (0, phi.output_dim(shape))
    assert phi(images(1)).dtype == np.float64


@given(data=st.data(), fill=st.sampled_from([None, HUGE, -HUGE, np.float32(1e-45)]))
@settings(deadline=None, max_examples=60)
def test_any_record_gives_finite_features_of_norm_at_most_one(phi, name, data, fill):
    shape = (data.draw(st.integers(0, 3)), *SHAPES[name])
    found = phi(
        data.draw(hnp.arrays(np.float32, shape, elements=ANY if fill is None else st.just(fill)))
    )
    assert np.isfinite(found).all()
    assert (np.linalg.norm(found, axis=1) <= 1 + 1e-12).all()


def test_real_records_use_the_whole_norm(phi, images):
    np.testing.assert_allclose(np.linalg.norm(phi(images(20)), axis=1), 1, rtol=1e-9)


@pytest.mark.parametrize("entry", list(ENTRIES))
@pytest.mark.parametrize("side", [5, 6, 7, 9])
def test_where_a_record_lies_in_memory_changes_no_bit(entry, side):
    """Records whose size is no multiple of a register's start anywhere in it, by their number."""
    values = side * side
    graph = centring_backbone(values)
    changes = {"input_scale": 16.0}
    if entry == "onnx":
        changes |= {"sha256": sha256_hex(graph), "input_form": (values,), "output_dim": values}
    one = build_features([ENTRIES[entry].model_copy(update=changes)], {sha256_hex(graph): graph})
    x = np.random.default_rng(side).random((60, side, side), np.float32) * 16
    together = one(x)
    for first in range(1, 18):
        np.testing.assert_array_equal(one(x[first:]), together[first:])
    for removed in range(0, 60, 7):
        rest = np.delete(x, removed, axis=0)
        np.testing.assert_array_equal(one(rest), np.delete(together, removed, axis=0))


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, HUGE, 1e-45], ids=str)
def test_neighbours_change_no_bit(phi, images, odd):
    x = images(70)
    alone = phi(x[1:2])[0]
    x[0], x[2, ..., 0], x[69] = odd, odd, odd
    before = x.copy()
    found = phi(x)
    np.testing.assert_array_equal(found[1], alone)
    np.testing.assert_array_equal(x, before)  # the records are not written to
    if not np.isfinite(odd):
        assert not found[[0, 2, 69]].any()


def test_the_graph_says_the_same_and_a_device_runs_it(phi, images):
    assert graph_fault(phi, images(37), atol=1e-4) == ""


def test_features_have_the_same_bits_where_subnormal_numbers_are_flushed():
    phi = build_features([IdentityParameters()])
    records = np.random.default_rng(0).integers(0, 17, (12, *SHAPE)).astype(np.float32)
    records[:4] *= np.float32(1e-39)
    records[4:8] *= np.float32(1e-25)
    here = phi(records)
    with flushed():
        assert phi(records).tobytes() == here.tobytes()

"""Laws that every training method of the table keeps."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from edgeveil import subnormals
from edgeveil.data.records import Records
from edgeveil.errors import PrivacyError, ProtocolError
from edgeveil.parts.features import PcaParameters
from edgeveil.parts.method_context import staying
from edgeveil.parts.methods import METHODS, trains_model
from edgeveil.parts.models import build_network
from edgeveil.parts.models.mlp import NetworkParameters
from edgeveil.privacy.derived import DerivedRandom
from edgeveil.privacy.events import event_from_dict, to_dict
from edgeveil.privacy.sampler import SeededRandom
from edgeveil.subnormals import subnormals_flushed
from tests.kits.method_context import context as made_context

ROUNDS = 3
CONTEXT = made_context(max_participations=ROUNDS, input_shape=(2, 3))


def some_records(n=23):
    rng = np.random.default_rng(n)
    return Records(rng.normal(size=(n, 2, 3)).astype(np.float32), rng.integers(0, 3, n))


EMPTY = Records(np.zeros((0, 2, 3), np.float32), np.zeros(0, np.int64))


class Unreadable:
    def __getattr__(self, name):
        raise AssertionError(f"read records.{name}")


def pca(name, noise="gaussian"):
    return PcaParameters(name=name, keep=0.5, noise=noise)


OPTIONS = {
    "custom": {"function": "tests.kits.own_training:fit"},
    "statistics": {"columns": [{"name": name, "number": [-2, 2]} for name in "abc"]},
}
VARIANTS = {
    **{name: (name, OPTIONS.get(name, {}), None) for name in METHODS},
    "fm, pure noise": ("fm", {"noise": "laplace"}, None),
    "fm, bare": ("fm", {"centre": False, "quadratic": "never"}, None),
    "fm, ldp_fpca": ("fm", {}, pca("ldp_fpca")),
    "fm, ldp_fpca, wishart": ("fm", {"centre": False}, pca("ldp_fpca", "wishart")),
    "fm, ldp_pca": ("fm", {}, pca("ldp_pca")),
    "fm, local_pca": ("fm", {"noise": "laplace"}, pca("local_pca")),
}


READING = [name for name in VARIANTS if name != "noise_only"]
UNPROTECTED = {
    "sgd",
    "fedprox",
    "scaffold",
    "fednova",
    "fedbn",
    "fedrep",
    "ditto",
    "custom",
}  # they add no noise, and say so
NOISED = [name for name in VARIANTS if name not in UNPROTECTED]


@pytest.fixture
def halves(request):
    return made(request.param)


def of(names):
    return pytest.mark.parametrize("halves", list(names), indirect=True)


reading, noised = of(READING), of(NOISED)


def made(variant):
    name, options, projection = VARIANTS[variant]
    method = METHODS[name]
    context = replace(CONTEXT, projection=projection, anomaly=method.anomaly)
    if trains_model(name):
        model = build_network(NetworkParameters(hidden=(4,)), CONTEXT.input_shape, CONTEXT.classes)
        context = replace(context, network=model)
    parameters = method.made(rounds=ROUNDS, **options)
    if trains_model(name):
        context = replace(context, local=staying(parameters, model))
    return method.device(parameters, context), method.cloud(parameters, context)


def play(halves, records, seed=0):
    """Yields (round, package, answer, state after it) over a whole job of one device."""
    device, cloud = halves
    random, state = SeededRandom(seed), cloud.initial_state()
    own = {}
    for round in cloud.plan():
        package = {**cloud.package(state, round), **own}
        answer = device.answer(round, package, records, random)
        if round.phase == "covariance":
            own = dict(answer.segments)  # as the device's ledger holds it
        mean = {name: value.astype(np.float64) for name, value in answer.segments.items()}
        state = cloud.absorb(state, round, mean, 1)
        yield round, package, answer, state


@pytest.mark.parametrize("name", [name for name in METHODS if trains_model(name)])
@pytest.mark.parametrize("broadcast", [1.0, 3e38])
def test_numbers_past_all_bounds_stop_no_device_and_upload_no_infinity(name, broadcast):
    """Neither a record nor a cloud's weights decide whether a device answers."""
    device, cloud = made(name)
    round = cloud.plan()[0]
    first = cloud.package(cloud.initial_state(), round)
    weights = {key: np.full_like(value, broadcast) for key, value in first.items()}
    records = some_records(8)
    for row, value in enumerate((3e38, -3e38, 1e-45, 1e20)):
        records.x[row] = value
    found = device.answer(round, weights, records, SeededRandom(1), "cpu").segments
    assert set(found) == {spec.name for spec in cloud.segments(round)}
    assert all(np.isfinite(value).all() for value in found.values())


@of(VARIANTS)
def test_the_price_is_known_before_and_the_state_keeps_its_names_shapes_and_types(halves):
    device, cloud = halves
    forms = lambda state: {n: (v.shape, v.dtype) for n, v in state.items()}  # noqa: E731
    first = cloud.initial_state()
    before = {name: value.copy() for name, value in first.items()}
    for round, _, answer, state in play(halves, some_records()):
        assert device.price(round) == answer.events
        assert all(event_from_dict(to_dict(event)) == event for event in answer.events)
        assert forms(state) == forms(first)
    assert all(np.array_equal(first[name], before[name]) for name in before)


def test_what_has_no_price_reads_no_record():
    for _, _, answer, _ in play(made("noise_only"), Unreadable()):
        assert answer.events == ()


@reading
def test_no_record_is_read_before_the_answer_or_where_subnormals_cannot_be_flushed(
    halves, monkeypatch
):
    device, cloud = halves
    (first, *_), package = cloud.plan(), cloud.package(cloud.initial_state(), cloud.plan()[0])
    for round in cloud.plan():
        device.price(round)
    with pytest.raises(AssertionError, match="read records"):
        device.answer(first, package, Unreadable(), SeededRandom(0))
    monkeypatch.setattr(subnormals, "_SWITCHES", {})
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(PrivacyError, match="subnormal numbers"):
        device.answer(first, package, Unreadable(), SeededRandom(0))


class Watched(Records):
    def __getattribute__(self, name):
        if name in "xy":
            FLUSHED.append(subnormals_flushed())
        return super().__getattribute__(name)


FLUSHED = []


@reading
def test_subnormal_numbers_are_flushed_while_records_are_read(halves):
    FLUSHED.clear()
    records = some_records()
    list(play(halves, Watched(records.x, records.y)))
    assert FLUSHED and all(FLUSHED)


@of(VARIANTS)
def test_a_package_that_does_not_fit_is_refused_before_a_record_is_read(halves):
    device, cloud = halves
    for round in cloud.plan():
        package = cloud.package(cloud.initial_state(), round)
        for name, value in package.items():
            rest = {k: v for k, v in package.items() if k != name}
            odd = (value[:-1], value.astype(np.complex64), np.full_like(value, -1)[None])
            for broken in (rest, *(rest | {name: bad} for bad in odd)):
                with pytest.raises(ProtocolError):
                    device.answer(round, broken, Unreadable(), SeededRandom(0))


@of(name for name in VARIANTS if name not in METHODS or not trains_model(name))
def test_the_order_of_records_changes_no_bit_of_a_sum(halves):
    records = some_records()
    backwards = Records(records.x[::-1].copy(), records.y[::-1].copy())
    for a, b in zip(play(halves, records), play(halves, backwards), strict=True):
        for name, value in a[2].segments.items():
            np.testing.assert_array_equal(value, b[2].segments[name])


@noised
def test_noise_follows_from_its_key_and_the_records_and_none_is_saved_on_an_empty_set(halves):
    device, whole = halves[0], some_records()
    less = Records(whole.x[1:], (whole.y[1:] + 1) % 3)  # votes turn by labels alone
    for round, package, _, _ in play(halves, whole):
        key, other = (number.to_bytes(32, "big") for number in (round.index, 1 << 99))
        first, again, fresh, neighbour, empty = (
            device.answer(round, package, records, DerivedRandom(one), processor="cpu").segments
            for one, records in (
                *((key, whole), (key, whole), (other, whole), (key, less), (key, EMPTY)),
            )
        )
        for name in first:
            np.testing.assert_array_equal(first[name], again[name])
            assert not np.array_equal(first[name], fresh[name])
            assert np.any(empty[name])
            if len(device.price(round)):
                assert (first[name] != neighbour[name]).mean() > 0.9

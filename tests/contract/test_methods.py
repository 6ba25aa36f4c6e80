"""Laws that every training method of the table keeps."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from edgeveil import subnormals
from edgeveil.data.records import Records
from edgeveil.errors import PrivacyError, ProtocolError
from edgeveil.parts.features import PcaParameters
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
    """Records that must not be touched."""

    def __getattr__(self, name):
        raise AssertionError(f"read records.{name}")


def pca(name, noise="gaussian"):
    return PcaParameters(name=name, keep=0.5, noise=noise)


VARIANTS = {
    **{name: (name, {}, None) for name in METHODS},
    "fm, pure noise": ("fm", {"noise": "laplace"}, None),
    "fm, bare": ("fm", {"centre": False, "quadratic": "never"}, None),
    "fm, ldp_fpca": ("fm", {}, pca("ldp_fpca")),
    "fm, ldp_fpca, wishart": ("fm", {"centre": False}, pca("ldp_fpca", "wishart")),
    "fm, ldp_pca": ("fm", {}, pca("ldp_pca")),
    "fm, local_pca": ("fm", {"noise": "laplace"}, pca("local_pca")),
}


READING = [name for name in VARIANTS if name != "noise_only"]
UNPROTECTED = {"sgd", "fedprox"}  # they add no noise, and say so
NOISED = [name for name in VARIANTS if name not in UNPROTECTED]
SUMMING = [name for name in VARIANTS if name not in METHODS or not trains_model(name)]


@pytest.fixture(params=list(VARIANTS))
def halves(request):
    return made(request.param)


@pytest.fixture(params=READING)
def reading(request):
    """The halves of a method that reads records."""
    return made(request.param)


@pytest.fixture(params=NOISED)
def noised(request):
    """The halves of a method that adds noise."""
    return made(request.param)


@pytest.fixture(params=SUMMING)
def summing(request):
    """The halves of a method that uploads sums over records."""
    return made(request.param)


def made(variant):
    name, options, projection = VARIANTS[variant]
    method = METHODS[name]
    context = replace(CONTEXT, projection=projection, anomaly=method.anomaly)
    if trains_model(name):
        model = build_network(NetworkParameters(hidden=(4,)), CONTEXT.input_shape, CONTEXT.classes)
        context = replace(context, network=model)
    parameters = method.made(rounds=ROUNDS, **options)
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


def test_an_empty_data_set_sends_noise_not_silence(noised):
    for _, _, answer, _ in play(noised, EMPTY):
        assert all(np.any(value) for value in answer.segments.values())


def test_the_price_is_known_before_and_equals_what_the_answer_says(halves):
    for round, _, answer, _ in play(halves, some_records()):
        assert halves[0].price(round) == answer.events
        assert all(event_from_dict(to_dict(event)) == event for event in answer.events)


def test_what_has_no_price_reads_no_record():
    for _, _, answer, _ in play(made("noise_only"), Unreadable()):
        assert answer.events == ()


def test_no_record_is_read_before_the_answer(reading):
    device, cloud = reading
    for round in cloud.plan():
        device.price(round)
    package = cloud.package(cloud.initial_state(), cloud.plan()[0])
    with pytest.raises(AssertionError, match="read records"):
        device.answer(cloud.plan()[0], package, Unreadable(), SeededRandom(0))


class Watched(Records):
    """Records that note whether who reads them flushes subnormal numbers."""

    def __getattribute__(self, name):
        if name in "xy":
            FLUSHED.append(subnormals_flushed())
        return super().__getattribute__(name)


FLUSHED = []


def test_subnormal_numbers_are_flushed_while_records_are_read(reading):
    FLUSHED.clear()
    records = some_records()
    for _ in play(reading, Watched(records.x, records.y)):
        pass
    assert FLUSHED
    assert all(FLUSHED)


def test_no_record_is_read_where_subnormal_numbers_cannot_be_flushed(reading, monkeypatch):
    monkeypatch.setattr(subnormals, "_SWITCHES", {})
    monkeypatch.setitem(sys.modules, "torch", None)
    device, cloud = reading
    package = cloud.package(cloud.initial_state(), cloud.plan()[0])
    with pytest.raises(PrivacyError, match="subnormal numbers"):
        device.answer(cloud.plan()[0], package, Unreadable(), SeededRandom(0))


def test_a_package_that_does_not_fit_is_refused_before_a_record_is_read(halves):
    device, cloud = halves
    for round in cloud.plan():
        package = cloud.package(cloud.initial_state(), round)
        for name, value in package.items():
            for bad in (
                None,
                value[:-1],
                value.astype(np.complex64),
                np.full_like(value, -1)[None],
            ):
                broken = {k: v for k, v in package.items() if k != name}
                if bad is not None:
                    broken[name] = bad
                with pytest.raises(ProtocolError):
                    device.answer(round, broken, Unreadable(), SeededRandom(0))


def test_the_order_of_records_changes_no_bit(summing):
    records = some_records()
    backwards = Records(records.x[::-1].copy(), records.y[::-1].copy())
    for a, b in zip(play(summing, records), play(summing, backwards), strict=True):
        for name, value in a[2].segments.items():
            np.testing.assert_array_equal(value, b[2].segments[name])


def test_noise_is_fresh_by_its_bytes_alone(noised):
    one, two = (list(play(noised, some_records(), seed)) for seed in (1, 2))
    for a, b in zip(one, two, strict=True):
        for name, value in a[2].segments.items():
            assert not np.array_equal(value, b[2].segments[name])


def test_the_state_keeps_its_names_shapes_and_types(halves):
    cloud = halves[1]
    first = cloud.initial_state()
    before = {name: value.copy() for name, value in first.items()}
    for _, _, _, state in play(halves, some_records()):
        assert {n: (v.shape, v.dtype) for n, v in state.items()} == {
            n: (v.shape, v.dtype) for n, v in first.items()
        }
    assert all(np.array_equal(first[name], before[name]) for name in before)


def test_a_question_asked_again_has_the_same_answer_and_other_records_have_other_noise(noised):
    device, whole = noised[0], some_records()
    less = Records(whole.x[1:], (whole.y[1:] + 1) % 3)  # votes turn by labels alone
    for round, package, _, _ in play(noised, whole):
        key = round.index.to_bytes(32, "big")
        answers = [
            device.answer(round, package, records, DerivedRandom(key), processor="cpu")
            for records in (whole, whole, less)
        ]
        for name in answers[0].segments:
            first, again, other = (answer.segments[name] for answer in answers)
            np.testing.assert_array_equal(first, again)
            if len(device.price(round)):
                assert (first != other).mean() > 0.9

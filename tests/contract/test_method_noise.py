"""What an answer hides records with is what its price says: noise, steps and samples, as measured.

Two answers of the same records differ by their noise alone, whatever a method computes, so that
nothing of a method's own arithmetic is needed to measure it.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

from edgeveil.data.records import Records
from edgeveil.parts.methods import METHODS, dp_sgd
from edgeveil.parts.models import build_network
from edgeveil.parts.models.mlp import NetworkParameters
from edgeveil.parts.round import TRAIN, PlannedRound
from edgeveil.privacy.derived import DerivedRandom
from edgeveil.privacy.events import LaplaceEvent, as_single, as_summed, noise_of
from edgeveil.privacy.gaussian_mechanism import diagonal_of_triangle
from edgeveil.privacy.laplace_mechanism import noise_law
from tests.kits.method_context import context as made_context

SURE = 1e-9  # of both tails, so that no run of these tests in a lifetime fails by chance
ROUND = PlannedRound(1, TRAIN, 1)
SMALL = build_network(NetworkParameters(hidden=()), (6,), 3)
CONTEXT = made_context(input_shape=(6,), summed=4, network=SMALL)
EVERY = {
    "dp_sgd_sums": {"sampling_rate": 1.0},  # so that answers differ by their noise alone
    "statistics": {"columns": [{"name": name, "number": [-2, 2]} for name in "ab"]},
}
SUMS = [
    ("fm", {"rounds": 2}),
    ("fm", {"rounds": 2, "noise": "laplace"}),
    *(
        (name, {"rounds": 2, **EVERY.get(name, {})})
        for name in METHODS
        if METHODS[name].shares and name != "fm"
    ),
]
FEATURES = 96
STEPPING = ("dp_sgd", "pso_dp_sgd")


def random(*numbers):
    return DerivedRandom(b"".join(number.to_bytes(8, "big") for number in numbers).rjust(32))


def squares_fit(values, variances):
    """Whether normal `values` (n,) of mean 0 can have these variances."""
    low, high = chi2.ppf([SURE, 1 - SURE], len(values))
    return low < float((np.asarray(values, np.float64) ** 2 / variances).sum()) < high


def variances(event):
    """Of each value that is sent, in steps²."""
    if isinstance(event, LaplaceEvent):
        return np.full(event.coordinates, noise_law(event)[1] * 4.0**event.grid_bits)
    event = noise_of(event)
    found = np.full(event.coordinates, float(event.finest_sigma_squared))
    if event.finest_sigma_squared != event.sigma_squared:
        found[diagonal_of_triangle(event.coordinates)] = float(event.sigma_squared)
    return found


@pytest.mark.parametrize("honest", [0, 3])
@pytest.mark.parametrize(("name", "options"), SUMS)
def test_a_sum_over_devices_has_the_noise_that_its_price_counts_on(name, options, honest):
    if honest and options.get("noise") == "laplace":
        pytest.skip("Laplace noise is no sum of parts")
    method = METHODS[name]
    context = replace(CONTEXT, honest=honest, anomaly=method.anomaly)
    parameters = method.made(**options)
    device, cloud = method.device(parameters, context), method.cloud(parameters, context)
    rng = np.random.default_rng(1)
    records = Records(rng.normal(size=(9, 6)).astype(np.float32), rng.integers(0, 3, 9))
    state = cloud.initial_state()
    for round in cloud.plan():
        package = cloud.package(state, round)

        def sent(*numbers, round=round, package=package):
            answer = device.answer(round, package, records, random(*numbers))
            return np.concatenate([value.ravel() for value in answer.segments.values()])

        (event,) = device.price(round)
        alone, summed = [], []
        for draw in range(16):
            apart = [sent(draw, k, 0) - sent(draw, k, 1) for k in range(max(1, honest))]
            alone.append(apart[0])
            summed.append(sum(apart))
        for found, law in ((alone, as_single(event)), (summed, as_summed(event))):
            wide = 2 * np.tile(variances(law), len(found))
            if not isinstance(law, LaplaceEvent):
                assert squares_fit(np.concatenate(found), wide), (round.phase, law.what)
            else:  # heavier tails: their mean square is off by 7 % as a rule
                share = float((np.concatenate(found) ** 2.0 / wide).mean())
                assert 0.5 < share < 2, (round.phase, law.what)


def stepping(name):
    shape = (FEATURES,)
    network = build_network(NetworkParameters(hidden=()), shape, 2)
    context = replace(
        CONTEXT, epsilon=200.0, input_shape=shape, classes=2, network=network, summed=0
    )
    method = METHODS[name]
    parameters = method.made(rounds=2, local_steps=6, sampling_rate=0.5, learning_rate=1e-3)
    zeros = {w.name: np.zeros(w.shape, np.float32) for w in network.weights}
    return method.device(parameters, context), parameters, context, zeros


EACH = Records(np.eye(FEATURES, dtype=np.float32), np.zeros(FEATURES, np.int64))


def test_a_round_of_dp_sgd_has_the_spread_of_fresh_samples_and_of_the_noise_that_is_paid():
    """At weights 0 a record's gradient has ½ of its norm at its own feature, and each step takes
    it by a coin of its own; one sample for all steps would spread T times as wide."""
    device, parameters, context, zeros = stepping("dp_sgd")
    ((event,), answer) = device.price(ROUND), device.answer(ROUND, zeros, EACH, random(7), "cpu")
    scale = parameters.learning_rate / (parameters.sampling_rate * context.nominal_records)
    found = answer.segments["output.weight"][:, 0].astype(np.float64) / scale
    rate, step = parameters.sampling_rate, 2.0**-event.event.grid_bits
    own = 0.5 * (1 - 2.0**-12)
    noise = event.event.sigma_squared * step**2
    assert squares_fit(
        found - event.steps * rate * own, event.steps * (rate * (1 - rate) * own**2 + noise)
    )


@pytest.mark.parametrize("name", STEPPING)
def test_every_step_is_paid_for_and_takes_a_sample_of_its_own(name, monkeypatch):
    device, _, _, zeros = stepping(name)
    taken = []
    total = dp_sgd.NoisedSums.total

    def noted(self, rows, chosen, clip_norm):
        taken.append(np.isin(np.arange(len(EACH)), chosen))
        return total(self, rows, chosen, clip_norm)

    monkeypatch.setattr(dp_sgd.NoisedSums, "total", noted)
    device.answer(ROUND, zeros, EACH, random(8), "cpu")
    (event,) = device.price(ROUND)
    assert len(taken) == event.steps
    rate, often = event.sampling_probability, np.sum(taken, axis=0)
    assert squares_fit(often - event.steps * rate, event.steps * rate * (1 - rate))

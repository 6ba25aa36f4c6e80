"""Each option of `fm`: its rounds, its price, and how far one record moves a sum before noise."""

import math

import numpy as np
import pytest
from fm_kit import DIGITS, context
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgeveil.data.records import Records
from edgeveil.data.target import LABELS
from edgeveil.parts.features import PcaParameters
from edgeveil.parts.methods.fm import FmCloud, FmDevice
from edgeveil.parts.methods.fm_sums import QUADRATIC, FmParameters, head_shape, symmetric, wishart
from edgeveil.parts.round import TRAIN
from edgeveil.privacy.accountant import epsilon, total_mu
from edgeveil.privacy.events import ClaimedEvent, GaussianEvent, LaplaceEvent
from edgeveil.privacy.sampler import SeededRandom
from tests.kits.method_context import context as made_context

FPCA = PcaParameters(name="ldp_fpca", keep=0.5, share=0.3)
WISHART = FPCA.model_copy(update={"noise": "wishart"})
LOCAL = FPCA.model_copy(update={"name": "local_pca"})
OWN = FPCA.model_copy(update={"name": "ldp_pca"})


def halves(projection=None, epsilon=8.0, **options):
    chosen, parameters = context(**DIGITS, projection=projection, epsilon=epsilon), FmParameters
    return FmDevice(parameters(**options), chosen), FmCloud(parameters(**options), chosen)


@pytest.mark.parametrize("projection", [None, FPCA, OWN, WISHART, LOCAL])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"centre": False},
        {"quadratic": "never"},
        {"centre": False, "quadratic": "never"},
        {"noise": "laplace"},
    ],
)
def test_the_whole_job_costs_what_was_asked_whatever_the_options(options, projection):
    phases = {"covariance": projection in (FPCA, OWN, WISHART), "centre": options.get("centre", 1)}
    phases["quadratic"] = "quadratic" not in options
    for asked in (0.5, 4.0):
        device, cloud = halves(projection, epsilon=asked, **options)
        plan = cloud.plan()
        assert [r.phase for r in plan[:-15]] == [name for name in phases if phases[name]]
        assert [r.index for r in plan] == list(range(1, len(plan) + 1))
        assert [r.number for r in plan if r.phase == TRAIN] == list(range(1, 16))
        events = [event for round in plan for event in device.price(round)]
        assert sorted(events, key=repr) == sorted(device.budget.job_events(), key=repr)
        parts = [
            epsilon([e for e in events if isinstance(e, kind)], 1e-5).epsilon
            for kind in (GaussianEvent, LaplaceEvent, ClaimedEvent)
        ]
        assert 0.98 * asked < sum(parts) <= asked
        status = epsilon(events, 1e-5).status
        assert status == ("proven" if projection in (None, FPCA, OWN) else "claimed")


def test_a_pca_takes_its_share_first_and_the_others_share_the_rest():
    device, _ = halves(FPCA)
    whole = total_mu(device.budget.job_events()) ** 2
    found = [device.budget.events[p].mu ** 2 / whole for p in ("covariance", "centre", "quadratic")]
    assert found == pytest.approx([0.3, 0.7 * 0.02, 0.7 * 0.2], rel=1e-6)


def test_wishart_noise_has_the_mean_and_spread_of_its_text():
    d, eps = 40, 0.5
    matrix = np.zeros((d, d))
    matrix[np.triu_indices(d)] = wishart(d * (d + 1) // 2, eps, SeededRandom(1)) * 2.0**-24
    diagonal, off = np.diag(matrix), matrix[np.triu_indices(d, 1)]
    # ZZᵀ has mean (d + 1)/(2ε) on the diagonal and variance (d + 1)/(2ε)² off it.
    assert diagonal.mean() == pytest.approx(d + 1, rel=0.1)
    assert off.std() == pytest.approx(math.sqrt(d + 1), rel=0.1)
    assert abs(off.mean()) < 4 * math.sqrt((d + 1) / len(off))


def test_without_a_quadratic_round_every_curvature_is_a_half_and_the_ridge():
    parameters = FmParameters(centre=False, quadratic="never", rounds=1, intercept=False)
    device, cloud = FmDevice(parameters, context()), FmCloud(parameters, context())
    (first,) = cloud.plan()
    package = cloud.package(cloud.initial_state(), first)
    (level,) = set(package["spectrum"].tolist())
    assert level == pytest.approx(0.5 + cloud.ridge_level(1))
    total = np.array([[3 << 20, -5 << 20], [7, 0]])
    head = device.finish(first, package, total)["head.weight"]
    np.testing.assert_allclose(head, -total / 2.0**28 / level, rtol=1e-6)


D, CLASSES = 4, 3
ANY = st.floats(allow_nan=True, allow_infinity=True, width=32)
VALUES = ANY | st.floats(-2, 2, width=32) | st.sampled_from([0.0, 3e38, 1e-45])
VARIANTS = {
    "gaussian": ({}, None),
    "laplace": ({"noise": "laplace"}, None),
    "no intercept": ({"intercept": False}, None),
    "no intercept laplace": ({"intercept": False, "noise": "laplace"}, None),
    "bare": ({"centre": False, "quadratic": "never"}, None),
    "fpca": ({}, PcaParameters(name="ldp_fpca", keep=0.5)),
    "pca": ({"centre": False}, PcaParameters(name="ldp_pca", keep=0.75)),
    "laplace fpca": ({"noise": "laplace"}, PcaParameters(name="ldp_fpca", keep=0.5)),
    "number": ({}, None),
    "number laplace": ({"noise": "laplace"}, None),
    "number fpca": ({}, PcaParameters(name="ldp_fpca", keep=0.5)),
}
variants = pytest.mark.parametrize("variant", VARIANTS)


class Bench:
    """One device, and the rounds of its job up to the first training round."""

    def __init__(self, variant="gaussian", **parameters):
        options, projection = VARIANTS[variant]
        number = variant.startswith("number")
        context = made_context(
            epsilon=8.0,
            max_participations=15,
            classes=LABELS if number else CLASSES,
            regression=number,
            input_shape=(D,),
            devices=5,
            projection=projection,
        )
        chosen = FmParameters(**{**parameters, **options})
        self.device, self.d = FmDevice(chosen, context), context.dimension
        self.head = head_shape(chosen, context)
        plan = FmCloud(chosen, context).plan()
        self.phases = plan[: len(plan) - chosen.rounds + 1]

    def sums(self, round, package, records):
        y = records.y
        if self.device.context.regression:  # the ends of the range, its middle, and outside
            y = np.where(y < 0, y, np.where(y == CLASSES, LABELS, y * (LABELS // 2)))
        return self.device.sums(round, package, Records(records.x, y))

    def package(self, seed=0, reach=0, centre=None):
        """A broadcast of any content, as a cloud could make it up."""
        rng = np.random.default_rng(seed)
        basis = rng.integers(-(2**15), 2**15, (D, self.d)) if reach else np.eye(D, self.d) * 2**14
        return {
            "centre": np.zeros(self.d, np.float32) if centre is None else centre[: self.d],
            "iterate": rng.integers(-reach, reach + 1, self.head).astype(np.int32),
            "basis": basis.astype(np.int16),
            "covariance": rng.normal(size=D * (D + 1) // 2).astype(np.float32) * max(1, reach),
        }

    def any_package(self, data):
        centre = data.draw(hnp.arrays(np.float32, D, elements=st.floats(-1, 1, width=32) | ANY))
        reach = data.draw(st.sampled_from([0, 100, 2**20, 2**31 - 1]))
        return self.package(data.draw(st.integers(0, 2**32 - 1)), reach, centre)


@st.composite
def records(draw):
    n, rng = draw(st.integers(0, 70)), np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return Records(rng.normal(size=(n, D)).astype(np.float32), rng.integers(-1, CLASSES + 1, n))


def within(event, round, before, after, factor=1.0):
    """Whether the change keeps to `factor` times the event's sensitivity, in its own norm."""
    difference = (after - before).astype(object)
    bound = event.sensitivity_steps * factor
    if not isinstance(event, GaussianEvent):
        return int(np.abs(difference).sum()) <= bound
    weights = np.ones(len(difference), object) if difference.ndim == 1 else 1
    if round.phase in ("quadratic", "covariance"):
        k = int((2 * len(difference)) ** 0.5)
        rows, columns = np.triu_indices(k)
        weights = np.where(rows == columns, 1, 2).astype(object)
    return int((weights * difference**2).sum()) <= bound**2


@variants
@given(
    records(),
    hnp.arrays(np.float32, (1, D), elements=VALUES),
    st.integers(-2, CLASSES + 1),
    st.sampled_from([0.05, 0.6, 1.0, 2.0]),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_one_record_changes_no_sum_by_more_than_its_event_says(
    variant, others, x, label, clip, data
):
    bench = Bench(variant, clip=clip)
    package = bench.any_package(data)
    extended = Records(np.concatenate([x, others.x]), np.append(label, others.y))
    for round in bench.phases:
        (event,) = bench.device.price(round)
        before = bench.sums(round, package, others)
        after = bench.sums(round, package, extended)
        assert within(event, round, before, after)


@variants
def test_the_stated_sensitivity_is_nearly_reached_and_not_passed(variant):
    bench = Bench(variant, clip=0.6)
    package = bench.package()
    none = Records(np.zeros((0, D), np.float32), np.zeros(0, np.int64))
    x = np.zeros((1, D), np.float32)
    x[0, : bench.d] = 1
    if variant == "pca":  # its basis is any rotation: the axis that it keeps first
        x = np.linalg.eigh(symmetric(package["covariance"], D))[1][:, -1:].T.astype(np.float32)
    one = Records(x, np.array([0]))
    for round in bench.phases:
        (event,) = bench.device.price(round)
        before, after = (bench.sums(round, package, r) for r in (none, one))
        assert within(event, round, before, after)
        assert not within(event, round, before, after, factor=0.99 * attainable(bench, round))


def attainable(bench, round):
    """The largest part of the stated sensitivity that a record can reach.

    Laplace bounds hold for ‖z′‖₁ ≤ √(d + 1), whatever the intercept i; ‖z′‖₁ = √(1 - i²)·√d + i is
    the most there is. A triangle of z′z′ᵀ has the L1 norm (‖z′‖₁² + ‖z′‖₂²)/2.
    """
    device, d = bench.device, bench.d
    i = device.intercept / 4096
    laplace = device.parameters.noise == "laplace" and not device.context.regression
    if not i or not laplace or round.phase not in (QUADRATIC, TRAIN):
        return 1.0
    widest = math.sqrt(1 - i * i) * math.sqrt(d) + i
    if round.phase == QUADRATIC:
        return (widest**2 + 1) / (d + 2)
    return widest / math.sqrt(d + 1)


@variants
def test_an_invalid_record_contributes_nothing(variant):
    bench = Bench(variant)
    x = np.array([[np.nan, 0, 0, 0], [0, np.inf, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]], np.float32)
    bad = Records(x, np.array([0, 0, -1, CLASSES]))
    for round in bench.phases:
        assert not bench.sums(round, bench.package(), bad).any()


def test_what_is_kept_of_records_is_never_used_for_others_or_another_broadcast():
    rng = np.random.default_rng(3)
    one, two = (Records(rng.normal(size=(9, D)).astype(np.float32), np.zeros(9, int)) for _ in "ab")
    bench = Bench("fpca")
    packages = [
        bench.package(seed, reach, rng.normal(size=D).astype(np.float32) / 4)
        for seed, reach in ((1, 0), (2, 100), (3, 100))
    ]
    for round in bench.phases:
        for records_ in (one, two, one):
            for package in (*packages, packages[0]):
                fresh = Bench("fpca").sums(round, package, Records(records_.x, records_.y))
                np.testing.assert_array_equal(bench.sums(round, package, records_), fresh)

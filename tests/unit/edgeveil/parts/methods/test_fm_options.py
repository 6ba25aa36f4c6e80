"""Each option of `fm`: what it costs, what it leaves out, and that it still learns."""

import math

import numpy as np
import pytest
from fm_kit import digits, digits_setting, learned, pooled, setting
from pydantic import ValidationError

from edgeveil.data.records import Records
from edgeveil.errors import PrivacyError, ProtocolError
from edgeveil.parts.exchange import TRAIN
from edgeveil.parts.features import PcaParameters
from edgeveil.parts.methods.fm import FmCloud, FmDevice
from edgeveil.parts.methods.fm_budget import FmParameters
from edgeveil.parts.methods.fm_sums import noised, wishart
from edgeveil.privacy.accountant import epsilon, pure_epsilon, total_mu
from edgeveil.privacy.events import ClaimedEvent, GaussianEvent, LaplaceEvent, UnprotectedEvent
from edgeveil.privacy.sampler import SeededRandom
from edgeveil_tools.local.reference import noise_free_reference

FPCA = PcaParameters(name="ldp_fpca", keep=0.5, share=0.3)
WISHART = FPCA.model_copy(update={"noise": "wishart"})
LOCAL = FPCA.model_copy(update={"name": "local_pca"})
OWN = FPCA.model_copy(update={"name": "ldp_pca"})


def halves(projection=None, epsilon=8.0, **options):
    chosen = digits_setting(projection=projection, epsilon=epsilon)
    parameters = FmParameters(**options)
    return FmDevice(parameters, chosen), FmCloud(parameters, chosen)


def phases(cloud):
    return [exchange.phase for exchange in cloud.plan() if exchange.phase != TRAIN]


@pytest.mark.parametrize(
    ("options", "projection", "expected"),
    [
        ({}, None, ["centre", "quadratic"]),
        ({"centre": False}, None, ["quadratic"]),
        ({"quadratic": "never"}, None, ["centre"]),
        ({"centre": False, "quadratic": "never"}, None, []),
        ({}, FPCA, ["covariance", "centre", "quadratic"]),
        ({"centre": False}, OWN, ["covariance", "quadratic"]),
        ({}, LOCAL, ["centre", "quadratic"]),
    ],
)
def test_what_is_not_asked_for_has_no_exchange_and_the_indices_count_on(
    options, projection, expected
):
    device, cloud = halves(projection, **options)
    plan = cloud.plan()
    assert phases(cloud) == expected
    assert [e.index for e in plan] == list(range(1, len(plan) + 1))
    assert [e.number for e in plan if e.phase == TRAIN] == list(range(1, 16))
    assert len(device.job_events()) == (len(plan) if projection is not LOCAL else 2 * len(plan))


@pytest.mark.parametrize("projection", [None, FPCA, OWN, WISHART, LOCAL])
@pytest.mark.parametrize(
    "options", [{}, {"centre": False}, {"quadratic": "never"}, {"noise": "laplace"}]
)
def test_the_whole_job_costs_what_was_asked_whatever_the_options(options, projection):
    for asked in (0.5, 4.0):
        device, cloud = halves(projection, epsilon=asked, **options)
        events = [event for exchange in cloud.plan() for event in device.price(exchange)]
        assert sorted(events, key=repr) == sorted(device.job_events(), key=repr)
        parts = [
            epsilon([e for e in events if isinstance(e, kind)], 1e-5).epsilon
            for kind in (GaussianEvent, LaplaceEvent, ClaimedEvent)
        ]
        assert 0.98 * asked < sum(parts) <= asked
        status = epsilon(events, 1e-5).status
        assert status == ("proven" if projection in (None, FPCA, OWN) else "claimed")


def test_a_share_that_is_not_used_goes_to_the_rounds():
    shares = {}
    for name, options in {
        "all": {},
        "no centre": {"centre": False},
        "bare": {"centre": False, "quadratic": "never"},
    }.items():
        device, _ = halves(**options)
        rounds = device.budget.events[TRAIN].mu ** 2 * 15
        shares[name] = rounds / total_mu(device.job_events()) ** 2
    assert shares == pytest.approx({"all": 0.78, "no centre": 0.8, "bare": 1.0}, rel=1e-6)


def test_a_pca_takes_its_share_first_and_the_others_share_the_rest():
    device, _ = halves(FPCA)
    whole = total_mu(device.job_events()) ** 2
    found = [device.budget.events[p].mu ** 2 / whole for p in ("covariance", "centre", "quadratic")]
    assert found == pytest.approx([0.3, 0.7 * 0.02, 0.7 * 0.2], rel=1e-6)


def test_pure_noise_has_no_delta_and_shares_epsilon():
    device, _ = halves(noise="laplace")
    events = device.job_events()
    price = epsilon(events, 1e-5)
    assert (price.delta, price.status) == (0.0, "proven")
    assert pure_epsilon(events) <= 8
    found = [float(device.budget.events[p].epsilon) for p in ("centre", "quadratic", TRAIN)]
    assert found == pytest.approx([0.16, 1.6, 6.24 / 15], rel=1e-9)


def test_the_l1_sensitivities_of_digits():
    """d = 64, c = 10, clip 0.6: √d = 8, (d + 1)/2 = 32.5, 2·0.6·√(64·0.9); d one more with an
    intercept, but for the centre."""
    device, _ = halves(noise="laplace", intercept=False)
    events = [device.budget.events[p] for p in ("centre", "quadratic", TRAIN)]
    found = [event.sensitivity_steps * 2.0**-event.grid_bits for event in events]
    assert found == pytest.approx([8, 32.5, 1.2 * math.sqrt(57.6)], rel=1e-3)
    device, _ = halves(noise="laplace")
    events = [device.budget.events[p] for p in ("centre", "quadratic", TRAIN)]
    found = [event.sensitivity_steps * 2.0**-event.grid_bits for event in events]
    assert found == pytest.approx([8, 33, 1.2 * math.sqrt(58.5)], rel=1e-3)


def test_noise_of_two_kinds_adds_up():
    device, _ = halves(FPCA, noise="laplace")
    (covariance, *others) = device.job_events()
    assert isinstance(covariance, GaussianEvent)
    assert 0.99 * 2.4 < epsilon([covariance], 1e-5).epsilon <= 2.4
    assert float(pure_epsilon(others)) == pytest.approx(5.6, rel=1e-6)


def test_wishart_noise_is_claimed_and_the_rest_stays_proven():
    device, _ = halves(WISHART)
    (covariance, *others) = device.job_events()
    assert isinstance(covariance, ClaimedEvent)
    assert covariance.claimed_epsilon == pytest.approx(2.4)
    assert {event.status for event in others} == {"proven"}


def test_a_basis_without_noise_taints_every_answer():
    device, cloud = halves(LOCAL)
    for exchange in cloud.plan():
        assert [event.status for event in device.price(exchange)] == ["proven", "claimed"]


def test_wishart_noise_has_the_mean_and_spread_of_its_text():
    d, eps = 40, 0.5
    matrix = np.zeros((d, d))
    matrix[np.triu_indices(d)] = wishart(d * (d + 1) // 2, eps, SeededRandom(1)) * 2.0**-24
    diagonal, off = np.diag(matrix), matrix[np.triu_indices(d, 1)]
    # ZZᵀ has mean (d + 1)/(2ε) on the diagonal and variance (d + 1)/(2ε)² off it.
    assert diagonal.mean() == pytest.approx(d + 1, rel=0.1)
    assert off.std() == pytest.approx(math.sqrt(d + 1), rel=0.1)
    assert abs(off.mean()) < 4 * math.sqrt((d + 1) / len(off))


def test_noise_is_only_drawn_for_events_that_state_it():
    event = UnprotectedEvent(what="a sum as it is", unit="record")
    with pytest.raises(PrivacyError, match="no noise"):
        noised(np.zeros(3, np.int64), event, SeededRandom(0))


def test_one_record_under_an_equal_curvature_by_hand():
    """x = (3, 4), label 0, W = 0, no centre: z = (⌊4096·0.6⌋, ⌊4096·0.8⌋), r = (-½, ½)."""
    parameters = FmParameters(
        centre=False, quadratic="never", clip=1.0, radius=1.0, rounds=1, intercept=False
    )
    device, cloud = FmDevice(parameters, setting()), FmCloud(parameters, setting())
    (first,) = cloud.plan()
    record = Records(np.array([[3, 4]], np.float32), np.array([0]))
    package = cloud.package(cloud.initial_state(), first)
    total = device.sums(first, package, record)
    column = np.array([[16 * 2457 * 2048], [16 * 3276 * 2048]])
    np.testing.assert_array_equal(total, np.hstack([-column, column]))
    (level,) = set(package["spectrum"].tolist())
    assert level == pytest.approx(0.5 + cloud.ridge_level(1))
    head = device.finish(first, package, total)["head.weight"]
    np.testing.assert_allclose(head, -total / 2.0**28 / level, rtol=1e-6)


def test_a_package_without_what_the_options_need_is_refused():
    for projection, missing in ((FPCA, "basis"), (OWN, "covariance")):
        device, cloud = halves(projection)
        state = cloud.initial_state()
        centre = cloud.plan()[1]
        package = dict(cloud.package(state, centre))
        package.pop(missing, None)
        with pytest.raises(ProtocolError, match=missing):
            device.answer(centre, package, Records(np.zeros((0, 8, 8)), np.zeros(0)))


@pytest.mark.parametrize(
    "bad", [{"noise": "none"}, {"quadratic": "twice"}, {"centre": "yes please"}, {"expansions": 3}]
)
def test_options_that_do_not_exist_are_refused(bad):
    with pytest.raises(ValidationError):
        FmParameters(**bad)


@pytest.mark.parametrize(
    ("options", "changes", "least"),
    [
        ({"centre": False}, {}, 0.87),
        ({"quadratic": "never", "curvature": 0.05}, {}, 0.86),
        ({}, {"projection": FPCA}, 0.84),
        ({}, {"projection": WISHART}, 0.82),
        ({"noise": "laplace", "rounds": 4}, {"epsilon": 50.0}, 0.78),
        ({"noise": "laplace", "rounds": 4}, {"epsilon": 50.0, "projection": FPCA}, 0.78),
    ],
)
def test_digits_are_learned_with_every_option(options, changes, least):
    parameters, chosen = FmParameters(**options), digits_setting(**changes)
    assert learned(parameters, chosen, 1) >= least
    shards, test = digits(1)
    reference = noise_free_reference(parameters, chosen, pooled(shards), test)
    assert len(reference) == parameters.rounds
    assert reference[-1] >= 0.85

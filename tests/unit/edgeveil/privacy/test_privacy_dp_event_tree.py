"""Events exported for the library dp-accounting have the price there that EdgeVeil prints."""

import json

import dp_accounting
import pytest

from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.dp_event_tree import dp_event_tree
from edgeveil.privacy.events import ClaimedEvent, LaplaceEvent, as_single
from edgeveil.privacy.gaussian_mechanism import (
    gaussian_event,
    sampled_gaussian_event,
    shared_gaussian,
)
from edgeveil.privacy.selection_mechanism import selection_event

DELTA = 1e-5
SUM = gaussian_event("sums", 1 << 30, 0.5, 30, grid_bits=30)
STEPS = sampled_gaussian_event("steps", 0.05, 200, 1 << 30, 30, grid_bits=30, noise_multiplier=0.9)
NOISY = LaplaceEvent(
    what="counts",
    unit="record",
    sensitivity_steps=3 << 20,
    scale_numerator=10 << 20,
    scale_denominator=1,
    coordinates=1,
    grid_bits=20,
)
SHARED = shared_gaussian(SUM, 4)
CLAIM = ClaimedEvent(what="covariance", unit="record", claimed_epsilon=1.0)


def as_dp_event(plain):  # as in docs/privacy.md
    return getattr(dp_accounting, plain.pop("class"))(**plain) if "class" in plain else plain


def theirs(events):
    text = json.dumps(dp_event_tree(events))
    event = json.loads(text, object_hook=as_dp_event)
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4)
    return accountant.compose(event).get_epsilon(DELTA)


@pytest.mark.parametrize(
    ("events", "slack"),
    [
        ([SUM] * 5, 0.001),
        ([STEPS, STEPS], 0.01),
        ([SUM, STEPS], 0.01),
        ([SHARED] * 3, 0.001),
        ([as_single(SHARED)] * 3, 0.001),
        ([NOISY] * 4, 0.2),  # EdgeVeil prices each as any mechanism of its ε
        ([NOISY, SUM, SUM], 0.05),
    ],
    ids=["gaussian", "sampled", "mixed", "shared", "alone", "laplace", "laplace and gaussian"],
)
def test_the_library_finds_the_same_epsilon(events, slack):
    ours, found = epsilon(events, DELTA).epsilon, theirs(events)
    assert found <= ours * (1 + 1e-3) + 1e-3
    assert found >= ours * (1 - slack) - 1e-3


def test_what_the_library_cannot_price_is_never_written_as_private():
    assert theirs([SUM, CLAIM]) == float("inf")
    chosen = selection_event("best", 4, 1 << 20, 1.0)
    with pytest.raises(dp_accounting.UnsupportedEventError):
        theirs([SUM, chosen])


def test_only_a_plain_gaussian_job_has_mu_and_rho():
    plain = epsilon([SHARED] * 4, DELTA).plain
    assert plain["mu"] == pytest.approx(SUM.mu * 2, rel=1e-6)
    assert dp_accounting.pld.PLDAccountant().compose(
        dp_accounting.GaussianDpEvent(1 / plain["mu"])
    ).get_epsilon(DELTA) == pytest.approx(plain["epsilon"], rel=1e-3)
    assert plain["rho"] == pytest.approx(plain["mu"] ** 2 / 2)
    for events in ([SUM, NOISY], [SUM, STEPS], [SUM, CLAIM], []):
        assert epsilon(events, DELTA).plain["mu"] is None

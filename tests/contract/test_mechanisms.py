"""Laws that every mechanism of the table keeps: what it takes, gives back and says that it cost."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from edgeveil.errors import PrivacyError
from edgeveil.privacy.duchi_mechanism import duchi_event
from edgeveil.privacy.events import event_from_dict, to_dict
from edgeveil.privacy.gaussian_mechanism import gaussian_event
from edgeveil.privacy.laplace_mechanism import laplace_event
from edgeveil.privacy.sampler import SeededRandom
from edgeveil.privacy.selection_mechanism import selection_event
from tests.kits.mechanisms import MECHANISMS

STEPS = np.arange(-20, 20, dtype=np.int64).reshape(4, 10)
SCORES = np.arange(40, dtype=np.int64)
SOFTMAX = np.full((4, 10), 0.1)
EVENTS = {
    "gaussian": gaussian_event("sum", 1 << 20, 0.5, STEPS.size, grid_bits=20),
    "laplace": laplace_event("sum", 1 << 20, 1 << 20, 1.0, STEPS.size, 20),
    "softmax": replace(
        laplace_event("per-sample softmax", 2 << 20, 2 << 20, 2.0, SOFTMAX.size, 20),
        unit="record",
        purpose="infer",
    ),
    "two_value": duchi_event("values", Fraction(1, 2), STEPS.size),
    "exponential": selection_event("choice", SCORES.size, 1, 0.1),
}
CASES = {
    "gaussian": (STEPS, EVENTS["gaussian"]),
    "laplace": (STEPS, EVENTS["laplace"]),
    "softmax": (SOFTMAX, 2.0),
    "two_value": (STEPS / 20, EVENTS["two_value"]),
    "exponential": (SCORES, EVENTS["exponential"]),
}
PRICED_BEFORE = [name for name in CASES if name != "softmax"]  # it makes its event of what it gets


@pytest.fixture(params=list(MECHANISMS))
def name(request):
    return request.param


def test_every_mechanism_is_here():
    assert set(CASES) == set(EVENTS) == set(MECHANISMS)


def released(name, seed=0):
    values, price = CASES[name]
    before = values.copy()
    found = MECHANISMS[name](values, price, random_bytes=SeededRandom(seed))
    np.testing.assert_array_equal(values, before)
    return found


def test_it_gives_back_the_form_it_was_given_or_one_index(name):
    values, (found, event) = CASES[name][0], released(name)
    if name == "exponential":
        assert isinstance(found, int)
        assert 0 <= found < len(values)
    else:
        assert found.shape == values.shape
        assert np.isfinite(found).all()
    assert event == EVENTS[name]
    assert event.status == "proven"
    assert event_from_dict(to_dict(event)) == event


def test_it_follows_from_its_random_bytes_alone(name):
    def drawn(seed):
        return np.asarray(released(name, seed)[0]).tobytes()

    assert drawn(1) == drawn(1)
    assert len({drawn(seed) for seed in range(10)}) > 1


@pytest.mark.parametrize("priced", PRICED_BEFORE)
def test_another_number_of_values_than_was_priced_is_refused(priced):
    values, price = CASES[priced]
    with pytest.raises(PrivacyError, match="priced as"):
        MECHANISMS[priced](values.ravel()[1:], price, random_bytes=SeededRandom(0))

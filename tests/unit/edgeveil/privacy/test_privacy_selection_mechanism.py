import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from edgeveil.errors import PrivacyError
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import event_from_dict, to_dict
from edgeveil.privacy.sampler import SeededRandom
from edgeveil.privacy.selection_mechanism import exponential_mechanism, selection_event

SCORES = np.array([3, 0, 7, 7, -4])


def probabilities(scores, scale):
    weights = [math.exp((score - max(scores)) / float(scale)) for score in scores]
    return [w / math.fsum(weights) for w in weights]


@pytest.mark.parametrize("scale", [Fraction(5, 2), Fraction(4), Fraction(30)])
def test_a_selection_has_its_exact_probabilities(scale):
    """At this scale for scores of sensitivity 1; half of it is found with chance 0.99999."""
    event, random_bytes = selection_event("choice", 5, 1, 2 / scale), SeededRandom(1)
    drawn = [exponential_mechanism(SCORES, event, random_bytes)[0] for _ in range(5_000)]
    counts = np.bincount(drawn, minlength=5)
    expected = np.array(probabilities(SCORES, scale)) * sum(counts)
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert chi2.sf(statistic, len(counts) - 1) > 1e-4


@given(
    st.lists(st.tuples(st.integers(-20, 20), st.integers(-3, 3)), min_size=1, max_size=6),
    st.fractions(1, 40, max_denominator=9),
)
@settings(deadline=None, max_examples=60)
def test_neighbours_stay_within_the_priced_epsilon(pairs, scale):
    one, other = [u for u, _ in pairs], [u + v for u, v in pairs]
    event = selection_event("c", len(pairs), 3, Fraction(6) / scale)
    assert event.epsilon == 6 / scale
    gaps = zip(probabilities(one, scale), probabilities(other, scale), strict=True)
    assert all(abs(math.log(p / q)) <= float(event.epsilon) + 1e-9 for p, q in gaps)


def test_a_selection_of_an_earlier_ledger_is_read_at_its_price():
    event = selection_event("c", 9, 5, 1)
    earlier = event_from_dict({**to_dict(event), "mechanism": "report_noisy_max"})
    assert epsilon([earlier], 0.0).epsilon == epsilon([event], 0.0).epsilon


def test_meaningless_selections_are_refused():
    for bad in ((0, 1, 1.0), (3, 0, 1.0), (3, 1, 0.0), (3, 1, -1.0), (3, 1, math.inf)):
        with pytest.raises(PrivacyError):
            selection_event("c", *bad)
    with pytest.raises(PrivacyError, match=r"shape \(4,\)"):
        exponential_mechanism(np.zeros(4, np.int64), selection_event("c", 3, 1, 1.0))

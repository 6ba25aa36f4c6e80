import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, chi2_contingency

from edgeveil.errors import PrivacyError
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import SELECTIONS, event_from_dict, to_dict
from edgeveil.privacy.sampler import SeededRandom
from edgeveil.privacy.selection_mechanism import (
    SOURCES,
    exponential_mechanism,
    report_noisy_max,
    selection_event,
)

SCORES = [3, 0, 7, 7, -4]
DRAW = {"exponential": exponential_mechanism, "report_noisy_max": report_noisy_max}


def event_of(mechanism, candidates, scale):
    """An event whose scale is exactly `scale` steps, for scores of sensitivity 1."""
    return selection_event("choice", candidates, 1, 2 / Fraction(scale), mechanism=mechanism)


def coins(scores, scale):
    return [math.exp((score - max(scores)) / float(scale)) for score in scores]


def exponential_probabilities(scores, scale):
    weights = coins(scores, scale)
    return [w / math.fsum(weights) for w in weights]


def noisy_max_probabilities(scores, scale):
    """By all orders of the candidates: the first whose coin falls heads."""
    heads = coins(scores, scale)
    found = [0.0] * len(scores)
    orders = list(itertools.permutations(range(len(scores))))
    for order in orders:
        left = 1.0
        for i in order:
            found[i] += left * heads[i] / len(orders)
            left *= 1 - heads[i]
    return found


EXACT = {"exponential": exponential_probabilities, "report_noisy_max": noisy_max_probabilities}


def p_value(counts, probabilities):
    expected = np.array(probabilities) * sum(counts)
    statistic = ((np.array(counts) - expected) ** 2 / expected).sum()
    return chi2.sf(statistic, len(counts) - 1)


def draw(mechanism, scores, scale, times, seed):
    event = event_of(mechanism, len(scores), scale)
    random_bytes = SeededRandom(seed)
    array = np.array(scores)
    drawn = [DRAW[mechanism](array, event, random_bytes)[0] for _ in range(times)]
    return np.bincount(drawn, minlength=len(scores))


@pytest.mark.parametrize("mechanism", SELECTIONS)
@pytest.mark.parametrize("scale", [Fraction(5, 2), Fraction(4), Fraction(30)])
def test_a_selection_has_its_exact_probabilities(mechanism, scale):
    counts = draw(mechanism, SCORES, scale, 8_000, seed=1)
    assert p_value(counts, EXACT[mechanism](SCORES, scale)) > 1e-4


@pytest.mark.parametrize("mechanism", SELECTIONS)
def test_the_check_itself_notices_the_other_mechanism(mechanism):
    counts = draw(mechanism, SCORES, 4, 8_000, seed=1)
    other = next(name for name in SELECTIONS if name != mechanism)
    assert p_value(counts, EXACT[other](SCORES, 4)) < 1e-6


@pytest.mark.parametrize("mechanism", SELECTIONS)
@given(
    st.lists(st.tuples(st.integers(-20, 20), st.integers(-3, 3)), min_size=1, max_size=6),
    st.fractions(1, 40, max_denominator=9),
)
@settings(deadline=None, max_examples=60)
def test_neighbours_stay_within_the_priced_epsilon(mechanism, pairs, scale):
    one, other = [u for u, _ in pairs], [u + v for u, v in pairs]
    event = selection_event("c", len(pairs), 3, Fraction(6) / scale, mechanism=mechanism)
    assert event.epsilon == 6 / scale
    gaps = zip(EXACT[mechanism](one, scale), EXACT[mechanism](other, scale), strict=True)
    assert all(abs(math.log(p / q)) <= float(event.epsilon) + 1e-9 for p, q in gaps)


@pytest.mark.parametrize("mechanism", SELECTIONS)
def test_agrees_with_opendp(mechanism):
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.linf_distance(T=int)
    gumbel, exponential = dp.zero_concentrated_divergence(), dp.max_divergence()
    noise = gumbel if mechanism == "exponential" else exponential
    theirs = dp.m.make_noisy_max(*space, noise, scale=4.0)
    oracle = np.bincount([theirs(SCORES) for _ in range(10_000)], minlength=len(SCORES))
    table = [oracle, draw(mechanism, SCORES, 4, 10_000, seed=5)]
    assert chi2_contingency(table).pvalue > 1e-6


@pytest.mark.parametrize("mechanism", SELECTIONS)
def test_the_event_states_the_price(mechanism):
    event = selection_event("c", 9, 5, Fraction(1, 3), mechanism=mechanism)
    assert to_dict(event) == {
        "kind": "selection",
        "what": "c",
        "unit": "record",
        "purpose": "train",
        "neighbours": "add_or_remove",
        "status": "proven",
        "source": SOURCES[mechanism],
        "mechanism": mechanism,
        "candidates": 9,
        "sensitivity_steps": 5,
        "scale_numerator": "30",
        "scale_denominator": "1",
        "grid_bits": 0,
        "monotonic": False,
    }
    assert event_from_dict(json.loads(json.dumps(to_dict(event)))) == event
    total = epsilon([event] * 3, 1e-5)
    assert (total.delta, total.status) == (0.0, "proven")
    assert 1.0 <= total.epsilon <= 1.0 + 1e-15


@pytest.mark.parametrize(
    "change",
    [{"monotonic": 1}, {"monotonic": "true"}, {"mechanism": "best"}, {"candidates": True}],
)
def test_what_is_not_a_selection_is_refused(change):
    with pytest.raises(PrivacyError):
        event_from_dict({**to_dict(selection_event("c", 9, 5, 1)), **change})


def test_meaningless_selections_are_refused():
    for bad in ((0, 1, 1.0), (3, 0, 1.0), (3, 1, 0.0), (3, 1, -1.0), (3, 1, math.inf)):
        with pytest.raises(PrivacyError):
            selection_event("c", *bad)
    with pytest.raises(PrivacyError, match="unknown mechanism"):
        selection_event("c", 3, 1, 1.0, mechanism="argmax")
    event = selection_event("c", 3, 1, 1.0)
    with pytest.raises(PrivacyError, match="priced as exponential"):
        report_noisy_max(np.zeros(3, np.int64), event)
    with pytest.raises(PrivacyError, match=r"shape \(4,\)"):
        exponential_mechanism(np.zeros(4, np.int64), event)

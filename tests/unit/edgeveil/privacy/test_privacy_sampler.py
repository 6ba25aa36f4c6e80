import math
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp
from scipy.stats import chi2, chi2_contingency, norm

from edgeveil.errors import PrivacyError
from edgeveil.privacy import sampler
from edgeveil.privacy.derived import DerivedRandom
from edgeveil.privacy.sampler import (
    EXPANDED,
    MOST_BITS,
    LazyUniform,
    SeededRandom,
    _boxes,
    boxed_gaussian,
    discrete_gaussian,
    discrete_laplace,
    exp_bracket,
    os_random,
)


def exact_probabilities(weight, cells):
    """P(x) for |x| <= cells, all else in one last cell; the weights are summed far out."""
    total = math.fsum(weight(k) for k in range(-4000, 4001))
    inner = [weight(k) / total for k in range(-cells, cells + 1)]
    return np.array([*inner, 1 - math.fsum(inner)])


def p_value(sample, probabilities, cells):
    inside = sample[np.abs(sample) <= cells]
    counts = np.bincount(inside + cells, minlength=2 * cells + 1)
    observed = np.append(counts, len(sample) - len(inside))
    expected = probabilities * len(sample)
    used = expected > 5
    statistic = ((observed - expected)[used] ** 2 / expected[used]).sum()
    return chi2.sf(statistic, used.sum() - 1)


def derived(number):
    """Noise as a device derives it, of a question of its own."""
    return DerivedRandom(number.to_bytes(32, "big")).bound("law", np.zeros(1, np.int64))


def gaussian_law(variance):
    return lambda k: math.exp(-k * k / (2 * variance)), int(3 * math.sqrt(variance)) + 1


def laplace_law(scale):
    return lambda k: math.exp(-abs(k) / scale), int(4 * scale) + 1


SIZES = (1, 10), (7, 3), (400, 1), (1600, 1)


@pytest.mark.parametrize("source", [SeededRandom, derived])
@pytest.mark.parametrize(
    ("draw", "law", "size"),
    [
        *((discrete_gaussian, gaussian_law, Fraction(*of)) for of in SIZES),
        *((boxed_gaussian, gaussian_law, Fraction(*of)) for of in SIZES),
        *((discrete_laplace, laplace_law, Fraction(*of)) for of in ((1, 3), (13, 2), (40, 1))),
    ],
)
def test_discrete_noise_has_its_exact_probabilities(draw, law, size, source):
    weight, cells = law(size)
    sample = draw(size, (3_000_000 if draw is boxed_gaussian else 300_000,), source(1))
    assert p_value(sample, exact_probabilities(weight, cells), cells) > 1e-4


@pytest.mark.parametrize("variance", [2**60 + 2, 2**80])
def test_many_values_on_a_fine_grid_spread_as_a_gaussian(variance):
    places = norm.cdf(boxed_gaussian(variance, (1_000_000,), SeededRandom(6)) / variance**0.5)
    counts = np.histogram(places, 1000, (0, 1))[0]
    assert chi2.sf(((counts - 1000) ** 2 / 1000).sum(), 999) > 1e-4


VARIANCES = Fraction(1, 10), Fraction(7, 3), Fraction(1600), Fraction(2**60 + 2)


def curve(x, variance):
    mp.prec = 2000
    return mp.exp(-(mp.mpf(int(x)) ** 2) * variance.denominator / (2 * variance.numerator))


@pytest.mark.parametrize("variance", VARIANCES)
def test_boxes_cover_the_curve_and_those_taken_unasked_lie_below_it(variance):
    starts, _, sure, width, scale = _boxes(variance)
    columns, counts = np.unique(starts, return_counts=True)
    below = dict(zip(*np.unique(starts[:sure], return_counts=True), strict=True))
    assert np.array_equal(columns, np.arange(columns[0], -columns[0], width))
    assert curve(columns[0], variance) < 2.0**-1000
    for begin, boxes in zip(columns, counts, strict=True):
        ends = sorted(abs(int(end)) for end in (begin, begin + width - 1))
        assert boxes >= curve(ends[0], variance) * scale
        assert below.get(begin, 0) <= curve(ends[1], variance) * scale


@pytest.mark.parametrize(
    ("draw", "count", "asked"), [(discrete_gaussian, 300, 900), (boxed_gaussian, 20_000, 5)]
)
@pytest.mark.parametrize("sigma", [1, 50, 2**26, 2**40])
def test_every_decision_by_exact_arithmetic_gives_the_same_draws(
    sigma, draw, count, asked, monkeypatch
):
    fast = draw(sigma**2, (count,), SeededRandom(3))
    monkeypatch.setattr(sampler, "LOG_MARGIN", math.inf)
    monkeypatch.setattr(sampler, "ACCEPT_MARGIN", 2.0)
    exact_calls = 0
    compare = LazyUniform.less_than_exp

    def counted(self, gamma):
        nonlocal exact_calls
        exact_calls += 1
        return compare(self, gamma)

    monkeypatch.setattr(LazyUniform, "less_than_exp", counted)
    slow = draw(sigma**2, (count,), SeededRandom(3))
    assert exact_calls > asked
    np.testing.assert_array_equal(fast, slow)


@given(
    st.fractions(min_value=0, max_value=60, max_denominator=10**12), st.sampled_from([64, 128, 192])
)
@settings(max_examples=60, deadline=None)
def test_the_bracket_holds_exp_between_neighbouring_integers(gamma, bits):
    low, high = exp_bracket(gamma, bits)
    mp.prec = 400
    value = mp.exp(-mp.mpf(gamma.numerator) / gamma.denominator) * mp.mpf(2) ** bits
    assert low <= value <= high
    assert high - low <= 2


class CountedUniform(LazyUniform):
    """Counts comparisons and words, and says where a search goes astray."""

    compared = 0

    def less_than_exp(self, gamma):
        self.compared += 1
        assert self.compared < 300
        return super().less_than_exp(gamma)


WORDS = (0, 1, 2, 3, 5, 2**20, 2**40 + 1, 2**52 - 1, 2**63, 2**64 - 2, 2**64 - 1)
NEXT = (0, 1, 2**63, 2**64 - 1)


@pytest.mark.parametrize("scale", [Fraction(1, 3), Fraction(1), Fraction(10**6, 7), 2**40])
@pytest.mark.parametrize("following", NEXT)
@pytest.mark.parametrize("word", WORDS)
def test_a_geometric_draw_is_the_floor_for_every_word(word, following, scale):
    rest = Random(1)
    tail = [following, *(rest.getrandbits(64) for _ in range(15))]
    words = iter(tail)
    draw = CountedUniform(word, 64, lambda n: next(words).to_bytes(n, "little"))
    found = draw.geometric(Fraction(scale))
    mp.prec = 1400
    bits = word
    for one in tail:
        bits = bits << 64 | one
    t = mp.mpf(Fraction(scale).numerator) / Fraction(scale).denominator
    ends = [-t * mp.log(mp.mpf(b) / mp.mpf(2) ** (64 * 17)) for b in (bits, bits + 1)]
    assert [int(mp.floor(end)) for end in ends] == [found, found]


@pytest.mark.parametrize("byte", [b"\0", b"\xff"])
@pytest.mark.parametrize("word", [0, 1, 2**64 - 1])
def test_a_geometric_draw_ends_when_all_further_bits_are_the_same(word, byte):
    drawn = []
    draw = CountedUniform(word, 64, lambda n: drawn.append(n) or byte * n)
    found = draw.geometric(Fraction(2**40))
    assert len(drawn) <= 16
    if (word, byte) == (0, b"\0"):
        assert len(drawn) == 16
        assert 0 <= found - 2**40 * MOST_BITS * math.log(2) + 2**40 * math.log(3) < 2**42
    if word == 2**64 - 1:
        assert found == 0


def test_a_comparison_ends_where_the_bits_follow_exp_for_ever():
    mp.prec = 4000
    digits = int(mp.exp(-mp.mpf("0.5")) * mp.mpf(2) ** 3200)
    words = iter((digits >> shift) & (2**64 - 1) for shift in range(3200 - 128, 0, -64))
    drawn = []
    draw = LazyUniform(
        digits >> (3200 - 64), 64, lambda n: drawn.append(n) or next(words).to_bytes(n, "little")
    )
    assert draw.less_than_exp(Fraction(1, 2)) is False
    assert 64 * len(drawn) == MOST_BITS - 64
    assert Fraction(3, 2**MOST_BITS) < Fraction(1, 2**1000)  # as likely as bits so near are


@pytest.mark.parametrize("count", [0, 1, EXPANDED - 1, EXPANDED, 1 << 20])
def test_bytes_of_the_operating_system_are_new_in_each_call(count):
    first, second = os_random(count), os_random(count)
    assert len(first) == len(second) == count
    assert (first == second) == (count == 0) or count == 1
    if count == 1 << 20:
        counts = np.bincount(np.frombuffer(first, np.uint8), minlength=256)
        assert chi2.sf(((counts - 4096) ** 2 / 4096).sum(), 255) > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_agrees_with_opendp(noise):
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    whole = dp.vector_domain(dp.atom_domain(T=int))
    if noise == "gaussian":
        theirs = dp.m.make_gaussian(whole, dp.l2_distance(T=float), scale=3.0)
        ours = discrete_gaussian(9, (20_000,), SeededRandom(4))
    else:
        theirs = dp.m.make_laplace(whole, dp.l1_distance(T=int), scale=3.0)
        ours = discrete_laplace(3, (20_000,), SeededRandom(4))
    drawn = (theirs([0] * 20_000), ours)
    table = [np.bincount(np.clip(np.asarray(s) + 9, 0, 18), minlength=19) for s in drawn]
    assert chi2_contingency(table).pvalue > 1e-6


@pytest.mark.parametrize("bad", [0, -1, 2**81])
def test_meaningless_scales_are_refused(bad):
    with pytest.raises(PrivacyError):
        discrete_gaussian(bad, (1,))
    with pytest.raises(PrivacyError):
        boxed_gaussian(bad, (1,))
    with pytest.raises(PrivacyError):
        discrete_laplace(bad, (1,))

"""The same question has the same noise; another one, another sum, another draw or law has other."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chi2_contingency, kstest, norm

from edgeveil.crypto.keys import LedgerKey, NoiseKey
from edgeveil.errors import PrivacyError
from edgeveil.parts.methods.fm_sums import noised
from edgeveil.privacy.derived import NoiseContext, bound, noise_by_context, noise_context_key
from edgeveil.privacy.duchi_mechanism import duchi_event, duchi_mechanism
from edgeveil.privacy.events import ClaimedEvent
from edgeveil.privacy.gaussian_mechanism import (
    clipped_steps,
    gaussian,
    gaussian_event,
    noised_step,
    poisson_sample,
    sampled_gaussian_event,
    update_event,
)
from edgeveil.privacy.laplace_mechanism import laplace, laplace_event, softmax_laplace
from edgeveil.privacy.ledger import Ledger
from edgeveil.privacy.sampler import discrete_gaussian, discrete_laplace
from edgeveil.privacy.selection_mechanism import exponential_mechanism, selection_event

KEY = NoiseKey.from_bytes(bytes(range(32)))
QUESTION = NoiseContext("pictures", "4a" * 16, 3, bytes(32))
SIZE = 200
TOTAL = np.arange(SIZE, dtype=np.int64)


def stream(question=QUESTION):
    return noise_by_context(KEY)(question)


@pytest.mark.parametrize(
    "other",
    [
        replace(QUESTION, dataset="pictures2"),
        replace(QUESTION, job_id="4b" * 16),
        replace(QUESTION, round=4),
        replace(QUESTION, package_digest=bytes(31) + b"\1"),
        NoiseContext("picture", "s" + "4a" * 16, 3, bytes(32)),
    ],
    ids=["dataset", "job", "exchange", "package", "boundary"],
)
def test_a_question_is_all_of_its_parts(other):
    assert noise_context_key(KEY, QUESTION) == noise_context_key(KEY, replace(QUESTION))
    assert noise_context_key(KEY, other) != noise_context_key(KEY, QUESTION)
    assert stream(other)(64) != stream()(64) == stream()(64)


def test_the_samples_go_on_and_do_not_repeat():
    one, whole = stream(), stream()(1000)
    assert b"".join(one(n) for n in (1, 63, 64, 372, 500)) == whole
    assert one(64) not in whole


def mechanisms():
    """What adds noise to exact values: name, and (values, stream) -> what is sent."""
    g = gaussian_event("g", 2**28, 0.5, SIZE, grid_bits=28)
    triangle = gaussian_event("t", 2**28, 0.5, 210, grid_bits=28, layout="symmetric")
    step = sampled_gaussian_event("s", 0.5, 4, 2**30, SIZE, grid_bits=30, noise_multiplier=2.0)
    claimed = ClaimedEvent(what="w", unit="record", claimed_epsilon=1.0)
    flat = laplace_event("l", 2**24, 2**24, 1.0, SIZE, 24)
    two = duchi_event("v", Fraction(1, 2), SIZE)
    update = update_event("u", 1.0, SIZE, 1.0, 1e-5, 3)
    exponential = selection_event("e", SIZE, 100, 1.0)
    wide = np.arange(210)
    return {
        "gaussian": lambda v, r: gaussian(v, g, r)[0],
        "symmetric": lambda v, r: gaussian(wide + v[0], triangle, r)[0],
        "laplace": lambda v, r: laplace(v, flat, r)[0],
        "sampled": lambda v, r: noised_step(v, step, r),
        "wishart": lambda v, r: noised(wide + v[0], claimed, r),
        "two values": lambda v, r: duchi_mechanism(v / SIZE, two, r)[0],
        "update": lambda v, r: gaussian(
            clipped_steps(v.astype(float), update.sensitivity_steps, update.grid_bits), update, r
        )[0],
        "softmax": lambda v, r: softmax_laplace(v / v.sum(), 1.0, random_bytes=r)[0],
        "selection": lambda v, r: np.array(
            [exponential_mechanism(v, exponential, r)[0] for _ in range(12)]
        ),
    }


@pytest.mark.parametrize("name", mechanisms())
def test_every_mechanism_binds_its_noise_to_its_values(name):
    sent = mechanisms()[name]
    one, twice = stream(), [sent(TOTAL, stream()) for _ in range(2)]
    np.testing.assert_array_equal(*twice)
    np.testing.assert_array_equal(sent(TOTAL, one), twice[0])
    assert not np.array_equal(sent(TOTAL, one), twice[0])  # the next draw of the same answer
    other = TOTAL.copy()
    other[0] += 1  # one step
    moved = sent(other, stream()).astype(float) - twice[0]
    assert (np.abs(moved) > 1e-5).mean() > 0.25  # of two values, half are the same by chance


def test_the_samples_say_nothing_of_the_noise_and_are_not_moved_by_it():
    one, other = stream(), stream()
    event = gaussian_event("g", 2**28, 0.5, SIZE, grid_bits=28)
    first = [poisson_sample(1000, 0.3, one), gaussian(TOTAL, event, one)[0]]
    second = [poisson_sample(1000, 0.3, other), gaussian(TOTAL + 1, event, other)[0]]
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(poisson_sample(999, 0.3, one), poisson_sample(999, 0.3, other))


@pytest.mark.parametrize("draw", [discrete_gaussian, discrete_laplace])
def test_noise_that_is_bound_to_no_sum_is_refused(draw):
    with pytest.raises(PrivacyError, match="bound to the sum"):
        draw(100, (3,), stream())
    assert draw(100, (3,), bound(stream(), "law", TOTAL)).shape == (3,)


@pytest.mark.parametrize(
    "other",
    [
        ("law 2", TOTAL),
        ("law", TOTAL + 1),
        ("law", TOTAL.reshape(2, -1)),
        ("law", TOTAL.astype(np.int32)),
        ("law", TOTAL[:0]),
    ],
    ids=["law", "values", "shape", "type", "none"],
)
def test_a_draw_is_bound_to_law_values_shape_and_type(other):
    assert stream().bound(*other)(64) != stream().bound("law", TOTAL)(64)


def test_streams_of_neighbouring_sums_and_draws_are_independent():
    """Pairs of Gaussians and of bits, among draws and among sums one step apart."""
    one, count = stream(), 200_000
    total = np.zeros(1, np.int64)
    sources = [one.bound("law", total), one.bound("law", total), stream().bound("law", total + 1)]
    samples = [discrete_gaussian(2**40, (count,), source) / 2.0**20 for source in sources]
    samples.append(np.frombuffer(one(8 * count), "<u8") * 2.0**-64)
    for k, first in enumerate(samples):
        for second in samples[:k]:
            correlation = np.corrcoef(first, second)[0, 1] * np.sqrt(count)
            assert abs(norm.cdf(correlation) - 0.5) < 0.4999
            cut = np.histogram2d(first, second, bins=8)[0]
            cut = cut[cut.sum(1) > 500][:, cut.sum(0) > 500]
            assert chi2_contingency(cut).pvalue > 1e-4
    # Sums in a row: the first values of their streams are as good as one stream.
    firsts = [
        int(discrete_gaussian(2**40, (1,), stream().bound("law", total + k))[0]) / 2.0**20
        for k in range(3000)
    ]
    assert kstest(firsts, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(firsts[:-1], firsts[1:])[0, 1]) < 4 / np.sqrt(3000)


def test_a_ledger_has_one_noise_key_for_life(tmp_path):
    ledger = Ledger(tmp_path / "ledger.sqlite", "pictures")
    key = ledger.noise_key()
    ledger.close()
    again = Ledger(tmp_path / "ledger.sqlite", "others")
    assert again.noise_key() == key != Ledger(tmp_path / "second.sqlite", "pictures").noise_key()
    assert key.to_bytes() != LedgerKey.load(tmp_path / "ledger.key").to_bytes()
    assert repr(key) == "NoiseKey(hidden)"

"""`upload_top_k` and `stc` against cases computed by hand."""

import numpy as np
import pytest
from stage_kit import ROUND, flat, stage, task, values

UPDATE = values(0.5, -3.0, 1.0, 0.0, 2.0, -0.25)


def test_top_k_keeps_the_largest_magnitudes_over_all_weights_together():
    found = stage("upload_top_k", share=0.5).apply(task(), UPDATE)
    assert flat(found).tolist() == [0, -3, 1, 0, 2, 0]
    assert {name: array.shape for name, array in found.items()} == {
        name: array.shape for name, array in UPDATE.items()
    }


@pytest.mark.parametrize(("share", "kept"), [(0.01, 1), (0.17, 2), (0.5, 3), (1.0, 6)])
def test_a_share_is_rounded_up(share, kept):
    sent = stage("upload_top_k", share=share).apply(task(), values(1, 2, 3, 4, 5, 6))
    assert np.count_nonzero(flat(sent)) == kept


def test_of_equal_magnitudes_the_earlier_is_kept():
    sent = stage("upload_top_k", share=0.5).apply(task(), values(1, -1, 1, -1, 1, -1))
    assert flat(sent).tolist() == [1, -1, 1, 0, 0, 0]


def test_stc_sends_signs_times_the_mean_magnitude_and_keeps_the_rest():
    """Sattler et al. 2020, alg. 1: of −3, 2 and 1 the mean magnitude is 2."""
    memory = {}
    sent = stage("stc", share=0.5).apply(task(memory), UPDATE)
    assert flat(sent).tolist() == [0, -2, 2, 0, 2, 0]
    assert memory["stc"].tolist() == [0.5, -1, -1, 0, 0, -0.25]


def test_stc_adds_what_was_not_sent_to_the_next_update():
    """Alg. 2: the same update again, beside the residual: 1, −4, 0, 0, 2, −0.5; μ = 7/3."""
    memory = {}
    compress = stage("stc", share=0.5)
    compress.apply(task(memory), UPDATE)
    sent = flat(compress.apply(task(memory), UPDATE))
    np.testing.assert_allclose(sent, [7 / 3, -7 / 3, 0, 0, 7 / 3, 0], rtol=1e-6)
    np.testing.assert_allclose(
        memory["stc"], [1 - 7 / 3, -4 + 7 / 3, 0, 0, 2 - 7 / 3, -0.5], rtol=1e-6
    )


def test_nothing_is_lost_over_many_rounds():
    memory, rng = {}, np.random.default_rng(3)
    compress, given, sent = stage("stc", share=0.2), np.zeros(6), np.zeros(6)
    for _ in range(50):
        update = values(*rng.normal(size=6))
        given += flat(update)
        sent += flat(compress.apply(task(memory), update))
    np.testing.assert_allclose(sent + memory["stc"], given, atol=1e-4)


def test_an_update_of_zeros_stays_one():
    sent = stage("stc").apply(task(), values(*[0.0] * 6))
    assert flat(sent).tolist() == [0] * 6


def test_neither_has_a_price_of_its_own():
    assert stage("upload_top_k").price(ROUND) == stage("stc").price(ROUND) == ()

"""Stages against cases computed by hand: sparse ones, what training starts from, and pipelines."""

from dataclasses import replace

import numpy as np
import pytest
from stage_kit import CONTEXT, ROUND, flat, stage, staged, task, values

from edgeveil.parts.methods import METHODS
from edgeveil.parts.update import WHOLE, Pipeline, UpdateCloud
from edgeveil.privacy.events import ClaimedEvent, GaussianEvent, UnprotectedEvent
from tests.kits.softmax_regression import answer

UPDATE = values(0.5, -3.0, 1.0, 0.0, 2.0, -0.25)


def test_top_k_keeps_the_largest_magnitudes_over_all_weights_together():
    found = stage("upload_top_k", share=0.5).apply(task(), UPDATE)
    assert flat(found).tolist() == [0, -3, 1, 0, 2, 0]
    assert {name: array.shape for name, array in found.items()} == {
        name: array.shape for name, array in UPDATE.items()
    }


def test_stc_sends_signs_times_the_mean_magnitude_and_adds_the_rest_to_the_next_update():
    """Sattler et al. 2020, algs. 1 and 2: of −3, 2 and 1 the mean magnitude is 2; the same update
    beside what is left is 1, −4, 0, 0, 2, −0.5, whose mean is 7/3."""
    memory, compress = {}, stage("stc", share=0.5)
    assert flat(compress.apply(task(memory), UPDATE)).tolist() == [0, -2, 2, 0, 2, 0]
    assert memory["stc"].tolist() == [0.5, -1, -1, 0, 0, -0.25]
    sent, mu = flat(compress.apply(task(memory), UPDATE)), 7 / 3
    np.testing.assert_allclose(sent, [mu, -mu, 0, 0, mu, 0], rtol=1e-6)
    np.testing.assert_allclose(memory["stc"], [1 - mu, -4 + mu, 0, 0, 2 - mu, -0.5], rtol=1e-6)


GLOBAL = values(1, 2, 3, 4, 5, 6)
OWN = values(-1, -2, -3, -4, -5, -6)
MEMORY = {f"own/{name}": array for name, array in OWN.items()}


@pytest.mark.parametrize(("share", "taken"), [(0.01, 1), (0.5, 3), (1.0, 6)])
def test_a_share_is_the_global_weights_and_the_rest_the_device_s_own(share, taken):
    pipeline = Pipeline(staged(stage("download_random", share=share)))
    found = flat(pipeline.start(task(MEMORY, GLOBAL)))
    assert np.abs(found).tolist() == [1, 2, 3, 4, 5, 6]
    assert np.count_nonzero(found > 0) == taken
    assert flat(Pipeline(staged(TOP)).start(task(MEMORY, GLOBAL))).tolist() == [1, 2, 3, 4, 5, 6]


def test_the_places_are_drawn_anew_in_each_round_and_all_alike():
    chosen = np.zeros(6)
    for seed in range(600):
        given = task(MEMORY, GLOBAL, seed=seed)
        chosen += flat(stage("download_random", share=0.5).start(given)) > 0
    assert (np.abs(chosen - 300) < 75).all()  # six standard deviations


def test_the_trained_weights_are_kept_and_the_update_stays_as_it_is():
    given, update = task(weights=GLOBAL), values(0.5, 0, 0, 0, 0, -1)
    assert stage("download_random").apply(given, update) is update
    kept = flat({name.removeprefix("own/"): array for name, array in given.memory.items()})
    assert kept.tolist() == [1.5, 2, 3, 4, 5, 5]


BARE = (UnprotectedEvent(what="update without noise", unit="record"),)
NOISE, TOP, STC = stage("gradient_gaussian"), stage("upload_top_k", share=0.5), stage("stc")


def price(*stages):
    return Pipeline(staged(*stages)).price(ROUND, BARE)


def test_without_noise_the_update_stays_unprotected():
    assert price() == price(TOP) == price(STC, stage("download_random")) == BARE


@pytest.mark.parametrize("stages", [(NOISE,), (NOISE, TOP), (NOISE, TOP, STC)])
def test_noise_prices_the_whole_update_and_what_follows_is_free(stages):
    (event,) = price(*stages)
    assert isinstance(event, GaussianEvent)


@pytest.mark.parametrize("stages", [(TOP, NOISE), (STC, NOISE, TOP), (TOP, stage("ldp_fl"))])
def test_noise_on_values_chosen_before_it_is_claimed(stages):
    (event,) = price(*stages)
    assert isinstance(event, ClaimedEvent)
    assert event.claimed_epsilon == pytest.approx(CONTEXT.epsilon / CONTEXT.max_participations)


def test_what_was_not_chosen_gets_no_noise():
    update = values(3, 0.1, -2, 0.1, 1, 0.1)
    sent = flat(Pipeline(staged(TOP, NOISE)).apply(task(), update))
    assert (sent != 0).tolist() == [True, False, True, False, True, False]
    after = flat(Pipeline(staged(NOISE, TOP)).apply(task(), update))
    assert np.count_nonzero(after) == 3


def test_a_cast_update_travels_in_half_the_bytes_and_never_under_masks():
    whole = replace(staged(), whole=True)
    half = replace(staged(stage("cast")), whole=True)
    sent, rounded = (answer("sgd", context=one).segments[WHOLE] for one in (whole, half))
    assert rounded.dtype == np.float16 and np.any(rounded)
    np.testing.assert_array_equal(rounded, sent.astype(np.float16))
    for context, size in ((whole, 4), (half, 2)):
        (spec,) = UpdateCloud(METHODS["sgd"].made(rounds=2), context).segments(ROUND)
        assert spec.byte_count == size * sent.size

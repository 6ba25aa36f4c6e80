"""Stages in a row: the price of an order, and what an order sends."""

import numpy as np
import pytest
from stage_kit import ROUND, SETTING, flat, stage, staged, task, values

from edgeveil.parts.methods.update_method import Pipeline
from edgeveil.privacy.events import ClaimedEvent, GaussianEvent, UnprotectedEvent

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
    assert event.claimed_epsilon == pytest.approx(SETTING.epsilon / SETTING.max_participations)


def test_what_was_not_chosen_gets_no_noise():
    update = values(3, 0.1, -2, 0.1, 1, 0.1)
    sent = flat(Pipeline(staged(TOP, NOISE)).apply(task(), update))
    assert (sent != 0).tolist() == [True, False, True, False, True, False]
    after = flat(Pipeline(staged(NOISE, TOP)).apply(task(), update))
    assert np.count_nonzero(after) == 3


def test_training_starts_where_a_stage_says():
    leads = stage("download_random")
    memory = {f"own/{name}": array for name, array in values(*[7.0] * 6).items()}
    started = flat(Pipeline(staged(leads)).start(task(memory)))
    assert sorted(started) == [0, 0, 0, 7, 7, 7]
    assert flat(Pipeline(staged(TOP)).start(task(memory))).tolist() == [0] * 6

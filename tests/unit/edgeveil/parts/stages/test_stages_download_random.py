"""`download_random`: what training starts from, and what the device keeps."""

import numpy as np
import pytest
from stage_kit import flat, stage, task, values

GLOBAL = values(1, 2, 3, 4, 5, 6)
OWN = values(-1, -2, -3, -4, -5, -6)


def memory_of(weights):
    return {f"own/{name}": array for name, array in weights.items()}


def test_the_first_time_all_weights_are_the_global_ones():
    assert stage("download_random").start(task(weights=GLOBAL)) is None


@pytest.mark.parametrize(("share", "taken"), [(0.01, 1), (0.5, 3), (1.0, 6)])
def test_a_share_is_the_global_weights_and_the_rest_the_device_s_own(share, taken):
    started = stage("download_random", share=share).start(task(memory_of(OWN), GLOBAL))
    found, signs = flat(started), np.sign(flat(started))
    assert np.abs(found).tolist() == [1, 2, 3, 4, 5, 6]
    assert np.count_nonzero(signs > 0) == taken


def test_the_places_are_drawn_anew_in_each_round_and_all_alike():
    chosen = np.zeros(6)
    for seed in range(600):
        given = task(memory_of(OWN), GLOBAL, seed=seed)
        chosen += flat(stage("download_random", share=0.5).start(given)) > 0
    assert (np.abs(chosen - 300) < 75).all()  # six standard deviations


def test_the_trained_weights_are_kept_and_the_update_stays_as_it_is():
    given = task(weights=GLOBAL)
    update = values(0.5, 0, 0, 0, 0, -1)
    assert stage("download_random").apply(given, update) is update
    assert flat({k.removeprefix("own/"): v for k, v in given.memory.items()}).tolist() == [
        1.5,
        2,
        3,
        4,
        5,
        5,
    ]

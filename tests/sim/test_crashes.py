"""A process ends at every boundary between two effects, one run each, and is started again.

It loses its memory, its timers and what was on the way to it; what it stored stays. Whatever the
boundary: the job comes to its end, nothing counts twice, no acknowledged upload is missing, and
the stores are clean.
"""

import pytest

from tests.sim.lossy_fleet import LossyFleet
from tests.sim.test_lossy_fleet import play

pytestmark = pytest.mark.slow


PLACES = {"device": 0, "other device": 1, "proxy": 3, "cloud": 4}  # as `LossyFleet` counts them


def played(*deaths):
    of = [(PLACES[who], number) for who, number in deaths]
    fleet = LossyFleet(devices=3, selected=3, rounds=2, deaths=of)
    fleet.net.clean_sessions = True
    try:
        play(fleet)
    except Exception as error:
        raise AssertionError(f"with {deaths}: {type(error).__name__}: {error}") from error
    return fleet


@pytest.fixture(scope="module")
def boundaries():
    fleet = played()
    assert fleet.died == 0
    assert [attempt for attempt, _ in fleet.cloud.committed.values()] == [1, 1]
    return {who: fleet.net.passed[fleet.places[place]] for who, place in PLACES.items()}


@pytest.mark.parametrize("who", ["cloud", "proxy", "device"])
def test_one_death_at_every_boundary(boundaries, who):
    assert boundaries[who] > 40
    for number in range(1, boundaries[who] + 1):
        assert played((who, number)).died == 1

"""Every fuzz target takes its own seeds, and refuses damage by its named errors alone."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.table import NAMES, target
from tests.fuzz.target import Tape

SLOW = {"job_yaml", "site_yaml", "backbone", "ledger", "http", "http-bytes"}


@pytest.mark.parametrize("name", NAMES)
def test_a_target_takes_a_seed_of_its_own_and_takes_or_refuses_damage(name):
    chosen = target(name)
    seeds = list(chosen.seeds())
    assert any([chosen.feed(seed) for seed in seeds])  # noqa: C419 - feeds all of them
    assert max(map(len, seeds)) <= chosen.max_bytes

    @settings(
        max_examples=20 if name in SLOW else 150,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(seeds), st.binary(max_size=40), st.binary(max_size=60))
    def feed(seed, damage, other):
        chosen.feed(Tape(damage).damaged(seed))
        chosen.feed(other)

    feed()

"""Every fuzz target takes its own seeds, and refuses damage by its named errors alone."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgeveil.errors import EdgeVeilError
from tests.fuzz.table import NAMES, target
from tests.fuzz.target import Tape, Target, Wrong, demand

SLOW = {"job_yaml", "backbone", "ledger", "http", "http-bytes"}


@pytest.mark.parametrize("name", NAMES.names())
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


def test_anything_but_a_named_refusal_is_a_finding():
    class RefusedError(EdgeVeilError):
        pass

    def take(data):
        if data == b"refuse":
            raise RefusedError("no")
        if data == b"mute":
            raise RefusedError("")
        demand(data != b"wrong", "not wrong")
        if data == b"crash":
            raise ValueError

    one = Target(take, list, (RefusedError,))
    assert one.feed(b"good") and not one.feed(b"refuse")
    for data, finding in ((b"wrong", Wrong), (b"mute", Wrong), (b"crash", ValueError)):
        with pytest.raises(finding):
            one.feed(data)


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_a_tape_ends_and_stays_in_bounds(tape_bytes, data):
    tape = Tape(tape_bytes)
    assert 0 <= tape.number(7) < 7 and tape.choice("abc") in "abc"
    assert len(tape.damaged(data)) <= len(data) + 4 * 8
    tape.rest()
    assert tape.over and tape.number(256) == 0 and tape.take(3) == b""

"""Laws of the protocol under loss, repetition, delay, reordering and crashes.

Hypothesis writes the tape of what becomes of each frame, and says after which of its effects
a process ends. When the tape is over nothing is lost any more, so the job has to come to its end.
"""

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import Offer, Upload, decode, decode_header
from tests.sim.lossy_fleet import PACKET_BYTES, LossyFleet

pytestmark = pytest.mark.slow

DEVICES = 5
SIMULATED = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
tapes = st.binary(max_size=600)
deaths = st.frozensets(st.tuples(st.integers(0, DEVICES + 1), st.integers(1, 60)), max_size=6)


def uploads_sent(fleet):
    """(device, digest) of each upload offered on the wire: which round and attempt it is for."""
    found = {}
    for sender, _, frame in fleet.net.wire or []:
        message = decode(frame, PACKET_BYTES)
        if isinstance(sender, fx.DeviceAddress) and isinstance(message, Offer):
            header = decode_header(message.header)
            assert isinstance(header, Upload)
            found[sender.id, header.blob.digest] = (header.at.round, header.at.attempt)
    return found


def check_safety(fleet):
    cloud = fleet.cloud
    number_of = {device.id: device.number for device in fleet.devices}
    sealing_of = {d.number: d.opening.public().to_bytes() for d in fleet.devices}
    sent = uploads_sent(fleet)
    held = {(number_of[key[0]], sent[key]) for key in fleet.acknowledged() & sent.keys()}
    for round_, (attempt, groups) in cloud.committed.items():
        for members in groups:
            assert len(members) == len(set(members)), "an upload was counted twice"
            assert {sealing_of[n] for n in members} <= cloud.selected[round_, attempt]
            acknowledged = {n for n, at in held if at == (round_, attempt)}
            assert acknowledged <= set(members), "an acknowledged upload is not in the batch"
    for device in fleet.devices:
        for at in device.opened:
            chosen = cloud.selected[at.round, at.attempt]
            assert sealing_of[device.number] in chosen, "an unselected device opened a model"


def check_liveness(fleet):
    assert fleet.cloud.status == "completed"
    assert sorted(fleet.cloud.committed) == list(range(1, fleet.cloud.rounds + 1))
    fleet.settle()
    for device in fleet.devices:
        assert device.installed, "a device that came back did not get the release"
        memory = device.disk.load()
        assert not memory.uploads and not memory.jobs and len(memory.closed) == 1
    left = fleet.proxy.disk.load()
    assert not left.uploads and not left.batches
    kinds = [kept.header.kind for kept in left.kept.values()]
    assert sorted(kinds) in (["commit", "release"], ["release"]), (
        "only the release and the last record stay"
    )


def play(fleet):
    fleet.run()
    check_safety(fleet)
    check_liveness(fleet)


def test_without_any_loss_all_answers_of_the_first_attempt_count():
    fleet = LossyFleet(selected=4, rounds=3)
    play(fleet)
    assert [attempt for attempt, _ in fleet.cloud.committed.values()] == [1, 1, 1]
    assert {len(group) for _, groups in fleet.cloud.committed.values() for group in groups} == {4}
    assert not any(node.refused for node in fleet.net.nodes.values())


def test_uploads_of_an_unselected_device_take_a_place_but_are_never_counted():
    fleet = LossyFleet(selected=3, rounds=1)
    fleet.until(lambda: any(device.opened for device in fleet.devices))
    (attempt,) = fleet.cloud.selected
    sealing = {d.opening.public().to_bytes(): d for d in fleet.devices}
    outsider = next(d for key, d in sealing.items() if key not in fleet.cloud.selected[attempt])
    fleet.force_upload(outsider, membership=bytes(32))
    assert fleet.finish() == "completed"
    _, groups = fleet.cloud.committed[1]
    assert all(outsider.number not in members for members in groups)
    assert fleet.cloud.foreign == len(groups)


@SIMULATED
@given(tapes, st.booleans())
def test_loss_repetition_delay_and_reordering(tape, pulled):
    play(LossyFleet(tape, push_bytes=2_000 if pulled else 16 << 20))


@SIMULATED
@given(deaths)
def test_processes_that_end_anywhere(points):
    play(LossyFleet(deaths=points))


@SIMULATED
@given(tapes, deaths, st.frozensets(st.integers(0, DEVICES - 1), max_size=1))
def test_loss_crashes_and_declines_together(tape, points, declines):
    play(LossyFleet(tape, deaths=points, declines=declines, rounds=1))


@SIMULATED
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_long_and_heavy_loss(seed, weight):
    chance = Random(seed)
    tape = bytes(chance.choice((0,) * weight + (150, 190, 255)) for _ in range(3000))
    play(LossyFleet(tape, rounds=1))

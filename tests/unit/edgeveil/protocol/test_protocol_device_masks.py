"""A device in a round under masks: first the proxy's key, then the round, and a seed with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from device_bench import MODEL, PACKAGE, SEALED, device, done, receive, snapshot, work_on
from protocol_kit import CLOUD, JOB, PROXY, at, headers, manifest, of, offer, refused, stored, tasks

from edgeveil.protocol import device_round as dr
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import Cover, MaskedGroup, RoundKey, Upload

KEY = bytes(range(32))
MASKED = replace(SEALED, at_once=True, seed=b"s" * 80)
ROUND = manifest(MODEL, masked=(MaskedGroup(0, 10, 40),))


def told(machine, key=KEY, where=None):
    return receive(machine, PROXY.note(RoundKey(where or at(), key)))


@pytest.mark.parametrize(
    "where", [None, at(1, 2), at(2), at(job=b"K" * 16)], ids=["none", "attempt", "round", "job"]
)
def test_without_the_round_s_key_the_round_is_refused_and_nothing_stored(where):
    machine = device()
    if where:
        told(machine, where=where)
    before = snapshot(machine)
    out = receive(machine, offer(ROUND, MODEL))
    assert refused(out) == ["no_round_key"]
    assert stored(out) == tasks(out) == []
    assert snapshot(machine) == before


def test_offered_again_after_its_key_it_is_taken_up():
    machine = device()
    receive(machine, offer(ROUND, MODEL))
    assert told(machine) == []
    assert tasks(receive(machine, offer(ROUND, MODEL))) == [dr.OpenPackage(ROUND, MODEL)]


def test_a_round_without_masks_needs_no_key():
    machine, plain = device(), manifest(MODEL)
    (task,) = tasks(work_on(machine, plain))
    assert task.round_key == b""


def test_the_work_is_given_the_key_and_the_upload_carries_the_seed():
    machine = device()
    told(machine, b"n" * 32, at(1, 2))
    told(machine)
    (task,) = tasks(work_on(machine, ROUND))
    assert task.round_key == KEY
    out = done(machine, dr.ComputeAnswer(ROUND, PACKAGE), MASKED)
    (upload,) = [header for header in headers(out) if isinstance(header, Upload)]
    assert upload.seed == b"s" * 80
    (item,) = stored(out)
    assert item.upload.seed == b"s" * 80


def test_a_key_is_believed_from_the_proxy_alone():
    machine = device()
    out = receive(machine, CLOUD.note(RoundKey(at(), KEY)))
    assert refused(out)
    assert refused(receive(machine, offer(ROUND, MODEL))) == ["no_round_key"]


def test_keys_of_as_many_jobs_as_it_knows_are_kept():
    names = [bytes([number]) * 16 for number in range(4)]
    machine = device(dr.DeviceMemory(jobs=dict.fromkeys([*names, JOB])), jobs=3)
    for name in names:
        told(machine, where=at(job=name))
    found = []
    for name in names:
        header = manifest(MODEL + name, at(job=name), masked=ROUND.masked)
        found.append(refused(receive(machine, offer(header, MODEL + name))))
    assert found == [["no_round_key"], [], [], []]


def test_the_newest_key_of_a_job_takes_the_place_of_the_one_before():
    machine = device()
    told(machine)
    told(machine, b"n" * 32, at(2))
    assert refused(receive(machine, offer(ROUND, MODEL))) == ["no_round_key"]
    later = manifest(MODEL, at(2), masked=ROUND.masked)
    (task,) = tasks(work_on(machine, later))
    assert task.round_key == b"n" * 32


def test_dummies_are_given_the_key_too():
    machine = device()
    receive(machine, PROXY.note(Cover(10.0)))
    told(machine)
    receive(machine, offer(ROUND, MODEL))
    out = done(machine, dr.OpenPackage(ROUND, MODEL), dr.OpenedPackage(None))
    assert tasks(out) == [dr.SealDummies(ROUND, KEY)]


def test_a_stored_answer_needs_no_key_after_a_restart():
    machine = device()
    told(machine)
    work_on(machine, ROUND)
    out = done(machine, dr.ComputeAnswer(ROUND, PACKAGE), MASKED)
    (item,) = stored(out)
    again = device(machine.memory)
    offered = again.handle(fx.PeerConnected(fx.ProxyAddress()), 0.0)
    uploads = [h for h in headers(offered) if isinstance(h, Upload)]
    assert uploads == [item.upload]
    assert of(receive(again, offer(ROUND, MODEL)), fx.Refuse) == []

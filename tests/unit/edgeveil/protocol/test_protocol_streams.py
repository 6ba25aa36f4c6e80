"""Masked uploads reach the cloud while their round is open: in lots, and never the others."""

import hashlib

import protocol_kit as kit
import pytest
from cloud_bench import receive, waiting
from msgspec import structs
from proxy_bench import FLEET, MODEL, from_cloud, send, send_offer, to_cloud
from real_proxy import RealProxy

from edgeveil.crypto.keys import MaskSeed
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.sealed import seal_seed
from edgeveil.protocol.transfer import describe

WIDE, NARROW = m.Group("layer0", 1000), m.Group("softmax", 20)
UPLOAD_BYTES = WIDE.padded_bytes + m.SEAL_OVERHEAD_BYTES
COUNT = len(FLEET)
SMALL = {"lot_bytes": 1, "min_batch_floor": 1, "push_bytes": 1 << 20}


def header_of(**changes):
    plain = {"groups": (WIDE, NARROW), "masked": (m.MaskedGroup(0, 10, 40),), "min_batch": 3}
    return kit.manifest(MODEL, **(plain | {"selected": COUNT, "quorum": COUNT} | changes))


def segments(number, groups):
    sizes = (UPLOAD_BYTES, NARROW.padded_bytes + m.SEAL_OVERHEAD_BYTES)
    return [hashlib.shake_128(b"%d %d" % (number, g)).digest(sizes[g]) for g in groups]


def opened(folder, header=None, **settings):
    folder.mkdir(exist_ok=True)
    machine = RealProxy(folder, **(SMALL | settings))
    from_cloud(machine, kit.offer(header or header_of(), MODEL))
    return machine


def upload(machine, number):
    header, data = header_of(), b"".join(segments(number, (0, 1)))
    made = m.Upload(header.at, (0, 1), describe(data, kit.PART_BYTES))
    key = machine.masks._context.memory.round_key(header.at)
    if key is not None:
        seed = MaskSeed(hashlib.sha256(b"%d" % number).digest())
        sealed = seal_seed(seed, header, FLEET[number].id, key.public().to_bytes())
        made = structs.replace(made, seed=sealed)
    out = send_offer(machine, FLEET[number], made)
    return out + [e for one in kit.parts_of(made, data) for e in send(machine, FLEET[number], one)]


def arrivals(effects):
    return kit.bodies(effects, m.Arrived)


def pulled(machine, blob):
    indices = tuple(range(blob.size_bytes // blob.part_bytes))
    found = kit.messages(from_cloud(machine, m.Need(blob.digest, indices)), m.BlobPart)
    return b"".join(part.data for part in found)


def test_what_is_not_masked_waits_for_all_and_no_device_s_name_goes_on(tmp_path):
    machine, sent, frames = opened(tmp_path), b"", []
    for number in range(COUNT):
        out = upload(machine, number)
        frames += to_cloud(out)
        if number < COUNT - 1:
            sent += b"".join(pulled(machine, arrived.blob) for arrived in arrivals(out))
    assert len(sent) > 3 * UPLOAD_BYTES
    for number in range(COUNT):
        assert segments(number, (1,))[0][:16] not in sent
    said = repr(frames).encode()
    assert all(member.id.encode() not in said for member in FLEET)
    assert arrivals(upload(opened(tmp_path / "plain", header_of(masked=())), 0)) == []


@pytest.mark.parametrize(("floor", "first"), [(1, 2), (2, 4)])
def test_a_lot_has_as_many_uploads_as_the_floor_the_last_one_too(tmp_path, floor, first):
    machine = opened(tmp_path, min_batch_floor=floor)
    machine.slow = True
    for number in range(COUNT):
        upload(machine, number)
        assert bool(machine.waiting) == (number + 1 >= first)
    for task in machine.waiting:
        assert len(task.uploads) >= floor
    batch = machine.masks._context.memory.batches[kit.at()].batch
    assert batch.counts[0] - sum(len(task.uploads) for task in machine.waiting) >= floor


def test_a_part_that_was_not_told_is_refused(tmp_path):
    machine = opened(tmp_path)
    upload(machine, 0)
    (arrived,) = arrivals(upload(machine, 1))
    assert kit.refused(from_cloud(machine, m.Need(arrived.blob.digest, (1,)))) == ["bad_index"]
    assert kit.refused(from_cloud(machine, m.Need(bytes(32), (0,)))) == ["unknown_blob"]


def test_a_lot_that_fails_comes_with_the_next(tmp_path):
    machine = opened(tmp_path)
    machine.slow = True
    upload(machine, 0)
    upload(machine, 1)
    (task,) = machine.waiting
    out = machine.handle(fx.WorkDone(task, fx.WorkFailed("the disk")), 0.0)
    assert "stream_failed" in kit.reports(out)
    upload(machine, 2)
    assert [index for index, _, _ in machine.waiting[-1].uploads] == [0, 1]


def test_a_stream_that_no_proxy_sends_is_refused():
    for size_bytes, part_bytes, reason in (
        (kit.PART_BYTES << 21, kit.PART_BYTES, "oversized_blob"),
        (kit.PART_BYTES + 1, kit.PART_BYTES, "malformed"),
        (0, kit.PART_BYTES, "malformed"),
        (100, 10, "tiny_parts"),
    ):
        arrived = m.Arrived(kit.at(), m.Blob(b"n" * 32, size_bytes, part_bytes))
        assert kit.refused(receive(waiting(), kit.PROXY.note(arrived))) == [reason]

"""Masked uploads reach the cloud while their round is open: in lots, and never the others."""

import hashlib

import protocol_kit as kit
import pytest
from cloud_bench import cloud, receive, waiting
from msgspec import structs
from proxy_bench import FLEET, MODEL, cloud_says, says, to_cloud
from real_proxy import RealProxy

from edgeveil.crypto.keys import MaskSeed
from edgeveil.protocol import cloud_job as cj
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.sealed import seal_seed
from edgeveil.protocol.transfer import describe, part

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
    cloud_says(machine, kit.offer(header or header_of(), MODEL))
    return machine


def upload(machine, number):
    header, data = header_of(), b"".join(segments(number, (0, 1)))
    made = m.Upload(header.at, (0, 1), describe(data, kit.PART_BYTES))
    key = machine.masks._context.memory.round_key(header.at)
    if key is not None:
        seed = MaskSeed(hashlib.sha256(b"%d" % number).digest())
        sealed = seal_seed(seed, header, FLEET[number].id, key.public().to_bytes())
        made = structs.replace(made, seed=sealed)
    out = says(machine, FLEET[number], kit.offer(made, b"", FLEET[number].signer))
    return out + [e for one in kit.parts_of(made, data) for e in says(machine, FLEET[number], one)]


def told(effects):
    return kit.bodies(effects, m.Arrived)


def pulled(machine, blob):
    indices = tuple(range(blob.size_bytes // blob.part_bytes))
    found = kit.messages(cloud_says(machine, m.Need(blob.digest, indices)), m.BlobPart)
    return b"".join(part.data for part in found)


def test_what_is_not_masked_waits_for_all_and_no_device_s_name_goes_on(tmp_path):
    machine, sent, frames = opened(tmp_path), b"", []
    for number in range(COUNT):
        out = upload(machine, number)
        frames += to_cloud(out)
        if number < COUNT - 1:
            sent += b"".join(pulled(machine, arrived.blob) for arrived in told(out))
    assert len(sent) > 3 * UPLOAD_BYTES
    for number in range(COUNT):
        assert segments(number, (1,))[0][:16] not in sent
    said = repr(frames).encode()
    assert all(member.id.encode() not in said for member in FLEET)
    assert told(upload(opened(tmp_path / "plain", header_of(masked=())), 0)) == []


@pytest.mark.parametrize(("floor", "first"), [(1, 2), (2, 4), (3, 6)])
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
    (arrived,) = told(upload(machine, 1))
    assert kit.refused(cloud_says(machine, m.Need(arrived.blob.digest, (1,)))) == ["bad_index"]
    assert kit.refused(cloud_says(machine, m.Need(bytes(32), (0,)))) == ["unknown_blob"]


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


NAME = b"n" * 32
SIZE = 40 * kit.PART_BYTES + 100
DATA = hashlib.shake_128(b"a batch").digest(SIZE)


def arrived(parts, name=NAME, **changes):
    plain = m.Arrived(kit.at(), m.Blob(name, parts * kit.PART_BYTES, kit.PART_BYTES))
    return structs.replace(plain, **changes)


def batch_of(data=DATA, name=NAME):
    return m.Batch(kit.at(), 3, 0, (3,), describe(data, kit.PART_BYTES), name)


def part_of(index, name=NAME, data=DATA):
    return structs.replace(part(describe(data, kit.PART_BYTES), data, index), blob=name)


def asked(effects):
    return [index for need in kit.messages(effects, m.Need) for index in need.indices]


def spooled(effects):
    return [item for item in kit.stored(effects) if isinstance(item, cj.BatchPart)]


def say(machine, body):
    return receive(machine, kit.PROXY.note(body))


def test_parts_on_their_way_when_the_batch_comes_count_under_either_name():
    machine = waiting()
    say(machine, arrived(3))
    receive(machine, part_of(0))
    receive(machine, kit.offer(batch_of(), b"", kit.PROXY))
    assert len(spooled(receive(machine, part_of(1)))) == 1
    assert len(spooled(receive(machine, part_of(2, batch_of().blob.digest)))) == 1


@pytest.mark.parametrize(
    "header",
    [
        batch_of(name=b"o" * 32),
        batch_of(DATA[: 5 * kit.PART_BYTES]),
        structs.replace(batch_of(), blob=describe(DATA, kit.PART_BYTES - 1)),
    ],
    ids=["another stream", "shorter", "other parts"],
)
def test_a_batch_that_does_not_continue_what_came_is_taken_from_its_beginning(header):
    machine = waiting()
    say(machine, arrived(10))
    for index in range(10):
        receive(machine, part_of(index))
    assert asked(receive(machine, kit.offer(header, b"", kit.PROXY)))[0] == 0


def test_a_stream_of_another_round_is_nothing():
    for where in (kit.at(2), kit.at(1, 2)):
        assert say(waiting(), arrived(2, at=where)) == []
    assert say(cloud(), arrived(2)) == [], "no job runs"


def test_a_stream_that_no_proxy_tells_is_refused():
    for size_bytes, part_bytes, reason in (
        (kit.PART_BYTES << 21, kit.PART_BYTES, "oversized_blob"),
        (kit.PART_BYTES + 1, kit.PART_BYTES, "malformed"),
        (0, kit.PART_BYTES, "malformed"),
        (100, 10, "tiny_parts"),
    ):
        body = arrived(0, blob=m.Blob(NAME, size_bytes, part_bytes))
        assert kit.refused(say(waiting(), body)) == [reason]

"""The cloud's host in a round under masks: what it adds up, keeps, and commits once masks come."""

import hashlib
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from round_kit import CENTRE, TRAIN, CloudRound, job
from test_cloud_host import Desk, public_keys

from edgeveil.crypto.keys import CheckKey, MaskSeed
from edgeveil.crypto.masking import signed
from edgeveil.errors import EdgeVeilError, ProtocolError
from edgeveil.jobs.plan import Plan
from edgeveil.protocol import cloud_job as ct
from edgeveil.protocol.cloud import RosterKept
from edgeveil.protocol.cloud_reasons import EARLIER
from edgeveil.protocol.messages import KNOWS_BUCKETS, KNOWS_CHECKS, Batch, MaskedGroup
from edgeveil.protocol.sealed import (
    RoundCheck,
    check_factors,
    chosen_of,
    masked_vectors,
    seal_segment,
)
from edgeveil.protocol.tensors import mask_checks, mask_sums, masked_segment, unpacked_vectors
from edgeveil.protocol.transfer import describe
from edgeveil_cloud.open_segments import RoundOpening
from edgeveil_cloud.store import Store
from edgeveil_cloud.validate_batch import unpack_kept, validate_batch

UPLOADS = 3


def secure():
    return job(aggregation={"name": "fedavg", "secure": True}, selection={"devices": 4})


def seed(number):
    return MaskSeed(hashlib.sha256(b"seed %d" % number).digest())


def vectors_of(manifest):
    return masked_vectors(manifest.at, manifest.groups, manifest.masked)


def test_a_masked_job_begins_no_round_while_a_device_of_before_could_end_it():
    desk = Desk(Store(), secure())
    for task in (ct.SealJob(desk.wire), ct.SealRound(desk.wire, 1, 1)):
        desk.host._knows[""] = KNOWS_BUCKETS
        assert desk.perform(task) == ct.Obstacle(EARLIER)
        desk.host._knows[""] = KNOWS_CHECKS
        assert isinstance(desk.perform(task), ct.Broadcast)


class SecureDesk(Desk):
    """A cloud's host with what devices and proxy do for it.

    Masks are checked one by one, or by their sum as in rounds that an earlier cloud began.
    """

    def __init__(self, checks=False):
        super().__init__(Store(), secure())
        if checks:
            self.host.store(RosterKept(2, b"".join(public_keys(4)), knows=KNOWS_CHECKS))
        else:
            self.host._lacks_checks = lambda _task: False

    def numbers(self, manifest, device):
        rng = np.random.default_rng(device)
        return {v.group: rng.integers(-(2**30), 2**30, v.ring.count) for v in vectors_of(manifest)}

    def segments(self, manifest, device, membership):
        vectors = {one.group: one for one in vectors_of(manifest)}
        numbers, sealed = self.numbers(manifest, device), []
        for index, group in enumerate(manifest.groups):
            raw = np.full(3, device, np.float64).tobytes()
            if index in vectors:
                check = RoundCheck.of_manifest(manifest, membership)
                raw = masked_segment(vectors[index], numbers[index], seed(device), check)
            sealed.append(seal_segment(manifest, group, membership, raw))
        return sealed

    def uploads(self, broadcast, count=UPLOADS, spoilt=""):
        """Uploads of so many devices, of which the second is spoilt."""
        manifest, membership = broadcast.manifest, self.secret(broadcast.manifest.at).membership
        made = [self.segments(manifest, device, membership) for device in range(count)]
        if spoilt == "foreign":
            made[1] = self.segments(manifest, 1, b"m" * 32)
        elif spoilt == "repeated":
            made[1] = made[0]
        elif spoilt == "damaged":
            made[1][0] = bytes(len(made[1][0]))
        elif spoilt == "padding":
            group, size = manifest.groups[0], manifest.groups[0].padded_bytes
            made[1][0] = seal_segment(manifest, group, membership, b"\x07" * size)
        return made

    def answers(self, broadcast, count=UPLOADS, spoilt=""):
        groups = list(zip(*self.uploads(broadcast, count, spoilt), strict=True))
        return self.absorb(broadcast.manifest.at, groups, count)

    def asked(self, index=CENTRE, count=UPLOADS):
        """A round's broadcast, and what the host asks the proxy for its batch."""
        broadcast = self.sealed(index)
        return broadcast, self.perform(self.answers(broadcast, count))

    def masks(self, broadcast, devices):
        vectors = vectors_of(broadcast.manifest)
        sums = mask_sums(vectors, list(map(seed, devices)))
        return ct.TakeMasks(broadcast.manifest.at, {"": sums})

    def checks(self, broadcast, asked, seeds):
        """What the proxy answers, by the seeds that it was sent."""
        manifest, key = broadcast.manifest, CheckKey(asked.checks[""].key)
        check_factors(manifest, key)
        check = RoundCheck(key, disclosed=True)
        found = mask_checks(vectors_of(manifest), list(map(seed, seeds)), check)
        return ct.TakeChecks(manifest.at, {"": found})

    def kept(self, index=CENTRE):
        raw = self.store.kept_sums(self.id, index)
        return raw if raw is None else unpack_kept(raw)[""]


@pytest.fixture
def desk():
    return SecureDesk()


def test_a_round_under_masks_is_committed_and_counted_once_its_masks_come(desk):
    broadcast, _ = desk.asked()
    first = desk.perform(desk.masks(broadcast, [0, 1, 2]))
    assert isinstance(first, ct.RoundCommit) and desk.kept() is None
    assert desk.perform(desk.masks(broadcast, [0, 1, 2])) == first
    assert [record.uploads for record in desk.store.rounds(desk.id)] == [UPLOADS]


def test_another_batch_or_attempt_gets_the_question_that_was_kept(desk):
    broadcast, found = desk.asked()
    assert isinstance(found, ct.AskUnmask)
    assert desk.perform(desk.answers(broadcast, 4)) == found
    assert desk.perform(ct.SealRound(desk.wire, CENTRE, 2)) == found
    desk.restart()
    assert desk.perform(ct.SealRound(desk.wire, CENTRE, 5)) == found
    assert desk.store.next_attempt(desk.id, CENTRE) == 1
    desk.host.store(ct.JobStatus(desk.wire, "cancelled", "by the operator"))
    assert desk.kept() is None


@pytest.mark.parametrize("how", ["foreign", "repeated", "damaged", "padding"])
def test_an_upload_that_is_not_whole_is_not_chosen(desk, how):
    broadcast = desk.sealed(CENTRE)
    found = desk.perform(desk.answers(broadcast, 4, how))
    assert chosen_of(found.unmasks[""].chosen, 4) == [0, 2, 3]
    assert desk.perform(desk.masks(broadcast, [0, 2, 3])).commit.accepted == 3


def test_more_uploads_than_were_selected_are_all_void(desk):
    """They would not fit the ring, and somebody let in what was not asked."""
    _, found = desk.asked(count=5)
    assert isinstance(found, ct.TooFewUploads) and desk.kept() is None


def test_masked_groups_of_differing_numbers_are_void_in_a_round_of_several():
    """An upload has one place in all of them: else the choice would name several devices."""
    made = CloudRound(TRAIN, plan=Plan(secure()))
    (one,) = made.context.masked
    context = replace(made.context, masked=(one, MaskedGroup(1, 1, 8)))
    batch, data = made.batch([[made.segment(g, b"")] * (3 - g) for g in (0, 1)])
    found = validate_batch(context, made.secret, batch, data)
    assert (dict(found.refused), found.chosen) == ({"malformed_batch": 1}, [])


STREAM, OTHER = b"s" * 32, b"o" * 32


class Streaming:
    """A round's batch that comes bit by bit: masked uploads first, then what waited for all."""

    def __init__(self, desk, index=TRAIN):
        self.desk, self.broadcast = desk, desk.sealed(index)
        manifest, made = self.broadcast.manifest, desk.uploads(self.broadcast)
        masked = [one.group for one in manifest.masked]
        others = [g for g in range(len(manifest.groups)) if g not in masked]
        front = [b"".join(upload[g] for g in masked) for upload in made]
        self.upload_bytes = len(front[0])
        behind = b"".join(b"".join(upload[g] for upload in made) for g in others)
        self.data = b"".join(front) + behind
        counts = (UPLOADS,) * len(manifest.groups)
        self.batch = Batch(manifest.at, UPLOADS, 0, counts, describe(self.data, 4096), STREAM)

    def come(self, start, stop, name=STREAM, data=None):
        part = (data or self.data)[start:stop]
        self.desk.host.store(ct.BatchPart(name, start, part, self.desk.wire))

    def open(self, name=STREAM, batch=None):
        """How many uploads are open after a look at what has come of a stream."""
        so_far = Batch(self.batch.at, 0, 0, (), describe(b"", 4096), name)
        assert self.desk.host.perform(ct.OpenArrived(batch or so_far)) is None
        under_way = self.desk.host._spool_of(self.desk.wire, "").under_way
        return under_way.front.opened if under_way.front else 0

    def absorb(self, batch=None):
        return self.desk.host.perform(ct.Absorb({"": batch or self.batch}))

    def check(self):
        """Sums, choice and marks are those of all uploads, opened at once."""
        found = self.absorb()
        assert chosen_of(found.unmasks[""].chosen, UPLOADS) == [0, 1, 2]
        kept, manifest = self.desk.kept(self.batch.at.round), self.broadcast.manifest
        vectors = vectors_of(manifest)
        masks = mask_sums(vectors, [seed(device) for device in range(UPLOADS)])
        sums = unpacked_vectors(vectors, kept.totals)
        for one, total, mask in zip(vectors, sums, unpacked_vectors(vectors, masks), strict=True):
            numbers = [self.desk.numbers(manifest, d)[one.group] for d in range(UPLOADS)]
            assert np.array_equal(signed(one.ring, total.numbers - mask.numbers), sum(numbers))
        assert len(kept.accepted) == 32 * UPLOADS * len(manifest.groups)


@pytest.mark.parametrize(("index", "step"), [(CENTRE, 64), (TRAIN, 1000)])
def test_uploads_are_opened_as_they_come_and_once(desk, index, step, monkeypatch):
    streaming, seen, plain = Streaming(desk, index), [], RoundOpening.plain

    def counted(self, group, data, offset):
        seen.append(offset)
        return plain(self, group, data, offset)

    monkeypatch.setattr(RoundOpening, "plain", counted)
    front = UPLOADS * streaming.upload_bytes
    for start in range(0, front, step):
        stop = min(start + step, front)
        streaming.come(start, stop)
        assert streaming.open() == stop // streaming.upload_bytes
    streaming.come(front, len(streaming.data))
    streaming.check()
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize(
    "steps",
    [
        [(1, 3, STREAM, STREAM, 0), (0, 1, STREAM, STREAM, 1)],  # behind a gap they wait
        [(0, 1, OTHER, OTHER, 1), (0, 1, STREAM, OTHER, 0)],  # another stream begins anew
    ],
    ids=["gap", "another stream"],
)
def test_a_stream_that_does_not_come_in_order_comes_to_the_same_sums(desk, steps):
    streaming = Streaming(desk)
    size = streaming.upload_bytes
    for first, last, name, looked_at, opened in steps:
        streaming.come(first * size, last * size, name)
        assert streaming.open(looked_at) == opened
    streaming.come(size, len(streaming.data))
    streaming.check()


def test_bytes_that_are_replaced_are_opened_anew(desk):
    streaming = Streaming(desk)
    streaming.come(0, streaming.upload_bytes, data=bytes(len(streaming.data)))
    streaming.open()
    streaming.come(0, len(streaming.data))
    assert streaming.open(batch=streaming.batch) == UPLOADS, (
        "what stands behind the stream is no part of it"
    )
    streaming.check()


def test_a_stream_that_is_not_its_batch_counts_for_nothing(desk):
    """Bytes behind its end, or counts that are not those of its uploads."""
    streaming = Streaming(desk)
    streaming.come(0, len(streaming.data))
    streaming.open()
    short = msgspec.structs.replace(streaming.batch, counts=(2, 3))
    assert isinstance(streaming.absorb(short), ct.TooFewUploads)
    streaming.come(streaming.upload_bytes, 2 * streaming.upload_bytes, data=bytes(10_000))
    streaming.open()
    with pytest.raises(ProtocolError, match="bad_digest"):
        streaming.absorb()
    assert desk.kept(TRAIN) is None


def test_uploads_that_do_not_fit_are_left_out_of_sum_choice_and_record():
    desk = SecureDesk(checks=True)
    broadcast, asked = desk.asked(count=4)
    assert isinstance(asked, ct.AskChecks) and desk.kept() is None
    found = desk.perform(desk.checks(broadcast, asked, [0, 9, 2, 3]))
    assert chosen_of(found.unmasks[""].chosen, 4) == [0, 2, 3]
    assert chosen_of(found.misfits[""].places, 4) == [1]
    done = desk.perform(desk.masks(broadcast, [0, 2, 3]))
    assert done.commit.accepted == 3
    assert [record.uploads for record in desk.store.rounds(desk.id)] == [3]


def test_too_few_that_fit_keep_nothing_and_are_told():
    desk = SecureDesk(checks=True)
    broadcast, asked = desk.asked(count=4)
    found = desk.perform(desk.checks(broadcast, asked, [0, 9, 9, 3]))
    assert isinstance(found, ct.TooFewUploads)
    assert chosen_of(found.misfits[""].places, 4) == [1, 2]
    assert desk.kept() is None
    assert isinstance(desk.perform(ct.SealRound(desk.wire, CENTRE, 2)), ct.Broadcast)


def test_an_answer_of_another_size_or_to_another_process_keeps_nothing():
    desk = SecureDesk(checks=True)
    task = desk.checks(*desk.asked(count=4), [0, 1, 2])
    for _ in range(2):
        with pytest.raises(EdgeVeilError):
            desk.perform(task)
        assert desk.kept() is None
        desk.restart()

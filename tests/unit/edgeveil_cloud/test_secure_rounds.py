"""The cloud's host in a round under masks: what it adds up, keeps, and commits once masks come."""

import hashlib
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from round_kit import CloudRound, job
from test_cloud_host import Desk, public_keys

from edgeveil.crypto.keys import CheckKey, MaskSeed
from edgeveil.crypto.masking import signed
from edgeveil.errors import EdgeVeilError, JobFailed, ProtocolError
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
from edgeveil.transport.metrics import MeteredHost, Metrics
from edgeveil_cloud.broadcasts import BroadcastLimits
from edgeveil_cloud.host import CloudHost
from edgeveil_cloud.metrics import CloudMetrics
from edgeveil_cloud.open_segments import RoundOpening
from edgeveil_cloud.store import Store
from edgeveil_cloud.validate_batch import unpack_kept, validate_batch

CENTRE, TRAIN = 1, 3  # one masked group; one, and softmax beside it
UPLOADS = 3


def secure(**changes):
    plain = {"aggregation": {"name": "fedavg", "secure": True}, "selection": {"devices": 4}}
    return job(**{**plain, **changes})


def seed(number):
    return MaskSeed(hashlib.sha256(b"seed %d" % number).digest())


def test_a_masked_job_begins_no_round_while_a_device_of_before_could_end_it():
    desk = Desk(Store(), secure())
    for task in (ct.SealJob(desk.wire), ct.SealRound(desk.wire, 1, 1)):
        desk.host._knows[""] = KNOWS_BUCKETS
        assert desk.perform(task) == ct.Obstacle(EARLIER)
        desk.host._knows[""] = KNOWS_CHECKS
        assert isinstance(desk.perform(task), ct.Broadcast)


class SecureDesk(Desk):
    """A cloud's host, with what devices and proxy do for it."""

    def __init__(self, store=None):
        super().__init__(store or Store(), secure())
        # Its rounds are as those that a cloud of before has begun: masks are checked by their sum.
        self.host._lacks_checks = lambda _task: False

    def numbers(self, manifest, device):
        """What a device's masked groups hold."""
        rng = np.random.default_rng(device)
        vectors = masked_vectors(manifest.at, manifest.groups, manifest.masked)
        return {v.group: rng.integers(-(2**30), 2**30, v.ring.count) for v in vectors}

    def segments(self, manifest, device, membership):
        """One device's sealed segments, in the groups' order."""
        vectors = {
            one.group: one for one in masked_vectors(manifest.at, manifest.groups, manifest.masked)
        }
        numbers, sealed = self.numbers(manifest, device), []
        for index, group in enumerate(manifest.groups):
            raw = np.full(3, device, np.float64).tobytes()
            if index in vectors:
                check = RoundCheck.said(manifest, membership)
                raw = masked_segment(vectors[index], numbers[index], seed(device), check)
            sealed.append(seal_segment(manifest, group, membership, raw))
        return sealed

    def batched(self, broadcast, uploads):
        groups = list(zip(*uploads, strict=True))
        data = b"".join(b"".join(group) for group in groups)
        counts = tuple(map(len, groups))
        header = Batch(broadcast.manifest.at, len(uploads), 0, counts, describe(data, 4096))
        self.batches[header.blob.digest] = data
        return ct.Absorb({"": header})

    def answers(self, broadcast, count=UPLOADS, value=1.0):
        membership = self.secret(broadcast.manifest.at).membership
        manifest = broadcast.manifest
        uploads = [self.segments(manifest, device, membership) for device in range(count)]
        return self.batched(broadcast, uploads)

    def asked(self, index=CENTRE, attempt=1):
        broadcast = self.sealed(index, attempt)
        found = self.perform(self.answers(broadcast))
        assert isinstance(found, ct.AskUnmask)
        return broadcast, found

    def masks(self, broadcast, devices):
        manifest = broadcast.manifest
        vectors = masked_vectors(manifest.at, manifest.groups, manifest.masked)
        return ct.TakeMasks(manifest.at, {"": mask_sums(vectors, list(map(seed, devices)))})

    def kept(self, index=CENTRE):
        raw = self.store.kept_sums(self.id, index)
        return raw if raw is None else unpack_kept(raw)[""]

    def again(self):
        """A new process on the same store."""
        made = object.__new__(SecureDesk)
        made.__dict__ |= self.__dict__
        made.host = CloudHost(self.store, None, BroadcastLimits(4096), clock=lambda: 0.0)
        return made


@pytest.fixture
def desk():
    return SecureDesk()


def test_a_round_under_masks_is_counted_at_its_commit(desk):
    metrics, machine = Metrics(), SimpleNamespace(courses={})
    counts = CloudMetrics(metrics, desk.store, desk.host, machine)
    desk.host = MeteredHost(desk.host, metrics, counts.watch)

    def told(name, **labels):
        return metrics.registry.get_sample_value(f"edgeveil_{name}", labels)

    broadcast, _ = desk.asked()
    assert told("rounds_total", result="committed") == 0
    assert isinstance(desk.perform(desk.masks(broadcast, [0, 1, 2])), ct.RoundCommit)
    assert told("rounds_total", result="committed") == told("round_seconds_count") == 1
    assert told("segments_counted_total")


def test_masks_that_come_twice_commit_once(desk):
    broadcast, _ = desk.asked()
    first = desk.perform(desk.masks(broadcast, [0, 1, 2]))
    assert desk.perform(desk.masks(broadcast, [0, 1, 2])) == first
    assert [record.uploads for record in desk.store.rounds(desk.id)] == [UPLOADS]
    assert desk.kept() is None


@pytest.mark.parametrize("devices", [[0, 1], [0, 1, 3], [0, 1, 2, 2], []])
def test_wrong_masks_fail_and_commit_nothing(desk, devices):
    broadcast, _ = desk.asked()
    with pytest.raises(JobFailed, match="do not fit what devices uploaded"):
        desk.perform(desk.masks(broadcast, devices))
    assert desk.store.rounds(desk.id) == ()


def test_another_batch_or_attempt_gets_the_question_that_was_kept(desk):
    broadcast, found = desk.asked()
    fewer = desk.answers(broadcast, 4)
    assert desk.perform(fewer) == found
    assert desk.perform(ct.SealRound(desk.wire, CENTRE, 2)) == found
    assert desk.again().perform(ct.SealRound(desk.wire, CENTRE, 5)) == found
    assert desk.store.next_attempt(desk.id, CENTRE) == 1


def test_a_job_that_ends_keeps_no_sums(desk):
    desk.asked()
    desk.host.store(ct.JobStatus(desk.wire, "cancelled", "by the operator"))
    assert desk.kept() is None


# --- what is chosen ---


def spoiled(desk, broadcast, how):
    """Four uploads, of which the second is spoiled."""
    manifest, membership = broadcast.manifest, desk.secret(broadcast.manifest.at).membership
    uploads = [desk.segments(manifest, device, membership) for device in range(4)]
    match how:
        case "foreign":
            uploads[1] = desk.segments(manifest, 1, b"m" * 32)
        case "repeated":
            uploads[1] = uploads[0]
        case "damaged":
            uploads[1][0] = bytes(len(uploads[1][0]))
        case "padding":
            group, size = manifest.groups[0], manifest.groups[0].padded_bytes
            uploads[1][0] = seal_segment(manifest, group, membership, b"\x07" * size)
    return desk.batched(broadcast, uploads)


@pytest.mark.parametrize("how", ["foreign", "repeated", "damaged", "padding"])
def test_an_upload_that_is_not_whole_is_not_chosen(desk, how):
    broadcast = desk.sealed(CENTRE)
    found = desk.perform(spoiled(desk, broadcast, how))
    assert chosen_of(found.unmasks[""].chosen, 4) == [0, 2, 3]
    done = desk.perform(desk.masks(broadcast, [0, 2, 3]))
    assert done.commit.accepted == 3


def test_more_uploads_than_were_selected_are_all_void(desk):
    """They would not fit the ring, and somebody let in what was not asked."""
    broadcast = desk.sealed(CENTRE)
    found = desk.perform(desk.answers(broadcast, 5))
    assert "more than selected" in found.reason
    assert desk.kept() is None


def test_the_softmax_rows_wait_with_the_sums(desk):
    for before in (1, 2):
        broadcast, _ = desk.asked(before)
        desk.perform(desk.masks(broadcast, [0, 1, 2]))
    desk.asked(TRAIN)
    kept = desk.kept(TRAIN)
    rows = kept.valid().arrays["softmax"]
    assert sorted(float(np.asarray(row).flat[0]) for row in rows) == [0.0, 1.0, 2.0]


def test_masked_groups_of_differing_numbers_are_void_in_a_round_of_several():
    """An upload has one place in all of them: else the choice would name several devices."""
    made = CloudRound(TRAIN, plan=Plan(secure()))
    (one,) = made.context.masked
    both = (one, MaskedGroup(1, 1, 8))
    context = replace(made.context, masked=both)
    groups = [[made.segment(g, b"")] * (3 - g) for g in (0, 1)]
    batch, data = made.batch(groups)
    found = validate_batch(context, made.secret, batch, data)
    assert dict(found.refused) == {"malformed_batch": 1}
    assert found.chosen == []


# --- a batch that begins to come before it is whole ---

STREAM = b"s" * 32


class Streaming:
    """A round's batch that comes bit by bit: masked uploads first, then what waited for all."""

    def __init__(self, desk, index=TRAIN, uploads=UPLOADS):
        self.desk, self.broadcast = desk, desk.sealed(index)
        manifest = self.broadcast.manifest
        membership = desk.secret(manifest.at).membership
        made = [desk.segments(manifest, device, membership) for device in range(uploads)]
        masked = [one.group for one in manifest.masked]
        others = [g for g in range(len(manifest.groups)) if g not in masked]
        front = [b"".join(upload[g] for g in masked) for upload in made]
        self.upload_bytes = len(front[0])
        behind = b"".join(b"".join(upload[g] for upload in made) for g in others)
        self.data = b"".join(front) + behind
        counts = (uploads,) * len(manifest.groups)
        self.batch = Batch(manifest.at, uploads, 0, counts, describe(self.data, 4096), STREAM)
        self.so_far = Batch(manifest.at, 0, 0, (), describe(b"", 4096), STREAM)

    def come(self, start, stop, name=STREAM):
        self.desk.host.store(ct.BatchPart(name, start, self.data[start:stop], self.desk.wire))

    def open(self, batch=None):
        assert self.desk.host.perform(ct.OpenArrived(batch or self.so_far)) is None

    def absorb(self):
        return self.desk.host.perform(ct.Absorb({"": self.batch}))

    def opened(self):
        """How many uploads were looked at before the batch was whole."""
        under_way = self.desk.host._spool_of(self.desk.wire, "").under_way
        return under_way.front.opened if under_way.front else 0


def same_as_at_once(streaming):
    """Sums, choice and marks are those of a batch in the other form, opened at once."""
    found = streaming.absorb()
    assert chosen_of(found.unmasks[""].chosen, UPLOADS) == [0, 1, 2]
    kept = streaming.desk.kept(streaming.batch.at.round)
    manifest = streaming.broadcast.manifest
    vectors = masked_vectors(manifest.at, manifest.groups, manifest.masked)
    masks = mask_sums(vectors, [seed(device) for device in range(UPLOADS)])
    sums = unpacked_vectors(vectors, kept.totals)
    for one, total, mask in zip(vectors, sums, unpacked_vectors(vectors, masks), strict=True):
        numbers = [streaming.desk.numbers(manifest, d)[one.group] for d in range(UPLOADS)]
        assert np.array_equal(signed(one.ring, total.numbers - mask.numbers), sum(numbers))
    assert len(kept.accepted) == 32 * UPLOADS * len(manifest.groups)


@pytest.mark.parametrize("index", [CENTRE, TRAIN])
@pytest.mark.parametrize("step", [1000, 64, 10_000])
def test_uploads_are_opened_as_they_come_and_once(desk, index, step, monkeypatch):
    streaming = Streaming(desk, index)
    seen = []
    plain = RoundOpening.plain

    def counted(self, group, data, offset):
        seen.append(offset)
        return plain(self, group, data, offset)

    monkeypatch.setattr(RoundOpening, "plain", counted)
    front = UPLOADS * streaming.upload_bytes
    for start in range(0, front, step):
        streaming.come(start, min(start + step, front))
        streaming.open()
        assert streaming.opened() == min(start + step, front) // streaming.upload_bytes
    streaming.come(front, len(streaming.data))
    same_as_at_once(streaming)
    assert len(seen) == len(set(seen))


def test_what_stands_behind_the_stream_is_not_opened_as_part_of_it(desk):
    streaming = Streaming(desk)
    streaming.come(0, len(streaming.data))
    streaming.open(streaming.batch)
    assert streaming.opened() == UPLOADS
    same_as_at_once(streaming)


def test_a_gap_is_waited_for(desk):
    streaming = Streaming(desk)
    size = streaming.upload_bytes
    streaming.come(size, 3 * size)
    streaming.open()
    assert streaming.opened() == 0
    streaming.come(0, size)
    streaming.open()
    assert streaming.opened() == 1, "those behind the gap wait for the batch"
    streaming.come(3 * size, len(streaming.data))
    same_as_at_once(streaming)


def test_bytes_that_are_replaced_are_opened_anew(desk):
    """What was added up of the first ones counts for nothing."""
    streaming = Streaming(desk)
    desk.host.store(ct.BatchPart(STREAM, 0, bytes(streaming.upload_bytes), desk.wire))
    streaming.open()
    streaming.come(0, len(streaming.data))
    same_as_at_once(streaming)


def test_another_stream_begins_anew(desk):
    streaming = Streaming(desk)
    other = msgspec.structs.replace(streaming.so_far, stream=b"o" * 32)
    streaming.come(0, streaming.upload_bytes, other.stream)
    streaming.open(other)
    assert streaming.opened() == 1
    streaming.come(0, streaming.upload_bytes)
    streaming.open(other)  # late, of the stream before
    assert streaming.opened() == 0
    streaming.come(streaming.upload_bytes, len(streaming.data))
    same_as_at_once(streaming)


def test_a_stream_that_is_not_the_batch_s_counts_for_nothing(desk):
    streaming = Streaming(desk)
    streaming.come(0, len(streaming.data))
    other = bytes(64)
    desk.host.store(ct.BatchPart(STREAM, streaming.upload_bytes, other, desk.wire))
    streaming.open()
    with pytest.raises(ProtocolError, match="bad_digest"):
        streaming.absorb()
    assert desk.kept(TRAIN) is None


def test_a_batch_of_fewer_uploads_than_its_stream_had_is_opened_by_itself(desk):
    """Bytes that do not fit the counts are malformed, and nothing before them is in a sum."""
    streaming = Streaming(desk)
    streaming.come(0, len(streaming.data))
    streaming.open()
    short = msgspec.structs.replace(streaming.batch, counts=(2, 3))
    found = streaming.desk.host.perform(ct.Absorb({"": short}))
    assert "malformed" in found.reason
    assert desk.kept(TRAIN) is None


def test_a_round_without_masks_opens_nothing_early(desk):
    plain = Desk(Store(), job())
    made = plain.sealed(CENTRE)
    data = b"x" * 500
    plain.host.store(ct.BatchPart(STREAM, 0, data, plain.wire))
    header = Batch(made.manifest.at, 0, 0, (), describe(b"", 4096), STREAM)
    assert plain.host.perform(ct.OpenArrived(header)) is None
    under_way = plain.host._spool_of(plain.wire, "").under_way
    assert under_way.front is not None
    assert under_way.front.opened == 0


def test_of_a_round_whose_key_is_gone_nothing_is_opened(desk):
    streaming = Streaming(desk)
    streaming.come(0, len(streaming.data))
    desk.store.set_status(desk.id, "cancelled")
    streaming.open()
    assert streaming.opened() == 0


# --- masks that are checked one by one ---


class CheckingDesk(SecureDesk):
    """A cloud whose proxy and devices all know checks."""

    def __init__(self):
        super().__init__()
        roster = RosterKept(2, b"".join(public_keys(4)), knows=KNOWS_CHECKS)
        self.host.store(roster)

    def opened(self, how, index=CENTRE):
        """Four uploads of which some are wrong; the host asks for the checks."""
        broadcast = self.sealed(index)
        manifest, membership = broadcast.manifest, self.secret(broadcast.manifest.at).membership
        uploads = [self.segments(manifest, device, membership) for device in range(4)]
        for device, what in how.items():
            if what == "padding":
                group, size = manifest.groups[0], manifest.groups[0].padded_bytes
                uploads[device][0] = seal_segment(manifest, group, membership, b"\x07" * size)
            elif what == "repeated":
                uploads[device] = uploads[0]
        found = self.perform(self.batched(broadcast, uploads))
        assert isinstance(found, ct.AskChecks)
        return broadcast, found

    def checks(self, broadcast, asked, seeds):
        """What the proxy answers, by the seeds that it was sent."""
        at, key = broadcast.manifest.at, CheckKey(asked.checks[""].key)
        check_factors(broadcast.manifest, key)
        vectors = masked_vectors(at, broadcast.manifest.groups, broadcast.manifest.masked)
        check = RoundCheck(key, disclosed=True)
        return ct.TakeChecks(at, {"": mask_checks(vectors, list(map(seed, seeds)), check)})


def test_uploads_that_do_not_fit_are_left_out_of_sum_choice_and_record():
    desk = CheckingDesk()
    broadcast, asked = desk.opened({})
    assert desk.kept() is None
    found = desk.perform(desk.checks(broadcast, asked, [0, 9, 2, 3]))
    assert chosen_of(found.unmasks[""].chosen, 4) == [0, 2, 3]
    assert chosen_of(found.misfits[""].places, 4) == [1]
    done = desk.perform(desk.masks(broadcast, [0, 2, 3]))
    assert done.commit.accepted == 3
    (record,) = desk.store.rounds(desk.id)
    assert record.uploads == 3


def test_too_few_that_fit_keep_nothing_and_are_told():
    desk = CheckingDesk()
    broadcast, asked = desk.opened({})
    found = desk.perform(desk.checks(broadcast, asked, [0, 9, 9, 3]))
    assert "2 wrong mask" in found.reason
    assert chosen_of(found.misfits[""].places, 4) == [1, 2]
    assert desk.kept() is None
    assert isinstance(desk.perform(ct.SealRound(desk.wire, CENTRE, 2)), ct.Broadcast)


def test_an_answer_of_another_size_or_to_another_process_keeps_nothing():
    desk = CheckingDesk()
    broadcast, asked = desk.opened({})
    task = desk.checks(broadcast, asked, [0, 1, 2])
    for host in (desk, desk.again()):
        with pytest.raises(EdgeVeilError):
            host.perform(task)
        assert host.kept() is None

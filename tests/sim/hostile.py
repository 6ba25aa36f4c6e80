"""Devices that the operator admitted and that turn out to be malicious."""

import os
import zlib

import numpy as np

from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.device_round import ComputeAnswer, NoAnswer, OpenPackage, SealedAnswer
from edgeveil.protocol.sealed import open_broadcast, seal_segment, segment_mark
from edgeveil.protocol.transfer import describe, part_bytes
from tests.kits.fleet import PACKET_BYTES

FLOOD = 500


def filled(value):
    """Every number of every segment."""

    def tensor(manifest, group):
        return np.full(manifest.groups[group].padded_bytes // 8, value, "<f8").tobytes()

    return tensor


def every_bit(manifest, group):
    """Bytes of a kind of their own, into the padding."""
    return b"\x7f" * manifest.groups[group].padded_bytes


class Attacker:
    """The host of a device that answers rounds with `tensor`; an honest one in all else."""

    def __init__(self, fleet, box, tensor):
        self._fleet, self._box, self._inner, self._tensor = fleet, box, box.host, tensor
        self.signer = m.Signer(box.id, box.host.identity.signing)
        self.spam = lambda _who, _round: []
        self.membership = b""
        box.runner.host = self

    def store(self, item):
        self._inner.store(item)

    def together(self):
        return self._inner.together()

    def report(self, report):
        self._inner.report(report)

    def perform(self, task):
        if isinstance(task, OpenPackage) and task.manifest.kind == "round":
            found = open_broadcast(self._inner.identity.opening, task.manifest, task.blob)
            self.membership = found[1] if found else b""
        if not isinstance(task, ComputeAnswer):
            return self._inner.perform(task)
        for message in self.spam(self, task.manifest):
            self.says(message)
        if self._tensor is None:
            return NoAnswer("an honest box that does not want to")
        return self.sealed(task.manifest)

    def sealed(self, manifest):
        """Segments that open at the cloud: an insider's."""
        segments = [
            seal_segment(manifest, group, self.membership, self._tensor(manifest, index))
            for index, group in enumerate(manifest.groups)
        ]
        every = tuple(range(len(segments)))
        marks = tuple(segment_mark(self.membership, segment) for segment in segments)
        return SealedAnswer(every, tuple(map(len, segments)), b"".join(segments), marks)

    def says(self, message):
        """On its own topic, where its broker lets it speak."""
        event = fx.MessageReceived(fx.DeviceAddress(self._box.id), message)
        self._fleet.net.post(self._fleet.proxy.runner, event, 0.001)


# --- what it may say beside its answer -------------------------------------------------------


def upload(who, at, data, groups):
    """An offer of an upload, signed by the attacker."""
    header = m.Upload(at, groups, describe(data, part_bytes(PACKET_BYTES)))
    return who.signer.offer(header, data if len(data) < PACKET_BYTES // 2 else b"")


def second_uploads(who, manifest):
    """Many answers in place of one."""
    every = tuple(range(len(manifest.groups)))
    sealed = (seal_all(manifest) for _ in range(5))
    return [upload(who, manifest.at, data, every) for data in sealed]


def seal_all(manifest):
    """What looks like an upload from outside."""
    size = sum(group.padded_bytes + m.SEAL_OVERHEAD_BYTES for group in manifest.groups)
    return os.urandom(size)


def other_names(who, manifest):
    """As somebody else, with a signature of its own; and for rounds that are not open."""
    every, data = tuple(range(len(manifest.groups))), seal_all(manifest)
    mine = upload(who, manifest.at, data, every)
    names = ("0" * 16, "cloud", "proxy")
    renamed = [
        m.Offer(type(mine.header)(name, mine.header.payload, mine.header.signature), data[:100])
        for name in names
    ]
    at = manifest.at
    elsewhere = (
        replace_at(at, round=at.round + 1),
        replace_at(at, round=max(at.round - 1, 0)),
        replace_at(at, attempt=at.attempt + 1),
        m.RoundId(b"another job, 16.", at.round, at.attempt),
    )
    return [*renamed, *(upload(who, other, data, every) for other in elsewhere)]


def replace_at(at, **changes):
    """Another round or attempt."""
    round, attempt = changes.get("round", at.round), changes.get("attempt", at.attempt)
    return m.RoundId(at.job_id, round, attempt)


def wrong_forms(who, manifest):
    """Groups that are not there or twice, and other sizes."""
    data = seal_all(manifest)
    count = len(manifest.groups)
    forms = [
        ((0, 0), data),
        ((count,), data),
        (tuple(range(count)), data[:-1]),
        ((0,), data + data),
    ]
    return [upload(who, manifest.at, text, groups) for groups, text in forms]


def others_words(who, manifest):
    """What only cloud or proxy may say."""
    blob = describe(b"", 1024)
    notes = (
        m.Ack(blob.digest, "held"),
        m.Shortfall(manifest.at, 0, 9),
        m.Ack(manifest.blob.digest, "closed"),
    )
    return [
        *(who.signer.note(body) for body in notes),
        who.signer.offer(m.Commit(manifest.at, 0, blob)),
        who.signer.offer(manifest, b"model"),
        *(m.Signer("cloud", who.signer.key).note(body) for body in notes),
    ]


def flood(who, manifest):
    """Hundreds of requests, wishes and parts of nothing."""
    piece = bytes(300)
    one = m.BlobPart(describe(piece, 300).digest, 0, zlib.crc32(piece), piece)
    need = m.Need(manifest.blob.digest, tuple(range(64)))
    want = who.signer.note(m.Want(manifest.at.job_id))
    unknown = who.signer.note(m.Want(b"another job, 16."))
    elsewhere = who.signer.note(m.Decline(replace_at(manifest.at, round=99)))
    return [one, need, want, unknown, elsewhere] * FLOOD


def hellos(who, _manifest):
    """As fast as it can."""
    return [who.signer.note(m.Hello(who.signer.name))] * (4 * FLOOD)


def never_complete(who, manifest):
    """Offers whose bytes never come."""
    every = tuple(range(len(manifest.groups)))
    size = sum(group.padded_bytes + m.SEAL_OVERHEAD_BYTES for group in manifest.groups)
    blobs = [replace_digest(size, n) for n in range(50)]
    return [who.signer.offer(m.Upload(manifest.at, every, blob)) for blob in blobs]


def replace_digest(size_bytes, number):
    """A claim of so many bytes that nobody has."""
    return type(describe(b"", 1))(bytes((number,)) * 32, size_bytes, 1024)

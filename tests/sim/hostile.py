"""Devices that the operator admitted and that turn out to be malicious."""

import os
import zlib

import numpy as np
from msgspec.structs import replace

from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.device_round import ComputeAnswer, NoAnswer, OpenPackage, SealedAnswer
from edgeveil.protocol.sealed import open_broadcast, seal_segment, segment_mark
from edgeveil.protocol.transfer import describe, part_bytes
from tests.kits.fleet import PACKET_BYTES

FLOOD = 500


def filled(value):
    def tensor(manifest, group):
        return np.full(manifest.groups[group].padded_bytes // 8, value, "<f8").tobytes()

    return tensor


def every_bit(manifest, group):
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
        segments = [
            seal_segment(manifest, group, self.membership, self._tensor(manifest, index))
            for index, group in enumerate(manifest.groups)
        ]
        every = tuple(range(len(segments)))
        marks = tuple(segment_mark(self.membership, segment) for segment in segments)
        return SealedAnswer(every, tuple(map(len, segments)), b"".join(segments), marks)

    def says(self, message):
        event = fx.MessageReceived(fx.DeviceAddress(self._box.id), message)
        self._fleet.net.post(self._fleet.proxy.runner, event, 0.001)


# --- what it may say beside its answer -------------------------------------------------------


def upload(who, at, data, groups):
    header = m.Upload(at, groups, describe(data, part_bytes(PACKET_BYTES)))
    return who.signer.offer(header, data if len(data) < PACKET_BYTES // 2 else b"")


def second_uploads(who, manifest):
    every = tuple(range(len(manifest.groups)))
    return [upload(who, manifest.at, seal_all(manifest), every) for _ in range(5)]


def other_names(who, manifest):
    every, data, at = tuple(range(len(manifest.groups))), seal_all(manifest), manifest.at
    mine = upload(who, at, data, every).header
    renamed = [
        m.Offer(m.Envelope(name, mine.payload, mine.signature), data[:100])
        for name in ("0" * 16, "cloud", "proxy")
    ]
    elsewhere = (
        replace(at, round=at.round + 1),
        replace(at, round=max(at.round - 1, 0)),
        replace(at, attempt=at.attempt + 1),
        replace(at, job_id=b"another job, 16."),
    )
    return [*renamed, *(upload(who, other, data, every) for other in elsewhere)]


def seal_all(manifest):
    return os.urandom(sealed_bytes(manifest))


def sealed_bytes(manifest):
    return sum(group.padded_bytes + m.SEAL_OVERHEAD_BYTES for group in manifest.groups)


def wrong_forms(who, manifest):
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
    piece = bytes(300)
    one = m.BlobPart(describe(piece, 300).digest, 0, zlib.crc32(piece), piece)
    need = m.Need(manifest.blob.digest, tuple(range(64)))
    want = who.signer.note(m.Want(manifest.at.job_id))
    unknown = who.signer.note(m.Want(b"another job, 16."))
    elsewhere = who.signer.note(m.Decline(replace(manifest.at, round=99)))
    return [one, need, want, unknown, elsewhere] * FLOOD


def hellos(who, _manifest):
    return [who.signer.note(m.Hello(who.signer.name))] * (4 * FLOOD)


def never_complete(who, manifest):
    every, size = tuple(range(len(manifest.groups))), sealed_bytes(manifest)
    blobs = [m.Blob(bytes((n,)) * 32, size, 1024) for n in range(50)]
    return [who.signer.offer(m.Upload(manifest.at, every, blob)) for blob in blobs]

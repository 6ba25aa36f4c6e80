"""Keys, manifests and small readers of effects, shared by the protocol's tests."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from edgeveil.crypto.keys import SigningKey, VerifyKey
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.transfer import describe, parts

JOB = b"J" * 16
PACKET_BYTES = 1536
PART_BYTES = PACKET_BYTES - 512
GROUPS = (m.Group("layer0", 100), m.Group("layer1", 40), m.Group("softmax", 20))
SEALED_BYTES = tuple(g.padded_bytes + m.SEAL_OVERHEAD_BYTES for g in GROUPS)


def signing_key(number):
    """A fixed key: tests may not depend on chance."""
    return SigningKey.from_bytes(hashlib.sha256(b"test key %d" % number).digest())


CLOUD = m.Signer("cloud", signing_key(1))
CLOUD_KEY = signing_key(1).public()
PROXY = m.Signer("proxy", signing_key(2))
PROXY_KEY = signing_key(2).public()


@dataclass(frozen=True)
class Member:
    signer: m.Signer
    key: VerifyKey

    @property
    def id(self):
        return self.signer.name


def member(number):
    key = signing_key(100 + number)
    return Member(m.Signer(key.public().fingerprint(), key), key.public())


@dataclass
class FakeRegistry:
    members: dict[str, VerifyKey] = field(default_factory=dict)
    epoch: int = 1

    def verify_key(self, device):
        return self.members.get(device)

    lineage = "5e" * 16

    def roster_expires_s(self):
        return 0.0

    def roster(self):
        return self.epoch, b"".join(sorted(key.to_bytes() for key in self.members.values()))

    def admitted(self):
        return list(self.members)


def at(round_=1, attempt=1, job=JOB):
    return m.RoundId(job, round_, attempt)


def manifest(data, where=None, **changes):
    values = {
        "kind": "round",
        "at": where or at(),
        "sequence": 1,
        "job_digest": b"d" * 32,
        "phase": "train",
        "selected": 4,
        "min_batch": 3,
        "quorum": 3,
        "deadline_s": 60.0,
        "grace_s": 5.0,
        "groups": GROUPS,
        "stanza_bytes": 0,
        "package_digest": b"p" * 32,
        "package_bytes": 10,
        "commitment": b"c" * 32,
        "cloud_key": b"k" * 32,
        "blob": describe(data, PART_BYTES),
    }
    return m.Manifest(**(values | changes))


def offer(header, data=b"", signer=CLOUD):
    return signer.offer(header, data)


def parts_of(header, data):
    return list(parts(header.blob, data))


def commit_of(where, ciphertexts):
    """The commit record that counts these ciphertexts, and its blob."""
    hashes = b"".join(sorted(hashlib.sha256(text).digest() for text in ciphertexts))
    return m.Commit(where, len(hashes) // 32, describe(hashes, PART_BYTES)), hashes


def upload_of(where, fill, groups=(0, 1, 2)):
    """A well-formed upload: every segment filled with bytes that name device and group."""
    data = b"".join(bytes((fill, g)) * (SEALED_BYTES[g] // 2) for g in groups)
    return m.Upload(where, groups, describe(data, PART_BYTES)), data


def of(effects, kind):
    return [effect for effect in effects if isinstance(effect, kind)]


def refused(effects):
    return [effect.reason for effect in of(effects, fx.Refuse)]


def stored(effects):
    return [effect.item for effect in of(effects, fx.Persist)]


def tasks(effects):
    return [effect.task for effect in of(effects, fx.Work)]


def messages(effects, kind):
    return [effect.message for effect in of(effects, fx.Send) if isinstance(effect.message, kind)]


def bodies(effects, kind):
    found = [m.decode_body(note.body) for note in messages(effects, m.Note)]
    return [body for body in found if isinstance(body, kind)]


def acks(effects):
    return [(ack.status, ack.reason) for ack in bodies(effects, m.Ack)]


def headers(effects):
    return [m.decode_header(message.header) for message in messages(effects, m.Offer)]


def timers(effects):
    """By name; a job's own without the job."""
    return {effect.name.partition("/")[0]: effect.delay_s for effect in of(effects, fx.SetTimer)}


def reports(effects):
    return {effect.kind: dict(effect.data) for effect in of(effects, fx.Report)}

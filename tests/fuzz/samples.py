"""Valid headers, bodies and keys, which targets damage."""

import hashlib
from functools import cache

from msgspec import structs

from edgeveil.crypto.keys import OpeningKey, SigningKey
from edgeveil.protocol import messages as m

JOB = b"fuzzed job 16 b."
PACKET_BYTES = 1536
GROUPS = (m.Group("layer0", 64), m.Group("softmax", 64))
AT = m.RoundId(JOB, 1, 1)
BLOB = m.Blob(hashlib.sha256(b"blob").digest(), 4, 1024)


def _raw(name):
    return hashlib.sha256(b"fuzzing: " + name.encode()).digest()


@cache
def signing_key(name):
    """A fixed key, so that an input means the same in every process."""
    return SigningKey.from_bytes(_raw(name))


@cache
def opening_key(name):
    return OpeningKey.from_bytes(_raw(name))


@cache
def device_id(number):
    return signing_key(f"device {number}").public().fingerprint()


@cache
def signer(name):
    """`cloud`, `proxy`, or a device by its number as text."""
    if name.isdigit():
        return m.Signer(device_id(int(name)), signing_key(f"device {name}"))
    return m.Signer(name, signing_key(name))


def manifest(kind="round", at=AT, sequence=1, blob=BLOB):
    return m.Manifest(
        kind=kind,
        at=at,
        sequence=sequence,
        job_digest=bytes(32),
        phase="train",
        selected=3,
        min_batch=2,
        quorum=2,
        deadline_s=60.0,
        grace_s=1.0,
        groups=GROUPS,
        stanza_bytes=0,
        package_digest=bytes(32),
        package_bytes=4,
        commitment=bytes(32),
        cloud_key=opening_key("cloud").public().to_bytes(),
        blob=blob,
    )


MASKED = structs.replace(manifest(), masked=(m.MaskedGroup(0, 7, 40),))
HEADERS = (
    manifest(),
    MASKED,
    manifest("job", m.RoundId(JOB, 0, 1)),
    manifest("release", m.RoundId(JOB, 0, 2)),
    m.Upload(AT, (0, 1), BLOB),
    m.Upload(AT, (0, 1), BLOB, 3, b"deposit"),
    m.Upload(AT, (0, 1), BLOB, 3, b"", bytes(80)),
    m.MaskSums(AT, BLOB.digest, BLOB),
    m.Batch(AT, 3, 0, (3, 3), BLOB),
    m.Batch(AT, 3, 0, (3, 3), BLOB, bytes(32)),
    m.Commit(AT, 1, BLOB),
    m.Roster(1, BLOB),
)
BODIES = (
    m.Ack(BLOB.digest, "held"),
    m.Ack(BLOB.digest, "refused", "wrong_size"),
    m.Hello(device_id(0)),
    m.Hello(device_id(0), 1, 2, 3),
    m.Behind(BLOB.digest, 4, (m.EncryptedJobState(JOB, b"deposit"),), True),
    m.Here(0.5),
    m.Later(2.0),
    m.Cover(10.0),
    m.RoundKey(AT, bytes(range(32))),
    m.Unmask(AT, BLOB.digest, b"\x07"),
    m.CheckMasks(AT, BLOB.digest, bytes(range(32))),
    m.Misfits(AT, BLOB.digest, b"\x07"),
    m.Arrived(AT, BLOB),
    m.Want(JOB),
    m.Decline(AT),
    m.Shortfall(AT, 1, 1),
    m.Close(JOB, "completed"),
    m.Bye(device_id(0)),
)

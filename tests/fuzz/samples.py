"""Valid headers, bodies and keys, which targets damage."""

import hashlib
from functools import cache

from msgspec import structs

from edgeveil.crypto.keys import OpeningKey, SigningKey
from edgeveil.protocol.messages import (
    Ack,
    Arrived,
    Batch,
    Behind,
    Blob,
    Bye,
    CheckMasks,
    Close,
    Commit,
    Cover,
    Decline,
    ExchangeId,
    Group,
    Hello,
    Here,
    JobDeposit,
    Later,
    Manifest,
    MaskedGroup,
    MaskSums,
    Misfits,
    Roster,
    RoundKey,
    Shortfall,
    Signer,
    Unmask,
    Upload,
    Want,
)

JOB = b"fuzzed job 16 b."
PACKET_BYTES = 1536
GROUPS = (Group("layer0", 64), Group("softmax", 64))
AT = ExchangeId(JOB, 1, 1)
BLOB = Blob(hashlib.sha256(b"blob").digest(), 4, 1024)


def _raw(name):
    return hashlib.sha256(b"fuzzing: " + name.encode()).digest()


@cache
def signing_key(name):
    """A fixed key, so that an input means the same in every process."""
    return SigningKey.from_bytes(_raw(name))


@cache
def opening_key(name):
    """A fixed key."""
    return OpeningKey.from_bytes(_raw(name))


@cache
def device_id(number):
    """The id of device `number`."""
    return signing_key(f"device {number}").public().fingerprint()


@cache
def signer(name):
    """`cloud`, `proxy`, or a device by its number as text."""
    if name.isdigit():
        return Signer(device_id(int(name)), signing_key(f"device {name}"))
    return Signer(name, signing_key(name))


def manifest(kind="round", at=AT, sequence=1, blob=BLOB):
    """A manifest that is sound in itself."""
    return Manifest(
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


MASKED = structs.replace(manifest(), masked=(MaskedGroup(0, 7, 40),))
HEADERS = (
    manifest(),
    MASKED,
    manifest("job", ExchangeId(JOB, 0, 1)),
    manifest("release", ExchangeId(JOB, 0, 2)),
    Upload(AT, (0, 1), BLOB),
    Upload(AT, (0, 1), BLOB, 3, b"deposit"),
    Upload(AT, (0, 1), BLOB, 3, b"", bytes(80)),
    MaskSums(AT, BLOB.digest, BLOB),
    Batch(AT, 3, 0, (3, 3), BLOB),
    Batch(AT, 3, 0, (3, 3), BLOB, bytes(32)),
    Commit(AT, 1, BLOB),
    Roster(1, BLOB),
)
BODIES = (
    Ack(BLOB.digest, "held"),
    Ack(BLOB.digest, "refused", "wrong_size"),
    Hello(device_id(0)),
    Hello(device_id(0), 1, 2, 3),
    Behind(BLOB.digest, 4, (JobDeposit(JOB, b"deposit"),), True),
    Here(0.5),
    Later(2.0),
    Cover(10.0),
    RoundKey(AT, bytes(range(32))),
    Unmask(AT, BLOB.digest, b"\x07"),
    CheckMasks(AT, BLOB.digest, bytes(range(32))),
    Misfits(AT, BLOB.digest, b"\x07"),
    Arrived(AT, BLOB),
    Want(JOB),
    Decline(AT),
    Shortfall(AT, 1, 1),
    Close(JOB, "completed"),
    Bye(device_id(0)),
)

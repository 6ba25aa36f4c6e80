"""A spool, what is put into it, and what a new process finds there."""

import hashlib

from edgeveil.crypto.keys import SigningKey
from edgeveil.protocol import proxy_rounds as pr
from edgeveil.protocol.messages import Batch, Blob, Commit, Group, Manifest, RoundId, Signer
from edgeveil.protocol.proxy_broadcasts import BroadcastPart, KeepBroadcast
from edgeveil.protocol.proxy_uploads import UploadPart
from edgeveil.protocol.transfer import describe
from edgeveil_proxy.spool import Spool

JOB, OTHER = b"J" * 16, b"K" * 16
CLOUD_KEY = SigningKey.generate()
CLOUD, PROXY = Signer("cloud", CLOUD_KEY), Signer("proxy", SigningKey.generate())
DEVICES = tuple(f"{n:016x}" for n in range(3))


def at(round_=1, attempt=1, job=JOB):
    return RoundId(job, round_, attempt)


def manifest(kind, where, data):
    return Manifest(
        kind=kind,
        at=where,
        sequence=1,
        job_digest=bytes(32),
        phase="train",
        selected=3,
        min_batch=3,
        quorum=3,
        deadline_s=1.0,
        grace_s=1.0,
        groups=(Group("a", 64),),
        stanza_bytes=0,
        package_digest=bytes(32),
        package_bytes=1,
        commitment=bytes(32),
        cloud_key=bytes(32),
        blob=describe(data, 1024),
    )


def put(spool, header, data):
    for offset in range(0, len(data), 1024):
        piece = data[offset : offset + 1024]
        spool.store(BroadcastPart(header.blob.digest, offset, piece))
    item = spool.keep(KeepBroadcast(CLOUD.header(header), header))
    spool.store(item)
    return item


def keep(spool, kind="round", where=None, data=b"model"):
    where = where or at()
    data += bytes((where.round, where.attempt)) + where.job_id + kind.encode()
    return put(spool, manifest(kind, where, data), data)


def keep_commit(spool, where):
    data = b"h" * 32 + where.round.to_bytes(2, "big")
    return put(spool, Commit(where, 1, describe(data, 1024)), data)


SEGMENT_BYTES = 12_000


def upload(spool, slot, where=None, data=b"sealed"):
    """Device `slot` uploads one segment, in two parts."""
    where = where or at()
    data = (data * SEGMENT_BYTES)[:SEGMENT_BYTES]
    offset = slot * SEGMENT_BYTES
    spool.store(UploadPart(where, offset, data[:7000]))
    spool.store(UploadPart(where, offset + 7000, data[7000:]))
    held = pr.HeldUpload((0,), hashlib.sha256(data).digest(), slot)
    item = pr.UploadKept(where, DEVICES[slot], held)
    spool.store(item)
    return item


def in_order(_places):
    """No shuffle at all."""


def shuffled(spool, slots=3, where=None):
    uploads = tuple((slot, (0,)) for slot in range(slots))
    task = pr.ShuffleRound(where or at(), (SEGMENT_BYTES,), SEGMENT_BYTES, 1, uploads)
    return spool.shuffled(task, in_order)


def batch(spool, slots=3, where=None):
    done = shuffled(spool, slots, where)
    header = Batch(where or at(), slots, 0, done.counts, Blob(done.digest, len(done.data), 1024))
    item = pr.BatchKept(header.at, PROXY.header(header), header, done.data)
    spool.store(item)
    return item


def reopened(path):
    """The memory that a new process finds while the killed one never closed its file."""
    spool = Spool(path)
    try:
        return spool.load()
    finally:
        spool.close()


def on_disk(path):
    return b"".join(file.read_bytes() for file in path.parent.rglob("*") if file.is_file())


def names(path):
    return {file.name.split("-")[0] for file in path.with_suffix("").iterdir()}


def kinds(memory):
    headers = [item.header for item in memory.kept.values()]
    return [(h.at.job_id, getattr(h, "kind", "commit"), h.at.round) for h in headers]

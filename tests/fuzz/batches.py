"""Targets: what the cloud opens of a batch, and the file that it comes in."""

from functools import cache

import numpy as np

from edgeveil.errors import ProtocolError
from edgeveil.jobs import parse_plan
from edgeveil.jobs.round_context import RoundContext
from edgeveil.protocol.cloud_job import BatchPart
from edgeveil.protocol.messages import Batch, Blob, RoundId
from edgeveil.protocol.sealed import seal_segment, segment_mark
from edgeveil.protocol.transfer import describe
from edgeveil_cloud.broadcasts import seal_round
from edgeveil_cloud.validate_batch import BatchSpool, validate_batch
from tests.fuzz.configs import SMALLEST_JOB
from tests.fuzz.samples import JOB, opening_key
from tests.fuzz.target import Tape, Target, demand, scratch

_SELECTED = 4
_SEGMENTS = 6  # of a group, at most


@cache
def _round():
    plan = parse_plan(SMALLEST_JOB.replace("[64]", "[4]"))
    context = RoundContext.of(plan, 1)
    keys = [opening_key(f"selected {n}").public().to_bytes() for n in range(_SELECTED)]
    at, state = RoundId(JOB, 1, 1), plan.cloud.initial_state()
    header, _, secret = seal_round(context, state, keys, at, 1, 4096)
    return context, header, secret


@cache
def _pool(group):
    """Sealed segments of a group: sound, not finite, huge, padded wrongly, from elsewhere."""
    context, header, secret = _round()
    spec = context.segments[group]
    dtype, where = np.dtype(spec.dtype), header.groups[group]
    values = (0.0, 1.0, 2.0, -1.0, 3.0, 4.0, float("nan"), float("inf"), 1e300, -1e300)
    with np.errstate(invalid="ignore", over="ignore"):
        plain = [np.full(spec.shape, np.float64(one)).astype(dtype).tobytes() for one in values]
    full = b"\7" * where.padded_bytes
    sealed = [seal_segment(header, where, secret.membership, one) for one in (*plain, full)]
    stranger = seal_segment(header, where, bytes(32), plain[0])
    return (*sealed, stranger, bytes(len(stranger)))


def _batch(data):
    tape = Tape(data)
    context, header, secret = _round()
    groups = []
    for group in range(len(header.groups)):
        count = tape.number(_SEGMENTS + 1)
        groups.append([tape.choice(_pool(group)) for _ in range(count)])
    text = tape.damaged(b"".join(map(b"".join, groups)), 2)
    counts = tuple(tape.choice((len(g), len(g), len(g), tape.number(2**31))) for g in groups)
    batch = Batch(header.at, 3, 0, counts[: 1 + tape.number(9)], describe(text, 4096))
    opened = validate_batch(context, secret, batch, text)
    for spec in context.segments:
        arrays = opened.arrays.get(spec.name, ())
        demand(len(arrays) <= _SELECTED, "no more segments than were selected")
        demand(all(np.isfinite(array).all() for array in arrays), "every number is one")
        demand(all(array.shape == spec.shape for array in arrays), "every shape is the job's")
    known = {segment_mark(secret.membership, one) for group in groups for one in group}
    demand(set(opened.accepted) <= known, "what is counted was sealed by a selected device")
    demand(len(set(opened.accepted)) == len(opened.accepted), "nothing is counted twice")


def _spool(data):
    tape, spool = Tape(data), BatchSpool(scratch())
    true = bytes(range(256)) * 4
    digest = describe(true, 1).digest
    while not tape.over:
        place, size = tape.number(1024), 1 + tape.number(256)
        piece = true[place : place + size] if tape.number(4) else tape.take(size)
        spool.put(BatchPart(tape.choice((digest, digest, bytes(32))), place, piece))
    blob = Blob(digest, len(true), 256)
    demand(spool.whole(blob)[:] == true, "only the very batch is whole")


def _tapes():
    yield bytes((3, 0, 1, 2, 0)) + bytes(20)
    yield bytes((5, 6, 7, 8, 9, 10, 1, 2, 3, 4)) * 3
    yield bytes((4, 1, 1, 2, 12, 0, 0, 0))


def _courses():
    steps = (place.to_bytes(2, "little") + b"\xff\1\0" for place in range(0, 1024, 256))
    yield b"".join(steps)
    yield bytes(range(60))


TARGETS = {
    "batch": Target(_batch, _tapes, (ProtocolError,), max_bytes=128),
    "spool": Target(_spool, _courses, (ProtocolError,), max_bytes=256),
}

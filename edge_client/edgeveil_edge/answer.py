"""One round's answer: infer, train, price, and only then seal.

The noised tensors and their events are committed to the ledger in one transaction; sealing takes
the receipt. A repeated attempt finds the tensors in the ledger and seals those again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgeveil.data.records import Records
from edgeveil.data.split import sample_slots
from edgeveil.errors import PrivacyError, ProtocolError
from edgeveil.evaluation.inference import InferenceSession
from edgeveil.jobs.plan import SOFTMAX, Plan
from edgeveil.parts.exchange import KEPT, Answer, Array, Exchange, Tensors
from edgeveil.privacy.laplace_mechanism import softmax_laplace
from edgeveil.privacy.ledger import Ledger, Receipt
from edgeveil.privacy.sampler import RandomBytes
from edgeveil.protocol import sealed as real_sealing
from edgeveil.protocol.device_tasks import SealedAnswer
from edgeveil.protocol.messages import Manifest
from edgeveil.protocol.sealed import (
    RoundPackage,
    Sealing,
    pack_tensors,
    segment_mark,
    unpack_tensors,
)

MEMORY_BYTES = 1 << 26


def check_package(plan: Plan, manifest: Manifest, package: RoundPackage) -> Exchange:
    """The exchange asked for; raises ProtocolError unless it is what the job says."""
    exchange = plan.exchange(manifest.at.exchange)
    said = (package.phase, package.number, package.infer)
    if said != (exchange.phase, exchange.number, exchange.infer) or manifest.phase != package.phase:
        raise ProtocolError("wrong_phase")
    if manifest.shuffled != (plan.job.proxy.shuffle != "none"):
        raise ProtocolError("wrong_shuffle")
    if manifest.min_batch < plan.job.round.min_batch:
        raise ProtocolError("wrong_batch")  # what the shuffle earns is reckoned for that many
    if manifest.groups != plan.groups(exchange):
        raise ProtocolError("wrong_groups")
    return exchange


def own_answers(plan: Plan, exchange: Exchange, ledger: Ledger, job_id: str) -> Tensors:
    """What this device released earlier in the job and now builds on, as it was released.

    Raises PrivacyError where it did not answer then: whether it did follows from no record.
    """
    result: dict[str, Array] = {}
    for earlier in plan.recalled(exchange):
        held = ledger.recall(job_id, earlier.index)
        if held is None:
            raise PrivacyError(
                f"this device did not answer '{earlier.label}', and what follows builds on it",
                where="features",
                fix="start a new job, or use ldp_fpca",
            )
        result |= unpack_tensors(held[1])
    return result


def kept_tensors(ledger: Ledger, job_id: str) -> Tensors:
    """What this device's last answer kept for this one, named as methods expect it."""
    held = ledger.kept(job_id)
    return {KEPT + name: array for name, array in unpack_tensors(held).items()} if held else {}


def training_answer(
    plan: Plan,
    exchange: Exchange,
    package: RoundPackage,
    own: Tensors,
    training: Records,
    noise: RandomBytes,
    processor: str,
) -> Answer:
    """The method's noised segments and their events; `own`: `own_answers` and `kept_tensors`.

    Raises ProtocolError for a package that would pass for this device's memory.
    """
    given = unpack_tensors(package.tensors)
    if any(name.startswith(KEPT) for name in given):
        raise ProtocolError("bad_package", "the cloud names tensors that are the device's own")
    tensors = {**given, **own}
    return plan.device.answer(exchange, tensors, training, noise, processor)


def softmax_answer(
    plan: Plan,
    session: InferenceSession,
    weights: Tensors,
    x: Array,
    noise: RandomBytes,
    slot_key: bytes,
    row_s: float = math.inf,
) -> Answer:
    """The noised softmax of this device's evaluation records x (n, ...), and its event.

    Their mean, or one row a slot where the job asks for `per_sample`; `slot_key` puts records
    into slots, and a row may take `row_s` seconds.
    """
    records, samples = x.astype(np.float32, copy=False), plan.softmax_samples
    if samples is None:
        found = session.mean_softmax(records, dict(weights))
    else:
        held = sample_slots(records, samples, slot_key)
        found = session.slot_softmax(records, dict(weights), held, row_s)
    noised, event = softmax_laplace(
        found,
        plan.softmax_epsilon,
        sensitivity=plan.job.encrypt.laplace_eval_sensitivity,
        random_bytes=noise,
    )
    return Answer({SOFTMAX: noised}, (event,))


def release(
    ledger: Ledger, manifest: Manifest, parts: list[Answer], memory_bytes: int = MEMORY_BYTES
) -> tuple[Receipt, bytes]:
    """Commit the events, the tensors and what is kept; what may be sealed the ledger holds.

    Raises PrivacyError where more than `memory_bytes` would be kept.
    """
    segments = {name: array for part in parts for name, array in part.segments.items()}
    events = [event for part in parts for event in part.events]
    job_id, index = manifest.at.job_id.hex(), manifest.at.exchange
    ledger.commit(job_id, index, events, pack_tensors(segments), _packed(parts, memory_bytes))
    held = ledger.recall(job_id, index)
    if held is None:
        raise PrivacyError("the ledger lost a release")
    return held


def _packed(parts: list[Answer], memory_bytes: int) -> bytes:
    kept = {name: array for part in parts for name, array in part.kept.items()}
    size_bytes = sum(array.nbytes for array in kept.values())
    if size_bytes > memory_bytes:  # follows from the job's model alone, never from records
        raise PrivacyError(
            f"the job would keep {size_bytes} bytes from round to round, more than {memory_bytes}",
            where="limits.memory_bytes",
        )
    return pack_tensors(kept) if kept else b""


def seal_release(
    receipt: Receipt,
    payload: bytes,
    plan: Plan,
    manifest: Manifest,
    membership: bytes,
    sealing: Sealing = real_sealing,
) -> SealedAnswer:
    """Each segment sealed to the round's cloud key; PrivacyError without the ledger's receipt."""
    if not receipt.covers(payload):
        raise PrivacyError("the ledger's receipt is for other tensors")
    segments = unpack_tensors(payload)
    specs = plan.segments(plan.exchange(manifest.at.exchange))
    groups, sealed = [], []
    for index, (spec, group) in enumerate(zip(specs, manifest.groups, strict=True)):
        if spec.name not in segments:
            continue
        array = np.ascontiguousarray(segments[spec.name], dtype=np.dtype(spec.dtype))
        if array.shape != spec.shape:
            raise ProtocolError("wrong_shape")
        groups.append(index)
        sealed.append(sealing.seal_segment(manifest, group, membership, array.tobytes()))
    return _joined(groups, sealed, membership)


def seal_dummies(
    manifest: Manifest, groups: Sequence[int], membership: bytes, sealing: Sealing = real_sealing
) -> SealedAnswer:
    """As `seal_release` would look to all but the cloud: of these groups, and holding nothing."""
    sealed = [
        sealing.seal_segment(manifest, manifest.groups[index], membership, b"") for index in groups
    ]
    return replace(_joined(groups, sealed, membership), dummy=True)


def _joined(groups: Sequence[int], sealed: Sequence[bytes], membership: bytes) -> SealedAnswer:
    marks = tuple(segment_mark(membership, segment) for segment in sealed)
    return SealedAnswer(tuple(groups), tuple(map(len, sealed)), b"".join(sealed), marks)

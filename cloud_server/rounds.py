"""One exchange in the cloud: whom to ask, what to seal, what to make of the answers."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fl_core.aggregation import AGGREGATIONS
from fl_core.algorithms.base import Array, Exchange, SegmentSpec
from fl_core.crypto.keys import OpeningKey, SealingKey
from fl_core.errors import JobFailed
from fl_core.plan import SOFTMAX, JobPlan
from fl_core.protocol import sealed as real_sealing
from fl_core.protocol.messages import SEAL_OVERHEAD_BYTES, Batch, Exchanged, Manifest
from fl_core.protocol.package import RoundPackage, encode_package, pack_tensors
from fl_core.protocol.sealed import Sealing, Terms
from fl_core.selection import SELECTIONS, how_many

NORM_FACTOR = 100.0  # a segment this many times the group's median norm is not a noised update


@dataclass(frozen=True)
class RoundSecret:
    """What opens one round's segments; deleted when the round commits (forward secrecy).

    `recipients` are the public keys that were asked: every attempt at a round asks the same ones,
    since a device sends the same tensors again, and the tensors that come back from differing
    selections would tell who sent which.
    """

    opening: OpeningKey
    membership: bytes = field(repr=False)
    recipients: tuple[bytes, ...] = field(default=(), repr=False)

    def to_bytes(self) -> bytes:
        """Key (32), membership tag (32), recipients (32 each)."""
        return self.opening.to_bytes() + self.membership + b"".join(self.recipients)

    @classmethod
    def from_bytes(cls, raw: bytes) -> RoundSecret:
        """From the store."""
        keys = tuple(raw[i : i + 32] for i in range(64, len(raw), 32))
        return cls(OpeningKey(raw[:32]), raw[32:64], keys)


Choose = Callable[[Sequence[bytes], int], list[bytes]]
"""Draws so many of the keys given."""


def draw(enrolled: Sequence[bytes], count: int) -> list[bytes]:
    """Uniformly, from the operating system's randomness."""
    return SELECTIONS["uniform"](enrolled, count, None)


def select(plan: JobPlan, enrolled: Sequence[bytes], choose: Choose = draw) -> list[bytes]:
    """The public keys of a new round. Raises JobFailed where too few are enrolled."""
    asked, floor = plan.job.selection, plan.job.round.min_batch
    count = how_many(asked.devices, len(enrolled), asked.over_select)
    least = max(asked.min_devices, floor)
    if count < least:
        raise JobFailed(
            f"{count} devices can be selected, at least {least} are needed",
            where="selection",
            fix="enrol more devices, or lower round.min_batch and selection.min_devices",
        )
    return choose(enrolled, count)


def seal_round(
    plan: JobPlan,
    exchange: Exchange,
    state: Mapping[str, Array],
    recipients: Sequence[bytes],
    at: Exchanged,
    sequence: int,
    part_bytes: int,
    sealing: Sealing = real_sealing,
) -> tuple[Manifest, bytes, RoundSecret]:
    """The round's manifest and blob, and the secret that will open its answers."""
    opening = OpeningKey.generate()
    job, cloud = plan.job, plan.cloud
    package = RoundPackage(
        exchange.phase,
        exchange.number,
        exchange.infer,
        pack_tensors(cloud.package(state, exchange)),
        pack_tensors(cloud.model(state)) if exchange.infer else b"",
    )
    terms = Terms(
        kind="round",
        at=at,
        sequence=sequence,
        job_digest=job.digest(),
        phase=exchange.phase,
        min_batch=job.round.min_batch,
        quorum=math.ceil(job.round.quorum * len(recipients)),
        deadline_s=job.round.deadline_s,
        grace_s=job.round.grace_s,
        groups=plan.groups(exchange),
        cloud_key=opening.public().to_bytes(),
    )
    keys = [SealingKey(raw) for raw in recipients]
    plain = encode_package(package)
    manifest, data, membership = sealing.seal_broadcast(terms, plain, keys, part_bytes)
    return manifest, data, RoundSecret(opening, membership, tuple(recipients))


@dataclass
class Opened:
    """What was in a batch: valid arrays by segment, their ciphertexts' hashes, refusals."""

    arrays: dict[str, list[Array]] = field(default_factory=dict)
    accepted: list[bytes] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)


def open_batch(
    plan: JobPlan,
    exchange: Exchange,
    secret: RoundSecret,
    batch: Batch,
    data: bytes,
    selected: int,
    sealing: Sealing = real_sealing,
) -> Opened:
    """Open and validate every segment; a group with more than `selected` valid ones is void."""
    result, offset = Opened(), 0
    specs, groups = plan.segments(exchange), plan.groups(exchange)
    digest = plan.job.digest()
    sizes = [g.padded_bytes + SEAL_OVERHEAD_BYTES for g in groups]
    fits = len(batch.counts) == len(groups)
    if not fits or sum(n * s for n, s in zip(batch.counts, sizes, strict=True)) != len(data):
        result.refused["malformed_batch"] += 1
        return result
    for spec, group, count, size in zip(specs, groups, batch.counts, sizes, strict=True):
        found: list[tuple[bytes, Array]] = []
        seen: set[bytes] = set()
        for start in range(offset, offset + count * size, size):
            sealed = data[start : start + size]
            name = hashlib.sha256(sealed).digest()
            if name in seen:
                result.refused["repeated_segment"] += 1
                continue
            seen.add(name)
            plain = sealing.open_segment(
                secret.opening, batch.at, digest, group, secret.membership, sealed
            )
            if plain is None:
                result.refused["not_for_this_round"] += 1
                continue
            if any(plain[spec.byte_count :]):
                result.refused["bad_padding"] += 1
                continue
            array = _decoded(spec, plain)
            if not np.isfinite(array).all():
                result.refused["not_finite"] += 1
                continue
            found.append((name, array))
        offset += count * size
        found = _of_usual_size(found, result.refused)
        if len(found) > selected:
            result.refused["more_than_selected"] += len(found)
            found = []
        result.arrays[spec.name] = [array for _, array in found]
        result.accepted += [name for name, _ in found]
    return result


def _decoded(spec: SegmentSpec, plain: bytes) -> Array:
    dtype = np.dtype(spec.dtype).newbyteorder("<")
    return np.frombuffer(plain[: spec.byte_count], dtype).reshape(spec.shape)


def _of_usual_size(
    found: list[tuple[bytes, Array]], refused: Counter[str]
) -> list[tuple[bytes, Array]]:
    """Drop arrays whose norm is far above the group's median: no honest noise reaches there."""
    if len(found) < 3:
        return found
    with np.errstate(over="ignore"):
        norms = [float(np.linalg.norm(array.astype(np.float64).ravel())) for _, array in found]
    limit = NORM_FACTOR * float(np.median(norms))
    kept = [item for item, norm in zip(found, norms, strict=True) if norm <= limit]
    if len(kept) < len(found):
        refused["norm"] += len(found) - len(kept)
    return kept


def aggregate(
    plan: JobPlan, exchange: Exchange, state: Mapping[str, Array], opened: Opened
) -> tuple[dict[str, Array], int]:
    """The method's next state and the number of uploads in it. Raises JobFailed if too few."""
    training = {name: arrays for name, arrays in opened.arrays.items() if name != SOFTMAX}
    uploads = min((len(arrays) for arrays in training.values()), default=0)
    if uploads < plan.job.round.min_batch:
        raise JobFailed(
            f"{uploads} valid uploads, at least {plan.job.round.min_batch} are needed",
            where=exchange.label,
        )
    mean = AGGREGATIONS[plan.job.aggregation.name](training)
    return plan.cloud.absorb(state, exchange, mean, uploads), uploads

"""One exchange in the cloud: whom to ask, what to seal, what to make of the answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from edgeveil.crypto.keys import OpeningKey, SealingKey
from edgeveil.errors import JobFailed
from edgeveil.jobs.plan import SOFTMAX, Plan
from edgeveil.parts.aggregation import Uploads
from edgeveil.parts.aggregation.mean import mean
from edgeveil.parts.aggregation.rule import Score
from edgeveil.parts.exchange import TRAIN, Array, Exchange
from edgeveil.privacy.sampler import RandomBytes, os_random
from edgeveil.protocol import sealed as real_sealing
from edgeveil.protocol.messages import ExchangeId, Manifest
from edgeveil.protocol.sealed import RoundPackage, Sealing, Terms, encode_package, pack_tensors
from edgeveil.selection import SELECTIONS, how_many
from edgeveil_cloud.opening import Opened
from edgeveil_cloud.round_secret import RoundSecret


class TooFewDevices(JobFailed):
    """Not enough devices are enrolled, or answered, for a round."""


Choose = Callable[[Sequence[bytes], int], list[bytes]]
"""Draws so many of the keys given."""


def draw(enrolled: Sequence[bytes], count: int) -> list[bytes]:
    """Uniformly, from the operating system's randomness."""
    return SELECTIONS["uniform"](enrolled, count, None)


def select(plan: Plan, enrolled: Sequence[bytes], choose: Choose = draw) -> list[bytes]:
    """The public keys of a new round. Raises TooFewDevices."""
    asked, floor = plan.job.selection, plan.job.round.min_batch
    count = how_many(asked.devices, len(enrolled), asked.over_select)
    least = max(asked.min_devices, floor)
    if count < least:
        raise TooFewDevices(
            f"{count} devices can be selected, at least {least} are needed",
            where="selection",
            fix="enrol more devices, or lower round.min_batch and selection.min_devices",
        )
    return choose(enrolled, count)


def seal_round(
    plan: Plan,
    exchange: Exchange,
    state: Mapping[str, Array],
    recipients: Sequence[bytes],
    at: ExchangeId,
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
        shuffled=job.proxy.shuffle != "none",
    )
    keys = [SealingKey(raw) for raw in recipients]
    plain = encode_package(package)
    manifest, data, membership = sealing.seal_broadcast(terms, plain, keys, part_bytes)
    return manifest, data, RoundSecret(opening, membership, tuple(recipients))


def aggregate(
    plan: Plan,
    exchange: Exchange,
    state: Mapping[str, Array],
    opened: Opened,
    random_bytes: RandomBytes = os_random,
    score: Score | None = None,
) -> tuple[dict[str, Array], int]:
    """The method's next state and the number of uploads in it. Raises TooFewDevices.

    Sums of a preparatory exchange are averaged where the job's rule is not defined on sums.
    """
    training = {name: arrays for name, arrays in opened.arrays.items() if name != SOFTMAX}
    uploads = min((len(arrays) for arrays in training.values()), default=0)
    ruled = plan.rule.sums or exchange.phase == TRAIN
    least = max(plan.job.round.min_batch, plan.rule.least if ruled else 1)
    if uploads < least:
        raise TooFewDevices(
            f"{uploads} valid uploads, at least {least} are needed",
            where=exchange.label,
            fix=f"select more devices, or ask less of aggregation '{plan.job.aggregation.name}'",
        )
    if not ruled:
        return plan.cloud.absorb(state, exchange, mean(training), uploads), uploads
    found = Uploads(training, plan.cloud.aim(state, exchange), random_bytes, score)
    combined = plan.rule.combine(found)
    return plan.cloud.absorb(state, exchange, combined, plan.rule.counted(uploads)), uploads

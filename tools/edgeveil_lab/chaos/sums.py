"""Whether the cloud summed what it lists: its state, computed again from the devices' ledgers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import EdgeVeilError
from edgeveil.jobs.plan import SOFTMAX, Plan
from edgeveil.parts.exchange import Exchange
from edgeveil.protocol.sealed import unpack_tensors
from edgeveil_lab.chaos.evidence import Commit, DeviceFacts, Evidence, JobFacts

Array = NDArray[np.generic]
Upload = tuple[str, Array]  # a segment's name and what was in it
# Far above the rounding of a sum, far below what one device's noise moves.
_RELATIVE, _ABSOLUTE = 1e-5, 1e-7


def uploads_of(found: Evidence, job: JobFacts) -> dict[bytes, Upload]:
    """What is behind each mark, as the ledgers of the devices that sealed it hold it.

    Raises EdgeVeilError or ValueError where a ledger's tensors are not those of the receipt.
    """
    return {
        mark: upload
        for device in found.devices
        for receipt in device.receipts
        if receipt.job_id == job.wire
        for mark, upload in _sealed(device, job, receipt.round, receipt.segment_hashes)
    }


def _sealed(
    device: DeviceFacts, job: JobFacts, index: int, marks: tuple[bytes, ...]
) -> Iterator[tuple[bytes, Upload]]:
    payload = device.releases.get((job.wire.hex(), index))
    if payload is None:
        return
    tensors = unpack_tensors(payload)
    specs = job.plan.segments(job.plan.exchange(index))
    names = [spec.name for spec in specs if spec.name in tensors]
    for mark, name in zip(marks, names, strict=True):
        yield mark, (name, tensors[name])


def sums_right(found: Evidence, _course: object) -> Iterator[str | int]:
    """the cloud's state is that of the mean of exactly the uploads that it lists"""
    for job in found.jobs:
        try:
            yield from _job(job, uploads_of(found, job))
        except (EdgeVeilError, ValueError) as error:
            yield f"{job.id} cannot be computed again: {error}"


def _job(job: JobFacts, uploads: Mapping[bytes, Upload]) -> Iterator[str | int]:
    state = job.plan.cloud.initial_state()
    for commit in job.commits:
        where = f"{job.id} round {commit.index}"
        exchange = job.plan.exchange(commit.index)
        unknown = sum(mark not in uploads for mark in commit.accepted)
        if unknown:
            yield f"{where} lists {unknown} segments whose tensors no ledger holds"
            return
        groups = _groups(job.plan, exchange, commit, uploads)
        least = min(map(len, groups.values()), default=0)
        if commit.uploads != least or not least:
            yield f"{where} has {commit.uploads} uploads and lists {least}"
            return
        mean = {name: np.mean(np.stack(arrays), axis=0) for name, arrays in groups.items()}
        state = job.plan.cloud.absorb(state, exchange, mean, commit.uploads)
        yield 1
    if job.commits:
        held = unpack_tensors(job.state) if job.state else {}
        for name in sorted(state.keys() | held.keys()):
            if name not in held or name not in state or not _close(held[name], state[name]):
                yield f"{job.id}: '{name}' of the state is not that of the uploads listed"


def _groups(
    plan: Plan, exchange: Exchange, commit: Commit, uploads: Mapping[bytes, Upload]
) -> dict[str, list[NDArray[np.float64]]]:
    """The training segments that a commit lists, by name; a name of which none is listed too."""
    found: dict[str, list[NDArray[np.float64]]] = defaultdict(list)
    for spec in plan.cloud.segments(exchange):
        found[spec.name] = []
    for mark in commit.accepted:
        name, array = uploads[mark]
        if name != SOFTMAX:
            found[name].append(array.astype(np.float64))
    return found


def _close(held: Array, wanted: Array) -> bool:
    return held.shape == wanted.shape and np.allclose(
        held.astype(np.float64), wanted.astype(np.float64), _RELATIVE, _ABSOLUTE
    )

"""Backbones and initial weights that a job names by SHA-256.

Backbones and adapters' frozen weights are sent once with the job, other weights with a round.
"""

from __future__ import annotations

from pathlib import Path

from edgeveil.errors import DataError
from edgeveil.jobs.job import Job
from edgeveil.parts.features import backbone_digests, read_backbones
from edgeveil.parts.features.onnx import sha256_hex
from edgeveil.parts.models.network import packed_state_dict


def kept_digests(job: Job) -> tuple[str, ...]:
    """Return the distinct digests that the cloud must have before it can run the job."""
    named = job.model.state_dict if job.model is not None else None
    return (*backbone_digests(job.features), *(() if named is None else (named.sha256,)))


def carried_digests(job: Job) -> tuple[str, ...]:
    """Return the digests of files sent with the job; device owners allow them by digest."""
    frozen = job.model is not None and job.model.adapters is not None
    return kept_digests(job) if frozen else backbone_digests(job.features)


def read_artifacts(job: Job) -> dict[str, bytes]:
    return {**read_backbones(job.features), **read_weights(job)}


def read_weights(job: Job) -> dict[str, bytes]:
    """Return the model's initial weights, by digest. Raises DataError."""
    named = job.model.state_dict if job.model is not None else None
    if named is None or named.file is None:
        return {}
    packed = packed_state_dict(Path(named.file))
    if sha256_hex(packed) != named.sha256:
        raise DataError("changed while it was read", where=named.file, fix="start again")
    return {named.sha256: packed}

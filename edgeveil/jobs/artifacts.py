"""Backbones and first weights that a job names by SHA-256. Backbones and adapters' frozen weights
travel to devices once, with the job; a whole model's first weights go with a round."""

from __future__ import annotations

from pathlib import Path

from edgeveil.errors import DataError
from edgeveil.jobs.job import Job
from edgeveil.parts.features import backbone_digests, read_backbones
from edgeveil.parts.features.onnx import sha256_hex
from edgeveil.parts.models.network import packed_state_dict


def kept_digests(job: Job) -> tuple[str, ...]:
    """The digests that the cloud must hold before it can run the job, once each."""
    named = job.model.state_dict if job.model is not None else None
    return (*backbone_digests(job.features), *(() if named is None else (named.sha256,)))


def carried_digests(job: Job) -> tuple[str, ...]:
    """Of what devices are sent with the job; their owners allow it by digest."""
    frozen = job.model is not None and job.model.adapters is not None
    return kept_digests(job) if frozen else backbone_digests(job.features)


def read_artifacts(job: Job) -> dict[str, bytes]:
    """By digest, from the files that a job file names. Raises DataError."""
    return {**read_backbones(job.features), **read_weights(job)}


def read_weights(job: Job) -> dict[str, bytes]:
    """The same of the model's first weights alone."""
    named = job.model.state_dict if job.model is not None else None
    if named is None or named.file is None:
        return {}
    packed = packed_state_dict(Path(named.file))
    if sha256_hex(packed) != named.sha256:
        raise DataError("changed while it was read", where=named.file, fix="start again")
    return {named.sha256: packed}

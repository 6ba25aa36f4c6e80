"""The job file: what to learn, and the canonical bytes that every party checks."""

from __future__ import annotations

import hashlib
import json
from typing import Self

from pydantic import Field, ValidationError, model_validator

from edgeveil.errors import ProtocolError
from edgeveil.jobs.job_blocks import Encrypt, JobData, Privacy, Round, Selection, Unsupervised
from edgeveil.jobs.job_mixes import job_mixes
from edgeveil.jobs.job_updates import Proxy
from edgeveil.jobs.local_run import LocalRun
from edgeveil.jobs.methods import (
    AggregationBlock,
    FeatureParameters,
    ModelBlock,
    StageBlock,
    TrainParameters,
)
from edgeveil.parts.aggregation import FedAvgParameters
from edgeveil.settings.base import Block, refuse

CANONICAL_BYTES = 1 << 16


class Job(Block):
    """One learning job. Without `local_run` it is what the cloud signs and devices judge."""

    job: str = Field(pattern=r"^[a-z0-9_-]{1,64}$", examples=["quickstart"])
    """The job's name."""
    data: JobData
    """What the devices' records look like."""
    features: tuple[FeatureParameters, ...] = Field(
        default=(), max_length=8, examples=[[{"name": "identity"}]]
    )
    """The public feature maps, put side by side; a PCA may follow them as the last entry."""
    model: ModelBlock | None = Field(default=None, examples=[{"name": "mlp"}])
    """The model that methods such as `sgd` train whole; null for methods that learn on features."""
    train: TrainParameters = Field(examples=[{"method": "fm"}])
    """The training method and its parameters."""
    update: tuple[StageBlock, ...] = Field(
        default=(), max_length=8, examples=[[{"name": "upload_top_k", "share": 0.1}]]
    )
    """What an update passes through on the device, in this order, before it is sealed."""
    privacy: Privacy = Privacy()
    """The training guarantee."""
    selection: Selection = Selection()
    """Which devices take part in a round."""
    round: Round = Round()
    """When a round closes."""
    proxy: Proxy = Proxy()
    """What the proxy does with the uploads."""
    aggregation: AggregationBlock = Field(default=FedAvgParameters(), examples=[{"name": "fedavg"}])
    """How the uploads of a round become one."""
    encrypt: Encrypt = Encrypt()
    """How inference uploads are protected."""
    unsupervised: Unsupervised = Unsupervised(every_rounds=0)
    """Evaluation on the devices; without this block there is none."""
    local_run: LocalRun | None = None
    """How `edgeveil run` plays the job on one machine; no part of the job itself."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        refuse(job_mixes(self))
        return self

    @property
    def rounds(self) -> int:
        """Training rounds; preparatory exchanges are not counted."""
        return self.train.rounds

    @property
    def max_participations(self) -> int:
        """Training rounds one device may answer: the configured number, else all."""
        return self.privacy.max_participations or self.rounds

    @property
    def infer_every(self) -> int:
        """Devices upload inferences in rounds that are multiples of this; 0: never."""
        unsupervised = self.unsupervised
        return 0 if unsupervised.eval_type == "NOT_EVAL" else unsupervised.every_rounds

    def canonical(self) -> bytes:
        """The job as JSON with sorted keys and all defaults, `local_run` left out."""
        plain = self.model_dump(mode="json", exclude={"local_run"})
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return text.encode("ascii")

    def digest(self) -> bytes:
        """SHA-256 of the canonical bytes (32 bytes): the job's identity."""
        return hashlib.sha256(self.canonical()).digest()

    @classmethod
    def from_canonical(cls, raw: bytes) -> Job:
        """The job of canonical bytes (at most 64 KiB), as they come over the wire.

        Raises ProtocolError("bad_job") for anything else, even for another spelling of the
        same job: one job has one digest.
        """
        if len(raw) > CANONICAL_BYTES:
            raise ProtocolError("bad_job", f"a job of more than {CANONICAL_BYTES} bytes")
        try:
            job = cls.model_validate_json(raw, strict=True)
            same = job.canonical() == raw
        except (ValidationError, ValueError, RecursionError):
            raise ProtocolError("bad_job", "not a job that this version knows") from None
        if not same:
            raise ProtocolError("bad_job", "not in canonical form")
        return job

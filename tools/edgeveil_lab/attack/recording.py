"""A recorded job: the cloud's view of a demonstration, and the records of its devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from edgeveil.data.records import Records
from edgeveil.errors import EdgeVeilError, UsageError
from edgeveil.jobs import Job, compile_job
from edgeveil.jobs.plan import Plan
from edgeveil.parts.features import backbone_digests, projection_of
from edgeveil.parts.methods.fm import HEAD, FmDevice
from edgeveil.parts.methods.fm_sums import FmParameters, head_shape, symmetric
from edgeveil.parts.methods.local_steps import minimise_quadratic
from edgeveil.parts.round import TRAIN, Array, PlannedRound, Tensors
from edgeveil.protocol.tensors import unpack_tensors
from edgeveil_cloud.round_report import JOB, file_name
from edgeveil_tools.local.data import dealt, held
from edgeveil_tools.local.local_run import LocalRun

RUN = "run.json"
Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Recording:
    folder: Path
    job: Job
    run: LocalRun

    @classmethod
    def load(cls, folder: Path) -> Recording:
        """Load a recording; raises UsageError if it is unreadable or cannot be attacked."""
        try:
            job = Job.from_canonical((folder / JOB).read_bytes())
            run = LocalRun.model_validate_json((folder / RUN).read_bytes())
        except (OSError, ValidationError, EdgeVeilError) as error:
            lacking = isinstance(error, FileNotFoundError)
            raise UsageError(
                f"holds no recording of a run{'' if lacking else ' that can be read'}",
                where=str(folder),
                fix="name the folder `recording` that edgeveil run"
                " configs/jobs/attack_demo.yaml --record --out DIR leaves in DIR",
            ) from error
        if reason := why_not(job):
            fix = "record configs/jobs/attack_demo.yaml, or a job like it"
            raise UsageError(reason, where=str(folder / JOB), fix=fix)
        return cls(folder, job, run)

    @cached_property
    def plan(self) -> Plan:
        return compile_job(self.job)

    @property
    def parameters(self) -> FmParameters:
        return cast(FmParameters, self.job.train)  # as `why_not` has found

    @cached_property
    def device(self) -> FmDevice:
        return FmDevice(self.parameters, self.plan.context)

    @property
    def rounds(self) -> tuple[PlannedRound, ...]:
        return tuple(e for e in self.plan.all_rounds if e.phase == TRAIN)

    @cached_property
    def devices(self) -> list[Records]:
        records, shares = dealt(self.job, self.run)
        return [records.at(s) for s in shares[: self.run.devices - self.run.infer_only]]

    @cached_property
    def test(self) -> Records:
        return held(self.job, self.run)

    def broadcast(self, round: PlannedRound) -> Tensors:
        return self._tensors(round, "broadcast")

    def model(self, round: PlannedRound) -> Tensors:
        return self._tensors(round, "model")

    def uploads(self, round: PlannedRound) -> list[Array]:
        """Return the method's segments of this round, in the batch's random order."""
        name = HEAD if round.phase == TRAIN else round.phase
        found = self._tensors(round, "uploads")
        return [found[key] for key in sorted(found) if key.rpartition("/")[0] == name]

    def _tensors(self, round: PlannedRound, kind: str) -> dict[str, Any]:
        path = self.folder / file_name(round, kind)
        try:
            return dict(unpack_tensors(path.read_bytes()))
        except (OSError, EdgeVeilError) as error:
            what = f"cannot be read ({type(error).__name__}); was the job finished?"
            raise UsageError(what, where=str(path), fix="record the run again") from error


def why_not(job: Job) -> str:
    """Return the reason why recordings of this job are not attacked; empty if they are."""
    projection = projection_of(job.features)
    if not isinstance(job.train, FmParameters) or job.train.noise != "gaussian":
        return "only jobs of fm with Gaussian noise are attacked"
    if projection is not None and (projection.name, projection.noise) != ("ldp_fpca", "gaussian"):
        return f"a job with {projection.name} has no common basis with Gaussian noise to attack"
    if backbone_digests(job.features):
        return "a recording holds no backbone, so features cannot be computed"
    if job.data.evaluation_share:
        return (
            "devices reserved data.evaluation_share of their records, by keys that no longer exist"
        )
    return ""


def noised_linear(device: FmDevice, broadcast: Tensors, changes: Sequence[Array]) -> list[Float64]:
    """Return the noised linear sums (d, c) of uploads ΔW, in units of one record.

    Local steps are ΔW = −q(A)·L; the public spectrum fixes the polynomial q, which is inverted."""
    context, nominal = device.context, device.context.nominal_records
    low, high = (float(v) for v in broadcast["spectrum"])
    if device.parameters.quadratic == "never":
        return [change.astype(np.float64) * (-high * nominal) for change in changes]
    curvature = symmetric(
        broadcast["curvature"].astype(np.float64), head_shape(device.parameters, context)[0]
    )
    values, vectors = np.linalg.eigh(curvature)
    ones = np.full((len(values), 1), -1.0)
    steps = device.parameters.local_steps
    q = minimise_quadratic(ones, np.diag(values), (low, high), steps).astype(np.float64)
    undo = (vectors / q.ravel()) @ vectors.T * -nominal
    return [np.asarray(undo @ change.astype(np.float64)) for change in changes]


def exact_linear(
    device: FmDevice, round: PlannedRound, broadcast: Tensors, own: Records
) -> Float64:
    """Return the same sum without noise, which no cloud sees."""
    steps = device.sums(round, broadcast, own).astype(np.float64)
    return np.asarray(steps * 2.0 ** -device.budget.grid_bits(round.phase))

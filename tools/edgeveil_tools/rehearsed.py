"""A job file's job played on made-up records; what fails is told with its line in the file."""

from __future__ import annotations

from pathlib import Path

from edgeveil.errors import ConfigError
from edgeveil.jobs import Plan, line_of
from edgeveil.parts.features import read_backbones
from edgeveil.protocol.transfer import part_bytes
from edgeveil.sites.cloud import CloudLimits
from edgeveil_cloud.rehearsal import RefusedJobError, rehearse_job
from edgeveil_cloud.sealing import Limits

_USUAL = CloudLimits()
USUAL_LIMITS = Limits(
    part_bytes(_USUAL.packet_bytes), _USUAL.blob_bytes, batch_bytes=_USUAL.spool_bytes
)


def rehearse_file(
    path: Path, plan: Plan, *, devices: bool = True, limits: Limits = USUAL_LIMITS
) -> None:
    """Raise ConfigError, `file:line key: why, fix`, unless the job of the file `path` can be done.

    `limits` are those of its cloud, `devices` as `rehearse_job` has it.
    """
    whole = plan.with_artifacts(read_backbones(plan.job.features))
    try:
        rehearse_job(whole, limits, devices=devices)
    except RefusedJobError as error:
        fix = f"; {error.fix}" if error.fix else ""
        line = line_of(path, error.where)
        text = " ".join(f"{path}:{line} {error.where}: {error.what}{fix}".split())
        raise ConfigError([text]) from error

"""Update stages: what an update passes through on the device; one per file, one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fl_core.algorithms.setting import Setting
from fl_core.algorithms.stages.download_random import DownloadRandom, DownloadRandomParameters
from fl_core.algorithms.stages.gradient_gaussian import (
    GradientGaussian,
    GradientGaussianParameters,
)
from fl_core.algorithms.stages.ldp_fl import LdpFl, LdpFlParameters
from fl_core.algorithms.stages.stc import Stc, StcParameters
from fl_core.algorithms.stages.top_k import TopK, TopKParameters
from fl_core.algorithms.updates.base import Stage
from fl_core.registry import Table

__all__ = ["STAGES", "StageEntry", "StageParameters"]


@dataclass(frozen=True)
class StageEntry:
    """One entry of the table: its parameters, and the stage they make."""

    parameters: type[Any]
    build: Callable[[Any, Setting], Stage]


STAGES: Table[StageEntry] = Table(
    "update stage",
    {
        "download_random": StageEntry(DownloadRandomParameters, DownloadRandom),
        "gradient_gaussian": StageEntry(GradientGaussianParameters, GradientGaussian),
        "ldp_fl": StageEntry(LdpFlParameters, LdpFl),
        "upload_top_k": StageEntry(TopKParameters, TopK),
        "stc": StageEntry(StcParameters, Stc),
    },
)

StageParameters = (
    DownloadRandomParameters
    | GradientGaussianParameters
    | LdpFlParameters
    | TopKParameters
    | StcParameters
)

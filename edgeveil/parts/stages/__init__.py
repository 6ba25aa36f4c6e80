"""Update stages: what an update passes through on the device; one per file, one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edgeveil.parts.setting import Setting
from edgeveil.parts.stages.download_random import DownloadRandom, DownloadRandomParameters
from edgeveil.parts.stages.gradient_gaussian import GradientGaussian, GradientGaussianParameters
from edgeveil.parts.stages.ldp_fl import LdpFl, LdpFlParameters
from edgeveil.parts.stages.stc import Stc, StcParameters
from edgeveil.parts.stages.top_k import TopK, TopKParameters
from edgeveil.parts.update import Stage
from edgeveil.registry import Table

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

"""Training methods: one idea per file, one table of names."""

from __future__ import annotations

from fl_core.algorithms.fm import FmCloud, FmDevice
from fl_core.algorithms.fm_paper import FmPaperParameters
from fl_core.algorithms.fm_paper_cloud import FmPaperCloud
from fl_core.algorithms.fm_paper_device import FmPaperDevice
from fl_core.algorithms.fm_parameters import FmParameters
from fl_core.algorithms.noise_only import NoiseOnlyCloud, NoiseOnlyDevice, NoiseOnlyParameters
from fl_core.algorithms.setting import Method, Setting
from fl_core.registry import Table

__all__ = ["METHODS", "Method", "MethodParameters", "Setting"]

METHODS: Table[Method] = Table(
    "method",
    {
        "fm": Method(FmParameters, FmDevice, FmCloud),
        "fm_paper": Method(FmPaperParameters, FmPaperDevice, FmPaperCloud),
        "noise_only": Method(NoiseOnlyParameters, NoiseOnlyDevice, NoiseOnlyCloud),
    },
)

MethodParameters = FmParameters | FmPaperParameters | NoiseOnlyParameters

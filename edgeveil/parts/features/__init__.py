"""Public feature maps: one idea per file, one table of names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edgeveil.parts.features.artifacts import (
    NONE,
    Artifacts,
    backbone_digests,
    check_backbones,
    match_backbones,
    read_backbones,
)
from edgeveil.parts.features.backbone import cached_backbone
from edgeveil.parts.features.base import FeatureMap, MapParameters, valid_records
from edgeveil.parts.features.concatenation import Concatenation
from edgeveil.parts.features.gabor import Gabor, GaborParameters
from edgeveil.parts.features.identity import Identity, IdentityParameters
from edgeveil.parts.features.onnx_map import OnnxMap, OnnxParameters
from edgeveil.parts.features.pca import PcaParameters
from edgeveil.parts.features.random_relu import RandomParameters, RandomRelu
from edgeveil.registry import Table

__all__ = [
    "FEATURES",
    "NONE",
    "Artifacts",
    "Concatenation",
    "Feature",
    "FeatureMap",
    "FeatureParameters",
    "Gabor",
    "GaborParameters",
    "Identity",
    "IdentityParameters",
    "OnnxMap",
    "OnnxParameters",
    "PcaParameters",
    "RandomParameters",
    "RandomRelu",
    "backbone_digests",
    "build_features",
    "cached_backbone",
    "check_backbones",
    "match_backbones",
    "projection_of",
    "read_backbones",
    "valid_records",
]


@dataclass(frozen=True)
class Feature:
    """One entry of the table: its parameters, and the map that they and the backbones make."""

    parameters: type[MapParameters]
    build: Callable[[Any, Artifacts], FeatureMap]


FEATURES: Table[Feature] = Table(
    "feature map",
    {
        "identity": Feature(IdentityParameters, lambda p, _: Identity(p)),
        "random": Feature(RandomParameters, lambda p, _: RandomRelu(p)),
        "gabor": Feature(GaborParameters, lambda p, _: Gabor(p)),
        "onnx": Feature(OnnxParameters, lambda p, found: OnnxMap(p, found.get(p.sha256))),
    },
)

FeatureParameters = (
    IdentityParameters | RandomParameters | GaborParameters | OnnxParameters | PcaParameters
)


def build_features(entries: Sequence[FeatureParameters], artifacts: Artifacts = NONE) -> FeatureMap:
    """The map that a job's `features` name: its maps side by side, one alone as it is.

    `artifacts` holds backbones by their SHA-256 (hex). Without one, an entry that was read from a
    job file takes that file's; another knows its dimension and cannot be called. A PCA entry is
    no map and left out. No entries at all: the records' values themselves.
    """
    if not entries:
        return Identity(IdentityParameters())
    named = [entry for entry in entries if not isinstance(entry, PcaParameters)]
    maps = [FEATURES[entry.name].build(entry, artifacts) for entry in named]
    return maps[0] if len(maps) == 1 else Concatenation(maps, [entry.weight for entry in named])


def projection_of(entries: Sequence[FeatureParameters]) -> PcaParameters | None:
    """The PCA that follows the maps, if the job names one."""
    return next((entry for entry in entries if isinstance(entry, PcaParameters)), None)

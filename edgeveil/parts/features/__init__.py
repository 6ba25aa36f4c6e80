"""Public feature maps, each declared by the file that implements it; see `feature_map.py`."""

from __future__ import annotations

from collections.abc import Sequence

from edgeveil.errors import UsageError
from edgeveil.parts.features.feature_map import (
    Artifacts,
    Concatenation,
    FeatureMap,
    FeatureParameters,
    FeaturePart,
    MapParameters,
    finite_records,
    prepare,
    valid_records,
)
from edgeveil.parts.features.identity import Identity, IdentityParameters
from edgeveil.parts.features.onnx import (
    NONE,
    OnnxMap,
    OnnxParameters,
    backbone_digests,
    cached_backbone,
    check_backbones,
    match_artifacts,
    read_backbones,
)
from edgeveil.parts.features.pca import PcaParameters
from edgeveil.parts.part import PartTable

__all__ = [
    "FEATURES",
    "NONE",
    "Artifacts",
    "Concatenation",
    "FeatureMap",
    "FeatureParameters",
    "FeaturePart",
    "Identity",
    "IdentityParameters",
    "MapParameters",
    "OnnxMap",
    "OnnxParameters",
    "PcaParameters",
    "backbone_digests",
    "build_features",
    "build_map",
    "cached_backbone",
    "check_backbones",
    "finite_records",
    "match_artifacts",
    "prepare",
    "projection_of",
    "read_backbones",
    "valid_records",
]

FEATURES = TABLE = PartTable(__name__, FeaturePart)


def build_features(entries: Sequence[FeatureParameters], artifacts: Artifacts = NONE) -> FeatureMap:
    """The map of a job's `features`: maps side by side, or the records' values if there are none.

    `artifacts` holds backbones by SHA-256 (hex); an entry without one takes its job file's, or
    knows only its dimension. A PCA entry is no map.
    """
    if not entries:
        return Identity(IdentityParameters())
    named = [entry for entry in entries if isinstance(entry, MapParameters)]
    maps = [build_map(entry, artifacts) for entry in named]
    return maps[0] if len(maps) == 1 else Concatenation(maps, [entry.weight for entry in named])


def build_map(entry: MapParameters, artifacts: Artifacts = NONE) -> FeatureMap:
    """The map of one entry. Raises UsageError for an entry that names none."""
    build = FEATURES[entry.name].build
    if build is None:
        raise UsageError(f"'{entry.name}' is no feature map", where="features")
    return build(entry, artifacts)


def projection_of(entries: Sequence[FeatureParameters]) -> PcaParameters | None:
    """The PCA that follows the maps, if the job names one."""
    return next((entry for entry in entries if isinstance(entry, PcaParameters)), None)

"""Public feature maps, each declared by the file that implements it; see `feature_map.py`."""

from __future__ import annotations

from collections.abc import Sequence

from edgeveil.errors import UsageError
from edgeveil.parts.features.feature_map import Artifacts as Artifacts
from edgeveil.parts.features.feature_map import Concatenation as Concatenation
from edgeveil.parts.features.feature_map import FeatureMap as FeatureMap
from edgeveil.parts.features.feature_map import FeatureParameters as FeatureParameters
from edgeveil.parts.features.feature_map import FeaturePart as FeaturePart
from edgeveil.parts.features.feature_map import MapParameters as MapParameters
from edgeveil.parts.features.feature_map import PcaParameters as PcaParameters
from edgeveil.parts.features.feature_map import finite_records as finite_records
from edgeveil.parts.features.feature_map import prepare as prepare
from edgeveil.parts.features.feature_map import valid_records as valid_records
from edgeveil.parts.features.onnx import NONE as NONE
from edgeveil.parts.features.onnx import OnnxParameters as OnnxParameters
from edgeveil.parts.features.onnx import backbone_digests as backbone_digests
from edgeveil.parts.features.onnx import cached_backbone as cached_backbone
from edgeveil.parts.features.onnx import check_backbones as check_backbones
from edgeveil.parts.features.onnx import match_artifacts as match_artifacts
from edgeveil.parts.features.onnx import read_backbones as read_backbones
from edgeveil.parts.features.values import Identity as Identity
from edgeveil.parts.features.values import IdentityParameters as IdentityParameters
from edgeveil.parts.part import PartTable

FEATURES = TABLE = PartTable(__name__, FeaturePart)


def build_features(entries: Sequence[FeatureParameters], artifacts: Artifacts = NONE) -> FeatureMap:
    """Return the map of a job's `features`, `identity` by default; PCA entries are skipped.

    Without an artifact (by SHA-256, hex) an `onnx` map reads its job file's, or has only a
    dimension."""
    if not entries:
        return Identity(IdentityParameters())
    named = [entry for entry in entries if isinstance(entry, MapParameters)]
    maps = []
    for entry in named:
        build = FEATURES[entry.name].build
        if build is None:
            raise UsageError(f"'{entry.name}' is no feature map", where="features")
        maps.append(build(entry, artifacts))
    return maps[0] if len(maps) == 1 else Concatenation(maps, [entry.weight for entry in named])


def projection_of(entries: Sequence[FeatureParameters]) -> PcaParameters | None:
    return next((entry for entry in entries if isinstance(entry, PcaParameters)), None)

"""Public feature maps: one idea per file, one table of names."""

from __future__ import annotations

from fl_core.features.base import FeatureMap, valid_records
from fl_core.features.identity import Identity, IdentityParameters
from fl_core.registry import Table

__all__ = [
    "FEATURES",
    "FeatureMap",
    "FeatureParameters",
    "Identity",
    "IdentityParameters",
    "build_features",
    "valid_records",
]

FEATURES: Table[type[Identity]] = Table("feature map", {"identity": Identity})

FeatureParameters = IdentityParameters


def build_features(parameters: FeatureParameters) -> FeatureMap:
    """The map that a job's `features` block names."""
    return FEATURES[parameters.name](parameters)

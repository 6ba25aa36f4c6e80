"""Federated PCA as a step after the feature maps: its parameters, all public."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edgeveil.parts.features.feature_map import FeatureParameters, FeaturePart

COVARIANCE = "covariance"
"""The phase in which devices release what the basis is found from."""


class PcaParameters(FeatureParameters):
    """A PCA entry, the last of a job's `features`: projects what the entries before it give."""

    name: Literal["ldp_fpca", "ldp_pca", "local_pca"]
    """`ldp_fpca`: one basis, from the average of the devices' noised covariances. `ldp_pca`: each
    device that of its own noised one. `local_pca`: each device its own without noise, claimed."""
    keep: float = Field(default=0.5, gt=0, le=1)
    """p: the share of dimensions that is kept."""
    share: float = Field(default=0.2, gt=0, lt=1)
    """Share of the training budget for the covariance: of μ², or of ε where two kinds of noise
    meet. `local_pca` releases none and takes none."""
    noise: Literal["gaussian", "wishart"] = "gaussian"
    """`gaussian`: symmetric noise on the covariance. `wishart`: as the text has it, claimed."""

    def output_dim(self, dimension: int) -> int:
        return max(1, round(self.keep * dimension))


PARTS = (
    FeaturePart(
        name="ldp_fpca",
        parameters=PcaParameters,
        source="Cao et al. 2023 (DELM), alg. 2; Dwork et al. 2014 (Analyze Gauss)",
        needs="to be the last of the features",
        reveals="each device's noised covariance",
        privacy="proven",
        note="`noise: wishart` is claimed",
        summary="One basis, from the average of the devices' noised covariances.",
        example="features: [{name: identity}, {name: ldp_fpca, keep: 0.5}]",
    ),
    FeaturePart(
        name="ldp_pca",
        parameters=PcaParameters,
        source="Cao et al. 2023 (DELM), comparison LDP-PCA",
        needs="to be the last of the features",
        reveals="nothing beside what is learned on the basis",
        privacy="proven",
        note="`noise: wishart` is claimed",
        summary="Each device takes the basis of its own noised covariance.",
        example="features: [{name: identity}, {name: ldp_pca, keep: 0.5}]",
    ),
    FeaturePart(
        name="local_pca",
        parameters=PcaParameters,
        source="Cao et al. 2023 (DELM), comparison local PCA",
        needs="to be the last of the features; privacy.accept_unproven",
        reveals="the un-noised basis, through what is learned on it",
        privacy="claimed",
        summary="Each device takes its own basis, without noise.",
        example="features: [{name: identity}, {name: local_pca, keep: 0.5}]",
    ),
)

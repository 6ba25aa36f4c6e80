"""Federated PCA as a step after the feature maps: its parameters, all public."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class PcaParameters(BaseModel):
    """A PCA entry, the last of a job's `features`: projects what the entries before it give."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

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
        """Kept dimensions out of `dimension`."""
        return max(1, round(self.keep * dimension))

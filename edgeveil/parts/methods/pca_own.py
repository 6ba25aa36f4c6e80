"""A party's own PCA basis, where a job has no common one (`local_pca`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from edgeveil.data.records import Records
from edgeveil.parts.exchange import Array
from edgeveil.parts.methods.fm_features import features_of
from edgeveil.parts.methods.fm_sums import covariance_sum
from edgeveil.parts.methods.pca_basis import as_weights, top_basis
from edgeveil.parts.setting import Setting


def own_weights(setting: Setting, records: Records | None) -> Mapping[str, Array]:
    """With `local_pca`, the weight `basis` (D, d) of the PCA of `records`; else nothing.

    For the cloud's own test records: by nobody's basis but its own can it look at a model that
    devices learned each in their own. Without noise, so never for records that are private.
    """
    projection = setting.projection
    if records is None or projection is None or projection.name != "local_pca":
        return MappingProxyType({})
    return MappingProxyType({"basis": _own_basis(setting, records)})


@lru_cache(maxsize=2)
def _own_basis(setting: Setting, records: Records) -> Array:
    covariance = covariance_sum(features_of(records, setting))
    return as_weights(top_basis(covariance, setting.feature_dimension, setting.dimension))

"""The form in which updates travel: a segment a weight, or one segment of them all."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import UsageError
from edgeveil.parts.methods.base import SegmentSpec, Tensors
from edgeveil.parts.methods.setting import Setting
from edgeveil.parts.models.network import Network

WHOLE = "update"


def network_of(setting: Setting) -> Network:
    """The job's network; raises UsageError where it names no model."""
    if setting.network is None:
        raise UsageError("this method trains a model", where="model", fix="add a model block")
    return setting.network


def specs_of(network: Network, *, whole: bool) -> tuple[SegmentSpec, ...]:
    """float32: one segment a weight, or `update` with all values in the weights' order."""
    if not whole:
        return tuple(SegmentSpec(w.name, w.shape, "float32") for w in network.weights)
    size = sum(int(np.prod(w.shape)) for w in network.weights)
    return (SegmentSpec(WHOLE, (size,), "float32"),)


def size_of(setting: Setting) -> int:
    """d, the number of all values of an update."""
    return sum(math.prod(weight.shape) for weight in network_of(setting).weights)


def segments_of(
    network: Network, update: Mapping[str, NDArray[np.generic]], *, whole: bool
) -> dict[str, NDArray[np.float32]]:
    """An update's segments."""
    arrays = {w.name: np.asarray(update[w.name], np.float32) for w in network.weights}
    if not whole:
        return arrays
    return {WHOLE: np.concatenate([array.ravel() for array in arrays.values()])}


def update_of(network: Network, segments: Tensors) -> dict[str, NDArray[np.float64]]:
    """The update of (aggregated) segments, in either form."""
    if WHOLE not in segments:
        return {w.name: np.asarray(segments[w.name], np.float64) for w in network.weights}
    flat, result, start = np.asarray(segments[WHOLE], np.float64), {}, 0
    for weight in network.weights:
        size = int(np.prod(weight.shape))
        result[weight.name] = flat[start : start + size].reshape(weight.shape)
        start += size
    return result

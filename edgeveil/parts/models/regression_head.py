"""A linear head on public features for a number: the ONNX graph and the same in numpy.

z = (φ(x) - centre) / max(‖φ(x) - centre‖, radius),   value = middle + half·clip(z·weight + bias)

cut off at -1 and 1, so that no value lies outside the public range. With a PCA φ(x)·basis stands
in place of φ(x).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.target import TargetRange
from edgeveil.parts.features.feature_map import FeatureMap, Float64
from edgeveil.parts.features.onnx_nodes import serialise
from edgeveil.parts.models.softmax_head import BOUNDED, bounded, bounded_features, float_tensor


def regression_graph(
    features: FeatureMap, input_shape: tuple[int, ...], target: TargetRange, kept: int | None = None
) -> bytes:
    """The ONNX graph, with the weights as inputs.

    Inputs as `softmax_head.build_graph` has them, but `weight` (d, 1) and `bias` (1,). Output:
    `value` float32 (N, 1), in the range's own unit. Needs the `onnx` package.
    """
    from onnx import helper

    parts, inputs = bounded_features(features, input_shape, kept)
    product = parts.add("MatMul", BOUNDED, "weight")
    found = parts.add("Add", product, "bias")
    within = parts.add("Clip", found, parts.number(-1.0), parts.number(1.0))
    wide = parts.add("Mul", within, parts.number(target.half))
    moved = parts.add("Add", wide, parts.number(target.middle))
    ends = parts.number(target.low), parts.number(target.high)  # rounding passes none of them
    parts.nodes.append(helper.make_node("Clip", [moved, *ends], ["value"]))
    d = features.output_dim(input_shape) if kept is None else kept
    inputs += [float_tensor("weight", [d, 1]), float_tensor("bias", [1])]
    outputs = [float_tensor("value", ["N", 1])]
    graph = helper.make_graph(parts.nodes, "regression_head", inputs, outputs, parts.initializers)
    return serialise(graph)


def head_values(
    phi: Float64, weights: Mapping[str, NDArray[np.generic]], target: TargetRange
) -> Float64:
    """The graph's output as (n,), computed by numpy in float64 from features (n, D)."""
    found = bounded(phi, weights) @ weights["weight"].astype(np.float64)
    within = np.clip(found[:, 0] + float(np.ravel(weights["bias"])[0]), -1.0, 1.0)
    return np.asarray(target.middle + target.half * within, np.float64)

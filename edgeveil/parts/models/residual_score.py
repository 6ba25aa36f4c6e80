"""How far a record is from what is usual: the score that tells an anomaly, and its graph.

u = φ(x) - centre,   score = ‖u·residual‖² / threshold

`residual` (d, d) is what of u is not usual. A score above 1 is an anomaly's; where no threshold is
known it is 1, and a score tells the order of records alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgeveil.parts.features.feature_map import FeatureMap, Float64
from edgeveil.parts.features.onnx_nodes import NodeList, serialise
from edgeveil.parts.models.softmax_head import float_tensor

THRESHOLD = "threshold"  # the weight (1,) that a score is divided by


def no_threshold() -> dict[str, NDArray[np.float32]]:
    """The weight where none is known: a score is the residual itself."""
    return {THRESHOLD: np.ones(1, np.float32)}


def residual_graph(features: FeatureMap, input_shape: tuple[int, ...]) -> bytes:
    """The ONNX graph, with the weights as inputs.

    Inputs: `x` float32 (N, *input_shape), `centre` (d,), `residual` (d, d), `threshold` (1,), all
    float32. Output: `score` float32 (N, 1), at least 0. Needs the `onnx` package.
    """
    from onnx import helper

    parts, d = NodeList(), features.output_dim(input_shape)
    centred = parts.add("Sub", features.onnx_nodes(parts, "x", input_shape), "centre")
    left = parts.add("MatMul", centred, "residual")
    squares = parts.add("ReduceSum", parts.add("Mul", left, left), parts.whole(1), keepdims=1)
    parts.nodes.append(helper.make_node("Div", [squares, THRESHOLD], ["score"]))
    inputs = [
        float_tensor("x", ["N", *input_shape]),
        float_tensor("centre", [d]),
        float_tensor("residual", [d, d]),
        float_tensor(THRESHOLD, [1]),
    ]
    outputs = [float_tensor("score", ["N", 1])]
    return serialise(
        helper.make_graph(parts.nodes, "residual_score", inputs, outputs, parts.initializers)
    )


def residual_scores(phi: Float64, weights: Mapping[str, NDArray[np.generic]]) -> Float64:
    """The graph's output as (n,), computed by numpy in float64 from features (n, d)."""
    left = (phi - weights["centre"].astype(np.float64)) @ weights["residual"].astype(np.float64)
    found: Float64 = np.square(left).sum(axis=1) / float(np.ravel(weights[THRESHOLD])[0])
    return found

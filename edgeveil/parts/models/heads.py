"""Heads on public features, each as an ONNX graph and in numpy.

z = (φ(x) - centre) / max(‖φ(x) - centre‖, radius); with a PCA φ(x)·basis in place of φ(x). Classes:
probabilities = softmax(z·weight + bias). A number: value = middle + half·clip(z·weight + bias, -1,
1). Anomalies: score = ‖u·residual‖² / threshold, u = φ(x) - centre; above 1 is an anomaly. With an
unknown threshold (1) a score only orders records."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.target import TargetRange
from edgeveil.errors import DataError
from edgeveil.parts.features.feature_map import Ends, FeatureMap, Float64, NodeList, checked
from edgeveil.privacy.grid import row_norms

WEIGHTS = ("centre", "radius", "weight")


def build_graph(
    features: FeatureMap,
    input_shape: tuple[int, ...],
    classes: int,
    kept: int | None = None,
    *,
    bias: bool = False,
) -> bytes:
    """Return the ONNX graph of classes, float32.

    Inputs: `x` (N, *input_shape), `centre` (d,), `radius` (1,), `weight` (d, classes); `basis` (D,
    d = kept) with a PCA; `bias` (classes,) with `bias`. Output: `probabilities` (N, classes)."""
    parts, inputs = bounded_features(features, input_shape, kept)
    basis = {name: inputs.pop(name) for name in ("basis",) if name in inputs}
    product = "head.product" if bias else "head.logits"
    parts.add("MatMul", BOUNDED, "weight", output=product)
    if bias:
        parts.add("Add", product, "bias", output="head.logits")
    parts.add("Softmax", "head.logits", output="probabilities", axis=1)
    inputs |= {"weight": (*inputs["centre"], classes), **basis}
    inputs |= {"bias": (classes,)} if bias else {}
    return parts.model("softmax_head", inputs, {"probabilities": ("N", classes)})


BOUNDED = "head.bounded"


def bounded_features(
    features: FeatureMap, input_shape: tuple[int, ...], kept: int | None
) -> tuple[NodeList, dict[str, tuple[int | str, ...]]]:
    """Return nodes that compute z (N, d), named BOUNDED, and the graph's inputs so far."""
    from onnx import numpy_helper

    given = features.output_dim(input_shape)
    d = given if kept is None else kept
    parts = NodeList()
    phi = features.onnx_nodes(parts, "x", input_shape)
    parts.initializers.append(numpy_helper.from_array(np.array([1], np.int64), "head.axes"))
    if kept is not None:
        phi = parts.add("MatMul", phi, "basis", output="head.projected")
    centred = parts.add("Sub", phi, "centre", output="head.centred")
    squares = parts.add("Mul", centred, centred, output="head.squares")
    total = parts.add("ReduceSum", squares, "head.axes", output="head.sum", keepdims=1)
    norm = parts.add("Sqrt", total, output="head.norm")
    divisor = parts.add("Max", norm, "radius", output="head.divisor")
    parts.add("Div", centred, divisor, output=BOUNDED)
    basis = {} if kept is None else {"basis": (given, d)}
    return parts, {"x": ("N", *input_shape), "centre": (d,), "radius": (1,), **basis}


def bake(
    graph_bytes: bytes,
    weights: Mapping[str, NDArray[np.generic]],
    entries: Mapping[str, str] | None = None,
) -> bytes:
    """Return a model with `weights` built in, and for classes an output `label` int64 (N,)."""
    import onnx
    from onnx import TensorProto, helper

    model = onnx.load_model_from_string(graph_bytes)  # of `NodeList.model`
    graph = model.graph
    for given in [i for i in graph.input if i.name != "x"]:
        shape = tuple(dim.dim_value for dim in given.type.tensor_type.shape.dim)
        array = weights.get(given.name)
        if array is None or array.shape != shape:
            found = "missing" if array is None else f"of shape {array.shape}"
            raise DataError(f"weight '{given.name}' is {found}, the graph needs {shape}")
        # Fill in place: appending a separate tensor would take the memory of the model again.
        kept = graph.initializer.add(name=given.name, dims=shape, data_type=TensorProto.FLOAT)
        kept.raw_data = np.ascontiguousarray(array, dtype="<f4").tobytes()
        graph.input.remove(given)
    if graph.output[0].name == "probabilities":
        likeliest = helper.make_node("ArgMax", ["probabilities"], ["label"], axis=1, keepdims=0)
        graph.node.append(likeliest)
        graph.output.append(helper.make_tensor_value_info("label", TensorProto.INT64, ["N"]))
    for key, value in sorted((entries or {}).items()):
        model.metadata_props.add(key=key, value=value)
    return checked(model)


def described(model: bytes, entries: Mapping[str, str]) -> bytes:
    import onnx

    more = onnx.ModelProto()
    for key, value in entries.items():
        more.metadata_props.add(key=key, value=value)
    added: bytes = more.SerializeToString()
    return model + added  # protobuf merges concatenated messages


def head_probabilities(phi: Float64, weights: Mapping[str, NDArray[np.generic]]) -> Float64:
    logits = bounded(phi, weights) @ weights["weight"].astype(np.float64)
    return softmax(logits + weights["bias"].astype(np.float64) if "bias" in weights else logits)


def bounded(phi: Float64, weights: Mapping[str, NDArray[np.generic]]) -> Float64:
    if "basis" in weights:
        phi = phi @ weights["basis"].astype(np.float64)
    centred = phi - weights["centre"].astype(np.float64)
    divisor = np.maximum(row_norms(centred), float(np.ravel(weights["radius"])[0]))
    return centred / divisor[:, None]


def softmax(logits: Float64) -> Float64:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
    result: Float64 = powers / powers.sum(axis=1, keepdims=True)
    return result


def regression_graph(
    features: FeatureMap, input_shape: tuple[int, ...], target: TargetRange, kept: int | None = None
) -> bytes:
    """Return the ONNX graph of a number: `weight` (d, 1), `bias` (1,), output `value` (N, 1)."""
    parts, inputs = bounded_features(features, input_shape, kept)
    product = parts.add("MatMul", BOUNDED, "weight")
    found = parts.add("Add", product, "bias")
    within = parts.add("Clip", found, parts.number(-1.0), parts.number(1.0))
    wide = parts.add("Mul", within, parts.number(target.half))
    moved = parts.add("Add", wide, parts.number(target.middle))
    ends = parts.number(target.low), parts.number(target.high)  # rounding may not exceed them
    parts.add("Clip", moved, *ends, output="value")
    inputs |= {"weight": (*inputs["centre"], 1), "bias": (1,)}
    return parts.model("regression_head", inputs, {"value": ("N", 1)})


def head_values(
    phi: Float64, weights: Mapping[str, NDArray[np.generic]], target: TargetRange
) -> Float64:
    """Return the graph's output as (n,) from features (n, D), in float64."""
    found = bounded(phi, weights) @ weights["weight"].astype(np.float64)
    within = np.clip(found[:, 0] + float(np.ravel(weights["bias"])[0]), -1.0, 1.0)
    return np.asarray(target.middle + target.half * within, np.float64)


THRESHOLD = "threshold"  # the weight (1,) that a score is divided by


def no_threshold() -> dict[str, NDArray[np.float32]]:
    return {THRESHOLD: np.ones(1, np.float32)}


def residual_graph(features: FeatureMap, input_shape: tuple[int, ...]) -> bytes:
    """Return the ONNX graph of anomalies: `residual` (d, d), `threshold`; `score` (N, 1)."""
    parts, d = NodeList(), features.output_dim(input_shape)
    centred = parts.add("Sub", features.onnx_nodes(parts, "x", input_shape), "centre")
    left = parts.add("MatMul", centred, "residual")
    squares = parts.add("ReduceSum", parts.add("Mul", left, left), parts.whole(1), keepdims=1)
    parts.add("Div", squares, THRESHOLD, output="score")
    inputs: Ends = {"x": ("N", *input_shape), "centre": (d,), "residual": (d, d), THRESHOLD: (1,)}
    return parts.model("residual_score", inputs, {"score": ("N", 1)})


def residual_scores(phi: Float64, weights: Mapping[str, NDArray[np.generic]]) -> Float64:
    """Return the graph's output as (n,) from features (n, d), in float64."""
    left = (phi - weights["centre"].astype(np.float64)) @ weights["residual"].astype(np.float64)
    found: Float64 = np.square(left).sum(axis=1) / float(np.ravel(weights[THRESHOLD])[0])
    return found

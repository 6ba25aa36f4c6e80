"""Small ONNX feature extractors for tests."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

node = helper.make_node


def model(nodes, inputs, outputs, constants=None, opset=17, ir_version=8):
    """Build an ONNX model; inputs and outputs are {name: shape or None}, all float32."""
    values = [
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in part.items()]
        for part in (inputs, outputs)
    ]
    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()]
    graph = helper.make_graph(nodes, "backbone", *values, tensors)
    opsets = [helper.make_opsetid("", opset)]
    whole = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
    return whole.SerializeToString()


def small_backbone(side=8, features=6, seed=0, batch="N", opset=17):
    rng = np.random.default_rng(seed)

    def values(*shape):
        return (rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    pooled = 4 * (side // 2) ** 2
    constants = {
        "kernel": values(4, 1, 3, 3),
        "bn.scale": np.ones(4, np.float32),
        "bn.bias": values(4),
        "bn.mean": values(4),
        "bn.var": np.full(4, 2.0, np.float32),
        "linear": values(features, pooled),
        "bias": values(features),
    }
    nodes = [
        node("Conv", ["image", "kernel"], ["a"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["a", "bn.scale", "bn.bias", "bn.mean", "bn.var"], ["b"]),
        node("Relu", ["b"], ["c"]),
        node("MaxPool", ["c"], ["d"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", ["d"], ["e"]),
        node("Gemm", ["e", "linear", "bias"], ["features"], transB=1),
    ]
    inputs, outputs = {"image": (batch, 1, side, side)}, {"features": (batch, features)}
    return model(nodes, inputs, outputs, constants, opset)


def centring_backbone(values, batch="N"):
    """Build a model that subtracts the record's mean, a sum over all values of the record."""
    nodes = [
        node("ReduceMean", ["record"], ["mean"], axes=[1], keepdims=1),
        node("Sub", ["record", "mean"], ["features"]),
    ]
    return model(nodes, {"record": (batch, values)}, {"features": (batch, values)})

"""From a trained torch network to the ONNX file that devices run."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edgeveil.parts.features.onnx_nodes import NodeList, serialise


def array(values: torch.Tensor) -> NDArray[np.float32]:
    """A parameter as an array of its own."""
    found: NDArray[np.float32] = values.detach().contiguous().numpy()
    return found


def folded(convolution: Any, norm: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weight and bias of a convolution and the batch norm after it, as one convolution."""
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    weight = convolution.weight * scale[:, None, None, None]
    return array(weight), array(norm.bias - norm.running_mean * scale)


def written(graph: NodeList, name: str, input_shape: tuple[int, ...], output_dim: int) -> bytes:
    """The file of a graph from `image` (N, *input_shape) to what its last node gives (N, d)."""
    from onnx import TensorProto, helper

    graph.nodes[-1].output[0] = "features"
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", *input_shape])
    found = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["N", output_dim])
    return serialise(helper.make_graph(graph.nodes, name, [image], [found], graph.initializers))

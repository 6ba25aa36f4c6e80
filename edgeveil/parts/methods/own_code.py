"""Test of a user's own model before a device reads a record: gradients and ONNX form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import OF_OTHERS_CODE, DataError
from edgeveil.parts.methods.dp_sgd import DpSgdParameters, record_gradients
from edgeveil.parts.models.network import Network
from edgeveil.privacy.sampler import os_random
from edgeveil.subnormals import flushed_training

PROBES = 3  # synthetic records
FAR = 1e-3  # difference of a probability, more than rounding


@flushed_training()  # so that torch's threads, which start here, flush as training will
def check_own_code(network: Network, parameters: Any) -> None:
    """Raise DataError unless a method with these `parameters` can train the network."""
    import torch

    by_record = isinstance(parameters, DpSgdParameters)
    chance = np.random.default_rng(0)
    records = chance.uniform(0, network.input_scale, (PROBES, *network.input_shape))
    x, weights = records.astype(np.float32), network.initial()
    _check_graph(network, x, weights)
    given = torch.as_tensor(x)
    labels = torch.arange(PROBES) % network.classes
    tensors = {name: torch.tensor(array) for name, array in weights.items()}
    try:
        leaves = [tensors[n].requires_grad_() for n in tensors if n not in network.statistics]
        training = None if by_record else os_random
        torch.autograd.grad(network.loss(tensors, given, labels, training), leaves)
    except OF_OTHERS_CODE as error:  # the user's code may raise anything
        raise _refused(
            "cannot be differentiated",
            error,
            "compute the logits from every weight with torch operations",
        ) from error
    if not by_record:
        return
    try:
        record_gradients(network)(tensors, given, labels)
    except OF_OTHERS_CODE as error:
        raise _refused(
            f"has no gradient of one record by itself, which '{parameters.method}' needs",
            error,
            "no step may change its input or branch on values (see torch.func.vmap); or train with "
            "for example sgd and an update stage",
        ) from error


def _check_graph(
    network: Network, x: NDArray[np.float32], weights: Mapping[str, NDArray[np.float32]]
) -> None:
    import torch

    from edgeveil.evaluation.graph_check import check_graph
    from edgeveil.evaluation.onnx_session import OnnxModel

    raw = network.graph()
    try:
        check_graph(raw)
        graph = OnnxModel(raw)
    except DataError as error:
        fix = f"{error.fix}; docs/models.md lists layers that can be used"
        raise DataError(f"its ONNX graph {error.what}", where="model.function", fix=fix) from error
    plain = network.merged(weights)
    alone = [graph.probabilities(x[k : k + 1], plain) for k in range(len(x))]
    with torch.no_grad():
        tensors = {name: torch.tensor(array) for name, array in weights.items()}
        together = network.logits(tensors, torch.tensor(x)).softmax(1).numpy()
    if not np.allclose(np.concatenate(alone), together, rtol=0, atol=FAR, equal_nan=True):
        raise DataError(
            "gives other values as an ONNX graph, record by record, than as code",
            where="model.function",
            fix="let a record's logits follow from that record alone, without chance, state or a "
            "branch on its values",
        )


def _refused(what: str, error: BaseException, fix: str) -> DataError:
    first = str(error).strip().partition("\n")[0][:200].rstrip(".")
    return DataError(f"{what}: {first}", where="model.function", fix=fix)

"""Model evaluation on the cloud's test data; features are computed once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.target import TargetRange
from edgeveil.errors import DataError
from edgeveil.evaluation.figures import (
    NO_ORDER,
    anomaly_figures,
    classification_figures,
    regression_figures,
)
from edgeveil.evaluation.onnx_session import (
    BATCH_RECORDS,
    PROBABILITIES,
    SCORE,
    VALUE,
    open_session,
    run_session,
)

DATA = "x"
LEAST = float(np.finfo(np.float32).tiny)  # lower bound of a probability in the loss


@dataclass(frozen=True)
class ModelScore:
    """Result of one model on all records.

    `loss`: of classes the mean cross-entropy in nats, at most 88 per record; of a number, without
    accuracy, the mean squared error of t in [-1, 1]; of anomalies 1 - AUC. `answers`: labels (n,)
    and outputs (n, classes) or (n,), in the label's unit."""

    accuracy: float | None
    loss: float
    figures: Mapping[str, Any]
    answers: tuple[NDArray[Any], NDArray[Any]] = field(repr=False, compare=False)


class HeldOutTest:
    """Test of one job's model on x (n, ...) and labels y (n,), for any weights.

    The part of `graph` before the first weight runs once. Raises DataError if it does not fit."""

    def __init__(
        self,
        graph: bytes,
        x: NDArray[np.float32],
        y: NDArray[np.int64],
        target: TargetRange | None = None,
    ) -> None:
        if len(y) == 0 or len(x) != len(y):
            what = f"{len(x)} records and {len(y)} labels"
            raise DataError(what, where="test data", fix="pass one label each")
        before, after, self._joint = cut(graph)
        self._y, self._target, self._head = y, target, open_session(after)
        outputs = {one.name for one in self._head.get_outputs()}
        self._output = next(name for name in (PROBABILITIES, VALUE, SCORE) if name in outputs)
        batches = [
            np.ascontiguousarray(x[start : start + BATCH_RECORDS], np.float32)
            for start in range(0, len(x), BATCH_RECORDS)
        ]
        features = open_session(before) if before else None
        self._features = [
            run_session(features, self._joint, {DATA: batch}) if features else batch
            for batch in batches
        ]

    def tested(self, weights: Mapping[str, NDArray[Any]], *, alarms: bool = False) -> ModelScore:
        """Score the model with these weights; with `alarms` a score above 1 is an alarm."""
        found = self._outputs(weights)
        if self._output == SCORE:
            figures = anomaly_figures(found[:, 0], self._y, alarms=alarms) or NO_ORDER
            area = figures.get("auc")
            loss = math.nan if area is None else 1 - area
            return ModelScore(None, loss, figures, (self._y, found[:, 0]))
        if self._target is not None:
            figures = regression_figures(found[:, 0], self._y, self._target)
            error = figures.get("rmse")
            loss = math.nan if error is None else (error / self._target.half) ** 2
            known = self._y >= 0
            answers = self._target.values(self._y[known]), found[known, 0]
            return ModelScore(None, loss, figures, answers)
        at_label = np.take_along_axis(found, self._y[:, None], axis=1)[:, 0].astype(np.float64)
        losses = -np.log(np.clip(np.where(_finite(found), at_label, 0.0), LEAST, 1.0))
        accuracy, loss = self._right(found) / len(self._y), float(losses.mean())
        figures = classification_figures(found, self._y)
        return ModelScore(accuracy, loss, figures, (self._y, found))

    def right(self, weights: Mapping[str, NDArray[Any]]) -> int:
        return self._right(self._outputs(weights))

    def _outputs(self, weights: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        feed = {name: np.asarray(value, np.float32) for name, value in weights.items()}
        parts = [
            run_session(self._head, self._output, {**feed, self._joint: phi})
            for phi in self._features
        ]
        return np.concatenate(parts)

    def _right(self, found: NDArray[Any]) -> int:
        return int(np.count_nonzero((np.argmax(found, axis=1) == self._y) & _finite(found)))


def _finite(found: NDArray[Any]) -> NDArray[np.bool_]:
    return np.asarray(np.isfinite(found).all(axis=1))


def cut(graph: bytes) -> tuple[bytes | None, bytes, str]:
    """Split a graph where weights first enter: (part before or None, part after, tensor)."""
    import onnx
    from onnx import TensorProto, helper

    model = onnx.load_model_from_string(graph)
    whole = model.graph
    weights = [given for given in whole.input if given.name != DATA]
    records = [given for given in whole.input if given.name == DATA]
    weighted, of_records = {given.name for given in weights}, {DATA}
    public: dict[str, Any] = {}  # nodes of constants alone, by the name of their output
    before, after = [], []
    for node in whole.node:  # in topological order
        if not weighted.isdisjoint(node.input):
            after.append(node)
            weighted.update(node.output)
        elif not of_records.isdisjoint(node.input):
            before.append(node)
            of_records.update(node.output)
        else:
            public.update(dict.fromkeys(node.output, node))
    joints = of_records & {name for node in after for name in node.input}
    if len(joints) != 1 or joints == {DATA}:
        return None, graph, DATA
    (joint,) = joints

    def part(nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> bytes:
        needed = {name for node in nodes for name in node.input}
        constants: list[Any] = []
        for node in reversed(whole.node):
            if any(public.get(name) is node for name in needed.intersection(node.output)):
                constants.insert(0, node)
                needed.update(node.input)
        kept = [array for array in whole.initializer if array.name in needed]
        made = helper.make_graph([*constants, *nodes], "part", inputs, outputs, kept)
        opsets, version = model.opset_import, model.ir_version
        one = helper.make_model(made, opset_imports=opsets, ir_version=version)
        found: bytes = one.SerializeToString()
        return found

    through = helper.make_tensor_value_info(joint, TensorProto.FLOAT, None)
    first = part(before, records, [through])
    return first, part(after, [through, *weights], list(whole.output)), joint

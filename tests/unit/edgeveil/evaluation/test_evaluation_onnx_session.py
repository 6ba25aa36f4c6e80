"""What ONNX Runtime is fed lies the same way whatever it was cut from."""

from pathlib import Path

import numpy as np
import pytest

from edgeveil.evaluation.onnx_session import OnnxModel, aligned, open_session
from edgeveil.jobs import parse_plan
from edgeveil.jobs.rehearsal import rehearse_device
from tests.kits.backbone_files import model, node


def at(values, offset):
    """`values` as float32, `offset` floats past an aligned address."""
    memory = np.zeros(values.size + 64, np.float32)
    start = -(memory.ctypes.data // 4) % 16 + offset
    found = memory[start : start + values.size].reshape(values.shape)
    found[...] = values
    return found


def test_other_types_and_orders_become_float32_in_one_piece():
    wide = np.arange(12.0).reshape(3, 4)
    for values in (wide, wide[:0], wide.T, wide[:, ::2], wide.astype(np.float32)[:, 1:]):
        found = aligned(values)
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found, values.astype(np.float32))


def summing(values):
    """Column 0: the sum of the record; column 1: that of the weight."""
    nodes = [
        node("ReduceSum", ["x", "axes"], ["left"], keepdims=1),
        node("ReduceSum", ["weight", "axes"], ["right"], keepdims=1),
        node("Concat", ["left", "right"], ["probabilities"], axis=1),
    ]
    inputs, output = {"x": ("N", values), "weight": (1, values)}, {"probabilities": ("N", 2)}
    return OnnxModel(model(nodes, inputs, output, {"axes": np.array([1])}))


@pytest.mark.parametrize("values", [30, 31, 65])
def test_neither_a_records_nor_a_weights_place_in_memory_changes_a_bit(values):
    model, rng = summing(values), np.random.default_rng(1)
    record, weight = (rng.normal(size=(2, 1, values)) * 100).astype(np.float32)
    found = {
        model.probabilities(at(record, i), {"weight": at(weight, j)}).tobytes()
        for i in range(16)
        for j in range(16)
    }
    assert len(found) == 1


SCALE = {"one": np.ones(3, np.float32), "zero": np.zeros(3, np.float32)}
OPERATORS = {
    "ReduceSum": node("ReduceSum", ["x"], ["y"]),
    "ReduceMean": node("ReduceMean", ["x"], ["y"]),
    "Softmax": node("Softmax", ["x"], ["y"], axis=1),
    "InstanceNormalization": node("InstanceNormalization", ["x", "one", "zero"], ["y"]),
    "GlobalAveragePool": node("GlobalAveragePool", ["x"], ["y"]),
}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("side", [5, 6, 7, 9])
def test_operators_that_add_give_the_same_bits_wherever_the_record_was(operator, side):
    constants = SCALE if operator == "InstanceNormalization" else {}
    inputs = {"x": ("N", 3, side, side)}
    session = open_session(model([OPERATORS[operator]], inputs, {"y": None}, constants))
    record = (np.random.default_rng(side).normal(size=(1, 3, side, side)) * 100).astype(np.float32)
    found = {session.run(["y"], {"x": aligned(at(record, i))})[0].tobytes() for i in range(48)}
    assert len(found) == 1


@pytest.mark.parametrize("features", ["pictures", "gabor"])
def test_a_graph_that_reshapes_runs_on_no_records_too(features):
    """As in a device's trial, which plays the answer without records beside the longest."""
    text = Path("tests/kits/quickstart.yaml").read_text("utf-8")
    entry = f"{{name: {features}, input_scale: 16, image: [8, 8]}}"
    plan = parse_plan(text.replace("{name: identity, input_scale: 16, shift: -0.3}", entry))
    weights = plan.graph_weights(plan.cloud.model(plan.cloud.initial_state()))
    model = OnnxModel(plan.graph())
    assert model.probabilities(np.zeros((0, 64), np.float32), weights).shape == (0, 10)
    rehearse_device(plan, plan.graph(), trains=True, records=0, processor="cpu")

"""Timing attacks: a graph whose run time depends on the presence of record r.

It finds r in a batch by `max Relu(½ − ‖x − r‖²)` and feeds a long chain of operators: slow numbers
if r is present, else zeros. The figure is the AUC of the answer times (½: no information)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from hashlib import sha256
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from edgeveil import subnormals
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.inference import InferenceSession
from edgeveil_lab.audit.guards import AttackOutcome, Guard

CLASSES = 3
SHAPE = (8,)  # of one record, where the attack may choose
FEW_RECORDS = 4
RUNS, QUICK_RUNS = 200, 40  # with r, and as many without
_WITHIN = 0.1  # distance from ½ that counts as chance over 200 runs
_SIGMAS = 3.4  # over fewer runs: standard deviations of the AUC of equal distributions
_PATTERN = 1 << 10

Values = NDArray[np.float32]


# Repeated division keeps the values subnormal. Some processors multiply subnormal numbers at full
# speed, but none divides them so.
_DIVISOR, _SLOW = 1.0000001, 1e-39


def crafted(
    record: Values,
    *,
    scale: float = _SLOW,
    shift: float = 0.0,
    doublings: int = 5,
    repeats: int = 90,
) -> bytes:
    """Build the graph for one record (...) without a batch axis and without weights.

    It passes `check_graph` and divides `repeats` times 2^(10 + `doublings`) values, which start at
    `scale` + `shift` if r is present and at `shift` if not."""
    from edgeveil.parts.features.feature_map import NodeList

    list_ = NodeList()
    size = record.size
    flat = list_.add("Reshape", "x", list_.whole(-1, size))
    apart = list_.add("Sub", flat, list_.constant(record.reshape(1, size)))
    far = list_.add("ReduceSum", list_.add("Mul", apart, apart), list_.whole(1), keepdims=1)
    near = list_.add("Relu", list_.add("Sub", list_.number(0.5), far))
    found = list_.add("ReduceMax", near, axes=[0], keepdims=1)  # ½ or 0, of the whole batch
    # In two steps, since the scale itself may be subnormal.
    half_way = math.sqrt(scale)
    value = list_.add("Mul", found, list_.number(2 * half_way))
    value = list_.add("Mul", value, list_.number(half_way))
    value = list_.add("Mul", value, list_.constant(np.ones((1, _PATTERN), np.float32)))
    value = list_.add("Add", value, list_.number(shift)) if shift else value
    for _ in range(doublings):
        value = list_.add("Concat", value, value, axis=1)
    divisor = list_.number(_DIVISOR)
    for _ in range(repeats):
        value = list_.add("Div", value, divisor)
    most = list_.add("ReduceMax", value, axes=[1], keepdims=1)
    none = list_.constant(np.zeros((size, CLASSES), np.float32))
    logits = list_.add("Add", list_.add("MatMul", flat, none), most)
    list_.add("Softmax", logits, output="probabilities", axis=1)
    graph = list_.model("g", {"x": ("N", *record.shape)}, {"probabilities": ("N", CLASSES)})
    check_graph(graph)
    return graph


def records(count: int) -> Values:
    chance = np.random.default_rng(0)
    apart = 256.0 * chance.permutation(count)[:, None]
    return (apart + chance.random((count, *SHAPE))).astype(np.float32)


def auc(present: Sequence[float], absent: Sequence[float]) -> float:
    """Return the probability that a `present` value exceeds an `absent` one, ties counted half."""
    a, b = np.asarray(present, float)[:, None], np.asarray(absent, float)[None, :]
    return float(((a > b) + (a == b) / 2).mean())


def exceeds_chance(area: float, runs: int) -> bool:
    """Return whether an AUC over `runs` with r and as many without is more than chance."""
    deviation = math.sqrt((2 * runs + 1) / (12 * runs * runs))
    return abs(area - 0.5) > max(_WITHIN, _SIGMAS * deviation)


def attacked(present: Callable[[], float], absent: Callable[[], float], runs: int) -> AttackOutcome:
    """Compare the seconds of `runs` answers with r (infinite: no answer) and without, by turns."""
    seen: tuple[list[float], list[float]] = ([], [])
    for number in range(2 * runs):
        # with, without, without, with: a drift affects both alike
        without = (number + number // 2) % 2
        seen[without].append((absent if without else present)())
    area = auc(*seen)
    return AttackOutcome(exceeds_chance(area, runs), f"AUC {area:.2f} over {runs} runs each")


@contextmanager
def not_flushing() -> Iterator[None]:
    """Plant the flaw: setting the processor's flush mode appears to succeed but has no effect."""
    set_flushing, before = subnormals.set_flushing, subnormals.set_flushing(False)

    def keep_off(_on: bool) -> bool:
        set_flushing(False)  # ONNX Runtime sets it for the first session of a process
        return True

    try:
        with patch.object(subnormals, "set_flushing", keep_off):
            yield
    finally:
        subnormals.set_flushing(before)


def play_subnormals(flawed: bool, quick: bool) -> AttackOutcome:
    given = records(FEW_RECORDS + 1)
    graph = crafted(given[-1])
    with not_flushing() if flawed else nullcontext():
        session = InferenceSession(graph, sha256(graph).digest(), classes=CLASSES)

        def answer(x: Values) -> float:
            start = time.thread_time()
            session.summed_softmax(x, {})
            return time.thread_time() - start

        answer(given[1:])  # the first run is slower than the others
        runs = QUICK_RUNS if quick else RUNS
        return attacked(lambda: answer(given[1:]), lambda: answer(given[:-1]), runs)


SUBNORMALS = Guard(
    "inference",
    "subnormal numbers cost no time inside a run",
    "subnormal numbers are not flushed",
    play_subnormals,
    alone=True,
)

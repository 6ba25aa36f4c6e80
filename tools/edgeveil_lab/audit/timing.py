"""Timing attacks: a graph that makes one record's presence cost time.

It finds record r in a batch, `max Relu(½ − ‖x − r‖²)`, and begins a long chain of operators with
it, on slow numbers if r is there, on zeros if not. The figure is the AUC of the answers' times (½:
nothing is told).
"""

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
_WITHIN = 0.1  # of ½: counts as chance over 200 runs
_SIGMAS = 3.4  # ... and over fewer, in standard deviations of the AUC where nothing is told
_PATTERN = 1 << 10

Values = NDArray[np.float32]


# Steps of a division that leave numbers below the smallest normal one. Some processors multiply
# these as fast as any, none divides them so.
_DIVISOR, _SLOW = 1.0000001, 1e-39


def crafted(
    record: Values,
    *,
    scale: float = _SLOW,
    shift: float = 0.0,
    doublings: int = 5,
    repeats: int = 90,
) -> bytes:
    """The graph for one record (...) without a batch axis; it takes no weights. It passes
    `check_graph` and divides `repeats` times from `scale` + `shift` where r is there, from `shift`
    where not, as 2^(10 + `doublings`) values."""
    from edgeveil.parts.features.feature_map import NodeList

    list_ = NodeList()
    size = record.size
    flat = list_.add("Reshape", "x", list_.whole(-1, size))
    apart = list_.add("Sub", flat, list_.constant(record.reshape(1, size)))
    far = list_.add("ReduceSum", list_.add("Mul", apart, apart), list_.whole(1), keepdims=1)
    near = list_.add("Relu", list_.add("Sub", list_.number(0.5), far))
    found = list_.add("ReduceMax", near, axes=[0], keepdims=1)  # ½ or 0, of the whole batch
    # In two steps: the scale itself may be no normal number.
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
    """Evaluation records x (n, values), all further than 1 from each other."""
    chance = np.random.default_rng(0)
    apart = 256.0 * chance.permutation(count)[:, None]
    return (apart + chance.random((count, *SHAPE))).astype(np.float32)


def auc(present: Sequence[float], absent: Sequence[float]) -> float:
    """The chance that a `present` one is above an `absent` one, ties counted half."""
    a, b = np.asarray(present, float)[:, None], np.asarray(absent, float)[None, :]
    return float(((a > b) + (a == b) / 2).mean())


def tells(area: float, runs: int) -> bool:
    """Whether an AUC over `runs` with r and as many without is more than chance."""
    deviation = math.sqrt((2 * runs + 1) / (12 * runs * runs))
    return abs(area - 0.5) > max(_WITHIN, _SIGMAS * deviation)


def attacked(present: Callable[[], float], absent: Callable[[], float], runs: int) -> AttackOutcome:
    """Seconds of `runs` answers with r (infinite: none came) and of as many without, by turns."""
    seen: tuple[list[float], list[float]] = ([], [])
    for number in range(2 * runs):
        # with, without, without, with: what drifts meets both alike
        without = (number + number // 2) % 2
        seen[without].append((absent if without else present)())
    area = auc(*seen)
    return AttackOutcome(tells(area, runs), f"AUC {area:.2f} over {runs} runs each")


@contextmanager
def not_flushing() -> Iterator[None]:
    """The flaw: whoever sets the switch of the processor finds it set, and it is not."""
    before = subnormals.set_flushing(False)
    try:
        with patch.object(subnormals, "set_flushing", lambda on: _left_off()):
            yield
    finally:
        subnormals.set_flushing(before)


_set_flushing = subnormals.set_flushing


def _left_off() -> bool:
    _set_flushing(False)  # ONNX Runtime sets it for the first session of a process
    return True


def play_subnormals(flawed: bool, quick: bool) -> AttackOutcome:
    """Whether subnormal numbers cost time inside a run: one thread's processor seconds."""
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
    at_rest=True,
)

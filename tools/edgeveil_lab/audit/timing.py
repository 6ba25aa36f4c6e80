"""Timing attacks on the device: a graph that makes one record's presence cost time.

A hostile cloud's graph finds record r in a batch, `max Relu(½ − ‖x − r‖²)`, and begins a long chain
of plain operators with it: with numbers that are slow to work on where r is there, with zeros where
it is not. What the attacker sees is how long the answer takes to leave; the figure is the AUC, the
chance that a device with r takes longer than one without (½: nothing is told).

The guard here is that subnormal numbers cost no time inside a run, on sessions directly. That an
upload of a real device leaves at a public moment is guarded in `device_timing.py`.

    python -m edgeveil_lab.audit.timing --seconds 60 --seed 1

searches for other such graphs: random chains of the operators that a device runs, then changes to
the best of them, each scored by how far the time of an inference with the record lies from that
without. What it ends with are attacks for `device_timing.py`, and a look at what the operators
still tell inside a run.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from hashlib import sha256
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from edgeveil import subnormals
from edgeveil.errors import DataError
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.inference import InferenceSession
from edgeveil.evaluation.onnx_session import BATCH_RECORDS, OnnxModel
from edgeveil.parts.features.onnx_nodes import serialise
from edgeveil_lab.audit.guards import AttackOutcome, Guard

CLASSES = 3
SHAPE = (8,)  # of one record, where the attack may choose
FEW_RECORDS = 4
RUNS, QUICK_RUNS = 200, 40  # with r, and as many without
_WITHIN = 0.1  # of ½: what counts as chance over 200 runs
_SIGMAS = 3.4  # ... and over fewer, in standard deviations of the AUC where nothing is told
_PATTERN = 1 << 10

Values = NDArray[np.float32]
DeviceAnswer = Callable[[bytes, Values], float]
"""Seconds from handing a device the package for `graph` until its upload leaves, with evaluation
records x (n, ...); `math.inf` if none comes."""


@dataclass(frozen=True)
class OperatorChain:
    """What a graph does once it knows whether r is there.

    It starts from pattern · scale + shift where r is there and from shift where not, as
    2^(10 + doublings) values, and takes all `steps` `repeats` times. A step is an operator and its
    second input, None for those that take one.
    """

    steps: tuple[tuple[str, float | None], ...]
    scale: float = 1.0
    shift: float = 0.0
    pattern: str = "flat"
    doublings: int = 9
    repeats: int = 30
    double: bool = False


# Its steps leave numbers below the smallest normal one. Some processors multiply these as fast as
# any, none divides them so.
SUBNORMAL = OperatorChain((("Div", 1.0000001),), scale=1e-39, doublings=5, repeats=90)
# Found by `edgeveil_lab.audit.timing`: these kernels branch, on what no processor foresees.
BRANCHES = OperatorChain((("Selu", None), ("Elu", None)), scale=90.0, shift=1.0, pattern="signs")
# The same long work for any values: it tells how many batches there are.
COUNTING = OperatorChain((("Tanh", None),), scale=0.0, shift=0.5)


CHAINS = (("subnormal", SUBNORMAL), ("branches", BRANCHES))


@dataclass(frozen=True)
class TimingCase:
    """A crafted graph and two sets of evaluation records x (n, ...): with r, and without."""

    name: str
    graph: bytes
    present: Values
    absent: Values


def pattern(name: str) -> Values:
    """1,024 fixed values: `flat`, `signs` that no processor foresees, `normal`, `spread`."""
    chance = np.random.default_rng(0)
    made = {
        "flat": np.ones(_PATTERN),
        "signs": chance.choice([-1.0, 1.0], _PATTERN),
        "normal": chance.normal(size=_PATTERN),
        "spread": chance.choice([-1.0, 1.0], _PATTERN) * 10 ** chance.uniform(-3, 3, _PATTERN),
    }
    return made[name].astype(np.float32)


def crafted(chain: OperatorChain, record: Values, classes: int = CLASSES) -> bytes:
    """The graph for one record (...) without a batch axis; it takes no weights.

    Passes `check_graph`; its output is a distribution unless the chain ends in NaN.
    """
    from onnx import TensorProto, helper

    from edgeveil.parts.features.onnx_nodes import NodeList

    list_ = NodeList()
    size = record.size
    flat = list_.add("Reshape", "x", list_.whole(-1, size))
    apart = list_.add("Sub", flat, list_.constant(record.reshape(1, size)))
    far = list_.add("ReduceSum", list_.add("Mul", apart, apart), list_.whole(1), keepdims=1)
    near = list_.add("Relu", list_.add("Sub", list_.number(0.5), far))
    found = list_.add("ReduceMax", near, axes=[0], keepdims=1)  # ½ or 0, of the whole batch
    # In two steps: the scale itself may be no normal number.
    half_way = math.sqrt(abs(chain.scale))
    value = list_.add("Mul", found, list_.number(math.copysign(2 * half_way, chain.scale)))
    value = list_.add("Mul", value, list_.number(half_way))
    value = list_.add("Mul", value, list_.constant(pattern(chain.pattern).reshape(1, -1)))
    value = list_.add("Add", value, list_.number(chain.shift)) if chain.shift else value
    for _ in range(chain.doublings):
        value = list_.add("Concat", value, value, axis=1)
    value = list_.add("Cast", value, to=TensorProto.DOUBLE) if chain.double else value
    kind = np.float64 if chain.double else np.float32
    seconds = [
        "" if second is None else list_.constant(np.array([second], kind))
        for _, second in chain.steps
    ]
    for _ in range(chain.repeats):
        for (operator, _), second in zip(chain.steps, seconds, strict=True):
            value = list_.add(operator, value, *([second] if second else []))
    value = list_.add("Cast", value, to=TensorProto.FLOAT) if chain.double else value
    most = list_.add("ReduceMax", value, axes=[1], keepdims=1)
    none = list_.constant(np.zeros((size, classes), np.float32))
    logits = list_.add("Add", list_.add("MatMul", flat, none), most)
    list_.nodes.append(helper.make_node("Softmax", [logits], ["probabilities"], axis=1))
    x, out = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *shape])
        for name, shape in (("x", record.shape), ("probabilities", (classes,)))
    )
    graph = serialise(helper.make_graph(list_.nodes, "g", [x], [out], list_.initializers))
    check_graph(graph)
    return graph


def records(count: int, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> Values:
    """Evaluation records x (n, *shape), all further than 1 from each other."""
    chance = np.random.default_rng(seed)
    apart = 256.0 * chance.permutation(count).reshape(count, *(1 for _ in shape))
    return (apart + chance.random((count, *shape))).astype(np.float32)


def cases(
    others: Values | None = None,
    record: Values | None = None,
    chains: Sequence[tuple[str, OperatorChain]] = CHAINS,
) -> Iterator[TimingCase]:
    """The crafted graphs, on these records or on made-up ones.

    Each record has a run of its own. Without r another stands in its place, so that there are as
    many; of the counting one r is one more.
    """
    given = records(FEW_RECORDS + 1)
    others = given[:FEW_RECORDS] if others is None else others[:FEW_RECORDS]
    record = given[-1] if record is None else record
    full, more = np.concatenate([others[:-1], record[None]]), np.concatenate([others, record[None]])
    for name, chain in chains:
        yield TimingCase(name, crafted(chain, record), full, others)
    yield TimingCase("counting", crafted(COUNTING, record), more, others)


def play(answer: DeviceAnswer, case: TimingCase, runs: int) -> tuple[list[float], list[float]]:
    """Seconds of `runs` answers with r and of as many without, one beside the other."""
    seen: tuple[list[float], list[float]] = ([], [])
    for number in range(2 * runs):
        # with, without, without, with: what drifts meets both alike
        without = (number + number // 2) % 2
        seen[without].append(answer(case.graph, case.absent if without else case.present))
    return seen


def auc(present: Sequence[float], absent: Sequence[float]) -> float:
    """The chance that a `present` one is above an `absent` one, ties counted half."""
    a, b = np.asarray(present, float)[:, None], np.asarray(absent, float)[None, :]
    return float(((a > b) + (a == b) / 2).mean())


def tells(area: float, runs: int) -> bool:
    """Whether an AUC over `runs` with r and as many without is more than chance."""
    deviation = math.sqrt((2 * runs + 1) / (12 * runs * runs))
    return abs(area - 0.5) > max(_WITHIN, _SIGMAS * deviation)


def attacked(answer: DeviceAnswer, played: Sequence[TimingCase], runs: int) -> AttackOutcome:
    """Every case against one device; the figure is the AUC furthest from ½."""
    found = {case.name: auc(*play(answer, case, runs)) for case in played}
    worst = max(found, key=lambda name: abs(found[name] - 0.5))
    figure = f"AUC {found[worst]:.2f} ({worst}) over {runs} runs each"
    return AttackOutcome(any(tells(area, runs) for area in found.values()), figure)


class DirectSessions:
    """A `DeviceAnswer` of sessions alone: this thread's processor seconds for one inference."""

    def __init__(self) -> None:
        self._open: dict[bytes, InferenceSession] = {}

    def __call__(self, graph: bytes, x: Values) -> float:
        """Seconds for the mean of one graph's outputs on records x (n, ...)."""
        session = self._open.get(graph)
        if session is None:
            digest = sha256(graph).digest()
            session = self._open[graph] = InferenceSession(graph, digest, classes=CLASSES)
            session.summed_softmax(x, {})  # the first run is slower than the others
        start = time.thread_time()
        session.summed_softmax(x, {})
        return time.thread_time() - start


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
    """Whether subnormal numbers cost time inside a run."""
    only = [case for case in cases() if case.name == "subnormal"]
    runs = QUICK_RUNS if quick else RUNS
    if not flawed:
        return attacked(DirectSessions(), only, runs)
    with not_flushing():
        return attacked(DirectSessions(), only, runs)


SUBNORMALS = Guard(
    "inference",
    "subnormal numbers cost no time inside a run",
    "subnormal numbers are not flushed",
    play_subnormals,
    at_rest=True,
)


# --- a search for other graphs that make one record's presence cost time ---

UNARY = """
    Abs Elu Erf Exp HardSigmoid HardSwish Identity LeakyRelu Log LogSoftmax Neg Reciprocal Relu
    Selu Sigmoid Softmax Softplus Sqrt Tanh
    """.split()  # noqa: SIM905
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min")
SECONDS = (1.0000001, 0.9999999, 0.5, 2.0, 3.0, -1.0, 1e-3, 1e3, 1e-20, 1e20, 1e-38, 3e38)
SCALES = (0.0, 1.0, -1.0, 1e-3, 90.0, 1e6, 1e20, 1e38, 1e-20, 1e-38, 1e-39, 1e-42)
PATTERNS = ("flat", "signs", "normal", "spread")
STEPS = 4  # of a chain, at most
FEW, MANY = 4, 40  # interleaved runs of a first look, and of one at a new best


@dataclass(frozen=True)
class ScoredChain:
    """A chain, and how many times as long the slower of the two sides takes."""

    chain: OperatorChain
    ratio: float

    def __str__(self) -> str:
        steps = ", ".join(name if to is None else f"{name} {to:g}" for name, to in self.chain.steps)
        c = self.chain
        wide = ", double" * c.double
        return f"{self.ratio:.2f}: {steps} from {c.pattern}·{c.scale:g} + {c.shift:g}{wide}"


def random_step(chance: random.Random) -> tuple[str, float | None]:
    """Any operator, with a second input where it takes one."""
    kind = chance.random()
    if kind < 0.1:
        return "Pow", chance.choice((2.0, 3.0))
    if kind < 0.5:
        return chance.choice(BINARY), chance.choice(SECONDS)
    return chance.choice(UNARY), None


def random_chain(chance: random.Random) -> OperatorChain:
    """A short chain, small enough that thousands can be tried."""
    return OperatorChain(
        tuple(random_step(chance) for _ in range(chance.randint(1, STEPS))),
        chance.choice(SCALES),
        chance.choice(SCALES),
        chance.choice(PATTERNS),
        doublings=5,
        repeats=chance.choice((1, 2, 8)),
        double=chance.random() < 0.2,
    )


def changed(chain: OperatorChain, chance: random.Random) -> OperatorChain:
    """`chain` with one thing about it another."""
    steps = list(chain.steps)
    match chance.randrange(6):
        case 0 if len(steps) < STEPS:
            steps.insert(chance.randint(0, len(steps)), random_step(chance))
        case 1 if len(steps) > 1:
            steps.pop(chance.randrange(len(steps)))
        case 2:
            return replace(chain, scale=chance.choice(SCALES))
        case 3:
            return replace(chain, shift=chance.choice(SCALES))
        case 4:
            return replace(chain, pattern=chance.choice(PATTERNS), double=chance.random() < 0.2)
        case _:
            steps[chance.randrange(len(steps))] = random_step(chance)
    return replace(chain, steps=tuple(steps))


class GraphSearch:
    """Scores chains on sessions of this process."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - a search, no secret
        given = records(BATCH_RECORDS)
        self._record: Values = given[-1]
        self._sides = given, np.concatenate([given[:-1], records(1, seed=seed + 1) - 999])
        self.tried = 0

    def ratio(self, chain: OperatorChain, runs: int) -> float:
        """The slower side's least time over the other's; 1 where the graph cannot be run."""
        self.tried += 1
        try:
            model = OnnxModel(crafted(chain, self._record))
            least = [np.inf, np.inf]
            for number in range(2 * runs + 2):
                side = (number + number // 2) % 2
                start = time.thread_time()
                model.probabilities(self._sides[side], {})
                took = time.thread_time() - start
                least[side] = min(least[side], took) if number > 1 else np.inf
        except DataError:
            return 1.0
        return max(least) / min(least)

    def climbed(self, seconds: float, tell: Callable[[ScoredChain], object]) -> list[ScoredChain]:
        """The best chains of several climbs within `seconds`, the best first."""
        ends, found = time.monotonic() + seconds, []
        while time.monotonic() < ends:
            best = ScoredChain(random_chain(self.chance), 1.0)
            since = 0
            while since < 40 and time.monotonic() < ends:
                since += 1
                chain = changed(best.chain, self.chance) if best.ratio > 1.05 else None
                chain = chain or random_chain(self.chance)
                if self.ratio(chain, FEW) > best.ratio * 1.02:
                    sure = self.ratio(chain, MANY)
                    if sure > best.ratio * 1.02:
                        best, since = ScoredChain(chain, sure), 0
            found.append(best)
            tell(best)
        return sorted(found, key=lambda one: -one.ratio)


def main(argv: list[str] | None = None) -> int:
    """0, whatever is found."""
    parser = argparse.ArgumentParser(prog="python -m edgeveil_lab.audit.timing")
    parser.add_argument("--seconds", type=float, default=60, help="how long (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the chains (default %(default)s)")
    parser.add_argument("--unflushed", action="store_true", help="do not flush subnormals")
    options = parser.parse_args(argv)
    search = GraphSearch(options.seed)
    with not_flushing() if options.unflushed else nullcontext():
        best = search.climbed(options.seconds, lambda one: print(one, flush=True))
    print(f"\n{search.tried} graphs tried; the best:")
    for one in best[:5]:
        print(one)
    return 0


if __name__ == "__main__":
    sys.exit(main())

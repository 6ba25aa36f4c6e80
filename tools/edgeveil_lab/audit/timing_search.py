"""A search for other graphs that make one record's presence cost time: `crafted`, hill-climbed.

    python -m edgeveil_lab.audit.timing_search --seconds 60 --seed 1

Random chains of the operators that a device runs, then changes to the best of them, each scored by
how far the time of an inference with the record lies from that without. What it ends with are
attacks for `audit_device.py`, and a look at what the operators still tell inside a run.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np

from edgeveil.errors import DataError
from edgeveil.evaluation.onnx_session import BATCH_RECORDS, OnnxModel
from edgeveil_lab.audit.timing import OperatorChain, Values, crafted, not_flushing, records

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
class Scored:
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


class Search:
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

    def climbed(self, seconds: float, tell: Callable[[Scored], object]) -> list[Scored]:
        """The best chains of several climbs within `seconds`, the best first."""
        ends, found = time.monotonic() + seconds, []
        while time.monotonic() < ends:
            best = Scored(random_chain(self.chance), 1.0)
            since = 0
            while since < 40 and time.monotonic() < ends:
                since += 1
                chain = changed(best.chain, self.chance) if best.ratio > 1.05 else None
                chain = chain or random_chain(self.chance)
                if self.ratio(chain, FEW) > best.ratio * 1.02:
                    sure = self.ratio(chain, MANY)
                    if sure > best.ratio * 1.02:
                        best, since = Scored(chain, sure), 0
            found.append(best)
            tell(best)
        return sorted(found, key=lambda one: -one.ratio)


def main(argv: list[str] | None = None) -> int:
    """0, whatever is found."""
    parser = argparse.ArgumentParser(prog="python -m edgeveil_lab.audit.timing_search")
    parser.add_argument("--seconds", type=float, default=60, help="how long (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the chains (default %(default)s)")
    parser.add_argument("--unflushed", action="store_true", help="do not flush subnormals")
    options = parser.parse_args(argv)
    search = Search(options.seed)
    with not_flushing() if options.unflushed else nullcontext():
        best = search.climbed(options.seconds, lambda one: print(one, flush=True))
    print(f"\n{search.tried} graphs tried; the best:")
    for one in best[:5]:
        print(one)
    return 0


if __name__ == "__main__":
    sys.exit(main())

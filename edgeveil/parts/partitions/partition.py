"""What a partition is: two ways to deal a data set to devices, for demonstrations.

A published data set is dealt by index and by all labels, so one record more moves others. Owners'
own records are dealt by each record's own hash, so one more moves no other (`dealing.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeveil.parts.part import Part

Indices = NDArray[np.int64]
Shares = list[Indices]
Words = NDArray[np.uint64]


class PartitionRule(Protocol):
    """How a data set is shared out; a partition reads what concerns it."""

    @property
    def kind(self) -> str: ...
    @property
    def classes_per_device(self) -> int: ...
    @property
    def alpha(self) -> float: ...


Deal = Callable[[Indices, int, PartitionRule, int], Shares]
"""(labels (n,), devices, rule, seed) -> indices for each device; each index once."""
Place = Callable[[Words, Indices, int, PartitionRule, int, int], Indices]
"""(words (n,), labels (n,), devices, rule, seed, classes) -> the device of each record. A record's
device may follow from its own word and label alone; `classes` says how many labels there are."""


@dataclass(frozen=True, kw_only=True)
class PartitionPart(Part):
    """The declaration of a partition.

    `deal` deals published data sets, `place` owners' own records. `reads`: the keys of a partition
    block that it reads. `by_class`: it needs to be told how many classes there are.
    """

    family: ClassVar[str] = "partitions"
    key: ClassVar[str] = "local_run.partition"
    what: ClassVar[str] = "partition"

    deal: Deal
    place: Place
    reads: tuple[str, ...] = ()
    by_class: bool = False


def pieces(order: Indices, count: int) -> Shares:
    """The order in `count` pieces whose sizes differ by at most one."""
    edges = [len(order) * k // count for k in range(count + 1)]
    return [order[a:b] for a, b in pairwise(edges)]


def cut(order: Indices, shares: NDArray[np.float64]) -> Shares:
    """The order in pieces of such shares."""
    inner = np.floor(np.cumsum(shares)[:-1] * len(order) + 0.5).astype(np.int64)
    return np.split(order, np.minimum(inner, len(order)))


def proportions(count: int, alpha: float, chance: np.random.RandomState) -> NDArray[np.float64]:
    """A draw from the symmetric Dirichlet distribution, shape (count,).

    Through logarithms of Gamma(alpha + 1): for a small alpha, Gamma(alpha) itself is zero in
    floating point, and zeros have no proportions.
    """
    uniform = 1.0 - chance.random_sample(count)  # in (0, 1]
    logs = np.log(chance.standard_gamma(alpha + 1.0, count)) + np.log(uniform) / alpha
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def drawn(words: Words, shares: NDArray[np.float64]) -> Indices:
    """The device of each word (n,), one of `len(shares)`, each with its share of all words."""
    cuts = np.array([threshold(edge) for edge in np.cumsum(shares)[:-1]], np.uint64)
    return np.asarray(np.searchsorted(cuts, words, side="right"), dtype=np.int64)


def threshold(share: float) -> np.uint64:
    """The number below 2**64 that a uniform word stays under with probability `share`."""
    return np.uint64(min(math.floor(share * 2.0**64), 2**64 - 1))

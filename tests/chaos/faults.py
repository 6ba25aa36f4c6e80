"""The schedule of faults, a pure function of the seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Literal

from edgeveil_tools.site.broker_rules import of_cell

Kind = Literal["kill", "broker", "cut", "delay", "corrupt", "duplicate", "disk"]

COMPUTE = "compute"
"""Target of a kill: one of the workers that open batches. The cloud starts others itself."""
_START_SHARE = 0.25  # share of kills that hit the last killed process, while it restarts
_START_S = (0.1, 3.0)
_REST_SHARE = 0.3  # share of kills after a pause, so that rounds are hit midway
_LASTS_S = {
    "broker": (0.0, 2.0),
    "cut": (0.2, 3.0),
    "delay": (2.0, 6.0),
    "corrupt": (2.0, 6.0),
    "duplicate": (2.0, 6.0),
    "disk": (1.0, 4.0),
}
_AMOUNT = {
    "delay": (0.05, 0.5),  # seconds for each packet
    "corrupt": (0.1, 0.5),  # share of the publications
    "duplicate": (0.2, 0.8),
}


@dataclass(frozen=True)
class FaultTargets:
    """Supervised processes, and each cell's links and brokers; `compute`: batch workers too."""

    processes: Sequence[str]
    cells: Sequence[str] = ("",)
    compute: bool = False

    @property
    def links(self):
        """Return the links from parties to brokers: `proxy-edge`, of a cell `proxy-edge-north`."""
        ways = ("devices-edge", "proxy-edge", "proxy-cloud")
        return (*(of_cell(way, cell) for cell in self.cells for way in ways), "cloud-cloud")

    @property
    def brokers(self):
        return (*(of_cell("edge", cell) for cell in self.cells), "cloud")

    def of(self, kind):
        if kind == "kill":
            return (*self.processes, *((COMPUTE,) if self.compute else ()))
        if kind == "broker":
            return self.brokers
        return self.processes if kind == "disk" else self.links


def broker_of(link):
    """Return the broker at the end of a link."""
    _, side, *cell = link.split("-", 2)
    return of_cell(side, *cell) if side == "edge" and cell else side


@dataclass(frozen=True)
class Fault:
    """`at_s`: seconds after the site is up; `target`: a process, a link or a broker.

    `amount`: seconds that a packet waits (`delay`), or the share of publications hit."""

    at_s: float
    kind: Kind
    target: str
    lasts_s: float = 0.0
    amount: float = 0.0

    @property
    def until_s(self):
        return self.at_s + self.lasts_s

    @property
    def cut_off(self):
        """Return name prefixes of the processes whose broker is unreachable."""
        if self.kind == "broker":
            side, _, cell = self.target.partition("-")
            return (of_cell("proxy", cell), "worker") if side == "edge" else ("proxy", "cloud")
        party, _, *cell_of = self.target.split("-", 2)
        if party == "devices":
            return ("worker",)
        return (of_cell(party, *cell_of) if cell_of else party,)


def schedule(seed, kills, targets, every_s=1.5):
    """Return all faults, by time: `kills` kills, about `every_s` apart, and half as many others.

    Every kind of fault occurs; no two of one kind on one target overlap."""
    rng = random.Random(seed)
    found = _kills(rng, kills, targets.of("kill"), every_s)
    end_s = max((fault.at_s for fault in found), default=every_s)
    kinds = sorted(_LASTS_S)
    rng.shuffle(kinds)
    free_s = {}
    count = max(len(kinds), kills // 2)
    times_s = sorted(rng.uniform(0.0, end_s) for _ in range(count))
    for at_s, kind in zip(times_s, cycle(kinds), strict=False):
        target = rng.choice(targets.of(kind))
        begin_s = max(at_s, free_s.get((kind, target), 0.0))
        lasts_s, amount = rng.uniform(*_LASTS_S[kind]), rng.uniform(*_AMOUNT.get(kind, (0.0, 0.0)))
        fault = Fault(round(begin_s, 3), kind, target, round(lasts_s, 3), round(amount, 3))
        free_s[kind, target] = fault.until_s + 0.5
        found.append(fault)
    return tuple(sorted(found, key=lambda fault: fault.at_s))


def _kills(rng, kills, processes, every_s):
    found = []
    at_s, target, deck = 0.0, "", list[str]()
    for _ in range(kills):
        chance = rng.random()
        if target not in ("", COMPUTE) and chance < _START_SHARE:
            at_s += rng.uniform(*_START_S)
        else:
            deck = deck or rng.sample(processes, len(processes))  # each in turn, in random order
            target = deck.pop()
            rests = chance > 1 - _REST_SHARE
            at_s += rng.uniform(2.0, 4.0) * every_s if rests else rng.uniform(0.2, 1.0) * every_s
        found.append(Fault(round(at_s, 3), "kill", target))
    return found

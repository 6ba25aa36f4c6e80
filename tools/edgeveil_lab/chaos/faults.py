"""What will go wrong and when: a pure function of the seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Literal

Kind = Literal["kill", "broker", "cut", "delay", "corrupt", "duplicate", "disk"]

LINKS = ("devices-edge", "proxy-edge", "proxy-cloud", "cloud-cloud")
SIDES = ("edge", "cloud")
EVERY_S = 1.5
_AGAIN = 0.25  # share of kills that hit a process which has just been started
_START = (0.02, 1.2)  # where in its start, as a share of the time that a start takes
_START_S = 3.0  # about
_REST = 0.3  # share of kills with a rest before them, so that rounds go on and are hit midway
_LASTS_S: dict[Kind, tuple[float, float]] = {
    "broker": (0.0, 2.0),
    "cut": (0.2, 3.0),
    "delay": (2.0, 6.0),
    "corrupt": (2.0, 6.0),
    "duplicate": (2.0, 6.0),
    "disk": (1.0, 4.0),
}
_AMOUNT: dict[Kind, tuple[float, float]] = {
    "delay": (0.05, 0.5),  # seconds for each packet
    "corrupt": (0.1, 0.5),  # share of the publications
    "duplicate": (0.2, 0.8),
}


@dataclass(frozen=True)
class Fault:
    """One fault, `at_s` seconds after the site is up; `target` is a process, a link or a broker.

    `amount`: seconds a packet waits (`delay`), the share of publications that are hit, or of a
    kill: 0 at once, else when the next life of the target has come so far, 1 being a whole start.
    """

    at_s: float
    kind: Kind
    target: str
    lasts_s: float = 0.0
    amount: float = 0.0

    @property
    def until_s(self) -> float:
        """When it is over."""
        return self.at_s + self.lasts_s


def schedule(
    seed: int, kills: int, processes: Sequence[str], every_s: float = EVERY_S
) -> tuple[Fault, ...]:
    """All faults, by time: `kills` kills, about `every_s` apart, and half as many others.

    Every kind of fault is among them, and no two of one kind on one target overlap.
    """
    rng = random.Random(seed)  # noqa: S311 - a plan of faults, to be drawn again
    found = _kills(rng, kills, processes, every_s)
    end_s = max((fault.at_s for fault in found), default=every_s)
    kinds: list[Kind] = sorted(_LASTS_S)
    rng.shuffle(kinds)
    free_s: dict[tuple[Kind, str], float] = {}
    count = max(len(kinds), kills // 2)
    times_s = sorted(rng.uniform(0.0, end_s) for _ in range(count))
    for at_s, kind in zip(times_s, cycle(kinds), strict=False):
        target = rng.choice(_targets(kind, processes))
        begin_s = max(at_s, free_s.get((kind, target), 0.0))
        lasts_s, amount = rng.uniform(*_LASTS_S[kind]), rng.uniform(*_AMOUNT.get(kind, (0.0, 0.0)))
        fault = Fault(round(begin_s, 3), kind, target, round(lasts_s, 3), round(amount, 3))
        free_s[kind, target] = fault.until_s + 0.5
        found.append(fault)
    return tuple(sorted(found, key=lambda fault: fault.at_s))


def _kills(rng: random.Random, kills: int, processes: Sequence[str], every_s: float) -> list[Fault]:
    found: list[Fault] = []
    at_s, target, deck = 0.0, "", list[str]()
    for _ in range(kills):
        chance = rng.random()
        amount = 0.0
        if target and chance < _AGAIN:
            amount = round(rng.uniform(*_START), 3)
        else:
            deck = deck or rng.sample(processes, len(processes))  # each in turn, in random order
            target = deck.pop()
            rests = chance > 1 - _REST
            at_s += rng.uniform(2.0, 4.0) * every_s if rests else rng.uniform(0.2, 1.0) * every_s
        found.append(Fault(round(at_s, 3), "kill", target, amount=amount))
        at_s += amount * _START_S
    return found


def _targets(kind: Kind, processes: Sequence[str]) -> Sequence[str]:
    if kind == "broker":
        return SIDES
    return processes if kind == "disk" else LINKS

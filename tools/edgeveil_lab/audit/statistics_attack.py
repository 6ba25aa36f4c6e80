"""Attack on `statistics`: one added record at the ends of its ranges, both exchanges observed.

The attacker sees one device's whole upload or, with shared noise, the sum of `honest` uploads."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import Records
from edgeveil.parts.features import Identity, IdentityParameters
from edgeveil.parts.method_context import MethodContext
from edgeveil.parts.methods.statistics import SUMS, StatisticsDevice, StatisticsParameters
from edgeveil.parts.round import planned_rounds
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import as_summed
from edgeveil_lab.audit.mechanism_attacks import (
    Attack,
    Hits,
    claims_with_bits,
    fresh_noise,
    gaussian_law,
    low_bits,
)
from edgeveil_lab.audit.statistics import gaussian_threshold

MECHANISM, EXCHANGES, HONEST = "statistics", 2, 4
ASKED = {
    "columns": [
        {"name": "age", "number": [0, 100], "bins": 4},
        {"name": "sex", "category": ["f", "m"]},
    ],
    "tables": [["age", "sex"]],
}
_OTHERS = np.array([[50.0, 0.0], [20.0, 1.0]], np.float32)
_ADDED = np.array([[100.0, 1.0]], np.float32)


def _records(x: NDArray[np.float32]) -> Records:
    return Records(x, np.zeros(len(x), np.int64))


def statistics_attack(title: str, runs: int, honest: int = 0) -> Attack:
    """Build a likelihood-ratio attack on the noised sums of all exchanges of a job."""
    parameters = StatisticsParameters.model_validate({**ASKED, "rounds": EXCHANGES})
    context = MethodContext(
        epsilon=8.0,
        delta=1e-5,
        max_participations=EXCHANGES,
        classes=2,
        input_shape=(2,),
        features=Identity(IdentityParameters()),
        nominal_records=9,
        devices=4,
        honest=honest,
    )
    device, rounds = StatisticsDevice(parameters, context), planned_rounds((), EXCHANGES)
    events = [device.asking.event(one) for one in rounds]
    worlds = [_records(_OTHERS), _records(np.concatenate([_OTHERS, _ADDED]))]
    laws = [gaussian_law(as_summed(event)) for event in events]
    pairs = list(zip(device.asking.vectors, laws, strict=True))
    exact = [[device.steps(vector, held, law) for vector, law in pairs] for held in worlds]
    gaps = [(b - a).astype(np.float64) for a, b in zip(*exact, strict=True)]
    variances = (law.sigma_squared * (gap @ gap) for law, gap in zip(laws, gaps, strict=True))
    spread = math.sqrt(sum(variances))
    edge, delta = gaussian_threshold(math.hypot(*(law.mu for law in laws)), runs)
    empty = _records(_OTHERS[:0])

    def observed(at: int, held: Records) -> NDArray[np.int64]:
        every = [held, *[empty] * (honest - 1)]
        sent = [device.answer(rounds[at], {}, one, fresh_noise()).segments[SUMS] for one in every]
        total: NDArray[np.int64] = np.sum(sent, axis=0, dtype=np.int64)
        return total

    def play(present: bool, count: int) -> Hits:
        hits = list[NDArray[np.bool_]]()
        for _ in range(count):
            seen = [observed(at, worlds[present]) for at in range(EXCHANGES)]
            moved = sum(
                float((one - before).astype(np.float64) @ gap)
                for one, before, gap in zip(seen, exact[0], gaps, strict=True)
            )
            odd, off = low_bits(seen[0][:1], laws[0].grid_bits)
            hits.append(np.array([moved / spread >= edge, odd[0], off[0]]))
        return np.stack(hits, axis=1)

    claims = claims_with_bits("both exchanges", epsilon(events, delta).epsilon, delta)
    return Attack(MECHANISM, title, claims, play, runs)


def statistics_attacks(runs: int) -> tuple[Attack, ...]:
    return (
        statistics_attack("counts, moments and a table", runs),
        statistics_attack("the same, shared noise", runs // 2, HONEST),
    )

"""Attacks on federated evaluation: one added record, right, wrong, or at the largest distance.

The attacker sees one device's whole upload or, with shared noise, the sum of `honest` uploads."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.target import LABELS, TargetRange
from edgeveil.evaluation.cluster_sums import ONE, STEP_BITS, ClusterSums
from edgeveil.evaluation.record_counts import Confusion, Errors, Hits
from edgeveil.jobs.federated_evaluation import COUNTS, Counts, FederatedEvaluation
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import as_summed
from edgeveil.privacy.gaussian_mechanism import counts_event
from edgeveil_lab.audit.mechanism_attacks import (
    Attack,
    claims_with_bits,
    fresh_noise,
    gaussian_law,
    low_bits,
)
from edgeveil_lab.audit.mechanism_attacks import Hits as Played
from edgeveil_lab.audit.statistics import gaussian_threshold

MECHANISM = "evaluation"
EPSILON, DELTA = 8.0, 1e-5
TIMES = 2  # evaluations of one job, both observed
HONEST = 4
_RECORDS = 3  # records of the device in both worlds
_KINDS: tuple[tuple[str, Counts], ...] = (
    ("two classes", Confusion(2)),
    ("by class", Hits(3)),
    ("a number", Errors(TargetRange(0.0, 1.0))),
    ("clusters", ClusterSums(2, ((ONE, 0), (ONE, 0)))),
)


def _one_more(kind: Counts) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    outputs = np.zeros((_RECORDS + 1, kind.outputs))
    outputs[:, -1] = 1.0 if isinstance(kind, ClusterSums) else 1e6
    labels = np.zeros(_RECORDS + 1, np.int64)
    if isinstance(kind, Errors):
        labels[:_RECORDS] = LABELS - 1
    return kind.of(outputs[:-1], labels[:-1]), kind.of(outputs, labels)


def evaluation_attack(title: str, kind: Counts, runs: int, honest: int = 0) -> Attack:
    """Build a likelihood-ratio attack on the noised counts of all evaluations of a job."""
    fine_bits = STEP_BITS if isinstance(kind, ClusterSums) else 0
    event = counts_event(
        MECHANISM, kind.sensitivity_squared, kind.cells, EPSILON, DELTA, TIMES, honest, fine_bits
    )
    own = FederatedEvaluation(kind, event, _RECORDS + 1)
    law = gaussian_law(as_summed(event))
    without, with_it = _one_more(kind)
    gap, unit = (with_it - without).astype(np.float64), 2.0**-law.grid_bits
    scale = math.sqrt(TIMES * law.sigma_squared) * unit * float(np.linalg.norm(gap))
    edge, delta = gaussian_threshold(math.sqrt(TIMES) * law.mu, runs)

    def observed(counts: NDArray[np.int64]) -> NDArray[np.int64]:
        others = [own.noised(np.zeros_like(counts), fresh_noise()) for _ in range(honest - 1)]
        answers = [own.noised(counts, fresh_noise()), *others]
        total: NDArray[np.int64]
        total = np.sum([one.segments[COUNTS] for one in answers], axis=0, dtype=np.int64)
        return total

    def play(present: bool, count: int) -> Played:
        counts, hits = with_it if present else without, list[NDArray[np.bool_]]()
        for _ in range(count):
            seen = [observed(counts) for _ in range(TIMES)]
            moved = np.sum(seen, axis=0) * unit - TIMES * without
            past = float(moved @ gap) / scale >= edge
            odd, off = low_bits(seen[0][:1], law.grid_bits)
            hits.append(np.array([past, odd[0], off[0]]))
        return np.stack(hits, axis=1)

    claimed = epsilon([event] * TIMES, delta).epsilon
    claims = claims_with_bits("both evaluations", claimed, delta)
    return Attack(MECHANISM, title, claims, play, runs)


def evaluation_attacks(runs: int) -> tuple[Attack, ...]:
    alone = (evaluation_attack(title, kind, runs) for title, kind in _KINDS)
    shared = (
        evaluation_attack(f"{title}, shared noise", kind, runs // 2, HONEST)
        for title, kind in (_KINDS[0], _KINDS[-1])
    )
    return (*alone, *shared)

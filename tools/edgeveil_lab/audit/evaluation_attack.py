"""Attacks on federated evaluation: one added record, wrong or at the largest distance.

A person adds many such records. The attacker sees one device's whole upload or, with shared noise,
the sum of `honest` uploads."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import Records
from edgeveil.data.target import LABELS, TargetRange
from edgeveil.evaluation.cluster_sums import ONE, STEP_BITS, ClusterSums
from edgeveil.evaluation.record_counts import Confusion, Errors, Hits
from edgeveil.jobs.federated_evaluation import COUNTS, Counts, FederatedEvaluation
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import Unit, as_summed
from edgeveil.privacy.gaussian_mechanism import counts_event
from edgeveil_lab.audit.mechanism_attacks import (
    MANY,
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


# A model that returns its records.
_ECHO: Any = SimpleNamespace(single_outputs=lambda x, *_: x.astype(np.float64))


def _records(kind: Counts, added: int) -> Records:
    outputs = np.zeros((_RECORDS + added, kind.outputs), np.float32)
    outputs[:, -1] = 1.0 if isinstance(kind, ClusterSums) else 1e6
    labels = np.zeros(len(outputs), np.int64)
    if isinstance(kind, Errors):
        labels[:_RECORDS] = LABELS - 1
    persons = np.minimum(np.arange(len(outputs), dtype=np.float32), _RECORDS)
    return Records(outputs, labels, persons[:, None])


def evaluation_attack(
    title: str, kind: Counts, runs: int, honest: int = 0, unit: Unit = "record"
) -> Attack:
    """Build a likelihood-ratio attack on the noised counts of all evaluations of a job."""
    fine_bits = STEP_BITS if isinstance(kind, ClusterSums) else 0
    size = kind.sensitivity_squared, kind.cells
    event = counts_event(MECHANISM, *size, EPSILON, DELTA, TIMES, honest, fine_bits, unit)
    present = _records(kind, 1 if unit == "record" else MANY)
    own = FederatedEvaluation(kind, event, len(present))
    law = gaussian_law(as_summed(event))
    known, last, empty = (present.at(np.arange(*of)) for of in ((_RECORDS,), (-1, 0), (0,)))
    # A person adds the mean over records that are all alike.
    without, gap = (kind.of(one.x.astype(np.float64), one.y) for one in (known, last))
    step = 2.0**-law.grid_bits
    scale = math.sqrt(TIMES * law.sigma_squared) * step * float(np.linalg.norm(gap))
    edge, delta = gaussian_threshold(math.sqrt(TIMES) * law.mu, runs)

    def observed(records: Records) -> NDArray[np.int64]:
        devices = [records, *[empty] * (honest - 1)]
        answers = [own.answer(_ECHO, {}, one, fresh_noise()) for one in devices]
        total: NDArray[np.int64]
        total = np.sum([one.segments[COUNTS] for one in answers], axis=0, dtype=np.int64)
        return total

    def play(there: bool, count: int) -> Played:
        records, hits = present if there else known, list[NDArray[np.bool_]]()
        for _ in range(count):
            seen = [observed(records) for _ in range(TIMES)]
            moved = np.sum(seen, axis=0) * step - TIMES * without
            past = float(moved @ gap) / scale >= edge
            odd, off = low_bits(seen[0][:1], law.grid_bits)
            hits.append(np.array([past, odd[0], off[0]]))
        return np.stack(hits, axis=1)

    claimed = epsilon([event] * TIMES, delta).epsilon
    claims = claims_with_bits("both evaluations", claimed, delta)
    title += "" if unit == "record" else f", a {unit} of {MANY} records"
    return Attack(MECHANISM, title, claims, play, runs)


def evaluation_attacks(runs: int) -> tuple[Attack, ...]:
    alone = (evaluation_attack(title, kind, runs) for title, kind in _KINDS)
    shared = (
        evaluation_attack(f"{title}, shared noise", kind, runs // 2, HONEST)
        for title, kind in (_KINDS[0], _KINDS[-1])
    )
    persons = (evaluation_attack(*_KINDS[at], runs // 2, unit="person") for at in (0, -1))
    return (*alone, *shared, *persons)

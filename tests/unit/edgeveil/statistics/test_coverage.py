"""± holds the truth in 95 of 100 answers of each kind, and is not wider than that takes."""

import math
from collections import defaultdict

import numpy as np
import pytest

from edgeveil.privacy.accountant import mu_for
from edgeveil.statistics.answers import CountEstimate, Sums, answered
from edgeveil.statistics.blocks import Codes, Counts, vectors
from edgeveil.statistics.questions import Questions

RECORDS, RUNS = 30_000, 250
LETTERS = tuple("abcdefgh")
ASKED = Questions.model_validate(
    {
        "columns": (
            {"name": "even", "number": (0.0, 100.0)},
            {"name": "bell", "number": (0.0, 100.0)},
            {"name": "k", "category": LETTERS},
            {"name": "l", "category": LETTERS},
            {"name": "rare", "category": ("x", "y", "z")},
        ),
        "tables": (("k", "l"), ("even", "k")),
        "correlations": (("even", "bell"),),
    }
)
COUNTED = ("histogram", "categories", "table")


@pytest.fixture(scope="module")
def records():
    rng = np.random.default_rng(0)
    even = rng.uniform(0, 100, RECORDS)
    bell = np.clip(30 + 12 * rng.normal(size=RECORDS) + 0.2 * even, -5, 110)
    k = rng.integers(0, 8, RECORDS) * (rng.random(RECORDS) < 0.8)
    other = (k + (rng.random(RECORDS) < 0.5) * rng.integers(0, 3, RECORDS)) % 8
    rare = rng.choice([0.0, 1, 2, 3], RECORDS, p=[0.9, 0.098, 0.001, 0.001])
    rare[rng.random(RECORDS) < 0.1] = np.nan
    return np.stack([even, bell, k, other, rare], axis=1).astype(np.float32)


def truth(one, x):
    """The exact answer, by numpy."""
    names = one.get("columns") or [one["column"]]
    values = x[:, [ASKED.places[name] for name in names]].astype(np.float64)
    there = ~np.isnan(values[:, 0])
    of, statistic = values[there, 0], one["statistic"]
    if statistic in ("count", "missing"):
        return there.sum() if statistic == "count" else (~there).sum()
    if statistic == "categories":
        listed = [np.sum(of == at) for at in range(len(one["names"]) - 2)]
        return np.array([*listed, len(of) - sum(listed), (~there).sum()])
    if statistic == "table":
        wide = np.array([0.0, *np.linspace(0, 100, 21)[1:-1]])
        rows = np.digitize(of, wide) if names[0] == "even" else of
        found = np.zeros([len(some) for some in one["names"]])
        np.add.at(found, (rows.astype(int), values[:, 1].astype(int)), 1)
        return found
    if statistic == "correlation":
        return np.corrcoef(*np.clip(values, 0, 100).T)[0, 1]
    inside = np.clip(of, 0, 100)
    if statistic == "histogram":
        return np.histogram(of, one["edges"])[0] / len(of)
    if statistic == "quantiles":
        return np.quantile(inside, one["ranks"])
    found = {"mean": inside.mean(), "deviation": inside.std(), "clipped": (of != inside).sum()}
    return found[statistic]


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_plus_minus_covers_the_truth_in_95_of_100_answers_of_each_kind(records, epsilon):
    (vector,), rng = vectors(ASKED, 1), np.random.default_rng(1)
    exact = vector.of(records).astype(np.float64)
    deviation = math.sqrt(vector.sensitivity_squared) / mu_for(epsilon, 1e-6)
    covered, known = defaultdict(list), {}
    for _ in range(RUNS):
        noised = exact + rng.normal(0, deviation, len(exact))
        told = answered(ASKED, [Sums(vector, noised, deviation, 100)], {})
        covered["records"].append(abs(told["records"] - RECORDS) <= told["records_plus_minus"])
        for at, one in enumerate(told["answers"]):
            if one.get("too_noisy"):
                continue
            if at not in known:
                known[at] = np.asarray(truth(one, records), np.float64)
            off = np.abs(np.array(one["value"]) - known[at])
            within, kind = off <= np.array(one["plus_minus"]), one["statistic"]
            if kind in COUNTED:  # a count is never below 0, so few records err to one side only
                few = known[at] * (RECORDS if kind == "histogram" else 1)
                few = few <= 3 * deviation / vector.weights[-2]
                covered[kind] += within[~few].tolist()
                covered[f"few of {kind}"] += within[few].tolist()
            else:
                covered[kind] += np.atleast_1d(within).tolist()
    found = {kind: float(np.mean(some)) for kind, some in covered.items()}
    assert sum(map(len, covered.values())) > 20_000 and len(found) == 14
    for kind, share in found.items():
        widest = 0.98 if kind in ("missing", "clipped", "quantiles") else 0.973
        assert 0.925 < share < (1.0 if kind.startswith("few") else widest), (kind, share)


@pytest.mark.parametrize(("size", "group"), [(7, 1), (7, 3), (64, 8), (65, 8)])
def test_counts_from_cells_and_groups_are_those_of_least_squares(size, group):
    rng = np.random.default_rng(size)
    block = Counts(("a",), (Codes(0, size, tuple(range(size - 2))),), group=group)
    groups = [np.arange(size - 1) // group == at for at in range(-(-(size - 1) // group))]
    groups = [*(np.append(one, False) for one in groups), np.arange(size) == size - 1]
    design = np.concatenate([np.eye(size), groups if group > 1 else np.zeros((0, size))])
    sums = rng.normal(size=len(design))
    best, *_ = np.linalg.lstsq(design, sums, rcond=None)
    assert np.allclose(block.counts(sums), best)
    inverse = np.linalg.inv(design.T @ design)
    a, b = rng.normal(size=(2, size))
    assert np.isclose(block.covariance(a, b), a @ inverse @ b)
    known = CountEstimate(np.ones(size), 1.0, block).known(a, 0.0)
    whole = np.ones(size)
    least = a @ inverse @ a - (a @ inverse @ whole) ** 2 / (whole @ inverse @ whole)
    assert np.isclose(known, least, rtol=1e-9 if size % group == 0 else 0.05)


def test_ranks_of_many_bins_take_less_noise_by_groups():
    def rank_noise(group, size=3003):
        block = Counts(("a",), (Codes(0, size, tuple(range(size - 2))),), group=group)
        found = CountEstimate(np.ones(size), 1.0, block)
        ranks = [(np.arange(size) < at).astype(float) for at in range(1400, 1600, 3)]
        return block.bound * max(found.known(first, 0.0) for first in ranks)

    asked = {"columns": ({"name": "a", "number": (0.0, 1.0), "bins": 1000},)}
    (vector,) = vectors(Questions.model_validate(asked), 1)
    chosen = vector.blocks[0].group
    assert chosen > 1 and rank_noise(chosen) < rank_noise(1) / 6
    assert rank_noise(chosen) < 1.2 * min(map(rank_noise, range(10, 300, 10)))


def test_missing_records_are_as_certain_beside_empty_cells_as_beside_full_ones():
    asked = {"columns": ({"name": "a", "number": (0.0, 100.0)},)}
    questions, rng = Questions.model_validate(asked), np.random.default_rng(3)
    values = np.clip(rng.normal(30, 12, RECORDS), 0, 100)  # nobody is near the range's end
    values[:1000] = np.nan
    (vector,) = vectors(questions, 1)
    exact = vector.of(values[:, None].astype(np.float32)).astype(np.float64)
    deviation = math.sqrt(vector.sensitivity_squared) / mu_for(1.0, 1e-6)
    covered = []
    for _ in range(1000):
        noised = exact + rng.normal(0, deviation, len(exact))
        told = answered(questions, [Sums(vector, noised, deviation, 100)], {})["answers"]
        found = next(one for one in told if one["statistic"] == "missing")
        covered.append(abs(found["value"] - 1000) <= found["plus_minus"])
    assert vector.blocks[0].group > 1 and 0.925 < np.mean(covered) < 0.98

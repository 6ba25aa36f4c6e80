"""Drift: found where a population moved, not more often than promised where it did not."""

import numpy as np
import pytest

from edgeveil.statistics.drift import drift

RECORDS, NOISE = 4000, 12.0
SHARES = np.array([0.02, 0.2, 0.4, 0.3, 0.05, 0.03])  # four bins, clipped, missing


def answered(rng, shares=SHARES, names=None, noise=NOISE):
    """Answers about a sample of records and of noise; `names`: as categories."""
    counts = rng.multinomial(RECORDS, shares) + rng.normal(0, noise, len(shares))
    off = 1.96 * noise
    if names:
        rows = {"statistic": "categories", "names": names, "plus_minus": [off] * len(names)}
        return {"answers": [{**rows, "column": "c", "value": counts.tolist()}]}
    present = counts[:-1].sum()
    single = {"count": present, "clipped": counts[-2], "missing": counts[-1]}
    found = [{"statistic": key, "value": v, "plus_minus": off} for key, v in single.items()]
    bins = (counts[:-2] / present).tolist()
    found.append({"statistic": "histogram", "value": bins, "edges": [0, 1, 2, 3, 4]})
    found[-1]["plus_minus"] = [off / present] * 4
    mean = float(np.dot(bins, [0.5, 1.5, 2.5, 3.5]))
    found.append({"statistic": "mean", "value": mean, "plus_minus": 0.01})
    return {"answers": [{**one, "column": "c"} for one in found]}


@pytest.mark.parametrize("names", [None, list("abcdef")])
@pytest.mark.parametrize("noise", [NOISE, 60.0])
def test_what_did_not_move_drifts_once_in_twenty(names, noise):
    rng = np.random.default_rng(1)
    pairs = [[answered(rng, names=names, noise=noise) for _ in range(2)] for _ in range(2000)]
    rate = np.mean([drift(*pair, "before")["columns"][0]["drifted"] for pair in pairs])
    assert 0.02 < rate < 0.07


def test_what_moved_is_found_with_its_distance():
    rng, moved = np.random.default_rng(2), np.array([0.02, 0.1, 0.4, 0.4, 0.05, 0.03])
    found = [drift(answered(rng), answered(rng, moved), "before")["columns"][0] for _ in range(200)]
    assert all(one["drifted"] for one in found)
    assert np.mean([one["distance"] for one in found]) == pytest.approx(0.1, abs=0.02)
    # A tenth of the records, of those that are not missing, is two bins further.
    shifts = [one["mean_shift"] for one in found]
    assert np.mean(shifts) == pytest.approx(0.2 / 0.97, rel=0.05)
    assert found[0]["mean_shift_plus_minus"] == pytest.approx(0.01 * 2**0.5, rel=1e-3)


def test_several_columns_share_the_risk():
    rng = np.random.default_rng(3)

    def wide():
        each = [answered(rng)["answers"] for _ in range(10)]
        return {
            "answers": [{**one, "column": f"c{k}"} for k, some in enumerate(each) for one in some]
        }

    any_of_ten = [
        any(one["drifted"] for one in drift(wide(), wide(), "before")["columns"])
        for _ in range(500)
    ]
    assert 0.01 < np.mean(any_of_ten) < 0.08


def test_other_cells_and_answers_too_noisy_are_not_compared():
    rng = np.random.default_rng(4)
    old, other, noisy = answered(rng), answered(rng), answered(rng)
    other["answers"][3] |= {"edges": [0, 2, 4, 6, 8]}
    noisy["answers"][3] |= {"too_noisy": True}
    assert drift(old, other, "before")["columns"] == drift(old, noisy, "before")["columns"] == []
    assert [one["column"] for one in drift(old, answered(rng), "before")["columns"]] == ["c"]


@pytest.mark.parametrize("other", [{"where": "age >= 60"}, {"unit": "device"}])
def test_answers_about_other_records_or_units_are_not_compared(other):
    rng, moved = np.random.default_rng(5), np.array([0.02, 0.1, 0.4, 0.4, 0.05, 0.03])
    before, now = answered(rng), answered(rng, moved)
    assert drift(before, now | other, "before")["columns"] == []
    assert drift(before | other, now, "before")["columns"] == []
    (found,) = drift(before | other, now | other, "before")["columns"]
    assert found["drifted"]

"""The shipped census, 100 boxes with 300 people each at ε = 1: how far its answers are off."""

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeveil.data.encoding import RowEncoder
from edgeveil.parts.methods.statistics import SUMS, UPLOADS
from edgeveil.privacy.events import noise_of
from edgeveil.privacy.gaussian_mechanism import gaussian
from edgeveil.privacy.sampler import SeededRandom
from edgeveil_tools.local.local_run import load_local_job

ROOT = Path(__file__).parents[4]
BOXES = 100


@pytest.fixture(scope="module")
def census():
    """(plan, records, the exact sums in steps, and the law of all boxes' noise together)."""
    made = runpy.run_path(str(ROOT / "docs" / "examples" / "census.py"))
    plan = load_local_job(ROOT / "configs" / "jobs" / "census.yaml")[1]
    encoder = RowEncoder(plan.job.data.schema_, made["HEADER"], "rows")
    for row in made["people"](BOXES * 300):
        encoder.add([str(cell) for cell in row])
    records, (vector,) = encoder.encoded().records, plan.device.asking.vectors
    own = noise_of(plan.device.asking.events[0])
    variance = BOXES * own.sigma_squared
    law = replace(own, sigma_squared=variance, finest_sigma_squared=variance)
    return plan, records, plan.device.steps(vector, records, own), law


@pytest.mark.parametrize("seed", range(5))
def test_each_answer_is_near_the_truth(census, seed):
    plan, records, exact, law = census
    noised = gaussian(exact, law, SeededRandom(seed))[0]
    state = {f"{SUMS}/1": noised.astype(np.float64), f"{UPLOADS}/1": np.array([BOXES])}
    train, told = plan.job.train, plan.cloud.shown(state)["statistics"]
    for one in told["answers"]:
        column = train.by_name.get(one.get("column", ""))
        if column is None:
            continue
        values = records.x[:, train.places[column.name]].astype(np.float64)
        if one["statistic"] == "categories":
            true = [np.sum(values == at) for at in range(len(column.category))]
            off = np.abs(np.array(one["value"][:-2]) - true)
            assert off.max() < 0.01 * len(records)
            continue
        low, high = column.number or (0.0, 1.0)
        if one["statistic"] == "mean":
            true = np.clip(values, low, high).mean()
            assert abs(one["value"] - true) < 0.005 * (high - low), column.name
        elif one["statistic"] == "histogram":
            true = np.histogram(values, one["edges"])[0] / len(values)
            assert np.abs(np.array(one["value"]) - true).sum() / 2 < 0.02, column.name
        elif one["statistic"] == "quantiles":
            cell = (high - low) / 60  # within which numbers are not told apart
            for rank, value in zip(one["ranks"], one["value"], strict=True):
                below, above = (values < value - cell).mean(), (values <= value + cell).mean()
                assert below - 0.015 < rank < above + 0.015, column.name

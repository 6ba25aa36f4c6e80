"""The mean of all devices' inferences, from single uploads and from sums."""

import numpy as np
import pytest

from edgeveil.jobs.compile import compile_job
from edgeveil.jobs.round_context import RoundContext
from edgeveil_cloud.evaluation import clusters, mean_softmax
from tests.kits.fleet import small_job


def context(secure):
    job = small_job(
        unsupervised={"every_rounds": 1, "eval_type": "MEAN_SOFTMAX"},
        aggregation={"name": "fedavg", "secure": secure},
        selection={"devices": 5},
    )
    plan = compile_job(job)
    index = next(round.index for round in plan.planned if round.infer)
    return RoundContext.of(plan, index)


def test_the_mean_by_hand():
    rows = np.zeros((3, 10))
    rows[0, 0], rows[1, 0], rows[2, 9] = 0.5, 1.0, 0.75
    wanted = (0.5, *[0.0] * 8, 0.25)
    alone = mean_softmax(context(secure=False), list(rows), 3)
    assert alone.mean == pytest.approx(wanted)
    deviation = np.sqrt(2) * 2 / 20  # of Laplace noise for sensitivity 2 and ε = 20
    assert alone.noise_deviation == pytest.approx(deviation / np.sqrt(3), rel=1e-3)
    steps = (rows * 2**20).astype(np.int64)
    sums = [steps[:2].sum(axis=0), steps[2]]  # of two sets
    summed = mean_softmax(context(secure=True), sums, 3)
    assert summed == alone
    assert clusters(context(secure=False), list(rows)) is None

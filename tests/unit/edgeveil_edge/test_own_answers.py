"""A device that builds on what it released itself: the basis of its own noised covariance."""

import numpy as np
import pytest
from edge_kit import JOB_ID, Device, Round, job

from edgeveil.jobs import compile_job
from edgeveil.jobs.round_context import RoundContext
from edgeveil_edge.round_work import own_answers, released_in

COVARIANCE, CENTRE, QUADRATIC, FIRST = 1, 2, 3, 4
PCA = ({"name": "identity"}, {"name": "ldp_pca", "keep": 0.5})
PLAN = compile_job(job(features=PCA))
HEX = JOB_ID.hex()


@pytest.fixture
def device(tmp_path):
    return Device(tmp_path).knows(PLAN)


def test_every_later_answer_builds_on_the_covariance_that_was_released(device):
    sealed = Round(PLAN, COVARIANCE, device.keys())
    sent = np.frombuffer(sealed.tensors(device.answer(sealed))["covariance"][:40], np.float32)
    for index in (CENTRE, QUADRATIC, FIRST):
        device = device.restarted()
        own = own_answers(RoundContext.of(PLAN, index), released_in(device.ledger, HEX))
        np.testing.assert_array_equal(own["covariance"], sent)
        device.seals(PLAN, index)


def test_a_device_that_did_not_answer_then_declines_before_it_reads(device):
    answer = device.declines(PLAN, CENTRE)
    assert "'covariance'" in answer.why
    assert (device.load.reads, device.ledger.spent().epsilon) == (0, 0)

"""Values in half precision: what travels, what is refused, and that the cloud adds up more than
halves."""

import numpy as np
import pytest

from edgeveil.data.records import Records
from edgeveil.errors import ConfigError
from edgeveil.jobs import compile_job, parse_job
from edgeveil.parts.methods import METHODS
from edgeveil.privacy.sampler import SeededRandom

JOB = """
job: halves
data: {source: digits, classes: 10, input_shape: [64], nominal_records: 30}
model: {name: mlp}
train: {method: sgd, rounds: 2}
update: [%s]
proxy: {shuffle: whole}
aggregation: {name: fedavg, secure: %s}
privacy: {accept_unproven: true, epsilon: 8, delta: 1.0e-5}
"""


def plan(update, secure="false"):
    return compile_job(parse_job(JOB % (update, secure)))


CAST = "{name: cast}"


def answer(made):
    round = made.all_rounds[0]
    context, train = made.context, made.job.train
    device = METHODS[train.method].device(train, context)
    cloud = METHODS[train.method].cloud(train, context)
    package = cloud.package(cloud.initial_state(), round)
    rng = np.random.default_rng(1)
    records = Records(rng.random((30, 64), np.float32), rng.integers(0, 10, 30))
    return device.answer(round, package, records, SeededRandom(1), "cpu").segments["update"]


def test_an_upload_has_half_the_bytes_and_the_rounded_values():
    whole, half = plan(""), plan(CAST)
    sent, rounded = answer(whole), answer(half)
    assert rounded.dtype == np.float16
    assert np.array_equal(rounded, sent.astype(np.float16))
    assert np.count_nonzero(rounded) > 0
    bytes_up = [sum(s.byte_count for s in one.segments(one.all_rounds[0])) for one in (whole, half)]
    assert bytes_up == [4 * sent.size, 2 * sent.size]


def test_sums_under_masks_have_no_halves():
    with pytest.raises(ConfigError, match="travel as integers"):
        plan(CAST, "true")

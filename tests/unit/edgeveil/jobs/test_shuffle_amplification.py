"""The shuffle's credit: given where the clone bound holds, and never where a condition fails."""

import pytest

from edgeveil.jobs import Job, compile_job
from edgeveil.jobs.shuffle_amplification import shuffled
from edgeveil.privacy.amplification import shuffled_epsilon

TWO = {"name": "ldp_fl"}
PLAIN = {
    "job": "mixed",
    "data": {"source": "bench", "classes": 3, "input_shape": (4,), "nominal_records": 30},
    "model": {"name": "mlp", "hidden": ()},
    "train": {"method": "sgd", "rounds": 2},
    "update": (TWO,),
    "privacy": {"epsilon": 2.0},
    "round": {"min_batch": 1000},
    "encrypt": {"laplace_eval": {"laplace_eval_eps": 1.0}},
    "unsupervised": {"every_rounds": 1},
}


def credits_of(**changes):
    return {c.purpose: c for c in shuffled(compile_job(Job.model_validate({**PLAIN, **changes})))}


def test_pure_uploads_of_whole_devices_gain():
    found = credits_of()
    assert set(found) == {"train", "infer"}
    train, infer = found["train"], found["infer"]
    assert train.epsilon == pytest.approx(shuffled_epsilon(1.0, 1000, 2, 1e-5), rel=1e-6)
    assert (train.uploads, train.rounds, train.local_epsilon) == (1000, 2, pytest.approx(2))
    assert (train.segments, train.claimed_epsilon) == (2, pytest.approx(1))
    assert (infer.segments, infer.local_epsilon) == (1, pytest.approx(2))
    assert "2-fold as papers claim it, unproven: 1" in str(train)
    assert "fold" not in str(infer)


def test_a_device_s_segments_count_together():
    few = credits_of()["train"]
    many = credits_of(model={"name": "mlp", "hidden": (4, 4)})["train"]
    assert many.segments == 6
    assert many.epsilon == pytest.approx(few.epsilon, rel=1e-6)


OPEN = {"epsilon": 2.0, "accept_unproven": True}
NONE = {"every_rounds": 0}
ROWS = {"every_rounds": 1, "upload": "per_sample"}
NOISE = ({"name": "gradient_gaussian"},)
RAW = {"privacy_eval_type": "NOT_ENCRYPT"}


@pytest.mark.parametrize(
    "changes",
    [
        {"proxy": {"shuffle": "none"}},
        # a late update is weighed: it hides among the late ones alone
        {"round": {"min_batch": 1000, "mode": "buffered"}, "unsupervised": NONE},
        # what stays on a device follows from its own upload: the next one is told by it
        {"update": (TWO, {"name": "stc", "share": 0.5}), "unsupervised": NONE},
        {"round": {"min_batch": 5}},
        {"update": NOISE, "encrypt": RAW, "privacy": OPEN},
        {"update": ({**TWO, "composition": "parallel"},), "privacy": OPEN, "unsupervised": ROWS},
        {"update": (), "privacy": OPEN, "unsupervised": NONE},
    ],
)
def test_no_credit_where_a_condition_fails(changes):
    assert credits_of(**changes) == {}


def test_each_kind_is_judged_alone():
    assert set(credits_of(update=NOISE)) == {"infer"}
    assert set(credits_of(unsupervised=ROWS)) == {"train"}


def test_one_sum_under_masks_keeps_the_credit_and_sums_of_groups_earn_none():
    """The sum of a batch has no order; places in a stream, by which groups are dealt, have some."""
    asked = {"every_rounds": 1, "eval_type": "MEAN_SOFTMAX"}
    one = {"name": "fedavg", "secure": True}
    plain = credits_of()
    assert credits_of(unsupervised=asked, aggregation=one) == plain
    groups = {"name": "median", "secure": True, "groups": 4}
    assert credits_of(unsupervised=asked, aggregation=groups) == {}
    assert credits_of(aggregation=groups) == {}

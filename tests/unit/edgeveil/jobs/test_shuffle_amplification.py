"""The shuffle's credit: given where the clone bound holds, and never where a condition fails."""

import math

import pytest
import yaml
from scipy.optimize import brentq

from edgeveil.jobs import Job, compile_job
from edgeveil.jobs.load import parse_plan
from edgeveil.jobs.shuffle_amplification import shuffled
from edgeveil.privacy.accountant import gaussian_delta
from edgeveil.privacy.amplification import _clones, clone_delta, shuffled_epsilon

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


ASKS = {
    "job": "asked",
    "data": {"source": "people", "nominal_records": 50},
    "statistics": {"columns": [{"name": "age", "number": [0, 100]}]},
    "privacy": {"epsilon": 1.0, "delta": 1e-6, "noise": "local", "unit": "device"},
}


def asked(devices, **changes):
    return parse_plan(yaml.safe_dump({**ASKS, "round": {"min_batch": devices}, **changes}))


def delta_of(epsilon, mu, n, tenths):
    local = tenths / 10
    counts, chances, left_out = _clones(local, n, 1e-6)
    growth = (math.exp(epsilon) + 1) * (1 + math.exp(-local) / 2) * n
    shuffled_delta = clone_delta(epsilon, local, counts, chances) + left_out
    return shuffled_delta + growth * gaussian_delta(local, mu)


def test_gaussian_uploads_of_whole_devices_gain_in_large_fleets():
    found = {n: shuffled(asked(n)) for n in (1000, 10_000, 100_000)}
    assert found[1000] == ()
    for n in (10_000, 100_000):
        (credit,), (event,) = found[n], asked(n).events()
        assert credit.local_epsilon == pytest.approx(1, rel=1e-4)
        # Theorem 3.8 at the δ₀ that is best, of one device's data in another's place.
        found_delta = min(delta_of(credit.epsilon, 2 * event.mu, n, at) for at in range(20, 45))
        assert 1e-8 < found_delta <= 1e-6
        # Nothing can be told less well than by the exact sum of all uploads.
        mu = 2 * event.mu / math.sqrt(n)
        of_sum = brentq(lambda e, mu=mu: gaussian_delta(e, mu) - 1e-6, 1e-6, 9)
        assert of_sum < credit.epsilon
    assert shuffled(asked(10_000))[0].epsilon > 2 * shuffled(asked(100_000))[0].epsilon


def test_a_record_s_price_or_questions_beside_training_earn_no_credit():
    assert shuffled(asked(100_000, privacy={**ASKS["privacy"], "unit": "record"})) == ()
    train = {"statistics": {"epsilon": 1, **ASKS["statistics"]}, "unsupervised": NONE}
    assert credits_of(unsupervised=NONE) and credits_of(**train) == {}

"""A job's plan: rounds, public sizes and the whole price, from the job alone."""

import re
from collections import Counter
from pathlib import Path

import pytest

from edgeveil.errors import ProtocolError
from edgeveil.jobs import Job, compile_job
from edgeveil.jobs.plan import SOFTMAX
from edgeveil.protocol.messages import Group

ROUNDS = 6


def job(**changes):
    plain = {
        "job": "planned",
        "data": {"source": "s", "classes": 3, "input_shape": (5,), "nominal_records": 40},
        "features": ({"name": "identity"},),
        "train": {"method": "fm", "rounds": ROUNDS},
        "privacy": {"epsilon": 4.0, "delta": 1e-4},
        "encrypt": {"privacy_eval_type": "LAPLACE", "laplace_eval": {"laplace_eval_eps": 10.0}},
        "unsupervised": {"every_rounds": 2},
    }
    return Job.model_validate({**plain, **changes})


@pytest.mark.parametrize("index", [0, -1, ROUNDS + 3, 2**31])
def test_a_round_outside_the_plan_is_unknown(index):
    with pytest.raises(ProtocolError) as caught:
        compile_job(job()).round(index)
    assert caught.value.reason == "unknown_round"


def test_groups_state_public_sizes_and_the_softmax_comes_last():
    plan = compile_job(job())
    assert plan.groups(plan.round(1)) == (Group("centre", 64),)  # 5 × 4 bytes
    assert plan.groups(plan.round(2)) == (Group("quadratic", 128),)  # 21 × 4 bytes
    assert plan.groups(plan.round(3)) == (Group("head.weight", 128),)  # 18 × 4 bytes
    assert plan.groups(plan.round(4)) == (Group("head.weight", 128), Group(SOFTMAX, 64))
    assert plan.segments(plan.round(4))[-1].shape == (3,)


def test_the_whole_price_is_what_the_job_says():
    plan = compile_job(job())
    quote = plan.quote()
    assert 3.9 < quote.training.epsilon <= 4.0
    assert quote.training.delta <= 1e-4
    assert (quote.training.status, quote.training.unit) == ("proven", "record")
    assert quote.inference.epsilon == pytest.approx(30, rel=1e-9)
    assert quote.inference.unit == "device"
    by_purpose = Counter(event.purpose for event in plan.events())
    assert by_purpose == {"train": ROUNDS + 2, "infer": 3}


def test_the_price_by_plan_grows_from_nothing_and_an_early_end_has_spent_the_whole_training():
    plan = compile_job(job())
    planned = [plan.quote(until) for until in range(ROUNDS + 3)]
    training = [quote.training.epsilon for quote in planned]
    assert training[0] == 0 and training == sorted(set(training))
    assert [round(q.inference.epsilon) for q in planned] == [0, 0, 0, 0, 10, 10, 20, 20, 30]
    spent = [plan.spent(until) for until in range(ROUNDS + 3)]
    assert spent[0].training.epsilon == 0
    assert {quote.training for quote in spent[1:]} == {plan.quote().training}
    assert [q.inference for q in spent] == [q.inference for q in planned]
    assert planned[-1] == plan.spent() == plan.quote()
    pure = compile_job(job(train={"method": "fm", "rounds": ROUNDS, "noise": "laplace"}))
    assert pure.spent(2) == pure.quote(2) != pure.quote()


def test_an_inference_only_device_is_asked_for_inferences_alone():
    plan = compile_job(job())
    events = plan.events(trains=False)
    assert [event.purpose for event in events] == ["infer"] * 3
    assert plan.request("x", trains=False).events == events
    assert plan.request("x").events == plan.events()
    assert plan.request("x").delta == 1e-4


def test_a_device_that_may_answer_twice_pays_for_two_rounds_and_the_phases():
    privacy = {"epsilon": 4.0, "delta": 1e-4, "max_participations": 2}
    few = compile_job(job(privacy=privacy, selection={"devices": 9}))
    training = [event for event in few.events() if event.purpose == "train"]
    assert len(training) == 4
    assert 3.9 < few.quote().training.epsilon <= 4.0
    # The same ε for fewer answers buys less noise in each.
    assert few.quote(3).training.epsilon > compile_job(job()).quote(3).training.epsilon


def test_nothing_but_the_compiler_makes_a_plan():
    """What was never judged has no price. A rehearsal's has fewer steps of one that was."""
    makers = {"edgeveil/jobs/compile.py", "edgeveil/jobs/plan.py", "edgeveil/jobs/rehearsal.py"}
    for folder in ("edgeveil", "edge_client", "cloud_server", "proxy", "tools"):
        for path in Path(folder).rglob("*.py"):
            if re.search(r"(?<![\w.])Plan\(", path.read_text("utf-8")):
                assert path.as_posix() in makers

"""A job's canonical bytes, and its plan: rounds, public sizes and the whole price."""

import json
import tracemalloc
from collections import Counter

import pytest

from edgeveil.config.base import ImpossibleMixError
from edgeveil.errors import ProtocolError
from edgeveil.jobs import Job, compile_canonical, compile_job, parse_job
from edgeveil.jobs.plan import SOFTMAX
from edgeveil.protocol.messages import Group

SMALL = """\
job: small
data: {source: digits, classes: 10, input_shape: [64], nominal_records: 64}
features: [{name: identity}]
train: {method: fm, rounds: 12}
privacy: {epsilon: 2}
"""


def small(extra=""):
    return parse_job(SMALL + extra)


def test_canonical_is_sorted_json_without_the_local_run_and_without_later_keys():
    """Jobs from before keep their bytes, and earlier versions can read them."""
    raw = small("local_run: {devices: 7}\n").canonical()
    plain = json.loads(raw)
    assert raw == json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()
    assert raw == small("# a comment\nselection: {devices: all}\n").canonical()
    assert not {"local_run", "release"} & set(plain)
    assert "secure" not in plain["aggregation"]
    assert not {"noise", "honest_share"} & set(plain["privacy"])
    secure = small("aggregation: {name: fedavg, secure: true}\n")
    assert json.loads(secure.canonical())["aggregation"]["secure"] is True
    assert secure.digest() != small().digest()


RAW = small().canonical()
EPSILON, TWELVE = b'"epsilon":2.0', b'"rounds":12'


@pytest.mark.parametrize(
    "raw",
    [
        RAW[:-1],
        RAW + b" ",
        *(RAW.replace(EPSILON, b'"epsilon":' + one) for one in (b"2", b"NaN", b"-1.0", b'"2.0"')),
        *(RAW.replace(TWELVE, TWELVE + one) for one in (b".0", b',"surprise":1', b',"rounds":13')),
        RAW.replace(b'"shift":0.0', b'"shift":1e999'),
        RAW[:-1] + b',"local_run":{"devices":3}}',
        RAW + b" " * (1 << 16),
        b"[" * 60_000,
        b"9" * 400 + b"e999999",
        b"\xff\xfe{}",
        b"null",
        b"",
    ],
    ids=range(17),
)
def test_anything_but_canonical_bytes_is_a_bad_job_and_cheap_to_refuse(raw):
    assert raw != RAW
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError) as caught:
            Job.from_canonical(raw)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.reason == "bad_job"


def test_impossible_mixes_are_refused_on_the_wire_too():
    raw = small("selection: {devices: 9}\n").canonical()
    assert compile_canonical(raw).job == Job.from_canonical(raw)
    with pytest.raises(ProtocolError):
        compile_canonical(raw.replace(b'"devices":9', b'"devices":2'))
    with pytest.raises(ProtocolError):
        compile_canonical(raw.replace(b'"epsilon":2.0', b'"epsilon":0.0001'))


def test_a_job_made_in_python_is_refused_with_its_keys():
    made = Job.model_validate({**small().model_dump(), "privacy": {}})
    with pytest.raises(ImpossibleMixError) as caught:
        compile_job(made)
    (place,) = caught.value.places
    assert (place.file, place.key) == ("", "privacy.epsilon")
    assert str(caught.value).startswith("privacy.epsilon: is missing and has no default")


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
    only = plan.events(trains=False)
    assert [event.purpose for event in only] == ["infer"] * 3
    assert plan.request("x", trains=False).events == only


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


def test_a_device_that_may_answer_twice_pays_for_two_rounds_and_the_phases():
    privacy = {"epsilon": 4.0, "delta": 1e-4, "max_participations": 2}
    few = compile_job(job(privacy=privacy, selection={"devices": 9}))
    training = [event for event in few.events() if event.purpose == "train"]
    assert len(training) == 4
    assert 3.9 < few.quote().training.epsilon <= 4.0
    # The same ε for fewer answers buys less noise in each.
    assert few.quote(3).training.epsilon > compile_job(job()).quote(3).training.epsilon

"""A job's canonical bytes, digest and derived numbers."""

import json
import tracemalloc

import pytest

from edgeveil.config.base import ImpossibleMixError
from edgeveil.errors import ProtocolError
from edgeveil.jobs import Job, compile_canonical, compile_job, parse_job

SMALL = """\
job: small
data: {source: digits, classes: 10, input_shape: [64], nominal_records: 64}
features: [{name: identity}]
train: {method: fm, rounds: 12}
privacy: {epsilon: 2}
"""


def small(extra=""):
    return parse_job(SMALL + extra)


def test_canonical_is_sorted_json_without_the_local_run():
    raw = small("local_run: {devices: 7}\n").canonical()
    plain = json.loads(raw)
    assert "local_run" not in plain
    assert plain["train"]["rounds"] == 12
    assert raw == json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def test_keys_that_came_later_and_say_nothing_are_not_in_it():
    """So the bytes of jobs from before stay as they were, and earlier versions can read them."""
    plain = json.loads(small().canonical())
    assert "release" not in plain
    assert "secure" not in plain["aggregation"]
    assert not {"noise", "honest_share"} & set(plain["privacy"])
    said = json.loads(small("aggregation: {name: fedavg, secure: true}\n").canonical())
    assert said["aggregation"]["secure"] is True


def test_digest_follows_the_job_and_nothing_else():
    job = small()
    assert small("local_run: {devices: 9, seed: 1}\n").digest() == job.digest()
    assert small("# a comment\nselection: {devices: all}\n").digest() == job.digest()
    assert small("selection: {devices: 9}\n").digest() != job.digest()


RAW = small().canonical()
EPSILON, ROUNDS = b'"epsilon":2.0', b'"rounds":12'


@pytest.mark.parametrize(
    "raw",
    [
        RAW[:-1],
        RAW + b" ",
        *(RAW.replace(EPSILON, b'"epsilon":' + one) for one in (b"2", b"NaN", b"-1.0", b'"2.0"')),
        *(RAW.replace(ROUNDS, ROUNDS + one) for one in (b".0", b',"surprise":1', b',"rounds":13')),
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

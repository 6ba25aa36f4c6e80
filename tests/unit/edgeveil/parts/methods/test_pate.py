"""`pate`: votes on a public set, their bound and price, the labels and the student."""

import math
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from edgeveil.data.records import Records
from edgeveil.errors import ConfigError
from edgeveil.jobs import compile_job, load_job
from edgeveil.jobs.compile import compile_canonical
from edgeveil.parts.features import Identity, IdentityParameters
from edgeveil.parts.methods.pate import (
    FILE_BYTES,
    VOTE_BITS,
    VOTES,
    PateCloud,
    PateDevice,
    PateParameters,
    PublicSet,
    _facts,
    vote_event,
)
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import GaussianEvent
from edgeveil.privacy.sampler import SeededRandom
from tests.kits.method_context import context as made_context

CONTEXT = made_context(
    max_participations=1,
    input_shape=(2,),
    features=Identity(IdentityParameters(input_scale=4)),
    nominal_records=3,
    devices=3,
)
CORNERS = np.array([[4, 0], [0, 4], [-4, -4]], np.float32)  # one of each class


def parameters_for(rows, rounds=1):
    public = PublicSet(records=len(rows), **_facts(rows, len(rows)))
    return PateParameters(rounds=rounds, public=public)


def of(*labels):
    return Records(CORNERS, np.array(labels))


def test_three_teachers_by_hand():
    """Two know the corners and one has their labels turned: 2 votes of 3 for each true class."""
    p = parameters_for(CORNERS * 0.75)
    cloud, device = PateCloud(p, CONTEXT), PateDevice(p, CONTEXT)
    (round,) = cloud.plan()
    votes = sum(device.votes(round, one) for one in (of(0, 1, 2), of(0, 1, 2), of(1, 2, 0)))
    assert votes.tolist() == [[2, 1, 0], [0, 2, 1], [1, 0, 2]]
    state = cloud.absorb(cloud.initial_state(), round, {VOTES: votes / 3}, 3)
    assert state["labels"].tolist() == [0, 1, 2]
    head = cloud.model(state)
    assert head["weight"].shape == (2, 3)
    z = CORNERS / 4 - head["centre"]
    assert (z @ head["weight"]).argmax(axis=1).tolist() == [0, 1, 2]


def test_no_two_data_sets_have_votes_further_apart_than_the_price_says():
    rng = np.random.default_rng(0)
    p = parameters_for(rng.normal(size=(12, 2)).astype(np.float32))
    round, device = PateCloud(p, CONTEXT).plan()[0], PateDevice(p, CONTEXT)
    event = vote_event(p, CONTEXT)
    assert isinstance(event, GaussianEvent)
    assert event.sensitivity_steps >= math.sqrt(24) * 2**VOTE_BITS
    assert event.sensitivity == pytest.approx(math.sqrt(24), rel=1e-6)
    for count in (0, 1, 2, 5):
        for _ in range(10):
            x = rng.normal(size=(count + 1, 2)).astype(np.float32) * 9
            y = rng.integers(0, 3, count + 1)
            one, other = (
                device.votes(round, Records(x[:k], y[:k])) << VOTE_BITS for k in (count, count + 1)
            )
            assert int(((one - other) ** 2).sum()) <= event.sensitivity_steps**2


def test_a_job_of_several_rounds_costs_its_epsilon_and_labels_each_record_once():
    p = parameters_for(np.tile(CORNERS, (3, 1))[:7], rounds=3)
    context = replace(CONTEXT, epsilon=20.0, max_participations=3)
    assert p.per_round == 3
    cloud, device, random = PateCloud(p, context), PateDevice(p, context), SeededRandom(3)
    state = cloud.initial_state()
    for round in cloud.plan():
        package = cloud.package(state, round)
        sent = [device.answer(round, package, of(0, 1, 2), random) for _ in range(50)]
        mean = np.mean([one.segments[VOTES] for one in sent], axis=0)
        state = cloud.absorb(state, round, {VOTES: mean}, len(sent))
    assert state["labels"].tolist() == [0, 1, 2, 0, 1, 2, 0]
    tight = replace(CONTEXT, max_participations=3)
    spent = epsilon([vote_event(p, tight)] * 3, CONTEXT.delta).epsilon
    assert 0.999 * CONTEXT.epsilon < spent <= CONTEXT.epsilon


def test_a_sum_of_noised_votes_keeps_to_its_room():
    p, context = parameters_for(CORNERS), replace(CONTEXT, summed=40, honest=30)
    cloud, device, random = PateCloud(p, context), PateDevice(p, context), SeededRandom(0)
    (round,) = cloud.plan()
    (spec,) = cloud.segments(round)
    package = cloud.package(cloud.initial_state(), round)
    sent = [device.answer(round, package, of(0, 1, 2), random) for _ in range(40)]
    total = sum(one.segments[VOTES] for one in sent)
    assert np.abs(total).max() < 1 << spec.bits - 1
    assert total.dtype == np.int64


JOB = """\
job: votes
data: {{source: digits, classes: 10, input_shape: {shape}, nominal_records: 14}}
features: {features}
train: {{method: pate, rounds: {rounds}{public}}}
privacy: {{epsilon: 8, delta: 1.0e-5, noise: shared}}
aggregation: {{name: fedavg, secure: {secure}}}
selection: {{devices: 20}}
unsupervised: {{eval_type: NOT_EVAL}}
"""
PLAIN = {
    "shape": "[64]",
    "features": "[{name: identity}]",
    "rounds": 1,
    "public": ", public: {file: digits, records: 20}",
    "secure": "true",
}


def compiled(folder, **changes):
    file = folder / "job.yaml"
    file.write_text(JOB.format(**(PLAIN | changes)))
    return compile_job(load_job(file))


def test_the_public_set_travels_in_the_job(tmp_path):
    made = compiled(tmp_path)
    raw = made.job.canonical()
    assert b"digits.csv" not in raw and b'"file"' not in raw
    again = compile_canonical(raw)
    assert np.array_equal(again.job.train.public.values(), made.job.train.public.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"public": ""}, "devices vote on a public set"),
        ({"shape": "[8, 8]"}, r"public records have the shape \[64\]"),
        ({"features": "[{name: identity}, {name: ldp_fpca, keep: 0.5}]"}, "a PCA of devices"),
        ({"secure": "false"}, "shared noise protects only in sums"),
        ({"rounds": 21}, "21 rounds share 20 public records"),
        ({"public": ", public: {file: digits, records: 400}"}, "for 400 records"),
        ({"public": ", teacher: {hidden: [4]}"}, r"train\.teacher: is always null by now"),
    ],
)
def test_what_cannot_be_is_refused_with_a_way_out(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        compiled(tmp_path, **changes)


def test_a_file_is_judged_by_its_header_before_memory_is_taken(tmp_path):
    rows = FILE_BYTES // 4 + 1
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, 1)}}".ljust(117) + "\n"
    npy = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode()
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        archive.writestr("x.npy", npy)
    with pytest.raises(ConfigError, match="bytes of numbers"):
        compiled(tmp_path, public=", public: {file: huge.npz}")


NAN = _facts(np.array([[0.5, np.nan]], np.float32), 1)["rows"]


@pytest.mark.parametrize("rows", ["!!!!", "AAAA", NAN])
def test_sent_rows_are_judged_before_they_are_used(rows):
    with pytest.raises(ValueError, match=r"rows: |not finite"):
        PublicSet(records=1, input_form=(2,), rows=rows)

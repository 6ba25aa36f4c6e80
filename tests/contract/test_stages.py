"""Laws that every update stage of the table keeps, alone and in every order of two."""

import itertools
import json
import math

import numpy as np
import pytest

from edgeveil.data.records import Records
from edgeveil.errors import ConfigError
from edgeveil.jobs import compile_job, parse_job
from edgeveil.parts.models import build_network
from edgeveil.parts.models.mlp import NetworkParameters
from edgeveil.parts.round import TRAIN, PlannedRound
from edgeveil.parts.stage import Task
from edgeveil.parts.stages import STAGES
from edgeveil.privacy.sampler import SeededRandom
from edgeveil.protocol.tensors import pack_tensors, unpack_tensors
from tests.kits.method_context import context

NETWORK = build_network(NetworkParameters(hidden=(5,)), (2, 2), 3)
SIZE = sum(math.prod(weight.shape) for weight in NETWORK.weights)
SETTING = context(epsilon=6.0, input_shape=(2, 2), network=NETWORK)
ROUND = PlannedRound(1, TRAIN, 1)
OPTIONS = {"upload_top_k": {"share": 0.2}, "stc": {"share": 0.2}}


def built(name):
    entry = STAGES[name]
    return entry.build(entry.made(**OPTIONS.get(name, {})), SETTING)


ALL = {name: built(name) for name in STAGES}
NOISY = [name for name, stage in ALL.items() if stage.protects]


@pytest.fixture(params=list(STAGES))
def name(request):
    return request.param


def some(seed=0):
    rng = np.random.default_rng(seed)
    return {w.name: (0.1 * rng.normal(size=w.shape)).astype(np.float32) for w in NETWORK.weights}


def task(seed=0, count=3, memory=None):
    kept = {} if memory is None else memory
    records = Records(np.ones((count, 2, 2), np.float32), np.zeros(count, np.int64))
    return Task(ROUND, NETWORK, NETWORK.initial(), records, kept, SeededRandom(seed), "cpu")


def same(one, other):
    return all(np.array_equal(one[key], other[key]) for key in one.keys() | other.keys())


def flat(update):
    return np.concatenate([array.ravel() for array in update.values()])


def test_neither_the_update_nor_the_weights_are_written_to(name):
    given, asked, stage = some(), task(), built(name)
    before = [{key: array.copy() for key, array in d.items()} for d in (given, asked.weights)]
    stage.apply(asked, given)
    stage.start(asked)
    assert same(given, before[0]) and same(asked.weights, before[1])


def test_it_follows_from_the_update_the_memory_and_the_random_bytes_alone(name):
    ends = []
    for written in (False, True):
        memory, found = {}, []
        for seed in range(3):
            memory = unpack_tensors(pack_tensors(memory)) if written and memory else memory
            found.append(built(name).start(task(seed, memory=memory)) or {})
            found.append(built(name).apply(task(seed, memory=memory), some(seed)))
        ends.append([*found, memory])
    assert all(map(same, *ends))


@pytest.mark.parametrize("noisy", NOISY)
def test_noise_that_protects_is_drawn_anew_and_without_records_too(noisy):
    for count in (3, 0):
        drawn = [flat(built(noisy).apply(task(seed, count), some())) for seed in range(3)]
        assert not np.array_equal(drawn[0], drawn[1])
        assert not np.array_equal(drawn[1], drawn[2])


def test_what_chooses_sends_no_more_than_its_share(name):
    stage = built(name)
    sent = np.count_nonzero(flat(stage.apply(task(), some())))
    assert (sent <= math.ceil(0.2 * SIZE)) == stage.chooses


def test_only_what_leads_changes_where_training_starts(name):
    stage, memory = built(name), {}
    assert stage.start(task(memory=memory)) is None
    stage.apply(task(memory=memory), some())
    started = stage.start(task(seed=1, memory=memory))
    forms = {weight.name: weight.shape for weight in NETWORK.weights}
    assert (started and {key: array.shape for key, array in started.items()}) == (
        forms if stage.leads else None
    )


JOB = """
job: staged
data: {source: digits, classes: 10, input_shape: [64], nominal_records: 30}
model: {name: mlp, hidden: []}
train: {method: %s, rounds: 2}
update: %s
privacy: %s
"""


def job(names, method="sgd", **privacy):
    update = [{"name": name, **OPTIONS.get(name, {})} for name in names]
    given = (method, json.dumps(update), json.dumps({"epsilon": 6.0, **privacy}))
    return compile_job(parse_job(JOB % given)).job


def reason(names, *, unproven):
    """What is said against stages in this order; empty where nothing is."""
    first, second = (ALL[name] for name in names)
    if names[0] == names[1]:
        return "occurs twice"
    if first.protects and second.protects:
        return "would each spend all of privacy.epsilon"
    if second.leads:
        return "put it first"
    if first.wire != "float32":
        return "put it last"
    if unproven:
        return ""
    if first.chooses and second.protects:
        return "and its choice has none"
    return "" if first.protects or second.protects else "no guarantee is proven"


@pytest.mark.parametrize("names", list(itertools.product(STAGES, repeat=2)), ids="-".join)
def test_two_stages_work_together_or_are_refused_with_the_reason(names):
    for unproven in (False, True):
        if expected := reason(names, unproven=unproven):
            with pytest.raises(ConfigError, match=expected):
                job(names, accept_unproven=unproven)
        else:
            made = job(names, accept_unproven=unproven)
            assert [one.name for one in made.update] == list(names)


@pytest.mark.parametrize("noisy", NOISY)
def test_noise_is_not_added_to_a_method_that_has_its_own(noisy):
    with pytest.raises(ConfigError, match="adds noise of its own"):
        job([noisy], method="dp_sgd")

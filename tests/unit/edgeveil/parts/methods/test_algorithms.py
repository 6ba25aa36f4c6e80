"""Algorithms for unlike devices, beside plain loops of their papers on softmax regression."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from edgeveil.config.base import ImpossibleMixError
from edgeveil.config.policy import Policy
from edgeveil.data.records import Records
from edgeveil.jobs import Job, compile_job
from edgeveil.parts.method_context import staying
from edgeveil.parts.methods import METHODS
from edgeveil.parts.models import build_network
from edgeveil.parts.models.layers import Weight
from edgeveil.parts.models.mlp import NetworkParameters
from edgeveil.parts.round import KEPT, TRAIN, PlannedRound
from edgeveil.parts.server_optimizers import ServerOptimizerParameters
from edgeveil.parts.update import EXTRA
from edgeveil.privacy.sampler import SeededRandom
from edgeveil_edge.consent import refusals
from tests.kits.softmax_regression import CONTEXT, NETWORK

CHANCE = np.random.default_rng(5)
SIZES = (3, 9, 6)
DEVICES = [
    Records(CHANCE.normal(k, 1, (n, 2)).astype(np.float32), CHANCE.integers(0, 2, n))
    for k, n in enumerate(SIZES)
]
CONTEXT = replace(CONTEXT, devices=3)
NOMINAL = CONTEXT.nominal_records
WHOLE = {"batch_size": 16, "learning_rate": 0.3}  # one batch a pass: nothing is left to chance


class Fleet:
    """Devices and a cloud of one job, with each device's kept state."""

    def __init__(self, method, context=CONTEXT, devices=DEVICES, **options):
        part, rounds = METHODS[method], options.pop("rounds", 3)
        block = part.made(rounds=rounds, **options)
        self.device, self.cloud = part.device(block, context), part.cloud(block, context)
        self.state, self.records = self.cloud.initial_state(), devices
        self.kept, self.answers = [{} for _ in devices], []
        for number in range(1, rounds + 1):
            self.round(PlannedRound(number, TRAIN, number))

    def round(self, round):
        package = self.cloud.package(self.state, round)
        self.answers = [
            self.device.answer(round, {**package, **kept}, one, SeededRandom(at), "cpu")
            for at, (one, kept) in enumerate(zip(self.records, self.kept, strict=True))
        ]
        self.kept = [{KEPT + n: a for n, a in one.kept.items()} for one in self.answers]
        mean = {
            name: np.mean([one.segments[name].astype(np.float64) for one in self.answers], axis=0)
            for name in self.answers[0].segments
        }
        self.state = self.cloud.absorb(self.state, round, mean, len(self.records))

    @property
    def weights(self):
        return vector(self.state)


def vector(state):
    return np.concatenate([np.asarray(state[w.name], float).ravel() for w in NETWORK.weights])


def gradient(records, values):
    leaves, at = {}, 0
    for w in NETWORK.weights:
        size = int(np.prod(w.shape))
        part = torch.tensor(values[at : at + size].reshape(w.shape), dtype=torch.float32)
        leaves[w.name], at = part.requires_grad_(), at + size
    loss = NETWORK.loss(leaves, torch.tensor(records.x), torch.tensor(records.y))
    found = torch.autograd.grad(loss, list(leaves.values()))
    return np.concatenate([one.numpy().ravel() for one in found]).astype(float)


START = vector(NETWORK.initial())


def local_steps(records, start, steps, rate, momentum=0.0, shift=0.0):
    y, velocity = start.copy(), 0.0
    for _ in range(steps):
        velocity = momentum * velocity + gradient(records, y) + shift
        y = y - rate * velocity
    return y


@pytest.mark.parametrize("summed", [0, 3])
def test_scaffold_is_algorithm_1_with_option_ii(summed):
    fleet = Fleet("scaffold", replace(CONTEXT, summed=summed), local_epochs=4, **WHOLE)
    x, c, own = START, np.zeros_like(START), [np.zeros_like(START) for _ in DEVICES]
    for _ in range(3):
        after = [
            local_steps(one, x, 4, 0.3, shift=c - mine)
            for one, mine in zip(DEVICES, own, strict=True)
        ]
        new = [mine - c + (x - y) / (4 * 0.3) for mine, y in zip(own, after, strict=True)]
        c = c + np.mean(np.subtract(new, own), axis=0)
        x, own = np.mean(after, axis=0), new
    np.testing.assert_allclose(fleet.weights, x, atol=1e-5)
    np.testing.assert_allclose(fleet.state["control"], c, atol=1e-5)


def test_scaffolds_upload_tells_the_number_of_steps_so_owners_are_asked():
    options = {"batch_size": 1, "learning_rate": 0.05, "local_epochs": 2, "rounds": 1}
    for one, count in zip(Fleet("scaffold", **options).answers, SIZES, strict=True):
        moved, control = vector(one.segments), one.segments[EXTRA]
        steps = np.linalg.norm(moved) / (0.05 * np.linalg.norm(control))
        assert round(steps) == 2 * count
    assert METHODS["scaffold"].counts


def test_a_part_of_the_fleet_moves_scaffolds_control_by_its_share():
    whole, part = (
        Fleet("scaffold", rounds=1),
        Fleet("scaffold", replace(CONTEXT, fleet=12), rounds=1),
    )
    np.testing.assert_allclose(part.state["control"], whole.state["control"] / 4, atol=1e-7)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_averages_per_step_by_records(momentum):
    options = {"batch_size": 1, "learning_rate": 0.05, "momentum": momentum, "rounds": 1}
    fleet = Fleet("fednova", replace(CONTEXT, weighted=True), local_epochs=2, **options)
    plain = Fleet("sgd", local_epochs=2, **options)
    changes = [vector(one.segments) for one in plain.answers]
    # ‖a‖₁ by its definition: the weights with which each gradient enters the change.
    a = [sum((1 - momentum**k) / (1 - momentum) for k in range(1, 2 * n + 1)) for n in SIZES]
    p = np.array(SIZES) / sum(SIZES)
    effective = np.dot(p, a)
    wanted = START + effective * sum(p[i] * changes[i] / a[i] for i in range(3))
    np.testing.assert_allclose(fleet.weights, wanted, atol=1e-5)
    assert not np.allclose(fleet.weights, plain.weights, atol=1e-3)


def test_weights_by_records_leave_out_who_has_none():
    nobody = Records(np.zeros((0, 2), np.float32), np.zeros(0, np.int64))
    context = replace(CONTEXT, weighted=True)
    fleet = Fleet("sgd", context, [*DEVICES, nobody], rounds=1, **WHOLE)
    plain = Fleet("sgd", rounds=1, **WHOLE)
    changes = [vector(one.segments) for one in plain.answers]
    wanted = START + np.average(changes, axis=0, weights=SIZES)
    np.testing.assert_allclose(fleet.weights, wanted, atol=1e-6)
    assert fleet.answers[-1].segments[EXTRA] == 0
    np.testing.assert_array_equal(Fleet("sgd", context, [nobody] * 2, rounds=1).weights, START)


def test_fedreps_head_stays_and_goes_on_from_where_it_was():
    fleet = Fleet("fedrep", replace(CONTEXT, local=("output.bias",)), rounds=2, **WHOLE)
    assert [set(one.segments) for one in fleet.answers] == [{"output.weight"}] * 3
    np.testing.assert_array_equal(fleet.state["output.bias"], NETWORK.initial()["output.bias"])
    heads = [one[KEPT + "personal/output.bias"] for one in fleet.kept]
    once = Fleet("fedrep", replace(CONTEXT, local=("output.bias",)), rounds=1, **WHOLE)
    firsts = [one[KEPT + "personal/output.bias"] for one in once.kept]
    for one, first, records in zip(heads, firsts, DEVICES, strict=True):
        # Five steps of the head alone under the body of round 1, then one of the body alone.
        values = np.concatenate([once.state["output.weight"].ravel(), first])
        for _ in range(5):
            values[4:] -= 0.3 * gradient(records, values)[4:]
        np.testing.assert_allclose(one, values[4:], atol=1e-5)
    assert not np.allclose(heads[0], heads[1])


def test_dittos_shared_model_is_fedavgs_and_its_own_one_is_held_near_it():
    shared = Fleet("sgd", rounds=2, local_epochs=3, **WHOLE)
    loose, tight = (Fleet("ditto", rounds=2, local_epochs=3, mu=mu, **WHOLE) for mu in (1e-6, 2.0))
    before = Fleet("sgd", rounds=1, local_epochs=3, **WHOLE).weights  # broadcast in round 2
    for fleet in (loose, tight):
        np.testing.assert_allclose(fleet.weights, shared.weights, atol=1e-6)

    def away(fleet):
        own = [vector({n.rpartition("/")[2]: a for n, a in one.items()}) for one in fleet.kept]
        return np.linalg.norm(np.subtract(own, before), axis=1)

    assert (away(tight) < 0.7 * away(loose)).all()
    alone = local_steps(DEVICES[0], START, 6, 0.3)
    mine = {n.rpartition("/")[2]: a for n, a in loose.kept[0].items()}
    np.testing.assert_allclose(vector(mine), alone, atol=1e-4)


def stepped(name, delta, m, v, *, rate=0.1, b1=0.9, b2=0.99, tau=0.001):
    """One coordinate, by the papers' own lines."""
    if name == "fedavgm":
        m = b1 * m + delta
        return rate * m, m, v
    m = b1 * m + (1 - b1) * delta
    v = {
        "fedadagrad": v + delta**2,
        "fedadam": b2 * v + (1 - b2) * delta**2,
        "fedyogi": v - (1 - b2) * delta**2 * np.sign(v - delta**2),
    }[name]
    return rate * m / (np.sqrt(v) + tau), m, v


@pytest.mark.parametrize("summed", [0, 3])
@pytest.mark.parametrize("name", ["fedavgm", "fedadagrad", "fedadam", "fedyogi"])
def test_the_clouds_optimisers_step_as_their_papers(name, summed):
    server = ServerOptimizerParameters(name=name, learning_rate=0.1)
    context = replace(CONTEXT, server=server, summed=summed)
    x, m, v = START.copy(), np.zeros_like(START), np.full_like(START, 1e-6)
    for _ in range(3):
        delta = np.mean([local_steps(one, x, 1, 0.3) - x for one in DEVICES], axis=0)
        moved = [stepped(name, *one) for one in zip(delta, m, v, strict=True)]
        step, m, v = map(np.array, zip(*moved, strict=True))
        x = x + step
    # 2^-20 of a grid step is much where a small v divides it.
    np.testing.assert_allclose(
        Fleet("sgd", context, **WHOLE).weights, x, atol=1e-5 if not summed else 1e-3
    )


@pytest.mark.parametrize("method", ["sgd", "scaffold", "fedrep", "ditto"])
def test_training_that_diverges_counts_as_no_records_and_loses_no_state(method):
    context = replace(CONTEXT, local=("output.bias",) * (method == "fedrep"))
    fleet = Fleet(method, context, rounds=1, local_epochs=5, **WHOLE)
    kept, wild = fleet.kept[0], Records(np.full((4, 2), 3e38, np.float32), np.arange(4) % 2)
    package = {**fleet.cloud.package(fleet.state, PlannedRound(2, TRAIN, 2)), **kept}
    found = fleet.device.answer(PlannedRound(2, TRAIN, 2), package, wild, SeededRandom(0), "cpu")
    assert "not finite" in found.without
    assert not any(np.any(array) for array in found.segments.values())
    assert set(found.kept) == {name.removeprefix(KEPT) for name in kept}
    for name, array in found.kept.items():
        np.testing.assert_array_equal(array, kept[KEPT + name])


JOB = {
    "job": "a",
    "data": {"source": "digits", "classes": 10, "input_shape": [64], "nominal_records": 64},
    "model": {"name": "mlp"},
    "train": {"method": "sgd"},
    "privacy": {"accept_unproven": True},
    "round": {"min_batch": 3},
}
NOISE = {"update": [{"name": "gradient_gaussian"}], "privacy": {"epsilon": 8}}
RECORDS = {"name": "fedavg", "weights": "records"}
ADAPTED = {
    "name": "mlp",
    "hidden": [32],
    "state_dict": {"sha256": "0" * 64},
    "adapters": {"rank": 2},
}
OPTIMISER = {"name": "fedavg", "server_optimizer": {"name": "fedadam"}}


def test_a_moving_mean_of_the_weights_is_what_is_tested_and_released():
    """Devices go on from the weights themselves, so training is the same with and without it."""
    plain = ServerOptimizerParameters(name="fedavgm")
    given = ServerOptimizerParameters(name="fedavgm", average=0.75)
    mean = None
    for rounds in (1, 2, 3):
        one, other = (
            Fleet("sgd", replace(CONTEXT, server=server), rounds=rounds, **WHOLE)
            for server in (plain, given)
        )
        last = one.cloud.model(one.state)
        mean = last if mean is None else {n: 0.75 * mean[n] + 0.25 * a for n, a in last.items()}
        found = other.cloud.model(other.state)
        sent = other.cloud.package(other.state, PlannedRound(rounds + 1, TRAIN, rounds + 1))
        for name, array in last.items():
            np.testing.assert_array_equal(sent[name], array)
            np.testing.assert_allclose(found[name], mean[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"train": {"method": "scaffold"}} | NOISE, "update"),
        ({"aggregation": RECORDS} | NOISE, "update"),
        (
            {"train": {"method": "dp_sgd"}, "aggregation": RECORDS, "privacy": {"epsilon": 8}},
            "aggregation.weights",
        ),
        ({"aggregation": RECORDS | {"name": "median"}}, "aggregation.weights"),
        ({"train": {"method": "scaffold"}, "round": {"mode": "buffered"}}, "round.mode"),
        ({"train": {"method": "scaffold", "optimizer": {"name": "adam"}}}, "train.optimizer"),
        ({"train": {"method": "scaffold"}, "selection": {"devices": 5}}, "selection.min_devices"),
        ({"train": {"method": "fedrep", "local": ["none*"]}}, "train.local"),
        ({"train": {"method": "fedrep", "local": ["*"]}}, "train.local"),
        ({"train": {"method": "ditto"}, "model": ADAPTED}, "model.adapters"),
        (
            {"train": {"method": "fedrep", "local": ["hidden*"]}, "model": ADAPTED},
            "model.adapters",
        ),
        (
            {"train": {"method": "ditto"}, "federated_evaluation": {"epsilon": 1}} | NOISE,
            "federated_evaluation",
        ),
        (
            {"train": {"method": "fm"}, "features": [{"name": "identity"}], "model": None}
            | {"aggregation": OPTIMISER, "privacy": {"epsilon": 8}},
            "aggregation.server_optimizer",
        ),
    ],
)
def test_what_does_not_fit_is_found_before_anything_is_spent(changes, key):
    with pytest.raises(ImpossibleMixError) as found:
        compile_job(Job.model_validate_json(json.dumps(JOB | changes)))
    assert key in {mix.paths[0] for mix in found.value.mixes}


@pytest.mark.parametrize(
    "changes",
    [{"aggregation": RECORDS}, *({"train": {"method": one}} for one in ("fednova", "scaffold"))],
)
def test_an_owner_allows_that_uploads_tell_the_number_of_records(changes):
    plan = compile_job(Job.model_validate_json(json.dumps(JOB | changes)))
    policy = Policy(allowed_methods=("sgd", "fednova", "scaffold"))
    asked = refusals(policy, plan, trains=True)
    assert [one.where for one in asked] == ["policy.allow_record_counts"]
    assert not list(refusals(policy, plan, trains=False))
    allowed = policy.model_copy(update={"allow_record_counts": True})
    assert not list(refusals(allowed, plan, trains=True))


def test_scaffold_beats_fedavg_where_devices_hold_few_classes():
    x, y = load_digits(return_X_y=True)
    held = np.arange(len(y)) % 5 == 0
    order = np.flatnonzero(~held)[np.argsort(y[~held], kind="stable")]
    pieces = np.array_split(order, 20)  # two pieces a device, so two classes or three
    mine = [np.concatenate([pieces[k], pieces[(k * 7 + 3) % 20]]) for k in range(0, 20, 2)]
    devices = [Records(x[one].astype(np.float32), y[one]) for one in mine]
    network = build_network(NetworkParameters(hidden=(32,), input_scale=16), (64,), 10)
    context = replace(CONTEXT, network=network, classes=10, input_shape=(64,), nominal_records=143)
    options = {"rounds": 6, "local_epochs": 5, "batch_size": 16, "learning_rate": 0.05}
    right = {}
    for method in ("sgd", "scaffold"):
        state = Fleet(method, context, devices, **options).state
        weights = {w.name: torch.tensor(state[w.name]) for w in network.weights}
        found = network.logits(weights, torch.tensor(x[held], dtype=torch.float32)).argmax(1)
        right[method] = float((found.numpy() == y[held]).mean())
    assert right["scaffold"] > right["sgd"] + 0.05


def test_fedbn_keeps_batch_normalisations_under_any_name():
    names = ("conv.weight", "bn.weight", "bn.mean", "layernorm.bias", "output.weight")
    weights = tuple(Weight(name, (2,), statistic=name == "bn.mean") for name in names)
    network = replace(NETWORK)
    network.__dict__["weights"] = weights
    kept = staying(METHODS["fedbn"].made(), network)
    assert kept == ("bn.weight", "bn.mean", "layernorm.bias")
    assert staying(METHODS["fedrep"].made(), network) == ("output.weight",)
    assert staying(METHODS["sgd"].made(), network) == ()

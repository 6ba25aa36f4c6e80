"""Models of text, sound and pictures as people have them: trained, released, and asked."""

import asyncio
import json

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from edgeveil.config.edge import Inference
from edgeveil.data.check import check_records
from edgeveil.data.records import Records
from edgeveil.errors import ConfigError
from edgeveil.jobs import Job, compile_job, load_plan
from edgeveil.jobs.artifacts import read_weights
from edgeveil.parts.models import python_model
from edgeveil.parts.models.heads import bake
from edgeveil.parts.models.layers import value_count
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.sampler import SeededRandom
from edgeveil_edge.inference import InferenceService
from edgeveil_edge.predict import predict
from edgeveil_edge.releases import ReleaseStore
from edgeveil_tools.local.data import form_of

pytestmark = pytest.mark.usefixtures("own_process_here")
CLASSES, COUNT = 3, 160


def texts(chance, y):
    """Token numbers of 12 words, padded with 0; three of them speak of the class."""
    x = np.zeros((len(y), 12), np.float32)
    for row, label in zip(x, y, strict=True):
        row[: chance.integers(6, 12)] = 2 + chance.integers(0, 30)
        row[chance.choice(6, 3, replace=False)] = 2 + 10 * label + chance.integers(0, 10, 3)
    x[0] = 0  # a text without words
    return x


def sounds(chance, y):
    """Log-mel spectra of 24 bands and 16 frames, with energy in the bands of the class."""
    x = 40 * np.abs(chance.normal(size=(len(y), 24, 16)))
    for one, label in zip(x, y, strict=True):
        one[8 * label + 2 : 8 * label + 6] += 120
    return np.clip(x, 0, 255).astype(np.float32)


def pictures(chance, y):
    x = 80 * chance.random((len(y), 3, 16, 16))
    for one, label in zip(x, y, strict=True):
        one[label] += 150 * np.outer(np.hanning(16), np.hanning(16))
    return x.astype(np.float32)


def waves(chance, y):
    """24 readings of two columns; the class is the number of waves in the first."""
    x = chance.normal(0, 0.3, (len(y), 24, 2))
    x[:, :, 0] += np.sin(2 * np.pi * np.outer(y + 1, np.arange(24) / 24))
    return x.astype(np.float32)


DP_SGD = {"method": "dp_sgd", "local_steps": 8, "sampling_rate": 0.2, "learning_rate": 4}
SGD = {"method": "sgd", "momentum": 0.9, "batch_size": 16, "local_epochs": 2}
JOBS = {
    "text": (texts, {"name": "gru", "tokens": 32, "width": 16}, DP_SGD, 3),
    "sound": (sounds, {"name": "ds_cnn", "input_scale": 255}, {**SGD, "learning_rate": 0.1}, 3),
    "pictures": (
        pictures,
        {"name": "mobilenet_v3_small", "channel_multiplier": 0.25, "input_scale": 255},
        {**SGD, "learning_rate": 0.02},
        5,
    ),
    "residual": (
        pictures,
        {"name": "resnet18", "channel_multiplier": 0.125, "input_scale": 255},
        {**SGD, "learning_rate": 0.02},
        3,
    ),
    "windows": (waves, {"name": "tcn", "depth": 2, "width": 8}, {**SGD, "learning_rate": 0.1}, 5),
    "attention": (
        texts,
        {"name": "transformer", "tokens": 32, "width": 16},
        {**SGD, "learning_rate": 0.05},
        5,
    ),
}


def job_file(folder, shape, model, train, **changes):
    data = {"source": "mine", "classes": CLASSES, "input_shape": shape, "nominal_records": COUNT}
    privacy = {"epsilon": 8, "delta": 1e-5, "accept_unproven": True}
    plain = {"job": "trained", "data": data, "model": model, "train": train, "privacy": privacy}
    plain["unsupervised"] = {"eval_type": "NOT_EVAL"}
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({**plain, **changes}))
    return path


def trained(plan, records):
    state, kept = plan.cloud.initial_state(), {}
    random = SeededRandom(1)
    for round in plan.all_rounds:
        package = plan.cloud.package(state, round) | kept
        answer = plan.device.answer(round, package, records, random, "cpu")
        state = plan.cloud.absorb(state, round, answer.segments, 1)
    return plan.cloud.model(state)


async def served(folder, releases, records):
    service = InferenceService(Inference(socket=folder / "predict.sock"), releases)
    await service.start()
    reader, writer = await asyncio.open_unix_connection(folder / "predict.sock")
    content = json.dumps({"records": records.tolist()}).encode()
    head = "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Connection: close\r\nContent-Length: {len(content)}\r\n\r\n".encode())
    writer.write(content)
    answer = (await reader.read()).partition(b"\r\n\r\n")[2]
    writer.close()
    await service.stop()
    return json.loads(answer)["predictions"]


@pytest.mark.parametrize("name", JOBS)
def test_it_is_trained_released_and_asked(name, tmp_path):
    made, model, train, rounds = JOBS[name]
    y = np.arange(2 * COUNT) % CLASSES
    x = made(np.random.default_rng(0), y)
    shape = list(x.shape[1:])
    plan = load_plan(job_file(tmp_path, shape, model, {**train, "rounds": rounds}))
    weights = trained(plan, Records(x[:COUNT], y[:COUNT]))
    releases = ReleaseStore(tmp_path / "releases")
    releases.install("trained", bake(plan.graph(), weights), {})
    path = releases.current().path
    found = predict(path, x[COUNT:]).plain()
    right = [one["label"] == label for one, label in zip(found, y[COUNT:], strict=True)]
    assert np.mean(right) > 0.5
    assert asyncio.run(served(tmp_path, releases, x[COUNT : COUNT + 8])) == found[:8]


def test_a_gru_on_text_costs_what_the_job_says(tmp_path):
    _, model, train, _ = JOBS["text"]
    plan = load_plan(job_file(tmp_path, [12], model, {**train, "rounds": 3}))
    events = [event for round in plan.all_rounds for event in plan.device.price(round)]
    size = value_count(plan.context.network.weights)
    assert [(one.steps, one.event.coordinates) for one in events] == [(8, size)] * 3
    # Less noise would cost more: σ is the least for the whole training.
    assert 7.9 < epsilon(events, 1e-5).epsilon <= 8


def test_a_vocabulary_smaller_than_the_tables_or_the_records_is_told(tmp_path):
    tokens = {"name": "text", "tokens": {"buckets": 33, "length": 12}}
    label = {"column": "kind", "classes": ["a", "b", "c"]}
    schema = {"origin": "public", "label": label, "columns": [tokens]}
    data = {"source": "mine", "nominal_records": COUNT, "schema": schema}
    _, model, train, _ = JOBS["text"]
    with pytest.raises(ConfigError) as error:
        load_plan(job_file(tmp_path, [12], model, train, data=data))
    assert "model.tokens" in str(error.value)
    plan = load_plan(job_file(tmp_path, [12], {**model, "tokens": 33}, train, data=data))
    assert plan.job.data.input_shape == (12,)
    plan = load_plan(job_file(tmp_path, [12], model, train))
    x = np.zeros((4, 12), np.float32)
    x[:3, 0] = [31, 32, -1]
    records = Records(x, np.zeros(4, np.int64))
    problems = check_records(records, Records(x[:0], records.y[:0]), **form_of(plan.job)).problems
    assert [one.split()[0] for one in problems] == ["2"]


class Batched(nn.Sequential):
    """Batch normalisation, and dropout whose share shows in the output."""

    def __init__(self):
        tail = [nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(4 * 25, CLASSES)]
        super().__init__(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), *tail)


BATCHED = {"name": "python", "function": f"{__name__}:Batched"}
STILL = ["module.1.running_mean", "module.1.running_var"]
ONE_STEP = {"method": "sgd", "rounds": 1, "batch_size": COUNT, "learning_rate": 0.1}


def batched_plan(tmp_path, train=ONE_STEP, **changes):
    python_model.loaded.cache_clear()
    return load_plan(job_file(tmp_path, [1, 5, 5], BATCHED, train, **changes))


def batch():
    chance = np.random.default_rng(0)
    x = chance.normal(2, 3, (COUNT, 1, 5, 5)).astype(np.float32)
    return Records(x, np.arange(COUNT) % CLASSES)


def test_statistics_of_a_batch_travel_with_the_weights_and_are_those_of_torch(tmp_path):
    plan, records = batched_plan(tmp_path), batch()
    network = plan.context.network
    assert network.statistics == set(STILL)
    assert network.batch_norms == ("module.1.weight", "module.1.bias", *STILL)
    assert Job.from_canonical(plan.job.canonical()).model.statistics == plan.job.model.statistics
    first, weights = network.initial(), trained(plan, records)
    norm = nn.BatchNorm2d(4)
    with torch.no_grad():
        conv = {name: torch.tensor(first[f"module.0.{name}"]) for name in ("weight", "bias")}
        norm(nn.functional.conv2d(torch.tensor(records.x), **conv, padding=1))
    for name in STILL:
        wanted = getattr(norm, name.rpartition(".")[2])
        np.testing.assert_allclose(weights[name], wanted, rtol=1e-4, atol=1e-5)
    moved = {name for name in weights if np.any(weights[name] != first[name])}
    assert moved | {"module.0.bias"} == set(weights)  # a shift before the mean is taken off
    # A released model uses what it holds: a record's answer follows from that record alone.
    onnx = bake(plan.graph(), weights)
    (tmp_path / "model.onnx").write_bytes(onnx)
    all_of_them, one = (
        predict(tmp_path / "model.onnx", records.x[:k]).plain()[0]["probabilities"] for k in (8, 1)
    )
    np.testing.assert_allclose(all_of_them, one, atol=1e-6)


@pytest.mark.parametrize(
    ("train", "changes"),
    [
        ({"method": "fednova"}, {}),
        ({}, {"aggregation": {"name": "fedavg", "server_optimizer": {"name": "fedadam"}}}),
        ({}, {"aggregation": {"name": "fedavg", "weights": "records"}}),
    ],
)
def test_statistics_are_averaged_however_the_other_weights_move(tmp_path, train, changes):
    """One device of half the nominal records: the mean of its statistics is its own."""
    half = Records(batch().x[: COUNT // 2], batch().y[: COUNT // 2])
    wanted = trained(batched_plan(tmp_path), half)
    found = trained(batched_plan(tmp_path, {**ONE_STEP, **train}, **changes), half)
    for name in STILL:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-4, atol=1e-5)


def test_fedbn_keeps_batch_normalisations_of_any_name_on_the_device(tmp_path):
    plan = batched_plan(tmp_path, {**ONE_STEP, "method": "fedbn"})
    names = {spec.name for spec in plan.cloud.segments(plan.all_rounds[0])}
    assert names == {one.name for one in plan.context.network.weights} - {
        *STILL,
        "module.1.weight",
        "module.1.bias",
    }


def test_dropout_drops_where_chance_is_given_and_nowhere_else(tmp_path):
    network, records = batched_plan(tmp_path).context.network, batch()
    x, y = torch.tensor(records.x), torch.tensor(records.y)

    def loss(seed=None):
        weights = {name: torch.tensor(one) for name, one in network.initial().items()}
        return float(network.loss(weights, x, y, None if seed is None else SeededRandom(seed)))

    before = torch.random.get_rng_state()
    assert loss(1) == loss(1) != loss(2)
    assert loss() == loss() != loss(1)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("train", "changes"),
    [
        ({"method": "dp_sgd"}, {}),
        ({"method": "output_perturbation"}, {}),
        (ONE_STEP, {"update": [{"name": "gradient_gaussian"}]}),
    ],
)
def test_statistics_that_would_bear_noise_or_mix_records_are_refused(tmp_path, train, changes):
    with pytest.raises(ConfigError) as error:
        batched_plan(tmp_path, train, **changes)
    assert "model.function" in str(error.value)
    assert compile_job(batched_plan(tmp_path).job)


def test_frozen_statistics_are_no_part_of_an_update(tmp_path):
    saved = {**Batched().state_dict()}  # with the counter of batches, an integer
    saved["1.running_mean"] += 1
    torch.save(saved, tmp_path / "saved.pt")
    frozen = {"state_dict": "saved.pt", "adapters": {"rank": 0, "head": ["*"]}}
    model, train = {**BATCHED, **frozen}, {"method": "dp_sgd", "rounds": 1, "local_steps": 2}
    python_model.loaded.cache_clear()
    plan = load_plan(job_file(tmp_path, [1, 5, 5], model, train))
    plan = plan.with_artifacts(read_weights(plan.job))
    names = {spec.name for spec in plan.cloud.segments(plan.all_rounds[0])}
    assert names.isdisjoint(STILL) and "module.1.weight" in names
    weights = plan.context.network.merged(trained(plan, batch()))
    np.testing.assert_array_equal(weights["module.1.running_mean"], np.ones(4))
    network, records = plan.context.network, batch()
    live = {name: torch.tensor(one) for name, one in network.initial().items()}
    network.loss(live, torch.tensor(records.x), torch.tensor(records.y), SeededRandom(1))
    np.testing.assert_array_equal(network.frozen["module.1.running_mean"], np.ones(4))

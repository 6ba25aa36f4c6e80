"""Attacks on a recorded job: they succeed without noise, and use the recorded noise."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from edgeveil.errors import UsageError
from edgeveil.parts.round import TRAIN
from edgeveil_lab.attack import inversion as attack_inversion
from edgeveil_lab.attack import membership as attack_membership
from edgeveil_lab.attack.inversion import METHODS, invert, likely_labels, ssim
from edgeveil_lab.attack.membership import dp_curve, informed, normal_curve, roc
from edgeveil_lab.attack.recording import Recording, exact_linear, noised_linear
from edgeveil_tools.cli import main

pytestmark = pytest.mark.slow

JOB = Path(__file__).parents[4] / "configs" / "jobs" / "attack_demo.yaml"
DEVICES = 12


def job_file(folder, **changes):
    plain = yaml.safe_load(JOB.read_text())
    plain["train"] = {"method": "fm", "rounds": 2, "local_steps": 8}
    plain["local_run"].update(devices=DEVICES, test_records=1700)
    plain.update(changes)
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(plain))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Record a small simulated run by the command line."""
    base = tmp_path_factory.mktemp("attacked")
    out = base / "out"
    options = ["--record", "--no-reference", "--out", str(out)]
    assert main(["run", str(job_file(base)), *options]) == 0
    return out / "recording"


@pytest.fixture
def recording(folder):
    return Recording.load(folder)


# --- the recording ----------------------------------------------------------------------------


def test_a_recording_has_every_round_and_the_devices_records(recording):
    assert [len(recording.uploads(e)) for e in recording.plan.all_rounds] == [DEVICES] * 4
    assert len(recording.devices) == DEVICES
    assert sum(map(len, recording.devices)) == 97
    assert {e.phase for e in recording.rounds} == {TRAIN}
    names = " ".join(path.name for path in recording.folder.iterdir())
    assert "box" not in names


def test_local_steps_are_undone_exactly(recording):
    round, device = recording.rounds[1], recording.device
    sent = recording.broadcast(round)
    exact = exact_linear(device, round, sent, recording.devices[0])
    total = device.sums(round, sent, recording.devices[0])
    change = device.finish(round, sent, total, "cpu")["head.weight"]
    (seen,) = noised_linear(device, sent, [change])
    assert np.allclose(seen, exact, atol=1e-4 * np.abs(exact).max())


def test_uploads_are_the_exact_sums_with_the_noise_that_was_priced(recording):
    round, device = recording.rounds[0], recording.device
    sent = recording.broadcast(round)
    seen = sum(noised_linear(device, sent, recording.uploads(round)))
    exact = sum(exact_linear(device, round, sent, own) for own in recording.devices)
    spread = device.budget.noise_variance(TRAIN) * DEVICES
    # 640 squares of one normal variable: mean 1, standard deviation 0.056.
    assert np.square(seen - exact).mean() / spread == pytest.approx(1.0, abs=0.4)


def test_what_cannot_be_attacked_or_drawn_is_told(tmp_path, folder, recording):
    with pytest.raises(UsageError):
        Recording.load(tmp_path)
    other = tmp_path / "kept-apart"
    other.mkdir()
    (other / "run.json").write_bytes((folder / "run.json").read_bytes())
    plain = json.loads((folder / "job.json").read_bytes())
    local = {"name": "local_pca", "keep": 0.5, "share": 0.2, "noise": "gaussian"}
    plain["privacy"]["accept_unproven"] = True
    for change in (
        {"data": {**plain["data"], "evaluation_share": 0.5}},
        {"train": {**plain["train"], "noise": "laplace"}},
        {"features": [*plain["features"], local]},
    ):
        text = json.dumps({**plain, **change}, sort_keys=True, separators=(",", ":"))
        (other / "job.json").write_text(text)
        with pytest.raises(UsageError):
            Recording.load(other)
    features = ({"name": "random", "dimension": 32, "seed": 1, "input_scale": 16.0},)
    plain = {**recording.job.model_dump(), "features": features}
    drawn = replace(recording, job=type(recording.job).model_validate(plain))
    assert attack_inversion.why_no_pictures(drawn) and not attack_inversion.why_no_pictures(
        recording
    )


# --- inversion --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_without_noise_a_single_record_is_rebuilt(recording, name):
    round, device = recording.rounds[0], recording.device
    own = recording.devices[0]
    one = own.at(np.array([0]))
    exact = exact_linear(device, round, recording.broadcast(round), one)
    assert likely_labels(exact, 1) == one.y.tolist()
    head = attack_inversion.head_of(recording)
    found = attack_inversion.shown(METHODS[name](head, exact, 1, 0)).reshape(8, 8)
    original = attack_inversion.shown(one.x.astype(np.float64)).reshape(8, 8)
    assert ssim(original, found) > 0.95


def test_the_recorded_noise_is_laid_over_every_number_of_records(recording, monkeypatch):
    seen = []

    def look(head, target, count, seed):
        seen.append((count, target))
        return np.ones((count, 64))

    monkeypatch.setattr(attack_inversion, "METHODS", {"look": look})
    found = invert(recording)
    assert [count for count, _ in seen] == [1, 1, 2, 2, 4, 4, 8, 8]
    noises = [noisy - clean for (_, clean), (_, noisy) in zip(seen[::2], seen[1::2], strict=True)]
    assert all(np.allclose(noise, noises[0]) for noise in noises)
    assert np.linalg.norm(noises[0]) > 5 * found.signal
    assert found.originals.shape == (8, 8, 8)


# --- membership -------------------------------------------------------------------------------


def test_a_curve_counts_ties_as_one_step():
    curve = roc("x", True, np.array([2.0, 1.0, 1.0]), np.array([1.0, 0.0]))
    assert curve.fpr.tolist() == [0.0, 0.0, 0.5, 1.0]
    assert curve.tpr.tolist() == pytest.approx([0.0, 1 / 3, 1.0, 1.0])
    assert curve.auc == pytest.approx(0.5 * (1 / 3 + 1) / 2 + 0.5)
    assert curve.tpr_at_1_percent == pytest.approx(1 / 3, abs=0.02)


def test_the_informed_attack_reaches_what_gaussian_privacy_allows_and_no_more():
    rng = np.random.default_rng(4)
    mu, size = 1.5, np.full(400, 1.5**2 / 3)
    scores = [
        (
            size,
            size,
            size[:, None] + np.sqrt(size)[:, None] * rng.normal(size=(400, 50)),
            np.sqrt(size)[:, None] * rng.normal(size=(400, 50)),
        )
        for _ in range(3)
    ]
    curve = informed("all", scores)
    at = np.array([0.01, 0.1, 0.5])
    assert np.interp(at, curve.fpr, curve.tpr) == pytest.approx(normal_curve(at, mu), abs=0.02)
    assert (normal_curve(at, mu) <= dp_curve(at, 8.0, 1e-5)).all()
    assert dp_curve(np.array([0.0, 1.0]), 1.0, 0.01).tolist() == pytest.approx([0.01, 1.0])


# --- the command ------------------------------------------------------------------------------


@pytest.mark.drill
def test_the_command_writes_pictures_and_figures(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(attack_inversion, "ADAM_STEPS", 20)
    monkeypatch.setattr(attack_inversion, "LADDER", (1, 2))
    monkeypatch.setattr(attack_membership, "SHADOWS", 3)
    monkeypatch.setattr(attack_membership, "CANDIDATES", 20)
    monkeypatch.setattr(attack_membership, "DRAWS", 4)
    assert main(["attack", str(folder), "--out", str(tmp_path / "a"), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain == json.loads((tmp_path / "a" / "attack.json").read_text())
    assert len(plain["inversion"]["attacks"]) == 2 * 2 * len(METHODS)
    whole = plain["membership"]["attacks"]
    assert all(0 <= one["auc"] <= 1 for one in whole)
    free = next(one for one in whole if one["from"] != "global model" and not one["noise"])
    assert free["auc"] > 0.8
    for name in ("inversion.png", "membership.png"):
        assert (tmp_path / "a" / name).stat().st_size > 10_000

"""Jobs with correlated noise, whole: the noise in the model, cohorts, and who is asked when."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from edgeveil.errors import ConfigError
from edgeveil.jobs.load import load_plan
from edgeveil.parts.stage import NOISE
from edgeveil_tools.cli import main
from edgeveil_tools.simulation.rounds import SimulatedRounds

JOB = Path(__file__).parents[3] / "configs" / "jobs" / "digits_correlated.yaml"


class Measured:
    """What noise each round of a simulated run had, in the sum and after the share taken back."""

    def __init__(self, monkeypatch, folder, **changes):
        self.alone, self.left, self.asked = [], [], []
        plain = yaml.safe_load(JOB.read_text())
        plain |= changes
        path = folder / "job.yaml"
        path.write_text(yaml.safe_dump(plain))
        self.plan = load_plan(path)
        take_back, selected = SimulatedRounds._take_back, SimulatedRounds._selected

        def measured(rounds, context, state, sums):
            of_set = sums[0][1]
            noise = of_set[NOISE].copy()
            before = np.concatenate([a.ravel() for n, a in of_set.items() if n != NOISE])
            kept = take_back(rounds, context, state, sums)
            after = np.concatenate([a.ravel() for a in of_set.values()])
            self.alone.append(noise)
            self.left.append(noise + after - before)
            return kept

        def chosen(rounds, round):
            self.asked.append(selected(rounds, round))
            return self.asked[-1]

        monkeypatch.setattr(SimulatedRounds, "_take_back", measured)
        monkeypatch.setattr(SimulatedRounds, "_selected", chosen)
        assert main(["-q", "run", str(path), "--simulate", "--out", str(folder / "out")]) == 0


def test_the_last_models_noise_is_as_much_less_as_computed(monkeypatch, tmp_path):
    """Against independent noise of the same price: that of σ for k participations without help."""
    run = Measured(monkeypatch, tmp_path)
    of = run.plan.context.correlation
    each = np.std(run.alone) / np.sqrt(of.squared_sensitivity / 2**64)
    independent = each * np.sqrt(of.participations * of.rounds)
    last = np.sum(run.left, axis=0)
    assert independent / np.std(last) == pytest.approx(of.gain, rel=0.03)
    models = np.cumsum(run.left, axis=0)
    rounds = np.arange(1, of.rounds + 1)
    square = np.sqrt(np.mean(models**2))
    each_round = each * np.sqrt(of.participations * rounds.mean())
    assert each_round / square > 0.8 * of.gain


@pytest.mark.parametrize(
    "changes",
    [
        {"train": {"method": "custom", "function": "tests.kits.own_training:fit", "rounds": 32}},
        {"update": [{"name": "gradient_gaussian", "clip_norm": 0.3, "quantile": 0.5}]},
    ],
    ids=["own training", "a clip norm that moves"],
)
def test_it_serves_any_training_and_a_clip_norm_that_moves(monkeypatch, tmp_path, changes):
    run = Measured(monkeypatch, tmp_path, **changes)
    of = run.plan.context.correlation
    each = np.std(run.alone) / np.sqrt(of.squared_sensitivity / 2**64)
    last = np.std(np.array(run.left).sum(0) / np.sqrt(of.rounds))
    assert np.sqrt(of.participations) * each / last > 0.9 * of.gain


@pytest.mark.parametrize("name", ["digits_correlated", "mnist_persons"])
def test_an_upload_is_at_most_two_and_a_quarter_of_a_masked_one(tmp_path, name):
    plain = yaml.safe_load((JOB.parent / f"{name}.yaml").read_text())
    path, sent = tmp_path / "job.yaml", []
    for noise in ("correlated", "shared"):
        plain["privacy"]["noise"] = noise
        path.write_text(yaml.safe_dump(plain))
        sent.append(load_plan(path).upload_bytes)
        for key in ("min_separation", "local_share"):
            plain["privacy"].pop(key, None)
    assert 2 < sent[0] / sent[1] <= 2.25


def test_devices_take_turns(monkeypatch, tmp_path):
    run = Measured(monkeypatch, tmp_path)
    assert len(run.asked) == 32 and {len(one) for one in run.asked} == {10}
    for number, asked in enumerate(run.asked):
        for other in run.asked[number + 1 : number + 4]:
            assert not set(asked) & set(other)
    for device in range(1, 41):
        assert sum(device in asked for asked in run.asked) == 8


def test_a_fleet_too_small_for_the_separation_is_told_at_once(tmp_path, capsys):
    plain = yaml.safe_load(JOB.read_text())
    plain["privacy"]["min_separation"] = 5
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(plain))
    assert main(["run", str(path), "--simulate", "--out", str(tmp_path / "out")]) == 6
    assert "enrol 50, or lower privacy.min_separation" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"privacy": {"min_separation": None}}, "privacy.min_separation"),
        ({"privacy": {"noise": "shared"}}, "privacy.min_separation"),
        ({"selection": {"devices": "all"}}, "selection.devices"),
        ({"selection": {"over_select": 1.2}}, "selection.over_select"),
        ({"aggregation": {"secure": False}}, "privacy.noise"),
        ({"round": {"mode": "buffered"}}, "round.mode"),
        ({"update": []}, "privacy.noise"),
        ({"aggregation": {"name": "median", "groups": 2}}, "aggregation.groups"),
    ],
)
def test_what_does_not_go_with_it_is_refused(tmp_path, changes, key):
    plain = yaml.safe_load(JOB.read_text())
    for block, given in changes.items():
        if isinstance(given, list):
            plain[block] = given
            continue
        plain[block] = {**plain[block], **given}
        plain[block] = {k: v for k, v in plain[block].items() if v is not None}
        if given.get("name"):
            del plain[block]["server_optimizer"]
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(plain))
    with pytest.raises(ConfigError) as caught:
        load_plan(path)
    assert key in str(caught.value)

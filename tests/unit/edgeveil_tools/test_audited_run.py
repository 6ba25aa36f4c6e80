"""Audits in one simulated run: sound noise holds, a flaw fails the run, and no owner is asked."""

import json
from dataclasses import replace

import pytest

import edgeveil
from edgeveil.errors import ConfigError, JobFailed, UsageError
from edgeveil.parts.methods import dp_sgd, dp_sgd_sums, fm_sums
from edgeveil.parts.stages import noise
from edgeveil.privacy import gaussian_mechanism
from edgeveil_tools.local.job import job_of, submitted
from edgeveil_tools.report.page import report_view
from edgeveil_tools.result import Result, summary
from edgeveil_tools.simulation import devices

CANARIES = 60  # 12 guesses, which all right show ε = 1.258
MLP = {"name": "mlp", "hidden": [], "input_scale": 16}
STAGE = [{"name": "gradient_gaussian", "clip_norm": 0.5}]
FEATURES = [{"name": "identity", "input_scale": 16, "shift": -0.3}]
SUMS = {"aggregation": {"name": "fedavg", "secure": True}, "selection": {"devices": CANARIES}}
SHARED = {"epsilon": 1, "noise": "shared", "honest_share": 1.0}
CORRELATED = {**SHARED, "noise": "correlated", "min_separation": 1}
UPDATES = {"model": MLP, "train": {"method": "sgd", "rounds": 2}, "update": STAGE}
STEPS = {"method": "dp_sgd", "rounds": 1, "local_steps": 1, "sampling_rate": 1}
SUMMED = {"method": "dp_sgd_sums", "rounds": 2, "sampling_rate": 1}
POLYNOMIAL = {"features": FEATURES, "train": {"method": "fm", "rounds": 2}}
JOBS = {
    "updates": UPDATES,
    "shared updates": {**UPDATES, **SUMS, "privacy": SHARED},
    "correlated updates": {**UPDATES, **SUMS, "privacy": CORRELATED},
    "gradients": {"model": MLP, "train": STEPS},
    "summed gradients": {"model": MLP, "train": SUMMED, **SUMS, "privacy": SHARED},
    "polynomials": POLYNOMIAL,
    "shared polynomials": {**POLYNOMIAL, **SUMS, "privacy": SHARED},
}


def audited(run=None, **parts):
    plain = {
        "job": "audited",
        "data": {"source": "digits", "classes": 10, "input_shape": [64], "nominal_records": 1},
        "privacy": {"epsilon": 1},
        "round": {"deadline_s": 30, "min_batch": CANARIES},
        "local_run": {
            "devices": CANARIES,
            "simulate": True,
            "workers": 0,
            "audit": {"canaries": CANARIES},
            **(run or {}),
        },
        **parts,
    }
    return job_of(plain)


def with_part_of_the_noise(monkeypatch, share):
    """Draw noise of `share` of the variance that events state and price."""

    def less(event):
        finest = max(1, int(event.finest_sigma_squared * share))
        whole = finest * (event.sigma_squared // event.finest_sigma_squared)
        return replace(event, sigma_squared=whole, finest_sigma_squared=finest)

    def gaussian(total, event, random_bytes):
        return gaussian_mechanism.gaussian(total, less(event), random_bytes)[0], event

    def noised_step(total, event, random_bytes):
        small = replace(event, event=less(event.event))
        return gaussian_mechanism.noised_step(total, small, random_bytes)

    monkeypatch.setattr(noise, "gaussian", gaussian)
    monkeypatch.setattr(fm_sums, "gaussian", gaussian)
    monkeypatch.setattr(dp_sgd, "noised_step", noised_step)
    monkeypatch.setattr(dp_sgd_sums, "noised_step", noised_step)


@pytest.mark.parametrize("name", JOBS)
def test_sound_noise_holds_and_nearly_none_fails_the_run(name, tmp_path, monkeypatch):
    result = edgeveil.simulate(audited(**JOBS[name]), out=tmp_path / "sound", report=False)
    found = result.content["audit"]
    assert found["epsilon_at_least"] <= found["printed_epsilon"] < found["epsilon_if_all_right"]
    assert found["printed_epsilon"] == result.privacy["training"]["epsilon"]
    said = dict(summary(result.content))["  audit"]
    assert "12 guesses about 60 canaries" in said
    assert said in json.dumps(report_view(result.content, result.events), ensure_ascii=False)
    with_part_of_the_noise(monkeypatch, 1e-8)
    with pytest.raises(JobFailed, match="refutes the printed guarantee"):
        edgeveil.simulate(audited(**JOBS[name]), out=tmp_path / "flawed", report=False)
    flawed = Result.load(tmp_path / "flawed")
    assert flawed.status == "failed"
    assert flawed.content["audit"]["epsilon_at_least"] > flawed.content["audit"]["printed_epsilon"]


@pytest.mark.slow
def test_noise_that_counts_one_of_sixteen_rounds_is_found(tmp_path, monkeypatch):
    many = {"devices": 600, "audit": {"canaries": 600}}
    parts = {**UPDATES, "train": {"method": "sgd", "rounds": 16}}
    edgeveil.simulate(audited(many, **parts), out=tmp_path / "sound", report=False)
    with_part_of_the_noise(monkeypatch, 1 / 16)
    with pytest.raises(JobFailed, match="refutes the printed guarantee"):
        edgeveil.simulate(audited(many, **parts), report=False)


def test_a_device_with_a_canary_reads_no_record(tmp_path, monkeypatch):
    def read(*_):
        raise AssertionError("a canary's device reads records")

    monkeypatch.setattr(devices, "dealt_records", read)
    result = edgeveil.simulate(audited(**POLYNOMIAL), out=tmp_path, report=False)
    assert result.status == "completed"
    job = audited({"devices": CANARIES + 1}, **POLYNOMIAL)
    with pytest.raises(JobFailed, match="reads records"):
        edgeveil.simulate(job, report=False)


def test_no_owner_is_asked_for_canaries(tmp_path):
    plain, job = audited({"audit": None}, **UPDATES), audited(**UPDATES)
    assert job.alone.canonical() == plain.alone.canonical()
    assert b"canar" not in submitted(job.alone)
    own = tmp_path / "own.csv"
    lines = [",".join(f"p{k}" for k in range(64)) + ",label"]
    lines += [f"{k % 7}{',1' * 63},{k % 10}" for k in range(200)]
    own.write_text("\n".join(lines))
    run = {"data": {"source": "csv", "path": str(own), "header": True}}
    with pytest.raises(UsageError, match="public records"):
        edgeveil.simulate(audited(run, **UPDATES), report=False)


@pytest.mark.parametrize(
    ("run", "parts", "why"),
    [
        ({"simulate": False}, UPDATES, "simulated fleet"),
        ({"audit": {"canaries": CANARIES + 1}}, UPDATES, "more than the 60 devices"),
        (
            {},
            {**UPDATES, "update": [], "privacy": {"accept_unproven": True}},
            "is known for dp_sgd",
        ),
        ({}, {"model": MLP, "train": {"method": "pso_dp_fl"}}, "is known for dp_sgd"),
    ],
)
def test_what_cannot_be_audited_is_refused_with_the_job(run, parts, why):
    with pytest.raises(ConfigError, match=why):
        audited(run, **parts)

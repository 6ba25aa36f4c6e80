"""A device's part on made-up records: what would fail later fails here, and needs no more."""

import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from edgeveil.errors import ConfigError, DataError, PrivacyError, ProtocolError
from edgeveil.jobs import compile_job, load_job, parse_plan
from edgeveil.jobs.artifacts import read_artifacts
from edgeveil.jobs.rehearsal import rehearse_device, training_kinds
from edgeveil.parts.round import KEPT, TRAIN

JOBS = Path("configs/jobs")


def plan_of(name):
    job = load_job(JOBS / name)
    return compile_job(job).with_artifacts(read_artifacts(job))


def rehearsed(plan, **changes):
    options = {"trains": True, "records": 12, "processor": "cpu", **changes}
    rehearse_device(plan, plan.graph(), **options)


SLOW = {"pictures", "cifar10_shared"}  # `tests/e2e/test_pictures.py` plays their kind


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem in SLOW))
        for path in sorted(JOBS.glob("*.yaml"))
    ],
)
@pytest.mark.usefixtures("encoders")
def test_every_job_of_ours_can_be_done(path):
    rehearsed(plan_of(path.name))


@pytest.mark.parametrize("scale", ["1.0e+30", "1.0e-30"])
@pytest.mark.parametrize(
    ("name", "key"), [("digits_shared", "features[0]"), ("digits_fedavg", "model")]
)
def test_scales_that_the_graph_can_hold_are_played_without_a_warning(name, key, scale):
    text = (JOBS / f"{name}.yaml").read_text()
    assert text.count("input_scale: 16") == 1
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        rehearsed(parse_plan(text.replace("input_scale: 16", f"input_scale: {scale}")))
    assert [str(one.message) for one in warned] == []
    with pytest.raises(ConfigError) as caught:
        parse_plan(text.replace("input_scale: 16", f"input_scale: {scale}8"))
    assert f"{key}.input_scale: must be" in str(caught.value)


@pytest.fixture
def watched(monkeypatch):
    """A plan whose device notes (phase, records, names that it was given) of each answer."""

    def watch(name):
        plan, answers = plan_of(name), []
        real = plan.device.answer

        def answer(round, tensors, records, *rest):
            answers.append((round.phase, len(records), {n for n in tensors if n.startswith(KEPT)}))
            return real(round, tensors, records, *rest)

        monkeypatch.setattr(plan.device, "answer", answer)
        return plan, answers

    return watch


def test_each_kind_of_round_is_answered_once(watched):
    plan, answers = watched("digits_pca.yaml")
    rehearsed(plan)
    phases = [round.phase for round in plan.all_rounds if round.phase != TRAIN]
    assert phases
    assert [one[:2] for one in answers] == [(phase, 12) for phase in [*phases, TRAIN]]


def test_what_a_device_keeps_reaches_its_second_round(watched):
    plan, answers = watched("digits_stages.yaml")
    rehearsed(plan)
    assert [bool(one[2]) for one in answers] == [False, True]
    assert len(training_kinds(plan)) == 2
    with pytest.raises(PrivacyError, match="would keep"):
        rehearsed(plan, memory_bytes=10)


def test_an_upload_of_another_form_or_price_is_found(monkeypatch):
    plan = plan_of("digits_dp_sgd.yaml")
    real = plan.device.answer

    def transposed(*given):
        answer = real(*given)
        return replace(answer, segments={name: a.T for name, a in answer.segments.items()})

    monkeypatch.setattr(plan.device, "answer", transposed)
    with pytest.raises(ProtocolError, match="would upload"):
        rehearsed(plan)
    monkeypatch.setattr(plan.device, "answer", lambda *given: replace(real(*given), events=()))
    with pytest.raises(PrivacyError, match="differs in price"):
        rehearsed(plan)


def test_a_graph_that_a_device_refuses_or_that_gives_no_probabilities_is_found():
    plan, other = plan_of("quickstart.yaml"), plan_of("digits_krum.yaml")
    with pytest.raises(DataError, match="needs the weights"):
        rehearse_device(plan, other.graph(), trains=False, records=3, processor="cpu")
    with pytest.raises(DataError, match="ONNX graph"):
        rehearse_device(plan, b"no graph", trains=False, records=3, processor="cpu")


@pytest.mark.parametrize(
    ("job", "trains"), [("quickstart.yaml", False), ("digits_fm_paper.yaml", True)]
)
def test_it_loads_neither_torch_nor_onnx_where_the_role_needs_none(job, trains, tmp_path):
    graph = tmp_path / "job.onnx"
    graph.write_bytes(plan_of(job).graph())
    code = f"""
import sys
from pathlib import Path
from edgeveil.jobs import load_plan
from edgeveil.jobs.rehearsal import rehearse_device
plan = load_plan(Path("configs/jobs/{job}"))
graph = Path({str(graph)!r}).read_bytes()
rehearse_device(plan, graph, trains={trains}, records=4, processor="cpu")
print(sorted({{"torch", "onnx"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

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
from edgeveil.jobs.rehearsal import rehearse_device, synthetic_records, training_kinds
from edgeveil.parts.round import KEPT, TRAIN

JOBS = Path("configs/jobs")


def plan_of(name):
    job = load_job(JOBS / name)
    return compile_job(job).with_artifacts(read_artifacts(job))


def rehearsed(plan, **changes):
    options = {"trains": True, "records": 12, "processor": "cpu", **changes}
    rehearse_device(plan, plan.graph(), **options)


FAST = {"quickstart", "digits_stages", "digits_pca", "digits_dp_sgd", "digits_fm_paper"}


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=() if path.stem in FAST else pytest.mark.slow)
        for path in sorted(JOBS.glob("*.yaml"))
    ],
)
def test_every_job_of_ours_can_be_done(path, request):
    if path.stem not in FAST:
        request.getfixturevalue("encoders")
    rehearsed(plan_of(path.name))


@pytest.mark.parametrize(
    ("name", "key", "scale"),
    [("digits_shared", "features[0]", "1.0e+30"), ("digits_fedavg", "model", "1.0e-30")],
)
def test_scales_that_the_graph_can_hold_are_played_without_a_warning(name, key, scale):
    text = (JOBS / f"{name}.yaml").read_text()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        rehearsed(parse_plan(text.replace("input_scale: 16", f"input_scale: {scale}")))
    assert [str(one.message) for one in warned] == []
    with pytest.raises(ConfigError) as caught:
        parse_plan(text.replace("input_scale: 16", f"input_scale: {scale}8"))
    assert f"{key}.input_scale: must be" in str(caught.value)


@pytest.mark.parametrize("name", ["digits_pca", "digits_stages"])
def test_each_kind_of_round_is_answered_and_what_a_device_keeps_reaches_the_second(
    name, monkeypatch
):
    plan, answers = plan_of(f"{name}.yaml"), []
    real = plan.device.answer

    def answer(round, tensors, records, *rest):
        answers.append((round.phase, any(name.startswith(KEPT) for name in tensors)))
        return real(round, tensors, records, *rest)

    monkeypatch.setattr(plan.device, "answer", answer)
    rehearsed(plan)
    if name == "digits_pca":
        phases = [round.phase for round in plan.all_rounds if round.phase != TRAIN]
        assert [phase for phase, _ in answers] == [*phases, TRAIN]
        return
    assert [kept for _, kept in answers] == [False, True]
    with pytest.raises(PrivacyError, match="stores"):
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


def test_a_method_without_a_network_is_trained_without_torch_and_onnx(tmp_path):
    graph = tmp_path / "job.onnx"
    graph.write_bytes(plan_of("digits_fm_paper.yaml").graph())
    code = f"""
import sys
from pathlib import Path
from edgeveil.jobs import load_plan
from edgeveil.jobs.rehearsal import rehearse_device, synthetic_records, training_kinds
plan = load_plan(Path("configs/jobs/digits_fm_paper.yaml"))
graph = Path({str(graph)!r}).read_bytes()
rehearse_device(plan, graph, trains=True, records=4, processor="cpu")
print(sorted({{"torch", "onnx"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


ASKED = """
job: asked
data: {source: people, nominal_records: 50, person: name}
statistics:
  columns:
  - {name: age, number: [0, 120]}
  - {name: sex, category: [f, m]}
  - {name: note, values: {length: 4, words: 2}}
  where: "%s"
privacy: {epsilon: 4, unit: person}
aggregation: {name: fedavg, secure: true}
"""


@pytest.mark.parametrize(
    "where",
    [
        "age >= 60",
        "age > 0 and age != 60 and age < 1 and sex = m",
        "age > 120 and sex != f",
        "age >= 1e39",
    ],
)
def test_a_trial_of_questions_plays_each_exchange_with_the_dearest_records(where):
    plan = parse_plan(ASKED % where)
    assert training_kinds(plan) == plan.all_rounds
    made = synthetic_records(plan, 50)
    assert len(set(made.owners("person"))) == 50
    vector = plan.cloud.asking.vector(plan.all_rounds[0])
    found = {block: sums for block, _, sums in vector.split(vector.of(made.x).astype(float))}
    values = next(one for one in vector.blocks if one in vector.values)
    assert found[values].sum() == 100  # each word of each record
    assert rehearse_device(plan, plan.graph(), trains=True, records=50, processor="cpu") > 0

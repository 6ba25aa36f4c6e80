"""Wherever an accuracy is shown, the rate of the test set's largest class is shown with it."""

import json

import numpy as np
import pytest

from edgeveil.data.records import Records
from edgeveil.data.schema import DataSchema, schema_metadata
from edgeveil.evaluation.figures import ACCURACY, classification_figures, leading_text
from edgeveil.jobs import compile_job
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.features.values import Identity, IdentityParameters
from edgeveil.parts.models.heads import bake, build_graph
from edgeveil.protocol.cloud_reasons import RoundAnswers
from edgeveil_cloud.commit_round import RoundFacts, round_record
from edgeveil_cloud.evaluation import Evaluation
from edgeveil_cloud.job_view import facts_of_plan, job_view, record_figure
from edgeveil_cloud.validate_batch import ValidatedBatch
from edgeveil_tools.cli import main
from edgeveil_tools.local.job import Overrides, local_job
from edgeveil_tools.local.run_log import RunLog
from edgeveil_tools.result import Result
from tests.kits.job_events import committed
from tests.kits.people import SCHEMA, write_people

LABELS = np.repeat([0, 1], [134, 866])
FIGURES = classification_figures(np.eye(2)[[0] * 1000], LABELS)  # always says 0
MAJORITY = "majority class 0.866"
ROUND = committed(1, 1, 1, accuracy=0.134, figures=FIGURES)


@pytest.fixture(scope="module")
def job():
    return local_job("tests/kits/quickstart.yaml", Overrides())


def test_a_run_its_result_and_the_view_of_its_job_have_it(job, tmp_path):
    log = RunLog(*job, tmp_path, lambda _: None)
    log.take(ROUND)
    none = {"broker": "", "protocol": 5, "memory_peak_bytes": None, "reference": [], "bytes": {}}
    view = job_view(facts_of_plan(compile_job(job[0])), [ROUND])
    (events,) = [one for one in view["sections"] if one["id"] == "events"]
    for text in (log.view.line, str(Result(log.result("", **none), tmp_path)), json.dumps(events)):
        assert MAJORITY in text


def test_a_clouds_round_has_it(job):
    """The stored record and the event of a round, whose model has not learned and says 0."""
    plan = compile_job(job[0])
    x = np.zeros((len(LABELS), *job[0].data.input_shape), np.float32)
    model = Evaluation(Records(x, LABELS)), plan.graph(), plan.cloud.initial_state()
    facts = RoundFacts(1, 9, RoundAnswers(9, 9, 0), 0, 0, {})
    record, event = round_record(RoundContext.of(plan, 3), *model, ValidatedBatch(), facts)
    assert MAJORITY in record_figure(job[0].canonical(), record)
    assert MAJORITY in leading_text(ACCURACY, event["accuracy"], event["figures"])


def test_predictions_have_it(tmp_path, capsys):
    schema = DataSchema.model_validate_json(json.dumps(SCHEMA))
    graph = build_graph(Identity(IdentityParameters()), schema.input_shape, 2)
    shapes = {"centre": schema.input_shape, "radius": 1, "weight": (*schema.input_shape, 2)}
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    (tmp_path / "model.onnx").write_bytes(bake(graph, weights, schema_metadata(schema)))
    rows = [["30", "State", "40", "", ("low", "high")[label]] for label in LABELS]
    file = write_people(tmp_path / "people.csv", rows)
    assert main(["predict", str(tmp_path / "model.onnx"), str(file)]) == 0
    assert MAJORITY in capsys.readouterr().out

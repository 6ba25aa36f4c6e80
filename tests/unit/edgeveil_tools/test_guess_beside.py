"""Wherever an accuracy is told, the rate of the test set's largest class is told beside it."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from edgeveil.data.records import Records
from edgeveil.data.schema import DataSchema, schema_metadata
from edgeveil.evaluation.figures import (
    ACCURACY,
    baseline_text,
    classification_figures,
    leading_text,
)
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
from edgeveil_tools.display import RunDisplay
from edgeveil_tools.local.job import Overrides, local_job
from edgeveil_tools.local.run_log import RunLog
from edgeveil_tools.result import Result, write_json
from tests.kits.job_events import committed
from tests.kits.people import SCHEMA, write_people

LABELS = np.repeat([0, 1], [134, 866])
REACHED, FIGURES = 0.134, classification_figures(np.eye(2)[[0] * 1000], LABELS)  # always says 0
BESIDE = "majority class 0.866, and the model is worse; balanced 0.500"
JOB, RUN = local_job(Path(__file__).parents[2] / "kits" / "quickstart.yaml", Overrides())
PLAN = compile_job(JOB)
ROUND = committed(1, 1, 1, accuracy=REACHED, figures=FIGURES)


def run(folder, hear=lambda _: None):
    log = RunLog(JOB, RUN, folder, hear)
    log.take(ROUND)
    return log


def result(folder):
    none = {"broker": "", "protocol": 5, "memory_peak_bytes": None, "reference": [], "bytes": {}}
    write_json(folder / "result.json", run(folder).result("", **none))
    return Result.load(folder)


def live_display(folder):
    display = RunDisplay(io.StringIO())
    run(folder, display)
    with display.console.capture() as captured:
        display.console.print(display.picture())
    return captured.get()


def predicted(folder):
    schema = DataSchema.model_validate_json(json.dumps(SCHEMA))
    graph = build_graph(Identity(IdentityParameters()), schema.input_shape, 2)
    shapes = {"centre": schema.input_shape, "radius": 1, "weight": (*schema.input_shape, 2)}
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    (folder / "model.onnx").write_bytes(bake(graph, weights, schema_metadata(schema)))
    rows = [["30", "State", "40", "", ("low", "high")[label]] for label in LABELS]
    file = write_people(folder / "people.csv", rows)
    with redirect_stdout(io.StringIO()) as out:
        assert main(["predict", str(folder / "model.onnx"), str(file)]) == 0
    return out.getvalue()


def told_round():
    """The stored record and the event of a round, whose model has not learned and says 0."""
    x = np.zeros((len(LABELS), *JOB.data.input_shape), np.float32)
    model = Evaluation(Records(x, LABELS)), PLAN.graph(), PLAN.cloud.initial_state()
    told = RoundFacts(1, 9, RoundAnswers(9, 9, 0), 0, 0, {})
    return round_record(RoundContext.of(PLAN, 3), *model, ValidatedBatch(), told)


def event(_):
    found = told_round()[1]
    return leading_text(ACCURACY, found["accuracy"], found["figures"])


def events_of_a_job(_):
    sections = job_view(facts_of_plan(PLAN), [ROUND])["sections"]
    return json.dumps([one for one in sections if one["id"] == "events"])


OUTPUTS = {
    "result": lambda folder: str(result(folder)),
    "progress": lambda folder: run(folder).view.line,
    "live display": live_display,
    "predict": predicted,
    "event": event,
    "stored round": lambda _: record_figure(JOB.canonical(), told_round()[0]),
    "events of a job": events_of_a_job,
}


@pytest.mark.parametrize("output", OUTPUTS.values(), ids=OUTPUTS)
def test_the_rate_of_the_largest_class_stands_beside_every_accuracy(output, tmp_path):
    assert baseline_text(ACCURACY, REACHED, FIGURES) == BESIDE
    assert BESIDE in output(tmp_path)

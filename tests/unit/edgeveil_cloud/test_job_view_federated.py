"""Federated evaluations on a job's page: beside the cloud's test, and never counted as rounds."""

from dataclasses import replace
from pathlib import Path

import pytest

from edgeveil.jobs import compile_job, load_job
from edgeveil_cloud.job_history import JobHistory
from edgeveil_cloud.job_view import facts_of_plan, job_view
from edgeveil_cloud.store_tables import RoundRecord
from edgeveil_tools.result import RunEvents
from edgeveil_tools.tracking.feed import metrics_of
from tests.kits.job_events import committed

JOBS = Path(__file__).parents[3] / "configs" / "jobs"
FOUND = {
    "eval_type": "FEDERATED",
    "leading": "accuracy",
    "accuracy": 0.91,
    "accuracy_deviation": 0.02,
    "records": 465.4,
    "count_deviation": 9.3,
    "balanced_accuracy": None,
    "macro_f1": 0.8,
    "per_class": [
        {"class": 0, "precision": 0.9, "recall": 0.8, "f1": 0.85, "records": 70.2},
        {"class": 1, "precision": None, "recall": None, "f1": None, "records": -3.0},
    ],
    "uploads": 50,
}


@pytest.fixture(scope="module")
def planned():
    return facts_of_plan(compile_job(load_job(JOBS / "digits_evaluated.yaml")))


def evaluation(round, number, **found):
    event = committed(round, number, round)
    data = {**event["data"], "phase": "evaluate", "figures": None}
    return {**event, "data": {**data, "federated": {**FOUND, "round": number, **found}}}


def events():
    return [committed(1, 1, 1), committed(2, 2, 2), evaluation(3, 2), committed(4, 3, 4)]


def section(view, name):
    return next(one for one in view["sections"] if one["id"] == name)


def test_an_evaluation_is_no_round(planned):
    view = job_view(replace(planned, status="running"), events())
    assert view["progress"]["text"].startswith("round 3 of 10")
    assert (view["progress"]["done"], view["progress"]["of"]) == (4, 14)
    (table,) = section(view, "rounds")["parts"]
    assert [row[0] for row in table["rows"]] == ["1", "2", "2, evaluated", "3"]
    chart = section(view, "answers")["parts"][0]
    assert chart["before"] == ["1", "2", "2, evaluated", "3"]
    told = [row["text"] for row in section(view, "events")["parts"][0]["rows"]]
    assert any(text.startswith("evaluation of round 2 committed") for text in told)
    assert any("accuracy 0.910 ± 0.020 on the devices' own records" in text for text in told)


def test_figures_stand_beside_the_clouds_with_their_error(planned):
    view = job_view(replace(planned, status="running"), events())
    card = next(one for one in view["cards"][0] if "devices' own" in one["name"])
    assert card["value"] == "0.910 ± 0.020"
    series = section(view, "accuracy")["parts"][0]["series"]
    own = next(one for one in series if one["name"] == "on the devices' own records")
    assert (own["values"], own["off"]) == ([None, 0.91, None], [None, 0.02, None])
    figures, classes = section(view, "federated")["parts"]
    assert figures["rows"][0][:2] == ["accuracy", "0.910 ± 0.020"]
    assert figures["rows"][-1][1] == "about 465"
    assert [row[0] for row in classes["rows"]] == ["0"]  # the other is hidden by the noise


def test_accuracy_stands_beside_the_largest_classs_rate(planned):
    own = evaluation(3, 2, largest_class_rate=0.95)
    rounds = [committed(1, 1, 1), committed(2, 2, 2)]
    by_cloud = {"largest_class_rate": 0.25, "balanced_accuracy": 0.5}
    rounds[1]["data"]["figures"] = by_cloud
    view = job_view(replace(planned, status="running"), [*rounds, own])
    told = "always the largest class 0.950, and the model is worse"
    card = next(one for one in view["cards"][0] if "devices' own" in one["name"])
    assert card["note"].startswith(f"{told}; noised counts of about 465 records")
    figures = section(view, "federated")["parts"][0]
    assert figures["rows"][:2] == [
        [
            "accuracy",
            f"0.910 ± 0.020 ({told})",
            "0.500 (always the largest class 0.250; balanced 0.500)",
        ],
        ["balanced accuracy", "–", "0.500"],
    ]


def test_nothing_but_noise_is_said(planned):
    noise = {**events()[2]}
    noise["data"] = {**noise["data"], "federated": {"eval_type": "FEDERATED", "round": 2}}
    view = job_view(replace(planned, status="running"), [*events()[:2], noise])
    assert "nothing but noise" in section(view, "federated")["said"][0]["text"]
    assert not any("off" in one for one in section(view, "accuracy")["parts"][0]["series"])


def test_a_store_that_forgot_the_event_still_has_the_figures():
    history = JobHistory()
    scores = {**FOUND, "round": 2}
    record = RoundRecord(index=3, phase="evaluate", number=2, attempt=1, uploads=50, scores=scores)
    history.take_records([record])
    assert (history.federated, history.scores, history.rounds) == ([scores], [], [])


def test_results_and_trackers_keep_evaluations_apart():
    record = RunEvents()
    for event in events():
        record.take(event)
    assert [len(rows) for rows in (record.rounds, record.evaluations)] == [3, 1]
    assert record.committed == 4
    (row,) = record.evaluations
    assert row["round"] == 2
    assert row["federated"]["accuracy"] == 0.91
    assert "eval_type" not in row["federated"]
    told = metrics_of(events()[2]["data"])
    assert told["federated/accuracy"] == 0.91
    assert told["federated/accuracy_deviation"] == 0.02
    assert not {"accuracy", "loss"} & told.keys()

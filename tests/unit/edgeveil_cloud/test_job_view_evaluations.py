"""What devices count of their own records, on the page, the console, in results and at trackers:
beside the cloud's test, with its errors, and never counted as a round."""

from dataclasses import replace
from pathlib import Path

import pytest

from edgeveil.evaluation.figures import evaluation_text
from edgeveil.jobs import compile_job, load_job
from edgeveil_cloud.job_view import facts_of_plan, job_view, record_figure
from edgeveil_cloud.store_tables import RoundRecord
from edgeveil_tools.result import RunEvents
from edgeveil_tools.tracking.feed import metrics_of
from tests.kits.job_events import committed

JOBS = Path(__file__).parents[3] / "configs" / "jobs"
FEDERATED = {
    "eval_type": "FEDERATED",
    "round": 2,
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
CLUSTERS = {
    "eval_type": "DAVIES_BOULDIN_SCORE",
    "upload": "sums",
    "score": 0.583,
    "score_deviation": 0.031,
    "reason": "",
    "silhouette": 0.6731,
    "silhouette_deviation": 0.0021,
    "calinski_harabasz": None,
    "calinski_harabasz_deviation": None,
    "davies_bouldin": 0.583,
    "davies_bouldin_deviation": 0.031,
    "clusters": 9,
    "records": 718.2,
    "count_deviation": 16.1,
    "uploads": 50,
}
OWN = "accuracy 0.910 ± 0.020 on the devices' own records"
SCORES = "silhouette 0.6731 ± 0.0021, Calinski-Harabasz hidden by the noise, Davies-Bouldin 0.583"
# Job, phase, what the event says under which key, how the page names the round, what is told.
KINDS = {
    "federated": ("digits_evaluated", "evaluate", FEDERATED, "2, evaluated", OWN),
    "clusters": ("digits_clustered", "cluster", CLUSTERS, "2, clustered", SCORES),
}
both = pytest.mark.parametrize("kind", KINDS)


def evaluation(kind="federated", **found):
    _, phase, plain, *_ = KINDS[kind]
    event = committed(3, 2, 3)
    data = {**event["data"], "phase": phase, "figures": None}
    return {**event, "data": {**data, kind: {**plain, **found}}}


def events(kind="federated"):
    return [committed(1, 1, 1), committed(2, 2, 2), evaluation(kind), committed(4, 3, 4)]


def view(told, kind="federated"):
    plan = compile_job(load_job(JOBS / f"{KINDS[kind][0]}.yaml"))
    return job_view(replace(facts_of_plan(plan), status="running"), told)


def section(view, name):
    return next(one for one in view["sections"] if one["id"] == name)


def own_card(view):
    return next(one for one in view["cards"][0] if "devices' own" in one["name"])


@both
def test_an_evaluation_is_no_round(kind):
    shown, (*_, name, told) = view(events(kind), kind), KINDS[kind]
    assert shown["progress"]["text"].startswith("round 3 of 10")
    assert shown["progress"]["done"] == 4
    (table,) = section(shown, "rounds")["parts"]
    assert [row[0] for row in table["rows"]] == ["1", "2", name, "3"]
    assert section(shown, "answers")["parts"][0]["before"] == ["1", "2", name, "3"]
    assert any(told in row["text"] for row in section(shown, "events")["parts"][0]["rows"])


def test_figures_stand_beside_the_clouds_with_their_error():
    shown = view(events())
    assert own_card(shown)["value"] == "0.910 ± 0.020"
    series = section(shown, "accuracy")["parts"][0]["series"]
    own = next(one for one in series if one["name"] == "on the devices' own records")
    assert (own["values"], own["off"]) == ([None, 0.91, None], [None, 0.02, None])
    figures, classes = section(shown, "federated")["parts"]
    assert figures["rows"][0][:2] == ["accuracy", "0.910 ± 0.020"]
    assert figures["rows"][-1][1] == "about 465"
    assert [row[0] for row in classes["rows"]] == ["0"]  # the other is hidden by the noise


def test_accuracy_stands_beside_the_largest_classs_rate():
    rounds = [committed(1, 1, 1), committed(2, 2, 2)]
    rounds[1]["data"]["figures"] = {"largest_class_rate": 0.25, "balanced_accuracy": 0.5}
    shown = view([*rounds, evaluation(largest_class_rate=0.95)])
    told = "majority class 0.950, and the model is worse"
    assert own_card(shown)["note"].startswith(f"{told}; noised counts of about 465 records")
    by_cloud = "0.500 (majority class 0.250; balanced 0.500)"
    assert section(shown, "federated")["parts"][0]["rows"][:2] == [
        ["accuracy", f"0.910 ± 0.020 ({told})", by_cloud],
        ["balanced accuracy", "–", "0.500"],
    ]


def test_nothing_but_noise_is_said():
    noise = evaluation()
    noise["data"]["federated"] = {"eval_type": "FEDERATED", "round": 2}
    shown = view([*events()[:2], noise])
    assert "nothing but noise" in section(shown, "federated")["said"][0]["text"]
    assert not any("off" in one for one in section(shown, "accuracy")["parts"][0]["series"])


def test_all_cluster_scores_are_told_with_their_errors():
    found = section(view(events("clusters"), "clusters"), "clusters")
    (((number, scores),),) = [table["rows"] for table in found["parts"]]
    assert number == "2" and SCORES in scores
    assert "9 clusters of about 718 records" in found["said"][0]["text"]


@both
def test_a_stored_round_tells_them_too(kind):
    name, phase, found, _, told = KINDS[kind]
    record = RoundRecord(index=3, phase=phase, number=2, attempt=1, uploads=50, scores=found)
    assert told in record_figure(load_job(JOBS / f"{name}.yaml").canonical(), record)


@both
def test_results_trackers_and_console_keep_evaluations_apart(kind):
    record = RunEvents()
    for event in events(kind):
        record.take(event)
    assert [len(rows) for rows in (record.rounds, record.evaluations)] == [3, 1]
    assert record.committed == 4
    (row,), data = record.evaluations, evaluation(kind)["data"]
    assert row["round"] == 2
    assert KINDS[kind][-1] in evaluation_text(data)
    assert evaluation_text(events()[0]["data"]) == ""
    told = metrics_of(data)
    assert not {"accuracy", "loss"} & told.keys()
    if kind == "federated":
        assert row["federated"]["accuracy"] == told["federated/accuracy"] == 0.91
        assert "eval_type" not in row["federated"]
        assert told["federated/accuracy_deviation"] == 0.02
    else:
        assert row["cluster_scores"] == CLUSTERS
        assert (told["cluster_score"], told["clusters/silhouette"]) == (0.583, 0.6731)
        assert told["clusters/davies_bouldin_deviation"] == 0.031
        assert "clusters/calinski_harabasz" not in told

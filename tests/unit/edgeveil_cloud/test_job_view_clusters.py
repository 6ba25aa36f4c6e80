"""Cluster scores from sums, wherever clusters are shown: page, console, result, trackers."""

from dataclasses import replace
from pathlib import Path

import pytest

from edgeveil.evaluation.figures import evaluation_text
from edgeveil.jobs import compile_job, load_job
from edgeveil_cloud.job_history import JobHistory
from edgeveil_cloud.job_view import facts_of_plan, job_view, record_figure
from edgeveil_cloud.store_tables import RoundRecord
from edgeveil_tools.result import RunEvents
from edgeveil_tools.tracking.feed import metrics_of
from tests.kits.job_events import committed

JOBS = Path(__file__).parents[3] / "configs" / "jobs"
FOUND = {
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
TOLD = "silhouette 0.6731 ± 0.0021, Calinski-Harabasz hidden by the noise, Davies-Bouldin 0.583"


@pytest.fixture(scope="module")
def plan():
    return compile_job(load_job(JOBS / "digits_clustered.yaml"))


def summed(round, number, **found):
    event = committed(round, number, round)
    data = {**event["data"], "phase": "cluster", "figures": None}
    return {**event, "data": {**data, "clusters": {**FOUND, **found}}}


def events():
    return [committed(1, 1, 1), committed(2, 2, 2), summed(3, 2), committed(4, 3, 4)]


def section(view, name):
    return next(one for one in view["sections"] if one["id"] == name)


def test_the_page_and_the_report_tell_all_scores_with_their_errors(plan):
    view = job_view(replace(facts_of_plan(plan), status="running"), events())
    assert view["progress"]["text"].startswith("round 3 of 10")
    (table,) = section(view, "clusters")["parts"]
    (((number, scores),), (text,)) = table["rows"], section(view, "clusters")["said"]
    assert number == "2" and TOLD in scores
    assert "9 clusters of about 718 records" in text["text"]
    (rounds,) = section(view, "rounds")["parts"]
    assert [row[0] for row in rounds["rows"]] == ["1", "2", "2, clustered", "3"]
    told = [row["text"] for row in section(view, "events")["parts"][0]["rows"]]
    assert any(text.startswith("clusters of round 2 committed") for text in told)
    assert any(TOLD in text for text in told)
    assert section(view, "answers")["parts"][0]["before"] == ["1", "2", "2, clustered", "3"]


def test_a_store_that_forgot_the_event_still_has_the_scores(plan):
    history = JobHistory()
    record = RoundRecord(index=3, phase="cluster", number=2, attempt=1, uploads=50, scores=FOUND)
    history.take_records([record])
    assert (history.scores, history.rounds) == ([{**FOUND, "round": 2}], [])
    assert TOLD in record_figure(plan.job.canonical(), record)


def test_console_results_and_trackers_have_them():
    record = RunEvents()
    for event in events():
        record.take(event)
    assert [len(rows) for rows in (record.rounds, record.evaluations)] == [3, 1]
    (row,) = record.evaluations
    assert (row["round"], row["cluster_scores"]) == (2, FOUND)
    data = events()[2]["data"]
    assert TOLD in evaluation_text(data)
    assert evaluation_text(events()[0]["data"]) == ""
    told = metrics_of(data)
    assert (told["cluster_score"], told["clusters/silhouette"]) == (0.583, 0.6731)
    assert told["clusters/davies_bouldin_deviation"] == 0.031
    assert "clusters/calinski_harabasz" not in told
    assert not {"accuracy", "loss"} & told.keys()

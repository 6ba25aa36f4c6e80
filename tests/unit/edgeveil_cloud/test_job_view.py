"""The view of a job at the cloud: live and ended, from its entry and its events, however many."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edgeveil.evaluation.figures import evaluation_text
from edgeveil.jobs import compile_job, load_job
from edgeveil.privacy.guarantee import guarantee_lines
from edgeveil_cloud.job_history import KEPT_EVENTS, JobHistory
from edgeveil_cloud.job_view import JobDetails, facts_of_plan, job_view, record_figure
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import RoundRecord
from edgeveil_tools.result import RunEvents
from edgeveil_tools.tracking.feed import metrics_of
from tests.kits.job_events import broadcast, committed, course

JOBS = Path("configs/jobs")
JOB = load_job(Path("tests/kits/quickstart.yaml"))


@pytest.fixture(scope="module")
def planned():
    return facts_of_plan(compile_job(JOB))


def part(view, section, kind, nth=0):
    (there,) = [one for one in view["sections"] if one["id"] == section]
    return [one for one in there["parts"] if one["kind"] == kind][nth]


def test_the_record_s_guarantee_leads_if_there_is_one_before_the_device_s_as_on_the_console():
    facts = facts_of_plan(compile_job(load_job(JOBS / "quickstart.yaml")))
    inferred = facts.privacy["inference"]
    assert inferred["unit"] == "device" and inferred["record_epsilon"] < inferred["epsilon"]
    cards = job_view(facts, [])["cards"][1]
    assert [card["value"] for card in cards] == ["ε = 2", "ε = 1.988"]
    rows = dict(guarantee_lines(facts.privacy))
    for which, card in zip(("training", "inference"), cards, strict=True):
        assert f"{card['value']} {card['note']}".startswith(f"{rows[f'  {which}']}; whole job")
    none = {**facts.privacy, "inference": {**inferred, "record_epsilon": None}}
    assert job_view(replace(facts, privacy=none), [])["cards"][1][1]["value"] == (
        f"ε = {inferred['epsilon']:g}"
    )


def test_a_running_job_shows_its_progress_its_answers_and_failed_attempts(planned):
    answers = {"selected": 20, "uploaded": 3, "declined": 4, "absent": 13, "void": {}}
    data = {"round": 1, "attempt": 2, "why": "below the minimum", "answers": answers}
    repeated = {"seq": 8, "time": 8.0, "type": "round_repeated", "data": data}
    events = [*course(2), broadcast("round 3", 7), repeated]
    view = job_view(replace(planned, status="running"), events)
    assert (view["progress"]["done"], view["progress"]["of"]) == (3, 17)
    answered = next(one for one in view["cards"][0] if one["name"] == "answered")
    assert answered["value"] == "18 of 20"
    values = {one["name"]: one["values"] for one in part(view, "answers", "lines")["series"]}
    assert values == {"answered": [18] * 3, "selected": [20] * 3, "declined": [2] * 3}
    assert part(view, "answers", "bars")["rows"] == [["not finite", 3.0, "3"]]
    (row,) = part(view, "answers", "table")["rows"]
    assert row[1:] == ["20", "3", "4", "13", "below the minimum"]


def test_what_the_jobs_end_says_was_spent_takes_the_place_of_the_plan(planned):
    spent = json.loads(json.dumps(planned.privacy))
    spent["training"]["epsilon"] = 3.5
    end = {"seq": 9, "time": 99.0, "type": "job_cancelled", "data": {"privacy": spent}}
    view = job_view(replace(planned, status="cancelled"), [*course(1), end])
    assert view["cards"][1][0]["value"] == "ε = 3.5"
    assert "planned" not in json.dumps(view["cards"])
    assert view["progress"] is None


def test_a_claimed_method_gets_no_epsilon_anywhere():
    path = JOBS / "digits_fm_paper.yaml"
    facts = replace(facts_of_plan(compile_job(load_job(path))), status="running")
    assert facts.privacy["training"]["status"] == "claimed"
    events = course(3)
    for one in events:
        if one["type"] == "exchange_committed":
            one["data"]["epsilon"] = {"training": 77.25, "inference": 0.0}
    said = json.dumps(job_view(facts, events), ensure_ascii=False)
    assert "77.25" not in said
    assert "no proven guarantee" in said and "no ε is printed" in said


def test_events_may_come_one_by_one_or_twice(planned):
    facts, events = replace(planned, status="running"), course(5)
    one_by_one = JobHistory()
    for event in events:
        one_by_one.take(event)
        job_view(facts, one_by_one)  # what is shown meanwhile changes nothing
        one_by_one.take(event)
    assert job_view(facts, one_by_one) == job_view(facts, events)


def test_a_thousand_rounds_stay_small(planned):
    events = course(2000)
    many = {"eval_type": "SILHOUETTE_SCORE", "score": 0.5, "used": 1000, "wanted": 1000}
    many["labels"] = [k % 7 for k in range(1000)]
    many["vectors"] = [[0.1 * (k % 7), 0.2] for k in range(1000)]
    for one in events[1::2]:
        number = one["data"]["number"]
        one["data"]["clusters"] = many if number and number % 200 == 0 else None
    history = JobHistory()
    history.take_all(events)
    view = job_view(replace(planned, status="running"), history)
    assert len(json.dumps(view)) < 250_000
    x = part(view, "accuracy", "lines")["x"]
    assert (len(x), x[0], x[-1]) == (400, 1, 2000)
    rows = part(view, "rounds", "table")["rows"]
    assert (len(rows), rows[-1][0]) == (200, "2000")
    log = part(view, "events", "events")
    assert (len(log["rows"]), log["before"]) == (KEPT_EVENTS, len(events) - KEPT_EVENTS)
    panels = part(view, "clusters", "scatter")["panels"]
    assert len(panels) == 6 and panels[-1]["title"].startswith("round 2000 ")


def test_figures_of_a_classifier_are_shown_where_there_are_some(planned):
    one = {"class": 0, "precision": 0.5, "recall": 1.0, "f1": 0.667, "records": 4}
    other = {"class": 1, "precision": None, "recall": 0.5, "f1": 0.5, "records": 6}
    bins = [{"confidence": 0.4, "accuracy": 0.5, "records": 10}]
    figures = {"balanced_accuracy": 0.75, "macro_f1": 0.7, "auc": None, "unusable": 2}
    figures |= {"per_class": [one, other], "confusion": [[4, 0], [3, 3]]}
    figures |= {"calibration": {"error": 0.125, "bins": bins}}
    figures["classes"] = ["cat", "dog"]
    view = job_view(planned, [committed(2, 1, 1), committed(3, 2, 2, figures=figures)])
    heat = part(view, "figures", "heat")
    assert heat["values"] == [[4, 0], [3, 3]] and heat["rows"][1] == "dog"
    rows = [["balanced accuracy", "0.750"], ["macro-F1", "0.700"]]
    assert part(view, "figures", "table")["rows"] == rows
    assert part(view, "figures", "table", 1)["rows"][1] == ["dog", "–", "0.500", "0.500", "6"]


def test_the_view_of_an_entry_of_the_store(planned):
    entry = Store().submit_job(JOB.job, JOB.canonical(), JOB.digest())
    facts = JobDetails.of_entry(entry)
    assert (facts.name, facts.id, facts.status) == ("quickstart", entry.id, "queued")
    assert facts.privacy == planned.privacy and facts.all_rounds == 17
    broken = JobDetails.of_entry(replace(entry, canonical=b"{}", name="<b>"))
    view = job_view(broken, [committed(1, 0, 1)])
    assert view["title"] == "<b>" and view["cards"][1] == []
    assert "ε =" not in json.dumps(view, ensure_ascii=False)


def test_rmse_follows_from_the_loss_where_a_round_has_no_figures():
    facts = facts_of_plan(compile_job(load_job(JOBS / "diabetes.yaml")))
    view = job_view(facts, [committed(3, 1, 1, accuracy=None, loss=0.04)])
    (card, *_), _ = view["cards"]
    assert (card["name"], card["value"]) == ("RMSE now", "35")  # 175, half the range, times √0.04
    assert "accuracy" not in json.dumps([view["cards"], view["sections"][0]["parts"]])


FEDERATED = {"eval_type": "FEDERATED", "round": 2, "leading": "accuracy", "uploads": 50}
FEDERATED |= {"accuracy": 0.91, "accuracy_deviation": 0.02, "balanced_accuracy": None}
FEDERATED |= {"records": 465.4, "count_deviation": 9.3, "macro_f1": 0.8}
FEDERATED["per_class"] = [
    {"class": 0, "precision": 0.9, "recall": 0.8, "f1": 0.85, "records": 70.2},
    {"class": 1, "precision": None, "recall": None, "f1": None, "records": -3.0},
]
CLUSTERS = {"eval_type": "DAVIES_BOULDIN_SCORE", "upload": "sums", "clusters": 9, "uploads": 50}
CLUSTERS |= {"score": 0.583, "score_deviation": 0.031, "reason": "", "records": 718.2}
CLUSTERS |= {"silhouette": 0.6731, "silhouette_deviation": 0.0021, "count_deviation": 16.1}
CLUSTERS |= {"davies_bouldin": 0.583, "davies_bouldin_deviation": 0.031}
CLUSTERS |= dict.fromkeys(("calinski_harabasz", "calinski_harabasz_deviation"))
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
    if kind == "clusters":
        (((number, scores),),) = [one["rows"] for one in section(shown, "clusters")["parts"]]
        assert number == "2" and SCORES in scores


def test_figures_stand_beside_the_clouds_with_their_error_and_the_largest_classs_rate():
    given = events()
    given[1]["data"]["figures"] = {"largest_class_rate": 0.25, "balanced_accuracy": 0.5}
    given[2] = evaluation(largest_class_rate=0.95)
    shown = view(given)
    assert own_card(shown)["value"] == "0.910 ± 0.020"
    assert "majority class 0.950" in own_card(shown)["note"]
    series = section(shown, "accuracy")["parts"][0]["series"]
    own = next(one for one in series if one["name"] == "on the devices' own records")
    assert (own["values"], own["off"]) == ([None, 0.91, None], [None, 0.02, None])
    figures, classes = section(shown, "federated")["parts"]
    assert figures["rows"][1] == ["balanced accuracy", "–", "0.500"]
    assert [row[0] for row in classes["rows"]] == ["0"]  # the other is hidden by the noise


@both
def test_results_trackers_console_and_store_keep_evaluations_apart(kind):
    record = RunEvents()
    for event in events(kind):
        record.take(event)
    assert [len(rows) for rows in (record.rounds, record.evaluations)] == [3, 1]
    assert record.committed == 4
    (row,), data = record.evaluations, evaluation(kind)["data"]
    name, phase, found, _, text = KINDS[kind]
    assert row["round"] == 2
    stored = RoundRecord(index=3, phase=phase, number=2, attempt=1, uploads=50, scores=found)
    assert text in evaluation_text(data)
    assert text in record_figure(load_job(JOBS / f"{name}.yaml").canonical(), stored)
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

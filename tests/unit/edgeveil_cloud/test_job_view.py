"""The view of a job at the cloud: live and ended, from its entry and its events, however many."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edgeveil.jobs import compile_job, load_job
from edgeveil.privacy.guarantee import guarantee_lines
from edgeveil_cloud.job_history import KEPT_EVENTS, JobHistory
from edgeveil_cloud.job_view import JobDetails, facts_of_plan, job_view
from edgeveil_cloud.store import Store
from tests.kits.job_events import broadcast, committed, course

JOBS = Path(__file__).parents[3] / "configs" / "jobs"


@pytest.fixture(scope="module")
def planned():
    return facts_of_plan(
        compile_job(load_job(JOBS.parents[1] / "tests" / "kits" / "quickstart.yaml"))
    )


def part(view, section, kind, nth=0):
    (there,) = [one for one in view["sections"] if one["id"] == section]
    return [one for one in there["parts"] if one["kind"] == kind][nth]


def test_a_job_that_waits_shows_what_it_will_cost_and_no_more(planned):
    view = job_view(replace(planned, status="queued"), [])
    training, inference = view["cards"][1]
    assert training["value"] == "ε = 8"
    assert training["note"] == "per record, δ = 1e-05; whole job as planned, proven"
    assert "per device; whole job as planned, proven" in inference["note"]
    assert view["progress"] == {"done": 0, "of": 17, "text": "round 0 of 15"}
    assert {one["id"] for one in view["sections"]} == {"accuracy", "seen", "meaning"}


def test_the_record_s_guarantee_leads_and_the_device_s_stands_behind_it_as_on_the_console():
    facts = facts_of_plan(compile_job(load_job(JOBS / "quickstart.yaml")))
    part = facts.privacy["inference"]
    assert part["unit"] == "device" and part["record_epsilon"] < part["epsilon"]
    training, inference = job_view(facts, [])["cards"][1]
    assert (training["value"], inference["value"]) == ("ε = 2", "ε = 1.988")
    assert inference["note"].startswith("per record, ε = 15.9 per device; ")
    rows = dict(guarantee_lines(facts.privacy))
    for which, card in (("training", training), ("inference", inference)):
        told = f"{card['value']} {card['note']}"
        assert told.startswith(f"{rows[f'  {which}']}; whole job")


def test_a_guarantee_without_a_bound_of_one_record_leads_with_the_device_s(planned):
    part = {**planned.privacy["inference"], "record_epsilon": None}
    facts = replace(planned, privacy={**planned.privacy, "inference": part})
    lead = job_view(facts, [])["cards"][1][1]
    assert lead["value"] == f"ε = {part['epsilon']:g}"
    assert lead["note"].startswith("per device, none per record, ")


def test_a_running_job_says_where_it_is_and_who_answered_as_counts(planned):
    view = job_view(replace(planned, status="running"), [*course(2), broadcast("round 3", 7)])
    assert view["progress"] == {"done": 3, "of": 17, "text": "round 2 of 15: round 3"}
    answered = next(one for one in view["cards"][0] if one["name"] == "answered")
    assert answered["value"] == "18 of 20"
    assert "2 declined" in answered["note"]
    chart = part(view, "answers", "lines")
    values = {one["name"]: one["values"] for one in chart["series"]}
    assert values == {"answered": [18] * 3, "selected": [20] * 3, "declined": [2] * 3}
    assert chart["before"] == ["centre"]
    assert part(view, "answers", "bars")["rows"] == [["not finite", 3.0, "3"]]


def test_what_the_jobs_end_says_was_spent_takes_the_place_of_the_plan(planned):
    spent = json.loads(json.dumps(planned.privacy))
    spent["training"]["epsilon"] = 3.5
    end = {"seq": 9, "time": 99.0, "type": "job_cancelled", "data": {"privacy": spent}}
    view = job_view(replace(planned, status="cancelled"), [*course(1), end])
    assert view["cards"][1][0]["value"] == "ε = 3.5"
    assert "as planned" not in json.dumps(view, ensure_ascii=False)
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
    assert "no proven guarantee" in said and "no ε is stated" in said


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
    for one in events[1::2]:
        number = one["data"]["number"]
        rows = [[0.1 * (k % 7), 0.2] for k in range(1000)]
        one["data"]["clusters"] = (
            {
                "eval_type": "SILHOUETTE_SCORE",
                "score": 0.5,
                "used": 1000,
                "wanted": 1000,
                "labels": [k % 7 for k in range(1000)],
                "vectors": rows,
            }
            if number and number % 200 == 0
            else None
        )
    course_of_it = JobHistory()
    course_of_it.take_all(events)
    view = job_view(replace(planned, status="running"), course_of_it)
    assert len(json.dumps(view)) < 250_000
    chart = part(view, "accuracy", "lines")
    assert len(chart["x"]) == 400
    assert (chart["x"][0], chart["x"][-1]) == (1, 2000)
    assert len(part(view, "rounds", "table")["rows"]) == 200
    assert part(view, "rounds", "table")["rows"][-1][0] == "2000"
    log = part(view, "events", "events")
    assert (len(log["rows"]), log["before"]) == (KEPT_EVENTS, len(events) - KEPT_EVENTS)
    panels = part(view, "clusters", "scatter")["panels"]
    assert [one["title"].split(" · ")[0] for one in panels][-1] == "round 2000"
    assert len(panels) == 6


def test_attempts_that_failed_are_counted_by_reason(planned):
    answers = {"selected": 20, "uploaded": 3, "declined": 4, "absent": 13, "void": {}}
    repeated = {"round": 1, "attempt": 2, "why": "below the minimum", "answers": answers}
    events = [
        broadcast("centre", 1),
        {"seq": 2, "time": 2.0, "type": "round_repeated", "data": repeated},
    ]
    view = job_view(replace(planned, status="running"), [*events, committed(1, 0, 3)])
    (row,) = part(view, "answers", "table")["rows"]
    assert row == ["centre", "20", "3", "4", "13", "below the minimum"]


def test_figures_of_a_classifier_are_shown_where_there_are_some(planned):
    figures = {
        "balanced_accuracy": 0.75,
        "macro_f1": 0.7,
        "auc": None,
        "per_class": [
            {"class": 0, "precision": 0.5, "recall": 1.0, "f1": 0.667, "records": 4},
            {"class": 1, "precision": None, "recall": 0.5, "f1": 0.5, "records": 6},
        ],
        "confusion": [[4, 0], [3, 3]],
        "calibration": {
            "error": 0.125,
            "bins": [
                {"confidence": 0.4, "accuracy": 0.5, "records": 4},
                {"confidence": 0.9, "accuracy": 0.8, "records": 6},
            ],
        },
        "unusable": 2,
    }
    events = [committed(2, 1, 1, figures=figures), committed(3, 2, 2, figures=figures)]
    view = job_view(replace(planned, status="running"), events)
    assert part(view, "figures", "heat")["values"] == [[4, 0], [3, 3]]
    told = [["balanced accuracy", "0.750"], ["macro-F1", "0.700"]]
    assert part(view, "figures", "table")["rows"] == told
    assert part(view, "figures", "table", 1)["rows"][1] == ["1", "–", "0.500", "0.500", "6"]
    assert "2 records got no usable probability" in json.dumps(view)
    assert "Class by class" not in json.dumps(job_view(planned, course(2)))
    named = {**figures, "classes": ["cat", "dog"]}
    view = job_view(replace(planned, status="running"), [committed(2, 1, 1, figures=named)])
    assert part(view, "figures", "table", 1)["rows"][1][0] == "dog"
    assert part(view, "figures", "heat")["rows"] == ["cat", "dog"]


def test_the_view_of_an_entry_of_the_store(planned):
    job = load_job(JOBS.parents[1] / "tests" / "kits" / "quickstart.yaml")
    store = Store()
    entry = store.submit_job(job.job, job.canonical(), job.digest())
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
    found = card["name"], card["value"]
    assert found == ("RMSE now", "35")  # 175, half of the range, times √0.04
    (section,) = [one for one in view["sections"] if one["id"] == "accuracy"]
    assert section["title"] == "RMSE by round"
    assert "accuracy" not in json.dumps([view["cards"], section["parts"]])

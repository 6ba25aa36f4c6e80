"""The report in a real browser: what a person sees of it, on a phone and on a desk."""

from dataclasses import replace
from pathlib import Path

import pytest

from edgeveil.jobs import compile_job, load_job
from edgeveil.pages.frozen import frozen
from edgeveil.pages.parts import heat, section
from edgeveil_cloud.job_view import JobDetails, RunPart, facts_of_plan, job_view
from tests.kits.browser import DESK, PHONE, browser
from tests.kits.job_events import course
from tests.kits.statistics_answers import ANSWERS

JOBS = Path(__file__).parents[4] / "configs" / "jobs"


@pytest.fixture(scope="module")
def chromium():
    with browser() as one:
        yield one


def whole_view(rounds=12):
    """A page with every section that there is."""
    events = course(rounds)
    for one in events[1::2]:
        number = one["data"]["number"]
        if number:
            one["data"]["accuracy"] = round(1 - 0.6 / number, 4)
        if number and number % 4 == 0:
            vectors = [[k / 20, 1 - k / 20, (k % 3) / 3] for k in range(20)]
            labels = {"labels": [k % 10 for k in range(20)], "vectors": vectors}
            score = {"eval_type": "SILHOUETTE_SCORE", "score": 0.25, "used": 20, "wanted": 20}
            one["data"]["clusters"] = {**score, **labels}
            told = {"precision": 0.5, "recall": 1.0, "f1": 0.667, "records": 40}
            bins = [{"confidence": k / 10, "accuracy": k / 11, "records": 4} for k in range(10)]
            one["data"]["figures"] = {
                "balanced_accuracy": 0.75,
                "macro_f1": 0.7,
                "per_class": [{"class": k, **told} for k in range(10)],
                "confusion": [[40 if k == n else 3 for k in range(10)] for n in range(10)],
                "calibration": {"error": 0.125, "bins": bins},
                "unusable": 0,
            }
    picture = heat(
        "Records by device and class",
        [[(d * c) % 23 for d in range(60)] for c in range(20)],
        [str(c) for c in range(20)],
        [str(d + 1) for d in range(60)],
        ("class", "device"),
        red=[3, 4],
        top=[d + 1 for d in range(60)],
    )
    run = RunPart(
        devices=20,
        seconds=12.5,
        broker="mosquitto 2.0.11",
        reference=[0.9] * rounds,
        memory_bytes=640 << 20,
        hops={"cloud_to_proxy": 2000, "proxy_to_devices": 90000, "devices_to_proxy": 80000},
        versions={"edgeveil": "0.1.0"},
        held=section("held", "Records by device", [picture]),
    )
    facts = facts_of_plan(
        compile_job(load_job(JOBS.parents[1] / "tests" / "kits" / "quickstart.yaml"))
    )
    return job_view(replace(facts, name="quickstart", status="completed", run=run), events)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The address of a report of a whole run."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(frozen(whole_view()), "utf-8")
    return path.as_uri()


@pytest.mark.parametrize(("size", "dark"), [(PHONE, True), (DESK, False)], ids=["phone", "desk"])
def test_it_is_readable_whole_and_without_barriers(chromium, page, size, dark):
    chromium.open(page, size, dark=dark)
    chromium.wait("document.querySelectorAll('.drawn, canvas').length > 8")
    assert chromium.small_text() == []
    assert chromium.cut_off() == []
    assert chromium.barriers() == []
    assert chromium.wrong() == []


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_answers_of_statistics_are_drawn_with_their_errors(chromium, tmp_path, size):
    events = course(1)
    events[-1]["data"]["statistics"] = ANSWERS
    view = job_view(replace(JobDetails("census", "completed"), run=RunPart(devices=100)), events)
    path = tmp_path / "report.html"
    path.write_text(frozen(view), "utf-8")
    chromium.open(path.as_uri(), size)
    chromium.wait("document.querySelectorAll('.drawn, canvas').length > 5")
    assert "38.62 ± 0.20" in chromium.text and "Accuracy by round" not in chromium.text
    of_age = "document.querySelectorAll('#statistics-1 .drawn {}').length"
    assert [chromium.run("return " + of_age.format(one)) for one in ("rect", "line")] == [4, 7]
    assert chromium.small_text() == chromium.cut_off() == chromium.barriers() == []
    assert chromium.wrong() == []


def test_values_show_by_arrow_keys(chromium, page):
    from selenium.webdriver.common.keys import Keys

    chromium.open(page, DESK)
    chromium.wait("document.querySelector('#accuracy canvas')")
    legend = "document.querySelector('#accuracy .legend').textContent"
    assert chromium.run(f"return {legend}").startswith("training round 12this run 0.950")
    chart = chromium.run("return document.querySelector('#accuracy .plot')")
    chart.send_keys(Keys.HOME)
    shown = chromium.wait(f"{legend}.startsWith('training round 1this') && {legend}")
    assert "this run 0.400" in shown and "without noise 0.900" in shown
    assert "ε training, planned, per record 0.002" in shown
    chart.send_keys(Keys.ARROW_RIGHT)
    chromium.wait(f"{legend}.startsWith('training round 2')")


def test_every_chart_has_its_values_as_a_table(chromium, page):
    chromium.open(page, PHONE)
    chromium.wait("document.querySelector('#time canvas')")
    assert chromium.run("return document.querySelectorAll('figure').length") == chromium.run(
        "return document.querySelectorAll('figure > details').length"
    )
    chromium.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    chromium.wait("[...document.querySelectorAll('figure')].every((o) => o.querySelector('td'))")
    assert chromium.cut_off() == []
    rows = chromium.run("return document.querySelector('#accuracy details tbody').innerText")
    assert rows.splitlines()[0].split() == ["1", "0.400", "0.900", "0.002"]


def test_an_update_draws_only_what_changed(chromium, page):
    """Live: the reader's open table and place stay, and what is new is shown there."""
    chromium.open(page)
    chromium.wait("document.querySelector('#time canvas')")
    chromium.run(
        "window.shown = EdgeVeil.jobView(document.getElementById('view'), arguments[0]);"
        "document.querySelector('#accuracy details').open = true;"
        "window.kept = [document.querySelector('#seen table'), document.querySelector('#held')];",
        whole_view(3),
    )
    later = whole_view(4)
    chromium.run("window.shown.update(arguments[0])", later)
    chromium.wait("document.querySelector('#accuracy details tbody').rows.length === 4")
    assert chromium.run("return document.querySelector('#accuracy details').open")
    assert chromium.run("return window.kept.every((one) => one.isConnected)")
    assert chromium.run("return document.querySelectorAll('#rounds tbody tr').length") == 5
    later["sections"] = [one for one in later["sections"] if one["id"] != "held"]
    chromium.run("window.shown.update(arguments[0])", later)
    assert chromium.run("return document.querySelector('#held')") is None
    assert chromium.wrong() == []

"""A run's result and report: figures that scripts read, and a page that runs only its own code."""

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeveil.pages.frozen import thawed
from edgeveil.parts.partitions.dealing import low_quality_devices
from edgeveil.privacy.guarantee import Guarantee
from edgeveil.privacy.policy import Quote
from edgeveil_tools.cli import main
from edgeveil_tools.local.data import dealt
from edgeveil_tools.local.job import Overrides, local_job
from edgeveil_tools.report import page as report
from edgeveil_tools.report.page import report_view, write_report
from edgeveil_tools.result import RunEvents, build, write_json
from tests.kits.job_events import FACTS, committed

PROVEN = Quote(Guarantee(8.0, 1e-5, "record", "proven"), Guarantee(40.0, 0.0, "device", "proven"))
NOTHING = Guarantee(math.inf, 0.0, "device", "none")
CLAIMED = Quote(Guarantee(1.25, 1e-5, "record", "claimed"), NOTHING)


def events(**more):
    return [
        committed(
            number + 1,
            number,
            number + 1,
            **{
                "uploads": 9,
                "loss": None,
                "accuracy": 0.5 + 0.05 * number if number else None,
                "epsilon": {"training": 1.0 + number, "inference": 20.0 * (number // 3)},
                **more,
            },
        )
        for number in range(7)
    ]


def privacy_of(quote):
    inference = quote.inference.plain | {"epsilon_per_round": 20.0}
    return {"training": quote.training.plain, "inference": inference}


def result(course, quote=PROVEN, **changes):
    record = RunEvents()
    for one in course:
        record.take(one)
    return build(record, **{**FACTS, "privacy": privacy_of(quote), **changes})


def parts(found, key, kind):
    (section,) = (one for one in found["sections"] if one["id"] == key)
    return [one for one in section["parts"] if one["kind"] == kind]


def test_the_result_is_strict_json_and_has_what_scripts_read(tmp_path):
    content = result(events(), replace(PROVEN, inference=NOTHING))
    write_json(tmp_path / "result.json", content)

    def refuse(text):
        raise AssertionError(text)

    text = (tmp_path / "result.json").read_text()
    assert json.loads(text, parse_constant=refuse) == content
    assert content["privacy"]["inference"]["epsilon"] is None
    assert content["final"]["accuracy"] == pytest.approx(0.8)
    assert content["reference"] == {"accuracy": 0.9, "rounds": [0.9] * 6, "note": ""}
    assert [row["round"] for row in content["rounds"]] == [1, 2, 3, 4, 5, 6]
    assert [row["phase"] for row in content["phases"]] == ["centre"]


def test_the_clouds_own_guarantee_counts_when_the_job_completed():
    own = privacy_of(replace(PROVEN, training=Guarantee(7.5, 1e-5, "record", "proven")))
    completed = {"type": "job_completed", "data": {"reason": "", "privacy": own}}
    course = [*events(), completed]
    assert result(course)["privacy"]["training"]["epsilon"] == 7.5
    failed = result(course, status="failed", reason="x")
    assert failed["privacy"]["training"]["epsilon"] == 8.0


@pytest.mark.parametrize("text", ["digits", "</script><img src=x onerror=alert(1)><!--"])
def test_it_needs_nothing_from_elsewhere_and_runs_nothing_but_its_own(tmp_path, text):
    found = result(events(), job=text, reason=text, status="failed")
    write_report(found, events(), tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text("utf-8")
    assert not re.findall(r"""(?:src|href)\s*=\s*["'][^"']+|@import|url\(|<img""", html)
    assert thawed(html)["title"] == text
    assert html.count("</script>") == html.count("<script")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)[1]
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    for tag in ("script", "style"):
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digests = [hashlib.sha256(one.encode()).digest() for one in inside]
        allowed = re.search(rf"{tag}-src ([^;]+)", policy)[1].split()
        assert allowed == [f"'sha256-{base64.b64encode(one).decode()}'" for one in digests]


@pytest.fixture
def folder(tmp_path):
    def make(name, job="train: {rounds: 6}\n", **changes):
        course, out = events(), tmp_path / name
        out.mkdir()
        (out / "result.json").write_text(json.dumps(result(course, **changes)))
        (out / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in course))
        (out / "job.yaml").write_text(job)
        return out

    return make


def test_a_report_is_drawn_again_from_its_files_with_who_holds_what_of_the_first(folder):
    out = folder("one")
    held = {"id": "held", "title": "Records by device", "said": [], "parts": [], "after": []}
    write_report(result(events()), events(), out / "report.html", held)
    first = (out / "report.html").read_text()
    for page, more in (("report.html", []), ("copy.html", ["--out", str(out / "copy.html")])):
        assert main(["report", str(out), *more]) == 0
        assert (out / page).read_text() == first


def test_runs_are_compared_by_accuracy_both_guarantees_and_what_differs(folder, capsys, tmp_path):
    one = folder("a", "train: {rounds: 6, method: fm}\nprivacy: {epsilon: 8}\n")
    two = folder("b", "train: {rounds: 6, method: dp_sgd}\nprivacy: {epsilon: 8}\n", quote=CLAIMED)
    out = tmp_path / "compared.html"
    assert main(["report", str(one), str(two), "--out", str(out), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["name"], row["rounds"]) for row in rows] == [("a", 6), ("b", 6)]
    found = thawed(out.read_text())
    (costs,) = parts(found, "runs", "table")
    figures = [re.findall(r"[\d.e-]*\d", text) for text in costs["rows"][0][5:7]]
    assert costs["rows"][0][3] == "0.800"
    assert (figures[0], figures[1][:2]) == (["8", "1e-05"], ["20", "40"])
    assert not any(re.search(r"\d", text) for text in costs["rows"][1][5:7])
    (settings,) = parts(found, "settings", "table")
    assert settings["rows"] == [["train.method", "fm", "dp_sgd"]]


def test_what_is_not_proven_gets_no_number():
    course = events(epsilon={"training": 1.25, "inference": 77.0})
    found = report_view(result(course, CLAIMED), course)
    assert "epsilon" not in [one["id"] for one in found["sections"]]
    assert "77" in json.dumps(report_view(result(course), course))
    shown = json.dumps(found, ensure_ascii=False)
    for number in ("1.25", "77.0", " 77"):
        assert number not in json.dumps(found["sections"])
    assert "no proven ε" in shown  # in the events, beside each accuracy


def test_every_record_is_counted_at_its_device_and_of_many_devices_none_is_lost():
    job, run = local_job(Path("configs/jobs/digits_skewed.yaml"), Overrides())
    held, (records, shares) = report.holdings(job, run), dealt(job, run)
    assert held.counts.sum(axis=1).tolist() == [len(share) for share in shares]
    assert held.counts.sum(axis=0).tolist() == np.bincount(records.y).tolist()
    assert held.low_quality.tolist() == low_quality_devices(20, run.partition, run.seed).tolist()
    counts, poor = np.random.default_rng(3).poisson(0.5, (1000, 100)), np.arange(0, 1000, 3)
    found = report.holdings_picture(report.Holdings(counts, poor, "iid"))
    assert len(found["columns"]) <= report.MOST_COLUMNS + 1
    assert len(found["rows"]) <= report.MOST_CLASSES
    assert np.sum(found["values"]) == sum(found["top"]) == counts.sum()
    assert sum(found["top"][k] for k in found["red"]) == counts[poor].sum()

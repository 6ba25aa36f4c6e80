"""The report of a run: what its page says, and that the one file runs nothing but its own."""

import base64
import hashlib
import json
import re

import pytest

from edgeveil.pages.frozen import thawed
from edgeveil.privacy.guarantee import Guarantee
from edgeveil.privacy.policy import Quote
from edgeveil_tools.cli import main
from edgeveil_tools.report.page import report_view, write_report
from edgeveil_tools.result import RunEvents, build, privacy_of
from tests.kits.job_events import FACTS, committed

PROVEN = Quote(Guarantee(8.0, 1e-5, "record", "proven"), Guarantee(40.0, 0.0, "device", "proven"))
CLAIMED = Quote(
    Guarantee(1.25, 1e-5, "record", "claimed"), Guarantee(float("inf"), 0.0, "device", "none")
)


def events():
    return [
        committed(
            number + 1,
            number,
            number + 1,
            uploads=9,
            loss=None,
            accuracy=0.5 + 0.05 * number if number else None,
            epsilon={"training": 1.0 + number, "inference": 20.0 * (number // 3)},
        )
        for number in range(7)
    ]


def result(course, quote=PROVEN, **changes):
    record = RunEvents()
    for one in course:
        record.take(one)
    return build(record, **{**FACTS, "privacy": privacy_of(quote, 20.0), **changes})


@pytest.fixture
def page(tmp_path):
    def make(course, **changes):
        write_report(result(course, **changes), course, tmp_path / "report.html")
        return (tmp_path / "report.html").read_text("utf-8")

    return make


def view(course, **changes):
    return report_view(result(course, **changes), course)


def section(found, key):
    return next((one for one in found["sections"] if one["id"] == key), None)


def parts(found, key, kind):
    there = section(found, key)
    return [] if there is None else [one for one in there["parts"] if one["kind"] == kind]


def text_of(found):
    return json.dumps(found, ensure_ascii=False)


# --- one file ---


@pytest.mark.parametrize("text", ["digits", "</script><img src=x onerror=alert(1)><!--"])
def test_it_needs_nothing_from_elsewhere_and_runs_nothing_but_its_own(page, text):
    html = page(events(), job=text, reason=text, status="failed")
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


# --- what it says ---


# --- edgeveil report ---


@pytest.fixture
def folder(tmp_path):
    def make(name, job="train: {rounds: 6}\n", **changes):
        course, out = events(), tmp_path / name
        out.mkdir()
        (out / "result.json").write_text(json.dumps(result(course, **changes)))
        (out / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in course))
        if job:
            (out / "job.yaml").write_text(job)
        return out

    return make


def test_a_report_is_drawn_again_from_its_files_with_who_holds_what_of_the_first(folder, capsys):
    out = folder("one")
    held = {"id": "held", "title": "Who holds what", "said": [], "parts": [], "after": []}
    write_report(result(events()), events(), out / "report.html", held)
    first = (out / "report.html").read_text()
    for page, more in (("report.html", []), ("copy.html", ["--out", str(out / "copy.html")])):
        assert main(["report", str(out), *more]) == 0
        assert capsys.readouterr().out == f"{out / page}\n"
        assert (out / page).read_text() == first


def test_runs_are_compared_by_accuracy_both_guarantees_and_what_differs(folder, capsys, tmp_path):
    one = folder("a", "train: {rounds: 6, method: fm}\nprivacy: {epsilon: 8}\n")
    two = folder("b", "train: {rounds: 6, method: dp_sgd}\nprivacy: {epsilon: 8}\n", quote=CLAIMED)
    out = tmp_path / "compared.html"
    assert main(["report", str(one), str(two), "--out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    rows = said["rows"]
    assert said["report"] == str(out)
    assert [(row["name"], row["rounds"]) for row in rows] == [("a", 6), ("b", 6)]
    assert rows[0]["privacy"]["training"]["epsilon"] == 8.0
    found = thawed(out.read_text())
    (chart,) = parts(found, "accuracy", "lines")
    assert [line["name"] for line in chart["series"]] == ["a", "b"]
    (costs,) = parts(found, "runs", "table")
    figures = [re.findall(r"[\d.e-]*\d", text) for text in costs["rows"][0][5:7]]
    assert (costs["rows"][0][3], figures[0], figures[1][:2]) == (
        "0.800",
        ["8", "1e-05"],
        ["20", "40"],
    )
    assert not any(re.search(r"\d", text) for text in costs["rows"][1][5:7])
    (settings,) = parts(found, "settings", "table")
    assert settings["rows"] == [["train.method", "fm", "dp_sgd"]]


def test_what_is_not_proven_gets_no_number():
    course = events()
    for one in course:
        one["data"]["epsilon"] = {"training": 1.25, "inference": 77.0}
    found = view(course, quote=CLAIMED)
    assert text_of(found).count("no proven guarantee") >= 4
    assert section(found, "epsilon") is None
    assert "77" in text_of(view(course))
    for number in ("1.25", "77.0", " 77"):
        assert number not in json.dumps(found["sections"], ensure_ascii=False)
    assert "none proven" in text_of(found)  # in the events, beside each accuracy

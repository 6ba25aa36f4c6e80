import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from edgeveil.jobs import compile_job, load_job
from edgeveil.jobs.who_sees import who_sees
from edgeveil.privacy.guarantee import Guarantee
from edgeveil.privacy.policy import Quote
from edgeveil_tools.local.run_log import RunEvents
from edgeveil_tools.report import plots as plots
from edgeveil_tools.report.page import write_report
from edgeveil_tools.result import Result, RunFacts, build, privacy_of

JOB = Path(__file__).parents[3] / "configs" / "jobs" / "digits_secure.yaml"
PROVEN = Quote(Guarantee(8.0, 1e-5, "record", "proven"), Guarantee(40.0, 0.0, "device", "proven"))
CLAIMED = Quote(
    Guarantee(1.25, 1e-5, "record", "claimed"), Guarantee(float("inf"), 0.0, "device", "none")
)


def events(rounds=6, every=3, uploads=9):
    rng = np.random.default_rng(3)
    found = []
    for index in range(1, rounds + 2):
        number = index - 1
        clusters = None
        if number and number % every == 0:
            vectors = rng.random((uploads, 4))
            clusters = {
                "eval_type": "SILHOUETTE_SCORE",
                "score": -0.125,
                "reason": "",
                "used": uploads,
                "wanted": uploads,
                "labels": vectors.argmax(axis=1).tolist(),
                "vectors": vectors.tolist(),
            }
        data = {
            "exchange": index,
            "phase": "train" if number else "centre",
            "number": number,
            "attempt": 1,
            "uploads": uploads,
            "declined": 0,
            "accuracy": 0.5 + 0.05 * number if number else None,
            "clusters": clusters,
            "seconds": 0.4,
            "timeline": {"seal_s": 0.1, "broadcast_s": 0.05, "wait_s": 0.2, "absorb_s": 0.05},
            "bytes": {"cloud_out": 1000, "cloud_in": 2048},
            "epsilon": {"training": 1.0 * index, "inference": 20.0 * (number // every)},
        }
        kind = "exchange_committed"
        found.append({"seq": index, "time": 0.0, "type": kind, "data": data})
    return found


def result(course, quote=PROVEN, **changes):
    record = RunEvents()
    for one in course:
        record.take(one)
    facts = {
        "job": "digits",
        "status": "completed",
        "reason": "",
        "broker": "mosquitto 2.0.11",
        "protocol": 5,
        "devices": 9,
        "infer_only": 0,
        "seconds": 12.5,
        "memory_peak_bytes": 3 << 20,
        "reference": [0.9] * 6,
        "bytes": dict.fromkeys((key for key, _ in plots.HOPS), 5000),
        "privacy": privacy_of(quote, 20.0),
    }
    return build(record, RunFacts(**{**facts, **changes}))


@pytest.fixture
def page(tmp_path):
    def make(course, **changes):
        write_report(result(course, **changes), course, tmp_path / "report.html")
        return (tmp_path / "report.html").read_text("utf-8")

    return make


class Balance(HTMLParser):
    VOID = frozenset({"meta", "br", "link", "img", "input", "path", "use", "rect"})

    def __init__(self):
        super().__init__()
        self.open, self.text = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def text_of(html):
    reader = Balance()
    reader.feed(html)
    assert reader.open == []
    return " ".join(" ".join(reader.text).split())


def test_it_needs_nothing_from_elsewhere(page):
    html = page(events())
    outside = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(?!#)[^"'\s)>]+""", html)
    assert outside == []
    assert "<script" not in html
    assert "@import" not in html


def test_all_pictures_are_there(page):
    html = page(events())
    assert html.count("<svg") == 5
    for label in ("Accuracy", "Epsilon", "Softmax", "Bytes", "Seconds"):
        assert re.search(rf'aria-label="{label}[^"]*"><svg', html)


def test_ids_of_the_pictures_do_not_meet(page):
    html = page(events())
    found = re.findall(r'\bid="([^"]+)"', html)
    assert len(found) == len(set(found))
    used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', html))
    assert {a or b for a, b in used} <= set(found)


def test_both_guarantees_stand_together_with_their_units(page):
    text = text_of(page(events()))
    assert "(ε = 8, δ = 1e-05) per record, whole job, proven" in text
    assert "ε = 40 in total, per device, proven" in text
    assert "Neither number alone" in text


@pytest.mark.parametrize(("simulated", "verb"), [(False, "saw"), (True, "would see")])
def test_what_each_party_saw_stands_in_a_table_of_its_own(page, simulated, verb):
    seen = [asdict(row) for row in who_sees(compile_job(load_job(JOB)))]
    text = text_of(page(events(), seen=seen, simulated=simulated))
    _, _, section = text.partition(f"What each party {verb} the cloud the proxy ")
    assert section.startswith(
        "training uploads the noised sum of each round, of 5 uploads or more; no single upload"
        " ciphertext of one size, who sent it and when; the seeds of masks, without what they hide"
        " models sent to devices all: it makes them ciphertext While the two do not work together."
    )


def test_a_run_that_does_not_say_what_was_seen_has_no_such_section(page):
    assert "What each party" not in text_of(page(events()))


SHARED = Guarantee(2.0, 1e-5, "record", "proven", if_colluding=9.6449, honest=15)


def of_shared():
    found = events()
    for event in found:
        event["data"]["epsilon"]["collusion"] = 4.5 * event["data"]["exchange"]
    return found


def test_shared_noise_has_both_epsilons_by_round_in_picture_and_table(page):
    text = text_of(page(of_shared(), quote=replace(PROVEN, training=SHARED)))
    assert (
        "with 15 honest devices in each sum" in text and "if all others collude ε = 9.645" in text
    )
    assert "ε training, by plan if all others collude ε inference, by plan" in text
    assert " 7 31.5 40 " in text  # the last round's
    assert "The dashed line" in text
    plain = text_of(page(events()))
    assert "collude" not in plain and "dashed" not in plain


def test_of_an_unproven_training_no_second_epsilon_is_shown(page):
    text = text_of(page(of_shared(), quote=CLAIMED))
    assert "collude" not in text and "31.5" not in text


def test_the_second_epsilon_is_drawn_above_the_first():
    rows = [{"round": k, "epsilon": {"training": 1.0 * k, "collusion": 4.0 * k}} for k in (1, 2)]
    both = plots.epsilon_plot(rows)
    one = plots.epsilon_plot([{**row, "epsilon": {"training": 1.0}} for row in rows])
    assert "stroke-dasharray" in both and "stroke-dasharray" not in one
    assert "var(--orange)" in both and "var(--orange)" not in one


def test_tables_of_a_result_have_both_epsilons(tmp_path):
    found = Result(result(of_shared(), replace(PROVEN, training=SHARED)), tmp_path)
    assert [row["collusion"] for row in found.epsilon[:2]] == [4.5, 9.0]
    assert [row["collusion_epsilon"] for row in found.guarantees] == [9.6449, None]
    plain = Result(result(events()), tmp_path)
    assert "collusion" not in plain.epsilon[0] and "collusion_epsilon" not in plain.guarantees[0]


def test_a_devices_guarantee_says_what_one_record_has(page):
    device = Guarantee(8.0, 1e-5, "device", "proven", among_others=19.15)
    text = " ".join(text_of(page(events(), quote=replace(PROVEN, training=device))).split())
    assert "per device, whole job, proven; per record ε = 19.15" in text
    assert "One record among others" in text
    assert "One record among others" not in text_of(page(events()))


def test_what_is_not_proven_gets_no_number(page):
    course = events()
    for one in course:
        one["data"]["epsilon"] = {"training": 1.25, "inference": 77.0}
    text = text_of(page(course, quote=CLAIMED))
    assert text.count("no proven guarantee") >= 4
    assert "77" in text_of(page(course))
    assert "1.25" not in text.partition("Accuracy by round")[2]
    assert "77" not in text.partition("Accuracy by round")[2]


def test_text_of_a_job_cannot_become_markup(page):
    html = page(events(), job="<script>x</script>", reason="<b>&", status="failed")
    assert "<script>" not in html
    assert "&lt;b&gt;&amp;" in html


def test_a_failed_run_has_a_page_with_its_reason(page):
    text = text_of(page([], status="failed", reason="too few uploads", reference=[], bytes={}))
    assert "too few uploads" in text
    assert "none was committed" in text


def test_every_round_has_its_line(page):
    html = page(events(rounds=4))
    body = html[html.rindex("<tbody>") : html.rindex("</tbody>")]
    first = re.findall(r"<tr><td>([^<]+)</td>", body)
    assert first == ["centre", "1", "2", "3", "4"]


def test_scores_are_shown_raw_and_corrected_and_short_rounds_are_said(page):
    course = events(rounds=6)
    first, second = (one["data"]["clusters"] for one in course if one["data"]["clusters"])
    first |= {"squared": -0.25, "corrected": 0.7512, "corrected_error": 0.043, "wanted": 1000}
    second |= {"squared": 0.125, "corrected": None, "corrected_error": None}
    second["corrected_reason"] = "not identifiable: its error would pass 15 %"
    text = " ".join(text_of(page(course)).split())
    for words in ("0.751 ± 0.043", "-0.250", "not identifiable", "9 of 1000", "Fewer uploads came"):
        assert words in text
    assert "Fewer uploads came" not in text_of(page(events()))


def test_a_per_sample_job_says_that_its_inference_is_per_record(page):
    inference = Guarantee(40.0, 0.0, "record", "proven")
    text = " ".join(text_of(page(events(), quote=replace(PROVEN, inference=inference))).split())
    assert "per record (inference)" in text
    assert "evaluation set of one" not in text


def test_a_simulated_run_protects_nobody_and_shows_no_bytes(page):
    html = page(events(), simulated=True)
    text = text_of(html)
    assert "This run protects nobody" in text
    assert "and in a real run holds against the cloud and the proxy" in text
    assert 'aria-label="Bytes' not in html
    assert "from cloud" not in text
    real = text_of(page(events()))
    assert "protects nobody" not in real
    assert "and holds against the cloud and the proxy" in real
    assert "from cloud" in real


def test_no_reference_is_spoken_of_where_none_was_trained(page):
    text = text_of(page(events(), reference=[]))
    assert "reference" not in text
    assert "without noise" not in text
    assert "gap to the reference" in text_of(page(events()))


def test_only_silhouettes_are_said_to_be_near_0(page):
    course = events()
    assert "Raw silhouettes near 0" in text_of(page(course))
    for one in course:
        if one["data"]["clusters"]:
            one["data"]["clusters"]["eval_type"] = "CALINSKI_HARABASZ_SCORE"
    assert "ilhouette" not in text_of(page(course))


@pytest.mark.parametrize(("uploads", "words"), [(9, "colour and number"), (61, "its colour is")])
def test_points_without_numbers_are_not_said_to_have_them(page, uploads, words):
    assert words in text_of(page(events(uploads=uploads)))


def test_one_exchange_is_one(page):
    assert "6 rounds after 1 preparatory exchange ·" in text_of(page(events()))


def test_an_untested_job_shows_the_rest(page):
    course = events()
    for one in course:
        one["data"]["accuracy"] = None
    assert page(course).count("<svg") == 4


def test_the_page_is_the_same_for_the_same_run(page):
    course = events()
    assert page(course) == page(course)


def _colours(svg):
    return set(re.findall(r"#[0-9a-fA-F]{6}", svg))


def test_pictures_follow_the_pages_colours():
    svg = plots.accuracy_plot([{"round": 1, "accuracy": 0.5}, {"round": 2, "accuracy": 0.6}], [])
    assert "var(--ink)" in svg
    assert not _colours(svg) & {"#000000", "#ffffff", "#010203", "#040506"}
    ElementTree.fromstring(svg)


@pytest.mark.parametrize("count", [1, 2, 9, 200])
def test_any_number_of_uploads_can_be_drawn(count):
    rng = np.random.default_rng(0)
    vectors = rng.random((count, 3))
    one = {"round": 5, "vectors": vectors.tolist(), "labels": vectors.argmax(1).tolist()}
    ElementTree.fromstring(plots.cluster_plot([{**one, "score": None, "eval_type": "X"}]))


def test_unused_uploads_and_many_evaluations_can_be_drawn():
    one = {"vectors": [[0.5, 0.5], [0.1, 0.9]], "labels": [0, -1], "score": 1.0, "eval_type": "X"}
    svg = plots.cluster_plot([{**one, "round": number} for number in range(1, 40)])
    assert svg.count('id="clusters-axes_') == plots.PANELS


def test_nothing_to_draw_is_no_picture():
    assert plots.accuracy_plot([], [0.9]) == ""
    assert plots.epsilon_plot([]) == ""
    assert plots.cluster_plot([{"round": 1, "vectors": []}]) == ""
    assert plots.bytes_plot({}) == ""
    assert plots.timeline_plot([]) == ""


def test_what_has_no_epsilon_has_no_panel():
    rows = [{"round": k, "epsilon": {"training": 1.0 * k, "inference": 0.0}} for k in (1, 2)]
    assert plots.spent(rows) == ["training"]
    assert 'id="epsilon-axes_1"' in plots.epsilon_plot(rows)
    assert 'id="epsilon-axes_2"' not in plots.epsilon_plot(rows)
    assert plots.epsilon_plot([{"round": 1, "epsilon": {}}]) == ""


def test_spending_without_a_number_is_drawn_as_a_gap():
    rows = [{"round": k, "epsilon": {"training": 1.0 * k, "inference": None}} for k in (1, 2)]
    ElementTree.fromstring(plots.epsilon_plot(rows))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (2048, "2 KiB"),
        (999 << 10, "999 KiB"),
        (1000 << 10, "0.977 MiB"),
        (1 << 20, "1 MiB"),
        (int(1.1 * 2**20), "1.1 MiB"),
        (1_023_900_000, "976 MiB"),
        (1000 << 20, "0.977 GiB"),
        (5 << 30, "5 GiB"),
        (5000 << 40, "5,000.00 TiB"),
    ],
)
def test_bytes_in_words(count, text):
    assert plots.byte_text(count) == text


def test_the_mean_of_inferences_has_a_table_with_its_noise(page):
    course = events()
    for one in course:
        one["data"]["clusters"] = None
    course[-1]["data"]["mean_softmax"] = {
        "eval_type": "MEAN_SOFTMAX",
        "mean": [0.125, 0.875],
        "uploads": 9,
        "noise_deviation": 0.0625,
    }
    told = text_of(page(course))
    assert "What devices predicted, on average" in told
    assert "class 0" in told
    assert "class 2" not in told
    assert "0.875" in told
    assert "± 0.062" in told
    assert "What devices predicted" not in text_of(page(events()))

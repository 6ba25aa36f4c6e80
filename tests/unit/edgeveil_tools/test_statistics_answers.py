"""Answers of a fleet for people and programs: text, rows, a DataFrame and the page."""

import copy

import pytest

from edgeveil.errors import UsageError
from edgeveil.statistics.answer_text import TOO_NOISY, lines, measured
from edgeveil_cloud.statistics_view import statistics_sections
from edgeveil_tools.statistics.answers import Statistics
from tests.kits.statistics_answers import ANSWERS


@pytest.mark.parametrize(
    ("value", "off", "text"),
    [
        (38.623, 0.204, "38.62 ± 0.20"),
        (29_900.4, 12.3, "29,900 ± 12"),
        (0.0712, 0.0099, "0.0712 ± 0.0099"),
        (5.0, 0.0, "5"),
    ],
)
def test_a_value_has_as_many_digits_as_its_noise_leaves(value, off, text):
    assert measured(value, off) == text


def test_text_has_every_answer_and_says_which_are_too_noisy():
    text = "\n".join(lines(ANSWERS))
    assert "30,000 ± 12 records on 100 devices, ε = 1 per record" in text
    assert "records      29,900 ± 12, 100 ± 12 missing" in text
    for shown in (
        "38.62 ± 0.20",
        "10 % 19, 50 % 37, 90 % 58; rank ± 0.4 %",
        "private 22,000 ± 12",
        "0.070 ± 0.010",
    ):
        assert shown in text
    (noisy,) = [line for line in text.split("\n") if "deviation" in line]
    assert noisy.endswith(TOO_NOISY) and "9.0" not in noisy
    assert "(other) at most 15" in text
    assert "all above 90 records" in text and "(other) 8,000 ± 40" in text
    assert text.endswith("note: 'age': about 12% of its values are outside 0 to 100")


def test_a_name_that_devices_sent_controls_no_terminal():
    asked = {"where": "sex = '\x1b[2J'", "remarks": ["'\x1b]0;x\x07': about 9%"]}
    for whole in (ANSWERS, ANSWERS | asked):
        assert not any(c in line for line in lines(whole) for c in "\x1b\n\x07")


def test_each_answer_is_found_by_its_name_and_each_number_is_a_row():
    found = Statistics(ANSWERS)
    assert found["mean", "age"]["value"] == 38.623
    assert found["table", "workclass", "income"]["plus_minus"] == 20
    with pytest.raises(UsageError, match="was not asked"):
        found["mean", "hours"]
    rows = found.rows()
    assert len(rows) == 4 + 4 + 3 + 4 + 4 + 1 + 3
    assert rows[4] == {
        "column": "age",
        "statistic": "histogram",
        "cell": "0 to 25",
        "value": 0.2,
        "plus_minus": 0.01,
        "too_noisy": False,
    }
    assert [row["too_noisy"] for row in rows if row["statistic"] == "deviation"] == [True]


def test_the_frame_has_the_rows_in_both_libraries():
    found = Statistics(ANSWERS)
    pandas_frame, polars_frame = found.frame(), found.frame("polars")
    assert pandas_frame.to_dict("records") == polars_frame.to_dicts() == found.rows()


def test_the_page_draws_lists_and_writes_numbers_with_what_noise_did():
    whole = copy.deepcopy(ANSWERS)
    overview, *drawn = statistics_sections(whole)
    assert [one["tone"] for one in overview["said"]] == ["soft", "warn"]
    (answers,) = overview["parts"]
    assert answers["head"] == ["column", "count", "missing", "mean", "deviation", "correlation"]
    of_age = ["age", "29,900 ± 12", "100 ± 12", "38.62 ± 0.20", TOO_NOISY, "–"]
    assert answers["rows"] == [of_age, ["age × hours", *["–"] * 4, "0.070 ± 0.010"]]
    kinds = {one["title"]: [part["kind"] for part in one["parts"]] for one in drawn}
    assert kinds == {
        "age": ["histogram", "lines"],
        "workclass": ["bars"],
        "workclass × income": ["heat"],
        "country": ["bars"],
    }
    (histogram, quantiles), (workclass,) = drawn[0]["parts"], drawn[1]["parts"]
    assert (histogram["values"], histogram["off"]) == ([20, 50, 30, 0], [1] * 4)
    assert quantiles["series"][0]["off"] == [0.5, 0.4, 0.6]
    assert workclass["rows"][-1] == ["(other)", 3.0, "at most 15", 12.0]


def test_a_picture_that_is_too_noisy_is_not_drawn():
    whole = copy.deepcopy(ANSWERS)
    for answer in whole["answers"]:
        answer["too_noisy"] = True
    (overview,) = statistics_sections(whole)
    cells = {cell for row in overview["parts"][0]["rows"] for cell in row[1:]}
    assert cells == {TOO_NOISY, "–"}

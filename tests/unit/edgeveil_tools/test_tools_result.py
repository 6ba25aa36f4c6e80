import json
import math
from dataclasses import replace

from edgeveil.privacy.guarantee import Guarantee
from edgeveil.privacy.policy import Quote
from edgeveil_tools.result import RunEvents, build, privacy_of, write_json
from tests.kits.job_events import FACTS as RUN
from tests.kits.job_events import committed


def event(kind, /, **data):
    return {"type": kind, "data": data}


QUOTE = Quote(Guarantee(8.0, 1e-5, "record", "proven"), Guarantee(60.0, 0.0, "device", "proven"))
FACTS = {**RUN, "reference": [0.5, 0.75], "privacy": privacy_of(QUOTE, 20.0)}


def course():
    record = RunEvents()
    for one in (committed(1, 0, 1), committed(2, 1, 2), committed(3, 2, 3, accuracy=0.625)):
        record.take(one)
    return record


def test_the_result_has_what_scripts_read():
    found = build(course(), **FACTS)
    assert found["final"] == {
        "accuracy": 0.625,
        "figures": None,
        "federated": None,
        "measured_on": "the published set's test records",
    }
    assert found["reference"] == {"accuracy": 0.75, "rounds": [0.5, 0.75], "note": ""}
    assert [row["round"] for row in found["rounds"]] == [1, 2]
    assert [row["phase"] for row in found["phases"]] == ["centre"]


def test_the_clouds_own_word_on_privacy_counts_when_the_job_completed():
    record = course()
    told = privacy_of(replace(QUOTE, training=Guarantee(7.5, 1e-5, "record", "proven")), 20.0)
    record.take(event("job_completed", reason="", privacy=told))
    assert build(record, **FACTS)["privacy"]["training"]["epsilon"] == 7.5
    failed = build(record, **{**FACTS, "status": "failed", "reason": "x"})
    assert failed["privacy"]["training"]["epsilon"] == 8.0


def test_the_file_is_strict_json_and_whole(tmp_path):
    unprotected = replace(QUOTE, inference=Guarantee(math.inf, 0.0, "device", "none"))
    content = build(course(), **{**FACTS, "privacy": privacy_of(unprotected, None)})
    path = tmp_path / "result.json"
    write_json(path, content)

    def refuse(text):
        raise AssertionError(text)

    assert json.loads(path.read_text(), parse_constant=refuse) == content
    assert content["privacy"]["inference"]["epsilon"] is None
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]

"""The owner's word: every key of the policy can refuse a job, and no record is read for it."""

import pytest
import yaml
from edge_kit import FIRST, PLAN, QUADRATIC, Device, Loader, Round, job

from edgeveil.config.policy import Policy
from edgeveil.jobs import compile_job, parse_plan
from edgeveil.protocol.device_round import SealedAnswer
from edgeveil_edge.consent import refusals

QUOTE = PLAN.quote()

REFUSED = [
    ("allowed_methods", ()),
    ("min_devices", 4),
    ("max_epsilon_per_job", QUOTE.training.epsilon * 0.999),
    ("lifetime_epsilon", QUOTE.training.epsilon * 0.999),
    ("lifetime_delta", 9e-6),
    ("max_inference_epsilon", QUOTE.inference.epsilon * 0.999),
]


def unread():
    return Loader(AssertionError("the data were read"))


def test_a_ledger_that_is_behind_declines_for_the_box_s_fault(tmp_path):
    device = Device(tmp_path, unread(), policy={"min_devices": 3}).knows(PLAN)
    device.ledger.count_untold()
    answer = device.declines(PLAN, QUADRATIC)
    assert answer.cause == "fault"


@pytest.mark.parametrize(("key", "value"), REFUSED)
def test_each_key_refuses_before_a_record_is_read(key, value, tmp_path):
    device = Device(tmp_path, unread(), policy={"min_devices": 3, key: value}).knows(PLAN)
    answer = device.declines(PLAN, QUADRATIC)
    assert answer.why.startswith(f"policy.{key}: ")
    assert answer.cause == ("budget" if "lifetime" in key or "inference" in key else "policy")
    assert device.load.reads == 0
    assert device.ledger.spent().epsilon == 0


def test_uploads_in_their_order_need_the_owners_word(tmp_path):
    plan = compile_job(job(proxy={"shuffle": "none"}))
    device = Device(tmp_path / "a", unread()).knows(plan)
    answer = device.declines(plan, QUADRATIC)
    assert answer.why.startswith("policy.accept_unshuffled: ")
    policy = {"min_devices": 3, "accept_unshuffled": True}
    willing = Device(tmp_path / "b", policy=policy).knows(plan)
    sealed = Round(plan, QUADRATIC, willing.keys())
    assert not sealed.manifest.shuffled
    assert isinstance(willing.answer(sealed), SealedAnswer)


def test_a_job_allowed_later_is_tried_before_a_round_is_priced(tmp_path):
    plan = compile_job(job(proxy={"shuffle": "none"}))
    policy = {"min_devices": 3, "accept_unshuffled": True}
    for name in ("warmed", "asked"):
        refusing = Device(tmp_path / name).knows(plan)
        refusing.declines(plan, QUADRATIC)
    warmed = Device(tmp_path / "warmed", policy=policy)
    warmed.host.warm_up()
    warmed.seals(plan, QUADRATIC)
    asked = Device(tmp_path / "asked", unread(), policy=policy)  # a round comes before the warm-up
    answer = asked.declines(plan, QUADRATIC)
    assert "the next round is answered" in answer.why
    asked.load.error = None
    asked.seals(plan, FIRST)


def test_an_inference_only_device_does_not_judge_the_training(tmp_path):
    policy = {"min_devices": 3, "allowed_methods": (), "max_epsilon_per_job": 0.0}
    device = Device(tmp_path, role="infer", policy=policy).knows(PLAN)
    device.seals(PLAN, FIRST)


def test_a_schema_whose_width_would_tell_how_many_records_there_are_is_refused():
    """Read so wide, some thousands of records fit memory and one more would not."""

    def of_pictures(height, width):
        schema = {
            "origin": "public",
            "label": {"classes": ("a", "b", "c")},
            "image": {"size": (height, width)},
        }
        data = {"source": "bench", "schema": schema, "nominal_records": 30}
        return compile_job(job(data=data, features=({"name": "random", "dimension": 8},)))

    policy = Policy()
    values = (2 << 30) // 4 // policy.max_records  # of one record, that so many have room
    assert 163 * 164 <= values < 164 * 164
    told = [str(one) for one in refusals(policy, of_pictures(163, 164), trains=True)]
    assert not any("max_records" in one for one in told)
    told = [str(one) for one in refusals(policy, of_pictures(164, 164), trains=True)]
    assert any("20000 records would not fit memory" in one for one in told)


def of_columns(*names, label="rich", **schema):
    columns = [{"name": name, "number": [0, 1]} for name in names]
    said = {"column": label, "classes": ["no", "yes"]}
    data = {
        "source": "bench",
        "nominal_records": 100,
        "schema": {"origin": "public", "label": said, "columns": columns, **schema},
    }
    text = {
        "job": "columns",
        "data": data,
        "features": [{"name": "identity"}],
        "train": {"method": "fm"},
        "unsupervised": {"eval_type": "NOT_EVAL"},
        "privacy": {"epsilon": 1},
    }
    return parse_plan(yaml.safe_dump(text))


def columns_refused(plan, *allowed, trains=True):
    policy = Policy(allowed_columns=allowed)
    return " ".join(str(one) for one in refusals(policy, plan, trains=trains))


@pytest.mark.parametrize("trains", [True, False])
def test_columns_that_the_owner_does_not_name_are_not_read(trains):
    plan = of_columns("age", "hours_week")
    assert list(refusals(Policy(), plan, trains=trains)) == []
    assert columns_refused(plan, "age", "hours_*", "rich", trains=trains) == ""
    told = columns_refused(plan, "age", "rich", trains=trains)
    assert "policy.allowed_columns: the job reads column 'hours_week'. add it" in told
    assert "column 'rich'" in columns_refused(plan, "age", "hours_week", trains=trains)
    assert "column 'age' and 2 more" in columns_refused(plan, trains=trains)


def test_a_name_that_a_job_gives_to_a_column_is_not_the_file_s():
    plan = of_columns("age", header=["diagnosis", "age", "rich"])
    renamed = of_columns("age", header=["age", "x", "rich"])  # it reads the first column
    assert "column 'age', the file's #2" in columns_refused(plan, "age", "rich")
    assert columns_refused(plan, "#2", "#3") == columns_refused(plan, "*") == ""
    assert "the file's #1" in columns_refused(renamed, "#2", "#3")


def test_a_job_without_a_schema_reads_every_column():
    assert "reads every column there is" in columns_refused(PLAN, "age")
    assert columns_refused(PLAN, "*") == ""

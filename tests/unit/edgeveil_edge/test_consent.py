"""The owner's word: every key of the policy can refuse a job, and no record is read for it."""

import pytest
import torch
from edge_kit import FIRST, PLAN, QUADRATIC, Device, Loader, Round, announcement, job, site

from edgeveil.config.policy import Policy
from edgeveil.errors import PrivacyError, ProtocolError, UsageError
from edgeveil.jobs import compile_job
from edgeveil.parts.features.onnx import sha256_hex
from edgeveil.parts.methods.statistics import StatisticsParameters
from edgeveil.parts.models import python_model
from edgeveil.plugins import code_digest
from edgeveil.privacy.ledger import Ledger, read_ledger
from edgeveil.privacy.policy import price
from edgeveil.protocol.device import InstallJob
from edgeveil.protocol.device_round import SealedAnswer
from edgeveil.protocol.sealed import JobPackage
from edgeveil_edge.consent import judge, limits_of, refusals
from edgeveil_edge.spending import left
from tests.kits.backbone_files import small_backbone

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


@pytest.mark.parametrize("how", ["behind", "its head of another ledger"])
def test_a_ledger_that_cannot_be_used_declines_for_the_box_s_fault(tmp_path, how):
    device = Device(tmp_path, unread(), policy={"min_devices": 3}).knows(PLAN)
    if how == "behind":
        device.ledger.count_unknown_answers()
    else:
        for head in tmp_path.rglob("ledger.head"):
            head.write_text(head.read_text()[:-8] + "00000000")
    assert device.declines(PLAN, QUADRATIC).cause == "fault"


@pytest.mark.parametrize(("key", "value"), REFUSED)
def test_each_key_refuses_before_a_record_is_read(key, value, tmp_path):
    device = Device(tmp_path, unread(), policy={"min_devices": 3, key: value}).knows(PLAN)
    answer = device.declines(PLAN, QUADRATIC)
    assert answer.why.startswith(f"policy.{key}: ")
    assert answer.cause == ("budget" if "lifetime" in key or "inference" in key else "policy")
    assert device.load.reads == device.ledger.spent().epsilon == 0


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


@pytest.mark.parametrize(("width", "refused"), [(163, False), (164, True)])
def test_a_schema_whose_width_would_tell_how_many_records_there_are_is_refused(width, refused):
    """Read so wide, some thousands of records fit memory and one more would not."""
    policy, label = Policy(), {"classes": ("a", "b", "c")}
    assert (width * 164 > (2 << 30) // 4 // policy.max_records) is refused
    schema = {"origin": "public", "label": label, "image": {"size": (width, 164)}}
    data = {"source": "bench", "schema": schema, "nominal_records": 30}
    plan = compile_job(job(data=data, features=({"name": "random", "dimension": 8},)))
    told = [str(one) for one in refusals(policy, plan, trains=True)]
    assert any("max_records" in one or "would not fit memory" in one for one in told) is refused


def of_columns(*names, label="rich", **schema):
    columns = tuple({"name": name, "number": (0.0, 1.0)} for name in names)
    said = {"column": label, "classes": ("no", "yes")}
    schema = {"origin": "public", "label": said, "columns": columns, **schema}
    data = {"source": "bench", "nominal_records": 100, "schema": schema}
    return compile_job(job(data=data, unsupervised={"eval_type": "NOT_EVAL"}, encrypt={}))


def columns_refused(plan, *allowed, trains=True):
    policy = Policy(allowed_columns=allowed)
    return " ".join(str(one) for one in refusals(policy, plan, trains=trains))


@pytest.mark.parametrize("trains", [True, False])
def test_columns_that_the_owner_does_not_name_are_not_read(trains):
    plan = of_columns("age", "hours_week")
    assert list(refusals(Policy(), plan, trains=trains)) == []
    assert columns_refused(plan, "age", "hours_*", "rich", trains=trains) == ""
    for allowed, named in (
        (("age", "rich"), "hours_week"),
        (("age", "hours_week"), "rich"),
        ((), "'age' and 2 more"),
    ):
        assert named in columns_refused(plan, *allowed, trains=trains)


def test_a_name_that_a_job_gives_to_a_column_is_not_the_file_s():
    plan = of_columns("age", header=("diagnosis", "age", "rich"))
    renamed = of_columns("age", header=("age", "x", "rich"))  # it reads the first column
    assert "#2" in columns_refused(plan, "age", "rich")
    assert columns_refused(plan, "#2", "#3") == columns_refused(plan, "*") == ""
    assert "#1" in columns_refused(renamed, "#2", "#3")
    assert columns_refused(PLAN, "age")  # without a schema a job reads every column
    assert columns_refused(PLAN, "*") == ""


@pytest.mark.parametrize(
    ("source", "header", "allowed", "refused"),
    [
        ("jsonl", None, ("age", "rich"), False),
        ("jsonl", None, ("#1", "#2"), True),
        ("parquet", None, ("#1", "#2"), True),
        ("csv", True, ("#1", "#2"), True),
        ("csv", False, ("#1", "#2"), False),
    ],
)
def test_columns_are_allowed_by_place_only_where_a_job_names_them(
    source, header, allowed, refused, tmp_path
):
    data = {"name": "bench", "source": source, "path": tmp_path / "a", "header": header}
    policy = {"allowed_columns": allowed, "min_devices": 1}
    plan = of_columns("age", header=("age", "rich"))
    try:
        judge(site(tmp_path, data=data, policy=policy), plan)
    except PrivacyError as error:
        assert refused and error.where == "policy.allowed_columns"
    else:
        assert not refused


TAKES_SGD = {
    "min_devices": 3,
    "allowed_methods": ("sgd",),
    "accept_unproven": True,
    "accept_unprotected": True,
}


class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 3)


FUNCTION = f"{__name__}:Net"


def allowing(digest, function=FUNCTION):
    return {**TAKES_SGD, "allowed_python_models": ({"function": function, "sha256": digest},)}


NET = {"name": "python", "function": FUNCTION}
CODE_PLAN = compile_job(
    job(
        features=(),
        model={**NET, "weights": (("weight", (3, 4)), ("bias", (3,)))},
        train={"method": "sgd", "rounds": 1},
        privacy={"epsilon": 4.0, "delta": 1e-5, "accept_unproven": True},
        unsupervised={"every_rounds": 0},
    )
)


def test_where_the_owner_allows_its_code_the_device_trains(tmp_path):
    device = Device(tmp_path, policy=allowing(code_digest(FUNCTION))).knows(CODE_PLAN)
    assert set(device.seals(CODE_PLAN, 1)) == {"module.weight", "module.bias"}


@pytest.mark.parametrize(
    "policy",
    [TAKES_SGD, allowing("0" * 64), allowing(code_digest(FUNCTION), f"{__name__}:allowing")],
    ids=["not allowed", "other files", "another function"],
)
def test_without_that_neither_code_nor_records_are_read(tmp_path, monkeypatch, policy):
    device = Device(tmp_path, policy=policy).knows(CODE_PLAN)
    monkeypatch.setattr(python_model, "loaded", lambda _function: pytest.fail("the code ran"))
    assert device.declines(CODE_PLAN, 1).why.startswith("policy.allowed_python_models: ")
    assert device.load.reads == 0


def test_the_digest_is_of_the_package_s_files_and_runs_none_of_them(tmp_path, monkeypatch):
    package = tmp_path / "owners_nets"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('it ran')")
    (package / "net.py").write_text("class Net: ...")
    monkeypatch.syspath_prepend(tmp_path)
    found = code_digest("owners_nets.net:Net")
    code_digest.cache_clear()
    (package / "helper.py").write_text("")
    assert code_digest("owners_nets.net:Net") != found, "what it imports counts too"
    for function in ("no_such_package:Net", "sys:exit"):
        with pytest.raises(UsageError, match="files of its own"):
            code_digest(function)


def test_a_file_of_the_version_before_is_read_and_its_wide_word_refused():
    assert Policy.model_validate({"allow_python_models": False}) == Policy()
    with pytest.raises(ValueError, match="allowed_python_models"):
        Policy.model_validate({"allow_python_models": True})


BACKBONE = small_backbone(side=2, features=3)
DIGEST = sha256_hex(BACKBONE)


def plan_for(graph):
    digest = sha256_hex(graph)
    form = {"input_form": (1, 2, 2), "output_dim": 3, "input_scale": 1.0}
    entry = {"name": "onnx", "sha256": digest, **form}
    plan = compile_job(job(features=({"name": "identity"}, entry)))
    return plan.with_artifacts({digest: graph})


BACKED_PLAN = plan_for(BACKBONE)


def backed(folder, *allowed, **changes):
    return Device(folder, policy={"min_devices": 3, "allowed_backbones": allowed}, **changes)


@pytest.mark.parametrize("allowed", [(), ("0" * 64,)], ids=["none", "another"])
@pytest.mark.parametrize("role", ["train", "infer"])
def test_another_is_refused_by_its_digest_before_a_record_is_read(tmp_path, allowed, role):
    box = backed(tmp_path, *allowed, role=role).knows(BACKED_PLAN)
    answer = box.declines(BACKED_PLAN, FIRST)
    assert answer.why.startswith("policy.allowed_backbones: ") and DIGEST in answer.why
    assert box.load.reads == box.ledger.spent().epsilon == 0


@pytest.mark.parametrize(
    "sent",
    [(), (small_backbone(side=2, features=3, seed=1),), (BACKBONE, b"more")],
    ids=["none", "another", "more"],
)
def test_what_comes_with_the_job_must_be_what_it_names(tmp_path, sent):
    box = backed(tmp_path, DIGEST)
    package = JobPackage(BACKED_PLAN.job.canonical(), b"graph", sent)
    with pytest.raises(ProtocolError) as caught:
        box.host.perform(InstallJob(announcement(BACKED_PLAN, box.keys()), package))
    assert caught.value.reason == "wrong_backbone"
    assert box.store.load().jobs == {}


def test_an_owner_names_the_columns_and_the_price_of_questions(tmp_path):
    asks = {"epsilon": 1.0, "columns": ({"name": "age", "number": (0.0, 100.0)},)}
    schema = {
        "origin": "public",
        "label": {"column": "y", "classes": ("a", "b", "c")},
        "columns": ({"name": tuple("pqrs"), "number": (0.0, 1.0)},),
    }
    data = {"source": "bench", "nominal_records": 20, "schema": schema}
    plan = compile_job(job(data=data, statistics=asks))
    free = {"min_devices": 3, "allowed_methods": ("fm", "statistics")}
    for policy, key in (
        ({"allowed_methods": ("fm",)}, "allowed_methods"),
        ({"allowed_columns": tuple("pqrsy")}, "allowed_columns"),
        ({"statistics_columns": ("p*",)}, "statistics_columns"),
    ):
        found = [e.where for e in refusals(Policy(**{**free, **policy}), plan, trains=True)]
        assert found == [f"policy.{key}"]
    part = {"name": "picture", "part": "class", "category": ("0", "1")}
    pictures = compile_job(job(statistics={"epsilon": 1.0, "columns": (part,)}))
    for columns, refused in ((("picture:height",), 1), (("picture:*",), 0)):
        policy = Policy(**free, statistics_columns=columns)
        assert len([*refusals(policy, pictures, trains=True)]) == refused
    allowed = Policy(**free, allowed_columns=("age", *"pqrsy"), statistics_columns=("a*",))
    assert not [*refusals(allowed, plan, trains=True)]


def test_questions_have_a_budget_of_their_own(tmp_path):
    asks = {"epsilon": 1.0, "columns": ({"name": "age", "number": (0.0, 100.0)},)}
    data = {"source": "people", "nominal_records": 20}
    train = {"method": "statistics", "columns": asks["columns"]}
    schema = StatisticsParameters(**train).records_schema.model_dump()
    own = {**data, "schema": schema, "evaluation_share": 0.0}
    alone = compile_job(job(data=own, train=train, features=(), unsupervised={"every_rounds": 0}))
    single = price(alone.events(), 1e-5).training.epsilon
    ledger = Ledger(tmp_path / "ledger.sqlite", "people")
    wide = {"max_epsilon_per_job": 100.0, "lifetime_epsilon": 100.0}
    limits = limits_of(Policy(**wide, statistics_epsilon=1.5 * single))
    for name in ("a", "b"):
        ledger.open_job(alone.request(name), limits)
        ledger.commit(name, 1, alone.events(), b"")
    assert _left(ledger, tmp_path, statistics_epsilon=1.5 * single) < 0.5 * single
    refused = 0
    with pytest.raises(PrivacyError, match="statistics_epsilon"):
        for refused in range(9):
            ledger.open_job(alone.request(f"c{refused}"), limits)
    assert refused < 4
    ledger.open_job(PLAN.request("d"), limits)


def _left(ledger, folder, **policy):
    account = read_ledger(folder / "ledger.sqlite").accounts["people"]
    return left(account, Policy(**policy))["statistics_epsilon"]

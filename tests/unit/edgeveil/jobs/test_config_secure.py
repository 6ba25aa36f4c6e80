"""Jobs that sum under masks: what cannot be summed so is refused at load, with a way out."""

from __future__ import annotations

import pytest

from edgeveil.errors import ConfigError
from edgeveil.jobs import Job, compile_job, parse_job
from edgeveil.jobs.plan import MOST_SUMMED, Plan, summands
from edgeveil.parts.exchange import summed_spec
from edgeveil.parts.methods import METHODS

JOB = """\
job: summed
data: {{source: digits, classes: 10, input_shape: [64], nominal_records: {records}}}
features: {features}
train: {train}
privacy: {{epsilon: {epsilon}{privacy}}}
aggregation: {rule}
selection: {{devices: {devices}}}
unsupervised: {{eval_type: NOT_EVAL}}
{more}
"""


def job(**changes: object) -> Job:
    plain = {
        "records": 64,
        "features": "[{name: identity}]",
        "train": "{method: fm, rounds: 4}",
        "epsilon": 8,
        "privacy": "",
        "rule": "{name: fedavg, secure: true}",
        "devices": 20,
        "more": "",
    }
    return parse_job(JOB.format(**(plain | changes)))


def pca(more: str) -> str:
    return f"[{{name: identity}}, {{{more}}}]"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"devices": "all", "records": 16},
        {"devices": 60_000},
        {"train": "{method: fm, rounds: 4, noise: laplace, quadratic: never}"},
        {"features": pca("name: ldp_fpca, keep: 0.25")},
        {"train": "{method: fm, rounds: 4, centre: false}"},
        {"more": "proxy: {shuffle: none}"},
    ],
)
def test_what_fits_loads_and_travels(changes: dict[str, object]) -> None:
    made = job(**changes)
    assert made.aggregation.secure
    assert Job.from_canonical(made.canonical()) == made
    plan = compile_job(made)
    assert all(len(plan.masked(exchange)) == 1 for exchange in plan.planned)


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "krum", "secprobe"])
def test_a_rule_that_looks_at_single_uploads_is_refused(rule: str) -> None:
    with pytest.raises(ConfigError, match=f"'{rule}' looks at single ones.*fedavg") as caught:
        job(rule=f"{{name: {rule}, secure: true{', k: 5' * (rule == 'secprobe')}}}")
    assert "aggregation.secure: with secure sums" in str(caught.value)
    assert "leave secure out" in str(caught.value)


def test_every_method_says_whether_it_can_be_summed() -> None:
    assert [name for name in METHODS if METHODS[name].summed] == ["fm", "noise_only"]


@pytest.mark.parametrize(
    ("train", "more"),
    [
        ("{method: sgd, rounds: 2}", "model: {name: mlp}"),
        ("{method: fm_paper, rounds: 2}", ""),
    ],
)
def test_a_method_that_uploads_no_integers_is_refused(train: str, more: str) -> None:
    method = train.split(",")[0].removeprefix("{method: ")
    changes = {"train": train, "more": more, "privacy": ", accept_unproven: true"}
    if more:
        changes["features"] = "[]"
    with pytest.raises(ConfigError, match=f"method '{method}' is no sum of integers") as caught:
        job(**changes)
    said = str(caught.value)
    assert "aggregation.secure: what" in said
    assert "use fm, noise_only, or leave secure out" in said


def test_bases_of_devices_own_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"basis of its own.*use ldp_fpca") as caught:
        job(features=pca("name: ldp_pca"), devices="all", train="{method: fm, rounds: 4}")
    assert "aggregation.secure: with ldp_pca" in str(caught.value)


def test_noise_without_bounds_is_refused() -> None:
    wishart = pca("name: ldp_fpca, noise: wishart")
    with pytest.raises(ConfigError, match=r"Wishart noise has no bound.*noise: gaussian"):
        job(features=wishart, privacy=", accept_unproven: true")


@pytest.mark.parametrize(
    "changes",
    [
        {"devices": "all", "records": 40_000},
        {"epsilon": 0.01, "devices": 60_000},
        {"devices": 10**6, "records": 1000},
    ],
    ids=["all", "epsilon", "devices"],
)
def test_sums_that_no_ring_holds_are_refused_with_every_way_out(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        job(**changes)
    said = str(caught.value)
    assert "aggregation.secure: the devices' sums do not fit the largest ring" in said
    assert "8 to 56 bits" in said
    assert "name fewer devices in selection.devices, or lower data.nominal_records" in said


def test_a_job_without_masks_says_nothing_of_them() -> None:
    plan = compile_job(job(rule="{name: fedavg}"))
    assert not any(plan.masked(exchange) for exchange in plan.planned)
    assert all(spec.bits == 0 for exchange in plan.planned for spec in plan.segments(exchange))
    assert plan.setting.summed == 0


def test_the_most_that_is_summed_is_what_is_selected() -> None:
    assert summands(job()) == 20
    more = job(devices="10, over_select: 1.25")
    assert summands(more) == 13
    assert Plan(more).setting.summed == 13
    assert summands(job(devices="all", records=16)) == MOST_SUMMED


def test_no_sum_of_the_largest_uploads_leaves_its_ring() -> None:
    for largest in (1, 2, 3, 2**20, 2**20 + 1, 2**40 - 1):
        for uploads in (1, 2, 3, 5, 64, 100):
            bits = summed_spec("x", (1,), largest, uploads).bits
            assert largest * uploads < 2 ** (bits - 1)
            assert bits == 8 or largest * uploads >= 2 ** (bits - 2)  # and none is wasted

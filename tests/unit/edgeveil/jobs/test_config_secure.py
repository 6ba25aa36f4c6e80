"""Jobs that sum under masks: what cannot be summed so is refused at load, with a way out."""

import pytest

from edgeveil.errors import ConfigError
from edgeveil.jobs import Job, compile_job, parse_job
from edgeveil.jobs.plan import MOST_SUMMED, SOFTMAX, summands
from edgeveil.jobs.who_sees import who_sees
from edgeveil.privacy.events import LaplaceEvent
from edgeveil.privacy.laplace_mechanism import largest_softmax, noise_room

JOB = """\
job: summed
data: {{source: digits, classes: 10, input_shape: [64], nominal_records: {records}}}
features: {features}
train: {train}
privacy: {{epsilon: {epsilon}{privacy}}}
aggregation: {rule}
selection: {{devices: {devices}}}
unsupervised: {{{evaluated}}}
{more}
"""


def job(**changes):
    plain = {
        "records": 64,
        "features": "[{name: identity}]",
        "train": "{method: fm, rounds: 4}",
        "epsilon": 8,
        "privacy": "",
        "rule": "{name: fedavg, secure: true}",
        "devices": 20,
        "evaluated": "eval_type: NOT_EVAL",
        "more": "",
    }
    return parse_job(JOB.format(**(plain | changes)))


def pca(more):
    return f"[{{name: identity}}, {{{more}}}]"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"devices": "all", "records": 16},
        {"devices": 60_000},
        {"devices": "10, over_select: 1.25"},
        {"train": "{method: fm, rounds: 4, noise: laplace, quadratic: never}"},
        {"features": pca("name: ldp_fpca, keep: 0.25")},
        {"more": "proxy: {shuffle: none}"},
    ],
)
def test_what_fits_loads_and_travels(changes):
    made = job(**changes)
    assert made.aggregation.secure
    assert Job.from_canonical(made.canonical()) == made
    plan = compile_job(made)
    assert all(len(plan.masked(round)) == 1 for round in plan.planned)
    wanted = {10: 13, 20: 20, 60_000: 60_000, "all": MOST_SUMMED}
    assert plan.context.summed == summands(made) == wanted[made.selection.devices]


BATCH = "round: {min_batch: 20}"


@pytest.mark.parametrize(
    "rule",
    [
        "{name: median, secure: true, groups: 5}",
        "{name: trimmed_mean, secure: true, groups: 10, share: 0.2}",
    ],
)
def test_rules_that_compare_look_at_the_means_of_groups(rule):
    made = job(rule=rule, more=BATCH, privacy=", noise: shared, honest_share: 1.0")
    assert Job.from_canonical(made.canonical()) == made
    plan = compile_job(made)
    assert plan.sets == made.aggregation.groups
    assert plan.context.honest == 20 // plan.sets


def of_a_model(update="[{name: gradient_gaussian}]", **changes):
    train = changes.pop("train", "{method: sgd, rounds: 2}")
    more = f"model: {{name: mlp, hidden: []}}\nupdate: {update}"
    return job(train=train, features="[]", more=more, **changes)


@pytest.mark.parametrize("more", ["", ", noise: shared"])
def test_a_models_updates_are_summed_and_their_noise_can_be_shared(more):
    plan = compile_job(of_a_model(privacy=more))
    (train, *_) = plan.planned
    assert len(plan.masked(train)) == len(plan.segments(train)) == 2  # weight and bias
    assert (plan.quote().training.if_colluding is not None) == bool(more)
    of_a_model(HALF, rule=PLAIN)  # what masked sums refuse, below
    assert compile_job(of_a_model(MOVING)).context.stages[0].clip is not None


def evaluated(asked="", encrypt="20", **changes):
    wanted = f"every_rounds: 2, eval_type: MEAN_SOFTMAX{asked}"
    more = f"encrypt: {{laplace_eval: {{laplace_eval_eps: {encrypt}}}}}"
    return job(evaluated=wanted, more=more, **changes)


PLAIN, HALF = "{name: fedavg}", "[{name: gradient_gaussian}, {name: cast}]"
MOVING = "[{name: gradient_gaussian, quantile: 0.5}]"
GROUPS, SECURE = "aggregation.groups", "aggregation.secure"
NOISE, LAPLACE = "privacy.noise", "encrypt.laplace_eval.laplace_eval_eps"
GAUSSIAN, PARTICLES = "{name: gradient_gaussian}", "{method: pso_dp_fl, rounds: 2}"
UNPROVEN = {"privacy": ", accept_unproven: true"}
SHARED = {"privacy": ", noise: shared, accept_unproven: true"}
WISHART = pca("name: ldp_fpca, noise: wishart")


@pytest.mark.parametrize(
    ("made", "changes", "key", "why"),
    [
        # groups of no use or too small
        (job, {"rule": "{name: fedavg, secure: true, groups: 5}", "more": BATCH}, GROUPS, "of no"),
        (job, {"rule": "{name: median, groups: 5}", "more": BATCH}, GROUPS, "without secure sums"),
        (job, {"rule": "{name: median, secure: true, groups: 11}", "more": BATCH}, GROUPS, "22"),
        (job, {"rule": "{name: median, secure: true, groups: 65}", "more": BATCH}, GROUPS, "in"),
        # no sum, or no noise that can be shared
        (job, {"rule": "{name: median, secure: true}"}, SECURE, "'median' needs single"),
        (job, {"train": "{method: fm_paper, rounds: 2}", **UNPROVEN}, SECURE, "be summed as integ"),
        (of_a_model, {"update": f"[{GAUSSIAN}, {{name: upload_top_k}}]"}, SECURE, "'upload_top"),
        (of_a_model, {"update": "[]", **SHARED}, NOISE, "cannot be shared"),
        (of_a_model, {"update": "[]", "train": PARTICLES, **SHARED}, NOISE, "cannot be shared"),
        (of_a_model, {"update": "[{name: ldp_fl, composition: parallel}]", **SHARED}, NOISE, "be"),
        (of_a_model, {"update": HALF}, "update[1]", ""),
        (of_a_model, {"update": MOVING, "rule": PLAIN}, "update[0].quantile", "follows a sum"),
        (job, {"features": pca("name: ldp_pca"), "devices": "all"}, SECURE, "with ldp_pca"),
        (job, {"features": WISHART, **UNPROVEN}, SECURE, "Wishart noise has"),
        # no ring holds the sum
        (job, {"devices": "all", "records": 900_000}, SECURE, "largest ring"),
        (job, {"epsilon": 0.01, "devices": 900_000}, SECURE, "largest ring"),
        # inferences
        (evaluated, {"asked": ", upload: per_sample"}, "unsupervised.eval_type", "MEAN_SOFTMAX is"),
        (evaluated, {"encrypt": "5.0e-7", "devices": "all", "records": 16}, LAPLACE, "softmax"),
    ],
)
def test_what_cannot_be_summed_is_refused_with_its_key(made, changes, key, why):
    made()
    with pytest.raises(ConfigError) as caught:
        made(**changes)
    assert any(f" {key}: " in one and why in one for one in caught.value.problems), caught.value


def test_laplace_noise_of_sums_has_the_room_that_a_job_needs():
    plan = compile_job(job(train="{method: fm, noise: laplace}", epsilon=8))
    for round in plan.planned:
        (event,), (spec,) = plan.device.price(round), plan.segments(round)
        assert isinstance(event, LaplaceEvent)
        assert 20 * noise_room(event) < 2 ** (spec.bits - 1)
        records = plan.device.budget.room(round.phase, 64)
        largest = plan.device.budget.largest(round.phase, 64)
        assert largest == records + noise_room(event)


def test_the_mean_of_inferences_is_summed_and_what_clusters_is_not():
    plan = compile_job(evaluated())
    inferring = [round for round in plan.planned if round.infer]
    assert inferring
    for round in inferring:
        spec = plan.segments(round)[-1]
        assert (spec.name, spec.dtype, spec.shape) == (SOFTMAX, "int64", (10,))
        assert 20 * largest_softmax(plan.softmax_event()) < 2 ** (spec.bits - 1)
        assert len(plan.masked(round)) == len(plan.segments(round))
    changes = {"unsupervised": {"every_rounds": 2}}
    clustered = compile_job(Job.model_validate({**evaluated().model_dump(), **changes}))
    spec = clustered.segments(inferring[0])[-1]
    assert (spec.name, spec.dtype, spec.bits) == (SOFTMAX, "float64", 0)
    for one, cloud in ((plan, "no single upload"), (clustered, "not under masks")):
        (sight,) = [sight for sight in who_sees(one) if sight.what == "inferences"]
        assert cloud in sight.cloud

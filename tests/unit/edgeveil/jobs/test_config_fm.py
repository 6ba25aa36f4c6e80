"""Options of `fm` and of a PCA that a job may not mix, told when it loads."""

import pytest

from edgeveil.errors import ConfigError
from edgeveil.jobs import parse_job

JOB = """\
job: mixed
data: {{source: digits, classes: 10, input_shape: [64], nominal_records: 64}}
features: [{{name: identity}}{pca}]
train: {{method: fm, rounds: 4{train}}}
privacy: {{epsilon: 2{privacy}}}
{more}
"""
NOT_EVALUATED = "unsupervised: {eval_type: NOT_EVAL}"


def job(pca="", train="", privacy="", more=""):
    entry = f", {{{pca}}}" if pca else ""
    return parse_job(JOB.format(pca=entry, train=train, privacy=privacy, more=more))


@pytest.mark.parametrize(
    "given",
    [
        {"pca": "name: ldp_fpca, keep: 0.25"},
        {"pca": "name: ldp_pca", "train": ", centre: false"},
        {"pca": "name: ldp_fpca, noise: wishart", "privacy": ", accept_unproven: true"},
        {
            "pca": "name: local_pca",
            "privacy": ", accept_unproven: true",
            "more": NOT_EVALUATED,
        },
        {"train": ", noise: laplace, quadratic: never"},
        {"pca": "name: ldp_fpca", "train": ", noise: laplace"},
    ],
)
def test_what_fits_loads(given):
    assert job(**given).train.rounds == 4


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pca": "name: ldp_fpca, noise: wishart"}, "covariance with Wishart noise"),
        ({"pca": "name: local_pca", "more": NOT_EVALUATED}, "own PCA, without noise"),
        (
            {
                "pca": "name: local_pca",
                "privacy": ", accept_unproven: true",
                "more": "unsupervised: {every_rounds: 2}\n"
                "encrypt: {laplace_eval: {laplace_eval_eps: 20}}",
            },
            "no basis",
        ),
        (
            {"pca": "name: ldp_pca", "more": "selection: {devices: 7}"},
            "its first answer",
        ),
        ({"pca": "name: ldp_fpca, keep: 0"}, "keep"),
        ({"pca": "name: ldp_fpca, share: 1"}, "share"),
        ({"train": ", noise: cauchy"}, "noise"),
        ({"train": ", clip: 0"}, "clip"),
        ({"train": ", noise: laplace", "privacy": ", max_participations: 9"}, "rounds"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(given, said):
    with pytest.raises(ConfigError, match=said):
        job(**given)


def test_a_budget_that_laplace_noise_cannot_meet_is_refused():
    text = JOB.format(pca="", train=", noise: laplace", privacy="", more="")
    with pytest.raises(ConfigError, match="cannot be met"):
        parse_job(text.replace("epsilon: 2", "epsilon: 0.00001"))

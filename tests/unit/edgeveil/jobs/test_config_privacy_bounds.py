"""Budgets, stops and claims that cannot hold are refused when the job loads, with the fix."""

from pathlib import Path

import pytest

from edgeveil.errors import ConfigError
from edgeveil.jobs import parse_job

JOB = Path("tests/kits/quickstart.yaml").read_text()
STOP = "stop: {rule: moments_delta, epsilon: 8, delta: 1.0e-5}"
IDENTITY = "  - {name: identity, input_scale: 16, shift: -0.3}"


def job(*changes: tuple[str, str]) -> str:
    text = JOB
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def refused(*changes: tuple[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_job(job(*changes), "j.yaml")
    return caught.value.problems


@pytest.mark.parametrize(
    ("old", "new", "key", "what", "fix"),
    [
        ("epsilon: 8\n", "epsilon: -1\n", "privacy.epsilon", "more than 0, got -1", "example 8"),
        ("delta: 1.0e-5 ", "delta: 0 ", "privacy.delta", "in (0, 1), got 0", "example 1.0e-5"),
        ("delta: 1.0e-5 ", "delta: 1 ", "privacy.delta", "in (0, 1), got 1", "example 1.0e-5"),
        ("delta: 1.0e-5 ", "delta: 0.5 ", "privacy.delta", "not below 1 /", "set for example"),
        ("method: fm\n", "method: fm\n  clip: 0\n", "train.clip", "in (0, 2], got 0", "example"),
        (
            "method: fm\n",
            "method: fm\n  radius: 1.0e-9\n",
            "train.radius",
            "in [0.001, 2], got 1.0e-9",
            "example",
        ),
        ("epsilon: 8\n", "epsilon: 900\n", "privacy.epsilon", "cannot be met", "set for example 8"),
        (
            "epsilon: 8\n",
            "epsilon: 1.0e-4\n",
            "privacy.epsilon",
            "more than 2^40 grid steps",
            "allow fewer",
        ),
        ("laplace_eval_eps: 20", "laplace_eval_eps: 0", "laplace_eval_eps", "more than 0", "20"),
        ("stop: null", "stop: {epsilon: 0, delta: 0.1}", "stop.epsilon", "more than 0", "example"),
        ("stop: null", "stop: {epsilon: 8, delta: 1}", "stop.delta", "in (0, 1)", "example 1.0e-5"),
        ("stop: null", "stop: {epsilon: 8}", "privacy.stop.delta", "is missing", "1.0e-5"),
        (
            "stop: null",
            "stop: {rule: moment, epsilon: 8, delta: 0.1}",
            "stop.rule",
            "must be 'moments_delta'",
            "set for example moments_delta",
        ),
        (
            "stop: null",
            STOP.replace("epsilon: 8", "epsilon: 2"),
            "privacy.stop.delta",
            "not one training round would begin: the first takes δ to 0.1",
            "raise privacy.stop.epsilon, or lower privacy.epsilon",
        ),
    ],
)
def test_a_bound_without_meaning_is_named_with_its_fix(old, new, key, what, fix):
    text = "\n".join(refused((old, new)))
    for part in (key, what, fix):
        assert part in text


def test_a_stop_before_the_first_evaluation_is_refused():
    [problem] = refused(("stop: null", STOP.replace("epsilon: 8", "epsilon: 5.5")))
    assert "privacy.stop" in problem
    assert "devices would never be evaluated; set unsupervised.every_rounds to at most" in problem


def test_a_claimed_mechanism_must_be_asked_for():
    wishart = (IDENTITY, f"{IDENTITY}\n  - {{name: ldp_fpca, noise: wishart}}")
    [problem] = refused(wishart)
    assert "no guarantee is proven for" in problem
    assert "set privacy.accept_unproven to true" in problem
    asked = ("accept_unproven: false    # true: run", "accept_unproven: true  # run")
    allowed = ("accept_unproven: false\n", "accept_unproven: true\n")
    assert parse_job(job(wishart, asked, allowed), "j.yaml").privacy.accept_unproven


def test_what_is_not_proven_cannot_be_stopped_by_its_delta():
    wishart = (IDENTITY, f"{IDENTITY}\n  - {{name: ldp_fpca, noise: wishart}}")
    asked = ("accept_unproven: false    # true: run", "accept_unproven: true  # run")
    [problem] = refused(wishart, asked, ("stop: null", STOP))
    assert "privacy.stop" in problem
    assert "no proven bound, so no δ can be tracked; leave privacy.stop out" in problem


def test_a_stop_that_is_never_reached_is_fine():
    assert parse_job(job(("stop: null", STOP.replace("epsilon: 8", "epsilon: 40"))), "j.yaml")

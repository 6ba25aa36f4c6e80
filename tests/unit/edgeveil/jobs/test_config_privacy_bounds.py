"""Budgets and claims that cannot hold are refused when the job loads, with the fix."""

from pathlib import Path

import pytest

from edgeveil.errors import ConfigError
from edgeveil.jobs import parse_job

JOB = Path("tests/kits/quickstart.yaml").read_text()
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
    ],
)
def test_a_bound_without_meaning_is_named_with_its_fix(old, new, key, what, fix):
    text = "\n".join(refused((old, new)))
    for part in (key, what, fix):
        assert part in text


def test_a_claimed_mechanism_must_be_asked_for():
    wishart = (IDENTITY, f"{IDENTITY}\n  - {{name: ldp_fpca, noise: wishart}}")
    [problem] = refused(wishart)
    assert "no guarantee is proven for" in problem
    assert "`privacy: {accept_unproven: true}`" in problem
    asked = ("accept_unproven: false    # true: run", "accept_unproven: true  # run")
    assert parse_job(job(wishart, asked), "j.yaml").privacy.accept_unproven

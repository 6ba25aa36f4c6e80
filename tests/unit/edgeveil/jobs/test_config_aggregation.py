"""Aggregation rules that a job leaves no room for are refused at load, with the reason."""

import pytest

from edgeveil.jobs import Job
from edgeveil_tools.local.local_run import LocalJob, compile_local


def job(rule, method="sgd", **changes):
    trained = (
        {"model": {"name": "mlp"}} if method == "sgd" else {"features": ({"name": "identity"},)}
    )
    plain = {
        "job": "ruled",
        "data": {"source": "npz", "classes": 3, "input_shape": (4,), "nominal_records": 30},
        "train": {"method": method, "rounds": 2},
        "privacy": {"epsilon": 4.0, "accept_unproven": True},
        "aggregation": rule,
        **trained,
    }
    job = LocalJob.model_validate({**plain, **changes})
    return compile_local(job.alone, job.local_run).job


WHOLE = {"shuffle": "whole"}
DIVERGENCE = {"name": "min_divergence", "k": 5}
SCORED = {"name": "secprobe", "k": 5}


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        (DIVERGENCE, {}),
        (DIVERGENCE, {"proxy": WHOLE}),
        (DIVERGENCE, {"method": "fm_paper"}),
        (SCORED, {"proxy": WHOLE}),
        ({"name": "krum"}, {"proxy": WHOLE, "selection": {"devices": 5}}),
        ({"name": "median"}, {"method": "fm"}),
        ({"name": "trimmed_mean"}, {"method": "fm"}),
    ],
)
def test_what_fits_is_taken_and_travels(rule, changes):
    made = job(rule, **changes)
    assert Job.from_canonical(made.canonical()) == made


def test_more_devices_than_wanted_may_be_enough():
    chosen = {"devices": 8, "over_select": 1.2}  # ten are asked
    assert job({**DIVERGENCE, "k": 9}, selection=chosen).aggregation.k == 9

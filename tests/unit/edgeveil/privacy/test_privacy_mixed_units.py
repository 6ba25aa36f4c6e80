"""A total over jobs of different units is never below what one record costs."""

import itertools
import math
from dataclasses import replace

import pytest
import yaml
from scipy.optimize import brentq
from scipy.stats import norm

from edgeveil.errors import PrivacyError
from edgeveil.jobs import compile_job, parse_job
from edgeveil.privacy.events import GaussianEvent, LaplaceEvent, SharedGaussian
from edgeveil.privacy.gaussian_mechanism import gaussian_event
from edgeveil.privacy.guarantee import guarantee_bounds, up
from edgeveil.privacy.ledger import Ledger
from edgeveil.privacy.policy import INFER, JobRequest, Limits, price, total

DELTA = 1e-5
BASE = {
    "job": "mixed",
    "data": {"source": "digits", "classes": 10, "input_shape": [64], "nominal_records": 64},
    "privacy": {"epsilon": 2, "delta": DELTA},
    "aggregation": {"name": "fedavg", "secure": True},
    "selection": {"devices": 20},
    "round": {"min_batch": 18},
    "unsupervised": {"eval_type": "NOT_EVAL"},
}
SHARED = {"privacy": {**BASE["privacy"], "noise": "shared"}}
FM = {"features": [{"name": "identity"}], "train": {"method": "fm", "rounds": 3}}
UPDATES = {
    "model": {"name": "mlp", "hidden": []},
    "train": {"method": "sgd", "rounds": 3},
    "update": [{"name": "gradient_gaussian"}],
}
PARTICLES = {
    "model": {"name": "mlp", "hidden": []},
    "train": {"method": "pso_dp_fl", "rounds": 3, "clip_norm": 0.1},
}
JOBS = {
    "fm": FM,
    "fm, shared": {**FM, **SHARED},
    "updates": UPDATES,
    "updates, shared": {**UPDATES, **SHARED},
    "updates, a clip norm that moves": {
        **UPDATES,
        **SHARED,
        "update": [{"name": "gradient_gaussian", "quantile": 0.5}],
    },
    "particles": PARTICLES,
}


def plan_of(name):
    return compile_job(parse_job(yaml.safe_dump({**BASE, **JOBS[name]})))


def squared_record_mu(plan):
    """By hand, if all others collude: of each Gaussian the device's own noise is left, and an
    update moves by up to twice its clip norm for one record of a device that keeps its others."""
    squared = 0.0
    for event in plan.events():
        one = event.own if isinstance(event, SharedGaussian) else event
        assert isinstance(one, GaussianEvent)
        times = 2 if one.unit == "device" else 1
        squared += (times * one.sensitivity_steps) ** 2 / one.sigma_squared
    return squared


def gaussian_epsilon(mu, delta):
    """What δ(ε) of a μ-GDP release says."""

    def over(e):
        tail = norm.logcdf(-e / mu - mu / 2) + e
        return float(norm.cdf(-e / mu + mu / 2) - math.exp(tail) - delta)

    return float(brentq(over, 1e-6, 500.0))


def limits(**changed):
    wide = Limits(1e3, 1e3, 1e-2, 1e3)
    return Limits(**{**vars(wide), **changed})


def spend(ledger, plans, owner):
    for at, plan in enumerate(plans):
        request = plan.request(f"job-{at}")
        ledger.open_job(request, owner)
        for number, event in enumerate(request.events, start=1):
            ledger.commit(request.job_id, number, [event], b"sent")
        ledger.close_job(request.job_id)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("updates, shared", "fm"),
        ("updates, a clip norm that moves", "fm"),
        ("updates", "fm, shared"),
        ("particles", "fm, shared"),
    ],
)
def test_if_all_others_collude_a_total_is_what_it_costs_one_record(tmp_path, one, other):
    for order, names in enumerate(itertools.permutations((one, other))):
        plans = [plan_of(name) for name in names]
        mus = [math.sqrt(squared_record_mu(plan)) for plan in plans]
        true = gaussian_epsilon(math.hypot(*mus), 2 * DELTA)  # all noise was Gaussian
        ledger = Ledger(tmp_path / f"{order}.sqlite", "digits")
        spend(ledger, plans, limits())
        spent = ledger.spent()
        alone = spent.colluding
        assert alone is not None
        assert alone.record_epsilon == pytest.approx(true, rel=0.25)  # by log moments
        assert alone.record_epsilon >= true * (1 - 1e-6)
        if {plan.quote().training.unit for plan in plans} == {"record", "device"}:
            assert (spent.unit, alone.epsilon) == ("record", alone.record_epsilon)
        # Nothing that this records is let in under a limit below it.
        owner = limits(lifetime_collusion_epsilon=alone.epsilon * 0.99)
        other_ledger = Ledger(tmp_path / f"{order}-limited.sqlite", "digits")
        with pytest.raises(PrivacyError, match="the owner allows") as caught:
            spend(other_ledger, plans, replace(owner, lifetime_delta=2 * DELTA))
        assert caught.value.where == "policy.lifetime_collusion_epsilon"


def test_a_device_level_price_of_nothing_still_counts_what_a_record_costs():
    """At a large δ a small step is ε = 0 for the device, and not for a record."""
    small = gaussian_event("update", 1 << 24, 1 / 30, 4, grid_bits=24, unit="device")
    device = price([small], 0.02).training
    assert device.epsilon == 0 < device.record_epsilon
    fm = plan_of("fm").request("fm")
    mus = math.sqrt(squared_record_mu(plan_of("fm"))), 2 / 30
    both = total([JobRequest("small", 0.02, (small,)), fm], DELTA).training
    assert both.unit == "record"
    assert both.epsilon >= gaussian_epsilon(math.hypot(*mus), DELTA)


MEAN = {
    **FM,
    "data": {**BASE["data"], "nominal_records": 5000, "evaluation_share": 0.2},
    "encrypt": {"laplace_eval": {"laplace_eval_eps": 50}},
    "unsupervised": {"every_rounds": 1},
    "aggregation": {"name": "fedavg"},
}


@pytest.mark.parametrize(
    "beside", [{}, {"federated_evaluation": {"epsilon": 0.1, "every_rounds": 1}}]
)
def test_what_is_counted_of_records_lets_no_mean_pass_the_limit_of_a_device(tmp_path, beside):
    """A mean softmax hides a device; counts beside it hide a record, and take nothing from that."""
    plan = compile_job(parse_job(yaml.safe_dump({**BASE, **MEAN, **beside})))
    of_device = sum(
        event.sensitivity_steps * event.scale_denominator / event.scale_numerator
        for event in plan.events()
        if isinstance(event, LaplaceEvent)
    )
    quote = plan.quote().inference
    assert quote.device_epsilon == pytest.approx(of_device, rel=1e-9)
    assert quote.record_epsilon < of_device / 100
    assert f"ε = {up(of_device)} per device" in " ".join(guarantee_bounds(quote.plain))
    ledger = Ledger(tmp_path / "ledger.sqlite", "digits")
    spend(ledger, [plan], limits(max_inference_epsilon=of_device + 1))
    assert ledger.spent(purpose=INFER).device_epsilon == quote.device_epsilon
    with pytest.raises(PrivacyError, match="the owner allows") as caught:  # a second one like it
        ledger.open_job(plan.request("next"), limits(max_inference_epsilon=1.9 * of_device))
    assert caught.value.where == "policy.max_inference_epsilon"

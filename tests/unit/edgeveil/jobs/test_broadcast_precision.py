"""A round's model in half precision: weights are rounded for all alike, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from edgeveil.jobs import Job, compile_job
from edgeveil.jobs.broadcast_precision import as_learned_from, as_received, as_sent
from edgeveil.parts.exchange import TRAIN, Exchange
from edgeveil.settings.base import ImpossibleMixError

PLAIN = {
    "job": "half",
    "data": {"source": "bench", "classes": 3, "input_shape": (4,), "nominal_records": 30},
    "model": {"name": "mlp", "hidden": (5,)},
    "train": {"method": "sgd", "rounds": 2},
    "privacy": {"accept_unproven": True},
    "broadcast": {"dtype": "float16"},
}


def plan_of(**changes):
    return compile_job(Job.model_validate({**PLAIN, **changes}))


def test_weights_are_halved_and_rounded_to_the_nearest():
    plan = plan_of()
    state = plan.cloud.initial_state()
    package = plan.cloud.package(state, Exchange(1, TRAIN, 1))
    sent = as_sent(plan, package)
    assert {array.dtype for array in sent.values()} == {np.dtype(np.float16)}
    had = as_received(plan, sent)
    for name, array in package.items():
        assert had[name].dtype == np.float32
        np.testing.assert_array_equal(had[name], array.astype(np.float16).astype(np.float32))
        assert not np.array_equal(had[name], array) or not array.any()


def test_what_is_too_large_is_cut_off_and_stays_finite():
    plan = plan_of()
    package = dict(plan.cloud.package(plan.cloud.initial_state(), Exchange(1, TRAIN, 1)))
    name = next(iter(package))
    package[name] = np.full_like(package[name], 1e6)
    assert as_learned_from(plan, package)[name].max() == 65504


def test_a_clip_norm_that_noise_is_made_for_stays_exact():
    """Rounded up, devices would send more than the noise covers."""
    clip = {"name": "gradient_gaussian", "quantile": 0.5}
    plan = plan_of(
        update=(clip,),
        privacy={"epsilon": 8.0},
        aggregation={"name": "fedavg", "secure": True},
        selection={"devices": 20},
    )
    package = dict(plan.cloud.package(plan.cloud.initial_state(), Exchange(1, TRAIN, 1)))
    others = set(package) - {weight.name for weight in plan.setting.network.weights}
    assert others
    for name in others:
        package[name] = np.asarray(package[name] + 1e-5)
        assert as_sent(plan, package)[name] is package[name]
        assert as_learned_from(plan, package)[name] is package[name]


def test_a_job_in_full_precision_is_what_it_was():
    plan = plan_of(broadcast={"dtype": "float32"})
    package = plan.cloud.package(plan.cloud.initial_state(), Exchange(1, TRAIN, 1))
    assert all(as_sent(plan, package)[name] is array for name, array in package.items())
    assert b"broadcast" not in plan.job.canonical()
    assert b"broadcast" in plan_of().job.canonical()


def test_exact_sums_are_not_rounded():
    with pytest.raises(ImpossibleMixError, match=r"broadcast\.dtype: method 'fm' sends exact"):
        plan_of(model=None, features=({"name": "identity"},), train={"method": "fm"},
                privacy={"epsilon": 8.0})  # fmt: skip

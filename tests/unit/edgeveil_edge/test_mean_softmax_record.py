"""One record's price of a mean softmax: what it moves, through the real loader and graph."""

from contextlib import closing
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from edgeveil.errors import PrivacyError
from edgeveil.jobs import compile_job
from edgeveil.privacy.events import LaplaceEvent, event_from_dict, for_one_record, to_dict
from edgeveil.privacy.guarantee import guarantee_text
from edgeveil.privacy.laplace_mechanism import (
    RECORD_BITS,
    SOFTMAX_BITS,
    mean_steps,
    record_steps,
    softmax_event,
)
from edgeveil.privacy.ledger import Ledger
from edgeveil.privacy.policy import INFER, JobRequest, Limits, check_job, price
from edgeveil_edge.compute import Computer, SharedSession
from tests.unit.edgeveil_edge import edge_kit as kit

KEY = bytes(range(32))
ONE, STEPS = 1 << RECORD_BITS, 1 << SOFTMAX_BITS


def distance(one, other):
    return int(np.abs(one - other).sum())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("nominal", [1, 2, 7, 16, 60])
def test_no_record_moves_the_vector_by_more_than_its_price_counts(nominal, seed):
    """Sums below, at and beyond the cap, and records that pull to the other side."""
    rng = np.random.default_rng(seed)
    for classes in (2, 3, 10, 100):
        certain, none = np.eye(classes)[0], np.zeros(classes)
        for count in {0, 1, nominal - 1, nominal, nominal + 1, 3 * nominal}:
            p = rng.dirichlet(np.full(classes, 0.1), count)
            total = np.floor(p * ONE).astype(np.int64).sum(axis=0)
            for one in (certain, rng.dirichlet(np.full(classes, 0.3)), none):
                moved = total + np.floor(one * ONE).astype(np.int64)
                before, after = mean_steps(total, nominal), mean_steps(moved, nominal)
                assert distance(before, after) <= record_steps(classes, nominal)
                for steps in (before, after):
                    assert steps.min() >= 0
                    assert steps.sum() <= STEPS


@pytest.mark.parametrize("nominal", [1, 7, 16, 60])
def test_the_price_is_no_larger_than_it_has_to_be(nominal):
    """At the cap, with all mass in one class, a record of another class moves it by that much."""
    full = np.array([nominal * ONE, 0, 0])
    other = np.array([0, ONE, 0])
    moved = distance(mean_steps(full, nominal), mean_steps(full + other, nominal))
    assert record_steps(3, nominal) - 3 - 3 <= moved <= record_steps(3, nominal)
    assert Fraction(2 * STEPS, nominal + 1) <= record_steps(3, nominal) - 3


@pytest.mark.parametrize("seed", range(4))
def test_random_neighbours_through_loader_and_graph_keep_to_both_prices(tmp_path, seed):
    """Records in a file, with NaN and infinity among them; one of them removed."""
    rng, count, path = np.random.default_rng(seed), 40, tmp_path / "own.npz"
    data = {"source": "bench", "classes": 3, "input_shape": (4,), "nominal_records": 30}
    plan = compile_job(kit.job(data={**data, "evaluation_share": 0.3}))
    nominal = plan.job.data.nominal_evaluation_records
    session = SharedSession().session(plan.graph(), 3)
    model = plan.cloud.model(plan.cloud.initial_state())
    model["weight"] = rng.normal(0, 40, (4, 3)).astype(np.float32)
    weights = plan.graph_weights(model)
    own = kit.site(tmp_path, data={"name": "bench", "source": "npz", "path": path})
    x = rng.normal(size=(count, 4)).astype(np.float32)
    x[0, 0], x[1, 1] = np.nan, np.inf

    def upload(kept):
        np.savez(path, x=kept, y=np.zeros(len(kept), np.int64))
        _, evaluation = Computer(own, KEY).records(plan.job.data.evaluation_share)
        return mean_steps(session.summed_softmax(evaluation.x, weights), nominal)

    event = plan.softmax_event()
    assert isinstance(event, LaplaceEvent)
    whole, moved = upload(x), 0
    for removed in range(count):
        gap = distance(whole, upload(np.delete(x, removed, axis=0)))
        assert gap <= event.record_sensitivity_steps < event.sensitivity_steps
        moved += gap > 0
    assert 0 < moved <= 30  # those that evaluate, and no other
    assert distance(whole, upload(x[:0])) <= event.sensitivity_steps
    assert upload(x[:0]).tolist() == [0, 0, 0]


def test_both_units_are_priced_printed_and_limited_together(tmp_path):
    event = softmax_event(10, 20.0, nominal=16)
    found = price([event] * 3, 1e-5).inference
    assert (found.unit, found.epsilon) == ("device", pytest.approx(60))
    assert found.record_epsilon == pytest.approx(60 / 17, rel=1e-3)
    assert Fraction(found.record_epsilon) >= Fraction(60, 17)
    report = {"inference": {**found.plain, "epsilon_per_round": 20}}
    for text in (str(found), guarantee_text(report, "inference")):
        assert "per device" in text and "per record ε = 3.53" in text
        assert "protects nothing" not in text
    request = JobRequest("job", 1e-5, (event,) * 3)
    wide = Limits(10.0, 50.0, 1e-4, 100.0)
    assert check_job(request, wide, ()).inference == found
    for limit in ({"max_inference_epsilon": 59}, {"max_inference_record_epsilon": 3.5}):
        with pytest.raises(PrivacyError) as caught:
            check_job(request, replace(wide, **limit), ())
        assert caught.value.where == f"policy.{next(iter(limit))}"
    rows = softmax_event(10, 3.0, samples=4)  # another job's, per record alone
    with closing(Ledger(tmp_path / "ledger.sqlite", "bench")) as ledger:
        for each in (request, JobRequest("rows", 1e-5, (rows,))):
            ledger.open_job(each, wide)
            ledger.commit(each.job_id, 1, list(each.events), b"sent")
            ledger.close_job(each.job_id)
        both = ledger.spent(purpose=INFER)
        assert (both.unit, both.epsilon) == ("record", pytest.approx(60 / 17 + 3, rel=1e-3))
        with pytest.raises(PrivacyError) as caught:  # the device's limit still counts
            ledger.check(JobRequest("more", 1e-5, (event,) * 3), wide)
        assert caught.value.where == "policy.max_inference_epsilon"


def test_an_event_of_before_has_its_old_form_and_the_devices_price():
    old = softmax_event(10, 4.0)
    assert "record_sensitivity_steps" not in to_dict(old)
    assert price([old], 1e-5).inference.among_others is None
    new = softmax_event(10, 4.0, nominal=16)
    assert event_from_dict(to_dict(new)) == new != old
    assert for_one_record(new).sensitivity_steps == record_steps(10, 16)

"""How far a person of many records, or the whole device, moves what is released, before noise."""

import numpy as np
import pytest

from edgeveil.data.records import Records
from edgeveil.errors import PrivacyError
from edgeveil.evaluation.record_counts import Confusion, Hits
from edgeveil.jobs.federated_evaluation import FederatedEvaluation
from edgeveil.parts.features import PcaParameters
from edgeveil.parts.methods.dp_sgd import (
    NOISE_BITS,
    DpSgdParameters,
    NoisedSums,
    gradient_rows,
    noised_steps,
)
from edgeveil.parts.methods.fm import FmCloud, FmDevice
from edgeveil.parts.methods.fm_sums import FmParameters, symmetric
from edgeveil.parts.round import TRAIN, PlannedRound
from edgeveil.parts.stage import Task
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import as_summed, for_one, for_one_record
from edgeveil.privacy.gaussian_mechanism import counts_event
from edgeveil.privacy.guarantee import up
from edgeveil.privacy.policy import JobRequest, Limits, check_job, total
from edgeveil.privacy.sampler import SeededRandom
from tests.kits.method_context import context

D, CLASSES, MUCH = 4, 3, 50
OPTIONS = {"clip": 0.5, "rounds": 2}
PCA = PcaParameters(name="ldp_fpca", keep=0.75)
SIZES = (MUCH, 1, 2, 7, 1)


def household(seed, alike=True):
    """Records of five persons; those of each are much alike, as one's are, or differ."""
    rng = np.random.default_rng(seed)
    owners = np.repeat(np.arange(len(SIZES)), SIZES)
    centres, labels = rng.normal(size=(5, D)), rng.integers(0, CLASSES, 5)
    x = centres[owners] + rng.normal(size=(len(owners), D)) * (0.1 if alike else 3.0)
    y = labels[owners] if alike else rng.integers(0, CLASSES, len(owners))
    order = rng.permutation(len(owners))
    stored = (owners + seed * 10.0)[:, None].astype(np.float32)
    return Records(x.astype(np.float32), y, stored).at(order), owners[order]


def moved(one, other, phase, size):
    """The L2 norm of a difference; of a symmetric matrix all its values count."""
    difference = (one - other).astype(np.float64)
    if phase in ("covariance", "quadratic"):
        difference = symmetric(difference.ravel(), size)
    return np.linalg.norm(difference)


def sums(unit, records, seed=0, summed=0):
    """(event, sum) of each phase of a device with a projection, at a made-up broadcast."""
    own = context(unit=unit, projection=PCA, summed=summed, honest=0)
    parameters = FmParameters(**OPTIONS)
    device, cloud = FmDevice(parameters, own), FmCloud(parameters, own)
    rng = np.random.default_rng(seed)
    state = {
        **cloud.initial_state(),
        "centre": rng.normal(size=own.dimension).astype(np.float32),
        "iterate": rng.integers(-8000, 8000, cloud.head, dtype=np.int32),
    }
    rounds = {round.phase: round for round in cloud.plan()}
    return {
        phase: (
            device.budget.events[phase],
            device.sums(round, cloud.package(state, round), records),
        )
        for phase, round in rounds.items()
    }


def side(phase):
    return D if phase == "covariance" else 4  # three features and the intercept


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("unit", ["person", "device"])
def test_a_unit_of_fifty_records_moves_each_sum_of_fm_no_further_than_its_price(unit, seed, alike):
    records, owners = household(seed, alike)
    everything, other = sums(unit, records, seed), sums("record", records, seed)
    gone = np.zeros(len(owners), bool) if unit == "device" else owners != 0
    rest, bare = (sums(of, records.at(gone), seed) for of in (unit, "record"))
    for phase, (event, found) in everything.items():
        assert event.unit == unit
        assert event.sensitivity_steps > other[phase][0].sensitivity_steps  # by the rounding
        step = moved(found, rest[phase][1], phase, side(phase))
        assert step <= event.sensitivity_steps
        if alike:  # the bound is reached, and a bound for each record is not one for a person
            assert step > 0.99 * event.sensitivity_steps
            apart = moved(other[phase][1], bare[phase][1], phase, side(phase))
            assert apart > 2 * event.sensitivity_steps


@pytest.mark.parametrize("unit", ["person", "device"])
def test_a_record_of_a_unit_moves_each_sum_of_fm_no_further_either(unit):
    for seed in range(3):
        records, _ = household(seed, alike=False)
        everything = sums(unit, records, seed)
        for at in range(0, len(records), 5):
            rest = sums(unit, records.at(np.arange(len(records)) != at), seed)
            for phase, (event, found) in everything.items():
                one = for_one_record(event)
                assert one.sensitivity_steps <= event.sensitivity_steps
                assert moved(found, rest[phase][1], phase, side(phase)) <= one.sensitivity_steps


def test_with_one_record_each_persons_and_records_sum_alike():
    records, _ = household(1)
    single = Records(records.x, records.y, np.arange(len(records), dtype=np.float32)[:, None])
    for phase, (_, found) in sums("person", single).items():
        assert np.array_equal(found, sums("record", single)[phase][1])


def test_what_others_add_does_not_depend_on_a_person():
    """A person's part is the same to the last bit beside others and alone."""
    records, owners = household(2, alike=False)
    whole = sums("person", records)
    parts = [sums("person", records.at(owners == own)) for own in range(len(SIZES))]
    for phase, (_, found) in whole.items():
        assert np.array_equal(found, sum(part[phase][1] for part in parts))


class Sums(NoisedSums):
    """Sums of all units instead of a sample of them, before noise."""

    def exact(self, rows, norm):
        return self._by_unit(rows, self._units, norm)


def gradient_sum(records, unit, batch=1 << 23, monkeypatch=None):
    from edgeveil.parts.methods import dp_sgd
    from edgeveil.parts.models import MODELS, build_network

    network = build_network(MODELS["mlp"].made(hidden=(6,)), (D,), CLASSES)
    own = context(unit=unit, network=network, max_participations=1)
    parameters = DpSgdParameters(rounds=1, local_steps=1, sampling_rate=0.5)
    event = noised_steps(parameters, own, 1, 4 * 6 + 6 + 18 + 3)
    weights = network.initial()
    task = Task(PlannedRound(1, TRAIN, 1), network, weights, records, {}, SeededRandom(1), "cpu")
    if monkeypatch is not None:
        monkeypatch.setattr(dp_sgd, "UNIT_VALUES", batch)
    given = {name: __import__("torch").tensor(value) for name, value in weights.items()}
    rows = gradient_rows(network, parameters, given)
    if unit == "record":
        return event, Sums(task, event).total(rows, np.arange(len(records)), 0.01)
    return event, Sums(task, event).exact(rows, 0.01)


@pytest.mark.parametrize("alike", [True, False])
def test_a_person_and_a_record_of_one_move_the_gradients_no_further_than_a_record(alike):
    records, owners = household(3, alike)
    event, whole = gradient_sum(records, "person")
    _, rest = gradient_sum(records.at(owners != 0), "person")
    assert event.unit == "person"
    bound = event.event.sensitivity_steps
    assert bound == 1 << NOISE_BITS
    assert np.linalg.norm((whole - rest).astype(float)) <= bound
    if alike:
        assert np.linalg.norm((whole - rest).astype(float)) > 0.99 * bound
    for at in range(0, len(records), 7):
        _, less = gradient_sum(records.at(np.arange(len(records)) != at), "person")
        assert np.linalg.norm((whole - less).astype(float)) <= bound


def test_gradients_of_persons_add_up_alike_in_any_number_at_a_time(monkeypatch):
    records, owners = household(3, alike=False)
    _, whole = gradient_sum(records, "person")
    _, one_by_one = gradient_sum(records, "person", 1, monkeypatch)
    assert np.array_equal(whole, one_by_one)
    alone = records.at(owners == 1)  # a single record stays as it is
    assert np.array_equal(gradient_sum(alone, "person")[1], gradient_sum(alone, "record")[1])


def test_a_model_too_large_to_clip_a_persons_gradients_finely_is_refused():
    """Past a rounding that the margin of a record's norm no longer covers."""
    parameters = DpSgdParameters(rounds=1, local_steps=1, sampling_rate=0.5)
    for unit, values, fits in (
        ("person", 29_000_000, True),
        ("record", 30_000_000, True),
        ("person", 30_000_000, False),
    ):
        own = context(unit=unit, max_participations=1)
        if fits:
            event = noised_steps(parameters, own, 1, values).event
            assert (event.unit, event.coordinates) == (unit, values)
            continue
        with pytest.raises(PrivacyError, match="too coarsely for persons"):
            noised_steps(parameters, own, 1, values)


@pytest.mark.parametrize("counts", [Confusion(CLASSES), Hits(CLASSES)])
def test_a_person_moves_the_counts_of_an_evaluation_no_further_than_a_record(counts):
    event = counts_event(
        "counts", counts.sensitivity_squared, counts.cells, 8.0, 1e-5, 1, 0, 0, "person"
    )
    exact = counts.sensitivity_squared**0.5 * 2.0**event.grid_bits
    assert event.sensitivity_steps >= exact + counts.cells**0.5  # a mean is rounded in each cell
    asked = FederatedEvaluation(counts, event, 20)
    labels = np.array([0, 0, 1, 2, 2])  # of one person with 3 records, 2 right, and one with 2
    found = asked._steps(
        np.eye(CLASSES)[[0, 1, 1, 2, 0]],
        Records(
            np.zeros((5, D), np.float32), labels, np.array([[1], [1], [1], [2], [2]], np.float32)
        ),
    )
    assert found[:2] * 2.0**-event.grid_bits == pytest.approx([2 / 3 + 1 / 2, 1 / 3 + 1 / 2])
    for seed in range(4):
        records, owners = household(seed, alike=bool(seed % 2))
        outputs = np.random.default_rng(seed).random((len(records), CLASSES))
        whole = asked._steps(outputs, records)
        kept = owners != 0
        rest = asked._steps(outputs[kept], records.at(kept))
        assert np.linalg.norm((whole - rest).astype(float)) <= event.sensitivity_steps
        for at in range(0, len(records), 9):
            kept = np.arange(len(records)) != at
            less = asked._steps(outputs[kept], records.at(kept))
            assert np.linalg.norm((whole - less).astype(float)) <= event.sensitivity_steps


def test_a_record_costs_no_more_than_its_person_and_a_person_of_a_device_at_most_twice_the_steps():
    for unit in ("person", "device"):
        own = context(unit=unit, summed=10, honest=4)
        events = FmDevice(FmParameters(**OPTIONS), own).budget.job_events()
        whole = epsilon(events, 1e-5)
        assert (whole.unit, whole.status) == (unit, "proven")
        assert 3.9 < whole.epsilon <= 4.0
        assert whole.record_epsilon == whole.epsilon
        assert epsilon(map(for_one_record, events), 1e-5).epsilon <= whole.epsilon
    steps = as_summed(for_one("person", events[0])).sensitivity_steps
    assert steps == 2 * as_summed(events[0]).sensitivity_steps


def test_in_a_life_each_unit_has_its_own_total_and_each_counts_in_the_smaller_ones():
    jobs = {}
    for unit in ("record", "person", "device"):
        own = context(unit=unit)
        events = FmDevice(FmParameters(**OPTIONS), own).budget.job_events()
        jobs[unit] = JobRequest(unit, 1e-5, events)
    limits = Limits(4.0, 20.0, 1e-4, 1.0)
    two = total([jobs["person"], jobs["record"]]).training
    assert (two.unit, two.of_device) == ("record", None)
    assert 3.9 < two.of_person < two.epsilon < 8.0  # the record's job costs no person a thing
    life = total(jobs.values()).training
    assert life.of_person > two.of_person  # a device's sum may move by two bounds for a person
    assert 3.9 < life.of_device < life.epsilon < life.of_person
    assert f"per person on this device ε = {up(life.of_person)}" in str(life)
    tight = Limits(4.0, (life.of_person + life.epsilon) / 2, 1e-4, 1.0)
    check_job(jobs["device"], limits, [jobs["person"], jobs["record"]])
    with pytest.raises(PrivacyError, match="lifetime_epsilon"):
        check_job(jobs["device"], tight, [jobs["person"], jobs["record"]])


def test_an_owners_limit_on_evaluations_bounds_persons_too():
    """A device's counts cost a person more than a record: all records of one may be exchanged."""
    found = {
        unit: JobRequest(unit, 1e-5, (counts_event("counts", 2, 9, 2.0, 1e-5, 1, 0, 0, unit),))
        for unit in ("record", "person", "device")
    }
    life = total(found.values(), 1e-4).inference
    assert life.device_epsilon < life.record_epsilon < life.of_person
    others = found["person"], found["device"]
    for most, admits in ((life.of_person + 0.01, True), (life.record_epsilon + 0.01, False)):
        limits = Limits(1.0, 1.0, 1e-4, most)
        if admits:
            check_job(found["record"], limits, others)
            continue
        with pytest.raises(PrivacyError, match="max_inference_epsilon"):
            check_job(found["record"], limits, others)

"""A device's answers to rounds of correlated noise: by the job's facts, and far enough apart."""

import numpy as np
import pytest
from edge_kit import JOB_ID, Device, Round, job
from msgspec import structs
from test_masked_answers import answered, payload, unmasked

from edgeveil.errors import ProtocolError
from edgeveil.jobs import compile_job
from edgeveil.parts.stage import NOISE
from edgeveil.protocol.device_round import NoAnswer, SealedAnswer
from edgeveil.protocol.sealed import committed

POLICY = {
    "min_devices": 3,
    "max_records": 2000,
    "allowed_methods": ("sgd",),
    "max_collusion_epsilon_per_job": 1e15,
    "lifetime_collusion_epsilon": 1e15,
}


def plan(**privacy):
    plain = {
        "epsilon": 4.0,
        "delta": 1e-5,
        "noise": "correlated",
        "min_separation": 3,
        "max_participations": 2,
        "local_share": 0.25,
    }
    return compile_job(
        job(
            features=(),
            model={"name": "mlp", "hidden": (3,)},
            train={"method": "sgd", "rounds": 8},
            update=({"name": "gradient_gaussian", "clip_norm": 0.5},),
            privacy={**plain, **privacy},
            aggregation={"name": "fedavg", "secure": True},
            selection={"devices": 5},
            encrypt={},
            unsupervised={"eval_type": "NOT_EVAL"},
        )
    )


PLAN = plan()


@pytest.fixture
def device(tmp_path):
    return Device(tmp_path, policy=POLICY).knows(PLAN)


def sealed(device, index, attempt=1, of=PLAN):
    found = Round(of, index, device.keys(), attempt=attempt)
    found.manifest = committed(found.manifest, found.secret.membership)
    return found


def declined(device, index):
    answer = answered(device, sealed(device, index))
    return answer.why if isinstance(answer, NoAnswer) else ""


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds": 9},
        {"participations": 1},
        {"min_separation": 1},
        {"coefficient": 255},
        {"number": 2},
        None,
        "check",
    ],
)
def test_noise_other_than_the_job_s_is_refused_before_a_record_is_read(device, changes):
    asked, device = sealed(device, 1), device.restarted(policy=POLICY)
    noise = asked.manifest.correlated
    if changes == "check":
        other = {"check": b""}
    else:
        other = {"correlated": changes and structs.replace(noise, **changes)}
    with pytest.raises(ProtocolError, match="wrong_noise"):
        answered(device, asked, **other)
    assert device.load.reads == 0
    assert device.ledger.recall(JOB_ID.hex(), 1) is None
    assert isinstance(answered(device, asked), SealedAnswer)


@pytest.mark.parametrize("near", [2, 3, 5, 6])
def test_rounds_nearer_than_the_separation_are_declined_before_a_record_is_read(device, near):
    assert isinstance(answered(device, sealed(device, 4)), SealedAnswer)
    device = device.restarted(policy=POLICY)
    assert "this device answered one of the 2 rounds" in declined(device, near)
    assert device.load.reads == 0
    assert device.ledger.recall(JOB_ID.hex(), near) is None
    assert declined(device, 7 if near > 4 else 1) == ""


def test_no_device_takes_part_more_often_than_the_job_says(device):
    assert [bool(declined(device, index)) for index in (1, 4, 7)] == [False, False, True]


def test_another_attempt_brings_the_same_numbers_and_noise(device):
    first, again = sealed(device, 1), sealed(device, 1, attempt=2)
    ours = unmasked(device, first, answered(device, first))
    theirs = unmasked(device, again, answered(device.restarted(policy=POLICY), again))
    assert ours.keys() == theirs.keys() > {NOISE}
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("local_share", [0.01, 0.25])
def test_the_noise_that_is_taken_back_is_that_of_the_update(tmp_path, local_share):
    of = plan(local_share=local_share)
    device = Device(tmp_path, policy=POLICY).knows(of)
    answer = answered(device, sealed(device, 1, of=of))
    assert isinstance(answer, SealedAnswer), answer
    released = payload(device, 1)
    *update, noise = (released[spec.name].ravel() for spec in of.segments(of.round(1)))
    update, noise = np.concatenate(update).astype(np.float64), noise.astype(np.float64)
    (event,) = of.price(of.round(1), trains=True)
    sigma = event.own.sigma_squared**0.5
    assert 0.5 * sigma < noise.std() < 2 * sigma
    rest = np.linalg.norm(update - noise)
    stays = (local_share * len(noise)) ** 0.5 * sigma
    assert max(0, 0.4 * stays) <= rest <= event.own.sensitivity_steps + 2 * stays
    assert event.own.sensitivity_steps < 0.4 * np.linalg.norm(noise)


@pytest.mark.parametrize(("asked", "paid"), [(2, 2), (8, 3), (None, 3)])
def test_no_more_participations_are_paid_for_than_fit_into_the_rounds(asked, paid):
    of = plan(max_participations=asked)
    assert of.context.correlation.participations == of.context.max_participations == paid

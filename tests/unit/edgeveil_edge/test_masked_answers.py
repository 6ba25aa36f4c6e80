"""A device's answer to a round under masks: under them stands what its ledger holds."""

import numpy as np
import pytest
from edge_kit import CENTRE, FIRST, JOB_ID, Device, Round, job
from msgspec import structs

from edgeveil.crypto.keys import OpeningKey
from edgeveil.data.records import Records
from edgeveil.errors import ProtocolError
from edgeveil.jobs import compile_job
from edgeveil.jobs.plan import SOFTMAX
from edgeveil.protocol.device_round import (
    ComputeAnswer,
    NoAnswer,
    OpenPackage,
    SealDummies,
    SealedAnswer,
)
from edgeveil.protocol.messages import MaskedGroup
from edgeveil.protocol.sealed import RoundCheck, committed, masked_vectors, open_seed
from edgeveil.protocol.tensors import (
    MaskChecks,
    exact_sums,
    mask_checks,
    mask_sums,
    opened_vector,
    unpack_tensors,
)

PLAN = compile_job(job(aggregation={"name": "fedavg", "secure": True}, selection={"devices": 5}))
KEY = OpeningKey.from_bytes(bytes(range(1, 33)))
MEMORY = b"m" * 16


@pytest.fixture
def device(tmp_path):
    return Device(tmp_path).knows(PLAN)


def answered(device, sealed, **changes):
    opened = device.host.perform(OpenPackage(sealed.manifest, sealed.blob))
    told = {"round_key": KEY.public().to_bytes(), "proxy_memory": MEMORY}
    told = {name: changes.pop(name, value) for name, value in told.items()}
    manifest = structs.replace(sealed.manifest, **changes)
    return device.host.perform(ComputeAnswer(manifest, opened.package, **told))


def unmasked(device, sealed, answer):
    """What cloud and proxy together would make of this answer alone."""
    manifest = sealed.manifest
    vectors = masked_vectors(manifest.at, manifest.groups, manifest.masked)
    seed = open_seed(KEY, manifest, device.identity.device_id, answer.seed)
    plain = sealed.tensors(answer)
    totals = [opened_vector(one, plain[one.name]) for one in vectors]
    masks = mask_sums(vectors, [seed])
    check = RoundCheck.of_manifest(manifest, sealed.secret.membership)
    return exact_sums(vectors, totals, masks, check)


def payload(device, index):
    found = device.ledger.recall(JOB_ID.hex(), index)
    return unpack_tensors(found[1])


@pytest.mark.parametrize("index", [CENTRE, FIRST])
def test_under_its_masks_stands_what_the_ledger_holds(device, index):
    sealed = Round(PLAN, index, device.keys())
    answer = answered(device, sealed)
    plain, released = sealed.tensors(answer), payload(device, index)
    for name, numbers in unmasked(device, sealed, answer).items():
        assert released[name].dtype == np.int64
        assert np.array_equal(numbers, released[name].ravel())
        assert np.abs(numbers).max() > 2**20  # noise of many steps
    # The cloud opens other numbers, and inferences that are noised by themselves.
    (one,) = masked_vectors(sealed.manifest.at, sealed.manifest.groups, sealed.manifest.masked)
    seen = opened_vector(one, plain[one.name]).numbers.astype(np.int64)
    assert not np.any(seen == released[one.name].ravel() % 2**one.ring.bits)
    if index == FIRST:
        assert plain[SOFTMAX][: released[SOFTMAX].nbytes] == released[SOFTMAX].tobytes()
    seed = open_seed(KEY, sealed.manifest, device.identity.device_id, answer.seed).to_bytes()
    assert not any(seed in bytes_ for bytes_ in (answer.data, answer.seed, *plain.values()))


MEAN = compile_job(
    job(
        aggregation={"name": "fedavg", "secure": True},
        selection={"devices": 5},
        unsupervised={"every_rounds": 1, "eval_type": "MEAN_SOFTMAX"},
    )
)


def test_inferences_of_which_the_mean_is_asked_are_noised_before_they_are_masked(tmp_path):
    device = Device(tmp_path).knows(MEAN)
    sealed = Round(MEAN, FIRST, device.keys())
    answer = answered(device, sealed)
    released = payload(device, FIRST)[SOFTMAX]
    assert np.array_equal(unmasked(device, sealed, answer)[SOFTMAX], released)
    assert released.sum() != 2**20
    assert sealed.tensors(answer)[SOFTMAX][: released.nbytes] != released.tobytes()
    assert device.ledger.spent(purpose="infer").epsilon == pytest.approx(5)


def test_another_attempt_brings_the_same_numbers_under_other_masks(device):
    answers = []
    for attempt in (1, 2):
        sealed = Round(PLAN, CENTRE, device.keys(), attempt=attempt)
        answer = answered(device, sealed)
        seed = open_seed(KEY, sealed.manifest, device.identity.device_id, answer.seed)
        answers.append((sealed.tensors(answer), unmasked(device, sealed, answer), seed.to_bytes()))
    (first, ours, seed_bytes), (second, theirs, other_bytes) = answers
    assert seed_bytes != other_bytes
    for name in ours:
        assert np.array_equal(ours[name], theirs[name])
        assert sum(a == b for a, b in zip(first[name], second[name], strict=True)) < 40


@pytest.mark.parametrize("other", [b"n" * 16, b""], ids=["put back", "of an earlier version"])
def test_a_job_that_was_answered_goes_to_no_other_memory_of_the_proxy(device, other):
    """Not the same round once more, and nothing that follows it; after a restart either."""
    first = Round(PLAN, FIRST, device.keys())
    for memory in (b"", MEMORY):  # a proxy that is brought up meanwhile names it from then on
        assert isinstance(answered(device, first, proxy_memory=memory), SealedAnswer)
    again = Round(PLAN, FIRST, device.keys(), attempt=2)
    for one in (device, device.restarted()):
        declined = answered(one, again, proxy_memory=other)
        assert isinstance(declined, NoAnswer) and "the proxy lost its memory" in declined.why
    assert isinstance(answered(device, again), SealedAnswer)


REFUSED = {
    "wrong_masks": [
        {"masked": masked}
        for masked in ((), *((MaskedGroup(0, *one),) for one in ((4, 40), (12, 39), (12, 56))))
    ],
    "bad_round_key": [{"round_key": key} for key in (b"", bytes(32))],  # none; of low order
}


@pytest.mark.parametrize(
    ("reason", "changes"), [(reason, one) for reason, all_ in REFUSED.items() for one in all_]
)
def test_other_masks_than_the_job_s_cost_nothing_and_no_record_is_read(device, reason, changes):
    """A cloud that asked for answers without masks would see them one by one."""
    sealed = Round(PLAN, FIRST, device.keys())
    assert sealed.manifest.masked != changes.get("masked")
    reads = device.load.reads
    with pytest.raises(ProtocolError, match=reason):
        answered(device, sealed, **changes)
    assert device.load.reads == reads or reason == "bad_round_key"
    assert device.ledger.recall(JOB_ID.hex(), FIRST) is None
    assert isinstance(answered(device, sealed), SealedAnswer)


def test_factors_that_the_round_does_not_commit_to_are_refused_before_a_record_is_read(device):
    """By others than its own a cloud would read its numbers off the check of its mask."""
    sealed = Round(PLAN, FIRST, device.keys())
    reads, other = device.load.reads, committed(sealed.manifest, bytes(32)).check
    with pytest.raises(ProtocolError, match="wrong_factors"):
        answered(device, sealed, check=other)
    assert device.load.reads == reads
    assert device.ledger.recall(JOB_ID.hex(), FIRST) is None
    said = committed(sealed.manifest, sealed.secret.membership)
    answer = answered(device, sealed, check=said.check)
    seed = open_seed(KEY, said, device.identity.device_id, answer.seed)
    vectors = masked_vectors(said.at, said.groups, said.masked)
    check, plain = RoundCheck.of_manifest(said, sealed.secret.membership), sealed.tensors(answer)
    packed = [plain[one.name][: one.ring.byte_count] for one in vectors]
    assert MaskChecks(vectors, check).of_masked(packed) == mask_checks(vectors, [seed], check)


@pytest.mark.parametrize("role", ["train", "infer"])
def test_dummies_look_like_answers_and_open_for_nobody(tmp_path, role):
    device = Device(tmp_path, role=role).knows(PLAN)
    sealed = Round(PLAN, FIRST, device.keys())
    answer = answered(device, sealed)
    dummy = device.host.perform(SealDummies(sealed.manifest, KEY.public().to_bytes()))
    form = [(e.groups, e.sizes, len(e.seed), len(e.encrypted_state)) for e in (dummy, answer)]
    assert dummy.dummy and form[0] == form[1]
    with pytest.raises(AssertionError):
        sealed.tensors(dummy)  # the cloud cannot open it
    if role == "train":
        open_seed(KEY, sealed.manifest, device.identity.device_id, dummy.seed)  # the proxy can
    else:  # of inferences alone nothing is masked
        assert [sealed.manifest.groups[index].name for index in dummy.groups] == [SOFTMAX]
        assert dummy.seed == answer.seed == b""


def test_what_many_records_sum_up_to_is_cut_before_the_noise_and_noised_never():
    round, device = PLAN.round(CENTRE), PLAN.device
    budget = device.budget
    nominal = PLAN.context.nominal_records
    room = budget.room(round.phase, nominal)
    pixels = np.zeros((3 * nominal, 4), np.float32)
    pixels[:, 2] = 1e6  # all of a record's length in one feature
    many = Records(pixels, np.zeros(len(pixels), np.int64))
    total = device.sums(round, {}, many)
    assert np.abs(total).max() == room
    half = Records(pixels[: nominal // 2], many.y[: nominal // 2])
    few = device.sums(round, {}, half)
    assert 0.4 * room < np.abs(few).max() <= 0.5 * room
    huge = np.array([2**62, -(2**62), room, 5])
    (numbers,) = device.finish(round, {}, huge).values()
    assert numbers.tolist() == huge.tolist()
    largest = budget.largest(round.phase, nominal)
    (spec,) = PLAN.segments(round)
    assert 5 * largest < 2 ** (spec.bits - 1)

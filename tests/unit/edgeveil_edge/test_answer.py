"""Priced, then sealed: what is sent is what the ledger holds, and nothing goes without it."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import edge_kit
import msgspec
import numpy as np
import pytest
from edge_kit import CENTRE, FIRST, JOB_ID, PLAN, Device, Loader, Round, job

from edgeveil.errors import PrivacyError, ProtocolError
from edgeveil.jobs import compile_job
from edgeveil.jobs.federated_evaluation import COUNTS
from edgeveil.jobs.plan import SOFTMAX
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.round import Answer
from edgeveil.privacy.derived import DerivedRandom
from edgeveil.privacy.laplace_mechanism import RECORD_BITS
from edgeveil.privacy.ledger import Receipt
from edgeveil.protocol.device_round import SealedAnswer
from edgeveil.protocol.messages import Group
from edgeveil.protocol.sealed import RoundPackage
from edgeveil.protocol.tensors import pack_tensors
from edgeveil_edge import round_work as answers
from edgeveil_edge.compute import Computation, Computer, TaughtJob
from edgeveil_edge.consent import consent

HEX = JOB_ID.hex()


def reason(sealed, package, **changed):
    manifest = msgspec.structs.replace(sealed.manifest, **changed)
    with pytest.raises(ProtocolError) as caught:
        answers.check_package(RoundContext.of(PLAN, manifest.at.round), manifest, package)
    return caught.value.reason


def test_the_groups_must_be_those_of_the_job_in_number_name_size_and_order(device):
    sealed = Round(PLAN, FIRST, device.keys())
    right = RoundPackage("train", 1, True, b"", b"")
    head, softmax = sealed.manifest.groups
    for groups in (
        (),
        (head,),
        (softmax, head),
        (head, softmax, Group("records", 64)),
        (Group("records", head.padded_bytes), softmax),
        (Group(head.name, head.padded_bytes + 64), softmax),
    ):
        assert reason(sealed, right, groups=groups) == "wrong_groups"


def test_an_order_of_arrival_that_the_job_does_not_ask_for_is_refused(device):
    sealed = Round(PLAN, FIRST, device.keys())
    right = RoundPackage("train", 1, True, b"", b"")
    assert reason(sealed, right, shuffled=False) == "wrong_shuffle"


def test_a_smaller_batch_than_the_job_says_is_refused(device):
    sealed = Round(PLAN, FIRST, device.keys())
    right = RoundPackage("train", 1, True, b"", b"")
    asked = PLAN.job.round.min_batch
    assert reason(sealed, right, min_batch=asked - 1) == "wrong_batch"
    larger = msgspec.structs.replace(sealed.manifest, min_batch=asked + 1)
    answers.check_package(RoundContext.of(PLAN, FIRST), larger, right)


def released(device, sealed):
    consent(device.site, PLAN, sealed.manifest, device.ledger)
    event = PLAN.device.price(sealed.round)
    segments = {"centre": np.arange(4)}
    return answers.release(device.ledger, sealed.manifest, [Answer(segments, event)])


def test_what_is_released_is_what_the_ledger_held_first(device):
    sealed = Round(PLAN, CENTRE, device.keys())
    receipt, payload = released(device, sealed)
    other = [Answer({"centre": np.arange(4) + 1}, PLAN.device.price(sealed.round))]
    assert answers.release(device.ledger, sealed.manifest, other) == (receipt, payload)


class Cheaper(Computer):
    """Says that what it released cost nothing."""

    def answer(self, one):
        found = super().answer(one)
        return replace(found, parts=tuple(replace(part, events=()) for part in found.parts))


def test_what_was_computed_at_another_price_than_the_job_says_is_not_sent(tmp_path):
    def cheaper(site, identity):
        return Cheaper(site, identity.split_key, Loader())

    device = Device(tmp_path, compute=cheaper).knows(PLAN)
    device.declines(PLAN, CENTRE)
    assert device.ledger.recall(HEX, CENTRE) is None
    assert device.ledger.spent().epsilon == 0


def test_nothing_is_sealed_without_the_ledgers_receipt_for_these_tensors(device):
    sealed = Round(PLAN, CENTRE, device.keys())
    receipt, payload = released(device, sealed)
    assert isinstance(
        answers.seal_release(
            receipt, payload, RoundContext.of(PLAN, CENTRE), sealed.manifest, bytes(32)
        ),
        SealedAnswer,
    )
    raw = pack_tensors({"centre": np.zeros(4, np.int64)})
    with pytest.raises(PrivacyError, match="other tensors"):
        answers.seal_release(
            receipt, raw, RoundContext.of(PLAN, CENTRE), sealed.manifest, bytes(32)
        )
    with pytest.raises(PrivacyError, match="only be made by the ledger"):
        Receipt("bench", HEX, CENTRE, (), receipt.payload_sha256, object())


def test_a_tensor_of_another_shape_or_name_is_never_sealed(device):
    sealed = Round(PLAN, CENTRE, device.keys())
    consent(device.site, PLAN, sealed.manifest, device.ledger)
    event = PLAN.device.price(sealed.round)
    longer = Answer({"centre": np.arange(5)}, event)
    receipt, payload = answers.release(device.ledger, sealed.manifest, [longer])
    with pytest.raises(ProtocolError) as caught:
        answers.seal_release(
            receipt, payload, RoundContext.of(PLAN, CENTRE), sealed.manifest, bytes(32)
        )
    assert caught.value.reason == "wrong_shape"


def test_the_softmax_is_noised_and_priced(tmp_path):
    class Certain:
        def summed_softmax(self, x, weights, row_s):
            return np.array([PLAN.job.data.nominal_evaluation_records << RECORD_BITS, 0, 0])

    computer, two = Computer(edge_kit.site(tmp_path), bytes(32)), edge_kit.records(2, 1)
    computer._inference = SimpleNamespace(session=lambda *_asked: Certain())
    model = pack_tensors(PLAN.cloud.model(PLAN.cloud.initial_state()))
    asked = TaughtJob(PLAN, b"", b""), PLAN.round(FIRST), RoundPackage("train", 1, True, b"", model)
    keys = (number.to_bytes(32, "big") for number in range(400))
    each = [Computation(*asked, {}, True, DerivedRandom(key)) for key in keys]
    draws = [computer.compute(one, "infer", two, two) for one in each]
    assert {draw.events for draw in draws} == {(PLAN.softmax_event(),)}
    vectors = np.stack([draw.segments[SOFTMAX] for draw in draws])
    # Laplace of scale 2/ε = 0.4: mean absolute deviation 0.4, over 1200 draws ± 0.012.
    assert np.abs(vectors - [1.0, 0.0, 0.0]).mean() == pytest.approx(0.4, abs=0.08)


class OtherHalf(Loader):
    """The device's data with other records in one half: a slot speaks for some of them alone."""

    def __init__(self, half):
        super().__init__()
        self.half = half

    def __call__(self, *asked):
        found = super().__call__(*asked)
        changed = found[self.half]
        changed.x[:] = 1 - changed.x
        changed.y[:] = (changed.y + 1) % 3
        return found


SUMS = {"upload": "sums", "epsilon": 1.0, "every_rounds": 1}
SLOTS = {"every_rounds": 1, "upload": "per_sample", "samples_per_device": 5}
HALVES = {
    "softmax and counts": compile_job(job(federated_evaluation={"epsilon": 1})),
    "softmax in slots": compile_job(job(unsupervised=SLOTS)),
    "cluster sums": compile_job(job(unsupervised=SUMS, encrypt={})),
}


@pytest.fixture
def told_apart(monkeypatch):
    """A model whose answers differ from record to record."""

    def state(plan):
        found = dict(plan.cloud.initial_state())
        return {**found, "iterate": np.eye(5, 3, dtype=np.int32) << 13}

    monkeypatch.setattr(edge_kit, "trained", state)


def changed_segments(folder, plan, half):
    """Segments of one round of each kind, and whether other records of a half change them.

    The two devices are copies of each other: noise is the same where the exact sums are.
    """
    box = folder / "box"
    first = Device(box).knows(plan)
    first.ledger.close()
    first.store.close()
    shutil.copytree(box, folder / "copy")
    devices = Device(box).knows(plan), Device(folder / "copy", OtherHalf(half)).knows(plan)
    kinds = {e.phase: e for e in reversed(plan.all_rounds)}
    found = dict[str, bool]()
    for round in sorted(kinds.values(), key=lambda e: e.index):
        sealed = Round(plan, round.index, devices[0].keys())
        ours, theirs = (sealed.tensors(device.answer(sealed)) for device in devices)
        assert list(ours) == list(theirs)
        for spec in plan.segments(round):
            size = spec.byte_count
            found[spec.name] = ours[spec.name][:size] != theirs[spec.name][:size]
    return found


@pytest.mark.usefixtures("told_apart")
@pytest.mark.parametrize("name", HALVES)
def test_training_records_change_nothing_of_what_evaluation_records_give(tmp_path, name):
    found = changed_segments(tmp_path, HALVES[name], half=0)
    evaluated = {one: found.pop(one) for one in (SOFTMAX, COUNTS) if one in found}
    assert evaluated
    assert not any(evaluated.values())
    assert all(found.values())  # records that do count


@pytest.mark.usefixtures("told_apart")
@pytest.mark.parametrize("name", HALVES)
def test_evaluation_records_change_nothing_of_what_training_records_give(tmp_path, name):
    found = changed_segments(tmp_path, HALVES[name], half=1)
    evaluated = {one: found.pop(one) for one in (SOFTMAX, COUNTS) if one in found}
    assert found
    assert not any(found.values())
    assert all(evaluated.values())
